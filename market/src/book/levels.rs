//! Stores the orders of one side of a book by price level. A level holds the orders at one price as
//! a queue, oldest first, and a tree finds a level by its price.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::{Count, Units};

use super::{Key, NONE, Slab};

/// All orders at one price, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Level {
    pub key: Key,
    /// The oldest order; in a free level, the next free level.
    pub head: u32,
    tail: u32,
    /// The number of orders.
    pub count: u32,
    /// The units of these orders together.
    pub quantity: u64,
}

/// The levels of one side, by price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Levels {
    by_key: BTreeMap<Key, u32>,
    levels: Vec<Level>,
    free: u32,
    /// The units of all levels together; `orders` counts their orders.
    units: u64,
    orders: u32,
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            by_key: BTreeMap::new(),
            levels: Vec::new(),
            free: NONE,
            units: 0,
            orders: 0,
        }
    }
}

impl Levels {
    /// Returns the oldest order at the best price.
    pub(super) fn best_order(&self) -> Option<u32> {
        let (_, at) = self.by_key.first_key_value()?;
        Some(self.levels[*at as usize].head)
    }

    /// Returns the number of orders at all prices.
    pub(crate) fn order_count(&self) -> u32 {
        self.orders
    }

    /// Returns the units at all prices.
    pub(crate) fn total_units(&self) -> u64 {
        self.units
    }

    /// Iterates over the levels, best first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Level> {
        self.by_key.values().map(|at| &self.levels[*at as usize])
    }

    /// Returns the level at a price and creates it if it does not exist.
    pub(super) fn level_of(&mut self, key: Key) -> u32 {
        if let Some(at) = self.by_key.get(&key) {
            return *at;
        }
        let level = Level {
            key,
            head: NONE,
            tail: NONE,
            count: 0,
            quantity: 0,
        };
        let at = self.allocate_level(level);
        assert_eq!(self.levels[at as usize].count, 0, "a new level is empty");
        let earlier = self.by_key.insert(key, at);
        assert!(earlier.is_none(), "a price has one level");
        at
    }

    fn allocate_level(&mut self, level: Level) -> u32 {
        assert_eq!(level.count, 0, "a new level is empty");
        if self.free == NONE {
            let at = u32::try_from(self.levels.len()).expect("no more levels than orders");
            self.levels.push(level);
            return at;
        }
        let at = self.free;
        self.free = self.levels[at as usize].head;
        assert_ne!(self.free, at, "a level is free once");
        self.levels[at as usize] = level;
        at
    }

    /// Returns the newest order of a level.
    pub(super) fn newest_order(&self, level: u32) -> u32 {
        debug_assert_ne!(level, NONE, "there is such a level");
        self.levels[level as usize].tail
    }

    /// Links an order into a level behind the order `prev`, or first if `prev` is [`NONE`].
    pub(super) fn link_order(&mut self, slab: &mut Slab, level: u32, at: u32, prev: u32) {
        let level = &mut self.levels[level as usize];
        let next = match prev {
            NONE => std::mem::replace(&mut level.head, at),
            prev => std::mem::replace(&mut slab.get_mut(prev).next, at),
        };
        match next {
            NONE => level.tail = at,
            next => slab.get_mut(next).prev = at,
        }
        let node = slab.get_mut(at);
        (node.prev, node.next) = (prev, next);
        level.count.count_up();
        let units = u64::from(node.quantity.0);
        level.quantity = add_units(level.quantity, units);
        self.units = add_units(self.units, units);
        self.orders.count_up();
        assert_eq!(level.key, node.key, "an order is at its price");
        debug_assert!(level.quantity >= u64::from(level.count), "each has a unit");
        debug_assert!(level.head != NONE && level.tail != NONE, "it has both ends");
    }

    pub(super) fn unlink_order(&mut self, slab: &mut Slab, at: u32) {
        let node = *slab.get(at);
        let level = &mut self.levels[node.level as usize];
        match node.prev {
            NONE => level.head = node.next,
            prev => slab.get_mut(prev).next = node.next,
        }
        match node.next {
            NONE => level.tail = node.prev,
            next => slab.get_mut(next).prev = node.prev,
        }
        assert!(level.count > 0, "an order's level has an order");
        level.count.count_down();
        let units = u64::from(node.quantity.0);
        level.quantity = subtract_units(level.quantity, units);
        self.units = subtract_units(self.units, units);
        self.orders.count_down();
        assert_eq!(
            level.count == 0,
            level.head == NONE,
            "only an empty one has no head"
        );
        assert!(level.quantity >= u64::from(level.count), "each has a unit");
        if level.count == 0 {
            self.free_level(node.level);
        }
    }

    /// Reduces the units of a level. Each of its orders must keep at least one unit.
    pub(super) fn reduce_level(&mut self, level: u32, quantity: Units) {
        let level = &mut self.levels[level as usize];
        let before = level.quantity;
        level.quantity = subtract_units(level.quantity, u64::from(quantity.0));
        self.units = subtract_units(self.units, u64::from(quantity.0));
        debug_assert!(level.quantity < before, "something was taken off");
        assert!(level.quantity >= u64::from(level.count), "each has a unit");
    }

    /// Frees a level, which must have no orders any more.
    fn free_level(&mut self, at: u32) {
        let level = &mut self.levels[at as usize];
        assert_eq!(level.quantity, 0, "an empty level has no units");
        assert_eq!(level.tail, NONE, "an empty level has no end");
        level.head = self.free;
        self.free = at;
        let removed = self.by_key.remove(&level.key);
        assert_eq!(removed, Some(at), "a level is found by its price");
    }
}

fn add_units(sum: u64, units: u64) -> u64 {
    sum.checked_add(units)
        .expect("2^32 orders of 2^32 units each are fewer")
}

fn subtract_units(sum: u64, units: u64) -> u64 {
    sum.checked_sub(units).expect("what goes was counted")
}
