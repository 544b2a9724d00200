//! The events of a job in the API: each has its name and its facts.
//!
//! The node writes the events; these types describe them. The node must keep to this description,
//! which parsing checks.

use serde::{Deserialize, Serialize};
use serde_json::json;
use souk_node::buyer::job_event_view::JobEventView;
use utoipa::ToSchema;

use crate::problem::Problem;

/// Something that happened to a job; `event` says what.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EventView {
    Leased(LeasedEvent),
    Fetched(FetchedEvent),
    Ready(ReadyEvent),
    Running(RunningEvent),
    Finished(FinishedEvent),
    Returned(ReturnedEvent),
    Signed(SignedEvent),
    Retrying(RetryingEvent),
    Refused(RefusedEvent),
    NotCommanded(NotCommandedEvent),
}

/// The leases of an attempt are bought.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LeasedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// How often leases were bought before.
    attempt: u32,
    /// Those.
    leases: Vec<BoughtLeaseView>,
}

/// A provider has what it needs of the buyer.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FetchedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// Its account.
    provider: String,
    /// Pieces it needed.
    pieces: u32,
    /// How many of them it had already.
    pieces_cached: u32,
    /// Bytes that were sent.
    bytes: u64,
}

/// A provider has compiled its parts.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReadyEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// Its account.
    provider: String,
}

/// A provider's device runs a part.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunningEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// Its account.
    provider: String,
    /// Which part, in words.
    part: String,
}

/// A provider is done.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FinishedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// Its account.
    provider: String,
}

/// The outputs are here, checked and not yet paid.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReturnedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
}

/// A receipt has both signatures.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// The account of who is paid.
    provider: String,
    /// Its lease.
    lease: u64,
    /// What it pays, in micro-credits.
    paid: u64,
}

/// A provider failed; the job goes on without it.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetryingEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// Its account.
    provider: String,
    /// Why, as a word.
    reason: String,
    /// Why, as a sentence.
    cause: String,
    /// How many values are kept of what was computed.
    values_kept: u32,
}

/// A lease is not paid for.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefusedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// The account of who provided it.
    provider: String,
    /// Why, as it hears it.
    cause: String,
}

/// The market did not end a lease, dispute it or begin its work; its own rules will close it.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NotCommandedEvent {
    /// Its number, from 0.
    number: u64,
    /// RFC 3339.
    at: String,
    /// The lease.
    lease: u64,
    /// Why not.
    cause: String,
}

/// A lease that was bought.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BoughtLeaseView {
    /// The account of whom it was bought.
    provider: String,
    /// Its number.
    lease: u64,
    /// What it holds until it is settled, in micro-credits.
    escrow: u64,
}

impl EventView {
    /// Converts an event of the node.
    ///
    /// # Errors
    /// Fails if the event does not match the description.
    pub fn from_event(told: &JobEventView) -> Result<EventView, Problem> {
        serde_json::from_value(json!(told)).map_err(Problem::unexpected_failure)
    }
}

#[cfg(test)]
mod tests {
    use souk_node::buyer::job_event_view::{BoughtLease, EventFacts};
    use souk_node::market::{AccountKey, Credits, LeaseId};

    use super::*;

    /// One of each.
    fn facts() -> Vec<EventFacts> {
        let provider = AccountKey([7; 32]);
        let (lease, escrow, paid) = (LeaseId(3), Credits(5), Credits(4));
        let (part, cause) = ("part 1".to_owned(), "it is slow".to_owned());
        vec![
            EventFacts::Leased {
                attempt: 1,
                leases: vec![BoughtLease {
                    provider,
                    lease,
                    escrow,
                }],
            },
            EventFacts::Fetched {
                provider,
                pieces: 3,
                pieces_cached: 2,
                bytes: 9,
            },
            EventFacts::Ready { provider },
            EventFacts::Running { provider, part },
            EventFacts::Finished { provider },
            EventFacts::Returned,
            EventFacts::Signed {
                provider,
                lease,
                paid,
            },
            EventFacts::Retrying {
                provider,
                reason: "provider_slow",
                cause: cause.clone(),
                values_kept: 1,
            },
            EventFacts::Refused {
                provider,
                cause: cause.clone(),
            },
            EventFacts::NotCommanded { lease, cause },
        ]
    }

    #[test]
    fn what_is_described_of_each_event_is_all_that_is_told() {
        for facts in facts() {
            let at = "1970-01-01T00:00:00Z".to_owned();
            let told = JobEventView {
                number: 6,
                at,
                facts,
            };
            assert_eq!(json!(EventView::from_event(&told).unwrap()), json!(told));
        }
    }
}
