//! `souk plan` and `souk submit`: a model of the user's own, from files to files.

pub mod stream;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use souk_node::buyer::checked::Shown;
use souk_node::buyer::job::{Job, Limits, Priority};
use souk_node::buyer::journal::State;
use souk_node::buyer::{
    Buyer, Ended, Finished, JobError, Journal, JournalError, Progress, Quote, QuoteError, Spending,
};
use souk_node::folder::config::{DirectChoice, Traffic};
use souk_node::market::{
    AccountKey, Credits, EXCLUDED_MAX, Millis, Permille, Price, Region, Regions,
};
use souk_node::scheduler::graph::ImportError;
use tokio::sync::mpsc;

use crate::args::{self, JobArgs, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, join, join_within, unreachable_market};
use crate::show::balance::Balances;
use crate::stop::Requests;
use crate::{files, show};

/// Progress that may wait to be printed.
const PROGRESS_MAX: usize = 256;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

/// Where shown plans are remembered, in the folder of the market.
const PLANS_FOLDER: &str = "buyer/plans";

/// Where jobs keep their journals.
pub const JOBS_FOLDER: &str = "buyer/jobs";

/// Shows a plan and what else there is to choose from.
pub async fn plan(folder: &Path, output: Output, args: &JobArgs) -> Outcome {
    let job = read(args)?;
    let buyer = join(folder).await?;
    let quote = buyer.quote(&job).await.map_err(from_quote)?;
    let alternatives = quote.alternatives(&job.limits).map_err(from_quote)?;
    let subject = buyer.subject(&job, &quote).map_err(from_quote)?;
    let shown = Shown::new(&quote, subject);
    shown
        .remember(&folder.join(PLANS_FOLDER))
        .map_err(from_config)?;
    match output {
        Output::Json => {
            let plan = show::plan::to_json(&quote);
            show::json(&show::with(
                plan,
                show::plan::choice_json(&quote, &alternatives),
            ));
        }
        Output::Text => {
            show::plan::print(&quote);
            show::plan::print_choice(&quote, &alternatives);
        }
    }
    Ok(())
}

/// Buys, runs, fetches and pays.
pub async fn submit(folder: &Path, output: Output, args: &SubmitArgs) -> Outcome {
    if let Some(from) = &args.stream {
        return stream::submit(folder, output, args, from).await;
    }
    let job = wanted(args)?;
    // Before anything is paid for: outputs that cannot be kept are not worth buying.
    files::prepare(&args.out)?;
    let buyer = join_within(folder, traffic(args)).await?;
    let quote = buyer.quote(&job).await.map_err(from_quote)?;
    hold_to_plan(folder, &buyer, &job, &quote, args)?;
    let (jobs, command) = remembered(folder, args);
    let journal = buyer.journal(&jobs, &job, &quote, command);
    let mut journal = journal.map_err(|error| from_job(&error))?;
    let shown = Shot {
        plan: show::plan::to_json(&quote),
        names: show::names(&quote),
    };
    let before = Balances::of(buyer.broker(), parties(&buyer, &quote)).await?;
    if output == Output::Text {
        show::plan::print(&quote);
        show::say(&format!("  job {}", journal.record().name));
    }
    let kept = Some(&mut journal);
    let ended = watched(&buyer, &shown.names, output, |progress| {
        buyer.run(&job, quote, kept, progress)
    });
    let ended = ended.await;
    let finished = conclude(&mut journal, ended)?;
    deliver(&buyer, args, output, &finished, shown.plan, before).await?;
    over(&mut journal, State::Done);
    Ok(())
}

/// What a submission may use of the network.
pub fn traffic(args: &SubmitArgs) -> Traffic {
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

/// What of a quote is shown after the quote is gone.
struct Shot {
    plan: serde_json::Value,
    names: BTreeMap<AccountKey, String>,
}

/// The buyer and the providers of a quote.
pub fn parties(buyer: &Buyer, quote: &Quote) -> Vec<AccountKey> {
    let planned = quote
        .plan
        .offers()
        .into_iter()
        .chain(quote.seconds.iter().copied());
    let mut parties: Vec<_> = planned
        .map(|offer| quote.listings[offer].provider)
        .collect();
    parties.insert(0, buyer.account());
    parties
}

/// Refuses where `--check-plan` names a plan and the book has moved beyond the limit since.
pub fn hold_to_plan(
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
        let cause = format!("--slippage {} is no percentage", args.slippage);
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give a number from 0, such as 5",
        ));
    }
    let shown = Shown::new(quote, buyer.subject(job, quote).map_err(from_quote)?);
    let checked = shown.check(&folder.join(PLANS_FOLDER), wanted, args.slippage);
    checked.map_err(|moved| {
        let hint = "look at `souk plan` again and give its hash, or allow more with --slippage";
        Failure::new(Kind::NoPlan, moved, hint).with([("reason", "plan_moved".into())])
    })
}

