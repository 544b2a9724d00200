//! Trains a model over leases: checks a run before it buys anything, and chooses the batch of each
//! step.
//!
//! A step is a request of a session. Its outputs include the *states* (the parameters and the
//! optimiser's state), which feed the next request. So the states stay with the provider from step
//! to step, and the buyer sends only the batch. After every few steps the provider also returns the
//! states to the buyer, which stores them with the journal of the run ([`RunJournal`]). If a
//! provider or the buyer fails, another provider or a later process continues from there.
//!
//! Several workers can train side by side, in rounds; the part of one worker in a round is a *leg*,
//! a run of its own.

mod answer_times;
mod audited_segment;
mod error;
mod held_out;
mod journal;
mod learning_rate;
mod lease_outcome;
mod outer;
mod round_leg;
mod run;
mod run_error;
mod run_list;
mod run_shell;
mod run_start;
mod sent;
mod short_money;
mod worker_run;
mod workers;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Shape, Tensor};
use souk_scheduler::gradient::{Loss, Recipe, StepGraph, build_step_graph};
use souk_scheduler::graph::InputType;

pub use error::TrainingError;
pub use held_out::{HeldOut, HeldOutData};
pub use journal::{RunJournal, RunJournalError};
pub use learning_rate::{LearningRate, RateDecay};
pub use outer::{OUTER_LEARNING_RATE, OUTER_MOMENTUM};
pub use run::{RunQuote, TrainingEnd, TrainingEvent, TrainingResult, TrainingRun};
pub use run_error::TrainingRunError;
pub use run_list::{ListedRun, RunState, list_run, read_runs, read_runs_named, run_folder};
pub use short_money::ShortMoney;
pub use souk_roles::train::{AuditVerdict, LossBits, Past as RunPast};
pub use workers::{WORKERS_MAX, Workers};

use workers::Leg;

use super::job::{Job, Limits};

/// The most steps of a run.
pub const STEPS_MAX: u64 = 1_000_000;

/// The most batches of held-out examples (examples that evaluate a run and do not train it).
pub const EVALUATION_BATCHES_MAX: usize = 512;

/// The examples of a run. All tensors have one row for each example.
#[derive(Clone, Debug)]
pub struct TrainingData {
    /// The inputs of the model, by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// The name under which a step gets the targets; no value of the model can have it.
    pub target_name: String,
    /// The targets: the output that the model should produce for each example, or its label.
    pub target: Tensor,
}

/// The order of the examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleOrder {
    /// The order of the rows, the same in each pass.
    OfRows,
    /// A shuffled order, another one in each pass; this seed determines all of them.
    Shuffled(u64),
}

/// How long and how fast to train.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSettings {
    /// The number of steps; if there are several workers, each does this many.
    pub steps: u64,
    /// The number of examples in a batch; each worker takes one batch per step.
    pub batch: usize,
    /// The learning rate of each step.
    pub learning_rate: LearningRate,
    /// The order in which the steps take the examples.
    pub order: ExampleOrder,
    /// What to train, and by which loss and optimiser.
    pub recipe: Recipe,
    /// The workers that train side by side and whose parameters the buyer averages; `None` for a
    /// single worker without averages.
    pub workers: Option<Workers>,
}

impl TrainingSettings {
    /// Checks the settings for a number of examples.
    ///
    /// # Errors
    /// [`TrainingError::Batch`], [`TrainingError::Steps`], [`TrainingError::LearningRate`],
    /// [`TrainingError::Warmup`], [`TrainingError::GradientNorm`] or [`TrainingError::Workers`].
    pub fn check_bounds(&self, examples: usize) -> Result<(), TrainingError> {
        let TrainingSettings {
            steps,
            batch,
            learning_rate,
            ref recipe,
            workers,
            ..
        } = *self;
        if batch == 0 || batch > examples {
            return Err(TrainingError::Batch { batch, examples });
        }
        if steps == 0 || steps > STEPS_MAX {
            return Err(TrainingError::Steps { steps });
        }
        if let Some(norm) = recipe.gradient_norm_max
            && !(norm.is_finite() && norm > 0.0)
        {
            return Err(TrainingError::GradientNorm { norm });
        }
        if let Some(Workers { count, round_steps }) = workers
            && !(count > 0 && count <= WORKERS_MAX && round_steps > 0)
        {
            return Err(TrainingError::Workers { count, round_steps });
        }
        learning_rate.check_bounds(steps)
    }

    /// Returns the number of batches that a step of the run takes: one for each worker.
    #[must_use]
    pub fn batches_per_step(&self) -> u64 {
        self.workers.map_or(1, |workers| workers.count as u64)
    }
}

