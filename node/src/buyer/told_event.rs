//! What happened to a job as it is told: of one shape on the API, in its stream and on the command
//! line, whatever the file on disk looks like.

use serde::Serialize;
use souk_market::{AccountKey, Credits, LeaseId};
use souk_roles::job::JobEvent;

use super::job_files::TimedEvent;
use crate::clock::rfc3339;

/// Something that happened to a job: its number, when, what, and the facts of that beside.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldEvent {
    /// Its number, from 0.
    pub number: usize,
    /// When, as RFC 3339 has it.
    pub at: String,
    /// What.
    #[serde(flatten)]
    pub facts: EventFacts,
}

/// What happened, by the word `event`. Amounts are in micro-credits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EventFacts {
    /// The leases of an attempt are bought.
    Leased {
        /// How often leases were bought before.
        attempt: u32,
        /// Those.
        leases: Vec<BoughtLease>,
    },
    /// A provider has what it needs of the buyer.
    Fetched {
        /// Who.
        provider: AccountKey,
        /// Pieces it needed.
        pieces: u32,
        /// How many of them it had already.
        there_before: u32,
        /// Bytes that were sent.
        bytes: u64,
    },
    /// A provider has compiled its parts.
    Ready {
        /// Who.
        provider: AccountKey,
    },
    /// A provider's device runs a part.
    Running {
        /// Who.
        provider: AccountKey,
        /// Which, in words.
        part: String,
    },
    /// A provider is done.
    Finished {
        /// Who.
        provider: AccountKey,
    },
    /// The outputs are here, checked and not yet paid.
    Returned,
    /// A receipt has both signatures.
    Signed {
        /// Whose.
        provider: AccountKey,
        /// Of which lease.
        lease: LeaseId,
        /// What it pays.
        paid: Credits,
    },
    /// A provider failed; the job goes on without it.
    Retrying {
        /// Who.
        provider: AccountKey,
        /// Why, as a word.
        reason: &'static str,
        /// Why, as a sentence.
        why: String,
        /// How many values are kept of what was computed.
        kept: u32,
    },
    /// A lease is not paid for.
    Refused {
        /// Who provided it.
        provider: AccountKey,
        /// Why, as it hears it.
        why: String,
    },
    /// The market did not end a lease, dispute it or begin its work; its own rules will close it.
    NotCommanded {
        /// The lease.
        lease: LeaseId,
        /// Why not.
        why: String,
    },
}

/// A lease that was bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoughtLease {
    /// Of whom.
    pub provider: AccountKey,
    /// Which.
    pub lease: LeaseId,
    /// What it holds until it is settled.
    pub held: Credits,
}

impl ToldEvent {
    /// The event of that number.
    #[must_use]
    pub fn new(number: usize, happened: &TimedEvent) -> ToldEvent {
        ToldEvent {
            number,
            at: rfc3339(happened.at_ms),
            facts: EventFacts::from(&happened.event),
        }
    }

    /// Events from the first on.
    #[must_use]
    pub fn all(events: &[TimedEvent]) -> Vec<ToldEvent> {
        let told = events.iter().enumerate();
        told.map(|(number, happened)| ToldEvent::new(number, happened))
            .collect()
    }
}

impl From<&JobEvent> for EventFacts {
    fn from(event: &JobEvent) -> EventFacts {
        match event {
            JobEvent::Leased { attempt, leases } => EventFacts::Leased {
                attempt: *attempt,
                leases: leases.iter().map(bought).collect(),
            },
            JobEvent::Fetched {
                provider,
                pieces,
                held,
                bytes,
            } => EventFacts::Fetched {
                provider: *provider,
                pieces: *pieces,
                there_before: *held,
                bytes: *bytes,
            },
            JobEvent::Ready { provider } => EventFacts::Ready {
                provider: *provider,
            },
            JobEvent::Running { provider, part } => EventFacts::Running {
                provider: *provider,
                part: part.clone(),
            },
            JobEvent::Finished { provider } => EventFacts::Finished {
                provider: *provider,
            },
            JobEvent::Returned => EventFacts::Returned,
            JobEvent::Signed { receipt, .. } => EventFacts::Signed {
                provider: receipt.body.provider,
                lease: receipt.body.lease,
                paid: receipt.body.amount,
            },
            JobEvent::Retrying {
                provider,
                why,
                kept,
            } => EventFacts::Retrying {
                provider: *provider,
                reason: why.code(),
                why: why.to_string(),
                kept: *kept,
            },
            JobEvent::Refused { provider, why } => EventFacts::Refused {
                provider: *provider,
                why: why.clone(),
            },
            JobEvent::NotCommanded { lease, why } => EventFacts::NotCommanded {
                lease: *lease,
                why: why.clone(),
            },
        }
    }
}

fn bought((provider, lease, held): &(AccountKey, LeaseId, Credits)) -> BoughtLease {
    BoughtLease {
        provider: *provider,
        lease: *lease,
        held: *held,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_told_flat_with_its_number_and_its_time() {
        let provider = AccountKey([7; 32]);
        let leased = JobEvent::Leased {
            attempt: 0,
            leases: vec![(provider, LeaseId(3), Credits(5))],
        };
        let event = |event| TimedEvent { at_ms: 250, event };
        let told = ToldEvent::all(&[event(leased), event(JobEvent::Returned)]);
        let lease = json!({ "provider": provider, "lease": 3, "held": 5 });
        let expected = json!([
            { "number": 0, "at": "1970-01-01T00:00:00.25Z", "event": "leased", "attempt": 0,
              "leases": [lease] },
            { "number": 1, "at": "1970-01-01T00:00:00.25Z", "event": "returned" },
        ]);
        assert_eq!(json!(told), expected);
    }
}
