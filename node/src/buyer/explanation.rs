//! Explains how a job went, for `souk job explain`: its plan, with the offers that were ruled out,
//! and the failures from which it recovered.

use serde_json::{Value, json};
use souk_roles::job::JobEvent;

use super::job_files::{JobFiles, TimedEvent};
use super::journal::Record;

/// Returns the explanation as JSON.
#[must_use]
pub fn to_json(record: &Record, files: &JobFiles) -> Value {
    let wrong = list_setbacks(files);
    let describe = |(number, happened): &(usize, TimedEvent)| happened.describe(*number);
    json!({
        "job": record.name, "state": record.state, "plan": files.read_plan().map(|plan| plan.plan),
        "went_wrong": wrong.iter().map(describe).collect::<Vec<_>>(),
    })
}

/// Returns the job's setbacks, oldest first, each with its number: failures after which it
/// continued elsewhere, and leases that it refused to pay.
#[must_use]
pub fn list_setbacks(files: &JobFiles) -> Vec<(usize, TimedEvent)> {
    let is_wrong = |(_, happened): &(usize, TimedEvent)| {
        let event = &happened.event;
        matches!(event, JobEvent::Retrying { .. } | JobEvent::Refused { .. })
    };
    files
        .read_events()
        .into_iter()
        .enumerate()
        .filter(is_wrong)
        .collect()
}
