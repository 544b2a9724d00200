//! Runs whole subgraphs on a single device, one after the other; only steps of sessions can run
//! together. A [`Runner`](crate::execution::Runner) of one device uses it; several devices form a
//! group instead.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use souk_memory::{ContentId, Store};
use souk_onnx::subgraph::Subgraph;
use souk_vocabulary::processor::{Processor, Program};

use super::error::TaskError;
use super::programs::Programs;
use super::report::{ExpectedRun, Report};
use super::run_figures::{bytes_of_all, device_report, end_of};
use super::sessions::Sessions;
use super::single_history::SingleHistory;
use super::task::{Clock, RunResult, Task, weights_of};
use super::timeline::{Span, SpanKind, Timeline, UnixMicros};

/// A single device with its programs and its history.
pub(super) struct SingleDevice {
    pub(super) label: String,
    pub(super) processor: Arc<dyn Processor>,
    pub(super) store: Arc<Store>,
    pub(super) clock: Arc<Clock>,
    pub(super) programs: Programs,
    pub(super) history: SingleHistory,
    /// Set if this process serves a single lease.
    pub(super) sessions: OnceLock<Sessions>,
}

impl SingleDevice {
    pub(super) fn run(&self, task: &Task) -> Result<RunResult, TaskError> {
        let mut timeline = Timeline::default();
        let begin = (self.clock)();
        let (program, loaded_bytes) = self.load_program(task.model)?;
        let start = (self.clock)();
        if loaded_bytes > 0 {
            timeline.push(self.build_span(&task.name, SpanKind::TransferIn, begin, start));
        }
        let stepped = match self.sessions.get() {
            Some(sessions) => sessions.run_step(task, &program, || self.read_model(task.model))?,
            None => None,
        };
        let (outcome, forecast) = match stepped {
            Some(outcome) => (outcome, None),
            None => {
                let forecast = self.history.forecast_task(&self.store, task);
                (program.run(&task.inputs)?, forecast)
            }
        };
        let end = end_of(&*self.processor, &self.clock, start, outcome.busy);
        timeline.push(self.build_span(&task.name, SpanKind::Compute, start, end));
        let bytes_in = loaded_bytes + bytes_of_all(&task.inputs);
        let moved = [bytes_in, bytes_of_all(&outcome.outputs)];
        let device = device_report(self.processor.profile(), &outcome, moved);
        let mut report = Report {
            devices: BTreeMap::from([(self.label.clone(), device)]),
            ..Report::default()
        };
        report.read_times(&timeline);
        let expected = forecast.as_ref().and_then(|forecast| forecast.expected);
        report.against = expected.map(|expected| ExpectedRun {
            expected_micros: u64::try_from(expected.as_micros()).unwrap_or(u64::MAX),
            expected_joules: forecast.as_ref().and_then(|forecast| forecast.joules),
            single: None,
        });
        let learned =
            forecast.and_then(|forecast| self.history.record_outcome(&forecast, &outcome));
        Ok(RunResult {
            makespan: match self.processor.profile().emulated {
                true => outcome.busy,
                false => Duration::from_micros(report.makespan_micros),
            },
            outputs: outcome.outputs,
            report,
            timeline,
            busy: outcome.busy,
            learned: learned.into_iter().collect(),
        })
    }

    /// Returns whether a task should run at once, next to others, because its session combines
    /// steps of several sequences.
    pub(super) fn is_step(&self, task: &Task) -> bool {
        let program = self
            .sessions
            .get()
            .and_then(|_| self.programs.get(&task.model));
        program.is_some_and(|program| Sessions::may_step(task, &*program))
    }

    /// Returns the program of a model, and the bytes that it loaded (0 for a cached program).
    pub(super) fn load_program(
        &self,
        model: ContentId,
    ) -> Result<(Arc<dyn Program>, u64), TaskError> {
        if let Some(program) = self.programs.get(&model) {
            return Ok((program, 0));
        }
        let bytes = self.read_model(model)?;
        let mut loaded = bytes.len() as u64;
        let mut weights = BTreeMap::new();
        for (name, id) in weights_of(&self.store, model)? {
            let values = self.store.get(&id)?;
            let values = values.ok_or(TaskError::WeightMissing { name, id })?;
            loaded += values.len() as u64;
            weights.insert(id, values);
        }
        let free = || self.processor.memory_free_bytes();
        self.programs.make_room(loaded, free);
        let program = self.processor.compile(&Subgraph {
            model: bytes,
            weights,
        })?;
        let program: Arc<dyn Program> = Arc::from(program);
        self.programs.insert(model, program.clone());
        Ok((program, loaded))
    }

    fn read_model(&self, id: ContentId) -> Result<Bytes, TaskError> {
        let model = self.store.get(&id)?;
        model.ok_or(TaskError::ModelMissing { id })
    }

    fn build_span(&self, name: &str, kind: SpanKind, start: UnixMicros, end: UnixMicros) -> Span {
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
