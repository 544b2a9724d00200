//! Runs subgraphs on a group: several devices of one machine that work together.
//!
//! The group plans the subgraph over the devices once for each set of input shapes, cuts it along
//! the plan into fragments (parts that one device runs as a whole), and runs it by a
//! [`WorkerPool`]. Independent fragments run at the same time, a failed device's fragments run on
//! the others, and measurements will correct the next plan. A [`Space`] holds the tensors: devices
//! that share the host's memory pass them on without a copy, and tensors that do not fit in memory
//! go to disk.

mod core_contention;
mod device_requirements;
mod emulated_time;
mod execution_plan;
mod fallbacks;
mod fragment;
mod fragments;
pub(super) mod group_problem;
mod held_tensor;
mod links;
mod lost_devices;
mod memories;
mod memory_report;
pub(super) mod offers;
mod outcome;
mod plan_choice;
mod prefetcher;
mod program_cache;
mod refusals;
mod run_log;
mod run_state;
mod shared_operators;
mod sharing_choice;
mod sharing_plan;
mod stream_requests;
mod stream_routes;
mod transfer_queue;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_memory::holdings::PoolUse;
use souk_memory::location::Location;
use souk_memory::paths::{Path, PathKind};
use souk_memory::space::{MoveTotals, SpaceConfig};
use souk_memory::transfers::TransferCounts;
use souk_memory::{ContentId, Store};
use souk_onnx as onnx;
use souk_onnx::NodeProto;
use souk_onnx::subgraph::{CompileError, Unsupported};
use souk_vocabulary::processor::Processor;

use super::cancel::Cancel;
use super::dispatch::{ResultQuestion, Results};
use super::error::{GroupError, GroupRunError, TaskError};
use super::group::core_contention::CoreContentionWatch;
use super::group::execution_plan::ExecutionPlan;
use super::group::group_problem::{GroupSetting, ReplacedPlan};
use super::group::memories::{Memories, MemoryError};
use super::group::outcome::check_completion;
use super::group::prefetcher::Prefetcher;
use super::group::program_cache::ProgramCache;
use super::group::run_state::{FragmentUsage, RunState, RunTotals};
use super::lock::lock;
use super::report::{ExpectedRun, SingleForecast};
use super::run_figures::{report_label, to_micros};
use super::task::{Clock, PLANS_MAX, PlanKey, Precedence, RunResult, Task, plan_key};
use super::worker_pool::{Job, Moment, WorkerPool};
use crate::learning::core_sharing::CoreSharing;
use crate::learning::device_histories::DeviceHistories;
use crate::learning::estimates::joint_measurement;
use crate::learning::{CostHistory, KINDS, Measurement, Speeds};
use crate::planning::objective::Objective;
use lost_devices::LostDevices;
pub use lost_devices::{LostDevice, Retrials, Trial};
pub(super) use stream_requests::Request;
pub use stream_requests::Stream;

/// The assumed path to a disk before any measurement: an SSD on SATA.
const DISK: Path = Path {
    kind: PathKind::File,
    latency: Duration::from_micros(100),
    bytes_per_second: 500e6,
};

/// A device of a group.
#[derive(Clone)]
pub struct GroupDevice {
    /// Name in reports; an emulated device gets the suffix `emulated`.
    pub label: String,
    /// The device's processor.
    pub processor: Arc<dyn Processor>,
}

/// Resources and policies of a group.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Maximum bytes of tensors between devices in host memory.
    pub host_bytes_max: u64,
    /// Folder for tensors that do not fit in memory, and its maximum bytes.
    pub spill: Option<(PathBuf, u64)>,
    /// Whether devices share single operators.
    pub sharing: Sharing,
    /// When the group retries devices that runs have lost.
    pub retrials: Retrials,
    /// The quantity that plans minimise. Devices of one owner have no price, so here the cheapest
    /// plan is the fastest.
    pub objective: Objective,
}

/// States whether devices share single operators.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sharing {
    /// They share an operator if that saves a fifth of its time.
    #[default]
    WhereItPays,
    /// They never share an operator.
    Never,
    /// They share every operator that they can, in these parts, one for each device: for
    /// measurements.
    Given(Vec<f64>),
}

