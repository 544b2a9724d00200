//! Simulates a market deterministically: runs production replicas, log and exchange in one thread,
//! and draws every choice from one seed.
//!
//! Only the network, disks, clocks, scheduling and users are simulated. A run draws its schedule of
//! faults, applies it, repairs all faults, and checks all invariants again. If a run violates an
//! invariant, the simulator shortens the schedule as long as the run still violates the same one.
//!
//! ```no_run
//! use souk_sim::{Config, run};
//!
//! let report = run(&Config::new(7, 1));
//! if let Some(failure) = report.failure {
//!     println!("{:?}; to see it again: {}", failure.violation, failure.replay);
//! }
//! ```

pub mod attacks;
mod checker;
mod clients;
mod counts;
pub mod crowd;
mod disk;
mod fake_store;
mod fault_injection;
mod faults;
mod forged_messages;
mod lying_validator;
mod machine;
mod membership;
mod message_faults;
mod network;
mod node;
mod operators;
mod payments;
mod raft_promises;
pub mod random;
mod releases;
mod resources;
mod schedule_shortening;
mod signature_checks;
mod state_comparison;
mod tree_checks;
mod view_checks;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

pub use checker::Violation;
pub use counts::{COVERAGE_SEEDS_MIN, Counts, Sums};
pub use fake_store::Harm;
pub use faults::{Boundary, Fault, TimedFault};
pub use payments::Dealings;

use world::World;

/// Mean number of commands in a simulated batch.
const BATCH_COMMANDS: u64 = 4;

/// Maximum number of batches that reach one validator at the same moment. Half of all arrivals are
/// rushes of two to this many batches; the others are single batches.
const RUSH_MAX: u64 = 8;

/// Mean number of batches per arrival, single batches included.
const RUSH_BATCHES: u64 = 3;

/// Number of entries between two checkpoints (digests of the whole state).
const CHECKPOINT_ENTRIES: u64 = 128;

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Determines the whole run.
    pub seed: u64,
    /// Simulated minutes with faults; healing follows.
    pub minutes: u64,
    /// Number of replicas, at least 3.
    pub nodes: usize,
    /// Market commands per simulated second.
    pub commands_per_second: u64,
    /// Whether batches come in rushes, which validators pack into one entry, or one by one.
    pub rushes: bool,
    /// Indices of the schedule's faults to apply; `None` applies all.
    pub faults: Option<Vec<usize>>,
}

impl Config {
    /// Default number of market commands per simulated second.
    pub const COMMANDS_PER_SECOND: u64 = 100;

    /// Returns the configuration of a run of `minutes` with 5 replicas and 100 commands per second.
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

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed of the run, with which you can repeat it.
    pub seed: u64,
    /// Simulated minutes with faults.
    pub minutes: u64,
    /// Number of replicas.
    pub nodes: usize,
    /// Counts of the run's events.
    pub counts: Counts,
    /// Root hash of the history at the end: equal for equal configurations.
    pub history: String,
    /// Digest of the state machines of all jobs and providers: equal for equal configurations.
    pub cores: String,
    /// The violated invariant, if any.
    pub failure: Option<Failure>,
}

/// A violated invariant and how to reproduce the violation.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The violated invariant.
    pub violation: Violation,
    /// The shortest schedule found that violates it, as indices into the seed's schedule.
    pub faults: Vec<usize>,
    /// The faults of this schedule.
    pub schedule: Vec<TimedFault>,
    /// Number of runs that shortening the schedule took.
    pub runs: u32,
    /// The command that reproduces it.
    pub replay: String,
}

/// Runs a simulation. If it violates an invariant, shortens its schedule.
#[must_use]
pub fn run(config: &Config) -> Report {
    let (mut report, violation) = run_once(config);
    if let Some(violation) = violation {
        report.failure = Some(schedule_shortening::shorten_schedule(config, violation));
    }
    report
}

/// Runs a simulation once and returns the violation that it finds, if any.
#[must_use]
pub fn find_violation(config: &Config) -> Option<Violation> {
    run_once(config).1
}

/// Runs a simulation once.
fn run_once(config: &Config) -> (Report, Option<Violation>) {
    let faults = select_faults(config);
    let mut world = World::new(config, faults);
    let violation = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        Some(Violation::Panicked {
            replica: 0, // a panic does not name its replica
            reason: panic_text(&*panic),
        })
    });
    let mut counts = world.counts.clone();
    counts.applied = world.checker.applied_commands();
    counts.elections = world.checker.election_count();
    counts.dealings = world.checker.dealings();
    let report = Report {
        seed: config.seed,
        minutes: config.minutes,
        nodes: config.nodes,
        counts,
        history: world::final_checks::fingerprint(&world).to_string(),
        cores: world.digest_of_cores().to_string(),
        failure: None,
    };
    (report, violation)
}

/// Returns the faults to apply.
fn select_faults(config: &Config) -> Vec<TimedFault> {
    let all = faults::draw_schedule(config.seed, config.nodes, config.simulated_ms());
    match &config.faults {
        None => all,
        Some(numbers) => numbers
            .iter()
            .filter_map(|number| all.get(*number).cloned())
            .collect(),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}
