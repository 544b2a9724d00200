//! Tests the benchmarks of the scheduler. All tests are in one program, so that it is linked only
//! once.

mod mixes;
mod partitions;
mod sharing;
