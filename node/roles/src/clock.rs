//! Time as a core has it: the shell must tell it with each event, because a core never reads a
//! clock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::Millis;

/// Microseconds of a clock that never goes back; from when it counts means nothing.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Micros(pub u64);

impl Micros {
    /// So many seconds.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Micros {
        Micros(seconds.saturating_mul(1_000_000))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1_000))
    }

    /// This and `longer` together.
    #[must_use]
    pub const fn plus(self, longer: Micros) -> Micros {
        Micros(self.0.saturating_add(longer.0))
    }

    /// How long it is from `earlier` to this; nothing where that is later.
    #[must_use]
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

/// The moment of an event, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// It must never go back: patience is measured by it.
    pub tick: Micros,
    /// The log's clock, as far as is known here: what the market judges is judged by it.
    pub log: Millis,
}

/// When a core wants to be woken, by what for: the same kind has one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timers<K: Ord>(BTreeMap<K, Micros>);

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Timers(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// `kind` is over at `moment`, instead of when it was to be.
    pub fn set_timer(&mut self, kind: K, moment: Micros) {
        self.0.insert(kind, moment);
    }

    /// Nothing is awaited for `kind` any more.
    pub fn stop_timer(&mut self, kind: K) {
        self.0.remove(&kind);
    }

    /// None of those that `is_over` names is awaited any more.
    pub fn stop_all(&mut self, mut is_over: impl FnMut(K) -> bool) {
        self.0.retain(|kind, _| !is_over(*kind));
    }

    /// Whether `kind` is awaited.
    #[must_use]
    pub fn is_set(&self, kind: K) -> bool {
        self.0.contains_key(&kind)
    }

    /// What is awaited, and until when.
    pub fn iter(&self) -> impl Iterator<Item = (K, Micros)> {
        self.0.iter().map(|(kind, moment)| (*kind, *moment))
    }

    /// The first moment that is awaited.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.0.values().min().copied()
    }

    /// One kind whose moment is here, the earliest first; it is awaited no more.
    pub fn pop(&mut self, tick: Micros) -> Option<K> {
        let due = self.iter().filter(|(_, moment)| *moment <= tick);
        let (kind, _) = due.min_by_key(|(kind, moment)| (*moment, *kind))?;
        self.0.remove(&kind);
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_timer_is_over_first_and_once() {
        let mut timers = Timers::default();
        timers.set_timer('b', Micros(3));
        timers.set_timer('a', Micros(9));
        timers.set_timer('a', Micros(2));
        timers.set_timer('c', Micros(20));
        assert_eq!(timers.wakes_at(), Some(Micros(2)));
        assert_eq!(timers.pop(Micros(1)), None);
        let popped: Vec<char> = std::iter::from_fn(|| timers.pop(Micros(9))).collect();
        assert_eq!(popped, ['a', 'b']);
        timers.stop_timer('c');
        assert_eq!(timers.wakes_at(), None);
    }
}
