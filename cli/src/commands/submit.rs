//! `souk plan` and `souk submit`: plans a job (a model of the user with its inputs), leases devices
//! for it, runs it, and writes the answers and receipts to files.

pub mod audit;
mod bid;
mod failures;
mod request_files;
mod submit_run;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_folder::config::{DirectChoice, Traffic};
use souk_network::protocols::regions;
use souk_node::buyer::job::{EmulatedDevices, Job, Limits, Priority};
use souk_node::buyer::pinned_plan::PinnedPlan;
use souk_node::buyer::plan_json;
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::buyer::{Buyer, JobEvent, JobResult, Journal, Quote, Submission};
use souk_node::market::{
    AccountKey, Credits, EXCLUDED_MAX, Millis, Permille, Price, Receipt, Regions,
};
use souk_node::memory::Tensor;
use tokio::sync::mpsc;

use super::providers;
use crate::args::{self, JobArgs, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, join_as_buyer, join_within};
use crate::show::balance::Balances;
use crate::show::times::{JobStopwatch, JobTimes};
use crate::show::transfer::{self, TransferLine};
use crate::{files, show};
pub use failures::{from_ended, from_import, from_quote, journal_failure};
use failures::{leases_left_failure, with_held};
use request_files::RequestFiles;
use souk_node::buyer::job_files::{JobFiles, TimedEvent};
use submit_run::{PlanView, SubmitRun};

/// Progress events that can wait for printing.
const PROGRESS_MAX: usize = 256;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

pub use souk_node::buyer::journal::JOBS_FOLDER;
pub use souk_node::buyer::pinned_plan::PLANS_FOLDER;

/// Shows a plan and its alternatives.
pub async fn show_plan(folder: &Path, output: Output, args: &JobArgs) -> Outcome {
    let legend = ValueLabels::from_model(files::read(&args.model)?);
    let mut inputs = files::read_inputs(&args.input, &legend)?;
    files::prepare_texts(&mut inputs, &legend)?;
    let mut job = read(args, inputs)?;
    let buyer = join_as_buyer(folder).await?;
    job.limits.excluded = resolve_excluded(&buyer, args).await?;
    let quote = buyer.quote_job(&job).await.map_err(from_quote)?;
    let alternatives = quote.find_alternatives(&job.limits).map_err(from_quote)?;
    let subject = buyer.job_subject(&job, &quote).map_err(from_quote)?;
    let shown = PinnedPlan::new(&quote, subject);
    shown
        .save_plan(&folder.join(PLANS_FOLDER))
        .map_err(from_config)?;
    match output {
        Output::Json => {
            show::print_json(&plan_json::with_choice(&quote, &job.limits, &alternatives));
        }
        Output::Text => {
            let text = show::plan::describe_plan(&quote, &job.limits);
            text.iter().for_each(|line| show::print_line(line));
            show::plan::print_choice(&quote, &alternatives);
        }
    }
    Ok(())
}

