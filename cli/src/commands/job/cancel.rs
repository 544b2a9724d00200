//! `souk job cancel`: ends a job, even if another process runs it or its process has died.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use souk_node::buyer::Journal;
use souk_node::buyer::journal::{JobState, Record};
use souk_node::buyer::lease_cancellation::end_leases;
use souk_node::client::trader::Trader;
use souk_node::market::Lease;

use super::{JOBS_FOLDER, find_job};
use crate::args::Output;
use crate::commands::account::{from_trade, own_trader};
use crate::commands::submit;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::unreachable_market;
use crate::{show, suggested_command};

/// Pause between two checks whether the process that runs the job has ended.
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// Ends a job and reports its cost, the credits that it still holds, and when they return.
pub async fn cancel_job(folder: &Path, output: Output, name: &str, wait: Duration) -> Outcome {
    let jobs = folder.join(JOBS_FOLDER);
    let (record, files) = find_job(folder, name)?;
    let name = record.name;
    if record.state == JobState::Done {
        let cause = format!("job {name} is done: there is nothing to end");
        let result = suggested_command::market_command(&format!("job result {name}"));
        return Err(Failure::new(
            Kind::State,
            cause,
            format!("its outputs: {result}"),
        ));
    }
    let is_busy = Journal::is_busy(&jobs, &name);
    if is_busy {
        files.request_cancel().map_err(submit::journal_failure)?;
        let until = Instant::now() + wait;
        while Journal::is_busy(&jobs, &name) {
            if Instant::now() > until {
                let cause = format!("job {name} has not ended within {} s", wait.as_secs());
                let hint = "its process knows: wait longer with --wait, or end the process";
                return Err(Failure::new(Kind::Job, cause, hint));
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }
    let (record, _) = find_job(folder, &name)?;
    let trader = own_trader(folder).await?;
    let ended = end_leases(&trader, &record.ids).await.map_err(from_trade)?;
    let mut ended_by = None;
    if record.state == JobState::Running {
        let journal = Journal::open_by_name(&jobs, &name).map_err(submit::journal_failure)?;
        journal.record_cancel().map_err(submit::journal_failure)?;
        ended_by = Some("this process");
    } else if is_busy && record.state == JobState::Interrupted {
        ended_by = Some("the process that ran it");
    }
    let (record, _) = find_job(folder, &name)?;
    let leases = job_leases(&trader, &record).await?;
    print_cancelled(output, &record, &leases, ended_by, ended);
    Ok(())
}

async fn job_leases(trader: &Trader, record: &Record) -> Result<Vec<Lease>, Failure> {
    let leases = trader
        .broker()
        .job_leases(trader.account(), &record.ids)
        .await;
    leases.map_err(unreachable_market)
}

/// Prints the job, which another process or this one ended, or which had ended by itself.
fn print_cancelled(
    output: Output,
    record: &Record,
    leases: &[Lease],
    ended_by: Option<&str>,
    ended: u32,
) {
    let sum = |part: fn(&Lease) -> u64| leases.iter().map(part).sum::<u64>();
    let (spent, held) = (sum(|lease| lease.cost.0), sum(|lease| lease.escrow.0));
    match output {
        Output::Json => show::print_json(&show::with(
            json!(record.state),
            [
                ("job", json!(record.name)),
                ("leases_ended", json!(ended)),
                ("spent", json!(spent)),
                ("escrow", json!(held)),
                ("escrow_by_lease", show::held_credits::to_json(leases)),
            ],
        )),
        Output::Text => {
            let state = show::jobs::describe_state(&record.state);
            let ended_by = ended_by.map(|by| format!(", ended by {by}"));
            let ended_by = ended_by.unwrap_or_default();
            show::print_line(&format!("job {}: {state}{ended_by}", record.name));
            let (spent, held) = (show::format_credits(spent), show::format_credits(held));
            show::print_line(&format!("  {spent} credits spent, {held} held"));
            let lines = show::held_credits::describe_leases(leases);
            lines
                .iter()
                .for_each(|line| show::print_line(&format!("  {line}")));
        }
    }
}
