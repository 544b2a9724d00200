//! Handles copies in devices' own memories and on disk. The space cannot make these itself: it
//! describes each transfer to or from them as a [`Move`], which its owner (the scheduler) carries
//! out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::spill::{Spill, SpilledCopy};
use super::{Space, SpaceError};
use crate::holdings::{Handle, HoldError, Transit};
use crate::location::Location;
use crate::paths::{Path, PathBytes, PathKind};
use crate::store::FolderError;

/// A copy of some content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<D> {
    /// A copy in this process's memory.
    Host(Bytes),
    /// A copy in a device's own memory.
    Device(D),
    /// A copy in a file.
    Disk(SpilledCopy),
}

/// A transfer to carry out: you must move `content` over the transit's hop, then call
/// [`Space::on_transfer_ended`] or [`Space::on_transfer_failed`].
#[derive(Debug)]
pub struct Move<D> {
    /// The bookkeeping's record of the transfer.
    pub transit: Transit,
    /// The copy at the source.
    pub content: Content<D>,
    /// The folder to which it is written, if it goes to disk.
    spill: Option<Arc<Spill>>,
}

impl<D> Move<D> {
    /// Writes the content to disk, or reads it from there and checks it; returns `None` for other
    /// transfers. It does not need the space, which other threads can use meanwhile.
    ///
    /// # Errors
    /// [`FolderError`]: the disk is full or fails, or a file is gone or damaged.
    #[must_use]
    pub fn through_disk(&self) -> Option<Result<Content<D>, FolderError>> {
        match (&self.content, &self.spill) {
            (Content::Disk(spilled), _) => Some(spilled.read().map(Content::Host)),
            (Content::Host(bytes), Some(spill)) => Some(spill.write(bytes).map(Content::Disk)),
            _ => None,
        }
    }
}

impl<D: Clone> Space<D> {
    /// Adds a device with its own memory and its path to the host. Declare paths to other devices
    /// in [`Space::paths_mut`].
    ///
    /// # Errors
    /// As for [`Space::add_device`].
    pub fn add_memory(
        &mut self,
        device: Location,
        bytes_max: u64,
        to_host: Path,
    ) -> Result<(), SpaceError> {
        self.holdings.set_own(device);
        self.add_device(device, bytes_max, to_host)
    }

    /// Adds content that a device made in its own memory.
    ///
    /// # Errors
    /// [`HoldError`] if there is no space, or until transfers have ended.
    pub fn adopt_resident(
        &mut self,
        copy: D,
        bytes: u64,
        place: Location,
    ) -> Result<Handle, SpaceError> {
        self.take_up(Content::Device(copy), bytes, place)
    }

    pub(super) fn take_up(
        &mut self,
        content: Content<D>,
        bytes: u64,
        place: Location,
    ) -> Result<Handle, SpaceError> {
        let allocated = self.holdings.allocate(bytes, place);
        let handle = self.run_steps(allocated)?;
        self.copies.insert((handle, place), content);
        Ok(handle)
    }

    /// Takes the transfer that the refused change needs; returns `None` if another thread has it,
    /// for which you must then wait.
    #[must_use = "a move that is not carried out holds up whoever waits for it"]
    pub fn take_move(&mut self) -> Option<Move<D>> {
        self.begun_transfer.take()
    }

    /// Stores the transfer that a refused change began, unless there is no content to move.
    pub(super) fn begin_move(&mut self) -> Result<(), SpaceError> {
        let Some(transit) = self.holdings.take_transit() else {
            return Ok(());
        };
        let (handle, place) = (transit.handle, transit.hop.from);
        let Some(content) = self.copies.get(&(handle, place)).cloned() else {
            self.holdings.give_up(transit);
            return Err(SpaceError::Unwritten { handle, place });
        };
        assert!(
            self.begun_transfer.is_none(),
            "a move is taken when it was begun"
        );
        let spill = self.spill.clone();
        self.begun_transfer = Some(Move {
            spill: spill.filter(|_| transit.hop.to == Location::Disk),
            transit,
            content,
        });
        Ok(())
    }

    /// Records that a transfer succeeded, in `took` if measured; the space that it freed is
    /// available.
    ///
    /// # Errors
    /// [`SpaceError::Length`] if content of another length arrived.
    pub fn on_transfer_ended(
        &mut self,
        transit: Transit,
        content: Content<D>,
        took: Option<Duration>,
    ) -> Result<(), SpaceError> {
        let (handle, hop, bytes) = (transit.handle, transit.hop, transit.bytes);
        if let Content::Host(found) = &content
            && found.len() as u64 != bytes
        {
            let (expected, found) = (bytes, found.len() as u64);
            self.on_transfer_failed(transit);
            return Err(SpaceError::Length {
                handle,
                expected,
                found,
            });
        }
        match (hop.from, hop.to) {
            (_, Location::Disk) => self.moved.spilled_bytes += bytes,
            (Location::Disk, _) => self.moved.restored_bytes += bytes,
            (from, to) => {
                if hop.kind != PathKind::Unified {
                    self.moved.copied_bytes += bytes;
                }
                self.count(hop.kind, bytes, [from, to]);
            }
        }
        if let Some(took) = took {
            self.holdings.paths_mut().observe_transfer(hop, bytes, took);
        }
        if self.holdings.finish_transit(transit) {
            self.copies.insert((handle, hop.to), content);
        }
        self.run_steps(Ok(()))?;
        self.check_invariants();
        Ok(())
    }

    /// Records that a transfer failed: you can request the change again. If reading from disk found
    /// the file damaged or gone, its copy is forgotten.
    pub fn on_transfer_failed(&mut self, transit: Transit) {
        let (handle, from) = (transit.handle, transit.hop.from);
        self.holdings.give_up(transit);
        let copy = self.copies.get(&(handle, from));
        if matches!(copy, Some(Content::Disk(spilled)) if spilled.is_lost()) {
            // It can be gone already, because it was released meanwhile.
            let _ = self.holdings.on_copy_lost(handle, from);
        }
        let settled = self.run_steps(Ok(()));
        assert!(settled.is_ok(), "forgetting copies in memory cannot fail");
        self.check_invariants();
    }

    /// Counts bytes that a device gave to the host when it made them, without keeping a copy.
    pub fn record_delivery(&mut self, device: Location, bytes: u64) {
        let path = self
            .holdings
            .paths()
            .direct_path(device, Location::Host, bytes);
        let Some(path) = path.filter(|_| self.holdings.is_own(device)) else {
            return;
        };
        if path.kind != PathKind::Unified {
            self.moved.copied_bytes += bytes;
        }
        self.count(path.kind, bytes, [device, Location::Host]);
    }

    /// Returns the bytes to and from a device, by kind of path.
    #[must_use]
    pub fn path_bytes(&self, device: Location) -> PathBytes {
        self.over.get(&device).copied().unwrap_or_default()
    }

    pub(super) fn count(&mut self, kind: PathKind, bytes: u64, ends: [Location; 2]) {
        self.moved.over.add(kind, bytes);
        for end in ends {
            if matches!(end, Location::Device(_)) {
                self.over.entry(end).or_default().add(kind, bytes);
            }
        }
    }

    /// Checks that this process can write to the place directly.
    pub(super) fn check_host(&self, place: Location) -> Result<(), SpaceError> {
        match self.holdings.is_filled_here(place) {
            true => Ok(()),
            false => Err(HoldError::Own { place }.into()),
        }
    }
}

#[cfg(test)]
mod tests;
