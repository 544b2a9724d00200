//! Forgets closed leases: the oldest first, but none for which a stake still answers.
//!
//! The rule `closed_leases_kept` says how many of the newest closed leases stay. An older one stays
//! too while its buyer can accuse a provider with a stake, and until a dispute about it is over.
//! Else a liar could trade with itself until the market has forgotten the lease in which it lied.
//! Only an exact lease that was paid and not judged can be accused.
//!
//! So that memory stays bounded, each buyer has [`ANSWERING_LEASES_MAX`] such leases, and its own
//! oldest goes first. So only leases that the buyer bought itself push its lease out, and each of
//! them was paid. All buyers together have [`ANSWERING_LEASES_TOTAL`]; beyond, the oldest lease of
//! the buyer with the most goes. So who floods the market with leases pushes out its own. A new
//! account that takes a forgotten one's slot also takes over its leases.

use std::collections::BTreeSet;

use crate::ids::{LeaseId, Slot};
use crate::lease::LeaseState;
use crate::units::Millis;

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

/// The closed leases that stay only because a stake answers for them. Snapshots do not hold them:
/// they are the closed leases that are not among the newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnsweringLeases {
    /// When each closed, the oldest first.
    by_time: BTreeSet<(Millis, LeaseId)>,
    /// The same by the slot of the buyer.
    by_buyer: BTreeSet<(Slot, Millis, LeaseId)>,
    /// The buyers by the number of their leases.
    by_count: BTreeSet<(usize, Slot)>,
}

impl AnsweringLeases {
    fn insert(&mut self, buyer: Slot, at: Millis, id: LeaseId) {
        let fresh = self.by_time.insert((at, id));
        assert!(fresh, "a lease leaves the newest once");
        self.by_count.remove(&(self.count_of(buyer), buyer));
        self.by_buyer.insert((buyer, at, id));
        self.by_count.insert((self.count_of(buyer), buyer));
    }

    fn remove(&mut self, buyer: Slot, at: Millis, id: LeaseId) {
        self.by_count.remove(&(self.count_of(buyer), buyer));
        let known = self.by_time.remove(&(at, id)) && self.by_buyer.remove(&(buyer, at, id));
        assert!(known, "a lease is forgotten once");
        let left = self.count_of(buyer);
        if left > 0 {
            self.by_count.insert((left, buyer));
        }
    }

    fn count_of(&self, buyer: Slot) -> usize {
        self.of_buyer(buyer).count()
    }

    /// Returns the buyer with the most leases.
    fn largest_buyer(&self) -> Option<Slot> {
        self.by_count.last().map(|(_, buyer)| *buyer)
    }

    /// Iterates over the leases of one buyer, the oldest first.
    fn of_buyer(&self, buyer: Slot) -> impl Iterator<Item = (Millis, LeaseId)> + '_ {
        let (first, last) = (
            (buyer, Millis(0), LeaseId(0)),
            (buyer, Millis(u64::MAX), LeaseId(u64::MAX)),
        );
        let all = self.by_buyer.range(first..=last);
        all.map(|(_, at, id)| (*at, *id))
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
        let buyer = lease.parties.buyer;
        let provider = self.ledger.find_slot(lease.provider);
        let is_staked = provider.is_some_and(|slot| self.ledger.get(slot).stake.0 > 0);
        let is_judged = lease.faulted || lease.disputed.is_some();
        let is_worth = lease.exact && lease.cost.0 > 0 && !is_judged;
        let is_answered_for = is_worth && is_staked && self.can_be_accused(at);
        if !is_answered_for && !self.is_in_dispute(id) {
            self.forget_lease(id);
            return;
        }
        self.answering.insert(buyer, at, id);
        if self.answering.count_of(buyer) > ANSWERING_LEASES_MAX {
            self.forget_oldest_of(buyer);
        }
        if self.answering.len() > ANSWERING_LEASES_TOTAL
            && let Some(largest) = self.answering.largest_buyer()
        {
            self.forget_oldest_of(largest);
        }
    }

    /// Forgets the oldest lease of a buyer that no open dispute is about. At most
    /// [`crate::DISPUTES_OPEN_MAX`] leases stay because of one.
    fn forget_oldest_of(&mut self, buyer: Slot) {
        if let Some((at, oldest)) = self.oldest_undisputed(buyer) {
            self.answering.remove(buyer, at, oldest);
            self.forget_lease(oldest);
        }
    }

    fn oldest_undisputed(&self, buyer: Slot) -> Option<(Millis, LeaseId)> {
        let mut own = self.answering.of_buyer(buyer);
        own.find(|(_, id)| !self.is_in_dispute(*id))
    }

    /// Forgets leases for which no stake answers any more.
    fn forget_answered(&mut self) {
        let by_time = self.answering.by_time.iter();
        let over = by_time.take_while(|(at, _)| !self.can_be_accused(*at));
        let over = over.filter(|(_, id)| !self.is_in_dispute(*id));
        let over: Vec<(Millis, LeaseId)> = over.take(FORGOTTEN_AT_ONCE).copied().collect();
        for (at, id) in over {
            let buyer = self.leases[&id].parties.buyer;
            self.answering.remove(buyer, at, id);
            self.forget_lease(id);
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
                found.insert(lease.parties.buyer, at, lease.id);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buyer_with_the_most_leases_is_known_whatever_goes() {
        let mut leases = AnsweringLeases::default();
        let all: Vec<(Slot, Millis, LeaseId)> = (0..60_u64)
            .map(|it| (Slot((it * it % 7) as u32), Millis(it / 3), LeaseId(it)))
            .collect();
        let mut counts = std::collections::BTreeMap::new();
        for &(buyer, at, id) in &all {
            leases.insert(buyer, at, id);
            *counts.entry(buyer).or_insert(0) += 1;
            let most = counts
                .iter()
                .max_by_key(|(buyer, count)| (**count, **buyer));
            assert_eq!(leases.largest_buyer(), most.map(|(buyer, _)| *buyer));
        }
        for &(buyer, at, id) in all.iter().rev() {
            leases.remove(buyer, at, id);
            *counts.entry(buyer).or_insert(0) -= 1;
            counts.retain(|_, count| *count > 0);
            let most = counts
                .iter()
                .max_by_key(|(buyer, count)| (**count, **buyer));
            assert_eq!(leases.largest_buyer(), most.map(|(buyer, _)| *buyer));
        }
        assert_eq!(leases, AnsweringLeases::default());
    }
}
