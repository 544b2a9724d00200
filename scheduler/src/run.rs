//! Runs subgraphs on one device of this machine.
//!
//! A subgraph is content: its model and its weights are fetched from the store by id, so whoever
//! sent them, what runs is what was named. Compiled programs are kept, since the same subgraph is
//! mostly run again.

mod programs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use souk_devices::onnx::{self, DecodeError};
use souk_devices::processor::{
    CompileError, Outcome, Processor, Program, RunError, Subgraph, weight_id,
};
use souk_memory::{ContentId, Store, StoreError, Tensor};
use thiserror::Error;

use crate::report::{DeviceReport, Report, ReportedEnergy};
use crate::timeline::{Span, SpanKind, Timeline, UnixMicros};
use programs::Programs;

/// A subgraph to run.
#[derive(Clone, Debug)]
pub struct Task {
    /// What it is called in reports and timelines.
    pub name: String,
    /// Its ONNX model, held by the store.
    pub model: ContentId,
    /// Input tensors by the names the model gives them.
    pub inputs: BTreeMap<String, Tensor>,
}

/// What running a task gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Output tensors by name.
    pub outputs: BTreeMap<String, Tensor>,
    /// What it took.
    pub report: Report,
    /// When what happened.
    pub timeline: Timeline,
    /// Time the device worked, by its own account: what is metered.
    pub busy: Duration,
}

