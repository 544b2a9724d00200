//! Times each operator of a model alone, at several batches, in rounds.
//!
//! Each round times all operators for a short while, so that if the machine does other work for
//! some time, this affects many of them and is no operator's best time. Runs alternate between two
//! series, and the fastest of each counts, so that no prediction is compared with the run that it
//! comes from.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use souk_cpu::{Cpu, Observation};
use souk_memory::{Shape, Tensor};
use souk_onnx::work::{Extent, Work};
use souk_registry::sheet::node_subgraph;
use souk_vocabulary::history::Key;
use souk_vocabulary::processor::{Processor, Program, RunError, WorkError};

/// Number of rounds over all trials.
const ROUNDS: usize = 6;
/// Time for each trial in one round, by the caller's clock.
const TIME_EACH: Duration = Duration::from_millis(20);
/// Least runs of each series in one round.
const RUNS_MIN: usize = 1;

/// The timing of an operator at one batch.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Key in the history.
    pub key: Key,
    /// Exact description, including all sizes; trials with the same description must be identical.
    pub what: String,
    /// Batch, in multiples of the model's own.
    pub batch: usize,
    /// Amount of work.
    pub work: Work,
    /// Time by the uncorrected model.
    pub modelled: Duration,
    /// Seconds of the fastest run of the calibrating series.
    pub calibrates: f64,
    /// Seconds of the fastest run of the predicted series.
    pub foretold: f64,
}

/// A trial with the code that runs it.
pub struct TimedTrial<'a> {
    trial: Trial,
    run: Box<dyn FnMut() -> Result<(), RunError> + 'a>,
}

impl<'a> TimedTrial<'a> {
    /// Prepares an operator of a model with `batch` times its inputs; returns `None` if it moves
    /// nothing, or does not accept the larger inputs.
    pub fn for_operator(
        cpu: &'a Cpu,
        node: &Observation,
        batch: usize,
    ) -> Result<Option<Self>, WorkError> {
        let Some(inputs) = repeat_inputs(&node.inputs, batch) else {
            return Ok(None);
        };
        let subgraph = node_subgraph(
            &node.node,
            node.opset,
            &inputs,
            &node.weights,
            &node.outputs,
        );
        let ready = || -> Result<(Box<dyn Program>, Work), WorkError> {
            let program = cpu.compile(&subgraph)?;
            let made = program.run(&inputs)?.outputs;
            Ok((program, node_work(node, &inputs, &made)))
        };
        let (program, work) = match ready() {
            Ok(ready) => ready,
            Err(error) if batch == 1 => return Err(error),
            Err(_) => return Ok(None),
        };
        if work.launches == 0 {
            return Ok(None);
        }
        let trial = Trial::new(
            Key::for_work(node.node.op_type(), &node.class, &work),
            describe_operator(node, &inputs),
            batch,
            work,
            cpu.estimate(&work).time,
        );
        let run = Box::new(move || program.run(&inputs).map(|_| ()));
        Ok(Some(Self { trial, run }))
    }

    /// Prepares a copy of an operator's inputs and outputs to other memory of the machine.
    pub fn for_transfer(cpu: &'a Cpu, operator: &Trial) -> Self {
        let bytes = operator.work.bytes_read + operator.work.bytes_written;
        let work = Work {
            operations: 0,
            bytes_read: bytes,
            bytes_written: bytes,
            ..operator.work
        };
        let (from, mut to) = (vec![1u8; bytes as usize], vec![2u8; bytes as usize]);
        let trial = Trial::new(
            Key::for_work("(transfer)", "", &work),
            format!("{bytes} bytes"),
            operator.batch,
            work,
            cpu.estimate(&work).time,
        );
        let run = Box::new(move || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
            Ok(())
        });
        Self { trial, run }
    }

    /// Runs for a while, alternating between the two series.
    fn run_round(&mut self, clock: &dyn Fn() -> Duration) -> Result<(), RunError> {
        let begin = clock();
        let mut runs = 0;
        while runs < 2 * RUNS_MIN || clock().saturating_sub(begin) < TIME_EACH {
            let start = clock();
            (self.run)()?;
            let seconds = clock().saturating_sub(start).as_secs_f64().max(1e-9);
            let hand = match runs % 2 {
                0 => &mut self.trial.calibrates,
                _ => &mut self.trial.foretold,
            };
            *hand = hand.min(seconds);
            runs += 1;
        }
        Ok(())
    }
}