/// The devices, their threads and their memories.
pub(super) struct DeviceGroup {
    /// Name of the group.
    label: String,
    members: Vec<GroupDevice>,
    pool: WorkerPool,
    store: Arc<Store>,
    clock: Arc<Clock>,
    memories: Arc<Memories>,
    prefetcher: Prefetcher,
    program_cache: Arc<ProgramCache>,
    speeds: Mutex<Speeds>,
    costs: Mutex<DeviceHistories>,
    sharing: Sharing,
    objective: Objective,
    cores: CoreSharing,
    watch: Arc<Mutex<CoreContentionWatch>>,
    plans: Mutex<VecDeque<(PlanKey, Arc<ExecutionPlan>)>>,
    lost_devices: LostDevices,
}

impl DeviceGroup {
    pub fn new(
        name: &str,
        members: Vec<GroupDevice>,
        store: Arc<Store>,
        clock: Arc<Clock>,
        config: GroupConfig,
    ) -> Result<Self, GroupError> {
        if members.is_empty() {
            return Err(GroupError::Empty);
        }
        let label = |member: GroupDevice| GroupDevice {
            label: report_label(&member.label, &*member.processor),
            ..member
        };
        let members: Vec<GroupDevice> = members.into_iter().map(label).collect();
        let pool = WorkerPool::start(members.len())?;
        let hand_over = links::hand_over(&members, &pool);
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
        let used: Vec<usize> = members.iter().map(|it| it.processor.host_cores()).collect();
        let cores = CoreSharing::for_this_machine(&used);
        Ok(Self {
            label: name.to_owned(),
            pool,
            prefetcher: Prefetcher::start(memories.clone())?,
            program_cache: Arc::new(ProgramCache::new(members.len())),
            speeds: Mutex::new(Speeds::new(KINDS, members.len())),
            costs: Mutex::new(new_histories(&members, cores.clone())),
            watch: Arc::new(Mutex::new(CoreContentionWatch::new(cores.clone()))),
            cores,
            lost_devices: LostDevices::new(members.clone(), config.retrials),
            sharing: config.sharing,
            objective: config.objective,
            members,
            store,
            clock,
            memories,
            plans: Mutex::default(),
        })
    }

    pub fn members(&self) -> &[GroupDevice] {
        &self.members
    }

    /// Returns the counts of transfers that the prefetcher made ahead of need.
    pub fn transfer_counts(&self) -> TransferCounts {
        self.prefetcher.transfer_counts()
    }

    /// Returns the bytes moved between memories since the group began, and the present use of host
    /// memory.
    pub fn memory_stats(&self) -> (MoveTotals, PoolUse) {
        let space = self.memories.lock();
        (space.move_totals(), space.pool_use(Location::Host))
    }

    pub fn set_host_limit(&self, host_bytes_max: u64) -> Result<(), GroupRunError> {
        match self.memories.set_host_limit(host_bytes_max) {
            Err(MemoryError::Space(error)) => Err(error.into()),
            Err(MemoryError::Device { cause, .. }) => Err(GroupRunError::Memory(cause)),
            Err(MemoryError::Gone) => Err(GroupRunError::Gone),
            Ok(()) => Ok(()),
        }
    }

    /// Checks that some device can run each node. The plan itself must wait for the first inputs.
    pub fn prepare_model(&self, model: ContentId) -> Result<(), TaskError> {
        let bytes = self.store.get(&model)?;
        let bytes = bytes.ok_or(TaskError::ModelMissing { id: model })?;
        let decoded = onnx::decode_model(bytes);
        let decoded = decoded.map_err(|cause| TaskError::Model { id: model, cause })?;
        let nodes = decoded.graph.iter().flat_map(|graph| &graph.node);
        nodes.into_iter().try_for_each(|node| {
            self.check_support(node)
                .map_err(|unsupported| CompileError::from(unsupported).into())
        })
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        let mut refused = None;
        for member in &self.members {
            match member.processor.check_support(node) {
                Ok(()) => return Ok(()),
                Err(unsupported) => refused.get_or_insert(unsupported),
            };
        }
        Err(refused.expect("a group has a device"))
    }

