//! What lies in a node's folder, and nothing that acts on it: its key, and the files that say what
//! market it belongs to, what it is there, and what it does not do.

pub mod config;
pub mod contact;
pub mod fact_writer;
pub mod facts;
pub mod invitation;
pub mod key;
pub mod limits;
pub mod market_file;
pub mod price;
pub mod pricing;
