//! Defines the public JSON of leases, open and closed. A lease is device time that a buyer bought.

use serde::Serialize;
use souk_market::{AccountKey, CloseReason, Lease, LeaseId, LeaseState, Millis, Term};

use crate::class_name;
use crate::time::{format_moment, to_seconds};

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseView {
    /// The number of the lease.
    pub lease: u64,
    /// The account that bought it.
    pub buyer: String,
    /// The account that sold it.
    pub provider: String,
    /// The name of the device model.
    pub device: String,
    /// The class of the device.
    pub class: String,
    /// Whether the device is emulated.
    pub emulated: bool,
    /// `waiting`, `active`, `ending`, `due` or `closed`.
    pub state: &'static str,
    /// Why it ended or will end, such as `receipt` or `deadline`; null while nothing ends it.
    pub reason: Option<&'static str>,
    /// `firm` or `spot`.
    pub term: &'static str,
    /// Seconds of notice before its provider or a higher bid can take the device back.
    pub notice: f64,
    /// Micro-credits per device-second.
    pub price: u64,
    /// How many units of the device it has.
    pub units: u32,
    /// What the buyer paid for it, in micro-credits; 0 before it is closed.
    pub cost: u64,
    /// What its provider got of that, without the market's fee; null before it is closed.
    pub paid: Option<u64>,
    /// The market's fee, in micro-credits; null before it is closed.
    pub fee: Option<u64>,
    /// What its buyer got back, in micro-credits; null before it is closed.
    pub refunded: Option<u64>,
    /// What it holds until it is settled, in micro-credits.
    pub escrow: u64,
    /// When it starts.
    pub starts_at: String,
    /// When it ends, or ended.
    pub ends_at: String,
    /// When it closes if no receipt settles it before; null before its device is free.
    pub closes_at: Option<String>,
    /// The id of the job that it was bought for.
    pub job: String,
    /// The ask by which its buyer resells the rest of it.
    pub resale_order: Option<u64>,
    /// The lease that displaced it.
    pub successor: Option<u64>,
}

impl LeaseView {
    /// Returns the lease's number, by which lists are sorted.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.lease
    }
}

impl From<&Lease> for LeaseView {
    fn from(lease: &Lease) -> LeaseView {
        let closing = match lease.state {
            LeaseState::Closed {
                paid,
                fee,
                refunded,
                ..
            } => Some((paid.0, fee.0, refunded.0)),
            _ => None,
        };
        LeaseView {
            lease: lease.id.0,
            buyer: lease.buyer.to_string(),
            provider: lease.provider.to_string(),
            device: lease.model.to_string(),
            class: class_name::format_class(&lease.class),
            emulated: lease.class.emulated,
            state: state_name(&lease.state),
            reason: end_reason(&lease.state).map(reason_name),
            term: match lease.term {
                Term::Firm => "firm",
                Term::Spot => "spot",
            },
            notice: to_seconds(lease.notice),
            price: lease.price.0,
            units: lease.quantity.0,
            cost: lease.cost.0,
            paid: closing.map(|(paid, ..)| paid),
            fee: closing.map(|(_, fee, _)| fee),
            refunded: closing.map(|(.., refunded)| refunded),
            escrow: lease.escrow.0,
            starts_at: format_moment(lease.start),
            ends_at: format_moment(lease.end_time()),
            closes_at: close_time(&lease.state).map(format_moment),
            job: lease.job.to_string(),
            resale_order: lease.resale_ask.map(|order| order.0),
            successor: lease.successor.map(|lease| lease.0),
        }
    }
}

/// Returns the name of a lease's state.
#[must_use]
pub fn state_name(state: &LeaseState) -> &'static str {
    match state {
        LeaseState::Waiting { .. } => "waiting",
        LeaseState::Active => "active",
        LeaseState::Ending { .. } => "ending",
        LeaseState::Due { .. } => "due",
        LeaseState::Closed { .. } => "closed",
    }
}

