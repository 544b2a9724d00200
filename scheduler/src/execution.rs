//! Runs subgraphs on the devices of this machine: on one, or on a group of several.
//!
//! A [`Runner`] runs a [`Task`] and returns its outputs, a [`report`] and a [`timeline`]. A
//! [`WorkerPool`](worker_pool::WorkerPool) has a thread for each device; [`dispatch`] decides which
//! task each device runs next, and knows no thread and no clock, so its caller must pass the time.
//! A `group` plans a subgraph over several devices and runs the plan's fragments.

mod cancel;
mod device_queue;
pub mod dispatch;
mod error;
mod group;
mod lock;
mod programs;
pub mod report;
mod run_figures;
mod runner;
mod sessions;
mod single_device;
mod single_history;
mod stream;
mod task;
pub mod timeline;
pub mod worker_pool;

pub use cancel::Cancel;
pub use error::{GroupError, GroupPlanError, GroupRunError, TaskError};
pub use group::{GroupConfig, GroupDevice, LostDevice, Retrials, Sharing, Stream, Trial};
pub use runner::Runner;
pub use task::{Clock, Precedence, RunResult, Task};
pub use worker_pool::Moment;

#[cfg(test)]
mod tests;
