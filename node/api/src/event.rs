//! Defines the public JSON of a job's events, which HTTP, its stream of events, the command line
//! and Python share. It can stay the same when the file changes in which a node stores events.
//!
//! Each event repeats its number and its time, so that it is one flat JSON object, and one type in
//! a client that is generated from the schema.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, LeaseId, ReceiptBody};
use souk_roles::job::{JobEvent, Reason};

use crate::time::format_rfc3339;

/// Something that happened to a job; the field `event` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum JobEventView {
    /// The buyer bought the leases of an attempt.
    Leased(LeasedEvent),
    /// A provider has everything that it needs from the buyer.
    Fetched(FetchedEvent),
    /// A provider has compiled its parts.
    Ready(ReadyEvent),
    /// A provider's device runs a part.
    Running(RunningEvent),
    /// A provider finished its parts.
    Finished(FinishedEvent),
    /// The outputs arrived.
    Returned(ReturnedEvent),
    /// A receipt has both signatures.
    Signed(SignedEvent),
    /// A provider failed.
    Retrying(RetryingEvent),
    /// The buyer does not pay for a lease.
    Refused(RefusedEvent),
    /// The market did not carry out a command about a lease.
    NotCommanded(NotCommandedEvent),
}

/// The buyer bought the leases of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeasedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// How many attempts came before.
    pub attempt: u32,
    /// The leases.
    pub leases: Vec<BoughtLeaseView>,
}

/// A lease that the buyer bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BoughtLeaseView {
    /// The account that sold it.
    pub provider: String,
    /// The number of the lease.
    pub lease: u64,
    /// What it holds until it is settled, in micro-credits.
    pub escrow: u64,
}

/// A provider has everything that it needs from the buyer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FetchedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
    /// How many pieces it needed.
    pub pieces: u32,
    /// How many of them it already had.
    pub pieces_cached: u32,
    /// How many bytes it received.
    pub bytes: u64,
}

/// A provider has compiled its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadyEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
}

/// A provider's device runs a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunningEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
    /// The part, in words.
    pub part: String,
}

/// A provider finished its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FinishedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
}

/// The outputs arrived and are checked; they are not yet paid for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReturnedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
}

/// A receipt has both signatures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account that the receipt pays.
    pub provider: String,
    /// The lease of the receipt.
    pub lease: u64,
    /// What the receipt pays, in micro-credits.
    pub paid: u64,
}

/// A provider failed; the job continues without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetryingEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
    /// The reason as a code.
    pub reason: String,
    /// The reason as a sentence.
    pub cause: String,
    /// How many computed values the job keeps.
    pub values_kept: u32,
}

/// The buyer does not pay for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RefusedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The account of the provider.
    pub provider: String,
    /// The reason that the buyer states to the provider.
    pub cause: String,
}

/// The market did not carry out a command to end, dispute or begin a lease; its own rules will
/// close the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NotCommandedEvent {
    /// The number of the event, from 0.
    pub number: u64,
    /// When it happened, RFC 3339.
    pub at: String,
    /// The lease of the command.
    pub lease: u64,
    /// The reason of the market.
    pub cause: String,
}

impl JobEventView {
    /// Describes the event with this number, which happened at `at_ms` milliseconds since 1970.
    #[must_use]
    pub fn new(number: usize, at_ms: u64, event: &JobEvent) -> JobEventView {
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        let at = format_rfc3339(at_ms);
        match event {
            JobEvent::Leased { attempt, leases } => JobEventView::Leased(LeasedEvent {
                number,
                at,
                attempt: *attempt,
                leases: leases.iter().map(describe_bought_lease).collect(),
            }),
            JobEvent::Fetched {
                provider,
                pieces,
                held,
                bytes,
            } => JobEventView::Fetched(FetchedEvent {
                number,
                at,
                provider: provider.to_string(),
                pieces: *pieces,
                pieces_cached: *held,
                bytes: *bytes,
            }),
            JobEvent::Ready { provider } => JobEventView::Ready(ReadyEvent {
                number,
                at,
                provider: provider.to_string(),
            }),
            JobEvent::Running { provider, part } => JobEventView::Running(RunningEvent {
                number,
                at,
                provider: provider.to_string(),
                part: part.clone(),
            }),
            JobEvent::Finished { provider } => JobEventView::Finished(FinishedEvent {
                number,
                at,
                provider: provider.to_string(),
            }),
            JobEvent::Returned => JobEventView::Returned(ReturnedEvent { number, at }),
            JobEvent::Signed { receipt, .. } => {
                JobEventView::Signed(SignedEvent::new(number, at, &receipt.body))
            }
            JobEvent::Retrying {
                provider,
                why,
                kept,
            } => JobEventView::Retrying(RetryingEvent::new(number, at, provider, why, *kept)),
            JobEvent::Refused { provider, why } => JobEventView::Refused(RefusedEvent {
                number,
                at,
                provider: provider.to_string(),
                cause: why.clone(),
            }),
            JobEvent::NotCommanded { lease, why } => {
                JobEventView::NotCommanded(NotCommandedEvent {
                    number,
                    at,
                    lease: lease.0,
                    cause: why.clone(),
                })
            }
        }
    }
}

impl RetryingEvent {
    fn new(number: u64, at: String, provider: &AccountKey, why: &Reason, kept: u32) -> Self {
        RetryingEvent {
            number,
            at,
            provider: provider.to_string(),
            reason: why.code().to_owned(),
            cause: why.to_string(),
            values_kept: kept,
        }
    }
}

impl SignedEvent {
    fn new(number: u64, at: String, body: &ReceiptBody) -> SignedEvent {
        SignedEvent {
            number,
            at,
            provider: body.provider.to_string(),
            lease: body.lease.0,
            paid: body.amount.0,
        }
    }
}

fn describe_bought_lease(
    (provider, lease, escrow): &(AccountKey, LeaseId, Credits),
) -> BoughtLeaseView {
    BoughtLeaseView {
        provider: provider.to_string(),
        lease: lease.0,
        escrow: escrow.0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_flat_object_with_its_number_and_its_time() {
        let provider = AccountKey([7; 32]);
        let leased = JobEvent::Leased {
            attempt: 0,
            leases: vec![(provider, LeaseId(3), Credits(5))],
        };
        let lease = json!({ "provider": provider.to_string(), "lease": 3, "escrow": 5 });
        assert_eq!(
            json!(JobEventView::new(0, 250, &leased)),
            json!({
                "number": 0, "at": "1970-01-01T00:00:00.25Z", "event": "leased", "attempt": 0,
                "leases": [lease],
            })
        );
        assert_eq!(
            json!(JobEventView::new(1, 250, &JobEvent::Returned)),
            json!({ "number": 1, "at": "1970-01-01T00:00:00.25Z", "event": "returned" })
        );
    }

    #[test]
    fn what_is_written_can_be_read_back() {
        let (provider, part) = (AccountKey([7; 32]), "part 1".to_owned());
        let event = JobEventView::new(2, 0, &JobEvent::Running { provider, part });
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<JobEventView>(&text).unwrap(), event);
    }
}
