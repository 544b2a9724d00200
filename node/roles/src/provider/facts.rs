//! What a provider puts down, and what it finds when it starts again.
//!
//! A fact is on the disk before others can see what follows from it: [`Fact::Began`] before the
//! buyer hears that the lease is accepted, [`Fact::Ran`] before the result is told, and
//! [`Fact::Signed`] before the receipt is settled from here. So whatever a crash left undone is
//! paid or given back, and nothing is run twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, CloseReason, Credits, DeviceMicros, JobId, LeaseId, Millis, Price, Receipt,
    ReceiptBody,
};
use souk_memory::ContentId;

use crate::access::Scope;

/// One fact of a provider's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Fact {
    /// The work of a lease is about to begin.
    Began {
        /// The lease.
        lease: LeaseId,
        /// Who bought it.
        buyer: AccountKey,
        /// The buyer's job.
        job: JobId,
        /// Price per device-second.
        price: Price,
        /// When it ends at the latest.
        deadline: Millis,
        /// When the work began.
        at: Millis,
    },
    /// The work is done.
    Ran {
        /// The lease.
        lease: LeaseId,
        /// The device time it used.
        usage: DeviceMicros,
        /// What the receipt says and what was made, so that it can still be handed over after a
        /// restart; none where the lease is closed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work: Option<Box<Work>>,
    },
    /// Both have signed.
    Signed {
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// The market has closed the lease.
    Closed {
        /// The lease.
        lease: LeaseId,
        /// What was paid for it; unknown where the market has forgotten it.
        paid: Option<Credits>,
        /// Why it was closed.
        reason: Option<CloseReason>,
        /// When it was found closed.
        at: Millis,
    },
    /// Leases too old to be kept one by one.
    Before(Before),
}

/// What a lease came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// What the provider signs.
    pub body: ReceiptBody,
    /// What each request gave, by number.
    pub outputs: Vec<(u32, Vec<(String, ContentId)>)>,
}

/// The sum of leases that are not kept one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// How many.
    pub leases: u64,
    /// What they were paid.
    pub paid: Credits,
    /// The newest of them: none at or below it is begun again.
    pub up_to: LeaseId,
}

/// What a provider did in all its lives, as far as it matters to the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// No lease at or below this one is begun.
    pub up_to: LeaseId,
    /// All others that were begun, and where they stand.
    pub leases: BTreeMap<LeaseId, PastLease>,
}

/// A lease that was begun in an earlier life.
#[derive(Clone, Debug, PartialEq)]
pub struct PastLease {
    /// Who bought it.
    pub buyer: AccountKey,
    /// How far it came.
    pub state: PastState,
}

/// How far a lease came.
#[derive(Clone, Debug, PartialEq)]
pub enum PastState {
    /// It was begun and not done: what it did is lost.
    Began,
    /// It was done, and is owed.
    Ran {
        /// The device time it used.
        usage: DeviceMicros,
        /// What it gave, if the journal says so.
        work: Option<Box<Work>>,
    },
    /// Both have signed.
    Signed {
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// The market has closed it.
    Closed,
}

impl Past {
    /// What facts come to, in the order in which they were put down. Those that contradict what
    /// was put down before say nothing.
    #[must_use]
    pub fn fold(facts: impl IntoIterator<Item = Fact>) -> Past {
        let mut past = Past::default();
        for fact in facts {
            past.take(fact);
        }
        past
    }

    /// What leases that are not closed made, and for whom: their buyers may come back for it.
    pub fn made(&self) -> impl Iterator<Item = (Scope, Vec<ContentId>)> {
        self.leases.values().filter_map(|lease| {
            let body = match &lease.state {
                PastState::Ran { work, .. } => &work.as_ref()?.body,
                PastState::Signed { receipt } => &receipt.body,
                PastState::Began | PastState::Closed => return None,
            };
            let (buyer, job) = (lease.buyer, body.job);
            let made = body.outputs.iter();
            let made = made.map(|id| ContentId::from_bytes(id.0)).collect();
            Some((Scope { buyer, job }, made))
        })
    }

    fn take(&mut self, fact: Fact) {
        match fact {
            Fact::Began { lease, buyer, .. } => {
                let state = PastState::Began;
                self.leases
                    .entry(lease)
                    .or_insert(PastLease { buyer, state });
            }
            Fact::Ran { lease, usage, work } => self.step(lease, PastState::Ran { usage, work }),
            Fact::Signed { receipt } => {
                self.step(receipt.body.lease, PastState::Signed { receipt });
            }
            Fact::Closed { lease, .. } => self.step(lease, PastState::Closed),
            Fact::Before(before) => self.up_to = self.up_to.max(before.up_to),
        }
    }

    /// A lease never goes back.
    fn step(&mut self, lease: LeaseId, state: PastState) {
        let Some(known) = self.leases.get_mut(&lease) else {
            return;
        };
        if state.rank() > known.state.rank() {
            known.state = state;
        }
    }
}

impl PastState {
    fn rank(&self) -> u8 {
        match self {
            PastState::Began => 0,
            PastState::Ran { .. } => 1,
            PastState::Signed { .. } => 2,
            PastState::Closed => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn began(lease: u64) -> Fact {
        Fact::Began {
            lease: LeaseId(lease),
            buyer: AccountKey([1; 32]),
            job: JobId([2; 32]),
            price: Price(40_000),
            deadline: Millis(9_000),
            at: Millis(1_000),
        }
    }

    fn ran(lease: u64) -> Fact {
        Fact::Ran {
            lease: LeaseId(lease),
            usage: DeviceMicros(7),
            work: None,
        }
    }

    fn closed(lease: u64) -> Fact {
        Fact::Closed {
            lease: LeaseId(lease),
            paid: None,
            reason: None,
            at: Millis(2_000),
        }
    }

    #[test]
    fn a_lease_is_as_far_as_its_last_fact_and_never_goes_back() {
        let past = Past::fold([began(1), ran(1), began(1), began(2), closed(2), ran(2)]);
        let state = |lease| &past.leases[&LeaseId(lease)].state;
        assert!(matches!(state(1), PastState::Ran { .. }));
        assert_eq!(state(2), &PastState::Closed);
    }

    #[test]
    fn what_was_never_begun_has_not_run() {
        assert_eq!(Past::fold([ran(1), closed(2)]), Past::default());
    }
}
