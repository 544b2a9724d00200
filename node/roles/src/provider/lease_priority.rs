//! Decides which of one buyer's leases runs first when several are at work at the same provider.
//!
//! Between buyers the price decides; a priority orders only the leases of one buyer. A part of a
//! lease with a lower priority must wait while a part of one with a higher priority runs. This does
//! not affect other buyers ([0017]).
//!
//! [0017]: ../../../../docs/decisions/0017-a-priority-orders-a-buyers-own-jobs.md

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use souk_market::AccountKey;

/// A lease's place among those of its buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Rank {
    pub(super) buyer: AccountKey,
    /// A greater priority goes first.
    pub(super) priority: u8,
}

/// The runs that are at work, by rank.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RunsByRank {
    at_work: BTreeMap<Rank, u32>,
    /// The buyers of runs that ended: their other leases may have waited for those runs.
    ended: BTreeSet<AccountKey>,
}

impl RunsByRank {
    /// Begins a run of this rank, unless a run of the same buyer with a higher priority is at work.
    /// Returns whether it did.
    pub(super) fn take_turn(&mut self, rank: Rank) -> bool {
        let highest = Rank {
            priority: u8::MAX,
            ..rank
        };
        // Its own rank does not hold it up.
        let first = self.at_work.range(rank..=highest).next_back();
        let may = first.is_none_or(|(first, _)| *first == rank);
        if may {
            *self.at_work.entry(rank).or_default() += 1;
        }
        may
    }

    /// Records that a run of this rank has ended.
    pub(super) fn end_turn(&mut self, rank: Rank) {
        let count = self.at_work.get_mut(&rank);
        let count = count.expect("a run at work is counted");
        *count -= 1;
        if *count == 0 {
            self.at_work.remove(&rank);
        }
        self.ended.insert(rank.buyer);
    }

    /// Takes the buyers of runs that ended since the last call.
    pub(super) fn take_ended(&mut self) -> BTreeSet<AccountKey> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the number of runs at work.
    pub(super) fn at_work(&self) -> u32 {
        self.at_work.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(buyer: u8, priority: u8) -> Rank {
        let buyer = AccountKey([buyer; 32]);
        Rank { buyer, priority }
    }

    #[test]
    fn a_buyers_lower_lease_waits_for_its_higher_one_and_for_nobody_elses() {
        let mut turns = RunsByRank::default();
        assert!(
            turns.take_turn(rank(1, 2)) && turns.take_turn(rank(1, 2)),
            "equals"
        );
        assert!(
            turns.take_turn(rank(2, 0)),
            "another buyer's high is nothing"
        );
        assert!(!turns.take_turn(rank(1, 1)));
        turns.end_turn(rank(1, 2));
        assert!(!turns.take_turn(rank(1, 1)), "one is still at it");
        turns.end_turn(rank(1, 2));
        assert_eq!(turns.take_ended(), [AccountKey([1; 32])].into());
        assert!(turns.take_turn(rank(1, 1)));
        assert!(
            turns.take_turn(rank(1, 2)),
            "who goes first waits for no lower"
        );
        assert_eq!(turns.at_work(), 3);
    }
}
