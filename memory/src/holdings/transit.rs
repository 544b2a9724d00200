//! Tracks the transfers that [`Holdings`] cannot carry out itself. `Holdings` records which content
//! lies where; if a copy goes to or from a graphics card or a disk, the code that holds the
//! `Holdings` (the scheduler's device group) must move the bytes.
//!
//! A call that needs such a copy fails with [`HoldError::Moving`]. One caller takes the
//! [`Transit`], carries it out over one hop, and reports its end; the others wait and retry.
//! Meanwhile the space at the destination is reserved, and the source stays.

use super::{Handle, HoldError, Holdings};
use crate::location::Location;
use crate::paths::Hop;

/// Content in transfer over one hop. Report once that it has [arrived](Holdings::finish_transit) or
/// [failed](Holdings::give_up).
#[derive(Debug)]
pub struct Transit {
    number: u64,
    /// The content in transfer.
    pub handle: Handle,
    /// The hop: source, destination and kind of path.
    pub hop: Hop,
    /// The length of the content in bytes.
    pub bytes: u64,
}

/// A transfer's record in the bookkeeping.
#[derive(Debug)]
pub(super) struct OngoingTransfer {
    handle: Handle,
    hop: Hop,
    bytes: u64,
    /// Whether its source has stayed in place since the beginning.
    sourced: bool,
}

impl Holdings {
    /// Declares that only the owner's transfers can bring content to this place and from it.
    pub fn set_own(&mut self, place: Location) {
        self.own.insert(place);
    }

    pub(crate) fn is_own(&self, place: Location) -> bool {
        self.own.contains(&place)
    }

    /// Returns whether this process can write to the place directly: it is neither a peer nor
    /// filled only by transfers.
    pub(crate) fn is_filled_here(&self, place: Location) -> bool {
        !self.is_own(place) && !matches!(place, Location::Peer(_))
    }

    /// Takes the transfer that the refused change needs, unless another caller has it. You must
    /// take it before the next change that needs a transfer.
    #[must_use = "a move that is not carried out holds up whoever waits for it"]
    pub fn take_transit(&mut self) -> Option<Transit> {
        self.started.take()
    }

    /// Returns whether any transfer is in progress.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        !self.underway.is_empty()
    }

    /// Returns whether content is in transfer to a place.
    #[must_use]
    pub fn is_coming(&self, handle: Handle, place: Location) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.handle == handle && transit.hop.to == place)
    }

    pub(super) fn is_on_its_way(&self, handle: Handle) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.handle == handle)
    }

    /// Returns whether a transfer in progress can free space at a place.
    pub(super) fn is_awaited_at(&self, place: Location) -> bool {
        let mut underway = self.underway.values();
        underway.any(|transit| transit.hop.from == place || transit.hop.to == place)
    }

    /// Begins a transfer for which there is space.
    pub(super) fn begin_transit(&mut self, handle: Handle, hop: Hop, bytes: u64) -> HoldError {
        assert!(self.started.is_none(), "a move is taken when it was begun");
        let pool = self.pools.get_mut(&hop.to).expect("room was made in it");
        pool.used += bytes;
        pool.peak = pool.peak.max(pool.used);
        assert!(pool.used <= pool.limit, "a pool is never over its limit");
        let source = self.copy_mut(handle, hop.from);
        source.expect("what is moved lies there").moving += 1;
        self.transits += 1;
        let number = self.transits;
        let known = OngoingTransfer {
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

    /// Records that a transfer succeeded. Returns whether the copy is kept: it is not if the
    /// content was released meanwhile, if the destination was lost, or if it already has a copy.
    pub fn finish_transit(&mut self, transit: Transit) -> bool {
        let (handle, to) = (transit.handle, transit.hop.to);
        if !self.close_transit(&transit) {
            return false;
        }
        let there = self.items[&handle].copies.contains_key(&to);
        if !there {
            self.put_copy(handle, to);
        }
        !self.forget_if_released(handle) && !there
    }

    /// Records that a transfer failed, and frees its space.
    pub fn give_up(&mut self, transit: Transit) {
        if self.close_transit(&transit) {
            self.forget_if_released(transit.handle);
        }
    }

    /// Releases a transfer's space and its hold on its source. Returns whether the transfer was
    /// still needed.
    fn close_transit(&mut self, transit: &Transit) -> bool {
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

    /// Forgets content that was released during its transfer. Returns whether it was.
    fn forget_if_released(&mut self, handle: Handle) -> bool {
        if self.items[&handle].references > 0 || self.is_on_its_way(handle) {
            return false;
        }
        self.forget_content(handle);
        true
    }

    /// Forgets all copies at a place and all transfers to it. Returns the content that has no copy
    /// left. The place holds nothing again until it gets a limit.
    pub fn forget_place(&mut self, place: Location) -> Vec<Handle> {
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
            self.forget_if_released(known.handle);
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
