//! Learns the costs of devices from measured runs, so that the next plan is better than estimates
//! from profiles alone.
//!
//! [`Speeds`] corrects the estimates of whole kinds of work during a run. [`CostHistory`] records
//! the time of each class of operators from run to run, and `estimates` predicts a graph's
//! operators from it.

pub(crate) mod core_sharing;
pub(crate) mod device_histories;
pub(crate) mod estimates;
mod history;
mod speeds;

pub use history::{CostHistory, Measurement, slowness_of};
pub use speeds::{KINDS, Speeds, kind_of_class};
