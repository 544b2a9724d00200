//! The protocols between nodes about leases and the market.

#[cfg(test)]
pub(crate) mod fuzzed;
pub mod lease;
pub mod market;

pub use souk_roles::market::{demands, regions, roster, statement, unsuitable};
