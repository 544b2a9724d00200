//! What must hold at every step, whatever went wrong.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use serde::Serialize;
use souk_consensus::batch::BatchId;
use souk_consensus::replica::AppliedEntry;
use souk_consensus::{
    Checkpoint, Digest, History, LogIndex, LogTime, Position, ReplicaId, StateMachine, Term,
};
use souk_market::{
    Acceptance, AccountKey, Event, Exchange, Genesis, LeaseId, Millis, Nonce, Refusal,
};
use souk_roles::validator::event::ReadMoment;

use super::machine::{BatchResult, DecodingCache, MarketBreach, SimExchange};
use super::payments::{Dealings, Payments};
use super::wholes::Wholes;

/// What the age of an answer may be off by: each core begins with ticks of its own.
const AGE_SLACK_MS: u64 = 50;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "violation")]
pub enum Violation {
    /// Two leaders in one term.
    TwoLeaders {
        /// The term.
        term: u64,
        /// The first leader.
        first: u64,
        /// The other one.
        second: u64,
    },
    /// Two replicas hold different entries under one index and term.
    LogsDiffer {
        /// The entry.
        index: u64,
        /// The term.
        term: u64,
    },
    /// Two replicas came to different histories at one index.
    HistoriesDiffer {
        /// The entry.
        index: u64,
        /// The replica.
        replica: u64,
    },
    /// Two replicas came to different states at one index.
    StatesDiffer {
        /// The entry.
        index: u64,
        /// The replica.
        replica: u64,
    },
    /// Replayed from genesis, a batch gave another result.
    ReplayDiffers {
        /// The entry.
        index: u64,
    },
    /// A client was told of a result that no replica came to.
    AcknowledgedLost {
        /// The operation, by number.
        operation: u64,
    },
    /// An operation saw a state older than one finished before it began.
    NotLinearizable {
        /// The operation, by number.
        operation: u64,
        /// The entry it saw up to.
        saw: u64,
        /// The entry it had to see.
        wanted: u64,
    },
    /// An answer from what one validator had said something else of its age than is true.
    AgeUntrue {
        /// The operation, by number.
        operation: u64,
        /// What it said.
        reason: String,
    },
    /// The market broke a promise.
    Market {
        /// The replica.
        replica: u64,
        /// What was broken.
        breach: String,
    },
    /// A replica refuses what it wrote itself, although its disk was not harmed.
    RefusesItself {
        /// The replica.
        replica: u64,
        /// What it said.
        reason: String,
    },
    /// A replica does not know any more what it told others, or contradicts it.
    PledgeBroken {
        /// The replica.
        replica: u64,
        /// What it told.
        reason: String,
    },
    /// A replica panicked.
    Panicked {
        /// The replica.
        replica: u64,
        /// What it said.
        reason: String,
    },
    /// After everything was healed, the group did not go on.
    NoProgress {
        /// Operations without an answer.
        waiting: u64,
        /// What it said.
        reason: String,
    },
    /// Time in the log is later than a majority's clocks ever showed.
    TimeRanAway {
        /// The entry.
        index: u64,
        /// By how many milliseconds.
        ahead_ms: u64,
    },
    /// A lease paid otherwise than the rules of payment say.
    PaidWrong {
        /// The entry.
        index: u64,
        /// What was paid and what was due.
        reason: String,
    },
    /// A promise to a buyer or a provider.
    Job {
        /// The machine, by number.
        actor: usize,
        /// What was broken.
        reason: String,
    },
    /// A lease is open although its time is long over.
    LeaseOpen {
        /// The lease.
        lease: u64,
    },
    /// A forged command was committed and applied.
    Forged {
        /// The entry.
        index: u64,
    },
    /// A replica accuses one that forged nothing.
    WronglyAccused {
        /// Who accuses.
        replica: u64,
        /// Whom, of what.
        reason: String,
    },
    /// A batch was applied a second time.
    AppliedTwice {
        /// The entry.
        index: u64,
    },
    /// Time in the log went back.
    TimeWentBack {
        /// The entry.
        index: u64,
    },
    /// After everything was healed and answered, a replica still keeps commands to propose.
    ProposalLeft {
        /// The replica.
        replica: u64,
        /// How many.
        commands: u64,
    },
    /// A replica's views hold a digest that is not the group's, lack one, or can't be read.
    ViewsDiffer {
        /// The replica.
        replica: u64,
        /// What is wrong.
        reason: String,
    },
    /// A stopped replica's disk does not replay to what it wrote.
    AuditFails {
        /// The replica.
        replica: u64,
        /// What it said.
        reason: String,
    },
}

