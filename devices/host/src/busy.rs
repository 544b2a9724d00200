//! Measures how busy this process keeps a device: the time of its runs, as a part of the time that
//! passed between two readings. Backends report it as the device's utilisation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time that a device worked, added run by run.
#[derive(Debug)]
pub struct Busy {
    nanoseconds: AtomicU64,
    /// The moment of the last reading, and the total at that moment.
    last_reading: Mutex<(Instant, u64)>,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            nanoseconds: AtomicU64::new(0),
            last_reading: Mutex::new((Instant::now(), 0)),
        }
    }
}

impl Busy {
    /// Adds the time of one run. The times of several runs can overlap.
    pub fn record_busy(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the part of the time since the last call in which the device worked, 0 to 1. Only
    /// one caller should use this, because each call begins the next interval.
    pub fn utilisation(&self) -> f64 {
        self.utilisation_at(Instant::now())
    }

    fn utilisation_at(&self, now: Instant) -> f64 {
        let busy = self.nanoseconds.load(Ordering::Relaxed);
        let mut last_reading = self
            .last_reading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *last_reading, (now, busy));
        let passed = now.saturating_duration_since(since).as_nanos().max(1) as f64;
        (busy.saturating_sub(before) as f64 / passed).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_since_the_last_question_counts() {
        let busy = Busy::default();
        let start = busy.last_reading.lock().unwrap().0;
        let at = |seconds| start + Duration::from_secs(seconds);
        busy.record_busy(Duration::from_secs(3));
        assert_eq!(busy.utilisation_at(at(4)), 0.75);
        assert_eq!(busy.utilisation_at(at(8)), 0.0);
        busy.record_busy(Duration::from_secs(60));
        assert_eq!(busy.utilisation_at(at(9)), 1.0, "several runs at once");
    }
}