/// Writes outputs and receipts, and shows what was done.
pub async fn deliver(
    buyer: &Buyer,
    args: &SubmitArgs,
    output: Output,
    finished: &Finished,
    plan: serde_json::Value,
    before: Balances,
) -> Outcome {
    let written = files::write_outputs(&args.out, &finished.outputs, args.format)?;
    let receipts = write_receipts(&args.out, finished)?;
    if let Some(path) = &args.trace {
        files::write(path, finished.timeline.to_trace_json().as_bytes())?;
    }
    let after = before.after(buyer.broker(), finished).await?;
    match output {
        Output::Json => {
            let job = show::job::to_json(finished, plan, &written, &receipts);
            let balances = [("before", before.to_json()), ("after", after.to_json())];
            show::json(&show::with(job, balances));
        }
        Output::Text => show::job::print(finished, &written, &receipts, &before, &after),
    }
    Ok(())
}

/// Runs a quoted job and shows how it goes.
pub async fn run(
    buyer: &Buyer,
    job: &Job,
    quote: Quote,
    output: Output,
) -> Result<Finished, Failure> {
    let names = show::names(&quote);
    let ended = watched(buyer, &names, output, |progress| {
        buyer.run(job, quote, None, progress)
    });
    match ended.await {
        Ok(finished) => Ok(finished),
        Err(Stopped::Ended(ended)) => Err(from_ended(&ended)),
        Err(Stopped::Interrupted(failure)) => Err(failure),
    }
}

/// Why a job that was watched gave nothing.
pub enum Stopped {
    /// It ended.
    Ended(Box<Ended>),
    /// The user stopped it.
    Interrupted(Failure),
}

/// Runs a job, shows how it goes, and ends its leases when the user stops it.
pub async fn watched<Running>(
    buyer: &Buyer,
    names: &BTreeMap<AccountKey, String>,
    output: Output,
    run: impl FnOnce(mpsc::Sender<Progress>) -> Running,
) -> Result<Finished, Stopped>
where
    Running: Future<Output = Result<Finished, Box<Ended>>>,
{
    let (progress, mut told) = mpsc::channel::<Progress>(PROGRESS_MAX);
    let telling = async {
        while let Some(progress) = told.recv().await {
            if output == Output::Text {
                show::progress::print(&progress, names);
            }
        }
    };
    let running = run(progress);
    let mut requests = Requests::new();
    tokio::select! {
        (finished, ()) = async { tokio::join!(running, telling) } => {
            return finished.map_err(Stopped::Ended);
        }
        () = requests.next() => {}
    }
    // A reader that has gone away is no reason not to end them.
    let _ = writeln!(
        std::io::stderr(),
        "stopping: the job's leases are ended; asked again, they are left to run out"
    );
    let failure = tokio::select! {
        failure = interrupted(buyer) => failure,
        () = requests.next() => left(&"asked again before they were ended"),
    };
    Err(Stopped::Interrupted(failure))
}

const RESUME: &str = "go on with `souk job resume`, or submit the job again";

/// The job was left with its leases.
fn left(why: &dyn std::fmt::Display) -> Failure {
    let cause = format!("interrupted; its leases run out by themselves: {why}");
    let reason = [("reason", "interrupted".into())];
    Failure::new(Kind::Interrupted, cause, RESUME).with(reason)
}

/// Ends the leases at once: what they hold comes back when their providers have settled.
async fn interrupted(buyer: &Buyer) -> Failure {
    match buyer.release().await {
        Ok((leases, spending)) => {
            let cause = format!("interrupted: {leases} lease(s) ended at once");
            let facts = [
                ("reason", "interrupted".into()),
                ("leases_ended", leases.into()),
            ];
            Failure::new(Kind::Interrupted, cause, RESUME)
                .with(facts)
                .with(cost(&spending))
        }
        Err(error) => left(&error),
    }
}

