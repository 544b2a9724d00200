//! The simulator: production replicas, log and exchange in one thread, everything from one seed.
//!
//! Network, disks, clocks, scheduling and people are simulated; nothing else is. A run first draws
//! its schedule of faults, lives through it, heals, and looks at everything once more. A schedule
//! that breaks a promise is shortened as far as it goes while the same promise stays broken.

mod bugs;
mod checker;
mod clients;
mod disk;
mod faulting;
mod faults;
mod machine;
mod network;
mod node;
mod payments;
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

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

pub use bugs::Bug;
pub use checker::Violation;
pub use faults::{Boundary, Fault, Timed};
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
    /// A deliberate mistake, to see whether it is found.
    pub bug: Option<Bug>,
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
            bug: None,
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

/// What a run consisted of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Simulated milliseconds, healing included.
    pub simulated_ms: u64,
    /// Events handled.
    pub events: u64,
    /// Messages that reached a replica.
    pub messages: u64,
    /// Messages a replica refused: damaged, or not for it.
    pub messages_dropped: u64,
    /// Market commands sent, once for each batch.
    pub commands: u64,
    /// Batches acknowledged.
    pub acknowledged: u64,
    /// Linearizable reads answered.
    pub reads: u64,
    /// Times a client tried again.
    pub retries: u64,
    /// Times a client was told "busy".
    pub busy: u64,
    /// Forged batches refused by the replica that was asked to take them in.
    pub turned_away: u64,
    /// Commands verified for their leader or for another validator, by all replicas.
    pub verified: u64,
    /// Forged entries and batches that were found and refused.
    pub forgeries: u64,
    /// Commands and ticks applied.
    pub applied: u64,
    /// Terms that had a leader.
    pub elections: usize,
    /// Crashes.
    pub crashes: u64,
    /// Processes killed, whose machines went on.
    pub kills: u64,
    /// Starts.
    pub starts: u64,
    /// Starts refused because of a harmed disk.
    pub refused: u64,
    /// Replicas replaced by new ones.
    pub replaced: u64,
    /// Membership changes proposed.
    pub member_changes: u64,
    /// Of them, while some replicas did not hear others.
    pub member_changes_apart: u64,
    /// Times a replica deleted its views and began them anew.
    pub views_rebuilt: u64,
    /// States compared at checkpoints.
    pub checkpoints: u64,
    /// Snapshots taken.
    pub snapshots_taken: u64,
    /// Snapshots received from a leader.
    pub snapshots_installed: u64,
    /// Commands replayed by audits at the end.
    pub audited: u64,
    /// Questions that market clients put to validators, each time they were put.
    pub questions_put: u64,
    /// Questions that validators answered.
    pub questions: u64,
    /// Questions and batches that came to a result.
    pub questions_answered: u64,
    /// Those that no validator answered.
    pub questions_unreached: u64,
    /// Batches of which nobody knows whether they were carried out.
    pub batches_uncertain: u64,
    /// Changes that watchers heard of.
    pub changes_heard: u64,
    /// Market clients whose process ended and started again.
    pub clients_restarted: u64,
    /// Jobs that buyers began.
    pub jobs_begun: u64,
    /// Jobs done.
    pub jobs_finished: u64,
    /// Jobs that ended with a reason.
    pub jobs_failed: u64,
    /// Jobs stopped by their user.
    pub jobs_cancelled: u64,
    /// Jobs that another life of their buyer went on with.
    pub jobs_resumed: u64,
    /// Requests answered.
    pub answers: u64,
    /// Of them, by liars whom nobody compared or who lied alike.
    pub answers_wrong: u64,
    /// Pairs of results compared.
    pub compared: u64,
    /// Times a buyer told a provider that it does not pay.
    pub refused_aloud: u64,
    /// Times a buyer asked a provider how its lease went.
    pub legs_resumed: u64,
    /// Tensors that a buyer handed on.
    pub handed_on: u64,
    /// Tensors offered by one provider to another.
    pub offers: u64,
    /// Parts run.
    pub parts_run: u64,
    /// Parts that a liar gave wrong.
    pub lies: u64,
    /// Contents that came to providers.
    pub contents_moved: u64,
    /// Buyers killed at work.
    pub buyers_killed: u64,
    /// Providers killed.
    pub providers_killed: u64,
    /// Providers started.
    pub providers_started: u64,
    /// Providers that stopped by themselves.
    pub providers_stopped: u64,
    /// Why jobs failed.
    pub reasons: BTreeMap<String, u64>,
    /// How often people did what.
    #[serde(flatten)]
    pub dealings: Dealings,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
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
    pub schedule: Vec<Timed>,
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
        failure: None,
    };
    (report, violation)
}

/// The faults a run lives through.
fn chosen(config: &Config) -> Vec<Timed> {
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
