//! `souk job explain`, `result` and `trace`: explains why a job's parts ran where they did, shows
//! its outputs or writes them again, and exports a trace of the devices' work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::buyer::journal::{JobState, Record};
use souk_node::buyer::{Journal, explanation};
use souk_node::memory::ContentId;

use super::{JOBS_FOLDER, decode_command, find_job, provider_names};
use crate::args::{Format, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show, suggested_command};

/// Explains why the parts ran where they did, which offers were refused, and what went wrong.
pub fn explain_job(folder: &Path, output: Output, name: &str) -> Outcome {
    let (record, files) = find_job(folder, name)?;
    let names = provider_names(&record, &files);
    match output {
        Output::Json => show::print_json(&explanation::to_json(&record, &files)),
        Output::Text => {
            let state = show::jobs::describe_state(&record.state);
            show::print_line(&format!("job {}: {state}", record.name));
            match files.read_plan() {
                Some(plan) => plan.text.iter().for_each(|line| show::print_line(line)),
                None => show::print_line("  its plan is not stored: an older souk submitted it"),
            }
            let wrong = explanation::list_setbacks(&files);
            let wrong = wrong.iter();
            let lines =
                wrong.filter_map(|(_, it)| show::progress::describe_event(&it.event, &names));
            lines.for_each(|text| show::print_line(&format!("  {text}")));
            if let JobState::Failed { cause, .. } = &record.state {
                let cause = show::replace_accounts(cause, &names);
                show::print_line(&format!("  it ended because {cause}"));
            }
        }
    }
    Ok(())
}

/// Shows the paths of the outputs, or writes the outputs again.
pub fn show_result(
    folder: &Path,
    output: Output,
    name: &str,
    again: Option<(&Path, Format)>,
) -> Outcome {
    let (record, _) = find_job(folder, name)?;
    let args = decode_command(&record)?;
    let jobs = folder.join(JOBS_FOLDER);
    let answers = Journal::read_answers(&jobs, &record.name)
        .map_err(crate::commands::submit::journal_failure)?;
    if answers.is_empty() {
        let cause = format!("job {} has no answers", record.name);
        let hint = format!(
            "its state: {}",
            suggested_command::market_command(&format!("job status {name}"))
        );
        return Err(Failure::new(Kind::State, cause, hint));
    }
    let folders = files::answer_folders(&args)?;
    let mut found = Vec::new();
    for answer in &answers {
        let ids: BTreeMap<String, ContentId> = answer.iter().cloned().collect();
        let held = folders.iter().find_map(|sub| {
            let held = files::find_matching_outputs(&args.out.join(sub), &ids, args.format)?;
            Some((sub.clone(), held))
        });
        let Some((sub, (paths, outputs))) = held else {
            return Err(missing_output_failure(&record, &args.out));
        };
        let paths = match again {
            Some((out, format)) => files::write_outputs(&out.join(sub), &outputs, format)?,
            None => paths,
        };
        found.extend(paths);
    }
    show_found(output, &record, &found);
    Ok(())
}

fn show_found(output: Output, record: &Record, found: &[PathBuf]) {
    match output {
        Output::Json => show::print_json(&json!({ "job": record.name, "files": found })),
        Output::Text => found
            .iter()
            .for_each(|path| show::print_line(&path.display().to_string())),
    }
}

/// Returns the failure for a missing output: each exists only in its file.
fn missing_output_failure(record: &Record, out: &Path) -> Failure {
    let name = &record.name;
    let cause = format!(
        "an output of job {name} in {} is gone or was changed",
        out.display()
    );
    let hint = match record.state {
        JobState::Done => "submit the job again".to_owned(),
        _ => format!(
            "make it again: {}",
            suggested_command::market_command(&format!("job resume {name}"))
        ),
    };
    Failure::new(Kind::Verification, cause, hint)
}

/// Writes the trace of the devices' work.
pub fn write_trace(folder: &Path, output: Output, name: &str, out: Option<&Path>) -> Outcome {
    let (record, kept) = find_job(folder, name)?;
    let timeline = kept.whole_timeline(&provider_names(&record, &kept));
    let default = PathBuf::from(format!("{}.trace.json", record.name));
    let path = out.map_or(default, Path::to_owned);
    if timeline.spans().is_empty() {
        let cause = format!("job {} has no stored timeline", record.name);
        let hint = "it has not begun, or an older souk ran it";
        return Err(Failure::new(Kind::State, cause, hint));
    }
    files::write(&path, timeline.to_trace_json().as_bytes())?;
    let spans = timeline.spans().len();
    let facts: Value = json!({ "job": record.name, "file": path, "spans": spans });
    let spans = show::format_count(show::to_u64(spans), "span");
    let text = format!(
        "{spans} in {}; open it at https://ui.perfetto.dev",
        path.display()
    );
    show::print_result(output, &facts, &text);
    Ok(())
}