/// Returns the name of the reason why a lease ended.
#[must_use]
pub fn reason_name(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Receipt => "receipt",
        CloseReason::Deadline => "deadline",
        CloseReason::BuyerEnded => "buyer_ended",
        CloseReason::GaveUp => "gave_up",
        CloseReason::Reclaimed => "reclaimed",
        CloseReason::Displaced => "displaced",
        CloseReason::Disputed => "disputed",
        CloseReason::BuyerSilent => "buyer_silent",
        CloseReason::Resold => "resold",
        CloseReason::Unused => "unused",
    }
}

fn end_reason(state: &LeaseState) -> Option<CloseReason> {
    match state {
        LeaseState::Waiting { .. } | LeaseState::Active => None,
        LeaseState::Ending { reason, .. }
        | LeaseState::Due { reason, .. }
        | LeaseState::Closed { reason, .. } => Some(*reason),
    }
}

fn close_time(state: &LeaseState) -> Option<Millis> {
    match state {
        LeaseState::Due { until, .. } => Some(*until),
        LeaseState::Closed { at, .. } => Some(*at),
        _ => None,
    }
}

/// A lease that is closed, of which the market may know no more.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClosedLeaseView {
    /// The number of the lease.
    pub lease: u64,
    /// When it closed.
    pub at: String,
    /// The account that bought it.
    pub buyer: String,
    /// The account that sold it.
    pub provider: String,
    /// Why it ended, such as `receipt` or `deadline`.
    pub reason: &'static str,
    /// What its provider got, in micro-credits.
    pub paid: u64,
    /// What the market took, in micro-credits.
    pub fee: u64,
    /// What its buyer got back, in micro-credits.
    pub refunded: u64,
    /// Seconds of its devices that were paid; null once the market has forgotten the lease.
    pub device_time: Option<f64>,
    /// The name of the device model; null once the market has forgotten the lease.
    pub device: Option<String>,
    /// The class of the device; null once the market has forgotten the lease.
    pub class: Option<String>,
    /// Whether the device is emulated; null once the market has forgotten the lease.
    pub emulated: Option<bool>,
}

/// The end of a lease, from an account's statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The lease that closed.
    pub lease: LeaseId,
    /// The log time at which it closed.
    pub at: Millis,
    /// The account that bought it.
    pub buyer: AccountKey,
    /// The account that sold it.
    pub provider: AccountKey,
    /// Why it ended.
    pub reason: CloseReason,
    /// What its provider got, in micro-credits.
    pub paid: u64,
    /// What the market took, in micro-credits.
    pub fee: u64,
    /// What its buyer got back, in micro-credits.
    pub refunded: u64,
}

impl ClosedLeaseView {
    /// Describes a closed lease; `known` is the market's record of it, if one is left.
    #[must_use]
    pub fn new(closing: &Closing, known: Option<&Lease>) -> ClosedLeaseView {
        ClosedLeaseView {
            lease: closing.lease.0,
            at: format_moment(closing.at),
            buyer: closing.buyer.to_string(),
            provider: closing.provider.to_string(),
            reason: reason_name(closing.reason),
            paid: closing.paid,
            fee: closing.fee,
            refunded: closing.refunded,
            device_time: known.and_then(paid_seconds),
            device: known.map(|lease| lease.model.to_string()),
            class: known.map(|lease| class_name::format_class(&lease.class)),
            emulated: known.map(|lease| lease.class.emulated),
        }
    }
}

/// Returns the paid time of the devices, in seconds.
#[expect(clippy::cast_precision_loss, reason = "a time in seconds is not exact")]
fn paid_seconds(lease: &Lease) -> Option<f64> {
    (lease.price.0 > 0).then(|| lease.cost.0 as f64 / lease.price.0 as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// All reasons. The match makes the compiler ask for a new one.
    fn all_reasons() -> [CloseReason; 10] {
        [
            CloseReason::Receipt,
            CloseReason::Deadline,
            CloseReason::BuyerEnded,
            CloseReason::GaveUp,
            CloseReason::Reclaimed,
            CloseReason::Displaced,
            CloseReason::Disputed,
            CloseReason::BuyerSilent,
            CloseReason::Resold,
            CloseReason::Unused,
        ]
    }

    #[test]
    fn a_reason_has_the_same_word_in_a_lease_and_in_the_causes_of_a_statement() {
        for reason in all_reasons() {
            assert_eq!(json!(reason), reason_name(reason));
        }
    }
}
