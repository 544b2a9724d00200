//! How far the cost model is off on the operators of a real model.
//!
//! Every operator runs alone, at the model's batch and at others. Three questions are asked, from
//! easy to hard: an operator that was timed before; one at a batch that was never timed, between
//! two that were; one that never was, by those of its class in the same model.

mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_cpu::Cpu;
use souk_memory::Tensor;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::work::Work;
use souk_vocabulary::history::{History, Key};
use souk_vocabulary::processor::{Processor, WorkError};

use trials::{TimedTrial, Trial, timed};

/// Batches that calibrate, each so many of the model's own.
const CALIBRATED: [usize; 2] = [1, 4];
/// The batch between them, which is foretold and never seen.
const UNSEEN: usize = 2;

/// How far the cost model is off on the operators of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Operators timed.
    pub operators: usize,
    /// How many of them are different: the others are the same again, with other weights.
    pub different: usize,
    /// Keys that calibration told apart.
    pub keys: usize,
    /// What calibration cannot better: one hand of an operator's runs by the other.
    pub noise: Errors,
    /// Errors of the bare model.
    pub model: Errors,
    /// Errors for what was seen, after calibration.
    pub calibrated: Errors,
    /// Errors at twice the batch, after calibration at one and at four.
    pub unseen_batch: Errors,
    /// Errors of each operator from the others alone.
    pub unseen_operator: Errors,
    /// The same for moving what each operator was given and made to other memory of the machine.
    pub transfers: Errors,
    /// The same for moving twice as much, after calibration with once and four times.
    pub transfers_unseen: Errors,
    /// Each operator and transfer.
    pub each: Vec<Each>,
}

/// One operator or transfer at one batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Each {
    /// The operator, what it is given and its attributes.
    pub what: String,
    /// What history calls it.
    pub key: Key,
    /// Its work.
    pub work: Work,
    /// How many of the model's batches it was given at once.
    pub batch: usize,
    /// Seconds by the bare model.
    pub modelled: f64,
    /// Seconds of the hand that calibrates.
    pub calibrates: f64,
    /// Seconds foretold after calibration: with itself, unless its batch is one never seen.
    pub foretold: f64,
    /// Seconds measured.
    pub measured: f64,
}

/// Relative errors: of the time foretold, to the time measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// How many.
    pub count: usize,
    /// The median.
    pub median: f64,
    /// What nine of ten do not exceed.
    pub p90: f64,
}

impl Errors {
    fn of(errors: impl Iterator<Item = f64>) -> Self {
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        Self {
            count: errors.len(),
            median: quantile(&errors, 0.5),
            p90: quantile(&errors, 0.9),
        }
    }
}

/// How well the cost model foretells the `count` largest operators of a subgraph, by `clock`: one
/// of the time, or of the processor time of the process, which other work on the machine disturbs
/// less but in which threads add up.
///
/// # Errors
/// Those of compiling and running.
pub fn accuracy(
    cpu: &Cpu,
    subgraph: &Subgraph,
    inputs: &BTreeMap<String, Tensor>,
    count: usize,
    clock: &dyn Fn() -> Duration,
) -> Result<Accuracy, WorkError> {
    let mut observed = cpu.observe(subgraph, inputs)?;
    observed.sort_by_key(|node| std::cmp::Reverse(cpu.estimate(&node.work).time));
    observed.truncate(count);
    let mut ready = Vec::new();
    for batch in [CALIBRATED[0], UNSEEN, CALIBRATED[1]] {
        for node in &observed {
            ready.extend(TimedTrial::operator(cpu, node, batch)?);
        }
    }
    let operators = timed(ready, clock)?;
    let moves = operators
        .iter()
        .map(|trial| TimedTrial::transfer(cpu, trial));
    let moves = timed(moves.collect(), clock)?;
    Ok(judged(&operators, &moves))
}

fn judged(operators: &[Trial], moves: &[Trial]) -> Accuracy {
    let own = || operators.iter().filter(|trial| trial.batch == 1);
    let different: BTreeSet<&str> = own().map(|trial| trial.what.as_str()).collect();
    let by_itself =
        |trial: &Trial| error(Duration::from_secs_f64(trial.calibrates), trial.foretold);
    let all = [operators, moves].concat();
    Accuracy {
        operators: own().count(),
        different: different.len(),
        keys: learned(own()).records().len(),
        noise: Errors::of(own().map(by_itself)),
        model: Errors::of(own().map(|trial| error(trial.modelled, trial.foretold))),
        calibrated: seen(operators),
        unseen_batch: unseen_batch(operators),
        unseen_operator: unseen_operator(operators),
        transfers: seen(moves),
        transfers_unseen: unseen_batch(moves),
        each: each(&all),
    }
}

/// What the hands that calibrate taught.
fn learned<'a>(trials: impl Iterator<Item = &'a Trial>) -> History {
    let mut history = History::default();
    for trial in trials {
        let seen = Duration::from_secs_f64(trial.calibrates);
        history.learn(trial.key.clone(), trial.modelled, seen);
    }
    history
}

/// The history of both batches that calibrate, without anything that is the same as `unseen`.
fn learned_but(trials: &[Trial], unseen: &Trial) -> History {
    let calibrates = |trial: &&Trial| CALIBRATED.contains(&trial.batch);
    learned(
        trials
            .iter()
            .filter(calibrates)
            .filter(|trial| trial.what != unseen.what),
    )
}

fn off(history: &History, trial: &Trial) -> f64 {
    error(
        history.corrected(&trial.key, trial.modelled),
        trial.foretold,
    )
}

fn seen(trials: &[Trial]) -> Errors {
    let own = || trials.iter().filter(|trial| trial.batch == 1);
    let history = learned(own());
    Errors::of(own().map(|trial| off(&history, trial)))
}

fn unseen_batch(trials: &[Trial]) -> Errors {
    let unseen = trials.iter().filter(|trial| trial.batch == UNSEEN);
    Errors::of(unseen.map(|trial| off(&learned_but(trials, trial), trial)))
}

fn unseen_operator(trials: &[Trial]) -> Errors {
    let own = || trials.iter().filter(|trial| trial.batch == 1);
    let others = |trial: &Trial| {
        let history = learned(own().filter(|other| other.what != trial.what));
        off(&history, trial)
    };
    Errors::of(own().map(others))
}

fn each(trials: &[Trial]) -> Vec<Each> {
    let of = |trial: &Trial| {
        let history = match trial.batch {
            UNSEEN => learned_but(trials, trial),
            _ => learned(trials.iter().filter(|it| it.batch != UNSEEN)),
        };
        Each {
            what: trial.what.clone(),
            key: trial.key.clone(),
            work: trial.work,
            batch: trial.batch,
            calibrates: trial.calibrates,
            modelled: trial.modelled.as_secs_f64(),
            foretold: history.corrected(&trial.key, trial.modelled).as_secs_f64(),
            measured: trial.foretold,
        }
    };
    trials.iter().map(of).collect()
}

fn error(foretold: Duration, seconds: f64) -> f64 {
    (foretold.as_secs_f64() - seconds).abs() / seconds
}

/// The value that a part of the sorted values do not exceed; 0 without values.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
