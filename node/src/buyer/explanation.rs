//! Explains how a job went: its plan, with the offers that were ruled out, and what went wrong.

use serde_json::{Value, json};
use souk_roles::job::JobEvent;

use super::job_event_view::JobEventView;
use super::job_files::{JobFiles, TimedEvent};
use super::journal::Record;

/// Returns the explanation as JSON.
#[must_use]
pub fn to_json(record: &Record, files: &JobFiles) -> Value {
    json!({
        "job": record.name, "state": record.state, "plan": files.read_plan().map(|plan| plan.plan),
        "went_wrong": went_wrong(files).iter().map(describe_event).collect::<Vec<_>>(),
    })
}

/// Returns the failures from which the job recovered, oldest first, each with its number.
#[must_use]
pub fn went_wrong(files: &JobFiles) -> Vec<(usize, TimedEvent)> {
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

fn describe_event((number, happened): &(usize, TimedEvent)) -> JobEventView {
    JobEventView::new(*number, happened)
}
