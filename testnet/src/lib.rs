//! A whole market on one machine: real processes, faults on demand, bundled models. You can draw
//! the faults of a test again from its seed.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod layout;
pub mod models;
pub mod ports;
pub mod process;
pub mod signal;
pub mod supervisor;
