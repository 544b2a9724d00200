//! The facts that a provider records, and the past that it reads when it restarts.
//!
//! A fact must be on the disk before others can see its consequence: [`Fact::Began`] before the
//! buyer learns that the provider accepted the lease, [`Fact::Ran`] before it learns the result,
//! and [`Fact::Signed`] before the provider settles the receipt. So after a crash every lease is
//! paid or returned, and the provider runs no work twice.
//!
//! [`Fact::Answered`] is the exception: it records an answer of a tab (a lease that sells text by
//! the token). A reader of text must not wait for a disk, so the provider delivers the answer and
//! records it at the same time, and a crash can lose the record of the last answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, CloseReason, Credits, DeviceMicros, JobId, LeaseId, Millis, Price, Receipt,
    ReceiptBody,
};
use souk_memory::ContentId;

use crate::access::Scope;

/// One fact in a provider's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Fact {
    /// The work of a lease is about to begin.
    Began {
        /// The lease that begins.
        lease: LeaseId,
        /// The account that bought it.
        buyer: AccountKey,
        /// The buyer's job.
        job: JobId,
        /// The price per device-second.
        price: Price,
        /// The latest moment of its end.
        deadline: Millis,
        /// When the work began.
        at: Millis,
    },
    /// The provider delivered one more answer of a tab.
    Answered {
        /// The lease of the tab.
        lease: LeaseId,
        /// The device time that all answers so far cost.
        usage: DeviceMicros,
    },
    /// The provider completed the work.
    Ran {
        /// The lease that ran.
        lease: LeaseId,
        /// The device time it used.
        usage: DeviceMicros,
        /// The receipt's body and the outputs, which the provider can still deliver after a
        /// restart; none if the lease is closed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work: Option<Box<LeaseResult>>,
    },
    /// Both sides signed.
    Signed {
        /// The receipt with both signatures.
        receipt: Box<Receipt>,
    },
    /// The market closed the lease.
    Closed {
        /// The lease that closed.
        lease: LeaseId,
        /// The amount that the provider received; none if the market has forgotten it.
        paid: Option<Credits>,
        /// Why the market closed it.
        reason: Option<CloseReason>,
        /// When the provider found it closed.
        at: Millis,
    },
    /// The sum of leases too old to keep one by one.
    Before(EarlierLeases),
}

/// The result of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseResult {
    /// The receipt body that the provider signs.
    pub body: ReceiptBody,
    /// The outputs of each request, by number.
    pub outputs: Vec<(u32, Vec<(String, ContentId)>)>,
}

/// The sum of leases that the journal does not keep one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierLeases {
    /// The number of leases.
    pub leases: u64,
    /// The amount paid for them.
    pub paid: Credits,
    /// The newest of them: the provider begins no lease up to it again.
    pub up_to: LeaseId,
}

/// The history of a provider's earlier lives, as far as the next one needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// The provider begins no lease up to this one.
    pub up_to: LeaseId,
    /// The state of every newer lease that began.
    pub leases: BTreeMap<LeaseId, PastLease>,
}

/// A lease that began in an earlier life.
#[derive(Clone, Debug, PartialEq)]
pub struct PastLease {
    /// The account that bought it.
    pub buyer: AccountKey,
    /// The progress of the lease.
    pub state: PastState,
}

/// The progress of a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum PastState {
    /// It began and did not complete: its results are lost.
    Began,
    /// It began, and its buyer has these answers of a tab.
    Answered {
        /// The device time that they cost.
        usage: DeviceMicros,
    },
    /// It completed and the buyer owes for it.
    Ran {
        /// The device time it used.
        usage: DeviceMicros,
        /// Its results, if the journal has them.
        work: Option<Box<LeaseResult>>,
    },
    /// Both sides signed.
    Signed {
        /// The receipt with both signatures.
        receipt: Box<Receipt>,
    },
    /// The market closed it.
    Closed,
}

impl Past {
    /// Folds facts, which must come in the order of their records, into the past that they
    /// describe. Ignores facts that contradict earlier ones.
    #[must_use]
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Past {
        let mut past = Past::default();
        for fact in facts {
            past.apply_fact(fact);
        }
        past
    }

    /// Returns the outputs of open leases, each with the parties that can fetch them: a buyer can
    /// come back for them.
    pub fn open_lease_outputs(&self) -> impl Iterator<Item = (Scope, Vec<ContentId>)> {
        self.leases.values().filter_map(|lease| {
            let body = match &lease.state {
                PastState::Ran { work, .. } => &work.as_ref()?.body,
                PastState::Signed { receipt } => &receipt.body,
                PastState::Began | PastState::Answered { .. } | PastState::Closed => return None,
            };
            let (buyer, job) = (lease.buyer, body.job);
            let made = body.outputs.iter();
            let made = made.map(|id| ContentId::from_bytes(id.0)).collect();
            Some((Scope { buyer, job }, made))
        })
    }

    fn apply_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Began { lease, buyer, .. } => {
                let state = PastState::Began;
                self.leases
                    .entry(lease)
                    .or_insert(PastLease { buyer, state });
            }
            Fact::Answered { lease, usage } => {
                self.advance_lease(lease, PastState::Answered { usage });
            }
            Fact::Ran { lease, usage, work } => {
                self.advance_lease(lease, PastState::Ran { usage, work })
            }
            Fact::Signed { receipt } => {
                self.advance_lease(receipt.body.lease, PastState::Signed { receipt });
            }
            Fact::Closed { lease, .. } => self.advance_lease(lease, PastState::Closed),
            Fact::Before(before) => self.up_to = self.up_to.max(before.up_to),
        }
    }

    /// Moves a lease to a later state, never to an earlier one.
    fn advance_lease(&mut self, lease: LeaseId, state: PastState) {
        let Some(known) = self.leases.get_mut(&lease) else {
            return;
        };
        if state.progress() > known.state.progress() {
            known.state = state;
        }
    }
}

impl PastState {
    /// Returns how far the lease is: its stage and, among answers, the device time so far.
    fn progress(&self) -> (u8, DeviceMicros) {
        match self {
            PastState::Began => (0, DeviceMicros(0)),
            PastState::Answered { usage } => (1, *usage),
            PastState::Ran { .. } => (2, DeviceMicros(0)),
            PastState::Signed { .. } => (3, DeviceMicros(0)),
            PastState::Closed => (4, DeviceMicros(0)),
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
        let past = Past::from_facts([began(1), ran(1), began(1), began(2), closed(2), ran(2)]);
        let state = |lease| &past.leases[&LeaseId(lease)].state;
        assert!(matches!(state(1), PastState::Ran { .. }));
        assert_eq!(state(2), &PastState::Closed);
    }

    #[test]
    fn of_the_answers_of_a_tab_the_largest_sum_counts_until_it_has_run() {
        let answered = |usage| Fact::Answered {
            lease: LeaseId(1),
            usage: DeviceMicros(usage),
        };
        let state = |facts: &[Fact]| {
            let past = Past::from_facts(facts.iter().cloned());
            past.leases[&LeaseId(1)].state.clone()
        };
        let usage = DeviceMicros(9);
        let facts = [began(1), answered(4), answered(9), answered(5)];
        assert_eq!(state(&facts), PastState::Answered { usage });
        assert!(matches!(
            state(&[began(1), ran(1), answered(9)]),
            PastState::Ran { .. }
        ));
    }

    #[test]
    fn what_was_never_begun_has_not_run() {
        assert_eq!(Past::from_facts([ran(1), closed(2)]), Past::default());
    }
}