impl Violation {
    /// Its kind, which must stay the same while a schedule is shortened.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TwoLeaders { .. } => "two_leaders",
            Self::LogsDiffer { .. } => "logs_differ",
            Self::HistoriesDiffer { .. } => "histories_differ",
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

/// What became of a lease.
#[derive(Clone, Copy, Debug)]
pub enum LeaseChange {
    /// It was traded.
    Opened(LeaseId),
    /// It was closed and paid.
    Closed(LeaseId),
}

/// Everything seen so far, and the first promise broken.
pub struct Checker {
    leaders: BTreeMap<Term, ReplicaId>,
    histories: BTreeMap<LogIndex, History>,
    /// Digests of history and state at each checkpoint, and of every byte of the state.
    states: BTreeMap<LogIndex, (Digest, Digest)>,
    wholes: Wholes,
    /// A machine that never crashed, restored or forgot: the replay from genesis.
    shadow: SimExchange,
    shadow_index: LogIndex,
    shadow_history: History,
    payments: Payments,
    decoded: Rc<RefCell<DecodingCache>>,
    /// The batches applied, by name.
    batches: BTreeSet<BatchId>,
    /// Time in the log, as of each entry that moved it.
    times: BTreeMap<LogIndex, LogTime>,
    /// What became of leases since that was last asked.
    changes: Vec<LeaseChange>,
    /// Account, nonce and results of each batch applied.
    carried: BTreeSet<(AccountKey, Nonce, Digest)>,
    /// Digest of command and result, for each command applied.
    results: BTreeSet<Digest>,
    acknowledged: Vec<(u64, Digest)>,
    completed: LogIndex,
    violation: Option<Violation>,
}

impl Checker {
    /// Nothing seen yet.
    pub fn new(genesis: &Genesis, decoded: Rc<RefCell<DecodingCache>>) -> Self {
        Self {
            leaders: BTreeMap::new(),
            histories: BTreeMap::new(),
            states: BTreeMap::new(),
            wholes: Wholes::default(),
            shadow: SimExchange::new(genesis, decoded.clone()),
            shadow_index: LogIndex(0),
            shadow_history: History::default(),
            payments: Payments::new(genesis),
            decoded,
            batches: BTreeSet::new(),
            times: BTreeMap::new(),
            changes: Vec::new(),
            carried: BTreeSet::new(),
            results: BTreeSet::new(),
            acknowledged: Vec::new(),
            completed: LogIndex(0),
            violation: None,
        }
    }

