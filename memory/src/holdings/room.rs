//! Makes room in a full place: decides which copy to evict, and moves the only copy of some content
//! to a lower place (from a device to the host, from the host to disk). A copy can go only if it is
//! neither pinned nor the source of a transfer.

use std::collections::BTreeSet;

use super::{CopyState, EvictionGroup, Handle, HoldError, Holding, Holdings, Step};
use crate::location::Location;
use crate::paths::Hop;

impl Holdings {
    /// Evicts copies at `place` until `wanted` more bytes fit. If it fails, the evictions before
    /// that remain, and the owner must still carry out their steps.
    pub(super) fn make_room(&mut self, place: Location, wanted: u64) -> Result<(), HoldError> {
        if matches!(place, Location::Peer(_)) {
            // A peer counts its own memory; this only keeps the stated sum from overflowing.
            let pool = self.pools.entry(place).or_default();
            let (limit, used) = (u64::MAX, pool.used);
            pool.limit = limit;
            let is_countable = used.checked_add(wanted).is_some();
            return is_countable.then_some(()).ok_or(HoldError::NoRoom {
                place,
                limit,
                used,
                wanted,
            });
        }
        // Copies that cannot move down do not block copies that other places have too.
        let mut stuck = BTreeSet::new();
        loop {
            let pool = self.pools.get(&place).ok_or(HoldError::NoPool { place })?;
            let (limit, used) = (pool.limit, pool.used);
            if used.saturating_add(wanted) <= limit {
                return Ok(());
            }
            let full = HoldError::NoRoom {
                place,
                limit,
                used,
                wanted,
            };
            if wanted > limit {
                return Err(full);
            }
            let Some((victim, worth)) = self.cheapest_copy(place, &stuck) else {
                return Err(match self.is_awaited_at(place) {
                    true => HoldError::Moving { place },
                    false => full,
                });
            };
            match self.evict_copy(victim, place) {
                Ok(()) => {}
                Err(error @ HoldError::Moving { .. }) => return Err(error),
                Err(_) => {
                    stuck.insert(self.items[&victim].eviction_group(place));
                    continue;
                }
            }
            let pool = self.pools.get_mut(&place).expect("it was just there");
            pool.level = pool.level.max(worth);
            assert!(pool.used < used, "an eviction gives room");
        }
    }

    /// Returns the copy at `place` with the least worth, and that worth. Among copies that cost the
    /// same to bring back it is the one used longest ago, because a pool's level only grows. So the
    /// search need not visit every copy, of which there can be many thousands. It ignores copies
    /// that are `stuck`.
    pub(super) fn cheapest_copy(
        &self,
        place: Location,
        stuck: &BTreeSet<EvictionGroup>,
    ) -> Option<(Handle, f64)> {
        let copy_of = |handle: &Handle| &self.items[handle].copies[&place];
        let is_idle = |handle: &&Handle| {
            let copy = copy_of(handle);
            copy.pins == 0 && copy.moving == 0
        };
        let alike = self.pools[&place].alike.iter();
        let alike = alike.filter(|(kin, _)| !stuck.contains(kin));
        let oldest = alike.filter_map(|(_, alike)| {
            let handle = *alike.values().find(is_idle)?;
            let copy = copy_of(&handle);
            Some((
                handle,
                copy.level + self.eviction_cost(handle, place)?,
                copy.used,
            ))
        });
        let order = |one: &(Handle, f64, u64), other: &(Handle, f64, u64)| {
            one.1.total_cmp(&other.1).then(one.2.cmp(&other.2))
        };
        let cheapest = oldest.min_by(order);
        cheapest.map(|(handle, worth, _)| (handle, worth))
    }

    /// Returns the seconds to bring a copy back for each byte that it frees, or `None` if it cannot
    /// go.
    pub(super) fn eviction_cost(&self, handle: Handle, place: Location) -> Option<f64> {
        let item = &self.items[&handle];
        // An empty copy frees no space.
        if item.bytes == 0 {
            return None;
        }
        let back = |from: Location| Some(self.paths.fastest_route(from, place, item.bytes)?.time);
        let elsewhere = item.copies.keys().filter(|other| **other != place);
        let seconds = match elsewhere.filter_map(|&other| back(other)).min() {
            Some(time) => time,
            None => {
                let below = place
                    .eviction_target()
                    .filter(|below| self.pools.contains_key(below))?;
                let away = self.paths.direct_path(place, below, item.bytes)?;
                let away = away.transfer_time(item.bytes);
                away.saturating_add(back(below)?)
            }
        };
        Some(seconds.as_secs_f64() / item.bytes as f64)
    }

