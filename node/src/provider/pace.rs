//! How fast this provider really is: the share of its measured peak that jobs got of late, and what
//! its device was seen to take for each kind of work.
//!
//! A device is measured on large products and long copies, and jobs are neither; the machine may
//! have other work as well. What a kind of work takes is learned from each run's operators; what
//! jobs took beyond that is looked at as well, and what most of the last few got is advertised. So
//! a receipt that says less than was advertised says something, and an honest provider's seldom
//! does. One job moves what is advertised by no more than a bounded step, whatever it took.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_market::{Dtype, Resources, Slowness, Work};
use souk_scheduler::planning::{Objective, Slowness as Times};
use souk_vocabulary::profile::Profile;

use super::Provider;
use crate::device::costs::StatedSpeed;

/// Jobs that are looked back on. One bad one is forgotten after as many good ones.
const JOBS_MAX: usize = 8;

/// The least share that is advertised; a device slower than that is not for sale in earnest.
const SHARE_MIN: f64 = 0.01;

/// Of the last jobs, one in so many may have got less than what is advertised: it was held up.
const OUTLIERS: usize = 4;

/// How many times longer or shorter one job can make what is advertised of any kind of work.
const STEP_MAX: f64 = 1.5;

/// Shares are told in hundredths, and what is this much off is told anew.
const CHANGE: f64 = 0.1;

/// Of late, and what is advertised.
#[derive(Debug)]
pub(super) struct Pace {
    inner: Mutex<PaceState>,
    /// The model of its device, if it is but one.
    one: Option<String>,
    objective: Objective,
}

#[derive(Debug)]
struct PaceState {
    /// The share that mixed work got when the device was measured, while it counts.
    measured: Option<f64>,
    /// What jobs got of what their kinds of work were known to.
    recent: VecDeque<f64>,
    /// The share that the device was measured to get at first.
    first: f64,
    advertised: Speed,
    /// Whether a job has ended since that is advertised.
    has_news: bool,
    /// Whether what is advertised is to be forgotten.
    is_anew: bool,
    /// Whether an ask of this run says so.
    is_placed: bool,
}

/// How fast a device is, of its peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// The share of the peak that the fastest kind of work gets.
    pub(super) share: f64,
    /// What the others take longer.
    pub(super) slowness: Slowness,
}

impl Pace {
    /// Begins with the share that a first measurement found.
    pub(super) fn new(measured: f64) -> Pace {
        let measured = measured.clamp(SHARE_MIN, 1.0);
        let slowness = Slowness::default();
        Pace {
            inner: Mutex::new(PaceState {
                measured: Some(measured),
                recent: VecDeque::new(),
                first: measured,
                advertised: Speed {
                    share: measured,
                    slowness,
                },
                has_news: false,
                is_anew: false,
                is_placed: false,
            }),
            one: None,
            objective: Objective::Fastest,
        }
    }

    /// The same of these devices, which make this small.
    pub(super) fn of(self, devices: &[Profile], objective: Objective) -> Pace {
        let one = match devices {
            [one] => Some(one.model.clone()),
            _ => None,
        };
        Pace {
            one,
            objective,
            ..self
        }
    }

    /// Begins with what an ask of an earlier run stated, if there was one.
    pub(super) fn begin_with(mut self, stated: Option<StatedSpeed>) -> Pace {
        if let Some(stated) = stated {
            let inner = self.inner.get_mut();
            let inner = inner.unwrap_or_else(PoisonError::into_inner);
            inner.advertised = Speed {
                share: stated.share.clamp(SHARE_MIN, 1.0),
                slowness: Slowness(stated.slowness),
            };
        }
        self
    }

    /// Forgets what jobs got: the device is again what it was measured to be.
    pub(super) fn begin_anew(&self) {
        let mut inner = self.inner();
        inner.recent.clear();
        inner.measured = Some(inner.first);
        inner.is_anew = true;
    }

    /// A job has ended, and may have told something.
    pub(super) fn on_job(&self) {
        self.inner().has_news = true;
    }

    /// Looks at a job that was expected to take so long by the peak and what its kinds of work are
    /// known to take, and took so long.
    pub(super) fn note(&self, expected: Duration, took: Duration) {
        let mut inner = self.inner();
        inner.has_news = true;
        let got = expected.as_secs_f64() / took.as_secs_f64().max(1e-9);
        if inner.recent.len() == JOBS_MAX {
            inner.recent.pop_front();
        }
        inner.recent.push_back(got.clamp(SHARE_MIN, 1.0));
        if inner.recent.len() == JOBS_MAX {
            inner.measured = None;
        }
    }

