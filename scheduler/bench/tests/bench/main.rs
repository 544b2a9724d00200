//! What the benchmarks of the scheduler compare, as one program: it links once.

mod mixes;
mod partitions;
mod sharing;
