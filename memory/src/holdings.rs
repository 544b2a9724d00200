//! Records which places (devices, host memory, disk, peers) have a copy of which content, and
//! decides which copies to make or drop so that content is where it is needed.
//!
//! This module moves no bytes. Each change leaves [`Step`]s that the owner must carry out in order,
//! even if the change was refused, because evictions can come before the refusal. A copy counts as
//! held from the moment that the owner takes its step.
//!
//! In a full place, the copy goes whose return costs least for the space that it frees, by
//! GreedyDual-Size: a copy's worth is that price plus the pool's level at its last use, so that the
//! worth of unused copies sinks. The only copy of some content moves a place down (device, host,
//! disk) and does not vanish.
//!
//! A transfer to or from disk or a device's own memory takes time; it is not a step but a
//! [`Transit`], which can fail.

mod error;
mod room;
mod transit;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::ContentId;
use crate::location::Location;
use crate::paths::{Hop, Paths, Route};

pub use error::HoldError;
use transit::OngoingTransfer;
pub use transit::Transit;

/// Identifies a piece of content, of which any number of places can have a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

/// An action for the owner to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copy content to another place.
    Copy {
        /// The content to copy.
        handle: Handle,
        /// A place that has a copy.
        from: Location,
        /// A place that has space for it.
        to: Location,
        /// The length of the content in bytes.
        bytes: u64,
        /// The time that the copy should take, according to the paths.
        expected: Duration,
    },
    /// Drop a copy.
    Drop {
        /// The content whose copy to drop.
        handle: Handle,
        /// The place of the copy.
        place: Location,
        /// The bytes that this frees.
        bytes: u64,
    },
}

/// The use of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes that the place can hold.
    pub limit: u64,
    /// Bytes that it holds.
    pub used: u64,
    /// Copies that it holds.
    pub copies: usize,
    /// The most bytes that it has held at a time.
    pub peak: u64,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    limit: u64,
    used: u64,
    peak: u64,
    /// The worth of the copy that was evicted last.
    level: f64,
    handles: BTreeSet<Handle>,
    /// The same copies by their cost to bring back, those used longest ago first.
    alike: BTreeMap<EvictionGroup, BTreeMap<u64, Handle>>,
}

/// The facts that determine how much it costs to bring a copy back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionGroup {
    bytes: u64,
    elsewhere: Vec<Location>,
}

#[derive(Clone, Debug)]
struct Holding {
    content: Option<ContentId>,
    bytes: u64,
    references: u32,
    copies: BTreeMap<Location, CopyState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CopyState {
    pins: u32,
    /// The transfers in progress that read the copy.
    moving: u32,
    /// The pool's level at the last use of the copy.
    level: f64,
    used: u64,
}

/// The bookkeeping of one process.
#[derive(Debug, Default)]
pub struct Holdings {
    items: BTreeMap<Handle, Holding>,
    by_content: BTreeMap<ContentId, Handle>,
    pools: BTreeMap<Location, Pool>,
    paths: Paths,
    steps: Vec<Step>,
    /// Places that the owner fills and reads by its own transfers.
    own: BTreeSet<Location>,
    underway: BTreeMap<u64, OngoingTransfer>,
    /// The transfer begun last, until the owner takes it.
    started: Option<Transit>,
    transits: u64,
    handles: u64,
    uses: u64,
}

impl Holdings {
    /// Creates empty bookkeeping over these paths.
    #[must_use]
    pub fn new(paths: Paths) -> Self {
        Self {
            paths,
            ..Self::default()
        }
    }

    /// Returns the paths, to declare more and to record transfers.
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// Returns the paths.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Sets the limit of a place; a lower limit evicts copies beyond it.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if pinned copies exceed the limit, which applies nevertheless.
    pub fn set_limit(&mut self, place: Location, limit: u64) -> Result<(), HoldError> {
        self.pools.entry(place).or_default().limit = limit;
        self.make_room(place, 0)
    }

    /// Returns the use of a place.
    #[must_use]
    pub fn pool_use(&self, place: Location) -> PoolUse {
        let pool = self.pools.get(&place);
        pool.map_or_else(PoolUse::default, |pool| PoolUse {
            limit: pool.limit,
            used: pool.used,
            copies: pool.handles.len(),
            peak: pool.peak,
        })
    }

    /// Returns the number of pieces of content that any place holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether no place holds content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes the steps that the owner must carry out, in order.
    #[must_use = "a step that is not carried out makes the bookkeeping wrong"]
    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// Makes space for new content at `place`, which the caller must then write there.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] or [`HoldError::NoPool`].
    pub fn allocate(&mut self, bytes: u64, place: Location) -> Result<Handle, HoldError> {
        self.make_room(place, bytes)?;
        Ok(self.insert(None, bytes, place))
    }

