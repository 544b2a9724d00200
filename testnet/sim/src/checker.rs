//! Checks the promises that the simulated validators must keep at every step, whatever goes wrong:
//! one leader in a term, the same log and state everywhere, no lost result, correct payments. The
//! world reports each step to the [`Checker`], which keeps the first [`Violation`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use serde::Serialize;
use souk_consensus::batch::BatchId;
use souk_consensus::replica::AppliedEntry;
use souk_consensus::{
    Checkpoint, Digest, History, Leaf, LogIndex, LogTime, Position, ReplicaId, StateMachine, Term,
    TreeHead,
};
use souk_market::{
    Acceptance, AccountKey, Batch, Event, Exchange, Genesis, LeaseId, Millis, Nonce, Refusal,
};
use souk_roles::validator::event::ReadMoment;

use super::machine::{BatchResult, DecodingCache, MarketBreach, SimExchange, hash_result};
use super::payments::{Dealings, Payments};
use super::state_comparison::ReplicaStates;
use super::tree_checks::{TileFolder, TreeChecks};

/// Tolerance of an answer's age in milliseconds: each core starts its ticks at a different time.
const AGE_SLACK_MS: u64 = 50;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "violation")]
pub enum Violation {
    /// Two replicas led in one term.
    TwoLeaders {
        /// The term with two leaders.
        term: u64,
        /// The first leader.
        first: u64,
        /// The second leader.
        second: u64,
    },
    /// Two replicas hold different entries with one index and term.
    LogsDiffer {
        /// The entry's index.
        index: u64,
        /// The entry's term.
        term: u64,
    },
    /// Two replicas have different histories at one index.
    HistoriesDiffer {
        /// The entry's index.
        index: u64,
        /// The replica's id.
        replica: u64,
    },
    /// A machine lacks a tile of the history that its replica filled, or has another.
    TileWrong {
        /// The replica's id.
        replica: u64,
        /// The tile's path.
        tile: String,
    },
    /// Two replicas have different states at one index.
    StatesDiffer {
        /// The entry's index.
        index: u64,
        /// The replica's id.
        replica: u64,
    },
    /// A replay from genesis gave another result for a batch.
    ReplayDiffers {
        /// The entry's index.
        index: u64,
    },
    /// A client received a result that no replica reached.
    AcknowledgedLost {
        /// The operation's number.
        operation: u64,
    },
    /// An operation saw a state older than one that finished before it began.
    NotLinearizable {
        /// The operation's number.
        operation: u64,
        /// The last entry that it saw.
        saw: u64,
        /// The last entry that it had to see.
        wanted: u64,
    },
    /// A validator answered from its own state and stated a wrong age.
    AgeUntrue {
        /// The operation's number.
        operation: u64,
        /// The stated and the expected age.
        reason: String,
    },
    /// The market broke a promise.
    Market {
        /// The replica's id.
        replica: u64,
        /// The broken promise.
        breach: String,
    },
    /// A replica refuses its own data although no fault harmed its disk.
    RefusesItself {
        /// The replica's id.
        replica: u64,
        /// The replica's error.
        reason: String,
    },
    /// A replica lost or contradicts a pledge to other replicas.
    PledgeBroken {
        /// The replica's id.
        replica: u64,
        /// The pledge that it lost or contradicts.
        reason: String,
    },
    /// A replica panicked.
    Panicked {
        /// The replica's id.
        replica: u64,
        /// The panic message.
        reason: String,
    },
    /// After all faults were healed, the group made no progress.
    NoProgress {
        /// Operations without an answer.
        waiting: u64,
        /// The state of the group.
        reason: String,
    },
    /// The log's time is later than a majority's clocks ever showed.
    TimeRanAway {
        /// The entry's index.
        index: u64,
        /// The difference in milliseconds.
        ahead_ms: u64,
    },
    /// A lease's payment violates the rules of payment.
    PaidWrong {
        /// The entry's index.
        index: u64,
        /// The payment and the amount due.
        reason: String,
    },
    /// A buyer's or a provider's core broke a promise.
    Job {
        /// The machine's number.
        actor: usize,
        /// The broken promise.
        reason: String,
    },
    /// A lease is open long after its time.
    LeaseOpen {
        /// The lease's id.
        lease: u64,
    },
    /// The group committed and applied a forged command.
    Forged {
        /// The entry's index.
        index: u64,
    },
    /// A replica accuses another that forged nothing.
    WronglyAccused {
        /// The accusing replica's id.
        replica: u64,
        /// The accused replica and the accusation.
        reason: String,
    },
    /// A batch was applied a second time.
    AppliedTwice {
        /// The entry's index.
        index: u64,
    },
    /// The log's time went back.
    TimeWentBack {
        /// The entry's index.
        index: u64,
    },
    /// After all faults were healed and all operations answered, a replica still has commands to
    /// propose.
    ProposalLeft {
        /// The replica's id.
        replica: u64,
        /// Number of such commands.
        commands: u64,
    },
    /// A replica's views are unreadable, lack a digest, or hold one that differs from the group's.
    ViewsDiffer {
        /// The replica's id.
        replica: u64,
        /// The difference or the error.
        reason: String,
    },
    /// A stopped replica's disk does not replay to the replica's state.
    AuditFails {
        /// The replica's id.
        replica: u64,
        /// The audit's error.
        reason: String,
    },
}

