//! One run's tensors on their way through the pieces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use souk_devices::processor::{CompileError, Outcome, RunError};
use souk_memory::holdings::Handle;
use souk_memory::place::Place;
use souk_memory::space::{Ensured, Space, SpaceError};
use souk_memory::transfers::Urgency;
use souk_memory::{DType, Shape, Tensor};

use super::laid::{Join, Laid, Piece, Read};
use super::modelled::Modelled;
use super::mover::Asking;
use super::{Clock, Member, TeamRunError};
use crate::executor::{Call, Fault, Took};
use crate::report::{DeviceReport, Report};
use crate::timeline::{Span, SpanKind, Timeline, UnixMicros};

/// What the pieces of one run share. Dropping it gives back all room it holds.
pub(super) struct Flow {
    laid: Arc<Laid>,
    members: Vec<Member>,
    space: Arc<Mutex<Space>>,
    clock: Arc<Clock>,
    mover: Asking,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    values: BTreeMap<String, Value>,
    timeline: Timeline,
    devices: BTreeMap<String, DeviceReport>,
    modelled: Option<Modelled>,
    /// When each device ended its last piece: from then on it waits for what its next one needs.
    free: Vec<UnixMicros>,
    joined_bytes: u64,
    partitioned_tasks: u64,
}

/// A tensor that is held, and how often it will still be read.
struct Value {
    handle: Handle,
    dtype: DType,
    shape: Shape,
    readers: usize,
}