/// A checked run that has bought nothing yet.
#[derive(Clone, Debug)]
pub struct Training {
    /// The graph of a step, with the states before the first step.
    pub step: StepGraph,
    /// Inputs and targets of all examples.
    pub data: TrainingData,
    /// How long, how fast and what to train.
    pub settings: TrainingSettings,
    /// The held-out examples that evaluate the run, if there are any.
    pub held_out: Option<HeldOut>,
    examples: usize,
    /// The leg that this run is (one worker's part of a round); `None` for the whole run.
    leg: Option<Leg>,
}

impl Training {
    /// Checks that the model, the examples and the settings fit each other, and builds the graph of
    /// a step.
    ///
    /// # Errors
    /// [`TrainingError`] with the first thing that does not fit.
    pub fn prepare(
        model: Bytes,
        data: TrainingData,
        mut settings: TrainingSettings,
        held_out: Option<&HeldOutData>,
    ) -> Result<Training, TrainingError> {
        let examples = count_examples(&data)?;
        settings.check_bounds(examples)?;
        check_floats(&data)?;
        settings.recipe.has_evaluations = held_out.is_some();
        let of_held_out = |error| TrainingError::HeldOut(Box::new(error));
        let prepared = held_out.map(|it| HeldOut::prepare(it, &data, &settings));
        let prepared = prepared.transpose().map_err(of_held_out)?;
        let batch: BTreeMap<String, InputType> = data
            .inputs
            .iter()
            .map(|(name, all)| (name.clone(), batch_type(all, settings.batch)))
            .collect();
        let target = batch_type(&data.target, settings.batch);
        let target = (data.target_name.as_str(), &target);
        let step = build_step_graph(model, &batch, target, &settings.recipe)?;
        if settings.recipe.loss.has_labels() {
            let first = match settings.recipe.loss {
                Loss::CountedCrossEntropy => i64::MIN,
                _ => 0,
            };
            let classes = step.classes.unwrap_or(0);
            check_labels(&data, first, classes)?;
            let held_out = held_out.map(|it| check_labels(&it.examples, first, classes));
            held_out.transpose().map_err(of_held_out)?;
        }
        Ok(Training {
            step,
            data,
            settings,
            held_out: prepared,
            examples,
            leg: None,
        })
    }

    /// Returns the number of batches in one pass over the examples. A pass leaves out the last
    /// examples of its order if they do not fill a batch.
    #[must_use]
    pub fn batches_per_pass(&self) -> u64 {
        (self.examples / self.settings.batch) as u64
    }

    /// Returns the inputs of the step at a position, by name and without the states: its batch, and
    /// the optimiser's numbers for that position. Positions count from 0; those of a leg count from
    /// its first step.
    #[must_use]
    pub fn step_inputs(&self, position: u64) -> BTreeMap<String, Tensor> {
        let (position, batch) = self.locate_step(position);
        let rows = self.batch_rows(batch);
        let inputs = self.data.inputs.iter();
        let mut given: BTreeMap<String, Tensor> = inputs
            .map(|(name, all)| (name.clone(), take_rows(all, &rows)))
            .collect();
        let target = take_rows(&self.data.target, &rows);
        given.insert(self.data.target_name.clone(), target);
        let TrainingSettings {
            steps,
            learning_rate,
            ..
        } = self.settings;
        let rate = learning_rate.rate_at(position, steps);
        given.insert(
            StepGraph::schedule_input(),
            self.step.schedule(position, rate),
        );
        given
    }

    /// Returns the inputs that evaluate the held-out batch at `place` (from 0), by name and without
    /// the states.
    ///
    /// # Panics
    /// If there are no held-out examples.
    fn evaluation_inputs(&self, place: usize) -> BTreeMap<String, Tensor> {
        let held_out = self.held_out.as_ref().expect("there are held-out examples");
        let mut given = held_out.batch_inputs(place).clone();
        let schedule = self.step.evaluation_schedule();
        given.insert(StepGraph::schedule_input(), schedule);
        given
    }

    /// Returns the run of one leg, which begins from these states.
    fn for_leg(&self, leg: Leg, states: BTreeMap<String, Tensor>) -> Training {
        let mut training = self.clone();
        training.step.states = states;
        training.leg = Some(leg);
        training
    }

    /// Returns the number of steps of the run or the leg.
    fn steps(&self) -> u64 {
        self.leg.map_or(self.settings.steps, |leg| leg.steps)
    }

    /// Returns the held-out examples that this run or leg evaluates itself. A leg that trains
    /// evaluates none: a separate leg without steps does.
    fn held_out_of_steps(&self) -> Option<&HeldOut> {
        let evaluates = self.leg.is_none_or(Leg::is_evaluation);
        self.held_out.as_ref().filter(|_| evaluates)
    }

