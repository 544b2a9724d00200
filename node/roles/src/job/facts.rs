//! Defines the facts that a job records in its journal, and the [`Past`]: the state that a resumed
//! job reads from them.
//!
//! A fact must be on the disk before others can see its consequence: [`Fact::Began`] before the job
//! buys its first lease, [`Fact::Attempt`] before it sends work to the first provider,
//! [`Fact::Right`] before it signs a receipt, [`Fact::Refused`] before the provider learns of it.
//! The job can find leases that no fact names, because their ids follow from the job's id.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, Credits, JobId, Lease, LeaseId, Millis, OrderId, Price, Receipt, TokenTerms, Trade,
    Units,
};
use souk_memory::ContentId;

use super::event::Leg;
use super::plan::{Exclusion, Plan};
use super::reason::Reason;
use crate::lease::Request;

/// One fact in a job's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Fact {
    /// The job is about to buy.
    Began {
        /// The job's id.
        job: JobId,
        /// The id of its subject: model and inputs.
        subject: ContentId,
        /// The caller's command, which the job does not interpret.
        command: String,
        /// The time of the record.
        at: Millis,
    },
    /// The job bought leases and is about to send work to their providers.
    Attempt {
        /// The attempt's number.
        n: u32,
        /// Whether the attempt only decides a question of an earlier one.
        is_check: bool,
        /// The plan: which leg runs which parts.
        plan: Box<Plan>,
        /// The terms of the leases, by place.
        terms: Vec<Terms>,
        /// The first request that the job sends.
        first: Request,
        /// Whether no other request follows.
        last: bool,
    },
    /// The job sent no work under this number and, unless an attempt follows, must not reuse it: it
    /// ended the leases at once, or does not know whether it bought any.
    Skipped {
        /// The number of the attempt.
        n: u32,
        /// The escrow that its leases hold if the market does sell them.
        escrow: Credits,
        /// The last moment at which the market can sell them.
        until: Millis,
    },
    /// The job excludes a provider.
    Excluded {
        /// The provider that the job excludes.
        provider: AccountKey,
        /// The ask that the exclusion covers; a later ask ends the exclusion.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<OrderId>,
        /// The reason, as its stable code.
        why: String,
    },
    /// A value of a request is on the disk.
    Kept {
        /// The id of the request, from [`request_id`].
        request: ContentId,
        /// The value's name.
        name: String,
        /// The id of the value.
        id: ContentId,
    },
    /// The job answered a request.
    Answered {
        /// The id of the request, from [`request_id`].
        request: ContentId,
        /// The attempt that answered it.
        attempt: u32,
        /// The outputs by name.
        outputs: Vec<(String, ContentId)>,
    },
    /// The result of a lease is here and right, so the job pays for it.
    Right {
        /// The receipt to sign, with the provider's signature.
        receipt: Box<Receipt>,
    },
    /// The job does not pay for the result of a lease.
    Refused {
        /// The lease that the job refuses.
        lease: LeaseId,
        /// The reason that the provider receives.
        why: String,
    },
    /// A lease closed. The job records its cost because logs forget it.
    Closed {
        /// The lease that closed.
        lease: LeaseId,
        /// The amount that the buyer paid for it.
        cost: Credits,
    },
    /// The job ended.
    Over {
        /// How the job ended.
        how: End,
    },
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The job answered every request.
    Done,
    /// The user stopped it, or the caller wanted no more answers.
    Cancelled,
    /// The job failed.
    Failed(Reason),
}

/// The terms of a lease when the job bought it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The lease that these terms describe.
    pub lease: LeaseId,
    /// The account that provides the device.
    pub provider: AccountKey,
    /// The ask that the purchase matched.
    pub ask: OrderId,
    /// The price per device-second.
    pub price: Price,
    /// The number of units that the lease covers.
    pub quantity: Units,
    /// The terms of tokens, if the lease is for those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenTerms>,
    /// The first amount in escrow.
    pub escrow: Credits,
    /// The moment when it starts.
    pub start: Millis,
    /// The moment when it ends.
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
            tokens: trade.tokens,
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
            tokens: lease.tokens,
            escrow: lease.escrow,
            start: lease.start,
            deadline: lease.deadline,
        }
    }
}

/// Returns the id under which attempt `n` of a job buys its leases. Anyone who knows the job can
/// derive it.
#[must_use]
pub fn attempt_id(job: JobId, n: u32) -> JobId {
    if n == 0 {
        return job;
    }
    let mut bytes = job.0.to_vec();
    bytes.extend_from_slice(&u64::from(n).to_le_bytes());
    JobId(*ContentId::for_content(&bytes).as_bytes())
}

