//! Holds the tensors of a group in the memories of the host and of the devices, and moves them
//! where a thread needs them. One lock guards the record of all places (the [`Space`]), and the
//! moves themselves run outside that lock.
//!
//! The thread that needs a tensor moves it to or from a device with a memory of its own: the
//! device's own thread, another device's thread or the prefetcher. The disk works the same way, and
//! holds tensors that have no room elsewhere. The paths learn from the duration of each move,
//! unless one of its devices is emulated: links of emulated devices stay as declared.

mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_memory::Tensor;
use souk_memory::holdings::{Handle, HoldError};
use souk_memory::location::{DeviceIndex, Location};
use souk_memory::space::{Content, SpaceConfig, SpaceError};
use souk_memory::transfers::Urgency;
use souk_vocabulary::processor::{Outcome, Program, RunError};
use souk_vocabulary::residency::{DeviceMemory, Resident, TensorHandle};

use super::GroupDevice;
use super::held_tensor::{HeldTensor, tensor_bytes};
use super::links::{self, device_place};
use super::run_log::RunLog;
use super::transfer_queue::TransferQueue;
use crate::planning::offer::Links;

/// The record of the places of a group's tensors.
pub(super) type Space = souk_memory::space::Space<Arc<dyn Resident>>;

/// The reason why a tensor is not at the requested place.
#[derive(Debug)]
pub(super) enum MemoryError {
    /// The bookkeeping or the disk refused the operation.
    Space(SpaceError),
    /// A device failed while it sent or received the tensor.
    Device { device: usize, cause: RunError },
    /// A failed device held the only copy.
    Gone,
}

/// All memories of a group.
pub(super) struct Memories {
    space: Mutex<Space>,
    /// The moves that wait for a path.
    transfer_queue: Arc<TransferQueue>,
    /// Signals the end of a move.
    ended: Condvar,
    members: Vec<GroupDevice>,
    has_device_memory: bool,
    /// A counter for each device, incremented at the start and at the end of a computation: odd
    /// while the device computes.
    computing: Vec<AtomicU64>,
    /// Number of runs that claim each device's whole memory: the prefetcher brings nothing there
    /// meanwhile.
    clearing: Vec<AtomicU64>,
    /// Time of a handover from one device to another, in addition to its transfer.
    hand_over: Duration,
    /// Links that plans use until the paths learn something.
    links: Mutex<Option<(u64, Arc<Links>)>>,
    /// Number of moves that the paths learned from.
    learned: AtomicU64,
}

/// Counts a run that waits for room on a device.
struct ClearingGuard<'a>(&'a AtomicU64);

