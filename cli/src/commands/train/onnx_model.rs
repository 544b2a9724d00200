//! Prepares the training of an ONNX model: its examples come as arrays, and all its weights change.

use std::path::Path;

use bytes::Bytes;
use souk_node::buyer::training::{Training, TrainingData};
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::scheduler::gradient::{Loss, Recipe, Selection};

use super::failures::from_training;
use super::{SettingDefaults, read_optimizer, read_settings, with_period};
use crate::args::{LossName, TrainArgs};
use crate::failure::{Failure, Kind};
use crate::files;

const DEFAULTS: SettingDefaults = SettingDefaults {
    steps: Some(100),
    batch: 32,
    learning_rate: 1e-3,
};

/// Reads the model and its examples, and checks the run.
pub(super) fn prepare_run(args: &TrainArgs) -> Result<(Bytes, Training), Failure> {
    let model = files::read(&args.model)?;
    let data = read_data(args)?;
    let recipe = Recipe {
        loss: match args.loss {
            Some(LossName::Mse) => Loss::MeanSquaredError,
            _ => Loss::CrossEntropy,
        },
        optimizer: read_optimizer(args)?,
        output: args.loss_of.clone(),
        selection: Selection::AllBut(args.freeze.clone()),
        gradient_norm_max: args.clip,
        has_evaluations: false,
    };
    let settings = read_settings(args, &data, recipe, &DEFAULTS);
    let held_out = read_held_out(args, &data)?;
    let held_out = held_out.map(|examples| with_period(args, &settings, &data, examples));
    let training = Training::prepare(model.clone(), data, settings, held_out.as_ref());
    let training = training.map_err(from_training)?;
    Ok((model, training))
}

/// Checks that the file for the model can be one, and is not that of the report.
pub(super) fn check_out(out: &Path) -> Result<(), Failure> {
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
    let target = args.target.as_deref().unwrap_or_default();
    if !target.contains('=') {
        let cause = format!("--target {target} names no target");
        let hint = "give it as NAME=FILE.npy, such as labels=y.npy";
        return Err(Failure::new(Kind::Usage, cause, hint));
    }
    let mut targets = files::read_inputs(&[target.to_owned()], &legend)?;
    let (target_name, target) = targets
        .pop_first()
        .expect("a file given by name is a tensor");
    Ok(TrainingData {
        inputs,
        target_name,
        target,
    })
}

/// Reads the held-out examples: the inputs and the target again, each under its name.
fn read_held_out(args: &TrainArgs, data: &TrainingData) -> Result<Option<TrainingData>, Failure> {
    if args.eval.is_empty() {
        return Ok(None);
    }
    let legend = ValueLabels::from_model(files::read(&args.model)?);
    let mut inputs = files::read_inputs(&args.eval, &legend)?;
    let target_name = data.target_name.clone();
    let Some(target) = inputs.remove(&target_name) else {
        let names = data.inputs.keys().chain([&target_name]);
        let each = names.map(|name| format!("--eval {name}=FILE.npy"));
        let cause = format!("--eval gives no held-out {target_name:?}");
        let hint = format!("give {}", each.collect::<Vec<_>>().join(" "));
        return Err(Failure::new(Kind::Usage, cause, hint));
    };
    Ok(Some(TrainingData {
        inputs,
        target_name,
        target,
    }))
}