    /// Whether what is advertised is no longer what jobs get, by what kinds of work are known to
    /// take.
    pub(super) fn has_changed(&self, known: Times) -> bool {
        let inner = self.inner();
        let (due, advertised) = (inner.due(known), inner.advertised);
        Work::ALL.iter().any(|&work| {
            let change = due.times(work) / advertised.times(work);
            !(1.0 - CHANGE..=1.0 + CHANGE).contains(&change)
        })
    }

    /// The share of the peak that is advertised.
    pub(super) fn share(&self) -> f64 {
        self.inner().advertised.share
    }

    /// What is to be advertised next, by what kinds of work are known to take.
    pub(super) fn due(&self, known: Times) -> Speed {
        self.inner().due(known)
    }

    /// It is in the book, and jobs are judged by it from now on. What the book refused is not: the
    /// ask before it may have been bought at that moment.
    pub(super) fn advertise(&self, speed: Speed) {
        let mut inner = self.inner();
        if inner.advertised != speed {
            inner.has_news = false;
        }
        inner.is_anew = false;
        (inner.advertised, inner.is_placed) = (speed, true);
    }

    /// Whether what is advertised is what was bought. A lease that was bought of the run before
    /// this one was bought by other figures.
    pub(super) fn is_placed(&self) -> bool {
        self.inner().is_placed
    }

    /// What is advertised.
    pub(super) fn advertised(&self) -> Speed {
        self.inner().advertised
    }

    fn inner(&self) -> MutexGuard<'_, PaceState> {
        // No code in here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceState {
    /// Each kind of work takes as long as it is known to, and longer by what most jobs of late took
    /// beyond that, or what was measured at first while that may say more; but no more than a step
    /// from what is advertised, and that only after another job.
    fn due(&self, known: Times) -> Speed {
        if self.is_anew {
            return Speed {
                share: self.first,
                slowness: Slowness::default(),
            };
        }
        if !self.has_news {
            return self.advertised;
        }
        let mut recent: Vec<f64> = self.recent.iter().copied().collect();
        recent.sort_by(f64::total_cmp);
        let least = recent.get(recent.len() / OUTLIERS).copied().unwrap_or(1.0);
        let (first, last) = (self.measured.unwrap_or(1.0), self.recent.back());
        let known = of_each(known);
        let times: [f64; 3] = std::array::from_fn(|place| {
            let due = (known[place].max(1.0) / least).max(1.0 / first);
            let now = self.advertised.times(Work::ALL[place]);
            // A job that got more than is advertised makes it no worse, whatever came before.
            let is_good = last.is_some_and(|got| known[place].max(1.0) / got < now);
            let most = if is_good { now } else { now * STEP_MAX };
            due.clamp(now / STEP_MAX, most).max(1.0)
        });
        let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
        let share = ((100.0 / fastest).floor() / 100.0).max(SHARE_MIN);
        let beyond = times.map(|times| (times * share - 1.0).max(0.0) * 100.0);
        Speed {
            share,
            slowness: Slowness(beyond.map(|hundredths| hundredths as u16)),
        }
    }
}

impl Speed {
    /// A device of the peak, but for what its kinds of work are known to take.
    pub(super) fn usual(known: Times) -> Speed {
        let beyond = of_each(known).map(|known| (known - 1.0).max(0.0) * 100.0);
        Speed {
            share: 1.0,
            slowness: Slowness(beyond.map(|hundredths| hundredths as u16)),
        }
    }

    /// How many times as long as by the peak a kind of work takes.
    fn times(&self, work: Work) -> f64 {
        (1.0 + f64::from(self.slowness.of(work)) / 100.0) / self.share
    }

    /// As it is kept over restarts.
    pub(super) fn stated(&self) -> StatedSpeed {
        StatedSpeed {
            share: self.share,
            slowness: self.slowness.0,
        }
    }