impl Violation {
    /// Returns the violation's kind, which must stay the same while a schedule is shortened.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TwoLeaders { .. } => "two_leaders",
            Self::LogsDiffer { .. } => "logs_differ",
            Self::HistoriesDiffer { .. } => "histories_differ",
            Self::TileWrong { .. } => "tile_wrong",
            Self::StatesDiffer { .. } => "states_differ",
            Self::ReplayDiffers { .. } => "replay_differs",
            Self::AcknowledgedLost { .. } => "acknowledged_lost",
            Self::NotLinearizable { .. } => "not_linearizable",
            Self::AgeUntrue { .. } => "age_untrue",
            Self::Market { .. } => "market",
            Self::RefusesItself { .. } => "refuses_itself",
            Self::PledgeBroken { .. } => "pledge_broken",
            Self::Panicked { .. } => "panicked",
            Self::NoProgress { .. } => "no_progress",
            Self::TimeRanAway { .. } => "time_ran_away",
            Self::PaidWrong { .. } => "paid_wrong",
            Self::Job { .. } => "job",
            Self::LeaseOpen { .. } => "lease_open",
            Self::Forged { .. } => "forged",
            Self::WronglyAccused { .. } => "wrongly_accused",
            Self::AppliedTwice { .. } => "applied_twice",
            Self::TimeWentBack { .. } => "time_went_back",
            Self::ProposalLeft { .. } => "proposal_left",
            Self::ViewsDiffer { .. } => "views_differ",
            Self::AuditFails { .. } => "audit_fails",
        }
    }
}

/// A change of a lease.
#[derive(Clone, Copy, Debug)]
pub enum LeaseChange {
    /// The lease was traded.
    Opened(LeaseId),
    /// The lease was closed and paid.
    Closed(LeaseId),
}

/// Everything that the checker has seen, and the first broken promise.
pub struct Checker {
    leaders: BTreeMap<Term, ReplicaId>,
    histories: BTreeMap<LogIndex, History>,
    /// Digests of history and state at each checkpoint, and of every byte of the state.
    states: BTreeMap<LogIndex, (Digest, Digest)>,
    wholes: ReplicaStates,
    /// A machine that never crashes, restores or forgets: the replay from genesis.
    shadow: SimExchange,
    shadow_index: LogIndex,
    shadow_history: History,
    tree: TreeChecks,
    payments: Payments,
    decoded: Rc<RefCell<DecodingCache>>,
    /// Ids of the applied batches.
    batches: BTreeSet<BatchId>,
    /// The log's time at each entry that moved it.
    times: BTreeMap<LogIndex, LogTime>,
    /// Changes of leases since the last call of `take_changes`.
    changes: Vec<LeaseChange>,
    /// Account, nonce and digest of the results of each batch that the log has, or that a replica
    /// refused from its state.
    carried: BTreeSet<(AccountKey, Nonce, Digest)>,
    /// Account and nonce of each batch that the log carried out.
    spent: BTreeSet<(AccountKey, Nonce)>,
    /// Digest of command and result of each applied command.
    results: BTreeSet<Digest>,
    acknowledged: Vec<(u64, Digest)>,
    completed: LogIndex,
    violation: Option<Violation>,
}

