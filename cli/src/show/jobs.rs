//! Jobs as their journals tell them.

use serde_json::{Value, json};
use souk_node::buyer::journal::{JobState, Record};
use souk_node::market::{Lease, LeaseState};

use super::{Table, credits, say, short};

/// One job as a JSON value, with its leases as the market has them.
pub fn to_json(record: &Record, leases: &[Lease]) -> Value {
    json!({
        "job": record, "leases": leases, "answers": record.answered,
        "spent_micro_credits": sum(leases, |lease| lease.cost.0),
        "held_micro_credits": sum(leases, |lease| lease.escrow.0),
    })
}

/// Prints all jobs, oldest first.
pub fn print(records: &[Record]) {
    let mut table = Table::new(&[
        "job",
        "state",
        ">attempts",
        ">answered",
        ">receipts",
        ">values kept",
        "out",
    ]);
    for record in records {
        let out = record
            .command
            .get("out")
            .and_then(Value::as_str)
            .unwrap_or_default();
        table.row([
            record.name.clone(),
            state(&record.state),
            record.attempts.len().to_string(),
            record.answered.to_string(),
            record.receipts.len().to_string(),
            record.kept.len().to_string(),
            out.to_owned(),
        ]);
    }
    table.print();
}

/// Prints one job and its leases.
pub fn print_one(record: &Record, leases: &[Lease]) {
    say(&format!("job {}: {}", record.name, state(&record.state)));
    let mut table = Table::new(&["lease", "provider", "device", "state", ">paid", ">held"]);
    for lease in leases {
        table.row([
            lease.id.to_string(),
            short(&lease.provider),
            lease.model.as_str().to_owned(),
            lease_state(&lease.state).to_owned(),
            credits(lease.cost.0),
            credits(lease.escrow.0),
        ]);
    }
    table.print();
    if record.answered > 0 {
        say(&format!("  {} request(s) answered", record.answered));
    }
    if !record.kept.is_empty() {
        say(&format!("  kept: {}", record.kept.join(", ")));
    }
    let (spent, held) = (
        sum(leases, |lease| lease.cost.0),
        sum(leases, |lease| lease.escrow.0),
    );
    say(&format!(
        "  {} credits spent, {} in escrow",
        credits(spent),
        credits(held)
    ));
}

fn state(state: &JobState) -> String {
    match state {
        JobState::Running => "running, or its process died".to_owned(),
        JobState::Done => "done".to_owned(),
        JobState::Interrupted => "interrupted".to_owned(),
        JobState::Failed { code, .. } => format!("failed: {code}"),
    }
}

/// Where a lease is in its life, in a word.
pub fn lease_state(state: &LeaseState) -> &'static str {
    match state {
        LeaseState::Waiting { .. } => "waiting",
        LeaseState::Active => "active",
        LeaseState::Ending { .. } => "ending",
        LeaseState::Due { .. } => "due",
        LeaseState::Closed { .. } => "closed",
    }
}

fn sum(leases: &[Lease], part: fn(&Lease) -> u64) -> u64 {
    leases.iter().map(part).sum()
}
