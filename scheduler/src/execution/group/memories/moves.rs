//! Moves between the memories of a group, carried out while others use the space.
//!
//! What goes over one hop together is one operation of the device that is given or asked for it:
//! what small tensors take beside their bytes is taken once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use souk_memory::Tensor;
use souk_memory::holdings::HoldError;
use souk_memory::paths::Hop;
use souk_memory::place::Place;
use souk_memory::space::{Content, Move, SpaceError};
use souk_memory::transfers::Urgency;
use souk_vocabulary::processor::RunError;
use souk_vocabulary::residency::{DeviceMemory, Resident};

use super::{ComputingGuard, Memories, MemoryError, Space, has_room, index};
use crate::execution::group::held_tensor::HeldTensor;
use crate::execution::group::links::device_place;
use crate::execution::group::run_log::RunLog;
use crate::execution::worker_pool::Moment;

/// A copy of a group's.
type CopyResult = Content<Arc<dyn Resident>>;

/// A move to be carried out, for what was asked for, and who writes it down.
struct OngoingMove<'a> {
    step: Move<Arc<dyn Resident>>,
    kept: Option<&'a HeldTensor>,
    log: Option<&'a RunLog>,
}

/// A move that fails unless it is told to have ended.
pub(super) struct MoveEnd<'a> {
    memories: &'a Memories,
    going: Option<OngoingMove<'a>>,
}

impl<'a> MoveEnd<'a> {
    fn going(&self) -> &OngoingMove<'a> {
        self.going.as_ref().expect("it has not ended before")
    }

    fn hop(&self) -> Hop {
        self.going().step.transit.hop
    }
}

impl Drop for MoveEnd<'_> {
    fn drop(&mut self) {
        if let Some(going) = self.going.take() {
            self.memories.lock().failed(going.step.transit);
            self.memories.ended.notify_all();
        }
    }
}