fn cost(spending: &Spending) -> [(&'static str, serde_json::Value); 2] {
    [
        ("spent_micro_credits", spending.spent.0.into()),
        ("held_micro_credits", spending.held.0.into()),
    ]
}

/// Writes into the journal how the job ended, if it did not end well.
pub fn conclude(
    journal: &mut Journal,
    ended: Result<Finished, Stopped>,
) -> Result<Finished, Failure> {
    let name = [("job", journal.record().name.clone().into())];
    match ended {
        Ok(finished) => Ok(finished),
        Err(Stopped::Interrupted(failure)) => {
            over(journal, State::Interrupted);
            Err(failure.with(name))
        }
        Err(Stopped::Ended(ended)) => {
            let (code, cause) = (ended.error.code().to_owned(), ended.error.to_string());
            over(journal, State::Failed { code, cause });
            Err(from_ended(&ended).with(name))
        }
    }
}

/// The job is over either way; a journal that cannot say so is resumed in vain, no more.
pub fn over(journal: &mut Journal, state: State) {
    if let Err(error) = journal.conclude(state) {
        tracing::warn!(%error, "the job's journal was not closed");
    }
}

/// Where journals are kept, and a command as they keep it.
pub fn remembered(folder: &Path, args: &SubmitArgs) -> (PathBuf, serde_json::Value) {
    let jobs = folder.join(JOBS_FOLDER);
    let command = serde_json::to_value(absolute(args)).unwrap_or_default();
    (std::path::absolute(&jobs).unwrap_or(jobs), command)
}

/// The same command with paths that hold in any folder.
fn absolute(args: &SubmitArgs) -> SubmitArgs {
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

/// Writes each receipt beside the outputs.
pub fn write_receipts(out: &Path, finished: &Finished) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for receipt in &finished.receipts {
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

/// The job of a submission.
pub fn wanted(args: &SubmitArgs) -> Result<Job, Failure> {
    let mut job = read(&args.job)?;
    job.limits.priority = Some(match args.priority {
        args::Priority::Low => Priority::Low,
        args::Priority::Normal => Priority::Normal,
        args::Priority::High => Priority::High,
    });
    Ok(job)
}

/// The job that the arguments describe.
fn read(args: &JobArgs) -> Result<Job, Failure> {
    Ok(Job {
        model: files::read(&args.model)?,
        folder: Some(args.model.parent().map(Path::to_owned).unwrap_or_default()),
        inputs: files::read_inputs(&args.input)?,
        limits: limits(args)?,
    })
}

fn limits(args: &JobArgs) -> Result<Limits, Failure> {
    let budget = args
        .budget
        .map(|credits| micro("--budget", credits))
        .transpose()?;
    let price_max = args
        .max_price
        .map(|credits| micro("--max-price", credits))
        .transpose()?;
    let excluded: Result<Vec<_>, Failure> = args.exclude.iter().map(|text| account(text)).collect();
    let excluded = excluded?;
    if excluded.len() > EXCLUDED_MAX {
        let cause = format!(
            "{} providers are excluded, {EXCLUDED_MAX} can be",
            excluded.len()
        );
        return Err(Failure::new(
            Kind::Input,
            cause,
            "name fewer, or use --min-reputation",
        ));
    }
    Ok(Limits {
        budget: budget.map(Credits),
        price_max: price_max.map(Price),
        providers_min: args.min_providers,
        providers_max: args.max_providers,
        excluded,
        real_only: args.real,
        devices: args.device.clone(),
        backend: args.backend,
        objective: args.prefer,
        deadline: args
            .deadline
            .map(|given| seconds("--deadline", given))
            .transpose()?,
        notice_min: Millis(seconds("--min-notice", args.min_notice)?.as_millis() as u64),
        regions: Regions::of(&args.region.iter().map(|n| Region(*n)).collect::<Vec<_>>()),
        reputation_min: Permille(args.min_reputation),
        copies: usize::from(args.verify),
        spot: args.spot,
        wait: seconds("--wait", args.wait)?,
        requests: 1,
        priority: None,
    })
}

fn seconds(option: &str, given: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(given).map_err(|error| {
        let cause = format!("{option} {given} is no time: {error}");
        Failure::new(Kind::Input, cause, "give seconds from 0")
    })
}

fn micro(option: &str, credits: f64) -> Result<u64, Failure> {
    let micro = credits * MICRO;
    if (0.0..=u64::MAX as f64).contains(&micro) {
        return Ok(micro as u64);
    }
    let cause = format!("{option} {credits} is no amount of credits");
    Err(Failure::new(
        Kind::Input,
        cause,
        "give a number from 0, such as 0.5",
    ))
}

fn account(text: &str) -> Result<AccountKey, Failure> {
    text.parse().map_err(|_| {
        let cause = format!("\"{text}\" is no account");
        Failure::new(
            Kind::Input,
            cause,
            "an account is 64 hexadecimal digits; see `souk book`",
        )
    })
}

/// A failure from a journal.
pub fn unreadable(error: JournalError) -> Failure {
    let hint = match error {
        JournalError::Unknown { .. } => "`souk job list` shows the jobs of this folder",
        _ => "restore the folder from a copy, or submit the job again",
    };
    Failure::new(Kind::State, error, hint)
}

/// A failure from a model or its inputs.
pub fn from_import(error: ImportError) -> Failure {
    let hint = match &error {
        ImportError::Decode(_) => "give an ONNX model, as torch.onnx.export writes it",
        ImportError::UnknownInput { .. } | ImportError::MissingInput { .. } => {
            "give each of the model's inputs once with -i NAME=FILE"
        }
        ImportError::InputType { .. } => "convert the array with numpy's astype and save it again",
        ImportError::InputShape { .. } | ImportError::SymbolConflict { .. } => {
            "reshape the array, or export the model with dynamic axes"
        }
        ImportError::ExternalOutside { .. } | ImportError::ExternalMissing { .. } => {
            "keep the model's weight files in the folder of the model"
        }
        _ => "check the model with onnx.checker.check_model",
    };
    Failure::new(Kind::Input, error, hint)
}

/// A failure to plan.
pub fn from_quote(error: QuoteError) -> Failure {
    match error {
        QuoteError::Import(error) => from_import(error),
        QuoteError::Broker(error) => unreachable_market(error),
        QuoteError::Unsupported(_) => {
            let hint = "export the model with another opset, or without that operator";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::NoneEligible { .. } => {
            let hint = "loosen --max-price, --device, --backend, --exclude, --real, --region, \
                        --min-reputation or --min-notice; `souk book` shows what is on offer";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Budget { .. } => Failure::new(
            Kind::NoPlan,
            error,
            "raise --budget, or try --prefer cheapest",
        ),
        QuoteError::Escrow { .. } => Failure::new(
            Kind::NoPlan,
            error,
            "raise --budget: only what is used is paid, but a lease holds what it could use",
        ),
        QuoteError::Behind { .. } => {
            let hint = "give it more time with --wait, or a higher --priority";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Plan(_) => {
            let hint = "loosen the limits; `souk book` shows what is on offer";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Cut(_) => Failure::new(
            Kind::NoPlan,
            error,
            "try --max-providers 1, which cuts nothing",
        ),
    }
}

/// A failure to run, with what it has cost.
pub fn from_ended(ended: &Ended) -> Failure {
    let facts = ended.spending.as_ref().map(cost).into_iter().flatten();
    let failure = from_job(&ended.error).with(facts);
    match &ended.before[..] {
        [] => failure,
        before => failure.with([("failed_before", before.into())]),
    }
}

/// A failure to run.
pub fn from_job(error: &JobError) -> Failure {
    let (kind, hint) = match error {
        JobError::Quote(_) | JobError::Unsold(_) | JobError::Escrow { .. } => (
            Kind::NoPlan,
            "the book or the budget left allows no more; loosen a limit",
        ),
        JobError::Broker(_) => (
            Kind::Network,
            "is the market up? `souk testnet up` starts the one in --dir",
        ),
        JobError::Receipt { .. } | JobError::Outvoted { .. } | JobError::Disagreement { .. } => (
            Kind::Verification,
            "nothing was signed for it, and its usage is disputed",
        ),
        JobError::Store(_) => (Kind::Input, "the job's tensors do not fit in memory"),
        JobError::Journal(_) => (
            Kind::State,
            "check the folder's permissions and the space left",
        ),
        _ => (
            Kind::Job,
            "its leases are ended and their escrow comes back; go on with `souk job resume`",
        ),
    };
    Failure::new(kind, error, hint).with([("reason", error.code().into())])
}