    /// Converts a step's position in this run or leg into its position in the whole run and the
    /// number of its batch. Workers take the batches in turn.
    fn locate_step(&self, position: u64) -> (u64, u64) {
        let Some(leg) = &self.leg else {
            return (position, position);
        };
        let position = leg.first + position;
        let batches = self.settings.batches_per_step();
        (position, position * batches + leg.worker as u64)
    }

    /// Returns the number of terms in the loss of a step, which is their mean: its examples or, for
    /// [`Loss::CountedCrossEntropy`], its labels that count.
    fn step_terms(&self, position: u64) -> u64 {
        let (_, batch) = self.locate_step(position);
        let rows = self.batch_rows(batch);
        match self.settings.recipe.loss {
            Loss::CountedCrossEntropy => {
                held_out::count_labels(&take_rows(&self.data.target, &rows))
            }
            _ => rows.len() as u64,
        }
    }

    /// Returns the number of requests that so many steps and evaluations need.
    fn count_requests(&self, steps: u64, evaluations: u64) -> u64 {
        let batches = self.held_out.as_ref().map_or(0, HeldOut::batch_count);
        steps.saturating_add(evaluations.saturating_mul(batches as u64))
    }

    /// Returns the number of requests of the whole run: one for each step of each worker, and one
    /// for each batch of an evaluation.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        let steps = self.settings.steps;
        let steps_of_all = steps.saturating_mul(self.settings.batches_per_step());
        self.count_requests(steps_of_all, self.evaluation_count())
    }

    /// Returns how often the run evaluates its held-out examples.
    #[must_use]
    pub fn evaluation_count(&self) -> u64 {
        let steps = self.settings.steps;
        match (&self.held_out, self.settings.workers) {
            (None, _) => 0,
            (Some(held_out), None) => held_out.evaluation_count(steps),
            (Some(held_out), Some(workers)) => {
                workers.evaluation_count(steps, held_out.every_steps)
            }
        }
    }

    /// Returns the hash of everything that determines the result: the graph of a step, the states
    /// before the first step, the examples and their order, the optimiser's numbers, the held-out
    /// examples, the workers and the leg. A later process can continue a run only if this hash is
    /// the same.
    #[must_use]
    pub fn subject(&self) -> ContentId {
        let TrainingSettings {
            steps,
            batch,
            learning_rate,
            order,
            recipe: _,
            workers,
        } = &self.settings;
        let mut bytes = ContentId::for_content(&self.step.model).as_bytes().to_vec();
        let tensors = self
            .data
            .inputs
            .iter()
            .map(|(name, it)| (name.as_str(), it));
        let target = (self.data.target_name.as_str(), &self.data.target);
        let states = self
            .step
            .states
            .iter()
            .map(|(name, it)| (name.as_str(), it));
        for (name, tensor) in tensors.chain([target]).chain(states) {
            bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(tensor.id().as_bytes());
        }
        // The graph contains the whole recipe except for the numbers that depend on a step's
        // position.
        for position in [0, 1, *steps] {
            let schedule = self.step.schedule(position, learning_rate.peak);
            bytes.extend_from_slice(schedule.id().as_bytes());
        }
        let order = match order {
            ExampleOrder::OfRows => [0, 0],
            ExampleOrder::Shuffled(seed) => [1, *seed],
        };
        for number in [*steps, *batch as u64, order[0], order[1]] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let LearningRate { warmup, decay, .. } = learning_rate;
        if (*warmup, *decay) != (0, RateDecay::Constant) {
            bytes.extend_from_slice(&warmup.to_le_bytes());
            bytes.extend_from_slice(decay.name().as_bytes());
        }
        if let Some(held_out) = &self.held_out {
            bytes.extend_from_slice(&held_out.every_steps.to_le_bytes());
            let batches = (0..held_out.batch_count()).map(|it| held_out.batch_inputs(it));
            for tensor in batches.flat_map(BTreeMap::values) {
                bytes.extend_from_slice(tensor.id().as_bytes());
            }
        }
        if let Some(workers) = workers {
            bytes.extend_from_slice(&workers.to_bytes());
        }
        if let Some(leg) = &self.leg {
            bytes.extend_from_slice(&leg.to_bytes());
        }
        ContentId::for_content(&bytes)
    }

    /// Returns the rows of the examples in the batch with this number, which counts over all
    /// passes.
    fn batch_rows(&self, number: u64) -> Vec<usize> {
        let batch = self.settings.batch;
        let (pass, place) = (
            number / self.batches_per_pass(),
            (number % self.batches_per_pass()) as usize,
        );
        let all = 0..self.examples;
        let order = match self.settings.order {
            ExampleOrder::OfRows => all.collect(),
            ExampleOrder::Shuffled(seed) => shuffle(all.collect(), seed, pass),
        };
        order[place * batch..(place + 1) * batch].to_vec()
    }
}

