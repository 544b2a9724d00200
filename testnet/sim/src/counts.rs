//! Counts the events of a run, such as crashes and settled leases, and finds events that never
//! happened in many runs: a simulator that never reaches a case does not test it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::payments::Dealings;

/// The number of seeds from which on every counted event must have happened at least once.
pub const COVERAGE_SEEDS_MIN: u64 = 200;

/// Counts of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Simulated milliseconds, including healing.
    pub simulated_ms: u64,
    /// Events handled.
    pub events: u64,
    /// Messages that reached a replica.
    pub messages: u64,
    /// Messages that a replica refused: damaged, or for another recipient.
    pub messages_dropped: u64,
    /// Market commands sent, counted once for each batch.
    pub commands: u64,
    /// Batches acknowledged.
    pub acknowledged: u64,
    /// Linearizable reads answered.
    pub reads: u64,
    /// Questions that one validator answered from its own state.
    pub glances: u64,
    /// Retries by clients.
    pub retries: u64,
    /// "Busy" answers to clients.
    pub busy: u64,
    /// Forged batches that the receiving replica refused.
    pub turned_away: u64,
    /// Batches that a replica's state refused, so that the log has none of them.
    pub foreseen: u64,
    /// Commands verified for their leader or for another validator, by all replicas.
    pub verified: u64,
    /// Forged entries and batches that replicas found and refused.
    pub forgeries: u64,
    /// Changes of members without an order that replicas found and refused.
    pub changes_refused: u64,
    /// States without a majority's signatures that replicas refused.
    pub states_refused: u64,
    /// Replicas that stopped alone because their memory went wrong.
    pub stopped_alone: u64,
    /// Operators' orders about validators.
    pub orders: u64,
    /// Commands and ticks applied.
    pub applied: u64,
    /// Terms that had a leader.
    pub elections: usize,
    /// Crashes of machines.
    pub crashes: u64,
    /// Processes killed while their machines continued.
    pub kills: u64,
    /// Starts of replicas.
    pub starts: u64,
    /// Starts refused because of a harmed disk.
    pub refused: u64,
    /// Replicas replaced by new ones.
    pub replaced: u64,
    /// Replicas that stopped at a new version of the rules, and went on with a later program.
    pub releases_installed: u64,
    /// Membership changes proposed.
    pub member_changes: u64,
    /// Membership changes proposed during a partition.
    pub member_changes_apart: u64,
    /// Times that a replica deleted and rebuilt its views.
    pub views_rebuilt: u64,
    /// States compared at checkpoints.
    pub checkpoints: u64,
    /// Snapshots taken.
    pub snapshots_taken: u64,
    /// Snapshots received from a leader.
    pub snapshots_installed: u64,
    /// Commands replayed by audits at the end.
    pub audited: u64,
    /// Attempts of market clients to ask a validator.
    pub questions_put: u64,
    /// Questions that validators answered.
    pub questions: u64,
    /// Questions and batches with a result.
    pub questions_answered: u64,
    /// Questions and batches that no validator answered.
    pub questions_unreached: u64,
    /// Batches with an unknown outcome.
    pub batches_uncertain: u64,
    /// Changes that watchers received.
    pub changes_heard: u64,
    /// Restarts of market clients' processes.
    pub clients_restarted: u64,
    /// Jobs that buyers began.
    pub jobs_begun: u64,
    /// Jobs that succeeded.
    pub jobs_finished: u64,
    /// Sessions among them; the parts of a session keep states.
    pub sessions_finished: u64,
    /// Jobs that failed with a reason.
    pub jobs_failed: u64,
    /// Jobs that their user cancelled.
    pub jobs_cancelled: u64,
    /// Jobs that a restarted buyer resumed.
    pub jobs_resumed: u64,
    /// Requests answered.
    pub answers: u64,
    /// Wrong answers among them, from liars without a comparison.
    pub answers_wrong: u64,
    /// Answers among them to requests that omitted inputs fed by earlier ones.
    pub answers_fed: u64,
    /// Pairs of results compared.
    pub compared: u64,
    /// Times that a buyer informed a provider of its refusal to pay.
    pub refused_aloud: u64,
    /// Times that a buyer asked a provider about the progress of its lease.
    pub legs_resumed: u64,
    /// Tensors that a buyer forwarded.
    pub handed_on: u64,
    /// Tensors that one provider offered to another.
    pub offers: u64,
    /// Parts run.
    pub parts_run: u64,
    /// Batches that a lying validator put into the log and denied.
    pub batches_denied: u64,
    /// Wrong values that liars returned for parts.
    pub lies: u64,
    /// Contents that providers received.
    pub contents_moved: u64,
    /// Buyers killed during a job.
    pub buyers_killed: u64,
    /// Killed buyers that never restarted.
    pub buyers_vanished: u64,
    /// False refusals of noted leases, by buyers that refuse everything.
    pub disputes_false: u64,
    /// Leases refused immediately after the trade.
    pub refused_at_once: u64,
    /// Leases whose buyer reported a start of work and sent nothing.
    pub leases_held: u64,
    /// Pauses of users in their sessions.
    pub pauses: u64,
    /// Finished sessions with one open request at a time.
    pub sessions_of_one: u64,
    /// Runs for which a provider stated more than its work.
    pub runs_overbilled: u64,
    /// Providers killed.
    pub providers_killed: u64,
    /// Providers started.
    pub providers_started: u64,
    /// Providers that stopped by themselves.
    pub providers_stopped: u64,
    /// Number of failed jobs by reason.
    pub reasons: BTreeMap<String, u64>,
    /// How often people used each feature of the market.
    #[serde(flatten)]
    pub dealings: Dealings,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// Sums of many runs' counts by name, including those of faults and reasons.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// How often each event happened.
    pub counts: BTreeMap<String, u64>,
    seeds: u64,
}

impl Sums {
    /// Adds a run.
    pub fn add(&mut self, counts: &Counts) {
        self.seeds += 1;
        self.add_all(&serde_json::to_value(counts).unwrap_or_default());
    }

    fn add_all(&mut self, counts: &serde_json::Value) {
        for (name, count) in counts.as_object().into_iter().flatten() {
            match count.as_u64() {
                Some(count) => *self.counts.entry(name.clone()).or_default() += count,
                None => self.add_all(count),
            }
        }
    }

    /// Returns the events that never happened although there were many runs: a simulator without an
    /// event proves nothing about it.
    #[must_use]
    pub fn missing_events(&self) -> Vec<&str> {
        let zeros = self.counts.iter().filter(|(_, count)| **count == 0);
        let told = zeros.filter(|_| self.seeds >= COVERAGE_SEEDS_MIN);
        told.map(|(name, _)| name.as_str()).collect()
    }
}
