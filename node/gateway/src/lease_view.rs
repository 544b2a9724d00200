//! The leases of the API.

use serde::Serialize;
use souk_node::device::class_name;
use souk_node::market::{AccountKey, CloseReason, Lease, LeaseState, Term};
use utoipa::ToSchema;

use crate::times;

/// A lease.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaseView {
    lease: u64,
    buyer: String,
    provider: String,
    device: String,
    class: String,
    emulated: bool,
    /// `waiting`, `active`, `ending`, `due` or `closed`.
    state: &'static str,
    /// Why it ended or will end, such as `receipt` or `deadline`.
    #[schema(value_type = Option<String>)]
    reason: Option<CloseReason>,
    /// `firm` or `spot`.
    term: &'static str,
    /// Micro-credits a device-second.
    price: u64,
    units: u32,
    /// What it cost, in micro-credits.
    cost: u64,
    /// What of that its provider got, the market's fee not counted; null before it is closed.
    paid: Option<u64>,
    /// What it holds, and until when at the latest.
    escrow: u64,
    starts_at: String,
    ends_at: String,
    /// The id that it was bought under.
    job: String,
    /// The ask by which the rest of it is resold.
    resale_order: Option<u64>,
}

impl LeaseView {
    /// Returns the lease's number, by which lists are sorted.
    pub fn number(&self) -> u64 {
        self.lease
    }
}

impl From<&Lease> for LeaseView {
    fn from(lease: &Lease) -> LeaseView {
        let (state, reason, paid) = match lease.state {
            LeaseState::Waiting { .. } => ("waiting", None, None),
            LeaseState::Active => ("active", None, None),
            LeaseState::Ending { reason, .. } => ("ending", Some(reason), None),
            LeaseState::Due { reason, .. } => ("due", Some(reason), None),
            LeaseState::Closed { reason, paid, .. } => ("closed", Some(reason), Some(paid.0)),
        };
        LeaseView {
            lease: lease.id.0,
            buyer: lease.buyer.to_string(),
            provider: lease.provider.to_string(),
            device: lease.model.to_string(),
            class: class_name::format_class(&lease.class),
            emulated: lease.class.emulated,
            state,
            reason,
            term: match lease.term {
                Term::Firm => "firm",
                Term::Spot => "spot",
            },
            price: lease.price.0,
            units: lease.quantity.0,
            cost: lease.cost.0,
            paid,
            escrow: lease.escrow.0,
            starts_at: times::at(lease.start.0),
            ends_at: times::at(lease.end_time().0),
            job: lease.job.to_string(),
            resale_order: lease.resale_ask.map(|order| order.0),
        }
    }
}

/// A lease that is closed, of which the market may know no more.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClosedLeaseView {
    lease: u64,
    /// When it closed.
    at: String,
    buyer: String,
    provider: String,
    #[schema(value_type = String)]
    reason: CloseReason,
    /// What its provider got, in micro-credits.
    pub paid: u64,
    /// What the market took.
    fee: u64,
    /// What its buyer got back.
    refunded: u64,
    /// Seconds of its devices that were paid; null once the market has forgotten it.
    pub device_time: Option<f64>,
    device: Option<String>,
    pub class: Option<String>,
    emulated: Option<bool>,
}

/// A closed lease, from an account's statement.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    pub lease: souk_node::market::LeaseId,
    pub at_ms: u64,
    pub buyer: AccountKey,
    pub provider: AccountKey,
    pub reason: CloseReason,
    pub paid: u64,
    pub fee: u64,
    pub refunded: u64,
}

impl ClosedLeaseView {
    /// Describes a closed lease; `known` is the market's record of it, if one is left.
    pub fn new(closing: &Closing, known: Option<&Lease>) -> ClosedLeaseView {
        ClosedLeaseView {
            lease: closing.lease.0,
            at: times::at(closing.at_ms),
            buyer: closing.buyer.to_string(),
            provider: closing.provider.to_string(),
            reason: closing.reason,
            paid: closing.paid,
            fee: closing.fee,
            refunded: closing.refunded,
            device_time: known.and_then(device_time),
            device: known.map(|lease| lease.model.to_string()),
            class: known.map(|lease| class_name::format_class(&lease.class)),
            emulated: known.map(|lease| lease.class.emulated),
        }
    }
}

/// Returns the paid time of the devices, in seconds.
#[expect(clippy::cast_precision_loss, reason = "a time in seconds is not exact")]
fn device_time(lease: &Lease) -> Option<f64> {
    (lease.price.0 > 0).then(|| lease.cost.0 as f64 / lease.price.0 as f64)
}
