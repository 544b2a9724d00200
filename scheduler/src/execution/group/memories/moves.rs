//! Moves tensors between the memories of a group while other threads use the record of their
//! places.
//!
//! Moves that share one hop are one operation of the device that sends or receives: small tensors
//! pay the fixed time of a transfer only once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use souk_memory::Tensor;
use souk_memory::holdings::HoldError;
use souk_memory::location::Location;
use souk_memory::paths::Hop;
use souk_memory::space::{Content, Move, SpaceError};
use souk_memory::transfers::Urgency;
use souk_vocabulary::processor::RunError;
use souk_vocabulary::residency::{DeviceMemory, Resident};

use super::{ComputingGuard, Memories, MemoryError, Space, has_room, index};
use crate::execution::group::held_tensor::HeldTensor;
use crate::execution::group::links::device_place;
use crate::execution::group::run_log::RunLog;
use crate::execution::worker_pool::Moment;

/// The copy of a tensor in one of the group's places.
type CopyResult = Content<Arc<dyn Resident>>;

/// A move to carry out, with the tensor that the caller asked for and the log that records it.
struct OngoingMove<'a> {
    step: Move<Arc<dyn Resident>>,
    kept: Option<&'a HeldTensor>,
    log: Option<&'a RunLog>,
}

/// Marks a move as failed on drop, unless the move has ended.
pub(super) struct MoveEnd<'a> {
    memories: &'a Memories,
    going: Option<OngoingMove<'a>>,
}

impl<'a> MoveEnd<'a> {
    fn ongoing_move(&self) -> &OngoingMove<'a> {
        self.going.as_ref().expect("it has not ended before")
    }

    fn hop(&self) -> Hop {
        self.ongoing_move().step.transit.hop
    }
}

impl Drop for MoveEnd<'_> {
    fn drop(&mut self) {
        if let Some(going) = self.going.take() {
            self.memories.lock().on_transfer_failed(going.step.transit);
            self.memories.ended.notify_all();
        }
    }
}