/// Buys leases, runs each request, writes the answers, and pays.
pub async fn submit_job(folder: &Path, output: Output, args: &SubmitArgs) -> Outcome {
    let files = RequestFiles::read(args)?;
    let asking = SubmitRun::new(args, output, &files, BTreeMap::new());
    let mut job = asking.remaining_job()?;
    audit::check_job(args, &job)?;
    // This comes before any payment: souk must not buy outputs that it cannot store.
    files::prepare_folder(&args.out)?;
    let buyer = join_within(folder, traffic_limits(args)).await?;
    job.limits.excluded = resolve_excluded(&buyer, &args.job).await?;
    let (quote, own) = bid::quote_with_bid(&buyer, &mut job, args).await?;
    files.check_indices(&quote)?;
    hold_to_plan(folder, &buyer, &job, &quote, args)?;
    let (jobs, command) = journal_command(folder, args);
    let journal = buyer.create_journal(&jobs).map_err(journal_failure)?;
    let name = journal.name().to_owned();
    let mut shown = PlanView {
        plan: plan_json::to_json(&quote),
        planned: Some(JobTimes::from_quote(&quote)),
        names: show::provider_names(&quote.listings),
        kept: JobFiles::new(&jobs, &name),
    };
    let text = show::plan::describe_plan(&quote, &job.limits);
    shown.store_plan(
        text.iter()
            .cloned()
            .chain(show::plan::describe_unsuitable(&quote)),
    );
    let before = Balances::read_accounts(buyer.broker(), quote_parties(&buyer, &quote)).await?;
    if output == Output::Text {
        text.iter().for_each(|line| show::print_notice(line));
        show::print_notice(&format!("  job {name}{}", files.how_many()));
    } else if show::is_by_line() {
        show::print_json(&json!({ "job": name, "event": "planned", "plan": shown.plan }));
    }
    if let Some(own) = own {
        let (id, kept) = (journal.job(), &shown.kept);
        let lease = bid::buy_with_bid(&buyer, &job, id, kept, &quote, own).await?;
        // The lease can be from a provider that the plan did not include.
        let names = providers::of_leases(buyer.broker(), &[lease]).await?;
        shown.names.extend(names);
    }
    let journal = Some((journal, &command));
    let running = |submission| {
        let submission = Submission {
            is_bought: own.is_some(),
            ..submission
        };
        buyer.submit_job(&job, quote, journal, submission)
    };
    let came = asking.run(&buyer, &shown, running).await;
    asking
        .deliver_results(&buyer, &name, came, shown, before)
        .await
}

/// Resumes a job. It will not repeat requests whose answers are in their files.
pub async fn resume_job(
    folder: &Path,
    output: Output,
    (args, journal): (&SubmitArgs, Journal),
) -> Outcome {
    let files = RequestFiles::read(args)?;
    files::prepare_folder(&args.out)?;
    let kept = files.find_stored_answers(args, &journal);
    let asking = SubmitRun::new(args, output, &files, kept);
    let mut job = asking.remaining_job()?;
    let buyer = join_within(folder, traffic_limits(args)).await?;
    job.limits.excluded = resolve_excluded(&buyer, &args.job).await?;
    let before = Balances::read_accounts(buyer.broker(), vec![buyer.account()]).await?;
    let name = journal.name().to_owned();
    let shown = PlanView {
        plan: Value::Null,
        planned: None,
        names: journal
            .job_record()
            .map(|record| show::provider_names(&record.providers))
            .unwrap_or_default(),
        kept: JobFiles::new(&folder.join(JOBS_FOLDER), &name),
    };
    shown.kept.clear_cancel_request();
    if output == Output::Text {
        show::print_notice(&format!(
            "resuming job {name}{}",
            asking.how_many_are_kept()
        ));
    }
    let all = (files.input_ids(), asking.total_requests());
    let running = |submission| buyer.resume_job(&job, journal, all, submission);
    let came = asking.run(&buyer, &shown, running).await;
    asking
        .deliver_results(&buyer, &name, came, shown, before)
        .await
}

/// Returns the limits of a submission's network traffic.
fn traffic_limits(args: &SubmitArgs) -> Traffic {
    Traffic {
        direct: if args.no_direct {
            DirectChoice::Off
        } else {
            DirectChoice::Auto
        },
        upload_bytes_per_second: args.upload_limit,
        download_bytes_per_second: args.download_limit,
    }
}

/// Returns the buyer and the providers of a quote.
fn quote_parties(buyer: &Buyer, quote: &Quote) -> Vec<AccountKey> {
    let planned = quote
        .plan
        .used_offers()
        .into_iter()
        .chain(quote.seconds.iter().copied());
    let mut parties: Vec<_> = planned
        .map(|offer| quote.listings[offer].provider)
        .collect();
    parties.insert(0, buyer.account());
    parties
}

/// Fails if `--check-plan` names a plan and the market has since moved beyond the limit.
fn hold_to_plan(
    folder: &Path,
    buyer: &Buyer,
    job: &Job,
    quote: &Quote,
    args: &SubmitArgs,
) -> Outcome {
    let Some(wanted) = &args.check_plan else {
        return Ok(());
    };
    if !(args.slippage.is_finite() && args.slippage >= 0.0) {
        let cause = format!("--slippage {} is not a percentage", args.slippage);
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give a number from 0, such as 5",
        ));
    }
    let shown = PinnedPlan::new(quote, buyer.job_subject(job, quote).map_err(from_quote)?);
    let checked = shown.check_against_stored(&folder.join(PLANS_FOLDER), wanted, args.slippage);
    checked.map_err(|moved| {
        let hint = "run `souk plan` again and give its hash, or allow more with --slippage";
        Failure::new(Kind::NoPlan, moved, hint).with([("reason", "plan_moved".into())])
    })
}

