//! What every device is spoken of in: what a processor and a program are, what a profile says of
//! them, which processors are catalogued, and what is remembered of how they ran.
//!
//! A device sees one subgraph at a time. It knows neither money nor peers.

pub mod catalogue;
pub mod history;
pub mod links;
pub mod processor;
pub mod profile;
pub mod residency;
mod run_error;
pub mod taxonomy;