impl Memories {
    /// Brings tensors together to a place that has room for them, each by one hop at most. The
    /// fragment that needs a tensor asks for it again and gets any error.
    pub fn bring_together<'a>(
        &'a self,
        wanted: impl Iterator<Item = (&'a HeldTensor, Option<&'a RunLog>)>,
        to: Location,
        urgency: Urgency,
    ) {
        let mut by_hop: Vec<Vec<MoveEnd<'_>>> = Vec::new();
        let mut space = self.lock();
        for (kept, log) in wanted {
            let handle = kept.handle;
            let is_there = space.holdings().has_copy(handle, to);
            if is_there || space.holdings().is_coming(handle, to) || !has_room(&space, kept, to) {
                continue;
            }
            // Errors other than a pending move recur when a fragment asks for this tensor alone.
            drop(space.ensure_on(handle, to));
            let Some(step) = space.take_move() else {
                continue;
            };
            let begun = self.begin_move(step, Some(kept), log);
            match by_hop
                .iter_mut()
                .find(|batch| batch[0].hop() == begun.hop())
            {
                Some(batch) => batch.push(begun),
                None => by_hop.push(vec![begun]),
            }
        }
        drop(space);
        for batch in by_hop {
            drop(self.carry_out(batch, urgency));
        }
    }

    /// Wraps a move that the caller is about to carry out.
    pub(super) fn begin_move<'a>(
        &'a self,
        step: Move<Arc<dyn Resident>>,
        kept: Option<&'a HeldTensor>,
        log: Option<&'a RunLog>,
    ) -> MoveEnd<'a> {
        MoveEnd {
            memories: self,
            going: Some(OngoingMove { step, kept, log }),
        }
    }

    /// Applies a change as soon as no move blocks it. Carries out blocking moves that no other
    /// thread carries out.
    pub(super) fn until_done<T>(
        &self,
        urgency: Urgency,
        kept: Option<&HeldTensor>,
        log: Option<&RunLog>,
        mut change: impl FnMut(&mut Space) -> Result<T, SpaceError>,
    ) -> Result<T, MemoryError> {
        let mut space = self.lock();
        loop {
            match change(&mut space) {
                Err(SpaceError::Hold(HoldError::Moving { .. })) => {}
                answered => return answered.map_err(MemoryError::Space),
            }
            let Some(step) = space.take_move() else {
                let waited = self.ended.wait(space);
                space = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // The bytes at the destination, without those on their way there.
            let held = space.pool_use(step.transit.hop.to).used;
            let held = held.saturating_sub(step.transit.bytes);
            drop(space);
            let begun = self.begin_move(step, kept, log);
            space = match self.carry_out(vec![begun], urgency) {
                Ok(space) => space,
                Err(error) => self.lower_limit(error, held)?,
            };
        }
    }

    /// Carries out moves over one hop: all succeed or all fail. Returns the space, still locked
    /// since the moves ended, so that no other thread intervenes before the caller uses their
    /// result.
    pub(super) fn carry_out<'a>(
        &'a self,
        endings: Vec<MoveEnd<'a>>,
        urgency: Urgency,
    ) -> Result<MutexGuard<'a, Space>, MemoryError> {
        let transits = endings
            .iter()
            .map(|ending| &ending.ongoing_move().step.transit);
        let bytes: u64 = transits.clone().map(|transit| transit.bytes).sum();
        let hop = endings[0].hop();
        let handles = transits.map(|transit| transit.handle);
        let first = self.transfer_queue.goes_first(urgency, hop, handles);
        let at_rest = self.at_rest(hop);
        let logs = endings.iter().map(|ending| ending.ongoing_move().log);
        let begins: Vec<_> = logs.map(|log| log.map(RunLog::now)).collect();
        let began = Moment::now();
        let contents = self.carried_all(&endings)?;
        let took = Moment::now().duration_since(began);
        drop(first);
        for (ending, begin) in endings.iter().zip(begins) {
            ending.ongoing_move().log_move(begin);
        }
        let mut space = self.lock();
        let undisturbed = at_rest.is_some() && at_rest == self.at_rest(hop);
        let measured = (undisturbed && self.is_measured(hop)).then_some(took);
        // For several moves, the path learns their joint time.
        let alone = measured.filter(|_| contents.len() == 1);
        let mut ended = Ok(());
        for (mut ending, content) in endings.into_iter().zip(contents) {
            let going = ending.going.take().expect("it has not ended before");
            ended = ended.and(space.on_transfer_ended(going.step.transit, content, alone));
        }
        if let Some(took) = measured.filter(|_| alone.is_none()) {
            space.paths_mut().observe_transfer(hop, bytes, took);
        }
        self.ended.notify_all();
        self.learned
            .fetch_add(u64::from(measured.is_some()), Ordering::Relaxed);
        ended.map_err(MemoryError::Space)?;
        Ok(space)
    }

    /// Lowers the limit of a device that has less room than the bookkeeping expected. The limit
    /// becomes the larger of `held` and the device's used bytes, so that the next attempt evicts a
    /// tensor if nothing has left meanwhile. A device that holds nothing has failed.
    fn lower_limit(
        &self,
        error: MemoryError,
        held: u64,
    ) -> Result<MutexGuard<'_, Space>, MemoryError> {
        let MemoryError::Device {
            device,
            cause: RunError::OutOfMemory { .. },
        } = error
        else {
            return Err(error);
        };
        let mut space = self.lock();
        let used = space.pool_use(device_place(device)).used;
        if used == 0 {
            return Err(error);
        }
        let limited = space.set_limit(device_place(device), used.max(held));
        limited.map_err(MemoryError::Space)?;
        Ok(space)
    }

    /// Copies the tensors to the other end of their hop and returns the copies.
    fn carried_all(&self, endings: &[MoveEnd<'_>]) -> Result<Vec<CopyResult>, MemoryError> {
        let first = &endings[0].ongoing_move().step;
        if let Some(through) = first.through_disk() {
            let each = |step: &Move<_>| step.through_disk().expect("its hop is a disk's");
            let rest = endings[1..]
                .iter()
                .map(|ending| each(&ending.ongoing_move().step));
            let all = std::iter::once(through).chain(rest);
            let all = all.collect::<Result<_, _>>();
            return all.map_err(|error| MemoryError::Space(error.into()));
        }
        let hop = first.transit.hop;
        let at = |device: usize| move |cause| MemoryError::Device { device, cause };
        match (index(hop.from), index(hop.to)) {
            (Some(from), None) => {
                let read = self
                    .device_memory(from)
                    .read_all(&leaving_residents(endings));
                let read = read.map_err(at(from))?.into_iter();
                Ok(read.map(|it| Content::Host(it.bytes().clone())).collect())
            }
            (None, Some(to)) => {
                let tensors: Vec<Tensor> = endings
                    .iter()
                    .map(|it| it.ongoing_move().host_tensor())
                    .collect();
                let put = self.device_memory(to).put_all(&tensors).map_err(at(to))?;
                Ok(put.into_iter().map(Content::Device).collect())
            }
            (Some(from), Some(to)) => {
                let residents = leaving_residents(endings);
                let taken = self
                    .device_memory(to)
                    .take_all(&residents)
                    .map_err(|cause| {
                        if matches!(cause, RunError::OutOfMemory { .. }) {
                            return at(to)(cause);
                        }
                        // One of the two devices has failed: the sender, if it does not answer by
                        // itself.
                        match residents[0].to_host() {
                            Err(cause) => at(from)(cause),
                            Ok(_) => at(to)(cause),
                        }
                    });
                Ok(taken?.into_iter().map(Content::Device).collect())
            }
            (None, None) => unreachable!("the host's memory is moved by reference"),
        }
    }

    fn device_memory(&self, device: usize) -> &dyn DeviceMemory {
        let memory = self.own_memory(device);
        memory.expect("moves begin and end in memories of their own")
    }

    /// Marks a device as computing until the caller drops the guard.
    pub(super) fn begin_computing(&self, device: usize) -> ComputingGuard<'_> {
        let count = &self.computing[device];
        count.fetch_add(1, Ordering::SeqCst);
        ComputingGuard(count)
    }

    /// Returns the counters of a hop's devices, or none if one computes now. A move may wait for
    /// that computation, so its time says nothing of the path.
    fn at_rest(&self, hop: Hop) -> Option<[u64; 2]> {
        let count = |end| {
            let count = index(end).map(|device| &self.computing[device]);
            count.map_or(0, |count| count.load(Ordering::SeqCst))
        };
        let counts = [count(hop.from), count(hop.to)];
        counts.iter().all(|count| count % 2 == 0).then_some(counts)
    }

    /// Returns whether the paths may learn from moves over a hop.
    fn is_measured(&self, hop: Hop) -> bool {
        let emulated = |end| {
            index(end).is_some_and(|device| self.members[device].processor.profile().emulated)
        };
        !emulated(hop.from) && !emulated(hop.to)
    }
}

