//! The shell around souk's pure cores: network, disk, clock and the three roles.
//!
//! A node is one process with one key. As a [`validator`] it replicates the exchange; as a
//! [`provider`] it sells a device; as a [`buyer`] it has a model run. Whatever it is, it reaches
//! the others through one [`network`].
//!
//! Its modules stand on floors, and each knows only those below it: [`clock`] and [`folder`]; then
//! [`network`]; then [`metrics`], [`content`] and [`device`]; then [`sandbox`] and [`protocols`];
//! then [`executor`] and [`client`]; and on top the roles, which do not know each other.

#![forbid(unsafe_code)]

pub mod buyer;
pub mod client;
pub mod clock;
pub mod content;
pub mod device;
pub mod executor;
pub mod folder;
pub mod metrics;
pub mod network;
pub mod protocols;
pub mod provider;
pub mod sandbox;
pub mod validator;

pub use souk_scheduler as scheduler;
/// The crates below, for those who know this one alone.
pub use {souk_market as market, souk_memory as memory};
