//! `souk plan` and `souk submit`: a model of the user's own, from files to files.

use std::path::Path;
use std::time::Duration;

use souk_node::buyer::{Buyer, Finished, JobError, Progress, Quote, QuoteError};
use souk_node::job::{Job, Limits, Prefer};
use souk_node::market::{AccountKey, Credits, Price};
use souk_node::scheduler::graph::ImportError;
use tokio::sync::mpsc;

use super::market::Balances;
use crate::args::{self, JobArgs, Output, SubmitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{join, unreachable_market};
use crate::{files, show, stop};

/// Progress that may wait to be printed.
const PROGRESS_MAX: usize = 256;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

/// Shows a plan.
pub async fn plan(folder: &Path, output: Output, args: &JobArgs) -> Outcome {
    let job = read(args)?;
    let buyer = join(folder).await?;
    let quote = buyer.quote(&job).await.map_err(from_quote)?;
    match output {
        Output::Json => show::json(&show::plan::to_json(&quote)),
        Output::Text => show::plan::print(&quote),
    }
    Ok(())
}

/// Buys, runs, fetches and pays.
pub async fn submit(folder: &Path, output: Output, args: &SubmitArgs) -> Outcome {
    let job = read(&args.job)?;
    // Before anything is paid for: outputs that cannot be kept are not worth buying.
    files::prepare(&args.out)?;
    let buyer = join(folder).await?;
    let quote = buyer.quote(&job).await.map_err(from_quote)?;
    let plan = show::plan::to_json(&quote);
    let before = Balances::read(&buyer).await?;
    if output == Output::Text {
        show::plan::print(&quote);
    }
    let finished = run(&buyer, &job, quote, output).await?;
    let written = files::write_outputs(&args.out, &finished.outputs, args.format)?;
    let receipts = write_receipts(&args.out, &finished)?;
    if let Some(path) = &args.trace {
        files::write(path, finished.timeline.to_trace_json().as_bytes())?;
    }
    let keys = before.accounts.iter().map(|account| account.key).collect();
    let after = Balances::of(&buyer, keys).await?;
    match output {
        Output::Json => {
            let job = show::job::to_json(&finished, plan, &written, &receipts);
            let balances = [("before", before.to_json()), ("after", after.to_json())];
            show::json(&show::with(job, balances));
        }
        Output::Text => show::job::print(&finished, &written, &receipts, &before, &after),
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
    let (progress, mut told) = mpsc::channel::<Progress>(PROGRESS_MAX);
    let names = show::names(&quote);
    let telling = async {
        while let Some(progress) = told.recv().await {
            if output == Output::Text {
                show::progress::print(&progress, &names);
            }
        }
    };
    let running = buyer.run(job, quote, progress);
    tokio::select! {
        (finished, ()) = async { tokio::join!(running, telling) } => finished.map_err(from_job),
        () = stop::asked() => {
            let cause = "interrupted: the leases run out by themselves and their escrow comes back";
            Err(Failure::new(Kind::Job, cause, "submit the job again when you like"))
        }
    }
}

/// Writes each receipt beside the outputs.
pub fn write_receipts(out: &Path, finished: &Finished) -> Result<Vec<std::path::PathBuf>, Failure> {
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
    let wait = Duration::try_from_secs_f64(args.wait).map_err(|error| {
        let cause = format!("--wait {} is no time: {error}", args.wait);
        Failure::new(Kind::Input, cause, "give seconds from 0")
    })?;
    Ok(Limits {
        budget: budget.map(Credits),
        price_max: price_max.map(Price),
        providers_min: args.min_providers,
        providers_max: args.max_providers,
        excluded: excluded?,
        real_only: args.real,
        prefer: match args.prefer {
            args::Prefer::Fastest => Prefer::Fastest,
            args::Prefer::Cheapest => Prefer::Cheapest,
        },
        wait,
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
            let hint =
                "loosen --max-price, --exclude or --real; `souk book` shows what is on offer";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Budget { .. } => Failure::new(
            Kind::NoPlan,
            error,
            "raise --budget, or try --prefer cheapest",
        ),
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

/// A failure to run.
pub fn from_job(error: JobError) -> Failure {
    match error {
        JobError::Quote(error) => from_quote(error),
        JobError::Broker(error) => unreachable_market(error),
        JobError::Escrow { .. } => {
            let hint =
                "a lease holds escrow for its whole length: raise --budget, or --prefer cheapest";
            Failure::new(Kind::NoPlan, error, hint)
        }
        JobError::Unsold(_) => Failure::new(Kind::NoPlan, error, "the book moved; submit it again"),
        JobError::Receipt { .. } => {
            let hint = "nothing was signed; the escrow comes back when the lease has run out";
            Failure::new(Kind::Verification, error, hint)
        }
        JobError::Store(_) => {
            Failure::new(Kind::Input, error, "the job's tensors do not fit in memory")
        }
        _ => {
            let hint = "its leases are ended and their escrow comes back; submit the job again";
            Failure::new(Kind::Job, error, hint)
        }
    }
}