impl<'a> ClearingGuard<'a> {
    fn begin(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for ClearingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Marks a device as computing until it is dropped.
pub(super) struct ComputingGuard<'a>(&'a AtomicU64);

impl Drop for ComputingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Memories {
    /// Opens the memories of these devices. Host memory holds at most `host_bytes_max` of tensors.
    pub fn open(
        members: Vec<GroupDevice>,
        config: SpaceConfig,
        hand_over: Duration,
    ) -> Result<Self, SpaceError> {
        let host_bytes_max = config.host_bytes_max;
        let mut space = Space::open(config)?;
        for (index, member) in members.iter().enumerate() {
            let own = member.processor.device_memory();
            let limit = links::limit_of(member, host_bytes_max);
            match own {
                Some(memory) => space.add_memory(device_place(index), limit, memory.host_link())?,
                None => space.add_device(
                    device_place(index),
                    limit,
                    links::shared_memory_path(member),
                )?,
            }
        }
        for (to, taker) in members.iter().enumerate() {
            for (from, giver) in members.iter().enumerate().filter(|(from, _)| *from != to) {
                let ends = (
                    taker.processor.device_memory(),
                    giver.processor.device_memory(),
                );
                let link = match ends {
                    (Some(taker), Some(giver)) => taker.peer_link(giver),
                    _ => None,
                };
                if let Some(link) = link {
                    space
                        .paths_mut()
                        .declare_path(device_place(from), device_place(to), link);
                }
            }
        }
        Ok(Self {
            space: Mutex::new(space),
            transfer_queue: Arc::default(),
            ended: Condvar::new(),
            computing: members.iter().map(|_| AtomicU64::new(0)).collect(),
            clearing: members.iter().map(|_| AtomicU64::new(0)).collect(),
            has_device_memory: members
                .iter()
                .any(|member| member.processor.device_memory().is_some()),
            members,
            hand_over,
            links: Mutex::default(),
            learned: AtomicU64::new(0),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, Space> {
        // Each holder completes its change or makes none; tasks panic outside the lock.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the moves that wait for a path between the memories.
    pub fn transfer_queue(&self) -> &Arc<TransferQueue> {
        &self.transfer_queue
    }

    /// Returns the source of a tensor: the host if it has a copy, else the disk, else a device.
    pub fn source_place(&self, kept: &HeldTensor) -> Location {
        let space = self.lock();
        let places = space
            .holdings()
            .copy_places(kept.handle)
            .unwrap_or_default();
        let apart = |place: &Location| match index(*place) {
            Some(device) => self.own_memory(device).is_some(),
            None => *place == Location::Disk,
        };
        if places.iter().all(apart) {
            let disk = places.iter().find(|place| **place == Location::Disk);
            return disk.or(places.first()).copied().unwrap_or(Location::Host);
        }
        Location::Host
    }

    /// Returns the links between the devices, as the paths know them now.
    pub fn links(&self) -> Arc<Links> {
        let mut known = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let learned = self.learned.load(Ordering::Relaxed);
        if let Some((_, links)) = known.as_ref().filter(|(when, _)| *when == learned) {
            return links.clone();
        }
        let links = {
            let space = self.lock();
            let paths = space.holdings().paths();
            Arc::new(links::build_links(&self.members, self.hand_over, paths))
        };
        *known = Some((learned, links.clone()));
        links
    }

    /// Returns whether any device has a memory of its own.
    pub fn has_device_memory(&self) -> bool {
        self.has_device_memory
    }

    pub fn own_memory(&self, device: usize) -> Option<&dyn DeviceMemory> {
        self.members[device].processor.device_memory()
    }

    /// Returns whether tensors of one device reach another without the host: the devices are the
    /// same, or a path connects their memories.
    pub fn can_reach(&self, from: usize, to: usize) -> bool {
        let linked = || {
            let space = self.lock();
            let paths = space.holdings().paths();
            paths
                .direct_path(device_place(from), device_place(to), 0)
                .is_some()
        };
        from == to || linked()
    }

    /// Brings a tensor to a place and returns it. The tensor stays there until the caller unpins
    /// it.
    pub fn move_and_pin(
        &self,
        kept: &HeldTensor,
        place: Location,
        log: Option<&RunLog>,
    ) -> Result<TensorHandle, MemoryError> {
        let content = self.until_done(AWAITED, Some(kept), log, |space| {
            let content = space.ensure_on(kept.handle, place)?;
            space.pin_copy(kept.handle, place)?;
            Ok(content)
        });
        Ok(into_handle(kept, content?))
    }

    /// Brings a tensor to a place and returns it.
    pub fn move_to(
        &self,
        kept: &HeldTensor,
        place: Location,
        log: Option<&RunLog>,
    ) -> Result<TensorHandle, MemoryError> {
        let content = self.until_done(AWAITED, Some(kept), log, |space| {
            space.ensure_on(kept.handle, place)
        });
        Ok(into_handle(kept, content?))
    }

    /// Brings a tensor to the host and returns it.
    pub fn move_to_host(&self, kept: &HeldTensor, log: &RunLog) -> Result<Tensor, MemoryError> {
        match self.move_to(kept, Location::Host, Some(log))? {
            TensorHandle::Host(tensor) => Ok(tensor),
            TensorHandle::Device(_) => unreachable!("what is in host memory is no device's"),
        }
    }

    /// Runs a program on inputs that are on its device. Outputs named in `stays` stay in the
    /// device's own memory. If that memory is full, this clears unused tensors from it and runs the
    /// program again.
    pub fn run(
        &self,
        device: usize,
        program: &dyn Program,
        inputs: &BTreeMap<String, TensorHandle>,
        stays: &BTreeSet<String>,
        log: &RunLog,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        if self.own_memory(device).is_none() {
            let on_host = inputs
                .iter()
                .map(|(name, held)| Ok((name.clone(), held.to_host()?)));
            let on_host: Result<_, RunError> = on_host.collect();
            let outcome = program.run(&on_host?)?;
            return outcome.try_map(|tensor| Ok(TensorHandle::Host(tensor)));
        }
        let ran = self.run_once(device, program, inputs, stays);
        if !matches!(ran, Err(RunError::OutOfMemory { .. })) {
            return ran;
        }
        let _clearing = ClearingGuard::begin(&self.clearing[device]);
        // A move keeps the tensor that it reads in use until it ends.
        let waits = (0..FULL_MAX).take_while(|_| self.wait_for_move(log));
        let _waited = waits.count();
        self.clear(device, Some(log));
        self.run_once(device, program, inputs, stays)
    }

    fn run_once(
        &self,
        device: usize,
        program: &dyn Program,
        inputs: &BTreeMap<String, TensorHandle>,
        stays: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let outcome = {
            let _computing = self.begin_computing(device);
            program.run_held(inputs, stays)?
        };
        // Inputs and outputs in host memory cross the link, whichever fragment needs them.
        let all = inputs.values().chain(outcome.outputs.values());
        let on_host = all.filter(|held| matches!(held, TensorHandle::Host(_)));
        let crossed = on_host.map(tensor_bytes).sum();
        self.lock().record_delivery(device_place(device), crossed);
        Ok(outcome)
    }

    /// Carries out a waiting move, or waits for the end of one. Returns whether there was a move.
    fn wait_for_move(&self, log: &RunLog) -> bool {
        let mut space = self.lock();
        if !space.holdings().is_moving() {
            return false;
        }
        match space.take_move() {
            Some(step) => {
                drop(space);
                let begun = self.begin_move(step, None, Some(log));
                drop(self.carry_out(vec![begun], AWAITED));
            }
            None => drop(self.ended.wait(space)),
        }
        true
    }

    /// Brings a tensor to a place by moves alone, if that place has room.
    pub fn prefetch_to(&self, kept: &HeldTensor, to: Location, log: Option<&RunLog>) {
        let ahead = self.until_done(Urgency::Planned, Some(kept), log, |space| {
            let holdings = space.holdings();
            let is_there = holdings.has_copy(kept.handle, to);
            let is_coming = holdings.is_coming(kept.handle, to);
            if !is_there && (is_coming || has_room(space, kept, to)) {
                space.ensure_on(kept.handle, to)?;
            }
            Ok(())
        });
        // The fragment that needs the tensor brings it again and gets the error.
        drop(ahead);
    }

    /// Takes an output of a device into the bookkeeping.
    pub fn adopt_output(
        &self,
        name: &str,
        made: &TensorHandle,
        device: usize,
        log: Option<&RunLog>,
    ) -> Result<HeldTensor, MemoryError> {
        let at = device_place(device);
        let resident = match made {
            TensorHandle::Host(tensor) if self.own_memory(device).is_some() => {
                return self.adopt_host(name, tensor, Location::Host, log);
            }
            TensorHandle::Host(tensor) => return self.adopt_host(name, tensor, at, log),
            TensorHandle::Device(resident) => resident,
        };
        let (dtype, shape) = (resident.dtype(), resident.shape().clone());
        let bytes = shape.byte_length(dtype) as u64;
        let adopted = self.until_done(AWAITED, None, log, |space| {
            space.adopt_resident(resident.clone(), bytes, at)
        });
        match adopted {
            Ok(handle) => Ok(HeldTensor {
                name: name.into(),
                handle,
                dtype,
                shape,
            }),
            // If the bookkeeping has no room for it on the device, the output goes to the host.
            Err(MemoryError::Space(SpaceError::Hold(HoldError::NoRoom { .. }))) => {
                let tensor = resident.to_host();
                let tensor = tensor.map_err(|cause| MemoryError::Device { device, cause })?;
                self.lock().record_delivery(at, bytes);
                self.adopt_host(name, &tensor, Location::Host, log)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a tensor in host memory into the bookkeeping.
    pub fn adopt_host(
        &self,
        name: &str,
        tensor: &Tensor,
        place: Location,
        log: Option<&RunLog>,
    ) -> Result<HeldTensor, MemoryError> {
        let handle = self.until_done(AWAITED, None, log, |space| {
            space.adopt_unnamed(tensor.bytes().clone(), place)
        })?;
        Ok(HeldTensor {
            name: name.into(),
            handle,
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
        })
    }

    /// Sets the limit of host memory, and with it the limits of the devices that compute there.
    pub fn set_host_limit(&self, host_bytes_max: u64) -> Result<(), MemoryError> {
        // The host comes last, because its devices can release the last use of a tensor.
        let devices = 0..self.members.len();
        for device in devices.filter(|&device| self.own_memory(device).is_none()) {
            let limit = links::limit_of(&self.members[device], host_bytes_max);
            self.set_limit(device_place(device), limit)?;
        }
        self.set_limit(Location::Host, host_bytes_max)
    }

    fn set_limit(&self, place: Location, bytes_max: u64) -> Result<(), MemoryError> {
        self.until_done(AWAITED, None, None, |space| {
            space.set_limit(place, bytes_max)
        })
    }

    /// Sets the limit of each device's own memory to its held bytes plus its free bytes.
    pub fn refresh_limits(&self, lost: u64) {
        for (device, member) in self.members.iter().enumerate() {
            let is_clearing = || self.clearing[device].load(Ordering::SeqCst) > 0;
            if member.processor.device_memory().is_none()
                || lost >> device & 1 == 1
                || is_clearing()
            {
                continue;
            }
            let free = member.processor.memory_free_bytes();
            let mut space = self.lock();
            let pool = space.pool_use(device_place(device));
            let limit = pool.used.saturating_add(free);
            let limit = limit.min(member.processor.profile().memory.bytes);
            // Tensors above a lower limit leave the device as soon as a run needs room.
            if limit > pool.used {
                let limited = space.set_limit(device_place(device), limit);
                assert!(
                    limited.is_ok(),
                    "nothing is over a limit above what is held"
                );
            }
        }
    }

    /// Moves all unused tensors out of a device's own memory when a run lacks room. The device's
    /// limit becomes the bytes that it held, or that it still holds if that is more.
    pub fn clear(&self, device: usize, log: Option<&RunLog>) {
        let at = device_place(device);
        let held = self.lock().pool_use(at).used;
        let cleared = self.until_done(AWAITED, None, log, |space| space.set_limit(at, 0));
        // Tensors in use stay, and the resize fails.
        drop(cleared);
        let mut space = self.lock();
        let held = held.max(space.pool_use(at).used);
        drop(space.set_limit(at, held));
    }

    /// Marks the contents of a failed device's own memory as lost.
    pub fn mark_device_lost(&self, device: usize) {
        if self.own_memory(device).is_some() {
            self.lock().forget_place(device_place(device));
            self.ended.notify_all();
        }
    }

    /// Returns whether any place has a copy.
    pub fn has_copy(&self, handle: Handle) -> bool {
        let space = self.lock();
        let places = space.holdings().copy_places(handle);
        places.is_ok_and(|places| !places.is_empty())
    }
}

fn index(place: Location) -> Option<usize> {
    match place {
        Location::Device(DeviceIndex(index)) => Some(usize::from(index)),
        _ => None,
    }
}

/// Returns whether a place has room for a tensor without an eviction.
fn has_room(space: &Space, kept: &HeldTensor, to: Location) -> bool {
    let pool = space.pool_use(to);
    pool.used.saturating_add(kept.byte_size()) <= pool.limit
}

fn into_handle(kept: &HeldTensor, content: Content<Arc<dyn Resident>>) -> TensorHandle {
    match content {
        Content::Device(resident) => TensorHandle::Device(resident),
        Content::Host(bytes) => {
            let tensor = Tensor::new(kept.dtype, kept.shape.clone(), bytes);
            TensorHandle::Host(tensor.expect("the bytes were a tensor of this shape"))
        }
        Content::Disk(_) => unreachable!("nothing computes on disk"),
    }
}

/// Every move here, except those of the prefetcher, has a waiting caller.
const AWAITED: Urgency = Urgency::Awaited;
/// Maximum number of moves that a run without room waits for: each can free some.
const FULL_MAX: usize = 16;