    /// The first promise broken.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Takes note of a promise broken.
    pub fn report(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// A replica leads.
    pub fn on_leader(&mut self, term: Term, leader: ReplicaId) {
        let first = *self.leaders.entry(term).or_insert(leader);
        if first != leader {
            let (first, second) = (first.get(), leader.get());
            self.report(Violation::TwoLeaders {
                term: term.0,
                first,
                second,
            });
        }
    }

    /// How many terms had a leader.
    pub fn elections(&self) -> usize {
        self.leaders.len()
    }

    /// A replica's history at the index it has applied.
    pub fn on_history(&mut self, replica: ReplicaId, index: LogIndex, history: &History) {
        let histories = &mut self.histories;
        let first = histories.entry(index).or_insert_with(|| history.clone());
        if first != history {
            let (index, replica) = (index.0, replica.get());
            self.report(Violation::HistoriesDiffer { index, replica });
        }
    }

    /// A replica's state at a checkpoint; `whole` is all of it, where it has not gone on from
    /// there.
    pub fn on_checkpoint(
        &mut self,
        replica: ReplicaId,
        checkpoint: &Checkpoint,
        whole: Option<&Exchange>,
    ) {
        let index = checkpoint.index;
        let state = (checkpoint.history, checkpoint.state);
        let same = *self.states.entry(index).or_insert(state) == state;
        let same_whole = whole.is_none_or(|whole| self.wholes.agree(index, whole));
        if !same || !same_whole {
            let (index, replica) = (index.0, replica.get());
            self.report(Violation::StatesDiffer { index, replica });
        }
    }

    /// The group's digests of history and state at a checkpoint, once one replica has reached it.
    pub fn state_at(&self, index: LogIndex) -> Option<(Digest, Digest)> {
        self.states.get(&index).copied()
    }

    /// An entry was applied: the first time, the shadow applies it too. `latest` is the latest time
    /// the log may show.
    pub fn on_applied(&mut self, applied: &AppliedEntry, latest: LogTime) {
        if applied.index <= self.shadow_index {
            return;
        }
        if applied.time > latest {
            let (index, ahead_ms) = (applied.index.0, applied.time.0 - latest.0);
            self.report(Violation::TimeRanAway { index, ahead_ms });
        }
        let index = applied.index.0;
        if !self.batches.insert(applied.batch) {
            self.report(Violation::AppliedTwice { index });
        }
        if applied.time < self.time_at(applied.index) {
            self.report(Violation::TimeWentBack { index });
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
                    self.report(Violation::Forged { index });
                }
                self.shadow.apply(at, applied.time, &decoding)
            };
            self.check_payments(at, applied.time, command, &replayed);
            let leaf = match command.is_empty() {
                true => History::leaf(command, &replayed),
                false => self.shadow.leaf(at, command, &replayed),
            };
            self.shadow_history.push(leaf);
            self.results.insert(leaf);
            if replayed != *result {
                self.results.insert(History::leaf(command, result));
                self.report(Violation::ReplayDiffers {
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
        let done = done.iter().flat_map(|(results, batch)| {
            let commands = &batch.batch().commands;
            commands.iter().zip(results)
        });
        let done: Vec<_> = done.collect();
        if let Ok(batch) = &decoding.batch {
            let batch = batch.batch();
            let said = digest_of(result);
            self.carried.insert((batch.account, batch.nonce, said));
        }
        let wrong = self.payments.apply(Millis(time.0), &done, &events);
        if let Some(reason) = wrong {
            let index = at.index.0;
            self.report(Violation::PaidWrong { index, reason });
        }
    }

    /// How often people did what.
    pub fn dealings(&self) -> Dealings {
        self.payments.dealings.clone()
    }

    /// What became of leases since this was last asked, in order.
    pub fn take_changes(&mut self) -> Vec<LeaseChange> {
        std::mem::take(&mut self.changes)
    }

    /// Time in the log as of an entry.
    pub fn time_at(&self, index: LogIndex) -> LogTime {
        let before = self.times.range(..=index).next_back();
        before.map_or(LogTime(0), |(_, time)| *time)
    }

    /// Whether a batch of an account under one of these nonces came to these results.
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

    /// A validator answered from what it had, and said how fresh that is.
    pub fn on_glance(&mut self, operation: u64, expected: ReadMoment, said: ReadMoment) {
        let is_same = (said.applied, said.time) == (expected.applied, expected.time);
        let is_true = said.age_ms.abs_diff(expected.age_ms) <= AGE_SLACK_MS;
        if !is_same || !is_true {
            let reason = format!("{said:?} instead of {expected:?}");
            self.report(Violation::AgeUntrue { operation, reason });
        }
    }

    /// What an operation that begins now must see.
    pub fn begin(&self) -> LogIndex {
        self.completed
    }

    /// A command's client was told its result.
    pub fn on_acknowledged(&mut self, operation: u64, leaf: Digest) {
        self.acknowledged.push((operation, leaf));
    }

    /// An operation ended having seen the state at `index`.
    pub fn on_completed(&mut self, operation: u64, wanted: LogIndex, index: LogIndex) {
        if index < wanted {
            let (saw, wanted) = (index.0, wanted.0);
            self.report(Violation::NotLinearizable {
                operation,
                saw,
                wanted,
            });
        }
        self.completed = self.completed.max(index);
    }

    /// A replica's market was looked at.
    pub fn on_breach(&mut self, replica: ReplicaId, breach: &MarketBreach) {
        let (replica, breach) = (replica.get(), format!("{breach:?}"));
        self.report(Violation::Market { replica, breach });
    }

    /// Everything acknowledged was applied with that result.
    pub fn check_acknowledged(&mut self) {
        let lost = self
            .acknowledged
            .iter()
            .find(|(_, leaf)| !self.results.contains(leaf));
        if let Some((operation, _)) = lost.copied() {
            self.report(Violation::AcknowledgedLost { operation });
        }
    }

    /// The end: what the shadow came to.
    pub fn shadow(&self) -> (LogIndex, &SimExchange) {
        (self.shadow_index, &self.shadow)
    }

    /// Whether every lease is closed.
    pub fn is_all_closed(&self) -> bool {
        self.shadow
            .exchange()
            .leases()
            .all(souk_market::Lease::is_closed)
    }

    /// How many commands were applied, ticks included.
    pub fn applied(&self) -> u64 {
        self.shadow_history.size()
    }

    /// Root of the history of the replay from genesis: it names the whole run.
    pub fn root(&self) -> Digest {
        self.shadow_history.root()
    }
}

fn digest_of(result: &[u8]) -> Digest {
    Digest(*blake3::hash(result).as_bytes())
}
