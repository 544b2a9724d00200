//! Starts the journal of a training run in a folder next to the run's result, lists the runs of a
//! folder, and resumes one.
//!
//! ```text
//! tuned/run/  or  tuned.onnx.run/     the journal and the last kept states of a run
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use souk_folder::clock::unix_ms;
use souk_node::buyer::training::{
    ListedRun, RunJournal, RunJournalError, RunPast, list_run, read_runs, run_folder,
};
use souk_node::market::Credits;

use super::failures::from_run_journal;
use super::{Lasting, PreparedRun, lease_limits, prepare_run};
use crate::args::{Output, TrainArgs, TrainResumeArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, Table, format_credits};
use crate::suggested_command;

/// The command that began a run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunCommand {
    args: TrainArgs,
    /// When it began, which a chat template can read.
    pub(super) unix_seconds: u64,
}

impl RunCommand {
    /// Returns the command with absolute paths, begun now.
    pub(super) fn new(args: &TrainArgs) -> RunCommand {
        let path = |path: &Path| std::path::absolute(path).unwrap_or(path.to_owned());
        let is_file = |text: &str| args.data.is_some() || !text.contains('=');
        let named = |text: &String| match text.split_once('=') {
            Some((name, file)) if !is_file(text) => {
                format!("{name}={}", path(Path::new(file)).display())
            }
            _ => path(Path::new(text)).display().to_string(),
        };
        // `bundled` is no path, unless there is a file of that name.
        let model = match args.model.exists() {
            true => path(&args.model),
            false => args.model.clone(),
        };
        RunCommand {
            args: TrainArgs {
                model,
                data: args.data.as_deref().map(path),
                input: args.input.iter().map(named).collect(),
                target: args.target.as_ref().map(named),
                eval: args.eval.iter().map(named).collect(),
                out: args.out.as_deref().map(path),
                ..args.clone()
            },
            unix_seconds: unix_ms() / 1000,
        }
    }

    /// Encodes the command for the journal, which cannot hold a path that is no UTF-8.
    pub(super) fn to_json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(|error| {
            let cause = format!("the journal of the run cannot name a file: {error}");
            Failure::new(Kind::Input, cause, "give it a name in UTF-8")
        })
    }
}

/// Begins the journal of a run. It refuses to replace one that has steps or has cost credits,
/// unless its result is written, and one that it cannot read.
pub(super) fn begin_journal(
    folder: &Path,
    prepared: &PreparedRun<'_>,
) -> Result<RunJournal, Failure> {
    let run = prepared.subject.run_folder(prepared.out);
    match RunJournal::read(&run) {
        Ok(past) => check_replaceable(prepared.out, &run, &past)?,
        Err(RunJournalError::Unknown { .. }) => {}
        Err(error) => return Err(from_run_journal(&error)),
    }
    let journal = RunJournal::create(&run).map_err(|error| from_run_journal(&error))?;
    list_run(folder, &run).map_err(|error| from_run_journal(&error))?;
    Ok(journal)
}

/// Checks that a new run can replace the one in a folder.
fn check_replaceable(out: &Path, run: &Path, past: &RunPast) -> Outcome {
    let is_begun = past.kept.position > 0 || past.spent > Credits::ZERO;
    if RunJournal::is_finished(run, past) || !is_begun && past.open_lease.is_none() {
        return Ok(());
    }
    let (done, steps) = (past.kept.position, past.steps);
    let cause = format!(
        "{} belongs to a run that has done {done} of {steps} steps{}",
        out.display(),
        match past.open_lease {
            Some(_) => ", and whose lease is not settled",
            None => "",
        }
    );
    let resume = suggested_command::market_command(&format!("train resume {}", out.display()));
    let hint = format!(
        "go on with it: {resume}; or give another --out, or remove {}",
        run.display()
    );
    Err(Failure::new(Kind::State, cause, hint))
}

