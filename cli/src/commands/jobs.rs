//! `souk job …`: what was submitted from a folder, how it stands, and going on with it.

use std::path::Path;

use souk_node::buyer::Journal;
use souk_node::buyer::journal::{JobState, Record};

use super::job::{self, JOBS_FOLDER};
use crate::args::{JobCommand, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{join, unreachable_market};
use crate::show;

/// Runs a command on jobs.
pub async fn run(folder: &Path, output: Output, command: &JobCommand) -> Outcome {
    match command {
        JobCommand::List => {
            let records = Journal::list(&folder.join(JOBS_FOLDER));
            match output {
                Output::Json => show::json(&records),
                Output::Text => show::jobs::print(&records),
            }
            Ok(())
        }
        JobCommand::Status { name } => status(folder, output, name).await,
        JobCommand::Resume { name } => resume(folder, output, name).await,
    }
}

/// Shows one job and what it has cost.
async fn status(folder: &Path, output: Output, name: &str) -> Outcome {
    let record = Journal::read(&folder.join(JOBS_FOLDER), name).map_err(job::unreadable)?;
    let buyer = join(folder).await?;
    let leases = buyer.broker();
    let leases = leases.job_leases(buyer.account(), &record.ids).await;
    let leases = leases.map_err(unreachable_market)?;
    match output {
        Output::Json => show::json(&show::jobs::to_json(&record, &leases)),
        Output::Text => show::jobs::print_one(&record, &leases),
    }
    Ok(())
}

/// Goes on with a job.
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

fn command(record: &Record) -> Result<SubmitArgs, Failure> {
    serde_json::from_value(record.command.clone()).map_err(|error| {
        let cause = format!("job {} was submitted by another souk: {error}", record.name);
        Failure::new(Kind::State, cause, "submit it again")
    })
}
