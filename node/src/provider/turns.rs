//! Whose turn it is among the leases of one buyer that are at work here at once.
//!
//! Between buyers the price decides what each has of the devices. A buyer's priority says only
//! which of its own leases goes first: a part of a lower one is not begun while one of a higher is
//! at work, and nobody else notices ([0017]).
//!
//! [0017]: ../../../docs/decisions/0017-a-priority-orders-a-buyers-own-jobs.md

use std::collections::BTreeMap;

use souk_market::AccountKey;
use tokio::sync::watch;

/// A lease's place among those of its buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) buyer: AccountKey,
    /// More goes first.
    pub(super) priority: u8,
}

/// The parts that are at work.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// How many of each rank; none where there are none.
    at_work: watch::Sender<BTreeMap<Rank, usize>>,
}

/// A part at work; dropped when it has ended.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    rank: Rank,
}

impl Turns {
    /// The turn of a part of this rank, once nothing of its buyer's goes first.
    pub(super) async fn take(&self, rank: Rank) -> Turn<'_> {
        let mut ended = self.at_work.subscribe();
        loop {
            if let Some(turn) = self.take_now(rank) {
                return turn;
            }
            // Whoever it waits for has a hold on the sender.
            let _ = ended.changed().await;
        }
    }

    /// The same, or nothing if something goes first now.
    pub(super) fn take_now(&self, rank: Rank) -> Option<Turn<'_>> {
        let highest = Rank {
            priority: u8::MAX,
            ..rank
        };
        let begins = |at_work: &mut BTreeMap<Rank, usize>| {
            // Its own rank does not hold it up.
            let first = at_work.range(rank..=highest).next_back();
            let may = first.is_none_or(|(first, _)| *first == rank);
            if may {
                *at_work.entry(rank).or_default() += 1;
            }
            may
        };
        // Made only where it began: its end is counted too.
        match self.at_work.send_if_modified(begins) {
            true => Some(Turn { turns: self, rank }),
            false => None,
        }
    }

    /// What tells that a part has begun or ended.
    pub(super) fn changes(&self) -> watch::Receiver<BTreeMap<Rank, usize>> {
        self.at_work.subscribe()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.at_work.send_modify(|at_work| {
            let count = at_work.get_mut(&self.rank);
            let count = count.expect("a part at work is counted");
            *count -= 1;
            if *count == 0 {
                at_work.remove(&self.rank);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(buyer: u8, priority: u8) -> Rank {
        let buyer = AccountKey([buyer; 32]);
        Rank { buyer, priority }
    }

    #[tokio::test]
    async fn a_buyers_lower_lease_waits_for_its_higher_one_and_for_nobody_elses() {
        let turns = Turns::default();
        let high = turns.take(rank(1, 2)).await;
        let also_high = turns.take_now(rank(1, 2)).expect("equals go at once");
        let other = turns.take_now(rank(2, 0));
        assert!(other.is_some(), "another buyer's high is nothing to it");
        let mut low = Box::pin(turns.take(rank(1, 1)));
        assert!(futures::poll!(&mut low).is_pending());
        drop(high);
        assert!(futures::poll!(&mut low).is_pending(), "one is still at it");
        drop(also_high);
        let low = low.await;
        let higher = turns.take_now(rank(1, 2));
        assert!(higher.is_some(), "who goes first waits for no lower one");
        drop((low, higher, other));
        assert!(turns.at_work.borrow().is_empty());
    }
}
