//! Holds the bytes of all copies that [`Holdings`] records, in host memory, in devices' memories
//! and on disk, and moves them as [`Holdings`] decides.
//!
//! Places that share memory exchange content by reference, without a copy: for example, operators
//! on one processor pass each other the same memory.
//!
//! A device can have its own memory, whose copies have a type that only the owner knows. The owner
//! carries out transfers to and from it, and to and from disk, while other threads use the space.
//! The space refuses a change that needs such a transfer with [`HoldError::Moving`].
//! [`Space::take_move`] then returns the transfer, unless another thread has it: you must carry it
//! out and report its end. Once it has [ended](Space::on_transfer_ended), you can request the
//! change again.

mod foreign;
mod spill;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::ContentId;
use crate::holdings::{Handle, HoldError, Holdings, PoolUse, Step};
use crate::location::Location;
use crate::paths::{Path, PathBytes, PathKind, Paths};
use crate::store::FolderError;
pub use foreign::{Content, Move};
use spill::Spill;
pub use spill::SpilledCopy;

/// The limits and paths of a space.
#[derive(Clone, Debug)]
pub struct SpaceConfig {
    /// The most bytes in host memory.
    pub host_bytes_max: u64,
    /// The folder to which a full host memory spills content, and its most bytes; `None` disables
    /// spilling.
    pub spill: Option<(PathBuf, u64)>,
    /// The latency and bandwidth of the disk until measurements replace them.
    pub disk: Path,
}

/// Why content cannot be held or moved.
#[derive(Debug, Error)]
pub enum SpaceError {
    /// The bookkeeping refused the change.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] FolderError),
    /// The place has allocated space, and no thread has written to it yet.
    #[error("{handle} was allocated in {place}, and nothing was written to it yet")]
    Unwritten {
        /// The handle of the content.
        handle: Handle,
        /// The place with the unwritten space.
        place: Location,
    },
    /// A transfer brought bytes of another length than expected.
    #[error("{handle} has {expected} bytes, {found} were transferred")]
    Length {
        /// The handle of the content.
        handle: Handle,
        /// The expected bytes.
        expected: u64,
        /// The bytes that arrived.
        found: u64,
    },
}

/// The totals moved since the space was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveTotals {
    /// Bytes copied from one memory to another.
    pub copied_bytes: u64,
    /// Bytes that another place got by reference.
    pub shared_bytes: u64,
    /// Bytes written to disk because memory was full.
    pub spilled_bytes: u64,
    /// Bytes read back from disk.
    pub restored_bytes: u64,
    /// Copies dropped.
    pub dropped: u64,
    /// Bytes between memories, by kind of path.
    pub over: PathBytes,
}

/// All copies of content that one process holds, in all its places. `D` is the type of a copy in a
/// device's own memory.
#[derive(Debug)]
pub struct Space<D> {
    holdings: Holdings,
    copies: BTreeMap<(Handle, Location), Content<D>>,
    spill: Option<Arc<Spill>>,
    moved: MoveTotals,
    /// The bytes to and from each device, by kind of path.
    over: BTreeMap<Location, PathBytes>,
    /// The transfer that the last change began, until a thread takes it.
    begun_transfer: Option<Move<D>>,
}

impl<D: Clone> Space<D> {
    /// Creates an empty space; add devices with [`Space::add_device`].
    ///
    /// # Errors
    /// [`FolderError`] if the spill folder is not usable.
    pub fn open(config: SpaceConfig) -> Result<Self, SpaceError> {
        let mut holdings = Holdings::new(Paths::default());
        holdings.set_limit(Location::Host, config.host_bytes_max)?;
        let mut spill = None;
        if let Some((folder, bytes_max)) = config.spill {
            spill = Some(Arc::new(Spill::open(folder, bytes_max)?));
            holdings.set_own(Location::Disk);
            holdings.set_limit(Location::Disk, bytes_max)?;
            let paths = holdings.paths_mut();
            paths.declare_both(Location::Host, Location::Disk, config.disk);
        }
        Ok(Self {
            holdings,
            copies: BTreeMap::new(),
            spill,
            moved: MoveTotals::default(),
            over: BTreeMap::new(),
            begun_transfer: None,
        })
    }

    /// Adds a device's memory and its path to the host, or changes its limit. `device` must be a
    /// [`Location::Device`].
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if pinned copies exceed the new limit; the space evicts others
    /// nevertheless.
    pub fn add_device(
        &mut self,
        device: Location,
        bytes_max: u64,
        to_host: Path,
    ) -> Result<(), SpaceError> {
        assert!(
            matches!(device, Location::Device(_)),
            "{device} is no device"
        );
        let paths = self.holdings.paths_mut();
        paths.declare_both(device, Location::Host, to_host);
        let limited = self.holdings.set_limit(device, bytes_max);
        self.run_steps(limited)
    }

    /// Returns the bookkeeping: pools, places, paths.
    #[must_use]
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Returns the paths, to declare more and to record transfers.
    pub fn paths_mut(&mut self) -> &mut Paths {
        self.holdings.paths_mut()
    }

    /// Returns the totals moved so far.
    #[must_use]
    pub fn move_totals(&self) -> MoveTotals {
        self.moved
    }

    /// Returns the use of a place.
    #[must_use]
    pub fn pool_use(&self, place: Location) -> PoolUse {
        self.holdings.pool_use(place)
    }