impl OngoingMove<'_> {
    /// Returns the tensor that goes from the host to a device.
    fn host_tensor(&self) -> Tensor {
        let Content::Host(bytes) = &self.step.content else {
            unreachable!("what goes to a device from the host is bytes there");
        };
        let kept = self
            .kept
            .expect("only what is asked for is brought to a device");
        let tensor = Tensor::new(kept.dtype, kept.shape.clone(), bytes.clone());
        tensor.expect("the bytes were a tensor of this shape")
    }

    /// Records the move in its log, from `begin` until now.
    fn log_move(&self, begin: Option<crate::execution::timeline::UnixMicros>) {
        if let (Some(log), Some(begin)) = (self.log, begin) {
            let transit = &self.step.transit;
            let name = self.kept.filter(|kept| kept.handle == transit.handle);
            log.record_move(name.map(|kept| &*kept.name), transit.hop, begin);
        }
    }
}

/// Returns the tensors that leave a device.
fn leaving_residents(endings: &[MoveEnd<'_>]) -> Vec<Arc<dyn Resident>> {
    let resident = |ending: &MoveEnd<'_>| match &ending.ongoing_move().step.content {
        Content::Device(resident) => resident.clone(),
        Content::Host(_) | Content::Disk(_) => {
            unreachable!("what leaves a device's own memory lies there")
        }
    };
    endings.iter().map(resident).collect()
}
