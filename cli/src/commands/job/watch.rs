//! `souk job watch` and `souk job logs`: shows the events of a job that another process runs.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_node::buyer::Journal;
use souk_node::buyer::journal::{JobState, Record};

use super::{JOBS_FOLDER, find_job, provider_names};
use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::{show, suggested_command};
use souk_node::buyer::job_files::TimedEvent;

/// Period of the reads of a job's files.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// Shows past events, and further ones until the job ends; JSON output has a line for each.
pub async fn watch_job(folder: &Path, output: Output, name: &str) -> Outcome {
    let jobs = folder.join(JOBS_FOLDER);
    let name = find_job(folder, name)?.0.name;
    let mut shown = 0;
    loop {
        // This must come before the events are read, to catch the last ones if the process ends in
        // between.
        let is_busy = Journal::is_busy(&jobs, &name);
        let (record, files) = find_job(folder, &name)?;
        let (events, names) = (files.read_events(), provider_names(&record, &files));
        for (number, happened) in events.iter().enumerate().skip(shown) {
            print_event(number, happened, output, &names);
        }
        shown = shown.max(events.len());
        if !is_busy {
            return report_end(&record, output);
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// Shows past events.
pub fn show_events(folder: &Path, output: Output, name: &str) -> Outcome {
    let (record, files) = find_job(folder, name)?;
    let (events, names) = (files.read_events(), provider_names(&record, &files));
    match output {
        Output::Json => show::print_json(&TimedEvent::describe_all(&events)),
        Output::Text if events.is_empty() => show::print_notice("it has no stored events"),
        Output::Text => events
            .iter()
            .enumerate()
            .for_each(|happened| print_event(happened.0, happened.1, output, &names)),
    }
    Ok(())
}

fn print_event(number: usize, happened: &TimedEvent, output: Output, names: &show::Names) {
    match output {
        Output::Json => show::print_json(&happened.describe(number)),
        Output::Text => {
            if let Some(text) = show::progress::describe_event(&happened.event, names) {
                show::print_line(&format!("{} {text}", show::time_of_day(happened.at_ms)));
            }
        }
    }
}

/// Reports the end of a job that no process runs.
fn report_end(record: &Record, output: Output) -> Outcome {
    let name = &record.name;
    let resume = suggested_command::market_command(&format!("job resume {name}"));
    match &record.state {
        JobState::Done => {
            let facts = json!({
                "job": name, "state": "done", "requests_answered": record.requests_answered,
            });
            let result = suggested_command::market_command(&format!("job result {name}"));
            show::print_result(
                output,
                &facts,
                &format!("it is done; its outputs: {result}"),
            );
            Ok(())
        }
        JobState::Interrupted => {
            let hint = format!("resume it: {resume}");
            let cause = format!("job {name} was interrupted");
            Err(Failure::new(Kind::Interrupted, cause, hint))
        }
        JobState::Failed { reason, cause } => {
            let hint = format!("resume it: {resume}");
            let failure = Failure::new(Kind::Job, format!("job {name} failed: {cause}"), hint);
            Err(failure.with([("reason", reason.as_str().into())]))
        }
        JobState::Running => {
            let cause = format!("the process that ran job {name} is gone");
            let cancel = suggested_command::market_command(&format!("job cancel {name}"));
            let hint = format!("resume it: {resume}; or end its leases: {cancel}");
            Err(Failure::new(Kind::Job, cause, hint))
        }
    }
}
