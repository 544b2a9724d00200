//! Measures how well the cost model predicts the run times of the operators of a real model.
//!
//! Every operator runs alone, at the model's batch and at larger ones. The benchmark predicts three
//! kinds of operators, from easy to hard: one with earlier runs; one at a batch without runs,
//! between two with runs; and one without any, by the others of its class in the same model.

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

use trials::{TimedTrial, Trial, time_trials};

/// Batches that calibrate, in multiples of the model's own.
const CALIBRATED: [usize; 2] = [1, 4];
/// The batch between them, which is only predicted.
const UNSEEN: usize = 2;

/// The errors of the cost model on the operators of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Number of timed operators.
    pub operators: usize,
    /// Number of distinct operators; the others repeat them with other weights.
    pub different: usize,
    /// Number of distinct keys in the calibration.
    pub keys: usize,
    /// The lower bound of any calibration: the errors when one half of an operator's runs predicts
    /// the other half.
    pub noise: Errors,
    /// Errors of the uncorrected model.
    pub model: Errors,
    /// Errors for calibrated operators.
    pub calibrated: Errors,
    /// Errors at twice the batch, after calibration at one and at four times.
    pub unseen_batch: Errors,
    /// Errors of each operator, predicted only from the others.
    pub unseen_operator: Errors,
    /// Errors for copies of each operator's inputs and outputs to other memory of the machine.
    pub transfers: Errors,
    /// Errors for copies of twice as much, after calibration with one and four times as much.
    pub transfers_unseen: Errors,
    /// Details of each operator and copy.
    pub each: Vec<OperatorAccuracy>,
}

/// One operator or copy at one batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatorAccuracy {
    /// The operator, its inputs and its attributes, or the size of the copy.
    pub what: String,
    /// Key in the history.
    pub key: Key,
    /// Amount of work.
    pub work: Work,
    /// Batch, in multiples of the model's own.
    pub batch: usize,
    /// Seconds by the uncorrected model.
    pub modelled: f64,
    /// Seconds of the fastest calibrating run.
    pub calibrates: f64,
    /// Predicted seconds after calibration, which includes the operator itself unless its batch is
    /// `UNSEEN`.
    pub foretold: f64,
    /// Measured seconds.
    pub measured: f64,
}

/// Errors of predicted times, relative to the measured times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Number of errors.
    pub count: usize,
    /// Median error.
    pub median: f64,
    /// Error that nine of ten do not exceed.
    pub p90: f64,
}

impl Errors {
    fn from_errors(errors: impl Iterator<Item = f64>) -> Self {
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        Self {
            count: errors.len(),
            median: quantile(&errors, 0.5),
            p90: quantile(&errors, 0.9),
        }
    }
}

/// Measures how well the cost model predicts the `count` largest operators of a subgraph. `clock`
/// can return the time, or the process's processor time; other work on the machine disturbs the
/// latter less, but it adds up over threads.
///
/// # Errors
/// [`WorkError`] if the subgraph does not compile or run.
pub fn measure_accuracy(
    cpu: &Cpu,
    subgraph: &Subgraph,
    inputs: &BTreeMap<String, Tensor>,
    count: usize,
    clock: &dyn Fn() -> Duration,
) -> Result<Accuracy, WorkError> {
    let mut observed = cpu.observe_nodes(subgraph, inputs)?;
    observed.sort_by_key(|node| std::cmp::Reverse(cpu.estimate(&node.work).time));
    observed.truncate(count);
    let mut ready = Vec::new();
    for batch in [CALIBRATED[0], UNSEEN, CALIBRATED[1]] {
        for node in &observed {
            ready.extend(TimedTrial::for_operator(cpu, node, batch)?);
        }
    }
    let operators = time_trials(ready, clock)?;
    let moves = operators
        .iter()
        .map(|trial| TimedTrial::for_transfer(cpu, trial));
    let moves = time_trials(moves.collect(), clock)?;
    Ok(assess_trials(&operators, &moves))
}

fn assess_trials(operators: &[Trial], moves: &[Trial]) -> Accuracy {
    let own = || operators.iter().filter(|trial| trial.batch == 1);
    let different: BTreeSet<&str> = own().map(|trial| trial.what.as_str()).collect();
    let by_itself =
        |trial: &Trial| relative_error(Duration::from_secs_f64(trial.calibrates), trial.foretold);
    let all = [operators, moves].concat();
    Accuracy {
        operators: own().count(),
        different: different.len(),
        keys: build_history(own()).records().len(),
        noise: Errors::from_errors(own().map(by_itself)),
        model: Errors::from_errors(
            own().map(|trial| relative_error(trial.modelled, trial.foretold)),
        ),
        calibrated: calibrated_errors(operators),
        unseen_batch: unseen_batch(operators),
        unseen_operator: unseen_operator(operators),
        transfers: calibrated_errors(moves),
        transfers_unseen: unseen_batch(moves),
        each: trial_results(&all),
    }
}

/// Returns the history of the calibrating runs.
fn build_history<'a>(trials: impl Iterator<Item = &'a Trial>) -> History {
    let mut history = History::default();
    for trial in trials {
        let seen = Duration::from_secs_f64(trial.calibrates);
        history.learn_measurement(trial.key.clone(), trial.modelled, seen);
    }
    history
}

/// Returns the history of both calibrating batches, without operators identical to `unseen`.
fn learned_but(trials: &[Trial], unseen: &Trial) -> History {
    let calibrates = |trial: &&Trial| CALIBRATED.contains(&trial.batch);
    build_history(
        trials
            .iter()
            .filter(calibrates)
            .filter(|trial| trial.what != unseen.what),
    )
}

fn corrected_error(history: &History, trial: &Trial) -> f64 {
    relative_error(
        history.correct_time(&trial.key, trial.modelled),
        trial.foretold,
    )
}

fn calibrated_errors(trials: &[Trial]) -> Errors {
    let own = || trials.iter().filter(|trial| trial.batch == 1);
    let history = build_history(own());
    Errors::from_errors(own().map(|trial| corrected_error(&history, trial)))
}

fn unseen_batch(trials: &[Trial]) -> Errors {
    let unseen = trials.iter().filter(|trial| trial.batch == UNSEEN);
    Errors::from_errors(unseen.map(|trial| corrected_error(&learned_but(trials, trial), trial)))
}

fn unseen_operator(trials: &[Trial]) -> Errors {
    let own = || trials.iter().filter(|trial| trial.batch == 1);
    let others = |trial: &Trial| {
        let history = build_history(own().filter(|other| other.what != trial.what));
        corrected_error(&history, trial)
    };
    Errors::from_errors(own().map(others))
}

fn trial_results(trials: &[Trial]) -> Vec<OperatorAccuracy> {
    let of = |trial: &Trial| {
        let history = match trial.batch {
            UNSEEN => learned_but(trials, trial),
            _ => build_history(trials.iter().filter(|it| it.batch != UNSEEN)),
        };
        OperatorAccuracy {
            what: trial.what.clone(),
            key: trial.key.clone(),
            work: trial.work,
            batch: trial.batch,
            calibrates: trial.calibrates,
            modelled: trial.modelled.as_secs_f64(),
            foretold: history
                .correct_time(&trial.key, trial.modelled)
                .as_secs_f64(),
            measured: trial.foretold,
        }
    };
    trials.iter().map(of).collect()
}

fn relative_error(foretold: Duration, seconds: f64) -> f64 {
    (foretold.as_secs_f64() - seconds).abs() / seconds
}

/// Returns the value at this part of the sorted values; 0 if there are none.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