/// What a finished run gave.
pub(super) struct Finished {
    pub outputs: BTreeMap<String, Tensor>,
    pub report: Report,
    pub timeline: Timeline,
    /// From start to end in the devices' own time, if all of them are emulated.
    pub modelled: Option<Duration>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder changes it whole or not at all; tasks that panic do so outside.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flow {
    pub fn new(
        laid: Arc<Laid>,
        members: Vec<Member>,
        space: Arc<Mutex<Space>>,
        clock: Arc<Clock>,
        mover: Asking,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Self, TeamRunError> {
        let began = clock();
        let flow = Self {
            state: Mutex::new(State {
                modelled: Modelled::new(&members, began),
                free: vec![began; members.len()],
                ..State::default()
            }),
            laid,
            members,
            space,
            clock,
            mover,
        };
        for (name, tensor) in inputs {
            let reads = flow.laid.pieces.iter().flat_map(|piece| &piece.reads);
            let reading = reads.filter(|read| read.value == *name).count();
            let wanted = usize::from(flow.laid.outputs.contains(name));
            flow.hold(name, tensor, Place::Host, reading + wanted)?;
        }
        Ok(flow)
    }

    /// Runs a piece on a device: inputs there, outputs held, what nobody reads any more let go.
    pub fn run_piece(&self, call: Call) -> Result<Took, Fault> {
        let piece = &self.laid.pieces[call.task];
        let member = &self.members[call.device];
        let place = Place::device(u16::try_from(call.device).expect("devices are few"));
        let failed = |error: SpaceError| Fault::Task(error.to_string());
        let begin = (self.clock)();
        let program = piece.program(call.device, &*member.processor);
        let program = program.map_err(|error| match error {
            CompileError::DeviceLost { .. } => Fault::Device(error.to_string()),
            _ => Fault::Task(error.to_string()),
        })?;
        let inputs = self.bring(piece, place).map_err(failed)?;
        self.foresee(call);
        let start = (self.clock)();
        let outcome = program.run(&inputs);
        let unpinned = self.let_be(&piece.reads, place);
        let outcome = outcome.map_err(fault)?;
        let busy = outcome.busy;
        unpinned.map_err(failed)?;
        let end = super::super::end_of(&*member.processor, &self.clock, start, &outcome);
        let at = {
            let mut state = lock(&self.state);
            let free = std::mem::replace(&mut state.free[call.device], end);
            match &mut state.modelled {
                Some(modelled) => modelled.ran(&self.laid, call, &outcome),
                None => [free, begin, start, end],
            }
        };
        for made in &piece.makes {
            let given = outcome.outputs.get(&made.name);
            let given = given.ok_or_else(|| Fault::Task(format!("it gave no {}", made.name)))?;
            self.hold(&made.held, given, place, made.readers)
                .map_err(failed)?;
        }
        self.read(piece).map_err(failed)?;
        let bytes_in = super::super::bytes(&inputs);
        drop(inputs);
        self.record(piece, member, &outcome, bytes_in, at);
        drop(outcome);
        self.join(piece, member).map_err(failed)?;
        Ok(match member.processor.profile().emulated {
            true => Took::Stated(busy),
            false => Took::Measured,
        })
    }

    /// Asks for what the pieces behind one on its device will read, if memory had no room for it.
    fn foresee(&self, call: Call) {
        let next = self.laid.next(call.task, call.device);
        let state = lock(&self.state);
        for read in next
            .iter()
            .flat_map(|&piece| &self.laid.pieces[piece].reads)
        {
            if let Some(value) = state.values.get(&read.value) {
                let bytes = value.shape.byte_length(value.dtype) as u64;
                self.mover.want(value.handle, bytes, Urgency::Planned);
            }
        }
    }

    /// Puts together what a piece gave the last part of: each byte is copied once, behind those of
    /// the parts before it.
    fn join(&self, piece: &Piece, member: &Member) -> Result<(), SpaceError> {
        // Parts lie where every device reaches them.
        let place = Place::Host;
        let of_piece = |join: &&Join| {
            let mut made = piece.makes.iter();
            made.any(|made| join.parts.contains(&made.held))
        };
        let Some(join) = self.laid.joins.iter().find(of_piece) else {
            return Ok(());
        };
        let parts: Vec<Value> = {
            let mut state = lock(&self.state);
            if !join
                .parts
                .iter()
                .all(|part| state.values.contains_key(part))
            {
                return Ok(());
            }
            // Whoever comes last takes them all.
            let parts = join.parts.iter();
            parts.filter_map(|part| state.values.remove(part)).collect()
        };
        let begin = (self.clock)();
        let dtype = parts[0].dtype;
        let mut tensors = Vec::with_capacity(parts.len());
        for part in &parts {
            tensors.push(self.tensor(part.handle, part.dtype, part.shape.clone(), place)?);
        }
        let bytes = joined(&tensors, join.stretches);
        drop(tensors);
        for part in parts {
            lock(&self.space).release(part.handle)?;
        }
        let copied = bytes.len() as u64;
        let shape = Shape::new(join.dims.clone()).expect("the graph knows it");
        let whole = Tensor::new(dtype, shape, bytes).expect("the parts make up the whole");
        self.hold(&join.value, &whole, place, join.readers)?;
        let end = (self.clock)();
        let mut state = lock(&self.state);
        state.joined_bytes += copied;
        state.partitioned_tasks += 1;
        match &mut state.modelled {
            Some(modelled) => modelled.joined(&self.laid, join),
            None => state.timeline.push(Span {
                device: member.label.clone(),
                lane: "run".to_owned(),
                name: format!("joining {}", join.value),
                kind: SpanKind::TransferOut,
                start: begin,
                end,
            }),
        }
        Ok(())
    }

    /// The job's outputs and what the run took.
    pub fn finish(&self) -> Result<Finished, TeamRunError> {
        let mut outputs = BTreeMap::new();
        for name in &self.laid.outputs {
            let held = {
                let state = lock(&self.state);
                let value = state.values.get(name);
                value.map(|value| (value.handle, value.dtype, value.shape.clone()))
            };
            let lost = || TeamRunError::Piece {
                piece: "the run".to_owned(),
                cause: format!("nothing made {name}"),
            };
            let (handle, dtype, shape) = held.ok_or_else(lost)?;
            let tensor = self.tensor(handle, dtype, shape, Place::Host)?;
            outputs.insert(name.clone(), tensor);
        }
        let mut state = lock(&self.state);
        let (timeline, devices) = (
            std::mem::take(&mut state.timeline),
            std::mem::take(&mut state.devices),
        );
        let report = Report {
            devices,
            joined_bytes: state.joined_bytes,
            partitioned_tasks: state.partitioned_tasks,
            ..Report::default()
        };
        Ok(Finished {
            outputs,
            report,
            timeline,
            modelled: state.modelled.as_ref().map(Modelled::makespan),
        })
    }

    fn hold(
        &self,
        name: &str,
        tensor: &Tensor,
        place: Place,
        readers: usize,
    ) -> Result<(), SpaceError> {
        if readers == 0 {
            return Ok(());
        }
        let handle = lock(&self.space).adopt_unnamed(tensor.bytes().clone(), place)?;
        let value = Value {
            handle,
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            readers,
        };
        let before = lock(&self.state).values.insert(name.to_owned(), value);
        // A piece that ran again because its device failed while it answered.
        before.map_or(Ok(()), |before| lock(&self.space).release(before.handle))
    }

    /// A piece's inputs, brought to a device and kept there.
    fn bring(&self, piece: &Piece, place: Place) -> Result<BTreeMap<String, Tensor>, SpaceError> {
        let mut inputs = BTreeMap::new();
        for (brought, read) in piece.reads.iter().enumerate() {
            match self.bring_one(read, place) {
                Ok(tensor) => drop(inputs.insert(read.value.clone(), tensor)),
                Err(error) => {
                    self.let_be(&piece.reads[..brought], place)?;
                    return Err(error);
                }
            }
        }
        Ok(inputs)
    }

    fn bring_one(&self, read: &Read, place: Place) -> Result<Tensor, SpaceError> {
        let (handle, dtype, shape) = {
            let state = lock(&self.state);
            let value = state.values.get(&read.value);
            let value = value.expect("what a piece reads was made before, and has a reader");
            (value.handle, value.dtype, value.shape.clone())
        };
        let place = source(read, place);
        let tensor = self.tensor(handle, dtype, shape, place)?;
        lock(&self.space).pin(handle, place)?;
        Ok(rows(tensor, read))
    }

    fn tensor(
        &self,
        handle: Handle,
        dtype: DType,
        shape: Shape,
        place: Place,
    ) -> Result<Tensor, SpaceError> {
        match lock(&self.space).ensure_on(handle, place)? {
            Ensured::Here(bytes) => Ok(
                Tensor::new(dtype, shape, bytes).expect("the bytes were a tensor of this shape")
            ),
            Ensured::Fetch { .. } => unreachable!("a run holds what was made on this machine"),
        }
    }

    fn let_be(&self, reads: &[Read], place: Place) -> Result<(), SpaceError> {
        let state = lock(&self.state);
        let mut space = lock(&self.space);
        reads.iter().try_for_each(|read| {
            let handle = state.values[&read.value].handle;
            space.unpin(handle, source(read, place))
        })
    }

    /// Counts a piece's reads; what it was the last to read goes.
    fn read(&self, piece: &Piece) -> Result<(), SpaceError> {
        for name in piece.reads.iter().map(|read| &read.value) {
            let mut state = lock(&self.state);
            let value = state.values.get_mut(name).expect("it was just read");
            value.readers -= 1;
            if value.readers == 0 {
                let handle = value.handle;
                state.values.remove(name);
                drop(state);
                self.mover.forget(handle);
                lock(&self.space).release(handle)?;
            }
        }
        Ok(())
    }

    fn record(
        &self,
        piece: &Piece,
        member: &Member,
        outcome: &Outcome,
        bytes_in: u64,
        at: [UnixMicros; 4],
    ) {
        let [free, begin, start, end] = at;
        let span = |kind, start, end| Span {
            device: member.label.clone(),
            lane: "run".to_owned(),
            name: piece.name.clone(),
            kind,
            start,
            end,
        };
        let mut state = lock(&self.state);
        if begin.since(free) > 0 {
            state.timeline.push(span(SpanKind::Wait, free, begin));
        }
        if start.since(begin) > 0 {
            state
                .timeline
                .push(span(SpanKind::TransferIn, begin, start));
        }
        state.timeline.push(span(SpanKind::Compute, start, end));
        let profile = member.processor.profile();
        let bytes_in = bytes_in + piece.bytes();
        let report = super::super::device_report(profile, outcome, bytes_in);
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

impl Drop for Flow {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut space = lock(&self.space);
        for (_, value) in std::mem::take(&mut state.values) {
            let released = space.release(value.handle);
            assert!(
                released.is_ok(),
                "no piece of a run that is over holds a tensor"
            );
        }
    }
}

/// Where a piece on a device takes a value from: what it reads only some rows of stays where it is.
fn source(read: &Read, device: Place) -> Place {
    match read.rows {
        Some(_) => Place::Host,
        None => device,
    }
}

/// The rows of a value that a piece reads, by reference.
fn rows(whole: Tensor, read: &Read) -> Tensor {
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

/// Parts put together, so many stretches of each in turn.
fn joined(parts: &[Tensor], stretches: usize) -> Bytes {
    let length = parts.iter().map(|part| part.bytes().len()).sum();
    let mut whole = Vec::with_capacity(length);
    for stretch in 0..stretches {
        for part in parts.iter().map(Tensor::bytes) {
            let own = part.len() / stretches;
            whole.extend_from_slice(&part[stretch * own..(stretch + 1) * own]);
        }
    }
    Bytes::from(whole)
}

/// Whether a failed run is the device's fault or the task's.
fn fault(error: RunError) -> Fault {
    match error {
        RunError::Engine { .. }
        | RunError::Crashed { .. }
        | RunError::OutOfMemory { .. }
        | RunError::DeviceLost { .. }
        | RunError::Hung { .. }
        | RunError::Injected { .. } => Fault::Device(error.to_string()),
        RunError::InputMissing { .. }
        | RunError::InputUnknown { .. }
        | RunError::InputDType { .. }
        | RunError::InputShape { .. }
        | RunError::IntegerRange { .. }
        | RunError::Operator { .. } => Fault::Task(error.to_string()),
    }
}
