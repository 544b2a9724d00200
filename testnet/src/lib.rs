//! A whole market on one machine: real processes, faults on demand, bundled models. You can draw
//! the faults of a test again from its seed.

#![forbid(unsafe_code)]

pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod gossip;
pub mod hostile;
pub mod layout;
pub mod models;
pub mod ports;
pub mod process;
pub mod readers;
pub mod signal;
pub mod submissions;
pub mod supervisor;
