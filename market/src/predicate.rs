//! The conditions that an order sets: the demands of a bid on an ask's device, and those of an ask
//! on its buyers. Matching checks them. All conditions must hold; their number is bounded, and they
//! contain no code.

use serde::{Deserialize, Serialize};

use crate::class::{Dtype, Features, Region, Resources, Throughput};
use crate::ids::{AccountKey, number};
use crate::operators::Operators;
use crate::tokens::WantedTokens;
use crate::units::{Credits, Millis, Permille};

number! {
    /// A set of regions, bit n for region n; an empty set means any region.
    Regions(u32)
}

/// The most accounts that each list of a predicate can hold.
pub const EXCLUDED_MAX: usize = 16;

/// The demands of a bid. The default demands nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wants {
    /// At least this much memory, in bytes.
    pub memory_bytes: u64,
    /// At least this memory bandwidth, in bytes per second.
    pub memory_bandwidth: u64,
    /// At least this throughput for each element type, in mega-operations per second.
    pub throughput: Throughput,
    /// At least this link bandwidth, in bytes per second.
    pub link_bandwidth: u64,
    /// At most this link latency, in microseconds; 0 means any.
    pub link_latency_us: u64,
    /// One of these regions.
    pub regions: Regions,
    /// All of these features.
    pub features: Features,
    /// All of these operators.
    pub operators: Operators,
    /// At least this reputation.
    pub reputation: Permille,
    /// At least this stake of the provider.
    pub stake: Credits,
    /// At least this notice before a displacement or a reclaim.
    pub notice: Millis,
    /// None of these providers; at most [`EXCLUDED_MAX`].
    pub excluded: Vec<AccountKey>,
    /// Tokens of this model, on these terms at most.
    pub tokens: Option<WantedTokens>,
}

/// The demands of an ask on its buyer. The default accepts every buyer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BuyerFilter {
    /// At least this reputation.
    pub reputation: Permille,
    /// None of these buyers; at most [`EXCLUDED_MAX`].
    pub excluded: Vec<AccountKey>,
    /// If not empty, only these buyers; at most [`EXCLUDED_MAX`].
    pub only: Vec<AccountKey>,
}

/// Why an ask does not suit a bid. An explanation counts each ask under one reason, and lists the
/// reasons in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// The ask is in another class than the bid.
    Class,
    /// The bid's own account placed the ask.
    OwnAsk,
    /// The bid excludes the ask's provider.
    Excluded,
    /// It has less memory than the bid demands.
    Memory,
    /// It has less memory bandwidth than the bid demands.
    MemoryBandwidth,
    /// It has less throughput for this element type than the bid demands, or none.
    Throughput(Dtype),
    /// Its link is slower than the bid demands.
    LinkBandwidth,
    /// Its link has more latency than the bid allows.
    LinkLatency,
    /// It is in none of the bid's regions.
    Region,
    /// It lacks a feature.
    Features,
    /// It lacks an operator.
    Operators,
    /// It sells no tokens of the model that the bid demands, or counts them otherwise.
    Model,
    /// Its tokens cost more than the bid allows.
    TokenTerms,
    /// Its provider's reputation is below the bid's demand.
    Reputation,
    /// Its provider's stake is below the bid's demand.
    Stake,
    /// It gives less notice than the bid demands.
    Notice,
    /// It resells a spot lease, and the bid is firm.
    Term,
    /// It leases only for shorter or longer times.
    Duration,
    /// Its own predicate refuses this buyer.
    RefusesBuyer,
    /// Its price is above the bid's limit.
    Price,
    /// Another leg of the gang took its provider, or too few units remain.
    Quantity,
}

impl Wants {
    /// Returns the first reason why `resources` do not meet the demands, if any.
    pub(crate) fn find_lack(&self, resources: &Resources) -> Option<Lack> {
        if resources.memory_bytes < self.memory_bytes {
            return Some(Lack::Memory);
        }
        if resources.memory_bandwidth < self.memory_bandwidth {
            return Some(Lack::MemoryBandwidth);
        }
        let slow = |dtype: &Dtype| {
            resources.throughput.for_dtype(*dtype) < self.throughput.for_dtype(*dtype)
        };
        if let Some(dtype) = Dtype::ALL.into_iter().find(slow) {
            return Some(Lack::Throughput(dtype));
        }
        self.find_other_lack(resources)
    }

    /// Checks the link, the region, the features and the operators.
    fn find_other_lack(&self, resources: &Resources) -> Option<Lack> {
        if resources.link_bandwidth < self.link_bandwidth {
            return Some(Lack::LinkBandwidth);
        }
        if self.link_latency_us != 0 && resources.link_latency_us > self.link_latency_us {
            return Some(Lack::LinkLatency);
        }
        if !self.regions.has_region(resources.region) {
            return Some(Lack::Region);
        }
        let missing = self.features.0 & !resources.features.0;
        if missing != 0 {
            return Some(Lack::Features);
        }
        if !resources.operators.is_superset_of(&self.operators) {
            return Some(Lack::Operators);
        }
        self.find_token_lack(resources)
    }

    /// Checks the tokens. Two models can share a book, but not a name.
    fn find_token_lack(&self, resources: &Resources) -> Option<Lack> {
        let wanted = self.tokens.as_ref()?;
        let sold = resources.tokens;
        let sold = sold.filter(|sold| sold.counting == wanted.most.counting);
        match sold.filter(|_| resources.model == wanted.model) {
            None => Some(Lack::Model),
            Some(sold) => (!sold.is_within(wanted.most)).then_some(Lack::TokenTerms),
        }
    }
}

impl BuyerFilter {
    /// Returns whether this buyer can take the ask.
    pub(crate) fn can_accept(&self, buyer: AccountKey, reputation: Permille) -> bool {
        reputation >= self.reputation
            && !self.excluded.contains(&buyer)
            && (self.only.is_empty() || self.only.contains(&buyer))
    }
}

impl Regions {
    /// Returns the set of these regions, without those above 31.
    pub fn from_regions(regions: &[Region]) -> Self {
        let known = regions.iter().filter(|region| region.0 < 32);
        let set = Self(known.fold(0, |set, region| set | 1 << region.0));
        debug_assert!(
            regions.iter().all(|one| one.0 > 31 || set.has_region(*one)),
            "all are in it"
        );
        set
    }

    /// Returns whether the set has `region`, or is empty and so means any.
    pub fn has_region(self, region: Region) -> bool {
        self.0 == 0 || (region.0 < 32 && self.0 & (1 << region.0) != 0)
    }
}
