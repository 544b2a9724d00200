//! Runs subgraphs on the devices of this machine: on one, or on a team of several.
//!
//! A subgraph is content: its model and its weights are fetched from the store by id, so whoever
//! sent them, what runs is what was named. Compiled programs are kept, since the same subgraph is
//! mostly run again.

mod cancel;
mod programs;
mod streaming;
mod team;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use souk_devices::onnx::{self, DecodeError};
use souk_devices::processor::{
    CompileError, Outcome, Processor, Program, RunError, Subgraph, weight_id,
};
use souk_devices::profile::Profile;
use souk_memory::holdings::PoolUse;
use souk_memory::space::Moved;
use souk_memory::transfers::TransferCounts;
use souk_memory::{ContentId, Store, StoreError, Tensor};
use thiserror::Error;

use crate::report::{Against, DeviceReport, Report, ReportedEnergy};
use crate::timeline::{Span, SpanKind, Timeline, UnixMicros};
pub use cancel::Cancel;
use programs::Programs;
pub use team::{
    Costs, LayError, Learned, LostDevice, Member, Precedence, Retrials, Sharing, Stream,
    TeamConfig, TeamError, TeamGoal, TeamRunError,
};
use team::{Lone, Request, Team};
use turns::Turns;

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
    /// From its start to its end; in the devices' own time if all of them are emulated.
    pub makespan: Duration,
    /// What the devices took for its operators.
    pub learned: Vec<Learned>,
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
    /// The devices cannot share the subgraph.
    #[error(transparent)]
    Lay(#[from] LayError),
    /// The run on several devices failed.
    #[error(transparent)]
    Team(#[from] TeamRunError),
    /// A request of a stream failed.
    #[error("request {request}: {cause}")]
    Request {
        /// Which, from 0.
        request: usize,
        /// Why.
        cause: Box<TaskError>,
    },
}

/// The clock a runner stamps spans with.
pub type Clock = dyn Fn() -> UnixMicros + Send + Sync;

/// Runs tasks on one device, or on several. Threads share it by reference; what runs at once
/// competes for the devices.
pub struct Runner {
    store: Arc<Store>,
    label: String,
    engine: Engine,
}

enum Engine {
    /// The caller's thread runs the device, or owners take turns.
    One(Arc<One>, Turns),
    /// Each device has a thread. A run goes on for a while where its caller left.
    Team(Arc<Team>),
}

/// One device.
struct One {
    label: String,
    processor: Arc<dyn Processor>,
    store: Arc<Store>,
    clock: Arc<Clock>,
    programs: Programs,
    seen: Lone,
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
        let label = self::label(label, &*processor);
        let one = One {
            seen: Lone::new(&label, processor.clone()),
            label: label.clone(),
            processor,
            store: store.clone(),
            clock,
            programs: Programs::default(),
        };
        Self {
            store,
            label,
            engine: Engine::One(Arc::new(one), Turns::default()),
        }
    }

    /// A runner of several devices, which share each task as its plan says. `label` is what they
    /// are called together.
    ///
    /// # Errors
    /// [`TeamError`].
    pub fn team(
        label: &str,
        members: Vec<Member>,
        store: Arc<Store>,
        clock: Arc<Clock>,
        config: TeamConfig,
    ) -> Result<Self, TeamError> {
        let team = Team::new(label, members, store.clone(), clock, config)?;
        Ok(Self {
            store,
            label: label.to_owned(),
            engine: Engine::Team(Arc::new(team)),
        })
    }

    /// What the devices are called together; one device's name as reports show it.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The devices by the names that reports show.
    #[must_use]
    pub fn devices(&self) -> Vec<(&str, &Arc<dyn Processor>)> {
        match &self.engine {
            Engine::One(one, _) => vec![(&one.label, &one.processor)],
            Engine::Team(team) => {
                let members = team.members().iter();
                members
                    .map(|member| (member.label.as_str(), &member.processor))
                    .collect()
            }
        }
    }

    /// Bytes that several devices moved between memories so far, and what host memory holds of
    /// their tensors now. One device's tensors stay with its caller.
    #[must_use]
    pub fn memory(&self) -> Option<(Moved, PoolUse)> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Team(team) => Some(team.memory()),
        }
    }

    /// Sets how many bytes of tensors between several devices host memory may hold. It grows, or
    /// shrinks and writes to disk what is over; one device's tensors stay with its caller.
    ///
    /// # Errors
    /// [`TeamRunError::Space`]: more than that is in use, or the disk is full or failed. What could
    /// go has gone.
    pub fn resize(&self, host_bytes_max: u64) -> Result<(), TeamRunError> {
        match &self.engine {
            Engine::One(..) => Ok(()),
            Engine::Team(team) => team.resize(host_bytes_max),
        }
    }

    /// Has the devices go on from what they were seen to take before.
    pub fn recall(&self, costs: &Costs) {
        match &self.engine {
            Engine::One(one, _) => one.seen.recall(costs),
            Engine::Team(team) => team.recall(costs),
        }
    }

    /// What the devices were seen to take.
    #[must_use]
    pub fn costs(&self) -> Costs {
        match &self.engine {
            Engine::One(one, _) => one.seen.costs(),
            Engine::Team(team) => team.costs(),
        }
    }

    /// Devices of several that were lost in a run and are given no work: each is tried again until
    /// it works or was tried often enough. One device by itself has each run anew.
    #[must_use]
    pub fn lost(&self) -> Vec<LostDevice> {
        match &self.engine {
            Engine::One(..) => Vec::new(),
            Engine::Team(team) => team.lost(),
        }
    }

    /// Transfers that several devices asked for ahead of need so far.
    #[must_use]
    pub fn transfers(&self) -> Option<TransferCounts> {
        match &self.engine {
            Engine::One(..) => None,
            Engine::Team(team) => Some(team.transfers()),
        }
    }

    /// Content that must be in the store before a model can run: its weights by name.
    ///
    /// # Errors
    /// [`TaskError::ModelMissing`], [`TaskError::Model`] or [`TaskError::Store`].
    pub fn weights_of(&self, model: ContentId) -> Result<Vec<(String, ContentId)>, TaskError> {
        weights_of(&self.store, model)
    }

    /// Makes a model ready, if it is not yet: what a provider does before it says it can run it.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing or refused, by name.
    pub fn prepare(&self, model: ContentId) -> Result<(), TaskError> {
        match &self.engine {
            Engine::One(one, _) => one.program(model).map(|_| ()),
            Engine::Team(team) => team.prepare(model),
        }
    }

    /// Runs a task and says what it took.
    ///
    /// # Errors
    /// [`TaskError`]: what is missing, refused or failed, by name.
    pub fn run(&self, task: &Task) -> Result<Ran, TaskError> {
        self.run_as(task, Precedence::default())
    }

    /// Runs a task that shares the devices with others by its precedence. What nobody owns shares
    /// one device as the threads of its callers do.
    ///
    /// # Errors
    /// As [`Runner::run`], and [`TeamRunError::Deadline`].
    pub fn run_as(&self, task: &Task, precedence: Precedence) -> Result<Ran, TaskError> {
        match &self.engine {
            Engine::One(one, turns) => match precedence.owner {
                None => one.run(task),
                Some(_) => turns.run(one, task, precedence, None),
            },
            Engine::Team(team) => team.run(task, precedence, None),
        }
    }

    /// Runs a task until somebody cancels it: then the caller is answered at once. What a device is
    /// at is let finish, and what it gives is thrown away.
    ///
    /// # Errors
    /// As [`Runner::run_as`], and [`TeamRunError::Cancelled`].
    pub fn run_until(
        &self,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<Ran, TaskError> {
        match &self.engine {
            Engine::One(one, turns) if precedence.owner.is_some() => {
                turns.run(one, task, precedence, Some(cancel))
            }
            Engine::One(one, _) => {
                let (one, task) = (one.clone(), task.clone());
                let ran = cancel
                    .run(move || one.run(&task))
                    .map_err(TeamRunError::Thread)?;
                ran.unwrap_or(Err(TeamRunError::Cancelled.into()))
            }
            // A plan is made and inputs are held before any device has work that could be ended:
            // either may take long.
            Engine::Team(team) => {
                let (team, task, own) = (team.clone(), task.clone(), cancel.clone());
                let ran = cancel
                    .run(move || team.run(&task, precedence, Some(&own)))
                    .map_err(TeamRunError::Thread)?;
                ran.unwrap_or(Err(TeamRunError::Cancelled.into()))
            }
        }
    }

    /// Requests of a stream that keep every device at work: of several devices one more than there
    /// are, so that who ends one has the next; of one device, which runs them one by one, one.
    #[must_use]
    pub fn stream_ahead(&self) -> usize {
        match &self.engine {
            Engine::One(..) => 1,
            Engine::Team(team) => team.stream_ahead(),
        }
    }

    /// Runs a task as one of a stream, until somebody cancels it. Callers run several at a time,
    /// [`stream_ahead`](Self::stream_ahead) of them and no more: several devices are then each at
    /// work on another one, where that answers sooner than one by one. [`Ran::busy`] is without
    /// what other requests of the stream were told before: together they have the time in which
    /// any device was at work. All else is each request's own.
    ///
    /// # Errors
    /// As [`Runner::run_until`].
    pub fn run_in_stream(
        &self,
        stream: &Stream,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<Ran, TaskError> {
        let begun = &|| ();
        self.run_request(Request { stream, begun }, task, precedence, cancel)
    }

    fn run_request(
        &self,
        request: Request<'_>,
        task: &Task,
        precedence: Precedence,
        cancel: &Cancel,
    ) -> Result<Ran, TaskError> {
        match &self.engine {
            Engine::One(..) => self.run_until(task, precedence, cancel),
            Engine::Team(team) => team.run_in_stream(request, task, precedence, Some(cancel)),
        }
    }
}

impl One {
    fn run(&self, task: &Task) -> Result<Ran, TaskError> {
        let mut timeline = Timeline::default();
        let foretold = self.seen.foretell(&self.store, task);
        let begin = (self.clock)();
        let (program, loaded_bytes) = self.program(task.model)?;
        let start = (self.clock)();
        if loaded_bytes > 0 {
            timeline.push(self.span(&task.name, SpanKind::TransferIn, begin, start));
        }
        let outcome = program.run(&task.inputs)?;
        let end = end_of(&*self.processor, &self.clock, start, outcome.busy);
        timeline.push(self.span(&task.name, SpanKind::Compute, start, end));
        let bytes_in = loaded_bytes + bytes(&task.inputs);
        let moved = [bytes_in, bytes(&outcome.outputs)];
        let device = device_report(self.processor.profile(), &outcome, moved);
        let mut report = Report {
            devices: BTreeMap::from([(self.label.clone(), device)]),
            ..Report::default()
        };
        report.read_times(&timeline);
        let expected = foretold.as_ref().and_then(|foretold| foretold.expected);
        report.against = expected.map(|expected| Against {
            expected_micros: u64::try_from(expected.as_micros()).unwrap_or(u64::MAX),
            expected_joules: foretold.as_ref().and_then(|foretold| foretold.joules),
            single: None,
        });
        let learned = foretold.and_then(|foretold| self.seen.learn(&foretold, &outcome));
        Ok(Ran {
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

impl Default for Precedence {
    fn default() -> Self {
        Self {
            priority: 0,
            weight: 1.0,
            owner: None,
            deadline: None,
        }
    }
}

/// Weights by name that a model names by content.
fn weights_of(store: &Store, model: ContentId) -> Result<Vec<(String, ContentId)>, TaskError> {
    let bytes = store
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

/// A device's name as reports show it.
fn label(label: &str, processor: &dyn Processor) -> String {
    let emulated = processor.profile().emulated;
    format!("{label}{}", if emulated { " (emulated)" } else { "" })
}

/// When a run ended: an emulated device's own time counts, be it ahead of the clock or behind.
fn end_of(
    processor: &dyn Processor,
    clock: &Arc<Clock>,
    start: UnixMicros,
    busy: Duration,
) -> UnixMicros {
    if processor.profile().emulated {
        let micros = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
        return start.later(micros);
    }
    clock()
}

/// What one run adds to its device's report.
fn device_report<T>(
    profile: &Profile,
    outcome: &Outcome<T>,
    [bytes_in, bytes_out]: [u64; 2],
) -> DeviceReport {
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
    DeviceReport {
        kind: profile.kind.name().to_owned(),
        emulated: profile.emulated,
        tasks: 1,
        operators: outcome.operators,
        engines: BTreeMap::from([(outcome.engine, 1)]),
        bytes_in,
        bytes_out,
        energy,
        ..DeviceReport::default()
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
