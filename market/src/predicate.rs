//! What a bid demands of an ask and an ask of a buyer: conjunctions of fixed size, no user code.

use serde::{Deserialize, Serialize};

use crate::class::{Dtype, Features, Region, Resources, Throughput};
use crate::ids::{AccountKey, number};
use crate::operators::Operators;
use crate::units::{Credits, Millis, Permille};

number! {
    /// A set of regions, bit n for region n; the empty set means any region.
    Regions(u32)
}

/// The most accounts a predicate may name.
pub const EXCLUDED_MAX: usize = 16;

/// What a bid demands. The default demands nothing.
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
    /// At most this link latency, in microseconds; 0 for any.
    pub link_latency_us: u64,
    /// One of these regions.
    pub regions: Regions,
    /// All of these features.
    pub features: Features,
    /// All of these operators.
    pub operators: Operators,
    /// At least this reputation.
    pub reputation: Permille,
    /// At least this stake of the provider's.
    pub stake: Credits,
    /// At least this notice before a displacement or a reclaim.
    pub notice: Millis,
    /// None of these providers; at most [`EXCLUDED_MAX`].
    pub excluded: Vec<AccountKey>,
}

/// What an ask demands of the buyer. The default accepts everyone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Accepts {
    /// At least this reputation.
    pub reputation: Permille,
    /// None of these buyers; at most [`EXCLUDED_MAX`].
    pub excluded: Vec<AccountKey>,
    /// Only these buyers, where any are named; at most [`EXCLUDED_MAX`].
    pub only: Vec<AccountKey>,
}

/// Why an ask does not suit a bid. The first that holds, in this order, is the one told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// In another class than the bid's.
    Class,
    /// The bid's own account placed it.
    OwnAsk,
    /// The bid names its provider as excluded.
    Excluded,
    /// Less memory than demanded.
    Memory,
    /// Less memory bandwidth than demanded.
    MemoryBandwidth,
    /// Less throughput than demanded for this element type, or none.
    Throughput(Dtype),
    /// A slower link than demanded.
    LinkBandwidth,
    /// A link with more latency than demanded.
    LinkLatency,
    /// In no region demanded.
    Region,
    /// Lacks a feature.
    Features,
    /// Lacks an operator.
    Operators,
    /// Its provider's reputation is below the one demanded.
    Reputation,
    /// Its provider's stake is below the one demanded.
    Stake,
    /// Gives less notice than demanded.
    Notice,
    /// It resells a spot lease, and the bid is firm.
    Term,
    /// Leases for shorter or longer times only.
    Duration,
    /// Its own predicate refuses this buyer.
    RefusesBuyer,
    /// Above the price limit.
    Price,
    /// Another leg of the gang took its provider, or too few units are left.
    Quantity,
}

impl Wants {
    /// The first reason why `resources` don't suffice, if any.
    pub(crate) fn lack(&self, resources: &Resources) -> Option<Lack> {
        if resources.memory_bytes < self.memory_bytes {
            return Some(Lack::Memory);
        }
        if resources.memory_bandwidth < self.memory_bandwidth {
            return Some(Lack::MemoryBandwidth);
        }
        let slow = |dtype: &Dtype| resources.throughput.of(*dtype) < self.throughput.of(*dtype);
        if let Some(dtype) = Dtype::ALL.into_iter().find(slow) {
            return Some(Lack::Throughput(dtype));
        }
        self.lack_around(resources)
    }

    fn lack_around(&self, resources: &Resources) -> Option<Lack> {
        if resources.link_bandwidth < self.link_bandwidth {
            return Some(Lack::LinkBandwidth);
        }
        if self.link_latency_us != 0 && resources.link_latency_us > self.link_latency_us {
            return Some(Lack::LinkLatency);
        }
        if !self.regions.hold(resources.region) {
            return Some(Lack::Region);
        }
        let missing = self.features.0 & !resources.features.0;
        if missing != 0 {
            return Some(Lack::Features);
        }
        let lacks = !resources.operators.covers(&self.operators);
        lacks.then_some(Lack::Operators)
    }
}

impl Accepts {
    /// Whether this buyer may take the ask.
    pub(crate) fn admits(&self, buyer: AccountKey, reputation: Permille) -> bool {
        reputation >= self.reputation
            && !self.excluded.contains(&buyer)
            && (self.only.is_empty() || self.only.contains(&buyer))
    }
}

impl Regions {
    /// The set of these regions; those above 31 are left out.
    pub fn of(regions: &[Region]) -> Self {
        let known = regions.iter().filter(|region| region.0 < 32);
        let set = Self(known.fold(0, |set, region| set | 1 << region.0));
        debug_assert!(
            regions.iter().all(|one| one.0 > 31 || set.hold(*one)),
            "all are in it"
        );
        set
    }

    /// Whether the set has `region`, or is empty and so means any.
    pub fn hold(self, region: Region) -> bool {
        self.0 == 0 || (region.0 < 32 && self.0 & (1 << region.0) != 0)
    }
}
