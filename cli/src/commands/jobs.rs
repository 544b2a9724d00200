//! `souk job …`: what was submitted from a folder, how it stands, and going on with it.

use std::collections::BTreeMap;
use std::path::Path;

use souk_node::buyer::Journal;
use souk_node::buyer::journal::{Record, State};

use super::job::{self, JOBS_FOLDER};
use crate::args::{JobCommand, Output, SubmitArgs};
use crate::commands::job::stream;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{join, unreachable_market};
use crate::show::balance::Balances;
use crate::{files, show};

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
    let journal = open(folder, name)?;
    let record = journal.record();
    let buyer = join(folder).await?;
    let rounds = record.rounds.iter().map(|round| round.job);
    let jobs: Vec<_> = rounds.chain(record.others.iter().copied()).collect();
    let leases = buyer.broker().job_leases(buyer.account(), &jobs).await;
    let leases = leases.map_err(unreachable_market)?;
    let answers = journal.answers().map_err(job::unreadable)?.len();
    match output {
        Output::Json => {
            let job = show::jobs::to_json(record, &leases);
            show::json(&show::with(job, [("answers", answers.into())]));
        }
        Output::Text => {
            show::jobs::print_one(record, &leases);
            if answers > 0 {
                show::say(&format!("  {answers} requests answered"));
            }
        }
    }
    Ok(())
}

/// Goes on with a job.
async fn resume(folder: &Path, output: Output, name: &str) -> Outcome {
    let mut journal = open(folder, name)?;
    let args = command(journal.record())?;
    if journal.record().state == State::Done {
        let cause = format!(
            "job {} is done; its outputs are in {}",
            name,
            args.out.display()
        );
        return Err(Failure::new(
            Kind::State,
            cause,
            "submit it again to run it again",
        ));
    }
    if let Some(from) = args.stream.clone() {
        return stream::resume(folder, output, &args, (&from, journal)).await;
    }
    let job = job::wanted(&args)?;
    files::prepare(&args.out)?;
    let buyer = join(folder).await?;
    let before = Balances::of(buyer.broker(), vec![buyer.account()]).await?;
    if output == Output::Text {
        show::say(&format!("resuming job {}", journal.record().name));
    }
    let (kept, names) = (&mut journal, BTreeMap::new());
    let ended = job::watched(&buyer, &names, output, |progress| {
        buyer.resume(&job, kept, progress)
    });
    let ended = ended.await;
    let finished = job::conclude(&mut journal, ended)?;
    job::deliver(
        &buyer,
        &args,
        output,
        &finished,
        serde_json::Value::Null,
        before,
    )
    .await?;
    job::over(&mut journal, State::Done);
    Ok(())
}

fn command(record: &Record) -> Result<SubmitArgs, Failure> {
    serde_json::from_value(record.command.clone()).map_err(|error| {
        let cause = format!("job {} was submitted by another souk: {error}", record.name);
        Failure::new(Kind::State, cause, "submit it again")
    })
}

fn open(folder: &Path, name: &str) -> Result<Journal, Failure> {
    Journal::open(&folder.join(JOBS_FOLDER), name).map_err(job::unreadable)
}