/// Runs a quoted job and shows its progress.
pub async fn run(
    buyer: &Buyer,
    job: &Job,
    quote: Quote,
    output: Output,
) -> Result<JobResult, Failure> {
    let names = show::provider_names(&quote.listings);
    let (progress, told) = mpsc::channel(PROGRESS_MAX);
    let running = buyer.run(job, quote, progress);
    let (ended, _) = tokio::join!(running, report_progress(buyer, told, &names, output, None));
    ended.map_err(|ended| from_ended(&ended, None))
}

/// Shows the progress of a job and measures its times.
async fn report_progress(
    buyer: &Buyer,
    mut told: mpsc::Receiver<JobEvent>,
    names: &show::Names,
    output: Output,
    kept: Option<&JobFiles>,
) -> JobTimes {
    let mut watch = JobStopwatch::start();
    // An earlier process may have begun the job.
    let mut number = kept.map_or(0, |kept| kept.read_events().len());
    let mut sending = TransferLine::new(output == Output::Text, buyer.sent_bytes());
    let mut ticks = tokio::time::interval(transfer::PERIOD);
    loop {
        let event = tokio::select! {
            event = told.recv() => event,
            _ = ticks.tick() => {
                sending.show_progress(buyer.sent_bytes());
                continue;
            }
        };
        sending.clear();
        let Some(event) = event else { break };
        watch.on_event(&event, Instant::now());
        let happened = TimedEvent::new_now(event);
        if let Some(kept) = kept {
            kept.add(&happened);
        }
        match output {
            Output::Text => show::progress::print_event(&happened.event, names),
            Output::Json if show::is_by_line() => show::print_json(&happened.describe(number)),
            Output::Json => {}
        }
        number += 1;
    }
    watch.into_times(Instant::now())
}

/// Returns the folder of the journals, and the command in the form that they store.
fn journal_command(folder: &Path, args: &SubmitArgs) -> (PathBuf, Value) {
    let jobs = folder.join(JOBS_FOLDER);
    let command = serde_json::to_value(with_absolute_paths(args)).unwrap_or_default();
    (std::path::absolute(&jobs).unwrap_or(jobs), command)
}

/// Returns the same command with absolute paths.
fn with_absolute_paths(args: &SubmitArgs) -> SubmitArgs {
    let path = |path: &Path| std::path::absolute(path).unwrap_or(path.to_owned());
    let input = |given: &String| match given.split_once('=') {
        Some((name, file)) => format!("{name}={}", path(Path::new(file)).display()),
        None => path(Path::new(given)).display().to_string(),
    };
    let mut args = args.clone();
    args.job.model = path(&args.job.model);
    args.job.input = args.job.input.iter().map(input).collect();
    args.stream = args.stream.as_ref().map(input);
    args.out = path(&args.out);
    args.trace = args.trace.as_deref().map(path);
    args
}

/// Writes each receipt of a job into the folder of its outputs.
pub fn write_receipts(out: &Path, finished: &JobResult) -> Result<Vec<PathBuf>, Failure> {
    write_each(out, &finished.receipts)
}

/// Writes receipts into a folder.
pub fn write_each(out: &Path, receipts: &[Receipt]) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for receipt in receipts {
        let path = out.join(format!("receipt-{}.json", receipt.body.lease));
        let text = serde_json::to_vec_pretty(receipt).map_err(|error| {
            Failure::new(
                Kind::Unexpected,
                format!("a receipt cannot be written: {error}"),
                "",
            )
        })?;
        files::write(&path, &text)?;
        written.push(path);
    }
    Ok(written)
}

/// Returns the files of a submission, and its job with the inputs of the first request.
pub fn read_request_files(args: &SubmitArgs) -> Result<(RequestFiles, Job), Failure> {
    let files = RequestFiles::read(args)?;
    let job = SubmitRun::new(args, Output::Json, &files, BTreeMap::new()).remaining_job()?;
    Ok((files, job))
}

