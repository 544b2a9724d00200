//! Holds the state of one run on a group while its fragments run, above all the tensors on their
//! way from fragment to fragment. A fragment is a part of the graph that one device runs as a
//! whole.
//!
//! A fragment needs its inputs on its device. Its output stays in the device's own memory if a
//! later fragment reads it there, or on a device that it reaches without the host. All other
//! outputs go to the host. If a device fails, the run computes the values again that only that
//! device held.

mod inputs;
mod joining;
pub(super) mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use souk_memory::holdings::HoldError;
use souk_memory::location::Location;
use souk_memory::space::SpaceError;
use souk_memory::{Shape, Tensor};
use souk_onnx::subgraph::CompileError;
use souk_vocabulary::processor::{Energy, Outcome, Program, RunError};
use souk_vocabulary::residency::TensorHandle;

use super::GroupDevice;
use super::core_contention::{self, CoreContentionWatch, CoreWatch};
use super::emulated_time::EmulatedTime;
use super::execution_plan::ExecutionPlan;
use super::fragment::{Fragment, FragmentInput, Role};
use super::held_tensor::{HeldTensor, tensor_bytes};
use super::links::device_place;
use super::memories::{Memories, MemoryError};
use super::prefetcher::PrefetchHandle;
use super::refusals::is_the_devices;
use super::run_log::RunLog;
use crate::execution::error::GroupRunError;
use crate::execution::lock::lock;
use crate::execution::report::{DeviceReport, Report};
use crate::execution::run_figures::{device_report, end_of};
use crate::execution::task::Clock;
use crate::execution::timeline::{SpanKind, Timeline, UnixMicros};
use crate::execution::worker_pool::{Call, Fault, TaskTime};
use values::Values;

/// The state that the fragments of one run share. On drop, it releases all its memory.
pub(super) struct RunState {
    plan: Arc<ExecutionPlan>,
    members: Vec<GroupDevice>,
    memories: Arc<Memories>,
    clock: Arc<Clock>,
    prefetcher: PrefetchHandle,
    watch: Arc<Mutex<CoreContentionWatch>>,
    log: Arc<RunLog>,
    /// The job's inputs, for fragments that read them again.
    inputs: BTreeMap<String, Tensor>,
    began: UnixMicros,
    ends: DeviceEnds,
    /// Name of the run, if it differs from the run behind the plan.
    name: String,
    state: Mutex<Progress>,
}

/// The time when each device ended its last fragment: from then on it waits for the inputs of its
/// next one. All runs of a stream share it.
pub(super) type DeviceEnds = Arc<Mutex<Vec<UnixMicros>>>;

#[derive(Default)]
struct Progress {
    values: Values,
    devices: BTreeMap<String, DeviceReport>,
    modelled: Option<EmulatedTime>,
    joined_bytes: u64,
    partitioned_tasks: u64,
    /// The usage of each fragment, as its device reports it.
    taken: Vec<FragmentUsage>,
}

/// The time and energy of a fragment.
pub(super) struct FragmentUsage {
    pub call: Call,
    pub busy: Duration,
    /// The part of its time in which others computed on the device's cores.
    pub beside: f64,
    pub energy: Option<Energy>,
}

/// The results of a completed run.
pub(super) struct RunTotals {
    pub outputs: BTreeMap<String, Tensor>,
    pub report: Report,
    pub timeline: Timeline,
    /// Makespan in the devices' own time, if all of them are emulated.
    pub modelled: Option<Duration>,
    pub taken: Vec<FragmentUsage>,
}

