//! The clock types of all cores: [`Micros`], [`Now`], and [`Timers`], in which a core records when
//! it needs to be woken. A core (a state machine without input or output) never reads a clock, so
//! that a simulator can replay it: its driver must pass the time with each event.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_market::Millis;

/// Microseconds of a monotonic clock: a span, or a moment since an arbitrary start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Micros(pub u64);

impl Micros {
    /// Returns a span of this many seconds.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Micros {
        Micros(seconds.saturating_mul(1_000_000))
    }

    /// Returns a span of this many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1_000))
    }

    /// Returns the sum of both; the maximum on overflow.
    #[must_use]
    pub const fn plus(self, span: Micros) -> Micros {
        Micros(self.0.saturating_add(span.0))
    }

    /// Returns the time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

/// A longer span than [`Micros`] can hold becomes the longest one.
impl From<Duration> for Micros {
    fn from(time: Duration) -> Micros {
        Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(time: Micros) -> Duration {
        Duration::from_micros(time.0)
    }
}

/// The moment of an event, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// The machine's monotonic clock, by which a core measures its own waits.
    pub tick: Micros,
    /// The log's clock, as far as this node knows it. The market judges deadlines by it.
    pub log: Millis,
}

/// The moments at which a core needs to be woken, at most one for each kind of timer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timers<K: Ord>(BTreeMap<K, Micros>);

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Timers(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// Sets the timer `kind` to `moment`, in place of its earlier moment.
    pub fn set_timer(&mut self, kind: K, moment: Micros) {
        self.0.insert(kind, moment);
    }

    /// Stops the timer `kind`.
    pub fn stop_timer(&mut self, kind: K) {
        self.0.remove(&kind);
    }

    /// Stops all timers for which `is_obsolete` returns true.
    pub fn stop_all(&mut self, mut is_obsolete: impl FnMut(K) -> bool) {
        self.0.retain(|kind, _| !is_obsolete(*kind));
    }

    /// Returns whether the timer `kind` is set.
    #[must_use]
    pub fn is_set(&self, kind: K) -> bool {
        self.0.contains_key(&kind)
    }

    /// Returns whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the moment of the timer `kind`, if it is set.
    #[must_use]
    pub fn moment(&self, kind: K) -> Option<Micros> {
        self.0.get(&kind).copied()
    }

    /// Returns the timers and their moments.
    pub fn iter(&self) -> impl Iterator<Item = (K, Micros)> {
        self.0.iter().map(|(kind, moment)| (*kind, *moment))
    }

    /// Returns the moment of the first timer.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.0.values().min().copied()
    }

    /// Removes and returns the earliest timer that is due at `tick`, if any.
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
    fn due_timers_are_popped_once_and_the_earliest_first() {
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
