//! `souk demo`: starts a market on this machine, buys a text and the run of a model in it, and
//! cleans up.

#[cfg(feature = "generate")]
mod conversation;
#[cfg(feature = "generate")]
mod fine_tuning;

use std::process::ExitCode;

use souk_node::buyer::Buyer;
use souk_node::buyer::job::{EmulatedDevices, Job, Limits};
use souk_node::buyer::plan_json;
use souk_node::memory::{Tensor, npy};
use souk_testnet::layout;
use souk_testnet::models::digits;
use souk_testnet::supervisor::Supervisor;

use super::{submit, testnet};
use crate::args::{DemoArgs, Output};
use crate::failure::{Failure, INTERRUPTED, Kind};
use crate::folder::{create_temp_folder, join_as_buyer};
use crate::show::balance::Balances;
use crate::show::{self, print_line};
use crate::stop;

/// Smallest share of correctly read images with which the demo succeeds.
const ACCURACY_MIN: f64 = 0.97;

/// The commands to try next.
const NEXT: [&str; 3] = [
    "  souk testnet up --detach",
    "  souk plan MODEL.onnx -i NAME=FILE.npy",
    #[cfg(feature = "generate")]
    "  souk chat MODEL",
    #[cfg(not(feature = "generate"))]
    "  souk book",
];

