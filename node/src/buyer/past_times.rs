//! Measures how long a buyer's last jobs took beyond their plans, and estimates from this how much
//! longer than its plan the next job will take.
//!
//! Between the purchase of a lease and its first operator a provider starts a process, loads and
//! compiles the graph; the market, the links and the receipt take time as well. No ask states that,
//! so the buyer measures it: it keeps the last few jobs of each provider and uses their median
//! instead of the mean, because one delayed job says nothing about the next. A provider without
//! past jobs is expected to perform as the others did.
//!
//! The work of a model with a loop is not known before the run if the run decides the loop's count.
//! The times of its last runs are stored by model and affect no other plan.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_market::AccountKey;
use souk_memory::ContentId;

/// The name of the file in an account's folder.
pub const PAST_TIMES_FILE: &str = "times.json";
/// Jobs remembered of a provider: enough for a median, few enough to follow a change.
const JOBS_MAX: usize = 12;
/// Providers and models remembered; beyond that, the least recently used ones are forgotten.
const PROVIDERS_MAX: usize = 1024;
const MODELS_MAX: usize = 1024;
/// Runs remembered of a model, because its loop count can differ each time.
const RUNS_MAX: usize = 5;
/// The largest factor by which a planned time is corrected, either way.
const OFF_MAX: f64 = 100.0;
/// The ratio of planned times at which a past job has half the weight.
const ALIKE: f64 = 2.0;
/// The shortest time, in seconds; it must be above 0, because the code divides by times.
const LEAST: f64 = 1e-6;

/// What a job takes beyond the figures of its devices and links.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overheads {
    /// Seconds until the providers have all their inputs, beyond the time on the links.
    pub upload: f64,
    /// Seconds of waiting.
    pub wait: f64,
    /// The ratio of the devices' actual to planned time.
    pub compute: f64,
}

/// How long a job took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PastJob {
    /// Until the providers had all their inputs, beyond the planned time on the links.
    pub(super) upload: f64,
    pub(super) wait: f64,
    /// The planned and the actual time of computing.
    pub(super) planned: f64,
    pub(super) computed: f64,
    /// The time of a fixed reference work, by the figures with which the job was planned.
    pub(super) reference: f64,
}

/// The planned work of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedWork {
    /// How long the devices compute, in seconds.
    pub(super) seconds: f64,
    /// The time in seconds of the fixed reference work, by the figures that asks state now. Asks
    /// follow past jobs, so an old job's error need not apply to the current figures.
    pub(super) reference: f64,
}

/// A job that ended well.
#[derive(Clone, Debug)]
pub(super) struct EndedJob {
    /// The providers of its leases.
    pub(super) providers: Vec<AccountKey>,
    pub(super) times: PastJob,
    /// The ratio of the actual to the stated work of its uncertain nodes, if it has some.
    pub(super) turns: Option<f64>,
}

/// The past of one provider or model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Past<T> {
    at_ms: u64,
    last: VecDeque<T>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct TimesFile {
    format: u32,
    /// By the account of each, in hexadecimal digits.
    providers: BTreeMap<String, Past<PastJob>>,
    /// By model: the ratio of the actual to the stated work of its uncertain nodes.
    models: BTreeMap<String, Past<f64>>,
}

/// How long the last jobs of a buyer took.
#[derive(Debug)]
pub(super) struct PastTimes {
    file: Option<PathBuf>,
    known: Mutex<TimesFile>,
}

impl PastTimes {
    /// Reads the past from a file, if there is one.
    pub(super) fn load_or_default(file: Option<PathBuf>) -> Self {
        let kept = file.as_ref().map(|file| config::read::<TimesFile>(file));
        let known = match kept {
            None | Some(Err(ConfigError::Missing { .. })) => TimesFile::default(),
            Some(Ok(kept)) => kept,
            Some(Err(error)) => {
                tracing::warn!(%error, "the times of earlier jobs could not be read");
                TimesFile::default()
            }
        };
        let known = Mutex::new(known);
        Self { file, known }
    }

