//! `souk job …`: lists the jobs of a folder, shows their state, and resumes or cancels them.

mod ending;
mod following;
mod results;

use std::path::Path;
use std::time::Duration;

use souk_node::buyer::Journal;
use souk_node::buyer::journal::{JobState, Record};
use souk_node::clock::unix_ms;

use super::job::{self, JOBS_FOLDER};
use crate::args::{JobCommand, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{join, unreachable_market};
use crate::show;
use souk_node::buyer::job_files::JobFiles;

/// Runs a command on jobs.
pub async fn run(folder: &Path, output: Output, command: &JobCommand) -> Outcome {
    match command {
        JobCommand::List => {
            let records = Journal::list(&folder.join(JOBS_FOLDER));
            match output {
                Output::Json => show::json(&records),
                Output::Text => show::jobs::print(&records, unix_ms()),
            }
            Ok(())
        }
        JobCommand::Status { name } => status(folder, output, name).await,
        JobCommand::Resume { name } => resume(folder, output, name).await,
        JobCommand::Watch { name } => following::watch(folder, output, name).await,
        JobCommand::Logs { name } => following::logs(folder, output, name),
        JobCommand::Cancel { name, wait } => {
            ending::cancel(folder, output, name, Duration::from_secs(*wait)).await
        }
        JobCommand::Explain { name } => results::explain(folder, output, name),
        JobCommand::Result { name, out, format } => results::result(
            folder,
            output,
            name,
            out.as_deref().map(|out| (out, *format)),
        ),
        JobCommand::Trace { name, out } => results::trace(folder, output, name, out.as_deref()),
    }
}

/// Shows one job and its cost.
async fn status(folder: &Path, output: Output, name: &str) -> Outcome {
    let record = Journal::read(&folder.join(JOBS_FOLDER), name).map_err(job::unreadable)?;
    let buyer = join(folder).await?;
    let leases = buyer.broker();
    let leases = leases.job_leases(buyer.account(), &record.ids).await;
    let leases = leases.map_err(unreachable_market)?;
    match output {
        Output::Json => show::json(&show::jobs::to_json(&record, &leases)),
        Output::Text => {
            let names = show::names(&record.providers);
            show::jobs::print_one(&record, &leases, &names);
        }
    }
    Ok(())
}

/// Resumes a job.
async fn resume(folder: &Path, output: Output, name: &str) -> Outcome {
    let jobs = folder.join(JOBS_FOLDER);
    let record = Journal::read(&jobs, name).map_err(job::unreadable)?;
    let args = command(&record)?;
    if record.state == JobState::Done {
        let (name, out) = (&record.name, args.out.display());
        let cause = format!("job {name} is done; its outputs are in {out}");
        return Err(Failure::new(
            Kind::State,
            cause,
            "submit it again to run it again",
        ));
    }
    let journal = Journal::open(&jobs, &record.name).map_err(job::unreadable)?;
    job::resume(folder, output, (&args, journal)).await
}

/// Finds a job by its name or the first digits of it; returns its record and its files.
fn known(folder: &Path, name: &str) -> Result<(Record, JobFiles), Failure> {
    let jobs = folder.join(JOBS_FOLDER);
    let record = Journal::read(&jobs, name).map_err(job::unreadable)?;
    let files = JobFiles::new(&jobs, &record.name);
    Ok((record, files))
}

/// Returns the names of a job's providers.
fn names(record: &Record, files: &JobFiles) -> show::Names {
    let mut names = files.plan().unwrap_or_default().names;
    names.extend(show::names(&record.providers));
    names
}

fn command(record: &Record) -> Result<SubmitArgs, Failure> {
    serde_json::from_value(record.command.clone()).map_err(|error| {
        let cause = format!("job {} was submitted by another souk: {error}", record.name);
        Failure::new(Kind::State, cause, "submit it again")
    })
}