    fn evict_copy(&mut self, handle: Handle, place: Location) -> Result<(), HoldError> {
        let item = &self.items[&handle];
        let (bytes, copies) = (item.bytes, item.copies.len());
        if copies == 1 {
            let below = place
                .eviction_target()
                .expect("only what has a price is evicted");
            let direct = self.paths.direct_path(place, below, bytes);
            let path = direct.expect("what is below is reached directly");
            self.make_room(below, bytes)?;
            if self.is_own(place) || self.is_own(below) {
                let (from, to, kind) = (place, below, path.kind);
                return Err(self.begin_transit(handle, Hop { from, to, kind }, bytes));
            }
            let expected = path.transfer_time(bytes);
            self.add_copy(handle, below);
            self.steps.push(Step::Copy {
                handle,
                from: place,
                to: below,
                bytes,
                expected,
            });
        }
        self.drop_copy(handle, place);
        Ok(())
    }

    pub(super) fn add_copy(&mut self, handle: Handle, place: Location) {
        self.put_copy(handle, place);
        let pool = &self.pools[&place];
        assert!(pool.used <= pool.limit, "a pool is never over its limit");
    }

    /// Adds a copy for which space was reserved; the limit can have become lower since.
    pub(super) fn put_copy(&mut self, handle: Handle, place: Location) {
        self.unlist_copies(handle);
        let item = self.items.get_mut(&handle).expect("what is copied is held");
        let pool = self.pools.get_mut(&place).expect("room was made in it");
        self.uses += 1;
        let state = CopyState {
            pins: 0,
            moving: 0,
            level: pool.level,
            used: self.uses,
        };
        assert!(
            item.copies.insert(place, state).is_none(),
            "a place has one copy"
        );
        assert!(pool.handles.insert(handle), "a pool lists a copy once");
        pool.used += item.bytes;
        pool.peak = pool.peak.max(pool.used);
        self.list_copies(handle);
    }

    pub(super) fn drop_copy(&mut self, handle: Handle, place: Location) {
        self.unlist_copies(handle);
        let item = self
            .items
            .get_mut(&handle)
            .expect("what is dropped is held");
        let state = item.copies.remove(&place).expect("the copy is there");
        assert_eq!((state.pins, state.moving), (0, 0), "a copy in use stays");
        let pool = self
            .pools
            .get_mut(&place)
            .expect("what holds a copy is a pool");
        assert!(pool.handles.remove(&handle), "a pool lists its copies");
        pool.used -= item.bytes;
        let bytes = item.bytes;
        self.steps.push(Step::Drop {
            handle,
            place,
            bytes,
        });
        self.list_copies(handle);
    }

    pub(super) fn mark_used(&mut self, handle: Handle, place: Location) {
        self.unlist_copies(handle);
        self.uses += 1;
        let (uses, level) = (self.uses, self.pools[&place].level);
        let item = self.items.get_mut(&handle).expect("what is used is held");
        let copy = item
            .copies
            .get_mut(&place)
            .expect("what is used has a copy there");
        (copy.used, copy.level) = (uses, level);
        self.list_copies(handle);
    }

    /// Lists each copy of some content among those that cost the same to bring back.
    fn list_copies(&mut self, handle: Handle) {
        let item = &self.items[&handle];
        for (&place, copy) in &item.copies {
            let pool = self.pools.get_mut(&place);
            let pool = pool.expect("what holds a copy is a pool");
            let alike = pool.alike.entry(item.eviction_group(place)).or_default();
            let before = alike.insert(copy.used, handle);
            assert!(before.is_none(), "each use has a number of its own");
        }
    }

    /// Removes each copy from its list, before its cost to bring back or its last use changes.
    fn unlist_copies(&mut self, handle: Handle) {
        let item = &self.items[&handle];
        for (&place, copy) in &item.copies {
            let pool = self.pools.get_mut(&place);
            let pool = pool.expect("what holds a copy is a pool");
            let kin = item.eviction_group(place);
            let alike = pool.alike.get_mut(&kin).expect("each copy is listed");
            assert_eq!(
                alike.remove(&copy.used),
                Some(handle),
                "each copy is listed"
            );
            if alike.is_empty() {
                pool.alike.remove(&kin);
            }
        }
    }

    /// Asserts the invariants that are cheap to check.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.by_content.len() <= self.items.len(),
            "a name is of something held"
        );
        if self.items.is_empty() {
            let left: u64 = self.pools.values().map(|pool| pool.used).sum();
            assert_eq!(left, 0, "nothing held takes no room");
        }
    }
}

impl Holding {
    /// Returns the facts that determine how much it costs to bring back the copy at a place.
    fn eviction_group(&self, place: Location) -> EvictionGroup {
        let places = self.copies.keys().copied();
        EvictionGroup {
            bytes: self.bytes,
            elsewhere: places.filter(|other| *other != place).collect(),
        }
    }
}
