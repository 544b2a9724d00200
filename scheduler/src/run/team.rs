//! Several devices of one machine that run a subgraph together.
//!
//! For the shapes of a task's inputs the subgraph is planned over the devices once, cut along the
//! plan, and run by a [`Crew`]: pieces that do not need each other run at the same time, a failed
//! device's pieces run on the others, and what was measured corrects the next plan. Tensors are
//! held by a [`Space`]: devices that share the host's memory hand them on without a copy, and what
//! memory has no room for goes to disk.

mod choose;
mod cores;
mod costs;
mod courses;
mod divide;
mod ending;
mod fallbacks;
mod flow;
mod frugal;
mod laid;
mod lanes;
mod line;
mod loaded;
mod log;
mod lone;
mod memories;
mod modelled;
mod moved;
mod mover;
mod offers;
mod place;
mod requests;
mod returning;
mod wishes;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_devices::onnx::{self, NodeProto};
use souk_devices::processor::{CompileError, Processor, RunError, Unsupported};
use souk_devices::system;
use souk_memory::holdings::PoolUse;
use souk_memory::paths::{Path, PathKind};
use souk_memory::place::Place;
use souk_memory::space::{Moved, SpaceConfig, SpaceError};
use souk_memory::transfers::TransferCounts;
use souk_memory::{ContentId, DType, Store};
use thiserror::Error;

use super::{Cancel, Clock, Ran, Task, TaskError};
use crate::cut::CutError;
use crate::executor::crew::SubmitError;
use crate::executor::{Ask, Crew, Job, Moment, Results, Speeds};
use crate::graph::ImportError;
use crate::problem::ProblemError;
use crate::report::{Against, Single};
use crate::split::SplitError;
use cores::{Cores, Watch};
use costs::Ledger;
pub use costs::{Costs, Learned};
use ending::ended_well;
use flow::{Finished, Flow, Taken};
pub use frugal::TeamGoal;
use laid::{Before, Laid, Setting};
use loaded::Loaded;
pub(super) use lone::Lone;
use memories::{Memories, MemoryError};
use mover::Mover;
pub(super) use requests::Request;
pub use requests::Stream;
use returning::Returning;
pub use returning::{LostDevice, Retrials};

/// Plans kept; a provider serves few models at a time.
const PLANS_MAX: usize = 16;

/// A disk until it was measured: an SSD on SATA.
const DISK: Path = Path {
    kind: PathKind::File,
    latency: Duration::from_micros(100),
    bytes_per_second: 500e6,
};

/// A device of a team.
#[derive(Clone)]
pub struct Member {
    /// What it is called in reports; `emulated` is added where due.
    pub label: String,
    /// The device.
    pub processor: Arc<dyn Processor>,
}

/// What a team may use beside its devices.
#[derive(Clone, Debug)]
pub struct TeamConfig {
    /// Bytes of tensors between devices that are kept in memory.
    pub host_bytes_max: u64,
    /// Where those go for which there is no room, and how many bytes.
    pub spill: Option<(PathBuf, u64)>,
    /// Whether devices share single operators.
    pub sharing: Sharing,
    /// When devices that were lost in a run are tried again.
    pub retrials: Retrials,
    /// What plans make small.
    pub goal: TeamGoal,
}

/// Whether devices share single operators.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sharing {
    /// Where that saves a fifth of the operator's time.
    #[default]
    WhereItPays,
    /// Not at all.
    Never,
    /// All that can be, in these parts, one for each device: for measurements.
    Given(Vec<f64>),
}

/// How a run is told apart from others that share the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precedence {
    /// Runs of a higher one go first.
    pub priority: u8,
    /// Its part of the devices beside other runs.
    pub weight: f64,
    /// Whose it is: runs of one owner, such as a lease, have one part together.
    pub owner: Option<u64>,
    /// When it must have ended.
    pub deadline: Option<Moment>,
}

