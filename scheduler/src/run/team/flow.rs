//! One run's tensors on their way through the pieces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_devices::processor::{Outcome, RunError};
use souk_memory::holdings::Handle;
use souk_memory::place::Place;
use souk_memory::space::{Ensured, Space, SpaceError};
use souk_memory::{DType, Shape, Tensor};

use super::laid::{Laid, Piece};
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    values: BTreeMap<String, Value>,
    timeline: Timeline,
    devices: BTreeMap<String, DeviceReport>,
}

/// A tensor that is held, and how often it will still be read.
struct Value {
    handle: Handle,
    dtype: DType,
    shape: Shape,
    readers: usize,
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
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Self, TeamRunError> {
        let flow = Self {
            laid,
            members,
            space,
            clock,
            state: Mutex::default(),
        };
        for (name, tensor) in inputs {
            let pieces = flow.laid.pieces.iter();
            let reading = pieces.filter(|piece| piece.inputs.contains(name)).count();
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
        let program = program.map_err(|error| Fault::Task(error.to_string()))?;
        let inputs = self.bring(piece, place).map_err(failed)?;
        let start = (self.clock)();
        let outcome = program.run(&inputs);
        let unpinned = self.let_be(piece, place);
        let outcome = outcome.map_err(fault)?;
        unpinned.map_err(failed)?;
        let end = super::super::end_of(&*member.processor, &self.clock, start, &outcome);
        for (name, readers) in &piece.outputs {
            let given = outcome.outputs.get(name);
            let given = given.ok_or_else(|| Fault::Task(format!("it gave no {name}")))?;
            self.hold(name, given, place, *readers)
                .map_err(|error| Fault::Task(error.to_string()))?;
        }
        self.read(piece).map_err(failed)?;
        let bytes_in = super::super::bytes(&inputs);
        self.record(piece, member, &outcome, bytes_in, [begin, start, end]);
        Ok(match member.processor.profile().emulated {
            true => Took::Stated(outcome.busy),
            false => Took::Measured,
        })
    }

    /// The job's outputs and what the run took.
    pub fn finish(&self) -> Result<(BTreeMap<String, Tensor>, Report, Timeline), TeamRunError> {
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
            ..Report::default()
        };
        Ok((outputs, report, timeline))
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
        for name in &piece.inputs {
            let (handle, dtype, shape) = {
                let state = lock(&self.state);
                let value = state.values.get(name);
                let value = value.expect("what a piece reads was made before, and has a reader");
                (value.handle, value.dtype, value.shape.clone())
            };
            let tensor = self.tensor(handle, dtype, shape, place)?;
            lock(&self.space).pin(handle, place)?;
            inputs.insert(name.clone(), tensor);
        }
        Ok(inputs)
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

    fn let_be(&self, piece: &Piece, place: Place) -> Result<(), SpaceError> {
        let state = lock(&self.state);
        let mut space = lock(&self.space);
        let held = piece.inputs.iter().map(|name| state.values[name].handle);
        held.into_iter()
            .try_for_each(|handle| space.unpin(handle, place))
    }

    /// Counts a piece's reads; what it was the last to read goes.
    fn read(&self, piece: &Piece) -> Result<(), SpaceError> {
        for name in &piece.inputs {
            let mut state = lock(&self.state);
            let value = state.values.get_mut(name).expect("it was just read");
            value.readers -= 1;
            if value.readers == 0 {
                let handle = value.handle;
                state.values.remove(name);
                drop(state);
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
        at: [UnixMicros; 3],
    ) {
        let [begin, start, end] = at;
        let span = |kind, start, end| Span {
            device: member.label.clone(),
            lane: "run".to_owned(),
            name: piece.name.clone(),
            kind,
            start,
            end,
        };
        let mut state = lock(&self.state);
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
