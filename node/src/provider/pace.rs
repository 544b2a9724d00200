//! Computes the speed that a provider's ask states: the share of the measured peak that recent jobs
//! got, and the time that the device takes for each kind of work.
//!
//! A device is measured with large matrix products and long copies, which real jobs seldom have,
//! and the machine may have other work too. So the provider learns the time of each kind of work
//! from the operators of each run, compares each job with that expectation, and advertises a speed
//! that most of the last few jobs got. A receipt with less than the advertised speed is therefore
//! evidence against the provider, and an honest provider's receipt seldom shows it. However slow a
//! single job is, it changes the advertised speed by a bounded step only.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_market::{Dtype, Resources, Slowness, WorkKind};
use souk_sandbox::device::costs::StatedSpeed;
use souk_scheduler::planning::{Objective, Slowness as Times};
use souk_vocabulary::profile::Profile;

use super::Provider;

/// Jobs in the window. One bad job is forgotten after as many good ones.
const JOBS_MAX: usize = 8;

/// The least share that a provider advertises; a slower device is not seriously for sale.
const SHARE_MIN: f64 = 0.01;

/// Of this many of the last jobs, one can get less than the advertised speed without an effect: the
/// provider assumes that something delayed it.
const OUTLIERS: usize = 4;

/// The factor by which one job can lengthen or shorten the advertised time of any kind of work.
const STEP_MAX: f64 = 1.5;

/// Shares are advertised in hundredths. If the share changes by this part, the provider advertises
/// the new one.
const CHANGE: f64 = 0.1;

/// The recent speed of a device, and the speed that the provider's ask advertises.
#[derive(Debug)]
pub(super) struct Pace {
    inner: Mutex<PaceState>,
    /// The model of its device, if it is a single one.
    one: Option<String>,
    objective: Objective,
}

#[derive(Debug)]
struct PaceState {
    /// The share that mixed work got in the first measurement, while that counts.
    measured: Option<f64>,
    /// The share that recent jobs got of the speed known for their kinds of work.
    recent: VecDeque<f64>,
    /// The share that the first measurement found.
    first: f64,
    advertised: Speed,
    /// Whether a job has ended since the last advertisement.
    has_news: bool,
    /// Whether the next advertisement must ignore the current one.
    is_anew: bool,
    /// Whether an ask of this run states the advertised speed.
    is_placed: bool,
}