impl RunState {
    pub fn new(
        plan: Arc<ExecutionPlan>,
        members: Vec<GroupDevice>,
        memories: Arc<Memories>,
        clock: Arc<Clock>,
        prefetcher: PrefetchHandle,
        watch: Arc<Mutex<CoreContentionWatch>>,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Self, GroupRunError> {
        let began = clock();
        let modelled = EmulatedTime::new(&members, began);
        let state = Self {
            log: Arc::new(RunLog::new(&members, clock.clone(), modelled.is_none())),
            began,
            ends: Arc::new(Mutex::new(vec![began; members.len()])),
            name: plan.name.clone(),
            state: Mutex::new(Progress {
                modelled,
                values: Values::new(&plan),
                ..Progress::default()
            }),
            plan,
            members,
            memories,
            clock,
            prefetcher,
            watch,
            inputs: inputs.clone(),
        };
        for (name, tensor) in inputs {
            if lock(&state.state).values.is_wanted(name) {
                state.hold_input(name, tensor).map_err(failed_run)?;
            }
        }
        Ok(state)
    }

    /// Sets the run's own name.
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Returns a fragment's name in this run, because its plan can come from another run.
    pub fn name_of(&self, fragment: &Fragment) -> String {
        match fragment.name.strip_prefix(&self.plan.name) {
            Some(which) => format!("{}{which}", self.name),
            None => fragment.name.clone(),
        }
    }

    /// Makes the run share the end times of its stream's other runs.
    pub fn with_shared_ends(mut self, ends: &DeviceEnds) -> Self {
        lock(ends).resize(self.members.len(), UnixMicros::default());
        self.ends = ends.clone();
        self
    }

    /// Runs a fragment on a device: brings its inputs, computes, holds its outputs and releases
    /// values that no fragment needs any more.
    pub fn run_fragment(&self, call: Call) -> Result<TaskTime, Fault> {
        let fragment = &self.plan.fragments[call.task];
        let member = &self.members[call.device];
        let begin = (self.clock)();
        let program = fragment.get_or_compile(call.device, &*member.processor);
        let program = program.map_err(|error| match error {
            CompileError::DeviceLost { .. } => Fault::Device(error.to_string()),
            _ if is_the_devices(&error) => Fault::Refused(error.to_string()),
            _ => Fault::Task(error.to_string()),
        })?;
        let at_fault = |error| self.classify_memory_error(call.device, error);
        let inputs = self.bring_inputs(fragment, call.device).map_err(at_fault)?;
        self.prefetch_next(call);
        let (outcome, CoreWatch { start, beside }) =
            core_contention::watch_compute(&self.watch, call.device, &*self.clock, || {
                self.run_program(call, &*program, &inputs)
            });
        let unpinned = self.let_be(&fragment.reads, call.device);
        let outcome = outcome.map_err(classify_run_error)?;
        unpinned.map_err(|error| Fault::Task(error.to_string()))?;
        let busy = outcome.busy;
        let end = end_of(&*member.processor, &self.clock, start, busy);
        let at = {
            let mut ends = lock(&self.ends);
            let free = ends[call.device].max(self.began);
            let at = match &mut lock(&self.state).modelled {
                Some(modelled) => modelled.record_fragment(&self.plan, call, free, &outcome),
                None => [free, begin, start, end],
            };
            ends[call.device] = at[3];
            at
        };
        for made in &fragment.makes {
            let given = outcome.outputs.get(&made.name);
            let given = given.ok_or_else(|| Fault::Task(format!("it gave no {}", made.name)))?;
            self.hold_output(&made.held, given, call.device)
                .map_err(at_fault)?;
        }
        self.read(call.task).map_err(at_fault)?;
        self.send_on(call);
        let bytes_in = inputs.values().map(tensor_bytes).sum();
        drop(inputs);
        self.record(call, &outcome, bytes_in, at);
        lock(&self.state).taken.push(FragmentUsage {
            call,
            busy,
            beside,
            energy: outcome.energy,
        });
        drop(outcome);
        self.join_value(call, fragment).map_err(at_fault)?;
        // The time of a fragment excludes moves to its device's own memory.
        let states =
            member.processor.profile().emulated || member.processor.device_memory().is_some();
        Ok(match &self.plan.contention {
            Some(contention) => {
                TaskTime::Stated(contention.to_contended_time(call.task, busy, beside))
            }
            None if states => TaskTime::Stated(busy),
            None => TaskTime::Measured,
        })
    }

    /// Runs a program on inputs that are on its device.
    fn run_program(
        &self,
        call: Call,
        program: &dyn Program,
        inputs: &BTreeMap<String, TensorHandle>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let stays = match self.memories.own_memory(call.device) {
            Some(_) => self.outputs_to_keep(call),
            None => BTreeSet::new(),
        };
        self.memories
            .run(call.device, program, inputs, &stays, &self.log)
    }

    /// Returns the outputs of a fragment that later fragments read on its device, or on devices
    /// that they reach without the host.
    fn outputs_to_keep(&self, call: Call) -> BTreeSet<String> {
        let state = lock(&self.state);
        let makes = self.plan.fragments[call.task].makes.iter();
        let stays = makes.filter(|made| {
            let mut readers = state.values.fragments_for(&made.held);
            readers.any(|reader| {
                let to = self.plan.schedule.device[reader];
                let mut reads = self.plan.fragments[reader].reads.iter();
                let whole = reads.any(|read| read.value == made.held && read.rows.is_none());
                whole && self.memories.can_reach(call.device, to)
            })
        });
        stays.map(|made| made.name.clone()).collect()
    }

    /// Requests the inputs of the device's next fragments early: into a memory of its own, or back
    /// from disk.
    fn prefetch_next(&self, call: Call) {
        let next = self.plan.next(call.task, call.device);
        let state = lock(&self.state);
        for (ahead, &reader) in next.iter().enumerate() {
            for read in &self.plan.fragments[reader].reads {
                let Some(kept) = state.values.get(&read.value) else {
                    continue;
                };
                let to = source(read, device_place(call.device));
                // Later fragments can move to another device before they run.
                match ahead {
                    0 => self.prefetcher.want_at(kept, to, call.device, &self.log),
                    _ => self.prefetcher.guess_at(kept, to, call.device, &self.log),
                }
            }
        }
    }

    /// Requests the transfer of a fragment's outputs to the devices that will read them.
    fn send_on(&self, call: Call) {
        if !self.memories.has_device_memory() {
            return;
        }
        let state = lock(&self.state);
        for made in &self.plan.fragments[call.task].makes {
            let Some(kept) = state.values.get(&made.held) else {
                continue;
            };
            for reader in state.values.fragments_for(&made.held) {
                let to = self.plan.schedule.device[reader];
                let reads = self.plan.fragments[reader].reads.iter();
                for read in reads.filter(|read| read.value == made.held) {
                    if to != call.device {
                        let place = source(read, device_place(to));
                        self.prefetcher.want_at(kept, place, to, &self.log);
                    }
                }
            }
        }
    }

    /// Returns the job's outputs and the run's costs.
    pub fn finish_run(&self) -> Result<RunTotals, GroupRunError> {
        let mut outputs = BTreeMap::new();
        for name in &self.plan.outputs {
            let kept = lock(&self.state).values.get(name).cloned();
            let lost = || GroupRunError::Fragment {
                fragment: "the run".to_owned(),
                cause: format!("nothing made {name}"),
            };
            let tensor = self.on_host(&kept.ok_or_else(lost)?);
            outputs.insert(name.clone(), tensor.map_err(failed_run)?);
        }
        let timeline = self.log.take_timeline();
        let mut state = lock(&self.state);
        let report = Report {
            devices: std::mem::take(&mut state.devices),
            joined_bytes: state.joined_bytes,
            partitioned_tasks: state.partitioned_tasks,
            ..Report::default()
        };
        Ok(RunTotals {
            outputs,
            report,
            timeline,
            modelled: state.modelled.as_ref().map(EmulatedTime::makespan),
            taken: std::mem::take(&mut state.taken),
        })
    }

    fn on_host(&self, kept: &HeldTensor) -> Result<Tensor, MemoryError> {
        self.memories.move_to_host(kept, &self.log)
    }

    fn hold_input(&self, name: &str, tensor: &Tensor) -> Result<(), MemoryError> {
        let adopted = self
            .memories
            .adopt_host(name, tensor, Location::Host, Some(&self.log));
        self.hold_value(adopted?)
    }

    /// Holds a fragment's output as long as a fragment will read it. The job's outputs go to the
    /// host as well, so that they survive the device.
    fn hold_output(
        &self,
        name: &str,
        made: &TensorHandle,
        device: usize,
    ) -> Result<(), MemoryError> {
        let wanted = {
            let state = lock(&self.state);
            state.values.is_wanted(name) && !self.is_there(&state, name)
        };
        if !wanted {
            return Ok(());
        }
        let kept = self
            .memories
            .adopt_output(name, made, device, Some(&self.log))?;
        let output = self.plan.outputs.iter().any(|output| output == name);
        let brought = match (output, made) {
            (true, TensorHandle::Device(_)) => self.on_host(&kept).map(drop),
            _ => Ok(()),
        };
        self.hold_value(kept)?;
        brought
    }

    /// Returns whether the run holds a value and some place has a copy.
    fn is_there(&self, state: &Progress, name: &str) -> bool {
        let kept = state.values.get(name);
        kept.is_some_and(|kept| self.memories.has_copy(kept.handle))
    }

    /// Holds a value by its name. If a copy of it exists already, releases the new one; if not,
    /// releases the lost one.
    fn hold_value(&self, kept: HeldTensor) -> Result<(), MemoryError> {
        let spare = {
            let mut state = lock(&self.state);
            match self.is_there(&state, &kept.name) {
                true => Some(kept),
                false => state.values.insert_value(kept),
            }
        };
        spare.map_or(Ok(()), |spare| self.release_tensor(&spare))
    }

    fn release_tensor(&self, kept: &HeldTensor) -> Result<(), MemoryError> {
        self.prefetcher.cancel_requests(kept.handle);
        let released = self.memories.lock().release_reference(kept.handle);
        released.map_err(MemoryError::Space)
    }

    fn let_be(&self, reads: &[FragmentInput], device: usize) -> Result<(), SpaceError> {
        let state = lock(&self.state);
        let mut space = self.memories.lock();
        for read in reads {
            let Some(kept) = state.values.get(&read.value) else {
                continue;
            };
            let place = source(read, device_place(device));
            match space.unpin_copy(kept.handle, place) {
                // The tensor was lost with its device.
                Err(SpaceError::Hold(HoldError::Absent { .. } | HoldError::Unknown { .. })) => {}
                unpinned => unpinned?,
            }
        }
        Ok(())
    }

    /// Records that a fragment has run, and releases values that no other fragment needs.
    fn read(&self, fragment: usize) -> Result<(), MemoryError> {
        let reads = self.plan.fragments[fragment].reads.iter();
        let names = reads.map(|read| &read.value);
        let over = lock(&self.state).values.read_by(fragment, names);
        over.iter().try_for_each(|kept| self.release_tensor(kept))
    }

    /// Returns whether a reader can still get another fragment's outputs. If so, they stay until
    /// the reader has run.
    pub fn keep_outputs_for(&self, by: usize, reader: usize) -> bool {
        let mut state = lock(&self.state);
        state.values.mark_not_done(reader);
        let makes = &self.plan.fragments[by].makes;
        let keeps = self.plan.fragments[reader].reads.iter().all(|read| {
            let join = self.plan.joins.iter().find(|join| join.value == read.value);
            let own = |part: &String| makes.iter().any(|made| made.held == *part);
            match join {
                _ if self.is_there(&state, &read.value) => true,
                // A value that must be joined again needs each of its parts.
                Some(join) => {
                    let mut parts = join.parts.iter().filter(|part| own(part));
                    parts.all(|part| self.is_there(&state, part))
                }
                None => !own(&read.value),
            }
        });
        if !keeps {
            state.values.mark_not_done(by);
        }
        keeps
    }

    /// Marks the contents of a failed device's own memory as lost.
    pub fn mark_device_lost(&self, device: usize) {
        self.memories.mark_device_lost(device);
    }

    fn classify_memory_error(&self, own: usize, error: MemoryError) -> Fault {
        match error {
            MemoryError::Device { device, cause } => {
                match (device == own, classify_run_error(cause)) {
                    (false, Fault::Device(cause) | Fault::Refused(cause)) => {
                        Fault::Other { device, cause }
                    }
                    (_, fault) => fault,
                }
            }
            MemoryError::Space(SpaceError::Hold(HoldError::NoPath { .. })) | MemoryError::Gone => {
                Fault::Gone
            }
            MemoryError::Space(error) => match &error {
                // Another device can have room for it.
                SpaceError::Hold(HoldError::NoRoom { place, .. })
                    if *place == device_place(own) && self.is_narrow(own) =>
                {
                    Fault::Refused(error.to_string())
                }
                _ => Fault::Task(error.to_string()),
            },
        }
    }

    /// Returns whether another device can hold more: this one has a memory of its own, or uses only
    /// a part of the host's.
    fn is_narrow(&self, device: usize) -> bool {
        let space = self.memories.lock();
        let limit = |place| space.pool_use(place).limit;
        self.memories.own_memory(device).is_some()
            || limit(device_place(device)) < limit(Location::Host)
    }

    fn record(
        &self,
        call: Call,
        outcome: &Outcome<TensorHandle>,
        bytes_in: u64,
        at: [UnixMicros; 4],
    ) {
        let [free, begin, start, end] = at;
        let (fragment, member) = (&self.plan.fragments[call.task], &self.members[call.device]);
        let name = self.name_of(fragment);
        let record = |kind, start, end| {
            self.log
                .record_activity(call.device, &name, kind, [start, end])
        };
        if begin.micros_since(free) > 0 {
            record(SpanKind::Wait, free, begin);
        }
        if start.micros_since(begin) > 0 {
            record(SpanKind::TransferIn, begin, start);
        }
        record(SpanKind::Compute, start, end);
        let bytes = [
            bytes_in + fragment.byte_size(),
            outcome.outputs.values().map(tensor_bytes).sum(),
        ];
        let profile = member.processor.profile();
        let report = device_report(profile, outcome, bytes);
        let mut state = lock(&self.state);
        if fragment.role == Role::Joins {
            state.joined_bytes += bytes[1];
            state.partitioned_tasks += 1;
        }
        let device = state
            .devices
            .entry(member.label.clone())
            .or_insert_with(|| DeviceReport {
                kind: report.kind.clone(),
                ..DeviceReport::default()
            });
        device.add(&report);
    }
}

impl Drop for RunState {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for kept in state.values.take_values() {
            self.prefetcher.cancel_requests(kept.handle);
            let released = self.memories.lock().release_reference(kept.handle);
            assert!(
                released.is_ok(),
                "no fragment of a run that is over holds a tensor"
            );
        }
    }
}

