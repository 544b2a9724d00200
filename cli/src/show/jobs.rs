//! Prints the jobs of a folder, or one of them in detail, from the journals in which each job
//! records its progress, and converts them to JSON.

use serde_json::{Value, json};
use souk_api::lease::{LeaseView, state_name};
use souk_node::buyer::journal::{JobState, Record};
use souk_node::market::Lease;

use super::{
    Names, Table, account_name, format_count, format_credits, held_credits, print_line, to_u64,
};
use crate::suggested_command;

/// Returns a job as JSON, with the market's records of its leases.
pub fn to_json(record: &Record, leases: &[Lease]) -> Value {
    json!({
        "job": record, "leases": leases.iter().map(LeaseView::from).collect::<Vec<_>>(),
        "requests_answered": record.requests_answered,
        "spent": sum(leases, |lease| lease.cost.0),
        "escrow": sum(leases, |lease| lease.escrow.0),
    })
}

/// Prints all jobs, the newest first.
pub fn print_jobs(records: &[Record], now_ms: u64) {
    if records.is_empty() {
        let submit = suggested_command::market_command("submit MODEL.onnx -i NAME=FILE.npy -o out");
        return print_line(&format!("no jobs yet: {submit}"));
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
    let mut table = Table::new(&header).with_spare_columns(&["attempts", "receipts", "out"]);
    for record in records.iter().rev() {
        let asked = |path: &[&str]| {
            let found = path
                .iter()
                .try_fold(&record.command, |at, name| at.get(name));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let model = asked(&["job", "model"]);
        let model = model.rsplit('/').next().unwrap_or_default().to_owned();
        table.add_row([
            record.name.clone(),
            format_age(now_ms.saturating_sub(record.begun_ms)),
            describe_state(&record.state),
            model,
            match record.is_session() {
                true => "session".to_owned(),
                false => record.requests_answered.to_string(),
            },
            record.receipts.len().to_string(),
            record.attempts.len().to_string(),
            asked(&["out"]),
        ]);
    }
    table.print();
}

/// Describes how long ago something happened.
fn format_age(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ ..120 => format!("{seconds} s ago"),
        seconds @ ..7_200 => format!("{} min ago", seconds / 60),
        seconds @ ..172_800 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Prints one job and its leases.
pub fn print_one(record: &Record, leases: &[Lease], names: &Names) {
    print_line(&format!(
        "job {}: {}",
        record.name,
        describe_state(&record.state)
    ));
    let header = [">lease", "provider", "state", ">paid", ">held"];
    let mut table = Table::new(&header);
    for lease in leases {
        table.add_row([
            lease.id.to_string(),
            account_name(&lease.provider, names),
            state_name(&lease.state).to_owned(),
            format_credits(lease.cost.0),
            format_credits(lease.escrow.0),
        ]);
    }
    table.print();
    if record.requests_answered > 0 {
        print_line(&format!(
            "  {} answered",
            format_count(to_u64(record.requests_answered), "request")
        ));
    }
    if !record.kept_values.is_empty() {
        print_line(&format!("  kept: {}", record.kept_values.join(", ")));
    }
    let (spent, held) = (
        sum(leases, |lease| lease.cost.0),
        sum(leases, |lease| lease.escrow.0),
    );
    print_line(&format!(
        "  {} credits spent, {} held",
        format_credits(spent),
        format_credits(held)
    ));
    held_credits::describe_leases(leases)
        .iter()
        .for_each(|line| print_line(&format!("  {line}")));
}

/// Describes the state of a job.
pub fn describe_state(state: &JobState) -> String {
    match state {
        JobState::Running => "running, or its process died".to_owned(),
        JobState::Done => "done".to_owned(),
        JobState::Interrupted => "interrupted".to_owned(),
        JobState::Failed { reason, .. } => format!("failed: {reason}"),
    }
}

fn sum(leases: &[Lease], part: fn(&Lease) -> u64) -> u64 {
    leases.iter().map(part).sum()
}