    /// Adds content that is already at `place`. If the content is held elsewhere, its handle gets
    /// one more reference.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`], [`HoldError::NoPool`], or [`HoldError::Length`] if the content is
    /// held with another length.
    pub fn adopt_content(
        &mut self,
        content: ContentId,
        bytes: u64,
        place: Location,
    ) -> Result<Handle, HoldError> {
        let Some(&handle) = self.by_content.get(&content) else {
            self.make_room(place, bytes)?;
            let handle = self.insert(Some(content), bytes, place);
            self.by_content.insert(content, handle);
            return Ok(handle);
        };
        let (known, stated) = (self.content_length(handle)?, bytes);
        if known != stated {
            let bytes = known;
            return Err(HoldError::Length {
                handle,
                bytes,
                stated,
            });
        }
        if !self.has_copy(handle, place) {
            self.make_room(place, bytes)?;
            self.add_copy(handle, place);
        }
        let item = self
            .items
            .get_mut(&handle)
            .expect("what has a name is held");
        item.references += 1;
        Ok(handle)
    }

    /// Returns the handle of some content, if it is held.
    #[must_use]
    pub fn find_handle(&self, content: &ContentId) -> Option<Handle> {
        self.by_content.get(content).copied()
    }

    /// Returns whether a place has a copy.
    #[must_use]
    pub fn has_copy(&self, handle: Handle, place: Location) -> bool {
        let item = self.items.get(&handle);
        item.is_some_and(|item| item.copies.contains_key(&place))
    }

    /// Returns the places that have a copy.
    ///
    /// # Errors
    /// [`HoldError::Unknown`].
    pub fn copy_places(&self, handle: Handle) -> Result<Vec<Location>, HoldError> {
        Ok(self.get_item(handle)?.copies.keys().copied().collect())
    }

    /// Returns the length of some content in bytes.
    ///
    /// # Errors
    /// [`HoldError::Unknown`].
    pub fn content_length(&self, handle: Handle) -> Result<u64, HoldError> {
        Ok(self.get_item(handle)?.bytes)
    }

    /// Brings a copy to `place` by the fastest route from any place that has one.
    ///
    /// # Errors
    /// [`HoldError::NoPath`] if no such place has a path to it, [`HoldError::NoRoom`],
    /// [`HoldError::Unknown`], or [`HoldError::Moving`] until the necessary transfers have ended.
    pub fn ensure_on(&mut self, handle: Handle, place: Location) -> Result<(), HoldError> {
        if self.has_copy(handle, place) {
            self.mark_used(handle, place);
            return Ok(());
        }
        let bytes = self.content_length(handle)?;
        loop {
            if self.is_coming(handle, place) {
                return Err(HoldError::Moving { place });
            }
            let (from, route) = self.source(handle, place)?;
            let own = |hop: &Hop| self.is_own(hop.from) || self.is_own(hop.to);
            let hop = match route.hops.first() {
                Some(hop) if route.hops.iter().any(own) => *hop,
                _ => return self.copy_content(handle, from, place, route.time),
            };
            if own(&hop) {
                if self.is_coming(handle, hop.to) {
                    return Err(HoldError::Moving { place: hop.to });
                }
                self.room_beside(handle, from, hop.to)?;
                return Err(self.begin_transit(handle, hop, bytes));
            }
            // The route goes over a memory from which the next hop starts.
            self.copy_content(handle, from, hop.to, route.time)?;
        }
    }

    /// Adds a step that copies content.
    fn copy_content(
        &mut self,
        handle: Handle,
        from: Location,
        to: Location,
        expected: Duration,
    ) -> Result<(), HoldError> {
        self.room_beside(handle, from, to)?;
        self.add_copy(handle, to);
        let bytes = self.content_length(handle)?;
        self.steps.push(Step::Copy {
            handle,
            from,
            to,
            bytes,
            expected,
        });
        Ok(())
    }

    /// Makes space for a copy of content at `from`, without evicting that source.
    fn room_beside(
        &mut self,
        handle: Handle,
        from: Location,
        to: Location,
    ) -> Result<(), HoldError> {
        let bytes = self.content_length(handle)?;
        self.copy_mut(handle, from)?.pins += 1;
        let room = self.make_room(to, bytes);
        self.copy_mut(handle, from)?.pins -= 1;
        room
    }

    /// Keeps a copy in place until you have called [`Holdings::unpin_copy`] as often.
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    pub fn pin_copy(&mut self, handle: Handle, place: Location) -> Result<(), HoldError> {
        self.copy_mut(handle, place)?.pins += 1;
        Ok(())
    }