/// Why a team was not set up.
#[derive(Debug, Error)]
pub enum TeamError {
    /// A team of nobody.
    #[error("a team needs a device")]
    Empty,
    /// The system gives no more threads.
    #[error("cannot start a thread for each device: {0}")]
    Threads(#[from] std::io::Error),
    /// Memory or the spill folder.
    #[error(transparent)]
    Space(#[from] SpaceError),
}

/// Why a subgraph could not be laid out over the devices.
#[derive(Debug, Error)]
pub enum LayError {
    /// The model could not be read for these inputs.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The plan cannot be cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The pieces make no problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// An operator cannot be shared out.
    #[error(transparent)]
    Split(#[from] SplitError),
}

/// Why a run that was laid out did not end well.
#[derive(Debug, Error)]
pub enum TeamRunError {
    /// The devices have as many jobs as they may.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A tensor found no room or was lost.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A device failed as it gave or took a tensor.
    #[error("a tensor could not be moved: {0}")]
    Memory(RunError),
    /// What was made lay in the memory of a device that failed, and nothing makes it again.
    #[error("what the run made went with a device that failed")]
    Gone,
    /// A piece failed wherever it ran.
    #[error("{piece} failed: {cause}")]
    Piece {
        /// Which piece.
        piece: String,
        /// Why.
        cause: String,
    },
    /// No device is left for a piece.
    #[error("no device is left that runs {piece}; those that failed said: {faults}")]
    NoDevice {
        /// Which piece.
        piece: String,
        /// What each said.
        faults: String,
    },
    /// Its deadline came first.
    #[error("the run's deadline came before its end")]
    Deadline,
    /// It was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The system gives no thread for it.
    #[error("cannot start a thread for the run: {0}")]
    Thread(std::io::Error),
}

/// The devices, their threads and their memory.
pub(super) struct Team {
    /// What they are called together.
    label: String,
    members: Vec<Member>,
    crew: Crew,
    store: Arc<Store>,
    clock: Arc<Clock>,
    memories: Arc<Memories>,
    mover: Mover,
    loaded: Arc<Loaded>,
    speeds: Mutex<Speeds>,
    costs: Mutex<Ledger>,
    sharing: Sharing,
    goal: TeamGoal,
    cores: Cores,
    watch: Arc<Mutex<Watch>>,
    plans: Mutex<VecDeque<(Key, Arc<Laid>)>>,
    returning: Returning,
}

/// What a plan is for: a model, and the inputs' types and shapes.
type Key = (ContentId, Vec<(String, DType, Vec<usize>)>);

impl Team {
    pub fn new(
        name: &str,
        members: Vec<Member>,
        store: Arc<Store>,
        clock: Arc<Clock>,
        config: TeamConfig,
    ) -> Result<Self, TeamError> {
        if members.is_empty() {
            return Err(TeamError::Empty);
        }
        let label = |member: Member| Member {
            label: super::label(&member.label, &*member.processor),
            ..member
        };
        let members: Vec<Member> = members.into_iter().map(label).collect();
        let crew = Crew::start(members.len())?;
        let hand_over = offers::hand_over(&members, &crew);
        let memories = Memories::open(
            members.clone(),
            SpaceConfig {
                host_bytes_max: config.host_bytes_max,
                spill: config.spill,
                disk: DISK,
            },
            hand_over,
        )?;
        let memories = Arc::new(memories);
        let cores = Cores::new(&members, system::cores());
        Ok(Self {
            label: name.to_owned(),
            crew,
            mover: Mover::start(memories.clone())?,
            loaded: Arc::new(Loaded::new(members.len())),
            speeds: Mutex::new(Speeds::new(offers::KINDS, members.len())),
            costs: Mutex::new(Ledger::new(&members, cores.clone())),
            watch: Arc::new(Mutex::new(Watch::new(cores.clone()))),
            cores,
            returning: Returning::new(members.clone(), config.retrials),
            sharing: config.sharing,
            goal: config.goal,
            members,
            store,
            clock,
            memories,
            plans: Mutex::default(),
        })
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What was brought back from disk before it was needed.
    pub fn transfers(&self) -> TransferCounts {
        self.mover.counts()
    }

    /// Bytes moved between memories since the team began, and what host memory holds now.
    pub fn memory(&self) -> (Moved, PoolUse) {
        let space = self.memories.lock();
        (space.moved(), space.pool(Place::Host))
    }

    pub fn resize(&self, host_bytes_max: u64) -> Result<(), TeamRunError> {
        match self.memories.resize(host_bytes_max) {
            Err(MemoryError::Space(error)) => Err(error.into()),
            Err(MemoryError::Device { cause, .. }) => Err(TeamRunError::Memory(cause)),
            Err(MemoryError::Gone) => Err(TeamRunError::Gone),
            Ok(()) => Ok(()),
        }
    }

    /// Whether some device runs each node; what is planned is decided with the first inputs.
    pub fn prepare(&self, model: ContentId) -> Result<(), TaskError> {
        let bytes = self.store.get(&model)?;
        let bytes = bytes.ok_or(TaskError::ModelMissing { id: model })?;
        let decoded = onnx::decode(bytes);
        let decoded = decoded.map_err(|cause| TaskError::Model { id: model, cause })?;
        let nodes = decoded.graph.iter().flat_map(|graph| &graph.node);
        nodes.into_iter().try_for_each(|node| {
            self.supported(node)
                .map_err(|unsupported| CompileError::from(unsupported).into())
        })
    }

    fn supported(&self, node: &NodeProto) -> Result<(), Unsupported> {
        let mut refused = None;
        for member in &self.members {
            match member.processor.supports(node) {
                Ok(()) => return Ok(()),
                Err(unsupported) => refused.get_or_insert(unsupported),
            };
        }
        Err(refused.expect("a team has a device"))
    }

    pub fn run(
        &self,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<Ran, TaskError> {
        self.take_back();
        self.run_with(task, (precedence, cancel), None)
    }

    /// Runs a task by itself, of a stream or of none.
    fn run_with(
        &self,
        task: &Task,
        until: (Precedence, Option<&Cancel>),
        request: Option<Request<'_>>,
    ) -> Result<Ran, TaskError> {
        let left = || Some(until.0.deadline?.since(Moment::now()));
        let laid = self.laid(task, left())?;
        // What has its place runs nowhere else.
        let wished = laid.wished || laid.energy.frugal.is_some();
        match self.run_laid(task, laid, until, request) {
            // What nodes asked for failed: any other will do then, from the beginning.
            Err(TaskError::Team(TeamRunError::NoDevice { .. })) if wished => {
                let key = key(task);
                self.plans().retain(|(held, _)| *held != key);
                self.run_laid(task, self.laid(task, left())?, until, request)
            }
            ran => ran,
        }
    }

    fn run_laid(
        &self,
        task: &Task,
        laid: Arc<Laid>,
        (precedence, cancel): (Precedence, Option<&Cancel>),
        request: Option<Request<'_>>,
    ) -> Result<Ran, TaskError> {
        let stream = request.map(|request| request.stream);
        self.memories.refresh(self.crew.lost());
        let mut moved = self.moved();
        if let Some(stream) = stream {
            flow::lock(&stream.moved).get_or_insert_with(|| moved.clone());
        }
        let flow = Flow::new(
            laid.clone(),
            self.members.clone(),
            self.memories.clone(),
            self.clock.clone(),
            self.mover.asking(),
            self.watch.clone(),
            &task.inputs,
        )?;
        let flow = flow.called(&task.name);
        let flow = Arc::new(match stream {
            Some(stream) => flow.beside(&stream.ends),
            None => flow,
        });
        let (worker, keeper) = (flow.clone(), flow.clone());
        let speeds = self.speeds().clone();
        let expected = laid.expected(&speeds, &laid::lock(&self.costs));
        let running = self.crew.submit(Job {
            problem: laid.problem.clone(),
            plan: Some(laid.schedule.clone()),
            keeps_plan: offers::all_emulated(&self.members),
            kinds: laid.kinds.clone(),
            speeds,
            ways: laid.ways(),
            work: Arc::new(move |call| worker.run_piece(call)),
            results: self.results(keeper),
            priority: precedence.priority,
            weight: precedence.weight,
            owner: precedence.owner,
            deadline: precedence.deadline,
        });
        let running = running.map_err(TeamRunError::from)?;
        if let Some(request) = request {
            (request.begun)();
        }
        let watched = cancel.map(|cancel| cancel.watch(running.canceller()));
        let execution = running.wait();
        drop(watched);
        self.on_ran(&execution);
        let name = |task: usize| flow.name_of(&laid.pieces[task]);
        ended_well(&execution, name, || self.crew.losses())?;
        self.speeds().clone_from(&execution.speeds);
        let mut finished = flow.finish()?;
        let learned = self.learn(&laid, std::mem::take(&mut finished.taken));
        let mut ran = self.ran((&laid, expected), finished);
        ran.learned = learned;
        ran.report.memory = match stream {
            Some(stream) => {
                ran.busy = stream.charge(&ran.timeline);
                // What was moved since another request was told of it.
                self.memory_report(flow::lock(&stream.moved).get_or_insert(moved))
            }
            None => self.memory_report(&mut moved),
        };
        ran.report.fallbacks = fallbacks::told(&laid, &execution, &self.members);
        Ok(ran)
    }

    /// What becomes of a failed device's results: all lie in host memory, unless a device has one
    /// of its own.
    fn results(&self, flow: Arc<Flow>) -> Results {
        if !self.memories.any_own() {
            return Results::Survive;
        }
        Results::Kept(Arc::new(move |ask| match ask {
            Ask::Kept { by, reader } => flow.keeps(by, reader),
            Ask::Lost { device } => {
                flow.lose(device);
                true
            }
        }))
    }

    /// What the pieces' times say of their operators, which the next plan goes by.
    fn learn(&self, laid: &Laid, taken: Vec<Taken>) -> Vec<Learned> {
        let mut ledger = laid::lock(&self.costs);
        let told = taken.into_iter().filter_map(|taken| {
            let Taken {
                call,
                busy,
                beside,
                energy,
            } = taken;
            let works = &laid.works[call.task];
            let measured = costs::measured(works, call.device, busy, energy)?;
            Some(ledger.learn(call.device, measured, beside))
        });
        told.collect()
    }

    /// Goes on from what the devices were seen to take before.
    pub fn recall(&self, costs: &Costs) {
        laid::lock(&self.costs).recall(costs);
    }

    /// What the devices were seen to take.
    pub fn costs(&self) -> Costs {
        laid::lock(&self.costs).costs()
    }

    fn ran(&self, (laid, expected): (&Laid, Duration), finished: Finished) -> Ran {
        let Finished {
            outputs,
            mut report,
            timeline,
            modelled,
            ..
        } = finished;
        report.read_times(&timeline);
        let makespan = modelled.unwrap_or(Duration::from_micros(report.makespan_micros));
        report.against = Some(Against {
            expected_micros: micros(expected),
            expected_joules: laid.energy.joules,
            single: laid.single.map(|(device, time)| Single {
                device: self.members[device].label.clone(),
                expected_micros: micros(time),
            }),
        });
        Ran {
            outputs,
            busy: Duration::from_micros(timeline.computing_micros()),
            report,
            timeline,
            makespan,
            learned: Vec::new(),
        }
    }

    /// The plan for a task's model and shapes that is to end so soon: made before, unless the
    /// devices turned out to be faster or slower than it believed, one was lost, or one is back.
    fn laid(&self, task: &Task, left: Option<Duration>) -> Result<Arc<Laid>, TaskError> {
        let key = key(task);
        let speeds = self.speeds().clone();
        let known = self
            .plans()
            .iter()
            .find(|(held, _)| *held == key)
            .map(|(_, laid)| laid.clone());
        let is_fresh = |laid: &Arc<Laid>| laid.suits(left) && self.is_fresh(laid, &speeds);
        let fresh = known.as_ref().filter(|laid| is_fresh(laid));
        if let Some(laid) = fresh {
            return Ok(laid.clone());
        }
        let loaded = known.map(|laid| laid.loaded());
        let drop = || self.plans().retain(|(held, _)| *held != key);
        let setting = Setting {
            left,
            before: loaded.map(|loaded| Before {
                loaded,
                drop: &drop,
            }),
            ..self.setting()
        };
        let laid = Arc::new(choose::lay(&setting, task, speeds)?);
        drop();
        let mut plans = self.plans();
        if plans.len() == PLANS_MAX {
            plans.pop_front();
        }
        plans.push_back((key, laid.clone()));
        assert!(plans.len() <= PLANS_MAX, "plans are bounded");
        Ok(laid)
    }

    /// Whether what is known of the devices now would still make a plan.
    fn is_fresh(&self, laid: &Laid, speeds: &Speeds) -> bool {
        let links = self.memories.links();
        let costs = laid::lock(&self.costs);
        laid.without == self.crew.lost()
            && laid.is_fresh(speeds, &links, &costs)
            && laid.draws(&self.members, &costs)
    }

    fn setting(&self) -> Setting<'_> {
        Setting {
            members: &self.members,
            store: &self.store,
            loaded: &self.loaded,
            links: self.memories.links(),
            sharing: &self.sharing,
            cores: &self.cores,
            lost: self.crew.lost(),
            costs: &self.costs,
            goal: self.goal,
            left: None,
            before: None,
        }
    }

    fn speeds(&self) -> MutexGuard<'_, Speeds> {
        self.speeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plans(&self) -> MutexGuard<'_, VecDeque<(Key, Arc<Laid>)>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a task's plan is kept by.
fn key(task: &Task) -> Key {
    let shape = |(name, tensor): (&String, &souk_memory::Tensor)| {
        (name.clone(), tensor.dtype(), tensor.dims().to_vec())
    };
    (task.model, task.inputs.iter().map(shape).collect())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
