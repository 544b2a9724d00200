//! Who holds what: every piece of content by handle, the places that have a copy, and what must be
//! copied or dropped so that it is where it is wanted.
//!
//! Pure bookkeeping: nothing is moved here. Each change leaves [`Step`]s that the owner carries out
//! in order, those of a refused change included, since room may have been made before it was seen
//! that there is not enough. A copy counts as held from the moment its step is given out.
//!
//! When a place is full, the copy goes that is cheapest to bring back for the room it gives, by
//! GreedyDual-Size: a copy's worth is that price plus what the pool had reached when it was last
//! used, so that what nobody uses sinks. The only copy of something moves a place down (device,
//! host, disk) rather than vanish.
//!
//! What is moved to or from disk or a device's own memory takes time and is not a step but a
//! [`Transit`].

mod error;
mod room;
mod transit;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::ContentId;
use crate::paths::{Hop, Paths, Route};
use crate::place::Place;

pub use error::HoldError;
pub use transit::Transit;
use transit::Underway;

/// A piece of content, whatever places it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

/// Something to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copy it.
    Copy {
        /// What.
        handle: Handle,
        /// From a place that has it.
        from: Place,
        /// To a place that has room.
        to: Place,
        /// How much.
        bytes: u64,
        /// What the paths say it takes.
        expected: Duration,
    },
    /// Forget the copy in a place.
    Drop {
        /// What.
        handle: Handle,
        /// Where.
        place: Place,
        /// How much room that gives.
        bytes: u64,
    },
}

/// The room of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes that may be held.
    pub limit: u64,
    /// Bytes held.
    pub used: u64,
    /// Copies held.
    pub copies: usize,
    /// The most bytes held at a time.
    pub peak: u64,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    limit: u64,
    used: u64,
    peak: u64,
    /// Worth of the copy that was evicted last.
    level: f64,
    handles: BTreeSet<Handle>,
    /// The same by what they cost to bring back, those used longest ago first.
    alike: BTreeMap<Kin, BTreeMap<u64, Handle>>,
}