pub(super) fn failed_run(error: MemoryError) -> GroupRunError {
    match error {
        MemoryError::Space(error) => error.into(),
        MemoryError::Device { cause, .. } => GroupRunError::Memory(cause),
        MemoryError::Gone => GroupRunError::Gone,
    }
}

/// Returns the place from which a fragment reads a value: the host if it reads only some rows, else
/// its device.
fn source(read: &FragmentInput, device: Location) -> Location {
    match read.rows {
        Some(_) => Location::Host,
        None => device,
    }
}

/// Returns the rows of a value that a fragment reads, without a copy.
fn select_rows(whole: Tensor, read: &FragmentInput) -> Tensor {
    let Some(rows) = &read.rows else {
        return whole;
    };
    let row = whole.bytes().len() / rows.of;
    let taken = whole
        .bytes()
        .slice(rows.first * row..(rows.first + rows.units) * row);
    let shape = Shape::new(rows.dims.clone()).expect("it is a part of a shape");
    Tensor::new(whole.dtype(), shape, taken).expect("rows are whole")
}

/// Decides whether the device or the task is at fault for a failed run. A device without room can
/// still run smaller fragments and the next job.
fn classify_run_error(error: RunError) -> Fault {
    match error {
        RunError::Engine { .. }
        | RunError::Crashed { .. }
        | RunError::DeviceLost { .. }
        | RunError::Hung { .. }
        | RunError::Injected { .. } => Fault::Device(error.to_string()),
        RunError::OutOfMemory { .. } => Fault::Refused(error.to_string()),
        RunError::InputMissing { .. }
        | RunError::InputUnknown { .. }
        | RunError::InputDType { .. }
        | RunError::InputShape { .. }
        | RunError::IntegerRange { .. }
        | RunError::Operator { .. } => Fault::Task(error.to_string()),
    }
}
