//! Jobs from their journals.

use serde_json::{Value, json};
use souk_node::buyer::journal::{JobState, Record};
use souk_node::market::{Lease, LeaseState};

use super::{Names, Table, called, count, credits, held, number, say};
use crate::paste;

/// Returns a job as JSON, with the market's records of its leases.
pub fn to_json(record: &Record, leases: &[Lease]) -> Value {
    json!({
        "job": record, "leases": leases, "answers": record.answered,
        "spent_micro_credits": sum(leases, |lease| lease.cost.0),
        "held_micro_credits": sum(leases, |lease| lease.escrow.0),
    })
}

/// Prints all jobs, the newest first.
pub fn print(records: &[Record], now_ms: u64) {
    if records.is_empty() {
        let submit = paste::command("submit MODEL.onnx -i NAME=FILE.npy -o out");
        return say(&format!("no jobs yet: {submit}"));
    }
    let header = [
        "job",
        "begun",
        "state",
        "model",
        ">answered",
        ">receipts",
        ">attempts",
        "out",
    ];
    let mut table = Table::new(&header).sparing(&["attempts", "receipts", "out"]);
    for record in records.iter().rev() {
        let asked = |path: &[&str]| {
            let found = path
                .iter()
                .try_fold(&record.command, |at, name| at.get(name));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let model = asked(&["job", "model"]);
        let model = model.rsplit('/').next().unwrap_or_default().to_owned();
        table.row([
            record.name.clone(),
            ago(now_ms.saturating_sub(record.begun_ms)),
            state(&record.state),
            model,
            record.answered.to_string(),
            record.receipts.len().to_string(),
            record.attempts.len().to_string(),
            asked(&["out"]),
        ]);
    }
    table.print();
}

/// Describes how long ago something happened.
fn ago(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ ..120 => format!("{seconds} s ago"),
        seconds @ ..7_200 => format!("{} min ago", seconds / 60),
        seconds @ ..172_800 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Prints one job and its leases.
pub fn print_one(record: &Record, leases: &[Lease], names: &Names) {
    say(&format!("job {}: {}", record.name, state(&record.state)));
    let header = [">lease", "provider", "state", ">paid", ">held"];
    let mut table = Table::new(&header);
    for lease in leases {
        table.row([
            lease.id.to_string(),
            called(&lease.provider, names),
            lease_state(&lease.state).to_owned(),
            credits(lease.cost.0),
            credits(lease.escrow.0),
        ]);
    }
    table.print();
    if record.answered > 0 {
        say(&format!(
            "  {} answered",
            count(number(record.answered), "request")
        ));
    }
    if !record.kept.is_empty() {
        say(&format!("  kept: {}", record.kept.join(", ")));
    }
    let (spent, held) = (
        sum(leases, |lease| lease.cost.0),
        sum(leases, |lease| lease.escrow.0),
    );
    say(&format!(
        "  {} credits spent, {} held",
        credits(spent),
        credits(held)
    ));
    held::text(leases)
        .iter()
        .for_each(|line| say(&format!("  {line}")));
}

/// Describes the state of a job.
pub fn state(state: &JobState) -> String {
    match state {
        JobState::Running => "running, or its process died".to_owned(),
        JobState::Done => "done".to_owned(),
        JobState::Interrupted => "interrupted".to_owned(),
        JobState::Failed { code, .. } => format!("failed: {code}"),
    }
}

/// Names the state of a lease.
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
