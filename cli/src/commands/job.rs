//! `souk job …`: lists the jobs of a folder, shows their state, and resumes or cancels them.

mod cancel;
mod results;
mod watch;

use std::path::Path;

use souk_folder::clock::unix_ms;
use souk_node::buyer::Journal;
use souk_node::buyer::journal::{JobState, Record};

use super::submit::{self, JOBS_FOLDER};
use crate::args::{JobCommand, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{join_as_buyer, unreachable_market};
use crate::{show, suggested_command};
use souk_node::buyer::job_files::JobFiles;

/// Runs a command on jobs.
pub async fn run(folder: &Path, output: Output, command: &JobCommand) -> Outcome {
    match command {
        JobCommand::List => {
            let records = Journal::list_records(&folder.join(JOBS_FOLDER));
            match output {
                Output::Json => show::print_json(&records),
                Output::Text => show::jobs::print_jobs(&records, unix_ms()),
            }
            Ok(())
        }
        JobCommand::Status { name } => show_status(folder, output, name).await,
        JobCommand::Resume { name } => resume_job(folder, output, name).await,
        JobCommand::Watch { name } => watch::watch_job(folder, output, name).await,
        JobCommand::Logs { name } => watch::show_events(folder, output, name),
        JobCommand::Cancel { name, wait } => cancel::cancel_job(folder, output, name, *wait).await,
        JobCommand::Explain { name } => results::explain_job(folder, output, name),
        JobCommand::Result { name, out, format } => results::show_result(
            folder,
            output,
            name,
            out.as_deref().map(|out| (out, *format)),
        ),
        JobCommand::Trace { name, out } => {
            results::write_trace(folder, output, name, out.as_deref())
        }
    }
}

/// Shows one job and its cost.
async fn show_status(folder: &Path, output: Output, name: &str) -> Outcome {
    let record = Journal::read(&folder.join(JOBS_FOLDER), name).map_err(submit::journal_failure)?;
    let buyer = join_as_buyer(folder).await?;
    let leases = buyer.broker();
    let leases = leases.job_leases(buyer.account(), &record.ids).await;
    let leases = leases.map_err(unreachable_market)?;
    match output {
        Output::Json => show::print_json(&show::jobs::to_json(&record, &leases)),
        Output::Text => {
            let names = show::provider_names(&record.providers);
            show::jobs::print_one(&record, &leases, &names);
        }
    }
    Ok(())
}

/// Resumes a job.
async fn resume_job(folder: &Path, output: Output, name: &str) -> Outcome {
    let jobs = folder.join(JOBS_FOLDER);
    let record = Journal::read(&jobs, name).map_err(submit::journal_failure)?;
    let args = decode_command(&record)?;
    if record.state == JobState::Done {
        let (name, out) = (&record.name, args.out.display());
        let cause = format!("job {name} is done; its outputs are in {out}");
        return Err(Failure::new(
            Kind::State,
            cause,
            "submit it again to run it again",
        ));
    }
    let journal = Journal::open_by_name(&jobs, &record.name).map_err(submit::journal_failure)?;
    submit::resume_job(folder, output, (&args, journal)).await
}

/// Finds a job by its name or the first digits of it; returns its record and its files.
fn find_job(folder: &Path, name: &str) -> Result<(Record, JobFiles), Failure> {
    let jobs = folder.join(JOBS_FOLDER);
    let record = Journal::read(&jobs, name).map_err(submit::journal_failure)?;
    let files = JobFiles::new(&jobs, &record.name);
    Ok((record, files))
}

/// Returns the names of a job's providers.
fn provider_names(record: &Record, files: &JobFiles) -> show::Names {
    let mut names = files.read_plan().unwrap_or_default().names;
    names.extend(show::provider_names(&record.providers));
    names
}

pub fn decode_command(record: &Record) -> Result<SubmitArgs, Failure> {
    if record.is_session() {
        let name = &record.name;
        let cause = format!("job {name} is a session of a language model");
        let cancel = suggested_command::market_command(&format!("job cancel {name}"));
        let hint = format!(
            "only the command that bought it can continue it and has its text; to end its leases: \
             {cancel}"
        );
        return Err(Failure::new(Kind::State, cause, hint));
    }
    serde_json::from_value(record.command.clone()).map_err(|error| {
        let cause = format!("job {} was submitted by another souk: {error}", record.name);
        Failure::new(Kind::State, cause, "submit it again")
    })
}
