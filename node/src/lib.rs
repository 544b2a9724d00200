//! The shell around souk's pure cores: network, disk, clock and the three roles.

pub mod contact;
pub mod key;
pub mod network;
pub mod wire;
