//! What leases hold, when it returns, and the command that releases it.

use serde_json::{Value, json};
use souk_node::market::{Lease, LeaseState};

use super::{credits, time_of_day};
use crate::paste;

/// A line for each lease that holds anything.
pub fn text(leases: &[Lease]) -> Vec<String> {
    let open = leases.iter().filter(|lease| lease.escrow.0 > 0);
    open.map(line).collect()
}

/// The same, for programs.
pub fn to_json(leases: &[Lease]) -> Value {
    let open = leases.iter().filter(|lease| lease.escrow.0 > 0);
    let one = |lease: &Lease| {
        json!({
            "lease": lease.id, "micro_credits": lease.escrow, "ends_at": lease.ends(),
            "returns_at": returns_at(lease), "release": release(lease),
        })
    };
    open.map(one).collect()
}

fn line(lease: &Lease) -> String {
    let (id, held) = (lease.id, credits(lease.escrow.0));
    let ends = time_of_day(lease.ends().0);
    match (returns_at(lease), release(lease)) {
        (Some(until), _) => format!(
            "lease {id} holds {held}: it returns at {} UTC, or with its receipt before",
            time_of_day(until)
        ),
        (None, Some(release)) => format!(
            "lease {id} holds {held} until it ends at {ends} UTC; to end it now:\n    {release}"
        ),
        (None, None) => format!("lease {id} holds {held}: it ends at {ends} UTC and is settled"),
    }
}

/// When it closes by itself, once its device is free.
fn returns_at(lease: &Lease) -> Option<u64> {
    match lease.state {
        LeaseState::Due { until, .. } => Some(until.0),
        _ => None,
    }
}

/// What ends it, where it does not end already.
fn release(lease: &Lease) -> Option<String> {
    let is_open = matches!(lease.state, LeaseState::Active | LeaseState::Waiting { .. });
    is_open.then(|| paste::command(&format!("lease end {}", lease.id)))
}
