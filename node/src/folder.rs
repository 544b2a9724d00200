//! Reads and writes the files of a node's folder: its key, and the files that state its market, its
//! role and its limits. The modules here only know these files; other modules act on them.

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