/// Resumes a run from its journal.
pub(super) async fn resume_run(folder: &Path, output: Output, asked: &TrainResumeArgs) -> Outcome {
    let (run, out) = find_run(&asked.out);
    let journal = RunJournal::open(&run).map_err(|error| from_run_journal(&error))?;
    let past = journal.past().expect("an open journal has a past");
    let command = decode_command(past, &run)?;
    let mut args = command.args;
    if asked.budget.is_some() {
        args.lease.budget = asked.budget;
    }
    args.until_stdin_closes = asked.until_stdin_closes;
    let (subject, training) = prepare_run(&args, command.unix_seconds)?;
    let limits = lease_limits(&args.lease)?;
    // The result goes to where it is now, if somebody moved its folder.
    subject.prepare_out(&out)?;
    if output == Output::Text {
        let (done, steps) = (past.kept.position, past.steps);
        show::print_notice(&format!("going on after {done} of {steps} steps"));
    }
    let prepared = PreparedRun {
        args: &args,
        out: &out,
        subject,
        training,
        limits,
        lasting: Lasting::Yes,
    };
    let command = String::new();
    let written = prepared.train_model(folder, output, journal, command);
    written.await?.show_result(output);
    Ok(())
}

/// Returns the folder of a run and the path of its result. Either of them can be given.
fn find_run(given: &Path) -> (PathBuf, PathBuf) {
    if given.join("facts.jsonl").exists() {
        let result = match given.file_name().is_some_and(|name| name == "run") {
            true => given.join(".."),
            false => given.with_extension(""),
        };
        return (given.to_owned(), result);
    }
    (run_folder(given, given.is_dir()), given.to_owned())
}

fn decode_command(past: &RunPast, run: &Path) -> Result<RunCommand, Failure> {
    serde_json::from_str(&past.command).map_err(|error| {
        let cause = format!(
            "{} has no command that this souk reads: {error}",
            run.display()
        );
        Failure::new(Kind::State, cause, "resume it with the souk that began it")
    })
}

/// Lists the runs that users started from a folder, the oldest first.
pub(super) fn list_runs(folder: &Path, output: Output) {
    let runs = read_runs(folder);
    if output == Output::Json {
        let all: Vec<Value> = runs.iter().map(to_json).collect();
        return show::print_json(&all);
    }
    let columns = [
        "run",
        "state",
        ">steps",
        ">loss",
        ">held-out",
        ">credits",
        "result",
    ];
    let mut table = Table::new(&columns);
    for run in &runs {
        let past = &run.past;
        table.add_row([
            show::time_of_day(past.at.0),
            run.state().text().to_owned(),
            format!("{}/{}", past.kept.position, past.steps),
            last_loss(past).map_or("-".to_owned(), |loss| format!("{loss:.4}")),
            held_out_loss(past).map_or("-".to_owned(), |loss| format!("{loss:.4}")),
            format_credits(past.spent.0),
            result_path(run),
        ]);
    }
    table.print();
}

fn to_json(run: &ListedRun) -> Value {
    let past = &run.past;
    json!({
        "id": run.name,
        "result": result_path(run),
        "run": run.folder,
        "state": run.state().text(),
        "begun_ms": past.at.0,
        "steps_done": past.kept.position,
        "steps": past.steps,
        "loss": last_loss(past),
        "held_out_loss": held_out_loss(past),
        "spent_micro_max": past.spent.0,
        "receipts": past.receipts.len(),
    })
}

fn last_loss(past: &RunPast) -> Option<f32> {
    past.losses.last().map(|loss| f32::from_bits(loss.0))
}

fn held_out_loss(past: &RunPast) -> Option<f32> {
    let last = past.held_out.last();
    last.map(|(_, loss)| f32::from_bits(loss.0))
}

/// Returns the path that --out named.
fn result_path(run: &ListedRun) -> String {
    let command: Option<RunCommand> = serde_json::from_str(&run.past.command).ok();
    let out = command.and_then(|command| command.args.out);
    out.unwrap_or_else(|| run.result()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_by_its_result_and_by_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tuned.onnx");
        let beside = folder.path().join("tuned.onnx.run");
        let adapter = folder.path().join("tuned");
        let inside = adapter.join("run");
        for run in [&beside, &inside] {
            std::fs::create_dir_all(run).unwrap();
            std::fs::write(run.join("facts.jsonl"), "").unwrap();
        }
        for given in [&model, &beside] {
            assert_eq!(find_run(given), (beside.clone(), model.clone()));
        }
        assert_eq!(find_run(&adapter), (inside.clone(), adapter.clone()));
        let (run, out) = find_run(&inside);
        assert_eq!(run, inside);
        assert_eq!(out.canonicalize().unwrap(), adapter.canonicalize().unwrap());
    }
}
