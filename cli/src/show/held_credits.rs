//! Describes the credits that an account's leases hold, when these return, and the commands that
//! release them. The messages about accounts and about jobs that ended early use it.

use serde_json::{Value, json};
use souk_api::time::format_moment;
use souk_node::market::{Lease, LeaseState, Millis};

use super::{format_credits, time_of_day};
use crate::suggested_command;

/// Returns a line for each lease that holds credits.
pub fn describe_leases(leases: &[Lease]) -> Vec<String> {
    let open = leases.iter().filter(|lease| lease.escrow.0 > 0);
    open.map(describe_lease).collect()
}

/// Returns the same as JSON.
pub fn to_json(leases: &[Lease]) -> Value {
    let open = leases.iter().filter(|lease| lease.escrow.0 > 0);
    let one = |lease: &Lease| {
        json!({
            "lease": lease.id, "escrow": lease.escrow, "ends_at": format_moment(lease.end_time()),
            "closes_at": close_time(lease).map(format_moment), "release": release_command(lease),
        })
    };
    open.map(one).collect()
}

fn describe_lease(lease: &Lease) -> String {
    let (id, held) = (lease.id, format_credits(lease.escrow.0));
    let ends = time_of_day(lease.end_time().0);
    match (close_time(lease), release_command(lease)) {
        (Some(until), _) => format!(
            "lease {id} holds {held}: it returns at {} UTC, or with its receipt before",
            time_of_day(until.0)
        ),
        (None, Some(release)) => format!(
            "lease {id} holds {held} until it ends at {ends} UTC; to end it now:\n    {release}"
        ),
        (None, None) => format!("lease {id} holds {held}: it ends at {ends} UTC and is settled"),
    }
}

/// Returns when a lease closes by itself, if its device is already free.
fn close_time(lease: &Lease) -> Option<Millis> {
    match lease.state {
        LeaseState::Due { until, .. } => Some(until),
        _ => None,
    }
}

/// Returns the command that ends a lease, unless the lease is already ending.
fn release_command(lease: &Lease) -> Option<String> {
    let is_open = matches!(lease.state, LeaseState::Active | LeaseState::Waiting { .. });
    is_open.then(|| suggested_command::market_command(&format!("lease end {}", lease.id)))
}