/// Returns the id of a request, from its inputs and their names.
#[must_use]
pub fn request_id(inputs: &[(String, ContentId)]) -> ContentId {
    let sorted: BTreeMap<&String, &ContentId> = inputs.iter().map(|(n, id)| (n, id)).collect();
    let mut bytes = Vec::new();
    for (name, id) in sorted {
        bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(id.as_bytes());
    }
    ContentId::for_content(&bytes)
}

/// The history of a job's earlier lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The ids of the job and of its subject, once it began.
    pub began: Option<(JobId, ContentId)>,
    /// The attempts by number.
    pub attempts: BTreeMap<u32, PastAttempt>,
    /// The skipped numbers, each with its possible escrow and the last moment of its purchase.
    pub skipped: BTreeMap<u32, (Credits, Millis)>,
    /// The providers that the job excludes.
    pub excluded: Vec<Exclusion>,
    /// The values on the disk, by request id.
    pub kept: BTreeMap<ContentId, BTreeMap<String, ContentId>>,
    /// The answers, by request id: the attempt and the outputs.
    pub answered: BTreeMap<ContentId, PastAnswer>,
    /// The receipts of the leases that the job pays, as their providers signed them.
    pub right: BTreeMap<LeaseId, Receipt>,
    /// The leases that the job refused, each with its reason.
    pub refused: BTreeMap<LeaseId, String>,
    /// The costs of closed leases.
    pub closed: BTreeMap<LeaseId, Credits>,
    /// How the last life ended, if the journal says so.
    pub over: Option<End>,
}

/// An attempt of an earlier life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    /// Whether it only decided a question of an earlier attempt.
    pub is_check: bool,
    /// The plan: which leg ran which parts.
    pub plan: Box<Plan>,
    /// The terms of the leases, by place.
    pub terms: Vec<Terms>,
    /// The first request that the job sent.
    pub first: Request,
    /// Whether no other request followed.
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
    /// Folds facts, which must come in the order of their records, into the past that they
    /// describe.
    #[must_use]
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Past {
        let mut past = Past::default();
        for fact in facts {
            past.apply_fact(fact);
        }
        past
    }

    /// Returns the leg of a lease in its attempt.
    pub(super) fn leg_of(&self, lease: LeaseId) -> Option<Leg> {
        self.attempts.iter().find_map(|(attempt, past)| {
            let place = past.terms.iter().position(|terms| terms.lease == lease)?;
            let place = u32::try_from(place).ok()?;
            let attempt = *attempt;
            Some(Leg { attempt, place })
        })
    }

    /// Applies the next fact.
    pub fn apply_fact(&mut self, fact: Fact) {
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
                // A fact from before the purchase says how much the attempt may hold.
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

    /// Returns the first unused attempt number. The job may have bought leases under the number
    /// before it.
    #[must_use]
    pub fn next_attempt(&self) -> u32 {
        let known = self.attempts.last_key_value().map(|(n, _)| *n);
        let skipped = self.skipped.last_key_value().map(|(n, _)| *n);
        known.max(skipped).map_or(1, |n| n.saturating_add(2))
    }

    /// Returns the providers of an attempt's legs.
    pub(super) fn leg_providers(&self, attempt: u32) -> Vec<AccountKey> {
        let terms = self.attempts.get(&attempt).map(|past| &past.terms);
        let terms = terms.into_iter().flatten();
        terms.map(|terms| terms.provider).collect()
    }

    /// Returns the tensors in the answers of an attempt, by name.
    #[must_use]
    pub fn answered_by(&self, attempt: u32) -> BTreeMap<&str, BTreeSet<ContentId>> {
        let mut by_name = BTreeMap::<&str, BTreeSet<ContentId>>::new();
        let answers = self.answered.values();
        for answer in answers.filter(|answer| answer.attempt == attempt) {
            for (name, id) in &answer.outputs {
                by_name.entry(name).or_default().insert(*id);
            }
        }
        by_name
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
            let named =
                inputs.map(|(n, v)| ((*n).to_owned(), ContentId::for_content(v.as_bytes())));
            request_id(&named.collect::<Vec<_>>())
        };
        assert_eq!(of(&[("x", "1"), ("y", "2")]), of(&[("y", "2"), ("x", "1")]));
        assert_ne!(of(&[("x", "1")]), of(&[("x", "2")]));
        assert_ne!(of(&[("x", "1")]), of(&[("y", "1")]));
    }
}
