//! `souk train`: trains an ONNX model of the user on a device that it leases, from files to files.

mod failures;
mod report;

use std::path::Path;
use std::sync::Arc;

use souk_node::buyer::job::{EmulatedDevices, Limits};
use souk_node::buyer::training::{
    ExampleOrder, Training, TrainingData, TrainingRun, TrainingSettings,
};
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::market::{Credits, Price};
use souk_node::scheduler::gradient::adamw::AdamW;
use souk_node::scheduler::gradient::sgd::Sgd;
use souk_node::scheduler::gradient::{Loss, Optimizer, Recipe};
use tokio::sync::Notify;

use super::submit::{from_quote, to_micro_credits};
use crate::args::{LossName, OptimizerName, Output, TrainArgs, TrainLeaseArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::join_as_buyer;
use crate::{files, show, stop};
use failures::{from_end, from_training};
use report::{Progress, TrainingReport};

/// Trains the model, writes it with its report, and pays.
pub async fn run(folder: &Path, output: Output, args: &TrainArgs) -> Outcome {
    let model = files::read(&args.model)?;
    let training = Training::prepare(model.clone(), read_data(args)?, read_settings(args)?);
    let training = training.map_err(from_training)?;
    let limits = lease_limits(&args.lease)?;
    let out = args.out.as_deref().filter(|_| !args.plan);
    if let Some(out) = out {
        // This comes before any payment: souk must not train what it cannot store.
        check_out(out)?;
        let parent = out.parent().filter(|it| !it.as_os_str().is_empty());
        files::prepare_folder(parent.unwrap_or(Path::new(".")))?;
    }
    let buyer = join_as_buyer(folder).await?;
    let cancel = Arc::<Notify>::default();
    let training_run = TrainingRun {
        buyer: &buyer,
        training: &training,
        limits: limits.clone(),
        cancel: cancel.clone(),
    };
    let Some(out) = out else {
        let quote = training_run.quote().await.map_err(from_quote)?;
        report::show_plan(output, &training, &quote, &limits);
        return Ok(());
    };
    let mut stops = stop::Requests::new();
    tokio::spawn(async move {
        loop {
            stops.next().await;
            show::print_notice(
                "stopping after the steps under way; again to end the lease at once",
            );
            cancel.notify_one();
        }
    });
    if output == Output::Text {
        report::describe_training(&training)
            .iter()
            .for_each(|line| show::print_notice(line));
    }
    let mut progress = Progress::new(output, &training, limits.budget);
    let result = training_run.run(|event| progress.show_event(event)).await;
    let report = TrainingReport {
        args,
        training: &training,
        model,
        result: &result,
    };
    let written = report.write(out)?;
    let done = result.losses.len() as u64;
    match from_end(result.end, done, training.settings.steps, &written) {
        Some(failure) => Err(failure),
        None => {
            written.show_result(output);
            Ok(())
        }
    }
}

/// Checks that the file for the model can be one, and is not that of the report.
fn check_out(out: &Path) -> Result<(), Failure> {
    if out.is_dir() {
        let cause = format!("{} is a folder", out.display());
        return Err(Failure::new(
            Kind::Usage,
            cause,
            "name a file, such as -o tuned.onnx",
        ));
    }
    if out.extension().is_some_and(|ending| ending == "json") {
        let cause = format!("{} is where the report would go", out.display());
        return Err(Failure::new(
            Kind::Usage,
            cause,
            "name the model, such as -o tuned.onnx",
        ));
    }
    Ok(())
}

/// Reads the examples.
fn read_data(args: &TrainArgs) -> Result<TrainingData, Failure> {
    let legend = ValueLabels::from_model(files::read(&args.model)?);
    let inputs = files::read_inputs(&args.input, &legend)?;
    if !args.target.contains('=') {
        let cause = format!("--target {} names no target", args.target);
        let hint = "give it as NAME=FILE.npy, such as labels=y.npy";
        return Err(Failure::new(Kind::Usage, cause, hint));
    }
    let mut targets = files::read_inputs(std::slice::from_ref(&args.target), &legend)?;
    let (target_name, target) = targets
        .pop_first()
        .expect("a file given by name is a tensor");
    Ok(TrainingData {
        inputs,
        target_name,
        target,
    })
}

fn read_settings(args: &TrainArgs) -> Result<TrainingSettings, Failure> {
    if args.momentum.is_some() && args.optimizer != OptimizerName::Sgd {
        let cause = "--momentum is of sgd, and the optimiser is adamw";
        return Err(Failure::new(Kind::Usage, cause, "add --optimizer sgd"));
    }
    let momentum = args.momentum.unwrap_or(0.0);
    if !(0.0..1.0).contains(&momentum) {
        let cause = format!("the momentum {momentum} is not between 0 and 1");
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give for example --momentum 0.9",
        ));
    }
    if let Some(decay) = args.weight_decay
        && !(decay.is_finite() && decay >= 0.0)
    {
        let cause = format!("the weight decay {decay} is no number from 0");
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give for example --weight-decay 0.01",
        ));
    }
    let optimizer = match args.optimizer {
        OptimizerName::Sgd => Optimizer::Sgd(Sgd {
            momentum,
            weight_decay: args.weight_decay.unwrap_or(0.0),
        }),
        OptimizerName::Adamw => {
            let default = AdamW::default();
            let weight_decay = args.weight_decay.unwrap_or(default.weight_decay);
            Optimizer::AdamW(AdamW {
                weight_decay,
                ..default
            })
        }
    };
    Ok(TrainingSettings {
        steps: args.steps,
        batch: args.batch,
        learning_rate: args.learning_rate,
        order: match args.in_order {
            true => ExampleOrder::OfRows,
            false => ExampleOrder::Shuffled(args.seed),
        },
        recipe: Recipe {
            loss: match args.loss {
                LossName::CrossEntropy => Loss::CrossEntropy,
                LossName::Mse => Loss::MeanSquaredError,
            },
            optimizer,
            output: args.loss_of.clone(),
            frozen: args.freeze.clone(),
        },
    })
}

fn lease_limits(args: &TrainLeaseArgs) -> Result<Limits, Failure> {
    let amount = |option: &str, given: Option<f64>| {
        given
            .map(|given| to_micro_credits(option, given))
            .transpose()
    };
    Ok(Limits {
        budget: amount("--budget", args.budget)?.map(Credits),
        price_max: amount("--max-price", args.max_price)?.map(Price),
        emulated: EmulatedDevices::by_flags(args.emulated, args.real)
            .map_err(|error| Failure::new(Kind::Input, error, ""))?,
        devices: args.device.clone(),
        objective: args.prefer,
        wait: args.wait,
        ..Limits::default()
    })
}
