//! Stores the events of a crowd by their time, in a hierarchical timing wheel: the cost of adding
//! an event and of taking the next one does not grow with their number. Events with equal times
//! come out in the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The width of a slot as a power of two, in microseconds: about a millisecond.
const SLOT_BITS: u32 = 10;

/// The slots of a level as a power of two, and the levels: together they span 50 days.
const LEVEL_BITS: u32 = 8;
const LEVELS: usize = 4;
const SLOTS: usize = 1 << LEVEL_BITS;

/// A queue of events by time.
pub struct Wheel<T> {
    /// The events of the current slot and before, by time and order.
    due: BinaryHeap<Reverse<Entry<T>>>,
    levels: Vec<Vec<Vec<Entry<T>>>>,
    /// The current slot.
    slot: u64,
    added: u64,
    length: usize,
}

struct Entry<T> {
    time: u64,
    order: u64,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        let level = || (0..SLOTS).map(|_| Vec::new()).collect();
        Self {
            due: BinaryHeap::new(),
            levels: (0..LEVELS).map(|_| level()).collect(),
            slot: 0,
            added: 0,
            length: 0,
        }
    }
}

impl<T> Wheel<T> {
    /// Adds an event at a time in microseconds, which must not exceed 50 days.
    pub fn add_event(&mut self, time: u64, event: T) {
        let order = self.added;
        self.added += 1;
        self.length += 1;
        self.place_entry(Entry { time, order, event });
    }

    /// Takes the next event with its time. Later events can still be added before it is taken.
    pub fn take_next(&mut self) -> Option<(u64, T)> {
        while self.due.is_empty() && self.length > 0 {
            self.advance_slot();
        }
        let Reverse(entry) = self.due.pop()?;
        self.length -= 1;
        Some((entry.time, entry.event))
    }

    fn place_entry(&mut self, entry: Entry<T>) {
        let slot = entry.time >> SLOT_BITS;
        if slot <= self.slot {
            return self.due.push(Reverse(entry));
        }
        let level = (u64::BITS - 1 - (slot ^ self.slot).leading_zeros()) / LEVEL_BITS;
        assert!((level as usize) < LEVELS, "an event is within 50 days");
        let index = slot_index(slot, level);
        self.levels[level as usize][index].push(entry);
    }

    /// Moves on to the next slot that can have events, and distributes the events of its level.
    fn advance_slot(&mut self) {
        for level in 0..LEVELS as u32 {
            let first = slot_index(self.slot, level) + 1;
            let row = &self.levels[level as usize];
            let Some(index) = (first..SLOTS).find(|index| !row[*index].is_empty()) else {
                continue;
            };
            let shift = level * LEVEL_BITS;
            let above = self.slot >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS);
            self.slot = above | (index as u64) << shift;
            let entries = std::mem::take(&mut self.levels[level as usize][index]);
            for entry in entries {
                self.place_entry(entry);
            }
            return;
        }
        unreachable!("an event is in some slot");
    }
}

fn slot_index(slot: u64, level: u32) -> usize {
    (slot >> (level * LEVEL_BITS)) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn events_come_in_the_order_of_a_sorted_list() {
        for seed in 0..20 {
            let mut random = Random::new(seed, "wheel");
            let (mut wheel, mut sorted) = (Wheel::default(), Vec::new());
            let (mut now, mut number) = (0, 0_u64);
            for _ in 0..2_000 {
                let reach = [1, 2_000, 1_000_000, 2_000_000_000][random.draw_index(4)];
                for _ in 0..random.draw_below(3) {
                    let time = now + random.draw_below(reach);
                    wheel.add_event(time, number);
                    sorted.push((time, number));
                    number += 1;
                }
                let next = sorted.iter().min().copied();
                assert_eq!(wheel.take_next(), next);
                sorted.retain(|entry| Some(*entry) != next);
                assert_eq!(wheel.length, sorted.len());
                now = next.map_or(now, |(time, _)| time);
            }
        }
    }
}
