//! Moves that take time: from or to a place of its own, such as the memory of a card or a disk, the
//! owner moves the bytes.
//!
//! What needs such a move is refused with [`HoldError::Moving`], and the move is given out once:
//! whoever gets it carries it out over one hop and says how it ended, whoever else wants the same
//! waits for that. Meanwhile its room is taken where it goes, and its source stays.

use super::{Handle, HoldError, Holdings};
use crate::paths::Hop;
use crate::place::Place;

/// Content on its way over one hop. It is told to have [arrived](Holdings::end) or
/// [failed](Holdings::give_up) once.
#[derive(Debug)]
pub struct Transit {
    number: u64,
    /// What.
    pub handle: Handle,
    /// From where to where, and over what.
    pub hop: Hop,
    /// How much.
    pub bytes: u64,
}

/// A transit as the bookkeeping has it.
#[derive(Debug)]
pub(super) struct Underway {
    handle: Handle,
    hop: Hop,
    bytes: u64,
    /// Whether its source is still where it was when it began.
    sourced: bool,
}

impl Holdings {
    /// Content comes to this place and leaves it only by moves of the owner.
    pub fn set_own(&mut self, place: Place) {
        self.own.insert(place);
    }

    pub(crate) fn is_own(&self, place: Place) -> bool {
        self.own.contains(&place)
    }

    /// Whether bytes of this process are written there: not what moves alone fill, nor a peer.
    pub(crate) fn is_filled_here(&self, place: Place) -> bool {
        !self.is_own(place) && !matches!(place, Place::Peer(_))
    }

    /// The move that the refused change needs, if nobody is at it.
    #[must_use = "a move that is not carried out holds up whoever waits for it"]
    pub fn take_transit(&mut self) -> Option<Transit> {
        self.started.take()
    }

    /// Whether moves are under way.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        !self.underway.is_empty()
    }

    /// Whether content is on its way to a place.
    #[must_use]
    pub fn is_coming(&self, handle: Handle, place: Place) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.handle == handle && transit.hop.to == place)
    }

    pub(super) fn is_on_its_way(&self, handle: Handle) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.handle == handle)
    }

    /// Whether a move that is under way may give room at a place.
    pub(super) fn is_awaited_at(&self, place: Place) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.hop.from == place || transit.hop.to == place)
    }

    /// Begins a move for which room was made.
    pub(super) fn begin(&mut self, handle: Handle, hop: Hop, bytes: u64) -> HoldError {
        assert!(self.started.is_none(), "a move is taken when it was begun");
        let pool = self.pools.get_mut(&hop.to).expect("room was made in it");
        pool.used += bytes;
        pool.peak = pool.peak.max(pool.used);
        assert!(pool.used <= pool.limit, "a pool is never over its limit");
        let source = self.copy_mut(handle, hop.from);
        source.expect("what is moved lies there").moving += 1;
        self.transits += 1;
        let number = self.transits;
        let known = Underway {
            handle,
            hop,
            bytes,
            sourced: true,
        };
        self.underway.insert(number, known);
        self.started = Some(Transit {
            number,
            handle,
            hop,
            bytes,
        });
        HoldError::Moving { place: hop.to }
    }

    /// A move has ended well; says whether the copy is kept: what was released meanwhile, or was to
    /// come to a place that is lost, is not.
    pub fn end(&mut self, transit: Transit) -> bool {
        let (handle, to) = (transit.handle, transit.hop.to);
        if !self.close(&transit) {
            return false;
        }
        let there = self.items[&handle].copies.contains_key(&to);
        if !there {
            self.put_copy(handle, to);
        }
        !self.leave(handle) && !there
    }

    /// A move has failed: its room is free.
    pub fn give_up(&mut self, transit: Transit) {
        if self.close(&transit) {
            self.leave(transit.handle);
        }
    }

    /// Gives back a move's room and its hold on its source; says whether it was still wanted.
    fn close(&mut self, transit: &Transit) -> bool {
        let Some(known) = self.underway.remove(&transit.number) else {
            return false;
        };
        let pool = self.pools.get_mut(&known.hop.to);
        pool.expect("its room was taken there").used -= known.bytes;
        if known.sourced {
            let source = self.items.get_mut(&known.handle);
            let source = source.and_then(|item| item.copies.get_mut(&known.hop.from));
            source.expect("the source of a move stays").moving -= 1;
        }
        true
    }

    /// Lets go of what was released while it was on its way; says whether it was.
    fn leave(&mut self, handle: Handle) -> bool {
        if self.items[&handle].references > 0 || self.is_on_its_way(handle) {
            return false;
        }
        self.forget(handle);
        true
    }

    /// Everything at a place is gone, and what was on its way there: says what has no copy left.
    /// Nothing is held there any more until a limit is set.
    pub fn lose(&mut self, place: Place) -> Vec<Handle> {
        let doomed: Vec<u64> = self
            .underway
            .iter()
            .filter(|(_, transit)| transit.hop.to == place)
            .map(|(number, _)| *number)
            .collect();
        for number in doomed {
            let known = self.underway.remove(&number).expect("it was just seen");
            let pool = self
                .pools
                .get_mut(&place)
                .expect("its room was taken there");
            pool.used -= known.bytes;
            if known.sourced {
                let source = self.copy_mut_of_any(known.handle, known.hop.from);
                source.expect("the source of a move stays").moving -= 1;
            }
            self.leave(known.handle);
        }
        for transit in self.underway.values_mut() {
            transit.sourced &= transit.hop.from != place;
        }
        let held = self.handles_at(place);
        for &handle in &held {
            let copy = self.copy_mut_of_any(handle, place);
            let copy = copy.expect("a listed copy is there");
            (copy.pins, copy.moving) = (0, 0);
            self.drop_copy(handle, place);
        }
        if let Some(pool) = self.pools.get_mut(&place) {
            pool.limit = 0;
        }
        let orphan = |handle: &Handle| {
            let item = self.items.get(handle);
            item.is_some_and(|item| item.references > 0 && item.copies.is_empty())
        };
        held.into_iter().filter(orphan).collect()
    }
}
