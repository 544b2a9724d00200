//! Forgets closed leases, the oldest first, but keeps each lease for whose output the buyer can
//! still accuse the provider: the provider's stake answers for it.
//!
//! The rule `closed_leases_kept` says how many of the newest closed leases stay. An older exact one
//! stays too while its buyer can accuse a provider with a stake, and until a dispute about it is
//! over. Else a liar could trade with itself until the market has forgotten the lease in which it
//! lied. From version 2 of the rules on, one that is not exact stays as long: nobody can accuse its
//! provider, but if that one contradicts itself, the buyer is compensated by what the lease cost.
//!
//! So that memory stays bounded, each buyer has [`ANSWERING_LEASES_MAX`] such leases, and all
//! buyers together have [`ANSWERING_LEASES_TOTAL`]. Beyond, one that is not exact goes first, then
//! the cheapest, and of equal ones the oldest. So to push out a lease, somebody must pay for as
//! many leases that each cost at least as much, and the market keeps its share of each. A new
//! account that takes a forgotten one's slot also takes over its leases.

use std::collections::BTreeSet;

use crate::ids::{LeaseId, Slot};
use crate::lease::{Lease, LeaseState};
use crate::rules::RECOUNTING_RULES_VERSION;
use crate::units::{Credits, Millis};

use super::Exchange;

/// The most closed leases of one buyer that stay beyond the rule `closed_leases_kept`. One buyer
/// can have four open disputes at a time, so it cannot dispute more of them before their time is
/// over unless the validators judge fast. It is no rule of the genesis, because another rule would
/// change the id of every market that exists.
pub(super) const ANSWERING_LEASES_MAX: usize = 64;

/// The most closed leases of all buyers that stay beyond the rule.
const ANSWERING_LEASES_TOTAL: usize = 100_000;

/// The most leases that the market forgets with one closing because their time is over or the rule
/// changed: a command after a quiet hour must not pay for all of them. Each closing adds one.
const FORGOTTEN_AT_ONCE: usize = 8;

/// A closed lease in the order in which the market forgets: by whether it was exact, then by what
/// the buyer paid, then by when it closed.
type Rank = (bool, Credits, Millis, LeaseId);

/// Returns the rank of a lease that closed at `at`.
fn rank_lease(lease: &Lease, at: Millis) -> Rank {
    (lease.exact, lease.cost, at, lease.id)
}

/// The closed leases that stay only because a stake answers for them. Snapshots do not hold them:
/// they are the closed leases that are not among the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnsweringLeases {
    /// When each closed, the oldest first.
    by_time: BTreeSet<(Millis, LeaseId)>,
    /// The first to go first.
    by_rank: BTreeSet<Rank>,
    /// The same by the slot of the buyer.
    by_buyer: BTreeSet<(Slot, Rank)>,
}

impl AnsweringLeases {
    fn insert(&mut self, buyer: Slot, rank: Rank) {
        let (.., at, id) = rank;
        let fresh = self.by_time.insert((at, id)) && self.by_rank.insert(rank);
        assert!(fresh, "a lease leaves the newest once");
        self.by_buyer.insert((buyer, rank));
    }

    fn remove(&mut self, buyer: Slot, rank: Rank) {
        let (.., at, id) = rank;
        let known = self.by_time.remove(&(at, id)) && self.by_rank.remove(&rank);
        assert!(known, "a lease is forgotten once");
        self.by_buyer.remove(&(buyer, rank));
    }

    /// Iterates over the leases of one buyer, the first to go first.
    fn of_buyer(&self, buyer: Slot) -> impl Iterator<Item = Rank> + '_ {
        let first = (false, Credits::ZERO, Millis(0), LeaseId(0));
        let last = (true, Credits(u64::MAX), Millis(u64::MAX), LeaseId(u64::MAX));
        let all = self.by_buyer.range((buyer, first)..=(buyer, last));
        all.map(|(_, rank)| *rank)
    }

    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }
}

impl Exchange {
    /// Remembers a closed lease, and forgets older ones where there are too many.
    pub(super) fn keep_closed(&mut self, id: LeaseId) {
        let fresh = self.closed.insert((self.now, id));
        assert!(fresh, "a lease is closed once");
        assert!(
            self.leases[&id].is_closed(),
            "only closed leases are forgotten"
        );
        let kept = usize::try_from(self.rules.closed_leases_kept).unwrap_or(usize::MAX);
        let surplus = self.closed.len().saturating_sub(kept);
        for _ in 0..surplus.min(FORGOTTEN_AT_ONCE) {
            if let Some((at, oldest)) = self.closed.pop_first() {
                self.keep_answering(at, oldest);
            }
        }
        self.forget_answered();
    }

