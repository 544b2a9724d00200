//! The shell around souk's pure cores: network, disk, clock and the three roles.
//!
//! A node is one process with one key. As a *validator* ([`seat`]) it replicates the exchange; as a
//! *provider* it sells a device; as a *buyer* it has a model run. Whatever it is, it reaches the
//! others through one [`network`].

#![forbid(unsafe_code)]

pub mod broker;
pub mod config;
pub mod contact;
pub mod exchange_machine;
pub mod key;
pub mod market_protocol;
pub mod network;
pub mod order_entry;
pub mod raft_link;
pub mod seat;
pub mod tensors;
pub mod trader;
pub mod validator;
pub mod wire;