/// Runs the demo. If the user interrupts it, it cleans up and exits with the code of an interrupt.
pub async fn run(output: Output, args: DemoArgs) -> Result<ExitCode, Failure> {
    let mut stops = stop::Requests::new();
    let home = create_temp_folder("souk-demo-")?;
    let text = output == Output::Text;
    if text {
        print_line(&format!("starting a market in {}", home.path().display()));
    }
    let mut shape = layout::Config::default();
    // Two providers sell this machine's CPU, so a text can lose one and continue.
    shape.providers.push(shape.providers[0].clone());
    let mut supervisor = testnet::spawn_nodes(home.path(), &shape)?;
    let day = async {
        testnet::wait_until_ready(home.path(), &mut supervisor).await?;
        #[cfg(feature = "generate")]
        if args.train {
            return fine_tuning::run_fine_tuning(home.path(), output).await;
        }
        #[cfg(not(feature = "generate"))]
        let DemoArgs {} = args;
        market_day(&mut supervisor, home.path(), output).await
    };
    let shown = tokio::select! {
        shown = day => match shown {
            Err(failure) if failure.kind == Kind::Interrupted => None,
            shown => Some(shown),
        },
        () = stops.next() => None,
    };
    supervisor.stop_all().await;
    drop(home);
    match shown {
        None => Ok(ExitCode::from(INTERRUPTED)),
        Some(shown) => {
            shown?;
            if text {
                print_line(
                    "everything is shut down; next, a market that stays, and a model of yours:",
                );
                NEXT.iter().for_each(|line| print_line(line));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn market_day(
    supervisor: &mut Supervisor,
    home: &std::path::Path,
    output: Output,
) -> Result<(), Failure> {
    let buyer = join_as_buyer(home).await?;
    if output == Output::Text {
        show_market(supervisor, &buyer).await?;
    }
    let before = Balances::read(buyer.broker(), Some(buyer.account())).await?;
    #[cfg(feature = "generate")]
    let conversation = conversation::run_conversation(supervisor, home, output).await?;
    let images = read(digits::IMAGES, "images")?;
    let labels = read_labels()?;
    let mut wanted = job_of(&images, 2);
    let quote = buyer.quote_job(&wanted).await.map_err(submit::from_quote)?;
    let plan = plan_json::to_json(&quote);
    let names = show::provider_names(&quote.listings);
    if output == Output::Text {
        print_line(&format!(
            "job: read {} images of digits that it was not trained on",
            labels.len()
        ));
        let text = show::plan::describe_plan(&quote, &wanted.limits);
        text.iter().for_each(|line| print_line(line));
    }
    let finished = submit::run(&buyer, &wanted, quote, output).await?;
    let out = home.join("out");
    let receipts = submit::write_receipts(&out, &finished)?;
    let right = count_correct(&finished.outputs["logits"], &labels)?;
    // The same job, whole on a real device, must give the same result.
    wanted.limits = Limits {
        providers_max: 1,
        emulated: EmulatedDevices::Refused,
        ..Limits::default()
    };
    let whole = buyer.quote_job(&wanted).await.map_err(submit::from_quote)?;
    let whole = submit::run(&buyer, &wanted, whole, Output::Json).await?;
    let apart = max_difference(&finished.outputs["logits"], &whole.outputs["logits"])?;
    let keys = before.accounts.iter().map(|account| account.key).collect();
    let after = Balances::read_accounts(buyer.broker(), keys).await?;
    let accuracy = right as f64 / labels.len() as f64;
    if output == Output::Text {
        print_line(&format!(
            "checked: {right} of {} digits read correctly ({:.2} %); run again, whole, on this \
             machine's CPU, the outputs differ by at most {apart:.1e}",
            labels.len(),
            accuracy * 100.0,
        ));
        show::job::print_receipts(&finished, &[], &names);
        show::job::print_receipts(&whole, &[], &names);
        print_line("balances");
        show::balance::print_change(&before, &after);
        show::job::print_timeline(&finished);
    } else {
        let job = show::job::to_json(&finished, plan, &[], &receipts);
        let facts = [
            ("right", right.into()),
            ("images", labels.len().into()),
            ("accuracy", accuracy.into()),
            ("largest_difference_to_single_provider", apart.into()),
            ("before", before.to_json()),
            ("after", after.to_json()),
            #[cfg(feature = "generate")]
            ("text", conversation.to_json()),
        ];
        show::print_json(&show::with(job, facts));
    }
    check_results(accuracy, apart, &before, &after)
}

/// Checks the results: enough images must be read correctly, both runs must agree, and the accounts
/// must balance.
fn check_results(
    accuracy: f64,
    apart: f64,
    before: &Balances,
    after: &Balances,
) -> Result<(), Failure> {
    let wrong = |cause: String| Err(Failure::new(Kind::Verification, cause, ""));
    if accuracy < ACCURACY_MIN {
        return wrong(format!(
            "only {:.2} % of the digits were read correctly",
            accuracy * 100.0
        ));
    }
    if apart > 1e-4 {
        return wrong(format!("cut and whole runs differ by {apart}"));
    }
    let sum = |balances: &Balances| balances.totals.deposits;
    if !after.totals.is_balanced() || sum(before) != sum(after) {
        return wrong("the sums over all accounts do not agree".to_owned());
    }
    Ok(())
}

async fn show_market(supervisor: &mut Supervisor, buyer: &Buyer) -> Result<(), Failure> {
    for (name, process) in supervisor.cluster().running_nodes() {
        print_line(&format!(
            "  {name} runs as process {}",
            process.unwrap_or(0)
        ));
    }
    let book = buyer
        .broker()
        .fetch_book()
        .await
        .map_err(crate::folder::unreachable_market)?;
    show::book::print_asks(&book);
    Ok(())
}

fn job_of(images: &Tensor, providers: usize) -> Job {
    Job {
        model: digits::MODEL,
        folder: None,
        inputs: [("images".to_owned(), images.clone())].into(),
        limits: Limits {
            providers_min: providers,
            ..Limits::default()
        },
    }
}

fn read(file: bytes::Bytes, what: &str) -> Result<Tensor, Failure> {
    npy::read(&file).map_err(|error| bundled_model_failure(format!("{what}: {error}")))
}

fn read_labels() -> Result<Vec<i64>, Failure> {
    let labels = read(digits::LABELS, "labels")?.to_vec();
    labels.map_err(bundled_model_failure)
}

/// Converts a fault of the bundled model.
fn bundled_model_failure(error: impl ToString) -> Failure {
    Failure::new(
        Kind::Unexpected,
        format!("the bundled model: {}", error.to_string()),
        "",
    )
}

/// Returns the number of rows whose greatest value is at the label.
fn count_correct(logits: &Tensor, labels: &[i64]) -> Result<usize, Failure> {
    let values = logits.to_vec::<f32>().map_err(bundled_model_failure)?;
    let classes = values.len() / labels.len().max(1);
    let reads = |(row, label): (&[f32], &i64)| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.is_some_and(|(class, _)| class as i64 == *label)
    };
    Ok(values
        .chunks(classes.max(1))
        .zip(labels)
        .filter(|pair| reads(*pair))
        .count())
}

/// Returns the greatest difference between the elements of two tensors, or infinity if their shapes
/// differ.
fn max_difference(a: &Tensor, b: &Tensor) -> Result<f64, Failure> {
    if a.dims() != b.dims() {
        return Ok(f64::INFINITY);
    }
    let (a, b) = (
        a.to_vec::<f32>().map_err(bundled_model_failure)?,
        b.to_vec::<f32>().map_err(bundled_model_failure)?,
    );
    let differences = a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs()));
    Ok(differences.fold(0.0, f64::max))
}