/// The speed of a device, relative to its peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// The share of the peak that the fastest kind of work gets.
    pub(super) share: f64,
    /// The extra time of the other kinds of work.
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

    /// Sets the devices and the objective that they minimise.
    pub(super) fn with_devices(self, devices: &[Profile], objective: Objective) -> Pace {
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

    /// Begins with the speed that an ask of an earlier run stated, if there was one.
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

    /// Forgets the shares that jobs got: the device again has its measured speed.
    pub(super) fn begin_anew(&self) {
        let mut inner = self.lock_inner();
        inner.recent.clear();
        inner.measured = Some(inner.first);
        inner.is_anew = true;
    }

    /// Notes that a job has ended, so there may be new figures.
    pub(super) fn on_job(&self) {
        self.lock_inner().has_news = true;
    }

    /// Records a job: the duration expected from the peak and the known times of its kinds of work,
    /// and the duration it took.
    pub(super) fn record_job(&self, expected: Duration, took: Duration) {
        let mut inner = self.lock_inner();
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

    /// Returns whether the advertised speed no longer matches the speed that jobs get, by the known
    /// times of each kind of work.
    pub(super) fn has_changed(&self, known: Times) -> bool {
        let inner = self.lock_inner();
        let (due, advertised) = (inner.next_speed(known), inner.advertised);
        WorkKind::ALL.iter().any(|&work| {
            let change = due.time_factor(work) / advertised.time_factor(work);
            !(1.0 - CHANGE..=1.0 + CHANGE).contains(&change)
        })
    }

    /// Returns the advertised share of the peak.
    pub(super) fn advertised_share(&self) -> f64 {
        self.lock_inner().advertised.share
    }

    /// Returns the speed to advertise next, by the known times of each kind of work.
    pub(super) fn next_speed(&self, known: Times) -> Speed {
        self.lock_inner().next_speed(known)
    }

    /// Records that the order book now has this speed, by which later jobs are judged. You must not
    /// pass a speed that the book refused, because a buyer may have bought the earlier ask at that
    /// moment.
    pub(super) fn set_advertised(&self, speed: Speed) {
        let mut inner = self.lock_inner();
        if inner.advertised != speed {
            inner.has_news = false;
        }
        inner.is_anew = false;
        (inner.advertised, inner.is_placed) = (speed, true);
    }

    /// Returns whether an ask of this run states the advertised speed. A lease that a buyer bought
    /// in an earlier run was bought by other figures.
    pub(super) fn is_placed(&self) -> bool {
        self.lock_inner().is_placed
    }

    /// Returns the advertised speed.
    pub(super) fn advertised_speed(&self) -> Speed {
        self.lock_inner().advertised
    }

    fn lock_inner(&self) -> MutexGuard<'_, PaceState> {
        // No code here panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceState {
    /// Returns the speed to advertise next. Each kind of work takes its known time, and longer by
    /// the excess of most recent jobs, or of the first measurement while that may count for more.
    /// It moves by at most one step from the advertised speed, and only after another job.
    fn next_speed(&self, known: Times) -> Speed {
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
            let now = self.advertised.time_factor(WorkKind::ALL[place]);
            // A job that beat the advertised speed never worsens it, whatever the earlier jobs got.
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
    /// Returns the speed of a device whose kinds of work take these known times: its fastest kind
    /// gets the whole peak.
    pub(super) fn from_times(known: Times) -> Speed {
        let beyond = of_each(known).map(|known| (known - 1.0).max(0.0) * 100.0);
        Speed {
            share: 1.0,
            slowness: Slowness(beyond.map(|hundredths| hundredths as u16)),
        }
    }

    /// Returns the time of a kind of work as a multiple of its time at the peak.
    fn time_factor(&self, work: WorkKind) -> f64 {
        (1.0 + f64::from(self.slowness.for_work(work)) / 100.0) / self.share
    }

    /// Returns the speed in the form in which the provider stores it over restarts.
    pub(super) fn stated_speed(&self) -> StatedSpeed {
        StatedSpeed {
            share: self.share,
            slowness: self.slowness.0,
        }
    }

    /// Returns the resources of a device of this peak at this speed: every planned time becomes
    /// longer.
    pub(super) fn scale_resources(&self, peak: &Resources) -> Resources {
        let of = |figure: u64| (figure as f64 * self.share) as u64;
        let mut resources = peak.clone();
        for dtype in Dtype::ALL {
            let figure = of(peak.throughput.for_dtype(dtype));
            resources.throughput = resources.throughput.with(dtype, figure);
        }
        resources.memory_bandwidth = of(peak.memory_bandwidth);
        resources.launch_overhead_ns = (peak.launch_overhead_ns as f64 / self.share) as u64;
        resources.slowness = self.slowness;
        resources
    }
}

impl Provider {
    /// Returns the device for sale, as its asks state it.
    pub fn advertised_resources(&self) -> Resources {
        self.pace
            .advertised_speed()
            .scale_resources(&self.peak_resources())
    }

    /// Returns the device's best performance, and the work that it has refused.
    pub(super) fn peak_resources(&self) -> Resources {
        Resources {
            refused: self.refusals.refused_nodes(),
            ..self.peak.clone()
        }
    }

    /// Returns whether the ask follows the speed that jobs got. An emulated device delivers its
    /// figures, unless its objective is another than time.
    pub(super) fn is_paced(&self) -> bool {
        !self.peak.emulated || self.pace.objective != Objective::Fastest
    }

    /// Returns the multiple of the peak's time that its device takes for each kind of work, as runs
    /// measured it. It does not count emulated devices, which deliver their figures, or several
    /// devices, because each plan knows each device's times.
    pub(super) fn known_times(&self) -> Times {
        let known = match &self.pace.one {
            Some(model) if !self.peak.emulated => self.seen.slowness(&self.label, model),
            _ => Times::default(),
        };
        known.per_part(self.terms.lease_count().0)
    }
}

/// Returns the time of each kind of work, in the order of [`WorkKind::ALL`].
fn of_each(known: Times) -> [f64; 3] {
    [known.product, known.convolution, known.other]
}

#[cfg(test)]
mod tests {
    use souk_market::Price;
    use souk_memory::DType;
    use souk_onnx::work::Work as Amount;
    use souk_sandbox::device::ask_resources;
    use souk_sandbox::device::costs::DeviceCosts;
    use souk_scheduler::graph::cost::{Cost, OperatorClass};
    use souk_scheduler::learning::Measurement;
    use souk_scheduler::planning::cost_seconds;
    use souk_vocabulary::history::{JointMeasurement, Key, Part};

    use super::super::tests::resources;
    use super::*;

    const NOTHING: Times = Times {
        product: 1.0,
        convolution: 1.0,
        other: 1.0,
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the advertised speed after ten more jobs that take the known times of their kinds of
    /// work.
    fn settled(pace: &Pace, known: Times) -> Speed {
        for _ in 0..10 {
            pace.on_job();
            pace.set_advertised(pace.next_speed(known));
        }
        pace.advertised_speed()
    }

    #[test]
    fn a_job_moves_what_is_advertised_by_a_step_and_ten_good_ones_undo_what_three_did() {
        let pace = Pace::new(1.0);
        let before = pace.advertised_speed();
        let spoilt = Times {
            other: 1e5,
            ..NOTHING
        };
        for job in 1..=3 {
            pace.record_job(ms(1), ms(100_000));
            for _ in 0..5 {
                // However often the market is looked at before the next job.
                pace.set_advertised(pace.next_speed(spoilt));
            }
            let times = WorkKind::ALL.map(|work| pace.advertised_speed().time_factor(work));
            // Shares are told in hundredths, so a step may be a little longer.
            let most = STEP_MAX.powi(job) * 1.04;
            assert!(times.iter().all(|times| *times <= most), "{job}: {times:?}");
        }
        assert!(pace.has_changed(NOTHING) || pace.advertised_speed() != before);
        for _ in 0..10 {
            pace.record_job(ms(100), ms(100));
            pace.set_advertised(pace.next_speed(NOTHING));
        }
        assert_eq!(pace.advertised_speed(), before);
    }

    #[test]
    fn a_restart_begins_where_the_last_ask_was_and_a_reset_where_it_was_measured() {
        let stated = StatedSpeed {
            share: 0.5,
            slowness: [0, 50, 0],
        };
        let pace = Pace::new(0.8).begin_with(Some(stated));
        assert_eq!(pace.next_speed(NOTHING).stated_speed(), stated);
        pace.begin_anew();
        assert_eq!(pace.next_speed(NOTHING), Pace::new(0.8).advertised_speed());
    }

    #[test]
    fn what_is_advertised_is_the_least_that_jobs_got_of_late() {
        let pace = Pace::new(1.0);
        pace.record_job(ms(100), ms(200));
        assert!(pace.has_changed(NOTHING));
        let peak = resources();
        assert_eq!(
            pace.advertised_speed().scale_resources(&peak),
            peak,
            "not before it is in the book"
        );
        assert!(!pace.is_placed());
        let next = settled(&pace, NOTHING);
        let half = pace.advertised_speed().scale_resources(&peak);
        assert_eq!(half, next.scale_resources(&peak));
        assert!(pace.is_placed());
        assert_eq!(half.memory_bandwidth, peak.memory_bandwidth / 2);
        assert_eq!(half.launch_overhead_ns, peak.launch_overhead_ns * 2);
        assert!(!pace.has_changed(NOTHING));
        pace.record_job(ms(100), ms(200));
        assert!(
            !pace.has_changed(NOTHING),
            "an honest device stays where it is"
        );
        for _ in 0..JOBS_MAX {
            pace.record_job(ms(100), ms(50));
        }
        assert!(
            pace.has_changed(NOTHING),
            "a machine that is free again says so"
        );
        assert_eq!(settled(&pace, NOTHING).scale_resources(&peak), peak);
    }

    #[test]
    fn no_measurement_makes_a_device_faster_than_its_peak_or_stops_it() {
        let peak = resources();
        assert_eq!(
            Pace::new(7.0).advertised_speed().scale_resources(&peak),
            peak
        );
        let slow = Pace::new(0.0);
        assert!(
            slow.advertised_speed()
                .scale_resources(&peak)
                .memory_bandwidth
                > 0
        );
        slow.record_job(Duration::ZERO, Duration::ZERO);
        assert!(!slow.has_changed(NOTHING));
        let quick = Times {
            product: 0.1,
            ..NOTHING
        };
        assert_eq!(
            Pace::new(1.0).next_speed(quick).scale_resources(&peak),
            peak
        );
    }

    #[test]
    fn a_kind_that_takes_longer_is_advertised_so_and_no_other() {
        let known = Times {
            convolution: 3.0,
            ..NOTHING
        };
        let pace = Pace::new(1.0);
        // Three times as long as by the peak was what it was known to take.
        pace.record_job(ms(300), ms(300));
        assert!(pace.has_changed(known));
        let due = settled(&pace, known);
        assert_eq!((due.share, due.slowness.0), (1.0, [0, 200, 0]));
        assert!(!pace.has_changed(known));
        // On a busy machine all kinds are slower, and convolutions as many times as before.
        pace.record_job(ms(300), ms(600));
        let due = settled(&pace, known);
        assert_eq!((due.share, due.slowness.0), (0.5, [0, 200, 0]));
    }

    /// Returns the measurements of ten runs of one operator, each of which took `times` times as
    /// long as the profile says.
    fn runs(operator: &str, times: f64) -> Vec<Measurement> {
        let work = Amount::default();
        let part = Part {
            key: Key::for_work(operator, "", &work),
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
            let offer = ask_resources::to_offer(stated, Price(1_000));
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
        let seen = DeviceCosts::load_or_default(home.path());
        let graph = souk_memory::ContentId::for_content(b"a graph");
        seen.learn_measurements(&runs("Conv", 3.0), &graph, 5);
        seen.learn_measurements(&runs("MatMul", 1.0), &graph, 5);
        let due = settled(&Pace::new(1.0), seen.slowness("p", "a model")).scale_resources(&peak);
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
        assert!((due.time_factor(WorkKind::Convolution) - 3.0).abs() < 0.01);
    }
}
