//! What a run consisted of, and what never happened in many of them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::payments::Dealings;

/// So many seeds must show everything that is counted.
pub const SEEDS_TELLING: u64 = 200;

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
    /// Questions answered from what one validator had.
    pub glances: u64,
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
    /// Changes of members that nobody ordered, found and refused.
    pub changes_refused: u64,
    /// States for which no majority vouched, refused.
    pub states_refused: u64,
    /// Replicas whose memory went wrong and that stopped, each alone.
    pub stopped_alone: u64,
    /// Orders about validators that operators gave.
    pub orders: u64,
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
    /// Of them sessions, whose parts keep states.
    pub sessions_finished: u64,
    /// Jobs that ended with a reason.
    pub jobs_failed: u64,
    /// Jobs stopped by their user.
    pub jobs_cancelled: u64,
    /// Jobs that another life of their buyer went on with.
    pub jobs_resumed: u64,
    /// Requests answered.
    pub answers: u64,
    /// Of them wrong, by liars whom nobody compared.
    pub answers_wrong: u64,
    /// Of them to requests that left out what they were fed by the ones before.
    pub answers_fed: u64,
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
    /// Of them, those that nobody started again.
    pub buyers_vanished: u64,
    /// Noted leases refused by buyers that refuse all.
    pub disputes_false: u64,
    /// Leases refused as soon as they were there.
    pub refused_at_once: u64,
    /// Leases whose buyer said that work began, and sent nothing.
    pub leases_held: u64,
    /// Pauses of users in their sessions.
    pub pauses: u64,
    /// Sessions done of which one request was open at a time.
    pub sessions_of_one: u64,
    /// Runs of which more was stated than was worked.
    pub runs_overbilled: u64,
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

/// Counts of many runs, by name, those of faults and of reasons too.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// How often each thing happened.
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

    /// What did not happen in any of the runs although there were many: a simulator that does not
    /// play it proves nothing about it.
    #[must_use]
    pub fn never(&self) -> Vec<&str> {
        let zeros = self.counts.iter().filter(|(_, count)| **count == 0);
        let told = zeros.filter(|_| self.seeds >= SEEDS_TELLING);
        told.map(|(name, _)| name.as_str()).collect()
    }
}