    /// A device of this peak: every time that is planned with it is longer.
    pub(super) fn of(&self, peak: &Resources) -> Resources {
        let of = |figure: u64| (figure as f64 * self.share) as u64;
        let mut resources = peak.clone();
        for dtype in Dtype::ALL {
            let figure = of(peak.throughput.of(dtype));
            resources.throughput = resources.throughput.with(dtype, figure);
        }
        resources.memory_bandwidth = of(peak.memory_bandwidth);
        resources.launch_overhead_ns = (peak.launch_overhead_ns as f64 / self.share) as u64;
        resources.slowness = self.slowness;
        resources
    }
}

impl Provider {
    /// The device it sells, as its asks state it.
    pub fn resources(&self) -> Resources {
        self.pace.advertised().of(&self.peak())
    }

    /// What the device does at its best, and what it was seen to refuse.
    pub(super) fn peak(&self) -> Resources {
        Resources {
            refused: self.refusals.told(),
            ..self.peak.clone()
        }
    }

    /// Whether its ask follows what jobs got. What is emulated delivers its figures, unless it is
    /// to make something else small than time.
    pub(super) fn is_paced(&self) -> bool {
        !self.peak.emulated || self.pace.objective != Objective::Fastest
    }

    /// How many times as long as by its peak its device takes for kinds of work, as runs told. What
    /// is emulated delivers its figures; of several devices each plan knows what each takes.
    pub(super) fn known_times(&self) -> Times {
        let known = match &self.pace.one {
            Some(model) if !self.peak.emulated => self.seen.slowness(&self.label, model),
            _ => Times::default(),
        };
        known.each(self.terms.leases().0)
    }
}

/// What each kind of work takes, in the order of [`Work::ALL`].
fn of_each(known: Times) -> [f64; 3] {
    [known.product, known.convolution, known.other]
}

#[cfg(test)]
mod tests {
    use souk_market::Price;
    use souk_memory::DType;
    use souk_onnx::work::Work as Amount;
    use souk_scheduler::graph::cost::{Cost, OperatorClass};
    use souk_scheduler::learning::Measurement;
    use souk_scheduler::planning::cost_seconds;
    use souk_vocabulary::history::{JointMeasurement, Key, Part};

    use super::super::tests::resources;
    use super::*;
    use crate::device::costs::DeviceCosts;
    use crate::device::stated;

