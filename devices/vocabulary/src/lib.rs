//! What every device is spoken of in: what a processor and a program are, what a profile says of
//! them, which processors are catalogued, and what is remembered of how they ran.
//!
//! A device sees one subgraph at a time. It knows neither money nor peers.
//!
//! ```
//! use souk_vocabulary::catalogue;
//!
//! let card = catalogue::find("nvidia-t4").ok_or("it is catalogued")?;
//! // What is only described says so, wherever it is seen.
//! assert!(card.emulated);
//! # Ok::<(), &str>(())
//! ```

pub mod catalogue;
pub mod history;
pub mod links;
pub mod processor;
pub mod profile;
pub mod residency;
mod run_error;
pub mod taxonomy;
