//! What a job puts down, and what it finds when it goes on.
//!
//! A fact is on the disk before others can see what follows from it: [`Fact::Began`] before the
//! first lease is bought, [`Fact::Attempt`] before the first provider is told what to do,
//! [`Fact::Right`] before a receipt is signed, [`Fact::Refused`] before its provider hears of it.
//! Leases that no fact names are found by their ids, since those follow from the job's own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, Credits, JobId, Lease, LeaseId, Millis, OrderId, Price, Receipt, Trade, Units,
};
use souk_memory::ContentId;

use super::event::Leg;
use super::plan::{Exclusion, Plan};
use super::reason::Reason;
use crate::lease::Request;

/// One fact of a job's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Fact {
    /// The job is about to buy.
    Began {
        /// Its id.
        job: JobId,
        /// What it is about: model and inputs.
        subject: ContentId,
        /// The caller's own words, not looked into.
        command: String,
        /// When.
        at: Millis,
    },
    /// Leases were bought, and their providers are about to be told.
    Attempt {
        /// Its number.
        n: u32,
        /// Whether it decides about an earlier one, and does nothing of the job.
        is_check: bool,
        /// What runs where.
        plan: Box<Plan>,
        /// What was bought, by place.
        terms: Vec<Terms>,
        /// The first request that is sent.
        first: Request,
        /// Whether no other follows.
        last: bool,
    },
    /// Nobody was told anything under this number, and unless an attempt follows it is not used
    /// again: whether leases were bought is not known, or they were ended at once.
    Skipped {
        /// The number.
        n: u32,
        /// What its leases would hold, if they are bought after all.
        escrow: Credits,
        /// Until when that may be.
        until: Millis,
    },
    /// A provider is done without.
    Excluded {
        /// Who.
        provider: AccountKey,
        /// The ask after which it is not any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<OrderId>,
        /// Why, as a word.
        why: String,
    },
    /// A value of a request is on the disk.
    Kept {
        /// What was asked, by [`request_id`].
        request: ContentId,
        /// The value's name.
        name: String,
        /// The value.
        id: ContentId,
    },
    /// A request is answered.
    Answered {
        /// What was asked, by [`request_id`].
        request: ContentId,
        /// The attempt that answered it.
        attempt: u32,
        /// The outputs by name.
        outputs: Vec<(String, ContentId)>,
    },
    /// What a lease gave is here and right: it is paid for.
    Right {
        /// What is signed, with the provider's signature.
        receipt: Box<Receipt>,
    },
    /// What a lease gave is not paid for.
    Refused {
        /// The lease.
        lease: LeaseId,
        /// Why, as its provider hears it.
        why: String,
    },
    /// A lease is closed, and what it cost: logs forget that.
    Closed {
        /// The lease.
        lease: LeaseId,
        /// What was paid for it.
        cost: Credits,
    },
    /// The job is over.
    Over {
        /// How.
        how: End,
    },
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Every request is answered.
    Done,
    /// It was stopped by its user, or its answers were not wanted any more.
    Cancelled,
    /// It could not be done.
    Failed(Reason),
}

/// A lease as it was bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The lease.
    pub lease: LeaseId,
    /// Who provides.
    pub provider: AccountKey,
    /// The ask it came from.
    pub ask: OrderId,
    /// Price per device-second.
    pub price: Price,
    /// How many units.
    pub quantity: Units,
    /// What it held in escrow at first.
    pub escrow: Credits,
    /// When it starts.
    pub start: Millis,
    /// When it ends.
    pub deadline: Millis,
}

impl From<&Trade> for Terms {
    fn from(trade: &Trade) -> Terms {
        Terms {
            lease: trade.lease,
            provider: trade.provider,
            ask: trade.ask,
            price: trade.price,
            quantity: trade.quantity,
            escrow: trade.escrow,
            start: trade.start,
            deadline: trade.deadline,
        }
    }
}

impl From<&Lease> for Terms {
    fn from(lease: &Lease) -> Terms {
        Terms {
            lease: lease.id,
            provider: lease.provider,
            ask: lease.ask,
            price: lease.price,
            quantity: lease.quantity,
            escrow: lease.escrow,
            start: lease.start,
            deadline: lease.deadline,
        }
    }
}

/// The id that attempt `n` of a job buys its leases under: whoever knows the job knows where to
/// look for them.
#[must_use]
pub fn attempt_id(job: JobId, n: u32) -> JobId {
    if n == 0 {
        return job;
    }
    let mut words = job.0.to_vec();
    words.extend_from_slice(&u64::from(n).to_le_bytes());
    JobId(*ContentId::of(&words).as_bytes())
}

/// What names a request: its inputs and what they are called.
#[must_use]
pub fn request_id(inputs: &[(String, ContentId)]) -> ContentId {
    let sorted: BTreeMap<&String, &ContentId> = inputs.iter().map(|(n, id)| (n, id)).collect();
    let mut words = Vec::new();
    for (name, id) in sorted {
        words.extend_from_slice(&(name.len() as u64).to_le_bytes());
        words.extend_from_slice(name.as_bytes());
        words.extend_from_slice(id.as_bytes());
    }
    ContentId::of(&words)
}

