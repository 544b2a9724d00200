//! The bytes behind the [`Holdings`]: content in host memory, in devices' memories and spilled to
//! disk, moved as the bookkeeping says.
//!
//! What two places share is moved by reference and counts no byte as copied: operators on one
//! processor hand each other the same memory.
//!
//! A device may have a memory of its own, whose copies are of a type that only the owner knows.
//! What comes to it or leaves it, and what goes to disk or comes back, is moved by the owner, while
//! others use the space: a change that needs such a move is refused with [`HoldError::Moving`];
//! [`Space::take_move`] then has the move, unless another thread is at it, and when that has
//! [ended](Space::ended) the change is asked for again.

mod foreign;
mod spill;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::ContentId;
use crate::holdings::{Handle, HoldError, Holdings, PoolUse, Step};
use crate::paths::{Path, PathBytes, PathKind, Paths};
use crate::place::Place;
use crate::store::FolderError;
pub use foreign::{Content, Move};
use spill::Spill;
pub use spill::SpilledCopy;

/// Bytes and paths of a space.
#[derive(Clone, Debug)]
pub struct SpaceConfig {
    /// Bytes held in host memory.
    pub host_bytes_max: u64,
    /// Where content is spilled when host memory is full, and how many bytes; `None` spills
    /// nothing.
    pub spill: Option<(PathBuf, u64)>,
    /// Latency and bandwidth of the disk until they are measured.
    pub disk: Path,
}

/// Why content could not be held or brought.
#[derive(Debug, Error)]
pub enum SpaceError {
    /// The bookkeeping refused.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] FolderError),
    /// Room was allocated and nothing was written there yet.
    #[error("{handle} was allocated in {place}, and nothing was written to it yet")]
    Unwritten {
        /// What.
        handle: Handle,
        /// Where.
        place: Place,
    },
    /// A move brought bytes of another length than it was to bring.
    #[error("{handle} has {expected} bytes, {found} were brought")]
    Length {
        /// What.
        handle: Handle,
        /// Bytes awaited.
        expected: u64,
        /// Bytes brought.
        found: u64,
    },
}

/// What was moved since the space began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveTotals {
    /// Bytes that were copied from one memory to another.
    pub copied_bytes: u64,
    /// Bytes that another place got by reference.
    pub shared_bytes: u64,
    /// Bytes written to disk for want of memory.
    pub spilled_bytes: u64,
    /// Bytes read back from there.
    pub restored_bytes: u64,
    /// Copies that were dropped.
    pub dropped: u64,
    /// Bytes that went from one memory to another, by what lies between.
    pub over: PathBytes,
}

/// The memory of one process, over all its places; `D` is a copy in a device's own memory.
#[derive(Debug)]
pub struct Space<D> {
    holdings: Holdings,
    copies: BTreeMap<(Handle, Place), Content<D>>,
    spill: Option<Arc<Spill>>,
    moved: MoveTotals,
    /// What came to each device and left it.
    over: BTreeMap<Place, PathBytes>,
    /// The move that the change before began, until it is taken.
    begun: Option<Move<D>>,
}

impl<D: Clone> Space<D> {
    /// An empty space; devices are added by [`Space::add_device`].
    ///
    /// # Errors
    /// [`FolderError`] if the spill folder cannot be used.
    pub fn open(config: SpaceConfig) -> Result<Self, SpaceError> {
        let mut holdings = Holdings::new(Paths::default());
        holdings.set_limit(Place::Host, config.host_bytes_max)?;
        let mut spill = None;
        if let Some((folder, bytes_max)) = config.spill {
            spill = Some(Arc::new(Spill::open(folder, bytes_max)?));
            holdings.set_own(Place::Disk);
            holdings.set_limit(Place::Disk, bytes_max)?;
            let paths = holdings.paths_mut();
            paths.declare_both(Place::Host, Place::Disk, config.disk);
        }
        Ok(Self {
            holdings,
            copies: BTreeMap::new(),
            spill,
            moved: MoveTotals::default(),
            over: BTreeMap::new(),
            begun: None,
        })
    }

    /// Adds a device's memory and its path to the host, or changes its limit.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if more is pinned there than the new limit; what had to go has gone.
    pub fn add_device(
        &mut self,
        device: Place,
        bytes_max: u64,
        to_host: Path,
    ) -> Result<(), SpaceError> {
        assert!(matches!(device, Place::Device(_)), "{device} is no device");
        let paths = self.holdings.paths_mut();
        paths.declare_both(device, Place::Host, to_host);
        let limited = self.holdings.set_limit(device, bytes_max);
        self.settle(limited)
    }

    /// The bookkeeping: pools, places, paths.
    #[must_use]
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// The paths, to declare more and to learn from what transfers took.
    pub fn paths_mut(&mut self) -> &mut Paths {
        self.holdings.paths_mut()
    }