    pub fn run(
        &self,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<RunResult, TaskError> {
        self.take_back();
        self.run_with(task, (precedence, cancel), None)
    }

    /// Runs a task alone, as part of a stream or not.
    fn run_with(
        &self,
        task: &Task,
        until: (Precedence, Option<&Cancel>),
        request: Option<Request<'_>>,
    ) -> Result<RunResult, TaskError> {
        let left = || Some(until.0.deadline?.duration_since(Moment::now()));
        let plan = self.plan_for_task(task, left())?;
        // Nodes with a fixed device can run nowhere else.
        let has_requirements = plan.has_requirements || plan.energy.mode.is_some();
        match self.run_plan(task, plan, until.0, until.1, request) {
            // The devices that nodes asked for failed: plan again over any others and start from
            // the beginning.
            Err(TaskError::Group(GroupRunError::NoDevice { .. })) if has_requirements => {
                let key = plan_key(task);
                self.lock_plans().retain(|(held, _)| *held != key);
                self.run_plan(
                    task,
                    self.plan_for_task(task, left())?,
                    until.0,
                    until.1,
                    request,
                )
            }
            ran => ran,
        }
    }

    fn run_plan(
        &self,
        task: &Task,
        plan: Arc<ExecutionPlan>,
        precedence: Precedence,
        cancel: Option<&Cancel>,
        request: Option<Request<'_>>,
    ) -> Result<RunResult, TaskError> {
        let stream = request.map(|request| request.stream);
        self.memories.refresh_limits(self.pool.lost_mask());
        let mut moved = self.moved_bytes();
        if let Some(stream) = stream {
            lock(&stream.moved).get_or_insert_with(|| moved.clone());
        }
        let state = RunState::new(
            plan.clone(),
            self.members.clone(),
            self.memories.clone(),
            self.clock.clone(),
            self.prefetcher.new_handle(),
            self.watch.clone(),
            &task.inputs,
        )?;
        let state = state.with_name(&task.name);
        let state = Arc::new(match stream {
            Some(stream) => state.with_shared_ends(&stream.ends),
            None => state,
        });
        let (worker, keeper, speeds) = (state.clone(), state.clone(), self.lock_speeds().clone());
        let expected = plan.expected_end(&speeds, &lock(&self.costs));
        let running = self.pool.submit_job(Job {
            problem: plan.problem.clone(),
            plan: Some(plan.schedule.clone()),
            keeps_plan: offers::all_emulated(&self.members),
            kinds: plan.kinds.clone(),
            speeds,
            host_transfers: plan.host_transfers(),
            work: Arc::new(move |call| worker.run_fragment(call)),
            results: self.surviving_results(keeper),
            priority: precedence.priority,
            weight: precedence.weight,
            owner: precedence.owner,
            deadline: precedence.deadline,
        });
        let running = running.map_err(GroupRunError::from)?;
        if let Some(request) = request {
            (request.begun)();
        }
        let watched = cancel.map(|cancel| cancel.watch_job(running.canceller()));
        let execution = running.wait();
        drop(watched);
        self.on_ran(&execution);
        let name = |task: usize| state.name_of(&plan.fragments[task]);
        check_completion(&execution, name, || self.pool.loss_causes())?;
        self.lock_speeds().clone_from(&execution.speeds);
        let mut finished = state.finish_run()?;
        let learned = self.record_fragments(&plan, std::mem::take(&mut finished.taken));
        let mut ran = self.build_run_result(&plan, expected, finished);
        ran.learned = learned;
        ran.report.memory = match stream {
            Some(stream) => {
                ran.busy = stream.charge_request(&ran.timeline);
                // The bytes moved since the last report of another request.
                self.memory_report(lock(&stream.moved).get_or_insert(moved))
            }
            None => self.memory_report(&mut moved),
        };
        ran.report.fallbacks = fallbacks::collect_fallbacks(&plan, &execution, &self.members);
        Ok(ran)
    }

    /// Returns the fate of a failed device's results: all survive in host memory, unless a device
    /// has a memory of its own.
    fn surviving_results(&self, state: Arc<RunState>) -> Results {
        if !self.memories.has_device_memory() {
            return Results::Survive;
        }
        Results::Kept(Arc::new(move |ask| match ask {
            ResultQuestion::Kept { by, reader } => state.keep_outputs_for(by, reader),
            ResultQuestion::Lost { device } => {
                state.mark_device_lost(device);
                true
            }
        }))
    }

    /// Records the fragments' times in the operators' histories, which the next plan uses.
    fn record_fragments(
        &self,
        plan: &ExecutionPlan,
        taken: Vec<FragmentUsage>,
    ) -> Vec<Measurement> {
        let mut histories = lock(&self.costs);
        let told = taken.into_iter().filter_map(|taken| {
            let FragmentUsage {
                call,
                busy,
                beside,
                energy,
            } = taken;
            let works = &plan.works[call.task];
            let measured = joint_measurement(works, call.device, busy, energy)?;
            Some(histories.record_measurement(call.device, measured, beside))
        });
        told.collect()
    }

    /// Loads the devices' cost history.
    pub fn load_history(&self, costs: &CostHistory) {
        lock(&self.costs).load_history(costs);
    }

    /// Returns the devices' cost history.
    pub fn cost_history(&self) -> CostHistory {
        lock(&self.costs).cost_history()
    }

    fn build_run_result(
        &self,
        plan: &ExecutionPlan,
        expected: Duration,
        finished: RunTotals,
    ) -> RunResult {
        let RunTotals {
            outputs,
            mut report,
            timeline,
            modelled,
            ..
        } = finished;
        report.read_times(&timeline);
        let makespan = modelled.unwrap_or(Duration::from_micros(report.makespan_micros));
        report.against = Some(ExpectedRun {
            expected_micros: to_micros(expected),
            expected_joules: plan.energy.joules,
            single: plan.single.map(|(device, time)| SingleForecast {
                device: self.members[device].label.clone(),
                expected_micros: to_micros(time),
            }),
        });
        RunResult {
            outputs,
            busy: Duration::from_micros(timeline.computing_micros()),
            report,
            timeline,
            makespan,
            learned: Vec::new(),
        }
    }

    /// Returns the plan for a task's model and shapes that ends within `left`. The cached plan is
    /// fresh unless the speed of a device differs from its estimate, or a device was lost or
    /// returned.
    fn plan_for_task(
        &self,
        task: &Task,
        left: Option<Duration>,
    ) -> Result<Arc<ExecutionPlan>, TaskError> {
        let key = plan_key(task);
        let speeds = self.lock_speeds().clone();
        let known = self
            .lock_plans()
            .iter()
            .find(|(held, _)| *held == key)
            .map(|(_, plan)| plan.clone());
        let is_fresh =
            |plan: &Arc<ExecutionPlan>| plan.is_suitable_for(left) && self.is_fresh(plan, &speeds);
        let fresh = known.as_ref().filter(|plan| is_fresh(plan));
        if let Some(plan) = fresh {
            return Ok(plan.clone());
        }
        let loaded = known.map(|plan| plan.loaded_bytes());
        let drop = || self.lock_plans().retain(|(held, _)| *held != key);
        let setting = GroupSetting {
            left,
            before: loaded.map(|loaded| ReplacedPlan {
                loaded,
                drop: &drop,
            }),
            ..self.group_setting()
        };
        let plan = Arc::new(plan_choice::plan_task(&setting, task, speeds)?);
        drop();
        let mut plans = self.lock_plans();
        if plans.len() == PLANS_MAX {
            plans.pop_front();
        }
        plans.push_back((key, plan.clone()));
        assert!(plans.len() <= PLANS_MAX, "plans are bounded");
        Ok(plan)
    }

    /// Returns whether present knowledge of the devices would still lead to this plan.
    fn is_fresh(&self, plan: &ExecutionPlan, speeds: &Speeds) -> bool {
        let links = self.memories.links();
        let costs = lock(&self.costs);
        plan.without == self.pool.lost_mask()
            && plan.is_fresh(speeds, &links, &costs)
            && plan.has_stable_power(&self.members, &costs)
    }

    fn group_setting(&self) -> GroupSetting<'_> {
        GroupSetting {
            members: &self.members,
            store: &self.store,
            program_cache: &self.program_cache,
            links: self.memories.links(),
            sharing: &self.sharing,
            cores: &self.cores,
            lost: self.pool.lost_mask(),
            costs: &self.costs,
            objective: self.objective,
            left: None,
            before: None,
        }
    }

    fn lock_speeds(&self) -> MutexGuard<'_, Speeds> {
        self.speeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_plans(&self) -> MutexGuard<'_, VecDeque<(PlanKey, Arc<ExecutionPlan>)>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates empty histories of these devices.
pub(super) fn new_histories(devices: &[GroupDevice], cores: CoreSharing) -> DeviceHistories {
    let named = devices.iter().map(|device| {
        let model = device.processor.profile().model.as_str();
        (device.label.as_str(), model)
    });
    DeviceHistories::new(named, cores)
}

#[cfg(test)]
mod tests;