    /// Keeps a lease that is no longer among the newest if a stake answers for it, else forgets it.
    fn keep_answering(&mut self, at: Millis, id: LeaseId) {
        let lease = &self.leases[&id];
        let (buyer, rank) = (lease.parties.buyer, rank_lease(lease, at));
        let provider = self.ledger.find_slot(lease.provider);
        let is_staked = provider.is_some_and(|slot| self.ledger.get(slot).stake.0 > 0);
        let is_judged = lease.faulted || lease.disputed.is_some();
        let is_counted = lease.exact || self.version >= RECOUNTING_RULES_VERSION;
        let is_worth = is_counted && !is_judged && is_staked;
        let is_answered_for = is_worth && self.can_be_accused(at);
        if !is_answered_for && !self.is_in_dispute(id) {
            self.forget_lease(id);
            return;
        }
        self.answering.insert(buyer, rank);
        // At most [`crate::DISPUTES_OPEN_MAX`] more stay because of a dispute.
        if self.answering.of_buyer(buyer).count() > ANSWERING_LEASES_MAX {
            let own = self.answering.of_buyer(buyer);
            let first = self.first_undisputed(own);
            self.forget_answering(first);
        }
        if self.answering.len() > ANSWERING_LEASES_TOTAL {
            let all = self.answering.by_rank.iter().copied();
            let first = self.first_undisputed(all);
            self.forget_answering(first);
        }
    }

    fn first_undisputed(&self, mut leases: impl Iterator<Item = Rank>) -> Option<Rank> {
        leases.find(|(.., id)| !self.is_in_dispute(*id))
    }

    fn forget_answering(&mut self, rank: Option<Rank>) {
        if let Some(rank) = rank {
            let (.., id) = rank;
            self.answering.remove(self.leases[&id].parties.buyer, rank);
            self.forget_lease(id);
        }
    }

    /// Forgets leases for which no stake answers any more.
    fn forget_answered(&mut self) {
        let by_time = self.answering.by_time.iter();
        let over = by_time.take_while(|(at, _)| !self.can_be_accused(*at));
        let over = over.filter(|(_, id)| !self.is_in_dispute(*id));
        let over: Vec<(Millis, LeaseId)> = over.take(FORGOTTEN_AT_ONCE).copied().collect();
        for (at, id) in over {
            self.forget_answering(Some(rank_lease(&self.leases[&id], at)));
        }
    }

    fn forget_lease(&mut self, id: LeaseId) {
        let forgotten = self.leases.remove(id);
        debug_assert!(forgotten.is_some(), "it was remembered");
    }

    /// Returns whether the provider of a lease that closed at `closed` can still be accused.
    pub(super) fn can_be_accused(&self, closed: Millis) -> bool {
        self.now < closed.saturating_add(self.rules.stake_hold)
    }

    /// Returns whether a dispute about a lease is open.
    fn is_in_dispute(&self, id: LeaseId) -> bool {
        let dispute = self.leases[&id].disputed;
        let dispute = dispute.and_then(|dispute| self.disputes.get(&dispute));
        dispute.is_some_and(|dispute| dispute.is_open())
    }

    /// Finds the leases that stay only because a stake answers for them.
    pub(super) fn find_answering(&self) -> AnsweringLeases {
        let mut found = AnsweringLeases::default();
        for lease in self.leases.values() {
            if let LeaseState::Closed { at, .. } = lease.state
                && !self.closed.contains(&(at, lease.id))
            {
                found.insert(lease.parties.buyer, rank_lease(lease, at));
            }
        }
        found
    }

    pub(super) fn audit_answering(&self) {
        assert_eq!(
            self.answering,
            self.find_answering(),
            "the older closed leases"
        );
        let newest = self.closed.first();
        let oldest = self.answering.by_time.last();
        let (Some(newest), Some(oldest)) = (newest, oldest) else {
            return;
        };
        assert!(oldest.0 <= newest.0, "the newest closed leases stay first");
    }
}