impl Trial {
    /// Creates a trial without times.
    pub fn new(key: Key, what: String, batch: usize, work: Work, modelled: Duration) -> Self {
        Self {
            key,
            what,
            batch,
            work,
            modelled,
            calibrates: f64::INFINITY,
            foretold: f64::INFINITY,
        }
    }
}

/// Times all trials in rounds, by `clock`.
pub fn time_trials(
    mut all: Vec<TimedTrial<'_>>,
    clock: &dyn Fn() -> Duration,
) -> Result<Vec<Trial>, RunError> {
    for _ in 0..ROUNDS {
        all.iter_mut().try_for_each(|it| it.run_round(clock))?;
    }
    Ok(all.into_iter().map(|it| it.trial).collect())
}

/// Returns the work of a node with these inputs and outputs.
fn node_work(
    node: &Observation,
    inputs: &BTreeMap<String, Tensor>,
    made: &BTreeMap<String, Tensor>,
) -> Work {
    let extent = |tensor: &'_ Tensor| (tensor.dtype(), tensor.dims().to_vec());
    let given = |name: &String| inputs.get(name).or_else(|| node.weights.get(name));
    let given: Vec<_> = node
        .node
        .input
        .iter()
        .map(|it| given(it).map(extent))
        .collect();
    let made: Vec<_> = node
        .node
        .output
        .iter()
        .filter_map(|it| made.get(it))
        .map(extent)
        .collect();
    let given: Vec<_> = given
        .iter()
        .map(|it| it.as_ref().map(tensor_extent))
        .collect();
    Work::for_node(
        &node.node,
        &given,
        &made.iter().map(tensor_extent).collect::<Vec<_>>(),
    )
}

fn tensor_extent((dtype, dims): &(souk_memory::DType, Vec<usize>)) -> Extent<'_> {
    Extent {
        dtype: *dtype,
        dims,
    }
}

/// Describes an operator with all properties that can affect its speed.
fn describe_operator(node: &Observation, inputs: &BTreeMap<String, Tensor>) -> String {
    let given = |name: &String| {
        let tensor = inputs.get(name).or_else(|| node.weights.get(name));
        tensor.map_or_else(String::new, |it| format!("{} {}", it.dtype(), it.shape()))
    };
    let given: Vec<String> = node.node.input.iter().map(given).collect();
    let (name, class) = (node.node.op_type(), &node.class);
    let mut attributes = node.node.attribute.clone();
    attributes.sort_by(|one, other| one.name().cmp(other.name()));
    format!("{name} {class} ({}) {attributes:?}", given.join(", "))
}

/// Repeats the inputs `times` times along the first axis, if they have the first one's rank and
/// size there. Inputs of another size count as shared by the whole batch.
fn repeat_inputs(
    inputs: &BTreeMap<String, Tensor>,
    times: usize,
) -> Option<BTreeMap<String, Tensor>> {
    let first = inputs.values().find(|it| !it.dims().is_empty())?;
    let (size, rank) = (first.dims()[0], first.dims().len());
    let more = |tensor: &Tensor| -> Option<Tensor> {
        if tensor.dims().len() != rank || tensor.dims()[0] != size || times == 1 {
            return Some(tensor.clone());
        }
        let mut dims: Vec<i64> = tensor.dims().iter().map(|&size| size as i64).collect();
        dims[0] *= times as i64;
        let shape = Shape::from_i64(&dims).ok()?;
        let bytes = tensor.bytes().repeat(times);
        Tensor::new(tensor.dtype(), shape, bytes.into()).ok()
    };
    let each = inputs.iter();
    each.map(|(name, tensor)| Some((name.clone(), more(tensor)?)))
        .collect()
}