    /// Sets the limit of a place; a lower limit evicts copies beyond it.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if pinned copies exceed it, or [`HoldError::Moving`].
    pub fn set_limit(&mut self, place: Location, bytes_max: u64) -> Result<(), SpaceError> {
        let limited = self.holdings.set_limit(place, bytes_max);
        self.run_steps(limited)
    }

    /// Adds bytes that are at `place` already, without a copy. `content` must be their id, because
    /// the space does not hash them. Equal content is held once.
    ///
    /// # Errors
    /// [`HoldError`] if there is no space, or until transfers have ended.
    pub fn adopt_content(
        &mut self,
        content: ContentId,
        bytes: Bytes,
        place: Location,
    ) -> Result<Handle, SpaceError> {
        self.check_host(place)?;
        let adopted = self
            .holdings
            .adopt_content(content, bytes.len() as u64, place);
        let handle = self.run_steps(adopted)?;
        let copy = self.copies.entry((handle, place));
        copy.or_insert(Content::Host(bytes));
        Ok(handle)
    }

    /// Adds bytes that were just made at `place` without an id, because hashing is a waste of time
    /// if no other work uses them.
    ///
    /// # Errors
    /// [`HoldError`] if there is no space, or until transfers have ended.
    pub fn adopt_unnamed(&mut self, bytes: Bytes, place: Location) -> Result<Handle, SpaceError> {
        self.check_host(place)?;
        let length = bytes.len() as u64;
        self.take_up(Content::Host(bytes), length, place)
    }

    /// Brings content to `place`, unless it is there, and returns the copy.
    ///
    /// # Errors
    /// [`HoldError`] if there is no path or space, or until transfers have ended.
    pub fn ensure_on(&mut self, handle: Handle, place: Location) -> Result<Content<D>, SpaceError> {
        let ensured = self.holdings.ensure_on(handle, place);
        self.run_steps(ensured)?;
        let content = self.copies.get(&(handle, place)).cloned();
        content.ok_or(SpaceError::Unwritten { handle, place })
    }

    /// Keeps the copy at `place` until you unpin it.
    ///
    /// # Errors
    /// [`HoldError`] if there is no copy.
    pub fn pin_copy(&mut self, handle: Handle, place: Location) -> Result<(), SpaceError> {
        Ok(self.holdings.pin_copy(handle, place)?)
    }

    /// Reverts one [`Space::pin_copy`].
    ///
    /// # Errors
    /// [`HoldError`] if there is no copy.
    pub fn unpin_copy(&mut self, handle: Handle, place: Location) -> Result<(), SpaceError> {
        Ok(self.holdings.unpin_copy(handle, place)?)
    }

    /// Drops one reference; with the last one, every copy goes.
    ///
    /// # Errors
    /// [`HoldError::Pinned`] if this is the last reference and a copy is in use.
    pub fn release_reference(&mut self, handle: Handle) -> Result<(), SpaceError> {
        let released = self.holdings.release_reference(handle);
        self.run_steps(released)?;
        self.check_invariants();
        Ok(())
    }

    /// Forgets all copies at a place whose device failed. Returns the content that has no copy
    /// left. The place holds nothing again until it gets a limit.
    pub fn forget_place(&mut self, place: Location) -> Vec<Handle> {
        let orphans = self.holdings.forget_place(place);
        let settled = self.run_steps(Ok(()));
        assert!(settled.is_ok(), "forgetting copies in memory cannot fail");
        orphans
    }

    /// Carries out all steps that a change left, even a refused one, then returns its result.
    fn run_steps<T>(&mut self, result: Result<T, HoldError>) -> Result<T, SpaceError> {
        for step in self.holdings.take_steps() {
            match step {
                Step::Copy {
                    handle, from, to, ..
                } => self.copy_content(handle, from, to),
                Step::Drop { handle, place, .. } => {
                    self.moved.dropped += 1;
                    self.copies.remove(&(handle, place));
                }
            }
        }
        self.begin_move()?;
        Ok(result?)
    }

    fn copy_content(&mut self, handle: Handle, from: Location, to: Location) {
        // Allocated space without content has nothing to copy.
        let Some(content) = self.copies.get(&(handle, from)).cloned() else {
            return;
        };
        let Content::Host(bytes) = content else {
            unreachable!("what lies on disk or in a device's own memory is moved by the owner");
        };
        let length = bytes.len() as u64;
        let route = self.holdings.paths().fastest_route(from, to, length);
        let one = |kind| matches!(kind, PathKind::Unified | PathKind::Shared);
        let hops = route.iter().flat_map(|route| &route.hops);
        let kinds: Vec<PathKind> = hops.map(|hop| hop.kind).collect();
        let apart = kinds.iter().copied().find(|kind| !one(*kind));
        let bytes = if let Some(kind) = apart {
            self.moved.copied_bytes += length;
            self.count(kind, length, [from, to]);
            Bytes::copy_from_slice(&bytes)
        } else {
            let kind = match kinds.contains(&PathKind::Unified) {
                true => PathKind::Unified,
                false => PathKind::Shared,
            };
            self.moved.shared_bytes += length;
            self.count(kind, length, [from, to]);
            bytes
        };
        self.copies.insert((handle, to), Content::Host(bytes));
    }

    fn check_invariants(&self) {
        if self.holdings.is_empty() {
            assert!(self.copies.is_empty(), "what is not held keeps no bytes");
        }
    }
}

#[cfg(test)]
mod tests;
