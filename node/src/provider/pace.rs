//! How fast this provider really is: the share of its measured peak that jobs got of late.
//!
//! A device is measured on large products and long copies, and jobs are neither; the machine may
//! have other work as well. What is advertised is what jobs got: the least of the last few. So a
//! receipt that says less than was advertised says something, and an honest provider's seldom does.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_market::{Dtype, Resources};

/// Jobs that are looked back on. One bad one is forgotten after as many good ones.
const JOBS_MAX: usize = 8;

/// The least share that is advertised; a device slower than that is not for sale in earnest.
const SHARE_MIN: f64 = 0.01;

/// Shares are told in hundredths, and what is this much off is told anew.
const CHANGE: f64 = 0.1;

/// The shares of late, and the one that is advertised.
#[derive(Debug)]
pub(super) struct Pace {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    recent: VecDeque<f64>,
    advertised: f64,
    /// Whether an ask of this run says so.
    is_placed: bool,
}

/// Figures of an ask.
#[derive(Debug)]
pub(super) struct Advertised {
    /// Of the peak.
    pub(super) share: f64,
    pub(super) resources: Resources,
}

impl Pace {
    /// Begins with the share that a first measurement found.
    pub(super) fn new(measured: f64) -> Pace {
        let advertised = measured.clamp(SHARE_MIN, 1.0);
        let recent = VecDeque::from([advertised]);
        Pace {
            inner: Mutex::new(Inner {
                recent,
                advertised,
                is_placed: false,
            }),
        }
    }

    /// Looks at a job that was expected to take so long by what is advertised, and took so long.
    pub(super) fn note(&self, expected: Duration, took: Duration) {
        let mut inner = self.inner();
        let got = expected.as_secs_f64() / took.as_secs_f64().max(1e-9) * inner.advertised;
        if inner.recent.len() == JOBS_MAX {
            inner.recent.pop_front();
        }
        inner.recent.push_back(got.clamp(SHARE_MIN, 1.0));
    }

    /// Whether what is advertised is no longer what jobs get.
    pub(super) fn has_changed(&self) -> bool {
        let inner = self.inner();
        (inner.due() / inner.advertised - 1.0).abs() > CHANGE
    }

    /// The share of the peak that is advertised.
    pub(super) fn share(&self) -> f64 {
        self.inner().advertised
    }

    /// What is to be advertised next.
    pub(super) fn due(&self, peak: &Resources) -> Advertised {
        let share = self.inner().due();
        let resources = at(peak, share);
        Advertised { share, resources }
    }

    /// It is in the book, and jobs are judged by it from now on. What the book refused is not: the
    /// ask before it may have been bought at that moment.
    pub(super) fn advertise(&self, share: f64) {
        let mut inner = self.inner();
        (inner.advertised, inner.is_placed) = (share, true);
    }

    /// Whether what is advertised is what was bought. A lease that was bought of the run before
    /// this one was bought by other figures.
    pub(super) fn is_placed(&self) -> bool {
        self.inner().is_placed
    }

    /// What is advertised.
    pub(super) fn advertised(&self, peak: &Resources) -> Resources {
        at(peak, self.inner().advertised)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No code in here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn due(&self) -> f64 {
        let least = self.recent.iter().copied().fold(1.0, f64::min);
        ((least * 100.0).floor() / 100.0).max(SHARE_MIN)
    }
}

/// A device of which so large a share is had: every time that is planned with it is longer.
fn at(peak: &Resources, share: f64) -> Resources {
    let of = |figure: u64| (figure as f64 * share) as u64;
    let mut resources = peak.clone();
    for dtype in Dtype::ALL {
        let figure = of(peak.throughput.of(dtype));
        resources.throughput = resources.throughput.with(dtype, figure);
    }
    resources.memory_bandwidth = of(peak.memory_bandwidth);
    resources.launch_overhead_ns = (peak.launch_overhead_ns as f64 / share) as u64;
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_advertised_is_the_least_that_jobs_got_of_late() {
        let pace = Pace::new(1.0);
        pace.note(ms(100), ms(200));
        assert!(pace.has_changed());
        let peak = super::super::tests::resources();
        let next = pace.due(&peak);
        assert_eq!(pace.advertised(&peak), peak, "not before it is in the book");
        assert!(!pace.is_placed());
        pace.advertise(next.share);
        let half = pace.advertised(&peak);
        assert_eq!(half, next.resources);
        assert!(pace.is_placed());
        assert_eq!(half.memory_bandwidth, peak.memory_bandwidth / 2);
        assert_eq!(half.launch_overhead_ns, peak.launch_overhead_ns * 2);
        assert!(!pace.has_changed());
        // Twice as long was advertised: it took what it took before.
        pace.note(ms(200), ms(200));
        assert!(!pace.has_changed(), "an honest device stays where it is");
        for _ in 0..JOBS_MAX {
            pace.note(ms(200), ms(100));
        }
        assert!(pace.has_changed(), "a machine that is free again says so");
        assert_eq!(pace.due(&peak).resources, peak);
    }

    #[test]
    fn no_measurement_makes_a_device_faster_than_its_peak_or_stops_it() {
        let peak = super::super::tests::resources();
        assert_eq!(Pace::new(7.0).advertised(&peak), peak);
        let slow = Pace::new(0.0);
        assert!(slow.advertised(&peak).memory_bandwidth > 0);
        slow.note(Duration::ZERO, Duration::ZERO);
        assert!(!slow.has_changed());
    }
}
