//! Runs planners over the published instances and writes what they found, and measures what the
//! executor costs for each task.
//!
//! The one place of the planning half with a clock: it answers the planners' question how much of
//! their effort is used up.

mod clock;
mod instances;
mod layered;
mod partitions;
mod plans;
mod tasks;

pub use clock::Stopwatch;
pub use instances::BenchError;
pub use layered::layered;
pub use partitions::{
    PartitionReport, PartitionRow, PlacementLine, partition_file, partition_file_in,
};
pub use plans::{PlanLine, PlanReport, plan_file};
pub use tasks::{Efficiency, Overhead, TaskReport, tasks};