impl Memories {
    /// Brings tensors together to a place that has room for them, as far as one hop each: who
    /// wants them there asks for each, and is told what fails.
    pub fn bring_together<'a>(
        &'a self,
        wanted: impl Iterator<Item = (&'a HeldTensor, Option<&'a RunLog>)>,
        to: Place,
        urgency: Urgency,
    ) {
        let mut by_hop: Vec<Vec<MoveEnd<'_>>> = Vec::new();
        let mut space = self.lock();
        for (kept, log) in wanted {
            let handle = kept.handle;
            let is_there = space.holdings().holds(handle, to);
            if is_there || space.holdings().is_coming(handle, to) || !has_room(&space, kept, to) {
                continue;
            }
            // What is refused for another reason than a move is refused again when it is asked for
            // by itself.
            drop(space.ensure_on(handle, to));
            let Some(step) = space.take_move() else {
                continue;
            };
            let begun = self.begun(step, Some(kept), log);
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

    /// A move that is to be carried out.
    pub(super) fn begun<'a>(
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

    /// Asks for a change until no move is in its way: those that nobody is at are carried out.
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
            // Without what is on its way there.
            let held = space.pool(step.transit.hop.to).used;
            let held = held.saturating_sub(step.transit.bytes);
            drop(space);
            let begun = self.begun(step, kept, log);
            space = match self.carry_out(vec![begun], urgency) {
                Ok(space) => space,
                Err(error) => self.narrowed(error, held)?,
            };
        }
    }

    /// Carries out moves over one hop; the space is locked again when it is told of the end, so
    /// that nobody comes between that and what they were for. All of them fail or none.
    pub(super) fn carry_out<'a>(
        &'a self,
        endings: Vec<MoveEnd<'a>>,
        urgency: Urgency,
    ) -> Result<MutexGuard<'a, Space>, MemoryError> {
        let transits = endings.iter().map(|ending| &ending.going().step.transit);
        let bytes: u64 = transits.clone().map(|transit| transit.bytes).sum();
        let hop = endings[0].hop();
        let handles = transits.map(|transit| transit.handle);
        let first = self.transfer_queue.goes_first(urgency, hop, handles);
        let at_rest = self.at_rest(hop);
        let logs = endings.iter().map(|ending| ending.going().log);
        let begins: Vec<_> = logs.map(|log| log.map(RunLog::now)).collect();
        let began = Moment::now();
        let contents = self.carried_all(&endings)?;
        let took = Moment::now().since(began);
        drop(first);
        for (ending, begin) in endings.iter().zip(begins) {
            ending.going().tell(begin);
        }
        let mut space = self.lock();
        let undisturbed = at_rest.is_some() && at_rest == self.at_rest(hop);
        let measured = (undisturbed && self.is_measured(hop)).then_some(took);
        // Of several the path learns what all took.
        let alone = measured.filter(|_| contents.len() == 1);
        let mut ended = Ok(());
        for (mut ending, content) in endings.into_iter().zip(contents) {
            let going = ending.going.take().expect("it has not ended before");
            ended = ended.and(space.ended(going.step.transit, content, alone));
        }
        if let Some(took) = measured.filter(|_| alone.is_none()) {
            space.paths_mut().observe(hop, bytes, took);
        }
        self.ended.notify_all();
        self.learned
            .fetch_add(u64::from(measured.is_some()), Ordering::Relaxed);
        ended.map_err(MemoryError::Space)?;
        Ok(space)
    }

    /// A device that has less room than was believed holds no more than it `held`, so that asking
    /// again lets something go, unless that has gone meanwhile; one that holds nothing has failed.
    fn narrowed(
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
        let used = space.pool(device_place(device)).used;
        if used == 0 {
            return Err(error);
        }
        let limited = space.resize(device_place(device), used.max(held));
        limited.map_err(MemoryError::Space)?;
        Ok(space)
    }

    /// The copies at the other end of one hop.
    fn carried_all(&self, endings: &[MoveEnd<'_>]) -> Result<Vec<CopyResult>, MemoryError> {
        let first = &endings[0].going().step;
        if let Some(through) = first.through_disk() {
            let each = |step: &Move<_>| step.through_disk().expect("its hop is a disk's");
            let rest = endings[1..].iter().map(|ending| each(&ending.going().step));
            let all = std::iter::once(through).chain(rest);
            let all = all.collect::<Result<_, _>>();
            return all.map_err(|error| MemoryError::Space(error.into()));
        }
        let hop = first.transit.hop;
        let at = |device: usize| move |cause| MemoryError::Device { device, cause };
        match (index(hop.from), index(hop.to)) {
            (Some(from), None) => {
                let read = self.memory(from).read_all(&residents(endings));
                let read = read.map_err(at(from))?.into_iter();
                Ok(read.map(|it| Content::Host(it.bytes().clone())).collect())
            }
            (None, Some(to)) => {
                let tensors: Vec<Tensor> = endings.iter().map(|it| it.going().tensor()).collect();
                let put = self.memory(to).put_all(&tensors).map_err(at(to))?;
                Ok(put.into_iter().map(Content::Device).collect())
            }
            (Some(from), Some(to)) => {
                let residents = residents(endings);
                let taken = self.memory(to).take_all(&residents).map_err(|cause| {
                    if matches!(cause, RunError::OutOfMemory { .. }) {
                        return at(to)(cause);
                    }
                    // Of two devices the one has failed that does not answer by itself.
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

    fn memory(&self, device: usize) -> &dyn DeviceMemory {
        let memory = self.own(device);
        memory.expect("moves begin and end in memories of their own")
    }

    /// Notes that a device computes until this is dropped.
    pub(super) fn computing(&self, device: usize) -> ComputingGuard<'_> {
        let count = &self.computing[device];
        count.fetch_add(1, Ordering::SeqCst);
        ComputingGuard(count)
    }

    /// How often the devices of a hop have computed; none if one does now: what is moved then may
    /// wait for that, which says nothing of the way.
    fn at_rest(&self, hop: Hop) -> Option<[u64; 2]> {
        let count = |end| {
            let count = index(end).map(|device| &self.computing[device]);
            count.map_or(0, |count| count.load(Ordering::SeqCst))
        };
        let counts = [count(hop.from), count(hop.to)];
        counts.iter().all(|count| count % 2 == 0).then_some(counts)
    }

    /// Whether a move over a hop says how long such moves take.
    fn is_measured(&self, hop: Hop) -> bool {
        let emulated = |end| {
            index(end).is_some_and(|device| self.members[device].processor.profile().emulated)
        };
        !emulated(hop.from) && !emulated(hop.to)
    }
}

impl OngoingMove<'_> {
    /// What goes from the host to a device.
    fn tensor(&self) -> Tensor {
        let Content::Host(bytes) = &self.step.content else {
            unreachable!("what goes to a device from the host is bytes there");
        };
        let kept = self
            .kept
            .expect("only what is asked for is brought to a device");
        let tensor = Tensor::new(kept.dtype, kept.shape.clone(), bytes.clone());
        tensor.expect("the bytes were a tensor of this shape")
    }

    /// Writes down that it began then and has ended now.
    fn tell(&self, begin: Option<crate::execution::timeline::UnixMicros>) {
        if let (Some(log), Some(begin)) = (self.log, begin) {
            let transit = &self.step.transit;
            let name = self.kept.filter(|kept| kept.handle == transit.handle);
            log.moved(name.map(|kept| &*kept.name), transit.hop, begin);
        }
    }
}

/// What leaves a device.
fn residents(endings: &[MoveEnd<'_>]) -> Vec<Arc<dyn Resident>> {
    let resident = |ending: &MoveEnd<'_>| match &ending.going().step.content {
        Content::Device(resident) => resident.clone(),
        Content::Host(_) | Content::Disk(_) => {
            unreachable!("what leaves a device's own memory lies there")
        }
    };
    endings.iter().map(resident).collect()
}