    /// What was moved so far.
    #[must_use]
    pub fn moved(&self) -> MoveTotals {
        self.moved
    }

    /// What a place holds.
    #[must_use]
    pub fn pool(&self, place: Place) -> PoolUse {
        self.holdings.pool(place)
    }

    /// Sets the limit of a place: it grows, or shrinks and evicts what is over.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if what is pinned is over it, or [`HoldError::Moving`].
    pub fn resize(&mut self, place: Place, bytes_max: u64) -> Result<(), SpaceError> {
        let limited = self.holdings.set_limit(place, bytes_max);
        self.settle(limited)
    }

    /// Takes up bytes that lie at `place`, without a copy. Content held already is held once.
    ///
    /// # Errors
    /// [`HoldError`] for want of room, or until moves have ended.
    pub fn adopt(
        &mut self,
        content: ContentId,
        bytes: Bytes,
        place: Place,
    ) -> Result<Handle, SpaceError> {
        self.check_host(place)?;
        let adopted = self.holdings.adopt(content, bytes.len() as u64, place);
        let handle = self.settle(adopted)?;
        let copy = self.copies.entry((handle, place));
        copy.or_insert(Content::Host(bytes));
        Ok(handle)
    }

    /// Takes up bytes that were just made at `place`, without naming them: hashing what nobody
    /// else will see is time lost.
    ///
    /// # Errors
    /// [`HoldError`] for want of room, or until moves have ended.
    pub fn adopt_unnamed(&mut self, bytes: Bytes, place: Place) -> Result<Handle, SpaceError> {
        self.check_host(place)?;
        let length = bytes.len() as u64;
        self.take_up(Content::Host(bytes), length, place)
    }

    /// Brings it to `place`, unless it is there, and gives the copy.
    ///
    /// # Errors
    /// [`HoldError`] without a path or room, or until moves have ended.
    pub fn ensure_on(&mut self, handle: Handle, place: Place) -> Result<Content<D>, SpaceError> {
        let ensured = self.holdings.ensure_on(handle, place);
        self.settle(ensured)?;
        let content = self.copies.get(&(handle, place)).cloned();
        content.ok_or(SpaceError::Unwritten { handle, place })
    }

    /// Keeps the copy at `place` until it is unpinned.
    ///
    /// # Errors
    /// [`HoldError`] if there is none.
    pub fn pin(&mut self, handle: Handle, place: Place) -> Result<(), SpaceError> {
        Ok(self.holdings.pin(handle, place)?)
    }

    /// Takes back one [`Space::pin`].
    ///
    /// # Errors
    /// [`HoldError`] if there is no copy.
    pub fn unpin(&mut self, handle: Handle, place: Place) -> Result<(), SpaceError> {
        Ok(self.holdings.unpin(handle, place)?)
    }

    /// Gives up one reference; with the last one every copy goes.
    ///
    /// # Errors
    /// [`HoldError::Pinned`] if it is the last and a copy is in use.
    pub fn release(&mut self, handle: Handle) -> Result<(), SpaceError> {
        let released = self.holdings.release(handle);
        self.settle(released)?;
        self.check();
        Ok(())
    }

    /// Everything a place held is gone, because its device failed; says what has no copy left.
    /// Nothing is held there any more until it is given a limit again.
    pub fn lose(&mut self, place: Place) -> Vec<Handle> {
        let orphans = self.holdings.lose(place);
        let settled = self.settle(Ok(()));
        assert!(settled.is_ok(), "forgetting copies in memory cannot fail");
        orphans
    }

    /// Carries out all steps that a change left, be it refused or not, then answers it.
    fn settle<T>(&mut self, result: Result<T, HoldError>) -> Result<T, SpaceError> {
        for step in self.holdings.take_steps() {
            match step {
                Step::Copy {
                    handle, from, to, ..
                } => self.copy(handle, from, to),
                Step::Drop { handle, place, .. } => {
                    self.moved.dropped += 1;
                    self.copies.remove(&(handle, place));
                }
            }
        }
        self.begin()?;
        Ok(result?)
    }

    fn copy(&mut self, handle: Handle, from: Place, to: Place) {
        // Room that was allocated and never written to has nothing to copy.
        let Some(content) = self.copies.get(&(handle, from)).cloned() else {
            return;
        };
        let Content::Host(bytes) = content else {
            unreachable!("what lies on disk or in a device's own memory is moved by the owner");
        };
        let length = bytes.len() as u64;
        let route = self.holdings.paths().route(from, to, length);
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

    fn check(&self) {
        if self.holdings.is_empty() {
            assert!(self.copies.is_empty(), "what is not held keeps no bytes");
        }
    }
}

#[cfg(test)]
mod tests;