    const NOTHING: Times = Times {
        product: 1.0,
        convolution: 1.0,
        other: 1.0,
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What is advertised after ten more jobs that get what their kinds of work are known to.
    fn settled(pace: &Pace, known: Times) -> Speed {
        for _ in 0..10 {
            pace.on_job();
            pace.advertise(pace.due(known));
        }
        pace.advertised()
    }

    #[test]
    fn a_job_moves_what_is_advertised_by_a_step_and_ten_good_ones_undo_what_three_did() {
        let pace = Pace::new(1.0);
        let before = pace.advertised();
        let spoilt = Times {
            other: 1e5,
            ..NOTHING
        };
        for job in 1..=3 {
            pace.note(ms(1), ms(100_000));
            for _ in 0..5 {
                // However often the market is looked at before the next job.
                pace.advertise(pace.due(spoilt));
            }
            let times = Work::ALL.map(|work| pace.advertised().times(work));
            // Shares are told in hundredths, so a step may be a little longer.
            let most = STEP_MAX.powi(job) * 1.04;
            assert!(times.iter().all(|times| *times <= most), "{job}: {times:?}");
        }
        assert!(pace.has_changed(NOTHING) || pace.advertised() != before);
        for _ in 0..10 {
            pace.note(ms(100), ms(100));
            pace.advertise(pace.due(NOTHING));
        }
        assert_eq!(pace.advertised(), before);
    }

    #[test]
    fn a_restart_begins_where_the_last_ask_was_and_a_reset_where_it_was_measured() {
        let stated = StatedSpeed {
            share: 0.5,
            slowness: [0, 50, 0],
        };
        let pace = Pace::new(0.8).begin_with(Some(stated));
        assert_eq!(pace.due(NOTHING).stated(), stated);
        pace.begin_anew();
        assert_eq!(pace.due(NOTHING), Pace::new(0.8).advertised());
    }

    #[test]
    fn what_is_advertised_is_the_least_that_jobs_got_of_late() {
        let pace = Pace::new(1.0);
        pace.note(ms(100), ms(200));
        assert!(pace.has_changed(NOTHING));
        let peak = resources();
        assert_eq!(
            pace.advertised().of(&peak),
            peak,
            "not before it is in the book"
        );
        assert!(!pace.is_placed());
        let next = settled(&pace, NOTHING);
        let half = pace.advertised().of(&peak);
        assert_eq!(half, next.of(&peak));
        assert!(pace.is_placed());
        assert_eq!(half.memory_bandwidth, peak.memory_bandwidth / 2);
        assert_eq!(half.launch_overhead_ns, peak.launch_overhead_ns * 2);
        assert!(!pace.has_changed(NOTHING));
        pace.note(ms(100), ms(200));
        assert!(
            !pace.has_changed(NOTHING),
            "an honest device stays where it is"
        );
        for _ in 0..JOBS_MAX {
            pace.note(ms(100), ms(50));
        }
        assert!(
            pace.has_changed(NOTHING),
            "a machine that is free again says so"
        );
        assert_eq!(settled(&pace, NOTHING).of(&peak), peak);
    }

    #[test]
    fn no_measurement_makes_a_device_faster_than_its_peak_or_stops_it() {
        let peak = resources();
        assert_eq!(Pace::new(7.0).advertised().of(&peak), peak);
        let slow = Pace::new(0.0);
        assert!(slow.advertised().of(&peak).memory_bandwidth > 0);
        slow.note(Duration::ZERO, Duration::ZERO);
        assert!(!slow.has_changed(NOTHING));
        let quick = Times {
            product: 0.1,
            ..NOTHING
        };
        assert_eq!(Pace::new(1.0).due(quick).of(&peak), peak);
    }

    #[test]
    fn a_kind_that_takes_longer_is_advertised_so_and_no_other() {
        let known = Times {
            convolution: 3.0,
            ..NOTHING
        };
        let pace = Pace::new(1.0);
        // Three times as long as by the peak was what it was known to take.
        pace.note(ms(300), ms(300));
        assert!(pace.has_changed(known));
        let due = settled(&pace, known);
        assert_eq!((due.share, due.slowness.0), (1.0, [0, 200, 0]));
        assert!(!pace.has_changed(known));
        // On a busy machine all kinds are slower, and convolutions as many times as before.
        pace.note(ms(300), ms(600));
        let due = settled(&pace, known);
        assert_eq!((due.share, due.slowness.0), (0.5, [0, 200, 0]));
    }

    /// Ten runs of one operator, each of which took so many times what the profile says.
    fn runs(operator: &str, times: f64) -> Vec<Measurement> {
        let work = Amount::default();
        let part = Part {
            key: Key::of(operator, "", &work),
            count: 1,
            modelled: 0.1,
            prior: 1.0,
        };
        let measured = JointMeasurement {
            parts: vec![part],
            seconds: 0.1 * times,
            joules: None,
        };
        let device = "p: a model".to_owned();
        vec![Measurement { device, measured }; 10]
    }

    #[test]
    fn what_is_quoted_follows_what_runs_of_a_kind_took() {
        let peak = resources();
        let quoted = |stated: &Resources, class| {
            let offer = stated::offer(stated, Price(1_000));
            let cost = Cost {
                class,
                dtype: Some(DType::F32),
                flops: 1 << 40,
                ..Cost::default()
            };
            cost_seconds(&cost, &offer) * offer.cost_per_second
        };
        let kinds = [OperatorClass::Convolution, OperatorClass::Matmul];
        let before = kinds.map(|kind| quoted(&peak, kind));
        let home = tempfile::tempdir().unwrap();
        let seen = DeviceCosts::open(home.path());
        let graph = souk_memory::ContentId::of(b"a graph");
        seen.learn(&runs("Conv", 3.0), &graph, 5);
        seen.learn(&runs("MatMul", 1.0), &graph, 5);
        let due = settled(&Pace::new(1.0), seen.slowness("p", "a model")).of(&peak);
        let after = kinds.map(|kind| quoted(&due, kind));
        assert!(
            (after[0] / before[0] - 3.0).abs() < 0.05,
            "{before:?} {after:?}"
        );
        assert_eq!(after[1], before[1]);
    }

    #[test]
    fn the_first_measurement_is_not_counted_twice() {
        let known = Times {
            convolution: 3.0,
            ..NOTHING
        };
        let due = settled(&Pace::new(0.5), known);
        assert_eq!((due.share, due.slowness.0), (0.5, [0, 50, 0]));
        assert!((due.times(Work::Convolution) - 3.0).abs() < 0.01);
    }
}
