//! The simulator: production replicas, log and exchange in one thread, everything from one seed.
//!
//! Network, disks, clocks, scheduling and people are simulated; nothing else is. A run first draws
//! its schedule of faults, lives through it, heals, and looks at everything once more. A schedule
//! that breaks a promise is shortened as far as it goes while the same promise stays broken.
//!
//! ```no_run
//! use souk_sim::{Config, run};
//!
//! let report = run(&Config::new(7, 1));
//! if let Some(failure) = report.failure {
//!     println!("{:?}; to see it again: {}", failure.violation, failure.replay);
//! }
//! ```

mod checker;
mod clients;
mod counts;
mod disk;
mod faulting;
mod faults;
mod forging;
pub mod games;
mod goods;
mod lying;
mod machine;
mod membership;
mod network;
mod node;
mod operators;
mod payments;
mod pledges;
pub mod random;
mod rows;
mod shrinking;
mod spoiling;
mod verifying;
mod viewing;
mod wholes;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

pub use checker::Violation;
pub use counts::{Counts, SEEDS_TELLING, Sums};
pub use faults::{Boundary, Fault, TimedFault};
pub use payments::Dealings;
pub use rows::Harm;

use world::World;

/// Mean number of commands in a simulated batch.
const BATCH_COMMANDS: u64 = 4;

/// Batches that reach one validator at the same moment, at most: every other time there are from
/// two to so many, else one.
const RUSH_MAX: u64 = 8;

/// Their mean number.
const RUSH_BATCHES: u64 = 3;

/// Entries between two digests of the whole state.
const CHECKPOINT_ENTRIES: u64 = 128;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Config {
    /// Everything follows from it.
    pub seed: u64,
    /// Simulated minutes with faults; healing comes after them.
    pub minutes: u64,
    /// Replicas, at least 3.
    pub nodes: usize,
    /// Market commands a simulated second.
    pub commands_per_second: u64,
    /// Whether batches come in rushes, which validators pack into one entry; else one by one.
    pub rushes: bool,
    /// Which faults of the schedule to live through; all of them if not given.
    pub faults: Option<Vec<usize>>,
}

impl Config {
    /// Market commands a simulated second, if nothing else is asked for.
    pub const COMMANDS_PER_SECOND: u64 = 100;

    /// A run of `minutes` with 5 replicas and 100 commands a second.
    #[must_use]
    pub fn new(seed: u64, minutes: u64) -> Self {
        Self {
            seed,
            minutes,
            nodes: 5,
            commands_per_second: Self::COMMANDS_PER_SECOND,
            rushes: true,
            faults: None,
        }
    }

    fn simulated_ms(&self) -> u64 {
        self.minutes * 60_000
    }

    fn write_gap_ms(&self) -> u64 {
        let batches = if self.rushes { RUSH_BATCHES } else { 1 };
        (1_000 * BATCH_COMMANDS * batches / self.commands_per_second.max(1)).max(1)
    }
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Simulated minutes with faults.
    pub minutes: u64,
    /// Replicas.
    pub nodes: usize,
    /// What it consisted of.
    pub counts: Counts,
    /// Root of the history at the end: equal for equal seeds.
    pub history: String,
    /// A hash of what every job and provider remembered at its end: equal for equal seeds.
    pub cores: String,
    /// The promise that was broken, if one was.
    pub failure: Option<Failure>,
}

/// A broken promise and how to see it again.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The promise.
    pub violation: Violation,
    /// The shortest schedule found that breaks it, as numbers into the seed's schedule.
    pub faults: Vec<usize>,
    /// The same in full.
    pub schedule: Vec<TimedFault>,
    /// Runs made to shorten it.
    pub runs: u32,
    /// The command that shows it again.
    pub replay: String,
}

/// Runs a simulation, and if a promise is broken shortens its schedule.
#[must_use]
pub fn run(config: &Config) -> Report {
    let (mut report, violation) = run_once(config);
    if let Some(violation) = violation {
        report.failure = Some(shrinking::shorten(config, violation));
    }
    report
}

/// Runs a simulation once, and says which promise it breaks, if it does.
#[must_use]
pub fn first_violation(config: &Config) -> Option<Violation> {
    run_once(config).1
}

/// Runs a simulation once.
fn run_once(config: &Config) -> (Report, Option<Violation>) {
    let faults = chosen(config);
    let mut world = World::new(config, faults);
    let violation = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        Some(Violation::Panicked {
            replica: 0,
            reason: said(&*panic),
        })
    });
    let mut counts = world.counts.clone();
    counts.applied = world.checker.applied();
    counts.elections = world.checker.elections();
    counts.dealings = world.checker.dealings();
    let report = Report {
        seed: config.seed,
        minutes: config.minutes,
        nodes: config.nodes,
        counts,
        history: world::ending::fingerprint(&world).to_string(),
        cores: world.digest_of_cores().to_string(),
        failure: None,
    };
    (report, violation)
}

/// The faults a run lives through.
fn chosen(config: &Config) -> Vec<TimedFault> {
    let all = faults::schedule(config.seed, config.nodes, config.simulated_ms());
    match &config.faults {
        None => all,
        Some(numbers) => numbers
            .iter()
            .filter_map(|number| all.get(*number).cloned())
            .collect(),
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