    /// Reverts one [`Holdings::pin_copy`].
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    ///
    /// # Panics
    /// If the copy is not pinned.
    pub fn unpin_copy(&mut self, handle: Handle, place: Location) -> Result<(), HoldError> {
        let copy = self.copy_mut(handle, place)?;
        assert!(copy.pins > 0, "only what is pinned is unpinned");
        copy.pins -= 1;
        Ok(())
    }

    /// Drops one reference; with the last one, every copy goes.
    ///
    /// # Errors
    /// [`HoldError::Pinned`] if this is the last reference and a copy is in use.
    pub fn release_reference(&mut self, handle: Handle) -> Result<(), HoldError> {
        let item = self.items.get_mut(&handle);
        let item = item.filter(|item| item.references > 0);
        let item = item.ok_or(HoldError::Unknown { handle })?;
        let pinned = item.copies.iter().find(|(_, copy)| copy.pins > 0);
        if item.references == 1
            && let Some((&place, _)) = pinned
        {
            return Err(HoldError::Pinned { handle, place });
        }
        item.references -= 1;
        if item.references > 0 {
            return Ok(());
        }
        let content = item.content.take();
        content.map(|content| self.by_content.remove(&content));
        // If the content is in transfer, it goes when the transfer has ended.
        if !self.is_on_its_way(handle) {
            self.forget_content(handle);
        }
        self.check_invariants();
        Ok(())
    }

    fn forget_content(&mut self, handle: Handle) {
        let copies = self.items[&handle].copies.keys();
        let places: Vec<Location> = copies.copied().collect();
        places
            .into_iter()
            .for_each(|place| self.drop_copy(handle, place));
        self.items.remove(&handle);
    }

    /// Records the loss of a copy, for example because its device failed, its file is damaged or
    /// its peer left. The copy must not be the source of a transfer in progress.
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    pub fn on_copy_lost(&mut self, handle: Handle, place: Location) -> Result<(), HoldError> {
        let copy = self.copy_mut(handle, place)?;
        copy.pins = 0;
        assert_eq!(copy.moving, 0, "what is being moved is read");
        self.drop_copy(handle, place);
        Ok(())
    }

    /// Returns the content that has a copy at `place`.
    #[must_use]
    pub fn handles_at(&self, place: Location) -> Vec<Handle> {
        let pool = self.pools.get(&place);
        pool.map_or_else(Vec::new, |pool| pool.handles.iter().copied().collect())
    }

    /// Returns the place from which the content reaches `to` fastest, and the route. The route
    /// avoids places that could not hold the content, such as a lost device.
    fn source(&self, handle: Handle, to: Location) -> Result<(Location, Route), HoldError> {
        let item = self.get_item(handle)?;
        let takes = |place: Location| match self.pools.get(&place) {
            Some(pool) => pool.limit >= item.bytes,
            None => true,
        };
        // The owner fetches content from peers; it is not copied from here.
        let here = item.copies.keys();
        let here = here.filter(|from| !matches!(from, Location::Peer(_)));
        let routed = here.filter_map(|&from| {
            let route = self.paths.route_through(&takes, [from, to], item.bytes)?;
            Some((from, route))
        });
        // If times are equal, it takes the nearest copy.
        let soonest = routed.min_by_key(|(_, route)| (route.time, route.hops.len()));
        soonest.ok_or(HoldError::NoPath { handle, to })
    }

    fn insert(&mut self, content: Option<ContentId>, bytes: u64, place: Location) -> Handle {
        self.handles += 1;
        let handle = Handle(self.handles);
        let item = Holding {
            content,
            bytes,
            references: 1,
            copies: BTreeMap::new(),
        };
        self.items.insert(handle, item);
        self.add_copy(handle, place);
        handle
    }

    fn get_item(&self, handle: Handle) -> Result<&Holding, HoldError> {
        let item = self.items.get(&handle);
        let held = item.filter(|item| item.references > 0);
        held.ok_or(HoldError::Unknown { handle })
    }

    fn copy_mut(&mut self, handle: Handle, place: Location) -> Result<&mut CopyState, HoldError> {
        self.get_item(handle)?;
        self.copy_mut_of_any(handle, place)
    }

    /// Returns a copy of held content, or of content that leaves when its transfers have ended.
    fn copy_mut_of_any(
        &mut self,
        handle: Handle,
        place: Location,
    ) -> Result<&mut CopyState, HoldError> {
        let item = self.items.get_mut(&handle);
        let item = item.ok_or(HoldError::Unknown { handle })?;
        let copy = item.copies.get_mut(&place);
        copy.ok_or(HoldError::Absent { handle, place })
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "content #{}", self.0)
    }
}

#[cfg(test)]
mod tests;
