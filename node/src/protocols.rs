//! What nodes say to each other about leases and the market: messages, and what they are judged by.

#[cfg(test)]
pub(crate) mod fuzzed;
pub mod lease;
pub mod market;

pub use souk_roles::market::{demands, regions, roster, statement, unsuitable};
