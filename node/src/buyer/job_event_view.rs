//! The events of a job as users see them: the API, its stream and the command line share this form,
//! which does not depend on the file on disk.

use serde::Serialize;
use souk_market::{AccountKey, Credits, LeaseId};
use souk_roles::job::JobEvent;

use super::job_files::TimedEvent;
use crate::clock::format_rfc3339;

/// An event of a job: its number, its time, its kind and its facts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobEventView {
    /// The number of the event, from 0.
    pub number: usize,
    /// The time of the event, as RFC 3339.
    pub at: String,
    /// The kind of the event, and its facts.
    #[serde(flatten)]
    pub facts: EventFacts,
}

/// The kind of an event, in the field `event`, and its facts. Amounts are in micro-credits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EventFacts {
    /// The buyer bought the leases of an attempt.
    Leased {
        /// How many attempts came before.
        attempt: u32,
        /// The leases that the buyer bought.
        leases: Vec<BoughtLease>,
    },
    /// A provider has received everything that it needs from the buyer.
    Fetched {
        /// The provider that fetched.
        provider: AccountKey,
        /// How many pieces it needed.
        pieces: u32,
        /// How many of them it already had.
        pieces_cached: u32,
        /// How many bytes it received.
        bytes: u64,
    },
    /// A provider has compiled its parts.
    Ready {
        /// The provider that is ready.
        provider: AccountKey,
    },
    /// A provider's device runs a part.
    Running {
        /// The provider that runs it.
        provider: AccountKey,
        /// The part, as a text.
        part: String,
    },
    /// A provider finished its parts.
    Finished {
        /// The provider that finished.
        provider: AccountKey,
    },
    /// The outputs arrived and are checked; they are not yet paid for.
    Returned,
    /// A receipt has both signatures.
    Signed {
        /// The provider that signed.
        provider: AccountKey,
        /// The lease of the receipt.
        lease: LeaseId,
        /// The amount that it pays.
        paid: Credits,
    },
    /// A provider failed; the job continues without it.
    Retrying {
        /// The provider that failed.
        provider: AccountKey,
        /// The reason as a code.
        reason: &'static str,
        /// The reason as a sentence.
        cause: String,
        /// How many computed values the job keeps.
        values_kept: u32,
    },
    /// The buyer does not pay for a lease.
    Refused {
        /// The provider of the lease.
        provider: AccountKey,
        /// The reason that the buyer states to the provider.
        cause: String,
    },
    /// The market did not carry out a command to end, dispute or begin a lease; its own rules will
    /// close the lease.
    NotCommanded {
        /// The lease of the command.
        lease: LeaseId,
        /// The reason of the market.
        cause: String,
    },
}

/// A lease that the buyer bought.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoughtLease {
    /// The seller of the lease.
    pub provider: AccountKey,
    /// The id of the lease.
    pub lease: LeaseId,
    /// The escrow until the lease is settled.
    pub escrow: Credits,
}

impl JobEventView {
    /// Returns the event with this number.
    #[must_use]
    pub fn new(number: usize, happened: &TimedEvent) -> JobEventView {
        JobEventView {
            number,
            at: format_rfc3339(happened.at_ms),
            facts: EventFacts::from(&happened.event),
        }
    }

    /// Converts events, which are numbered from 0.
    #[must_use]
    pub fn from_events(events: &[TimedEvent]) -> Vec<JobEventView> {
        let told = events.iter().enumerate();
        told.map(|(number, happened)| JobEventView::new(number, happened))
            .collect()
    }
}

impl From<&JobEvent> for EventFacts {
    fn from(event: &JobEvent) -> EventFacts {
        match event {
            JobEvent::Leased { attempt, leases } => EventFacts::Leased {
                attempt: *attempt,
                leases: leases.iter().map(to_bought_lease).collect(),
            },
            JobEvent::Fetched {
                provider,
                pieces,
                held,
                bytes,
            } => EventFacts::Fetched {
                provider: *provider,
                pieces: *pieces,
                pieces_cached: *held,
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
                cause: why.to_string(),
                values_kept: *kept,
            },
            JobEvent::Refused { provider, why } => EventFacts::Refused {
                provider: *provider,
                cause: why.clone(),
            },
            JobEvent::NotCommanded { lease, why } => EventFacts::NotCommanded {
                lease: *lease,
                cause: why.clone(),
            },
        }
    }
}

fn to_bought_lease((provider, lease, escrow): &(AccountKey, LeaseId, Credits)) -> BoughtLease {
    BoughtLease {
        provider: *provider,
        lease: *lease,
        escrow: *escrow,
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
        let told = JobEventView::from_events(&[event(leased), event(JobEvent::Returned)]);
        let lease = json!({ "provider": provider, "lease": 3, "escrow": 5 });
        let expected = json!([
            { "number": 0, "at": "1970-01-01T00:00:00.25Z", "event": "leased", "attempt": 0,
              "leases": [lease] },
            { "number": 1, "at": "1970-01-01T00:00:00.25Z", "event": "returned" },
        ]);
        assert_eq!(json!(told), expected);
    }
}