/// What decides how much it costs to bring a copy back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kin {
    bytes: u64,
    elsewhere: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Holding {
    content: Option<ContentId>,
    bytes: u64,
    references: u32,
    copies: BTreeMap<Place, CopyState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CopyState {
    pins: u32,
    /// Moves under way that read it.
    moving: u32,
    /// The pool's level when it was last used.
    level: f64,
    used: u64,
}

/// The bookkeeping of one process.
#[derive(Debug, Default)]
pub struct Holdings {
    items: BTreeMap<Handle, Holding>,
    by_content: BTreeMap<ContentId, Handle>,
    pools: BTreeMap<Place, Pool>,
    paths: Paths,
    steps: Vec<Step>,
    /// Places that the owner moves content to and from.
    own: BTreeSet<Place>,
    underway: BTreeMap<u64, Underway>,
    /// The move that was begun last, until it is taken.
    started: Option<Transit>,
    transits: u64,
    handles: u64,
    uses: u64,
}

impl Holdings {
    /// Nothing held, over these paths.
    #[must_use]
    pub fn new(paths: Paths) -> Self {
        Self {
            paths,
            ..Self::default()
        }
    }

    /// The paths, to declare and to learn.
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// The paths.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Sets the limit of a place; a lower one evicts what is over it.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] if what is pinned is over the limit; the limit holds from then on.
    pub fn set_limit(&mut self, place: Place, limit: u64) -> Result<(), HoldError> {
        self.pools.entry(place).or_default().limit = limit;
        self.make_room(place, 0)
    }

    /// What a place holds.
    #[must_use]
    pub fn pool(&self, place: Place) -> PoolUse {
        let pool = self.pools.get(&place);
        pool.map_or_else(PoolUse::default, |pool| PoolUse {
            limit: pool.limit,
            used: pool.used,
            copies: pool.handles.len(),
            peak: pool.peak,
        })
    }

    /// Pieces of content held anywhere.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What must be carried out, in order; it is given out once.
    #[must_use = "a step that is not carried out makes the bookkeeping wrong"]
    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// Makes room for new content at `place`.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`] or [`HoldError::NoPool`].
    pub fn allocate(&mut self, bytes: u64, place: Place) -> Result<Handle, HoldError> {
        self.make_room(place, bytes)?;
        Ok(self.insert(None, bytes, place))
    }

    /// Takes up content that lies at `place` already. The same content is held once: its handle
    /// gets one more reference.
    ///
    /// # Errors
    /// [`HoldError::NoRoom`], [`HoldError::NoPool`], or [`HoldError::Length`] if it is held with
    /// another length.
    pub fn adopt(
        &mut self,
        content: ContentId,
        bytes: u64,
        place: Place,
    ) -> Result<Handle, HoldError> {
        let Some(&handle) = self.by_content.get(&content) else {
            self.make_room(place, bytes)?;
            let handle = self.insert(Some(content), bytes, place);
            self.by_content.insert(content, handle);
            return Ok(handle);
        };
        let (known, stated) = (self.bytes(handle)?, bytes);
        if known != stated {
            let bytes = known;
            return Err(HoldError::Length {
                handle,
                bytes,
                stated,
            });
        }
        if !self.holds(handle, place) {
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

    /// The handle of some content, if it is held.
    #[must_use]
    pub fn find(&self, content: &ContentId) -> Option<Handle> {
        self.by_content.get(content).copied()
    }

    /// Whether a place has a copy.
    #[must_use]
    pub fn holds(&self, handle: Handle, place: Place) -> bool {
        let item = self.items.get(&handle);
        item.is_some_and(|item| item.copies.contains_key(&place))
    }

    /// The places that have a copy.
    ///
    /// # Errors
    /// [`HoldError::Unknown`].
    pub fn places(&self, handle: Handle) -> Result<Vec<Place>, HoldError> {
        Ok(self.item(handle)?.copies.keys().copied().collect())
    }

    /// Bytes of a piece of content.
    ///
    /// # Errors
    /// [`HoldError::Unknown`].
    pub fn bytes(&self, handle: Handle) -> Result<u64, HoldError> {
        Ok(self.item(handle)?.bytes)
    }

    /// Has a copy brought to `place` from where that is soonest.
    ///
    /// # Errors
    /// [`HoldError::NoPath`] from all places that have it, [`HoldError::NoRoom`],
    /// [`HoldError::Unknown`], or [`HoldError::Moving`] until the moves that it takes have ended.
    pub fn ensure_on(&mut self, handle: Handle, place: Place) -> Result<(), HoldError> {
        if self.holds(handle, place) {
            self.touch(handle, place);
            return Ok(());
        }
        let bytes = self.bytes(handle)?;
        loop {
            if self.is_coming(handle, place) {
                return Err(HoldError::Moving { place });
            }
            let (from, route) = self.source(handle, place)?;
            let own = |hop: &Hop| self.is_own(hop.from) || self.is_own(hop.to);
            let hop = match route.hops.first() {
                Some(hop) if route.hops.iter().any(own) => *hop,
                _ => return self.copy(handle, from, place, route.time),
            };
            if own(&hop) {
                if self.is_coming(handle, hop.to) {
                    return Err(HoldError::Moving { place: hop.to });
                }
                self.room_beside(handle, from, hop.to)?;
                return Err(self.begin(handle, hop, bytes));
            }
            // The way there is by a memory that the next hop leaves.
            self.copy(handle, from, hop.to, route.time)?;
        }
    }

    /// A copy that the owner of the steps makes at once.
    fn copy(
        &mut self,
        handle: Handle,
        from: Place,
        to: Place,
        expected: Duration,
    ) -> Result<(), HoldError> {
        self.room_beside(handle, from, to)?;
        self.add_copy(handle, to);
        let bytes = self.bytes(handle)?;
        self.steps.push(Step::Copy {
            handle,
            from,
            to,
            bytes,
            expected,
        });
        Ok(())
    }

    /// Room for a copy of what lies at `from`, which must outlast the making of it.
    fn room_beside(&mut self, handle: Handle, from: Place, to: Place) -> Result<(), HoldError> {
        let bytes = self.bytes(handle)?;
        self.copy_mut(handle, from)?.pins += 1;
        let room = self.make_room(to, bytes);
        self.copy_mut(handle, from)?.pins -= 1;
        room
    }

    /// Keeps a copy where it is until [`Holdings::unpin`] was called as often.
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    pub fn pin(&mut self, handle: Handle, place: Place) -> Result<(), HoldError> {
        self.copy_mut(handle, place)?.pins += 1;
        Ok(())
    }

    /// Takes back one [`Holdings::pin`].
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    ///
    /// # Panics
    /// If the copy is not pinned.
    pub fn unpin(&mut self, handle: Handle, place: Place) -> Result<(), HoldError> {
        let copy = self.copy_mut(handle, place)?;
        assert!(copy.pins > 0, "only what is pinned is unpinned");
        copy.pins -= 1;
        Ok(())
    }

    /// Gives up one reference; with the last one every copy goes.
    ///
    /// # Errors
    /// [`HoldError::Pinned`] if the last reference goes while a copy is in use.
    pub fn release(&mut self, handle: Handle) -> Result<(), HoldError> {
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
        // What is on its way goes when that has ended.
        if !self.is_on_its_way(handle) {
            self.forget(handle);
        }
        self.check();
        Ok(())
    }

    fn forget(&mut self, handle: Handle) {
        let copies = self.items[&handle].copies.keys();
        let places: Vec<Place> = copies.copied().collect();
        places
            .into_iter()
            .for_each(|place| self.drop_copy(handle, place));
        self.items.remove(&handle);
    }

    /// A copy is gone: its device failed, its file is damaged, its peer left.
    ///
    /// # Errors
    /// [`HoldError::Unknown`] or [`HoldError::Absent`].
    pub fn lost(&mut self, handle: Handle, place: Place) -> Result<(), HoldError> {
        let copy = self.copy_mut(handle, place)?;
        copy.pins = 0;
        assert_eq!(copy.moving, 0, "what is being moved is read");
        self.drop_copy(handle, place);
        Ok(())
    }

    /// What has a copy at `place`.
    #[must_use]
    pub fn handles_at(&self, place: Place) -> Vec<Handle> {
        let pool = self.pools.get(&place);
        pool.map_or_else(Vec::new, |pool| pool.handles.iter().copied().collect())
    }

    /// The place from which `to` is reached soonest, and how: not over a place that could not
    /// hold it, such as one that was lost.
    fn source(&self, handle: Handle, to: Place) -> Result<(Place, Route), HoldError> {
        let item = self.item(handle)?;
        let takes = |place: Place| match self.pools.get(&place) {
            Some(pool) => pool.limit >= item.bytes,
            None => true,
        };
        // What a peer has is fetched by the owner, not moved from here.
        let here = item.copies.keys();
        let here = here.filter(|from| !matches!(from, Place::Peer(_)));
        let routed = here.filter_map(|&from| {
            let route = self.paths.route_through(&takes, [from, to], item.bytes)?;
            Some((from, route))
        });
        // Of equal times the one with a copy nearest.
        let soonest = routed.min_by_key(|(_, route)| (route.time, route.hops.len()));
        soonest.ok_or(HoldError::NoPath { handle, to })
    }

    fn insert(&mut self, content: Option<ContentId>, bytes: u64, place: Place) -> Handle {
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

    fn item(&self, handle: Handle) -> Result<&Holding, HoldError> {
        let item = self.items.get(&handle);
        let held = item.filter(|item| item.references > 0);
        held.ok_or(HoldError::Unknown { handle })
    }

    fn copy_mut(&mut self, handle: Handle, place: Place) -> Result<&mut CopyState, HoldError> {
        self.item(handle)?;
        self.copy_mut_of_any(handle, place)
    }

    /// A copy of what is held, or leaves when its moves have ended.
    fn copy_mut_of_any(
        &mut self,
        handle: Handle,
        place: Place,
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