/// What a job did in its earlier lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The job's id and what it is about, once it began.
    pub began: Option<(JobId, ContentId)>,
    /// Its attempts by number.
    pub attempts: BTreeMap<u32, PastAttempt>,
    /// The numbers that were skipped, what each may hold, and until when it may be bought.
    pub skipped: BTreeMap<u32, (Credits, Millis)>,
    /// Providers it does without.
    pub excluded: Vec<Exclusion>,
    /// Values that are on the disk, by what was asked.
    pub kept: BTreeMap<ContentId, BTreeMap<String, ContentId>>,
    /// What was answered: the attempt and the outputs, by what was asked.
    pub answered: BTreeMap<ContentId, PastAnswer>,
    /// What is paid for, as its provider signed it.
    pub right: BTreeMap<LeaseId, Receipt>,
    /// What is not, and why.
    pub refused: BTreeMap<LeaseId, String>,
    /// What leases cost that are closed.
    pub closed: BTreeMap<LeaseId, Credits>,
    /// How its last life ended, if that was told.
    pub over: Option<End>,
}

/// An attempt of an earlier life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    /// Whether it decided about an earlier one.
    pub is_check: bool,
    /// What ran where.
    pub plan: Box<Plan>,
    /// What was bought, by place.
    pub terms: Vec<Terms>,
    /// The first request that was sent.
    pub first: Request,
    /// Whether no other followed.
    pub last: bool,
}

/// An answer of an earlier life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAnswer {
    /// The attempt that answered.
    pub attempt: u32,
    /// The outputs by name.
    pub outputs: Vec<(String, ContentId)>,
}

impl Past {
    /// What facts come to, in the order in which they were put down.
    #[must_use]
    pub fn fold(facts: impl IntoIterator<Item = Fact>) -> Past {
        let mut past = Past::default();
        for fact in facts {
            past.take(fact);
        }
        past
    }

    /// Where a lease stood in its attempt.
    pub(super) fn leg_of(&self, lease: LeaseId) -> Option<Leg> {
        self.attempts.iter().find_map(|(attempt, past)| {
            let place = past.terms.iter().position(|terms| terms.lease == lease)?;
            let place = u32::try_from(place).ok()?;
            let attempt = *attempt;
            Some(Leg { attempt, place })
        })
    }

    /// Takes in the next fact.
    pub fn take(&mut self, fact: Fact) {
        match fact {
            Fact::Began { job, subject, .. } => {
                self.began.get_or_insert((job, subject));
            }
            Fact::Attempt {
                n,
                is_check,
                plan,
                terms,
                first,
                last,
            } => {
                let attempt = PastAttempt {
                    is_check,
                    plan,
                    terms,
                    first,
                    last,
                };
                // What it may hold was put down before it was bought.
                self.skipped.remove(&n);
                self.attempts.entry(n).or_insert(attempt);
            }
            Fact::Skipped { n, escrow, until } => {
                self.skipped.insert(n, (escrow, until));
            }
            Fact::Excluded { provider, ask, .. } => {
                self.excluded.push(Exclusion { provider, ask });
            }
            Fact::Closed { lease, cost } => {
                self.closed.insert(lease, cost);
            }
            Fact::Kept { request, name, id } => {
                self.kept.entry(request).or_default().insert(name, id);
            }
            Fact::Answered {
                request,
                attempt,
                outputs,
            } => {
                self.answered
                    .insert(request, PastAnswer { attempt, outputs });
            }
            Fact::Right { receipt } => {
                self.right.insert(receipt.body.lease, *receipt);
            }
            Fact::Refused { lease, why } => {
                self.refused.insert(lease, why);
            }
            Fact::Over { how } => self.over = Some(how),
        }
    }

    /// The number of an attempt that nobody knows of: leases may have been bought under the one
    /// before it.
    #[must_use]
    pub fn next_attempt(&self) -> u32 {
        let known = self.attempts.last_key_value().map(|(n, _)| *n);
        let skipped = self.skipped.last_key_value().map(|(n, _)| *n);
        known.max(skipped).map_or(1, |n| n.saturating_add(2))
    }

    /// Who made the answers of an attempt.
    pub(super) fn makers(&self, attempt: u32) -> Vec<AccountKey> {
        let terms = self.attempts.get(&attempt).map(|past| &past.terms);
        let terms = terms.into_iter().flatten();
        terms.map(|terms| terms.provider).collect()
    }

    /// The tensors that answers of an attempt are made of, by name.
    #[must_use]
    pub fn answered_by(&self, attempt: u32) -> BTreeMap<&str, BTreeSet<ContentId>> {
        let mut told = BTreeMap::<&str, BTreeSet<ContentId>>::new();
        let answers = self.answered.values();
        for answer in answers.filter(|answer| answer.attempt == attempt) {
            for (name, id) in &answer.outputs {
                told.entry(name).or_default().insert(*id);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_has_an_id_of_its_own_and_the_first_is_the_jobs() {
        let job = JobId([7; 32]);
        assert_eq!(attempt_id(job, 0), job);
        let ids: BTreeSet<_> = (0..100).map(|n| attempt_id(job, n).0).collect();
        assert_eq!(ids.len(), 100);
    }

    #[test]
    fn a_request_is_named_by_what_its_inputs_are_and_are_called() {
        let of = |inputs: &[(&str, &str)]| {
            let inputs = inputs.iter();
            let named = inputs.map(|(n, v)| ((*n).to_owned(), ContentId::of(v.as_bytes())));
            request_id(&named.collect::<Vec<_>>())
        };
        assert_eq!(of(&[("x", "1"), ("y", "2")]), of(&[("y", "2"), ("x", "1")]));
        assert_ne!(of(&[("x", "1")]), of(&[("x", "2")]));
        assert_ne!(of(&[("x", "1")]), of(&[("y", "1")]));
    }
}