/// Returns the job of a submission.
fn build_job(args: &SubmitArgs, inputs: BTreeMap<String, Tensor>) -> Result<Job, Failure> {
    let mut job = read(&args.job, inputs)?;
    job.limits.priority = Some(match args.priority {
        args::Priority::Low => Priority::Low,
        args::Priority::Normal => Priority::Normal,
        args::Priority::High => Priority::High,
    });
    Ok(job)
}

/// Returns the job that the arguments describe, with these inputs.
fn read(args: &JobArgs, inputs: BTreeMap<String, Tensor>) -> Result<Job, Failure> {
    Ok(Job {
        model: files::read(&args.model)?,
        folder: Some(args.model.parent().map(Path::to_owned).unwrap_or_default()),
        inputs,
        limits: job_limits(args)?,
    })
}

fn job_limits(args: &JobArgs) -> Result<Limits, Failure> {
    let budget = args
        .budget
        .map(|credits| to_micro_credits("--budget", credits))
        .transpose()?;
    let price_max = args
        .max_price
        .map(|credits| to_micro_credits("--max-price", credits))
        .transpose()?;
    Ok(Limits {
        budget: budget.map(Credits),
        price_max: price_max.map(Price),
        providers_min: args.min_providers,
        // The buyer holds the inputs of a whole model, and those of its parts only their providers.
        providers_max: if args.exact { 1 } else { args.max_providers },
        // The caller must fill this in, because that needs the market.
        excluded: Vec::new(),
        emulated: EmulatedDevices::by_flags(args.emulated, args.real)
            .map_err(|error| Failure::new(Kind::Input, error, ""))?,
        devices: args.device.clone(),
        backend: args.backend,
        exact: args.exact,
        objective: args.prefer,
        deadline: args
            .deadline
            .map(|given| parse_seconds("--deadline", given))
            .transpose()?,
        notice_min: Millis(parse_seconds("--min-notice", args.min_notice)?.as_millis() as u64),
        regions: wanted_regions(&args.region)?,
        reputation_min: Permille(args.min_reputation),
        copies: usize::from(args.verify),
        spot: args.spot,
        time_max: parse_seconds("--max-time", args.max_time)?,
        wait: parse_seconds("--wait", args.wait)?,
        requests: 1,
        sequences: 0,
        request_time: None,
        priority: None,
    })
}

/// Parses regions by name; no names stand for anywhere.
pub fn wanted_regions(names: &[String]) -> Result<Regions, Failure> {
    let mut all = Regions(0);
    for name in names {
        let found = regions::find_regions(name).ok_or_else(|| {
            let cause = format!("there is no region \"{name}\"");
            let hint = format!("the regions are {}", regions::NAMES.join(", "));
            Failure::new(Kind::Input, cause, hint)
        })?;
        all.0 |= found.0;
    }
    Ok(all)
}

fn parse_seconds(option: &str, given: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(given).map_err(|error| {
        let cause = format!("{option} {given} is not a time: {error}");
        Failure::new(Kind::Input, cause, "give seconds from 0")
    })
}

pub fn to_micro_credits(option: &str, credits: f64) -> Result<u64, Failure> {
    let micro = credits * MICRO;
    if (0.0..=u64::MAX as f64).contains(&micro) {
        return Ok(micro as u64);
    }
    let cause = format!("{option} {credits} is not an amount of credits");
    Err(Failure::new(
        Kind::Input,
        cause,
        "give a number from 0, such as 0.5",
    ))
}

/// Returns the excluded providers: the arguments name each by account, by name, or by the beginning
/// of either.
async fn resolve_excluded(buyer: &Buyer, args: &JobArgs) -> Result<Vec<AccountKey>, Failure> {
    let named = &args.exclude;
    if named.len() > EXCLUDED_MAX {
        let cause = format!(
            "{} providers are excluded, {EXCLUDED_MAX} can be",
            named.len()
        );
        let hint = "name fewer, or use --min-reputation";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    providers::resolve_providers(buyer.broker(), named).await
}
