//! Benchmarks the scheduler: the functions behind `souk bench plan`, `partition`, `tasks`, `split`,
//! `mixes` and `overhead`. The examples can run the same functions without the rest of souk.
//!
//! It is a crate of its own because no run and no plan needs it: readers of published instances, a
//! partitioner for comparison with the planners, and the clock that limits the planners' effort.

#![forbid(unsafe_code)]

mod clock;
mod emulations;
mod instances;
mod layered;
mod mixes;
mod models;
mod overhead;
pub mod partition;
mod partitions;
mod plans;
mod sharing;
mod tasks;

pub use clock::Stopwatch;
pub use emulations::{emulated_mixes, emulated_pairs};
pub use instances::BenchError;
pub use layered::layered_problem;
pub use mixes::{Mix, MixRow, measure_mixes, mix_workloads};
pub use models::{MeasureError, Workload, WorkloadError};
pub use overhead::{CancelTimes, OverheadRow, measure_overhead};
pub use partitions::{
    PartitionReport, PartitionRow, PlacementLine, partition_file, partition_file_in,
};
pub use plans::{PlanLine, PlanReport, plan_file};
pub use sharing::{Pair, SharingRow, SharingStage, SharingStep, measure_sharing};
pub use tasks::{Efficiency, Overhead, TaskReport, measure_tasks};
