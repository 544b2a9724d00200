//! How far the cost model is off on the operators of a real model.
//!
//! Every operator runs alone. Its runs are dealt out in turn to two hands: one calibrates, the
//! other is foretold, so that no run is judged by itself and whatever else the machine does falls
//! on both. Of each hand the fastest run counts.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_memory::Tensor;

use super::alone;
use crate::cpu::{Cpu, Observed, WorkError};
use crate::history::{History, Key};
use crate::processor::{Processor, Program, RunError, Subgraph};
use crate::work::Work;

/// Time given to each operator and each transfer.
const TIME_EACH: Duration = Duration::from_millis(160);
/// Fewest runs in each hand.
const RUNS_MIN: usize = 3;
/// What transfers are called where runs are remembered.
const TRANSFER: &str = "(transfer)";

/// How far the cost model is off on the operators of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Operators timed.
    pub operators: usize,
    /// Keys that calibration told apart: where there are as many as operators, each was foretold by
    /// itself.
    pub keys: usize,
    /// Errors of the bare model.
    pub model: Errors,
    /// Errors after calibration.
    pub calibrated: Errors,
    /// The same for moving what each operator was given and made to other memory of the machine.
    pub transfers: Errors,
}

/// Relative errors: of the time foretold, to the time measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
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
            median: quantile(&errors, 0.5),
            p90: quantile(&errors, 0.9),
        }
    }
}

/// The fastest run of each hand, in seconds.
#[derive(Clone, Copy, Debug)]
struct Hands {
    calibrates: f64,
    foretold: f64,
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
    let modelled = |node: &Observed| cpu.estimate(&node.work).time;
    let mut runs = Vec::with_capacity(observed.len());
    for node in &observed {
        let program: Box<dyn Program> = cpu.compile(&single(node)).map_err(WorkError::from)?;
        let run = || program.run(&node.inputs).map(|_| ());
        let key = Key::of(node.node.op_type(), &node.work);
        runs.push((key, modelled(node), hands(clock, run)?));
    }
    let mut moves = Vec::with_capacity(observed.len());
    for work in observed.iter().map(|node| transfer(&node.work)) {
        let bytes = work.bytes_read as usize;
        let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
        let run = || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
            Ok(())
        };
        let key = Key::of(TRANSFER, &work);
        moves.push((key, cpu.estimate(&work).time, hands(clock, run)?));
    }
    let (keys, calibrated) = calibrated(&runs);
    let bare = runs
        .iter()
        .map(|(_, modelled, hands)| error(*modelled, hands.foretold));
    Ok(Accuracy {
        operators: observed.len(),
        keys,
        model: Errors::of(bare),
        calibrated,
        transfers: self::calibrated(&moves).1,
    })
}

/// The errors once the history has seen the hands that calibrate, and how many keys it holds.
fn calibrated(runs: &[(Key, Duration, Hands)]) -> (usize, Errors) {
    let mut history = History::default();
    for (key, modelled, hands) in runs {
        let seen = Duration::from_secs_f64(hands.calibrates);
        history.learn(key.clone(), *modelled, seen);
    }
    let errors = runs
        .iter()
        .map(|(key, modelled, hands)| error(history.corrected(key, *modelled), hands.foretold));
    (history.records().len(), Errors::of(errors))
}

fn error(foretold: Duration, seconds: f64) -> f64 {
    (foretold.as_secs_f64() - seconds).abs() / seconds
}

/// Moving what some work reads and writes.
fn transfer(work: &Work) -> Work {
    let bytes = work.bytes_read.saturating_add(work.bytes_written).max(1);
    Work {
        operations: 0,
        bytes_read: bytes,
        bytes_written: bytes,
        ..*work
    }
}

/// Runs for a while, dealing the runs out in turn.
fn hands(
    clock: &dyn Fn() -> Duration,
    mut run: impl FnMut() -> Result<(), RunError>,
) -> Result<Hands, RunError> {
    let begin = Instant::now();
    let mut fastest = [f64::INFINITY; 2];
    let mut runs = 0;
    while runs < 2 * RUNS_MIN || begin.elapsed() < TIME_EACH {
        let start = clock();
        run()?;
        let seconds = clock().saturating_sub(start).as_secs_f64();
        fastest[runs % 2] = fastest[runs % 2].min(seconds.max(1e-9));
        runs += 1;
    }
    let [calibrates, foretold] = fastest;
    Ok(Hands {
        calibrates,
        foretold,
    })
}

/// The value that a part of the sorted values do not exceed; 0 without values.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted
        .get(index.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// A node as a subgraph of its own.
fn single(node: &Observed) -> Subgraph {
    alone(
        &node.node,
        node.opset,
        &node.inputs,
        &node.weights,
        &node.outputs,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{product, product_inputs};
    use crate::discover;
    use crate::measure::{self, CpuMeasurement};

    /// A clock that every look moves on: each run takes as long as the one before.
    fn steady() -> impl Fn() -> Duration {
        let looks = std::cell::Cell::new(0);
        move || {
            looks.set(looks.get() + 1);
            Duration::from_micros(looks.get())
        }
    }

    #[test]
    fn what_always_takes_as_long_is_foretold_exactly() {
        let one = std::num::NonZeroUsize::MIN;
        let figures = CpuMeasurement {
            threads: one,
            f32_operations_per_second: 1e9,
            f64_operations_per_second: 1e9,
            bytes_per_second: 1e9,
            launch_seconds: 1e-6,
        };
        let cpu = Cpu::new(measure::profile(&discover::cpu(), &figures), one);
        let found = accuracy(&cpu, &product(), &product_inputs(), 30, &steady()).unwrap();
        assert_eq!((found.operators, found.keys), (1, 1));
        assert!(found.calibrated.p90 < 1e-6, "{found:?}");
        assert!(found.transfers.p90 < 1e-6, "{found:?}");
    }

    #[test]
    fn what_shares_a_key_and_not_a_speed_is_foretold_wrong() {
        let key = Key::of("MatMul", &Work::default());
        let run = |seconds| {
            let hands = Hands {
                calibrates: seconds,
                foretold: seconds,
            };
            (key.clone(), Duration::from_secs(1), hands)
        };
        let (keys, errors) = calibrated(&[run(1.0), run(4.0)]);
        assert_eq!(keys, 1);
        assert!((errors.p90 - 1.0).abs() < 1e-6, "{errors:?}");
    }

    #[test]
    fn quantiles_are_of_the_values_there_are() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.9), 3.0);
    }
}