/// Why a task did not run.
#[derive(Debug, Error)]
pub enum TaskError {
    /// The model is not in the store.
    #[error("the model {id} is not in the store")]
    ModelMissing {
        /// Its id.
        id: ContentId,
    },
    /// The model is none.
    #[error("the model {id}: {cause}")]
    Model {
        /// Its id.
        id: ContentId,
        /// What is wrong.
        cause: DecodeError,
    },
    /// A weight is not in the store.
    #[error("weight {name:?} ({id}) is not in the store")]
    WeightMissing {
        /// Its name in the model.
        name: String,
        /// Its id.
        id: ContentId,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device refuses the subgraph.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The clock a runner stamps spans with.
pub type Clock = dyn Fn() -> UnixMicros + Send + Sync;

/// Runs tasks on one device. Threads share it by reference; what runs at once competes for the
/// device.
pub struct Runner {
    processor: Arc<dyn Processor>,
    store: Arc<Store>,
    clock: Arc<Clock>,
    label: String,
    programs: Programs,
}

impl Runner {
    /// A runner of `processor`, called `label` in reports; `emulated` is added to it where due.
    #[must_use]
    pub fn new(
        label: &str,
        processor: Arc<dyn Processor>,
        store: Arc<Store>,
        clock: Arc<Clock>,
    ) -> Self {
        let emulated = processor.profile().emulated;
        let label = if emulated {
            format!("{label} (emulated)")
        } else {
            label.to_owned()
        };
        Self {
            processor,
            store,
            clock,
            label,
            programs: Programs::default(),
        }
    }

    /// The device's name as reports and timelines show it.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The device.
    #[must_use]
    pub fn processor(&self) -> &Arc<dyn Processor> {
        &self.processor
    }

    /// Content that must be in the store before a model can run: its weights by name.
    ///
    /// # Errors
    /// [`TaskError::ModelMissing`], [`TaskError::Model`] or [`TaskError::Store`].
    pub fn weights_of(&self, model: ContentId) -> Result<Vec<(String, ContentId)>, TaskError> {
        let bytes = self
            .store
            .get(&model)?
            .ok_or(TaskError::ModelMissing { id: model })?;
        let decoded = onnx::decode(bytes);
        let decoded = decoded.map_err(|cause| TaskError::Model { id: model, cause })?;
        let initializers = decoded.graph.iter().flat_map(|graph| &graph.initializer);
        let weight = |initializer: &onnx::TensorProto| {
            // A place that names no content is reported when the model is compiled.
            let id = weight_id(onnx::location(initializer)?)?;
            Some((initializer.name().to_owned(), id))
        };
        Ok(initializers.filter_map(weight).collect())
    }

    /// Makes a model ready, if it is not yet: what a provider does before it says it can run it.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing or refused, by name.
    pub fn prepare(&self, model: ContentId) -> Result<(), TaskError> {
        self.program(model).map(|_| ())
    }

    /// Runs a task and says what it took.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing, refused or failed, by name.
    pub fn run(&self, task: &Task) -> Result<Ran, TaskError> {
        let mut timeline = Timeline::default();
        let begin = (self.clock)();
        let (program, loaded_bytes) = self.program(task.model)?;
        let start = (self.clock)();
        if loaded_bytes > 0 {
            timeline.push(self.span(&task.name, SpanKind::TransferIn, begin, start));
        }
        let outcome = program.run(&task.inputs)?;
        let end = self.end_of(start, &outcome);
        timeline.push(self.span(&task.name, SpanKind::Compute, start, end));
        let bytes_in = loaded_bytes + bytes(&task.inputs);
        let report = self.report(&outcome, bytes_in, &timeline);
        Ok(Ran {
            outputs: outcome.outputs,
            report,
            timeline,
            busy: outcome.busy,
        })
    }

    /// When a run ended: an emulated device's own time counts, be it ahead of the clock or behind.
    fn end_of(&self, start: UnixMicros, outcome: &Outcome) -> UnixMicros {
        if self.processor.profile().emulated {
            let micros = u64::try_from(outcome.busy.as_micros()).unwrap_or(u64::MAX);
            return start.later(micros);
        }
        (self.clock)()
    }

    fn report(&self, outcome: &Outcome, bytes_in: u64, timeline: &Timeline) -> Report {
        let profile = self.processor.profile();
        let energy = outcome.energy.map(|energy| {
            let (measured_joules, modelled_joules) = if energy.measured {
                (energy.joules, 0.0)
            } else {
                (0.0, energy.joules)
            };
            ReportedEnergy {
                measured_joules,
                modelled_joules,
            }
        });
        let device = DeviceReport {
            kind: profile.kind.name().to_owned(),
            emulated: profile.emulated,
            tasks: 1,
            operators: outcome.operators,
            bytes_in,
            bytes_out: bytes(&outcome.outputs),
            energy,
            ..DeviceReport::default()
        };
        let devices = BTreeMap::from([(self.label.clone(), device)]);
        let mut report = Report {
            makespan_micros: 0,
            devices,
        };
        report.read_times(timeline);
        report
    }

    /// The program of a model, and the bytes that were loaded to make it (0 if it was there).
    fn program(&self, model: ContentId) -> Result<(Arc<dyn Program>, u64), TaskError> {
        if let Some(program) = self.programs.get(&model) {
            return Ok((program, 0));
        }
        let bytes = self
            .store
            .get(&model)?
            .ok_or(TaskError::ModelMissing { id: model })?;
        let mut loaded = bytes.len() as u64;
        let mut weights = BTreeMap::new();
        for (name, id) in self.weights_of(model)? {
            let values = self.store.get(&id)?;
            let values = values.ok_or(TaskError::WeightMissing { name, id })?;
            loaded += values.len() as u64;
            weights.insert(id, values);
        }
        let program = self.processor.compile(&Subgraph {
            model: bytes,
            weights,
        })?;
        let program: Arc<dyn Program> = Arc::from(program);
        self.programs.insert(model, program.clone());
        Ok((program, loaded))
    }

    fn span(&self, name: &str, kind: SpanKind, start: UnixMicros, end: UnixMicros) -> Span {
        let (device, lane, name) = (self.label.clone(), "run".to_owned(), name.to_owned());
        Span {
            device,
            lane,
            name,
            kind,
            start,
            end,
        }
    }
}

/// Bytes of elements of all tensors.
fn bytes(tensors: &BTreeMap<String, Tensor>) -> u64 {
    tensors
        .values()
        .map(|tensor| tensor.bytes().len() as u64)
        .sum()
}

#[cfg(test)]
mod tests;