/// Returns the job of a lease of some requests, with the inputs of the first of them.
fn training_job(
    training: &Training,
    mut limits: Limits,
    requests: u64,
    inputs: BTreeMap<String, Tensor>,
) -> Job {
    // One sequence: each step reads the states from the step before it.
    limits.sequences = 1;
    limits.requests = u32::try_from(requests).unwrap_or(u32::MAX);
    limits.providers_min = 1;
    limits.providers_max = 1;
    limits.copies = 1;
    Job {
        model: training.step.model.clone(),
        folder: None,
        inputs,
        limits,
    }
}

/// Returns the number of examples, which must be the first dimension of every tensor.
fn count_examples(data: &TrainingData) -> Result<usize, TrainingError> {
    let rows = |tensor: &Tensor| tensor.dims().first().copied();
    let targets = rows(&data.target).ok_or_else(|| TrainingError::Scalar {
        name: data.target_name.clone(),
    })?;
    for (name, tensor) in &data.inputs {
        let found = rows(tensor).ok_or_else(|| TrainingError::Scalar { name: name.clone() })?;
        if found != targets {
            return Err(TrainingError::Rows {
                name: name.clone(),
                found,
                target: data.target_name.clone(),
                targets,
            });
        }
    }
    Ok(targets)
}

/// Checks that all 32-bit floats are finite: one NaN would make every parameter a NaN in its step.
fn check_floats(data: &TrainingData) -> Result<(), TrainingError> {
    let target = (&data.target_name, &data.target);
    for (name, tensor) in data.inputs.iter().chain([target]) {
        let is_f32 = tensor.dtype() == DType::F32;
        let floats = is_f32.then(|| tensor.to_vec::<f32>()).and_then(Result::ok);
        let mut floats = floats.iter().flatten();
        if let Some(element) = floats.position(|it| !it.is_finite()) {
            let width = tensor.shape().element_count() / tensor.dims()[0];
            let (name, row) = (name.clone(), element / width);
            return Err(TrainingError::NotFinite { name, row });
        }
    }
    Ok(())
}

/// Checks that each label is a class (from 0, below `classes`) or, if `first` is negative, a label
/// from `first` to -1, which does not count.
fn check_labels(data: &TrainingData, first: i64, classes: usize) -> Result<(), TrainingError> {
    let labels = match data.target.dtype() {
        DType::I32 => data.target.to_vec::<i32>().map(|all| {
            let all = all.into_iter();
            all.map(i64::from).collect::<Vec<_>>()
        }),
        _ => data.target.to_vec::<i64>(),
    };
    let labels = labels.expect("the step was built for labels of these types");
    let is_class = |label: i64| {
        (first <= label && label < 0) || usize::try_from(label).is_ok_and(|it| it < classes)
    };
    let Some(place) = labels.iter().position(|label| !is_class(*label)) else {
        return Ok(());
    };
    let width = labels.len() / data.target.dims()[0];
    Err(TrainingError::Label {
        name: data.target_name.clone(),
        row: place / width,
        label: labels[place],
        classes,
    })
}

/// Returns the type of a tensor with `batch` rows of `all`.
fn batch_type(all: &Tensor, batch: usize) -> InputType {
    let mut dims = all.dims().to_vec();
    dims[0] = batch;
    let dtype = all.dtype();
    InputType { dtype, dims }
}

/// Returns some rows of a tensor.
fn take_rows(all: &Tensor, rows: &[usize]) -> Tensor {
    let width = all.bytes().len() / all.dims()[0];
    let mut bytes = Vec::with_capacity(rows.len() * width);
    for row in rows {
        bytes.extend_from_slice(&all.bytes()[row * width..(row + 1) * width]);
    }
    let dims = batch_type(all, rows.len()).dims;
    let shape = Shape::new(dims).expect("some rows are fewer than all");
    Tensor::new(all.dtype(), shape, bytes.into()).expect("the rows have the width of the tensor's")
}

/// Shuffles the rows for a pass: a Fisher-Yates shuffle with SplitMix64, which the seed and the
/// number of the pass initialise. The same seed must give the same batches on every machine and in
/// every version.
fn shuffle(mut rows: Vec<usize>, seed: u64, pass: u64) -> Vec<usize> {
    let mut state = seed ^ pass.wrapping_mul(0xD1B5_4A32_D192_ED03);
    let mut draw = |below: usize| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * below as u128) >> 64) as usize
    };
    for last in (1..rows.len()).rev() {
        rows.swap(last, draw(last + 1));
    }
    rows
}

#[cfg(test)]
mod tests;
