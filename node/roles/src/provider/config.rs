//! What a provider is told once, when it starts.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, MarketId, Price, Resources, Units};

use crate::clock::Micros;

/// Who a provider is, and what it sells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Its account.
    pub account: AccountKey,
    /// The market that it sells in.
    pub market: MarketId,
    /// The figures by which its device is sold at first.
    pub resources: Resources,
    /// How many leases of it are sold at once.
    pub capacity: Units,
    /// The lowest price at which its ask may stay in the book.
    pub price_min: Price,
    /// Bytes of graphs, weights and inputs that one lease may have.
    pub memory_bytes_max: u64,
    /// Bytes that what one lease makes may have, outputs and what lies between its parts together.
    pub made_bytes_max: u64,
    /// How long leases at work may go on once it is to stop.
    pub patience: Micros,
}
