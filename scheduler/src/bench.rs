//! Runs planners over the published instances and writes what they found, and measures what the
//! executor costs for each task.
//!
//! The one place of the planning half with a clock: it answers the planners' question how much of
//! their effort is used up.

mod clock;
mod emulations;
mod instances;
mod layered;
mod mixes;
mod models;
mod overhead;
mod partitions;
mod plans;
mod sharing;
mod tasks;

pub use clock::Stopwatch;
pub use emulations::{emulated_mixes, emulated_pairs};
pub use instances::BenchError;
pub use layered::layered;
pub use mixes::{Mix, MixRow, mixes, workloads};
pub use models::{MeasureError, Workload, WorkloadError};
pub use overhead::{Cancelling, OverheadRow, overhead};
pub use partitions::{
    PartitionReport, PartitionRow, PlacementLine, partition_file, partition_file_in,
};
pub use plans::{PlanLine, PlanReport, plan_file};
pub use sharing::{Pair, SharingRow, SharingStage, SharingStep, sharing};
pub use tasks::{Across, Efficiency, Overhead, TaskReport, across, tasks};