    /// Returns the overheads of a job with this planned work at these providers: the slowest
    /// counts.
    pub(super) fn estimate_overheads(
        &self,
        providers: &[AccountKey],
        planned: PlannedWork,
    ) -> Overheads {
        let known = self.lock_known();
        let all = known.providers.values();
        let usual = Overheads::from_jobs(all.flat_map(|past| &past.last), planned);
        let each = providers.iter().map(|provider| {
            let past = known.providers.get(&hex::encode(provider.0));
            past.map_or(usual, |past| {
                Overheads::from_jobs(past.last.iter(), planned)
            })
        });
        each.reduce(Overheads::max_of_each).unwrap_or(usual)
    }

    /// Returns the recent ratio of the actual to the stated work of a model's uncertain nodes.
    pub(super) fn turns_ratio(&self, model: &ContentId) -> f64 {
        let known = self.lock_known();
        let past = known.models.get(&model.to_string());
        past.and_then(|past| median(past.last.iter().copied()))
            .unwrap_or(1.0)
    }

    /// Records a job of a model, which must have ended well and needed only one purchase.
    pub(super) fn record_job(&self, model: &ContentId, ended: &EndedJob, at_ms: u64) {
        let mut known = self.lock_known();
        match ended.turns {
            None => {
                for provider in &ended.providers {
                    let provider = hex::encode(provider.0);
                    let past = known.providers.entry(provider).or_default();
                    past.push(ended.times, JOBS_MAX, at_ms);
                }
                evict_oldest(&mut known.providers, PROVIDERS_MAX);
            }
            Some(turns) if turns.is_finite() && turns > 0.0 => {
                let past = known.models.entry(model.to_string()).or_default();
                past.push(turns, RUNS_MAX, at_ms);
                evict_oldest(&mut known.models, MODELS_MAX);
            }
            Some(_) => {}
        }
        drop(known);
        self.save();
    }

