//! Runs a whole market on one machine: real processes, whose folders, ports, faults and restarts it
//! controls, and the bundled models. `souk testnet`, `souk demo` and the tests of `souk-lab` use
//! it.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod layout;
pub mod models;
pub mod ports;
pub mod process;
pub mod signal;
pub mod supervisor;
