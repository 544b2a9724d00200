//! The shell around souk's pure cores: network, disk, clock and the three roles.
//!
//! A node is one process with one key. As a *validator* ([`seat`]) it replicates the exchange; as a
//! *provider* it sells a device; as a *buyer* it has a model run. Whatever it is, it reaches the
//! others through one [`network`].

#![forbid(unsafe_code)]

pub mod backends;
#[cfg(feature = "bench")]
pub mod bench;
pub mod broker;
pub mod buyer;
pub mod cell;
pub mod config;
pub mod contact;
pub mod demands;
pub mod exchange_machine;
#[cfg(test)]
mod fuzzed;
pub mod job;
pub mod kernels;
pub mod key;
pub mod lane;
pub mod lease_protocol;
pub mod links;
pub mod market_protocol;
pub mod metrics;
pub mod network;
pub mod operator;
pub mod order_entry;
pub mod pace;
pub mod probe;
pub mod profile;
pub mod provider;
pub mod raft_link;
pub mod reach;
pub mod roster;
pub mod seat;
pub mod stated;
pub mod tensors;
pub mod trader;
pub mod validator;
pub mod wire;

pub use souk_scheduler as scheduler;
/// The crates below, for those who know this one alone.
pub use {souk_market as market, souk_memory as memory};
