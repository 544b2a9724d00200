//! What devices were seen to take, by which the next plan is better than the last.
//!
//! [`Speeds`] corrects the estimates of whole kinds of work while a run goes on; [`CostHistory`]
//! keeps what each class of operators took, from run to run, and `estimates` foretells a graph's
//! operators by it.

pub(crate) mod core_sharing;
pub(crate) mod device_histories;
pub(crate) mod estimates;
mod history;
mod speeds;

pub use history::{CostHistory, Measurement, slowness_of};
pub use speeds::{KINDS, Speeds, kind};