impl Checker {
    /// Creates a checker that has seen nothing.
    pub fn new(genesis: &Genesis, decoded: Rc<RefCell<DecodingCache>>) -> Self {
        Self {
            leaders: BTreeMap::new(),
            histories: BTreeMap::new(),
            states: BTreeMap::new(),
            wholes: ReplicaStates::default(),
            shadow: SimExchange::new(genesis),
            shadow_index: LogIndex(0),
            shadow_history: History::default(),
            tree: TreeChecks::default(),
            payments: Payments::new(genesis),
            decoded,
            batches: BTreeSet::new(),
            times: BTreeMap::new(),
            changes: Vec::new(),
            carried: BTreeSet::new(),
            spent: BTreeSet::new(),
            results: BTreeSet::new(),
            acknowledged: Vec::new(),
            completed: LogIndex(0),
            violation: None,
        }
    }

    /// Returns the first broken promise.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Records a broken promise.
    pub fn record_violation(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Records that a replica leads a term.
    pub fn on_leader(&mut self, term: Term, leader: ReplicaId) {
        let first = *self.leaders.entry(term).or_insert(leader);
        if first != leader {
            let (first, second) = (first.get(), leader.get());
            self.record_violation(Violation::TwoLeaders {
                term: term.0,
                first,
                second,
            });
        }
    }

    /// Returns the number of terms that had a leader.
    pub fn election_count(&self) -> usize {
        self.leaders.len()
    }

    /// Compares a replica's history at its applied index.
    pub fn on_history(&mut self, replica: ReplicaId, index: LogIndex, history: &History) {
        let histories = &mut self.histories;
        let first = histories.entry(index).or_insert_with(|| history.clone());
        if first != history {
            let (index, replica) = (index.0, replica.get());
            self.record_violation(Violation::HistoriesDiffer { index, replica });
        }
    }

    /// Compares the tree head that a replica would sign.
    pub fn on_head(&mut self, replica: ReplicaId, head: TreeHead) {
        if !self.tree.compare_head(head) {
            let (index, replica) = (head.index.0, replica.get());
            self.record_violation(Violation::HistoriesDiffer { index, replica });
        }
    }

    /// Checks that a machine has the tiles that its replica filled.
    pub fn check_tiles(&mut self, replica: ReplicaId, folder: &TileFolder, size: u64) {
        if let Some(tile) = self.tree.find_wrong_tile(folder, size) {
            let (replica, tile) = (replica.get(), tile.to_path());
            self.record_violation(Violation::TileWrong { replica, tile });
        }
    }

    /// Compares a replica's state at a checkpoint; `whole` is the full state, if the replica has
    /// not advanced beyond it.
    pub fn on_checkpoint(
        &mut self,
        replica: ReplicaId,
        checkpoint: &Checkpoint,
        whole: Option<&Exchange>,
    ) {
        let index = checkpoint.index;
        let state = (checkpoint.history, checkpoint.state);
        let same = *self.states.entry(index).or_insert(state) == state;
        let same_whole = whole.is_none_or(|whole| self.wholes.record_or_compare(index, whole));
        if !same || !same_whole {
            let (index, replica) = (index.0, replica.get());
            self.record_violation(Violation::StatesDiffer { index, replica });
        }
    }

    /// Returns the group's digests of history and state at a checkpoint, once a replica has reached
    /// it.
    pub fn state_at(&self, index: LogIndex) -> Option<(Digest, Digest)> {
        self.states.get(&index).copied()
    }

    /// Records an applied entry; the shadow applies it the first time. The log must not show a
    /// time after `latest`.
    pub fn on_applied(&mut self, applied: &AppliedEntry, latest: LogTime) {
        if applied.index <= self.shadow_index {
            return;
        }
        if applied.time > latest {
            let (index, ahead_ms) = (applied.index.0, applied.time.0 - latest.0);
            self.record_violation(Violation::TimeRanAway { index, ahead_ms });
        }
        let index = applied.index.0;
        if !self.batches.insert(applied.batch) {
            self.record_violation(Violation::AppliedTwice { index });
        }
        if applied.time < self.time_at(applied.index) {
            self.record_violation(Violation::TimeWentBack { index });
        }
        self.times.insert(applied.index, applied.time);
        self.shadow_index = applied.index;
        for (offset, (command, result)) in (0..).zip(&applied.results) {
            let at = Position {
                index: applied.index,
                offset,
            };
            let replayed = if command.is_empty() {
                self.shadow.tick(at, applied.time)
            } else {
                let decoding = self.decoded.borrow_mut().get(command);
                if !decoding.authentic {
                    self.record_violation(Violation::Forged { index });
                }
                self.shadow.apply_command(at, applied.time, &decoding)
            };
            self.check_payments(at, applied.time, command, &replayed);
            let leaf = Leaf {
                at,
                time: applied.time,
                command: Digest::for_content(command),
                result: Leaf::hash_result(&replayed, self.shadow.events_digest()),
            };
            self.shadow_history.push(leaf.hash(), &mut self.tree.tiles);
            self.results.insert(hash_result(command, &replayed));
            if replayed != *result {
                self.results.insert(hash_result(command, result));
                self.record_violation(Violation::ReplayDiffers {
                    index: applied.index.0,
                });
            }
        }
    }

    fn check_payments(&mut self, at: Position, time: LogTime, command: &Bytes, result: &[u8]) {
        let events = self.shadow.take_events();
        self.changes
            .extend(events.iter().filter_map(|event| match event {
                Event::Traded(trade) => Some(LeaseChange::Opened(trade.lease)),
                Event::LeaseClosed { lease, .. } => Some(LeaseChange::Closed(*lease)),
                _ => None,
            }));
        let decoding = self.decoded.borrow_mut().get(command);
        let done = match (postcard::from_bytes(result), &decoding.batch) {
            (Ok(BatchResult::Applied(results)), Ok(batch)) => Some((results, batch)),
            _ => None,
        };
        if let Some((results, batch)) = &done
            && !results.iter().any(is_not_admitted)
        {
            let batch = batch.batch();
            self.spent.insert((batch.account, batch.nonce));
        }
        let done = done.iter().flat_map(|(results, batch)| {
            let commands = &batch.batch().commands;
            commands.iter().zip(results)
        });
        let done: Vec<_> = done.collect();
        if let Ok(batch) = &decoding.batch {
            self.on_batch_result(batch.batch(), result);
        }
        let wrong = self.payments.apply_batch(Millis(time.0), &done, &events);
        if let Some(reason) = wrong {
            let index = at.index.0;
            self.record_violation(Violation::PaidWrong { index, reason });
        }
    }

    /// Returns how often people used each feature.
    pub fn dealings(&self) -> Dealings {
        self.payments.dealings.clone()
    }

    /// Returns the changes of leases since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<LeaseChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the log's time at an entry.
    pub fn time_at(&self, index: LogIndex) -> LogTime {
        let before = self.times.range(..=index).next_back();
        before.map_or(LogTime(0), |(_, time)| *time)
    }

    /// Records the result of a batch, in the log or of a replica that refused it from its state.
    pub fn on_batch_result(&mut self, batch: &Batch, result: &[u8]) {
        let said = digest_of(result);
        self.carried.insert((batch.account, batch.nonce, said));
    }

    /// Returns whether a batch of an account with one of these nonces had these results.
    pub fn has_carried(
        &self,
        account: AccountKey,
        nonces: &[Nonce],
        results: Vec<Result<Acceptance, Refusal>>,
    ) -> bool {
        let result = BatchResult::Applied(results);
        let bytes = postcard::to_allocvec(&result).expect("plain data in memory always encodes");
        let said = digest_of(&bytes);
        let mut nonces = nonces.iter();
        nonces.any(|nonce| self.carried.contains(&(account, *nonce, said)))
    }

    /// Returns how many batches of an account with these nonces the log carried out.
    pub fn count_spent(&self, account: AccountKey, nonces: &[Nonce]) -> usize {
        let spent = |nonce: &&Nonce| self.spent.contains(&(account, **nonce));
        nonces.iter().filter(spent).count()
    }

    /// Checks the age that a validator states for an answer from its own state.
    pub fn on_glance(&mut self, operation: u64, expected: ReadMoment, said: ReadMoment) {
        let is_same = (said.applied, said.time) == (expected.applied, expected.time);
        let is_true = said.age_ms.abs_diff(expected.age_ms) <= AGE_SLACK_MS;
        if !is_same || !is_true {
            let reason = format!("{said:?} instead of {expected:?}");
            self.record_violation(Violation::AgeUntrue { operation, reason });
        }
    }

    /// Returns the entry that an operation beginning now must see.
    pub fn required_index(&self) -> LogIndex {
        self.completed
    }

    /// Records that a client received the result of its command.
    pub fn on_acknowledged(&mut self, operation: u64, leaf: Digest) {
        self.acknowledged.push((operation, leaf));
    }

    /// Checks an operation that ended after seeing the state at `index`.
    pub fn on_completed(&mut self, operation: u64, wanted: LogIndex, index: LogIndex) {
        if index < wanted {
            let (saw, wanted) = (index.0, wanted.0);
            self.record_violation(Violation::NotLinearizable {
                operation,
                saw,
                wanted,
            });
        }
        self.completed = self.completed.max(index);
    }

    /// Records a replica's market breach.
    pub fn on_breach(&mut self, replica: ReplicaId, breach: &MarketBreach) {
        let (replica, breach) = (replica.get(), format!("{breach:?}"));
        self.record_violation(Violation::Market { replica, breach });
    }

    /// Checks that every acknowledged command was applied with the acknowledged result.
    pub fn check_acknowledged(&mut self) {
        let lost = self
            .acknowledged
            .iter()
            .find(|(_, leaf)| !self.results.contains(leaf));
        if let Some((operation, _)) = lost.copied() {
            self.record_violation(Violation::AcknowledgedLost { operation });
        }
    }

    /// Returns the shadow's last index and its final state.
    pub fn shadow_state(&self) -> (LogIndex, &SimExchange) {
        (self.shadow_index, &self.shadow)
    }

    /// Returns whether every lease is closed.
    pub fn is_all_closed(&self) -> bool {
        self.shadow
            .exchange()
            .leases()
            .all(souk_market::Lease::is_closed)
    }

    /// Returns the number of applied commands, including ticks.
    pub fn applied_commands(&self) -> u64 {
        self.shadow_history.size()
    }

    /// Returns the root of the history of the replay from genesis, which identifies the whole run.
    pub fn history_root(&self) -> Digest {
        self.shadow_history.root()
    }
}

fn digest_of(result: &[u8]) -> Digest {
    Digest(*blake3::hash(result).as_bytes())
}

/// Returns whether a batch with this result did not even spend its nonce.
fn is_not_admitted(result: &Result<Acceptance, Refusal>) -> bool {
    matches!(
        result,
        Err(Refusal::NonceUsed { .. }
            | Refusal::NonceOld { .. }
            | Refusal::BatchExpired { .. }
            | Refusal::BatchFar { .. })
    )
}
