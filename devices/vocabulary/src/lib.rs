//! The types by which souk describes and uses devices, whatever their backend: the interface of
//! processors and programs, the profiles of processors, the catalogue of known ones, and the
//! history of their run times.
//!
//! A device sees one subgraph at a time. It knows neither money nor peers.
//!
//! ```
//! use souk_vocabulary::catalogue;
//!
//! let card = catalogue::find_processor("nvidia-t4").ok_or("it is catalogued")?;
//! // What is only described says so, wherever it is seen.
//! assert!(card.emulated);
//! # Ok::<(), &str>(())
//! ```

pub mod catalogue;
pub mod history;
pub mod links;
pub mod objective;
pub mod processor;
pub mod profile;
pub mod residency;
mod run_error;
pub mod taxonomy;
