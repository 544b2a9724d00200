//! The configuration of a provider, fixed when it starts.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, MarketId, Price, Resources, Units};

use crate::clock::Micros;

/// The identity of a provider, and its offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The provider's account.
    pub account: AccountKey,
    /// The market that it sells in.
    pub market: MarketId,
    /// The resources of its device in the first ask.
    pub resources: Resources,
    /// The number of leases that it sells at once.
    pub capacity: Units,
    /// The lowest price at which its ask can stay in the book.
    pub price_min: Price,
    /// The most bytes of graphs, weights and inputs of one lease.
    pub memory_bytes_max: u64,
    /// The most bytes that one lease can make, outputs and intermediate values together.
    pub made_bytes_max: u64,
    /// How long leases at work can continue once the provider must stop.
    pub patience: Micros,
}