    fn save(&self) {
        let Some(file) = &self.file else { return };
        let mut known = self.lock_known();
        known.format = FORMAT;
        if let Err(error) = config::write(file, &*known) {
            tracing::warn!(%error, "the times of this job could not be stored for the next plan");
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, TimesFile> {
        // A panic cannot leave a change half done under this lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Overheads {
    /// Estimates from past jobs; for compute, jobs with a similar planned time weigh most.
    fn from_jobs<'a>(jobs: impl Iterator<Item = &'a PastJob> + Clone, work: PlannedWork) -> Self {
        let of = |figure: fn(&PastJob) -> f64| median(jobs.clone().map(figure));
        let times = jobs.clone().map(|job| {
            let then = job.planned.max(LEAST) * (work.reference / job.reference);
            let apart = (then / work.seconds.max(LEAST)).ln().abs();
            let weight = 1.0 / (1.0 + apart / ALIKE.ln());
            let times = job.computed.max(LEAST) / then;
            (times.clamp(1.0 / OFF_MAX, OFF_MAX), weight)
        });
        Self {
            upload: of(|job| job.upload).unwrap_or(0.0),
            wait: of(|job| job.wait).unwrap_or(0.0),
            // A single job weighs no more than the plan itself.
            compute: weighted_median(times.chain([(1.0, 1.0)]).collect()).unwrap_or(1.0),
        }
    }

    fn max_of_each(self, other: Self) -> Self {
        Self {
            upload: self.upload.max(other.upload),
            wait: self.wait.max(other.wait),
            compute: self.compute.max(other.compute),
        }
    }
}

impl<T> Default for Past<T> {
    fn default() -> Self {
        Self {
            at_ms: 0,
            last: VecDeque::new(),
        }
    }
}

impl<T> Past<T> {
    /// Adds what was measured, and drops the oldest beyond `most`.
    fn push(&mut self, what: T, most: usize, at_ms: u64) {
        self.at_ms = at_ms;
        while self.last.len() >= most {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }
}

/// Drops the least recently used entries beyond `most`.
fn evict_oldest<K: Ord + Clone, T>(known: &mut BTreeMap<K, Past<T>>, most: usize) {
    while known.len() > most {
        let oldest = known.iter().min_by_key(|(_, past)| past.at_ms);
        let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
            return;
        };
        known.remove(&oldest);
    }
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    weighted_median(figures.map(|figure| (figure, 1.0)).collect())
}

/// Returns the least figure that has half of the weight at or below it.
fn weighted_median(mut weighed: Vec<(f64, f64)>) -> Option<f64> {
    weighed.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all: f64 = weighed.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    let found = weighed.iter().find(|(_, weight)| {
        below += weight;
        below * 2.0 >= all
    });
    found.map(|(figure, _)| *figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(planned: f64, computed: f64) -> PastJob {
        PastJob {
            upload: 0.01,
            wait: 0.03,
            planned,
            computed,
            reference: 1.0,
        }
    }

    fn work(seconds: f64) -> PlannedWork {
        let reference = 1.0;
        PlannedWork { seconds, reference }
    }

    fn of(jobs: &[PastJob], planned: f64) -> Overheads {
        Overheads::from_jobs(jobs.iter(), work(planned))
    }

    #[test]
    fn what_an_ask_states_by_now_is_not_corrected_again() {
        let jobs = [job(0.001, 0.004), job(0.001, 0.004)];
        assert!((of(&jobs, 0.001).compute - 4.0).abs() < 1e-9);
        let slower = PlannedWork {
            seconds: 0.004,
            reference: 4.0,
        };
        let now = Overheads::from_jobs(jobs.iter(), slower);
        assert!((now.compute - 1.0).abs() < 1e-9, "{now:?}");
    }

    #[test]
    fn the_usual_counts_and_a_job_that_was_held_up_does_not() {
        let held_up = PastJob {
            wait: 60.0,
            ..job(0.001, 60.0)
        };
        let jobs = [job(0.001, 0.002), held_up, job(0.001, 0.002)];
        let usual = of(&jobs, 0.001);
        assert_eq!((usual.upload, usual.wait), (0.01, 0.03));
        assert!((usual.compute - 2.0).abs() < 1e-9, "{usual:?}");
        let nothing = of(&[], 0.001);
        assert_eq!((nothing.wait, nothing.compute), (0.0, 1.0));
    }

    #[test]
    fn what_was_planned_to_take_as_long_says_most() {
        let jobs = [job(0.001, 0.01), job(0.001, 0.01), job(1.0, 1.0)];
        assert!((of(&jobs, 0.001).compute - 10.0).abs() < 1e-9);
        assert!((of(&jobs, 2.0).compute - 1.0).abs() < 1e-9);
    }

    #[test]
    fn who_was_never_bought_of_is_expected_to_do_as_the_others_did() {
        let past = PastTimes::load_or_default(None);
        let (known, other) = (AccountKey([1; 32]), AccountKey([2; 32]));
        let one = job(0.001, 0.001);
        let note = |provider: AccountKey, job| {
            let mut times = past.lock_known();
            let past = times.providers.entry(hex::encode(provider.0)).or_default();
            past.push(job, JOBS_MAX, 5);
        };
        note(known, one);
        let slow = PastJob { wait: 0.5, ..one };
        assert_eq!(
            past.estimate_overheads(&[other], work(0.001)).wait,
            one.wait
        );
        note(other, slow);
        assert_eq!(
            past.estimate_overheads(&[known, other], work(0.001)).wait,
            slow.wait
        );
        assert_eq!(
            past.estimate_overheads(&[known], work(0.001)).wait,
            one.wait
        );
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest_stays() {
        let mut known: BTreeMap<u64, Past<f64>> = BTreeMap::new();
        for at_ms in 0..100_u64 {
            let past = known.entry(at_ms % 10).or_default();
            past.push(at_ms as f64, RUNS_MAX, at_ms);
        }
        evict_oldest(&mut known, 3);
        assert_eq!(known.keys().copied().collect::<Vec<_>>(), [7, 8, 9]);
        assert!(known.values().all(|past| past.last.len() == RUNS_MAX));
        assert_eq!(known[&9].last.back(), Some(&99.0));
    }
}
