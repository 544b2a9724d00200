//! The validator: in which order what happens around its replica takes effect.
//!
//! What came together is taken in by [`ValidatorCore::apply`]; then [`ValidatorCore::next`] says
//! one by one what is to be done, until nothing is. It does so in rounds:
//!
//! 1. what may leave at once is sent: a leader's entries go out while its own disk still writes;
//! 2. what others took in is given out to be verified, and what is to be durable goes to the disk;
//! 3. once it is durable it is acknowledged, and only then applied;
//! 4. who asked is told, then whoever follows the log;
//! 5. a snapshot that is due is made durable, and the log behind it given up.
//!
//! Other cores give all that is to be done at once. This one is asked for each action, since the
//! next one may take long to come to: an acknowledgement does not wait until the state machine has
//! applied what the others wait for. So a round costs no list, and a command none of its own.

use std::collections::{BTreeMap, VecDeque};

use souk_consensus::replica::{Forgery, Outcome, ReadTicket, StepError, Work};
use souk_consensus::{LogTime, Replica, Verdict};

use super::action::{Action, News, ReplicaFailure, Report, Response};
use super::event::{Caller, Consistency, Event, ReadMoment};
use super::proposals::PendingProposals;
use super::questions::AnsweringMachine;
use crate::clock::{Micros, Now};

/// Ticks made up for after a validator was held up; more would only start needless elections.
const LATE_TICKS_MAX: u32 = 4;

/// How long a leader waits for more commands before it sends messages that only say what is
/// committed: some round trips of a client that answers at once.
pub const COMMIT_PAUSE: Micros = Micros::millis(2);

/// How far a round is.
enum Stage {
    /// None is under way.
    Idle,
    /// What it brought is on its way to the disk.
    Persisting,
    /// It is durable, and acknowledged.
    Durable(Box<Work>),
    /// A snapshot is on its way to the disk.
    Keeping,
    /// The replica can't go on.
    Over,
}

/// See the module.
pub struct ValidatorCore<M: AnsweringMachine> {
    replica: Replica<M>,
    stage: Stage,
    /// To be done, in order.
    actions: VecDeque<Action<M>>,
    proposals: PendingProposals,
    reads: BTreeMap<ReadTicket, (Caller, M::Question)>,
    /// Those that came while a round was on its way to the disk.
    verdicts: Vec<Verdict<M::Command>>,
    /// The length of a tick, and when the next one is due.
    tick: Micros,
    next_tick: Micros,
    /// When the others are told what is committed, if nothing happens before.
    tells_at: Option<Micros>,
    /// When a leader was last heard, or this one last led.
    heard_at: Micros,
    now: Now,
}

impl<M: AnsweringMachine> ValidatorCore<M> {
    /// A validator whose replica was started from what its disk holds. Of each moment, [`Now::log`]
    /// is what its own clock shows.
    pub fn new(replica: Replica<M>, tick: Micros, now: Now) -> Self {
        assert!(tick > Micros(0), "a tick takes time");
        Self {
            replica,
            stage: Stage::Idle,
            actions: VecDeque::new(),
            proposals: PendingProposals::default(),
            reads: BTreeMap::new(),
            verdicts: Vec::new(),
            tick,
            next_tick: now.tick.plus(tick),
            tells_at: None,
            heard_at: now.tick,
            now,
        }
    }

    /// The replica, to look at.
    pub fn replica(&self) -> &Replica<M> {
        &self.replica
    }

    /// Whether a round is under way.
    pub fn is_in_round(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Over) || !self.actions.is_empty()
    }

    /// When it wants to be woken.
    pub fn wakes_at(&self) -> Option<Micros> {
        let is_over = matches!(self.stage, Stage::Over);
        let earlier = self
            .tells_at
            .map_or(self.next_tick, |at| at.min(self.next_tick));
        (!is_over).then_some(earlier)
    }

    /// Takes in what happened. What came together is taken in before the core is asked what is to
    /// be done: it shares one sync.
    pub fn apply(&mut self, now: Now, event: Event<M>) {
        self.go_to(now);
        match (&self.stage, event) {
            (Stage::Over, _) => {}
            (Stage::Persisting | Stage::Durable(_), Event::Verdict(verdict)) => {
                self.verdicts.push(verdict);
            }
            (_, Event::Verdict(verdict)) => self.on_verdict(verdict),
            (Stage::Persisting, Event::Persisted(work)) => self.on_persisted(work),
            (
                Stage::Keeping,
                Event::Kept {
                    snapshot,
                    keep_from,
                },
            ) => {
                self.replica.compact(*snapshot, keep_from);
                self.actions.push_back(Action::SyncViews);
                self.stage = Stage::Idle;
            }
            (stage, event) => {
                let is_idle = matches!(stage, Stage::Idle);
                assert!(is_idle, "the disk answers before anything else happens");
                self.on_event(event);
            }
        }
    }

    /// The next thing to be done; none where it waits for something to happen.
    pub fn next(&mut self, now: Now) -> Option<Action<M>> {
        self.go_to(now);
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            let goes_on = match std::mem::replace(&mut self.stage, Stage::Idle) {
                Stage::Idle => self.begin_round(),
                Stage::Durable(work) => {
                    self.conclude_round(*work);
                    true
                }
                waiting => {
                    self.stage = waiting;
                    false
                }
            };
            if !goes_on {
                return None;
            }
        }
    }

    fn go_to(&mut self, now: Now) {
        assert!(now.tick >= self.now.tick, "time does not go back");
        if self.replica.is_leader() {
            // Until then; whether it still leads after a long sleep it finds out later.
            self.heard_at = self.now.tick;
        }
        self.now = now;
    }

    /// What this machine's own clock shows.
    fn clock(&self) -> LogTime {
        LogTime(self.now.log.0)
    }

    fn on_event(&mut self, event: Event<M>) {
        if let Event::Woke = event {
            if self.tells_at.is_some_and(|at| at <= self.now.tick) {
                self.tells_at = None;
                self.replica.tell_commit();
            }
            return;
        }
        // The pause begins anew: what comes of this says the same.
        self.tells_at = None;
        match event {
            Event::Peer { from, bytes } => {
                match self.replica.step(self.clock(), from, bytes) {
                    Ok(()) => {}
                    Err(StepError::Unordered(accusation)) => {
                        self.report(Report::Forged(Forgery::Leader(accusation)));
                    }
                    Err(error) => self.report(Report::Dropped { from, error }),
                }
                if self.replica.leader() == Some(from) {
                    self.heard_at = self.now.tick;
                }
            }
            Event::Propose { caller, commands } => {
                let count = commands.len();
                match self.replica.propose_all(commands) {
                    Ok(first) => self.proposals.insert(first, count, caller),
                    Err(refused) => self.respond(caller, Response::Refused(refused)),
                }
            }
            Event::Ask {
                caller,
                consistency,
                question,
            } => self.on_question(caller, consistency, question),
            Event::Unreachable(peer) => self.replica.on_unreachable(peer),
            Event::Members { caller, changes } => {
                let changed = self.replica.change_members(&changes);
                self.respond(caller, Response::Members(changed));
            }
            Event::Transfer(to) => self.replica.transfer_leader(to),
            Event::Verdict(_) | Event::Persisted(_) | Event::Kept { .. } | Event::Woke => {
                panic!("nothing is durable that was not to be");
            }
        }
    }

    fn on_question(&mut self, caller: Caller, consistency: Consistency, question: M::Question) {
        match consistency {
            Consistency::Stale => self.answer(caller, question),
            Consistency::Linearizable => match self.replica.read() {
                Ok(ticket) => {
                    let before = self.reads.insert(ticket, (caller, question));
                    assert!(before.is_none(), "a ticket is given once");
                }
                Err(busy) => self.respond(caller, Response::Refused(busy.into())),
            },
        }
    }

    fn on_verdict(&mut self, verdict: Verdict<M::Command>) {
        if let Err(forgery) = self.replica.on_verified(self.clock(), verdict) {
            self.report(Report::Forged(forgery));
        }
    }

    fn on_persisted(&mut self, mut work: Box<Work>) {
        self.tells_at = None;
        let acknowledged = std::mem::take(&mut work.send_after);
        self.actions.push_back(Action::Send(acknowledged));
        self.stage = Stage::Durable(work);
    }

    /// False if there is nothing to do.
    fn begin_round(&mut self) -> bool {
        self.make_up_for_ticks();
        let Some(mut work) = self.replica.take_work(self.clock()) else {
            return self.rest();
        };
        let first = std::mem::take(&mut work.send_first);
        self.actions.push_back(Action::Send(first));
        if !work.checks.is_empty() {
            let checks = std::mem::take(&mut work.checks);
            self.actions.push_back(Action::Check(checks));
        }
        let work = Box::new(work);
        if is_for_disk(&work) {
            self.stage = Stage::Persisting;
            self.actions.push_back(Action::Persist(work));
        } else {
            self.on_persisted(work);
        }
        true
    }

    /// Ticks for the time that has passed.
    fn make_up_for_ticks(&mut self) {
        for _ in 0..LATE_TICKS_MAX {
            if self.now.tick < self.next_tick {
                return;
            }
            self.replica.tick(self.clock());
            self.next_tick = self.next_tick.plus(self.tick);
        }
        self.next_tick = self.now.tick.plus(self.tick);
    }

    /// Nothing is left to do. False unless the replica can't go on.
    fn rest(&mut self) -> bool {
        if let Some(divergence) = self.replica.compare_checkpoints() {
            self.fail(divergence.into());
            return true;
        }
        match self.replica.owes_commit() {
            true => {
                let at = self.now.tick.plus(COMMIT_PAUSE);
                self.tells_at.get_or_insert(at);
            }
            false => self.tells_at = None,
        }
        false
    }

    fn conclude_round(&mut self, work: Work) {
        let Outcome {
            send,
            applied,
            answers,
            reads,
            checkpoints,
            installed,
            snapshot,
            forgery,
        } = match self.replica.persisted(work) {
            Ok(outcome) => outcome,
            Err(error) => return self.fail(error.into()),
        };
        for verdict in std::mem::take(&mut self.verdicts) {
            self.on_verdict(verdict);
        }
        self.actions.push_back(Action::Send(send));
        for answer in answers {
            if let Some((caller, answers)) = self.proposals.on_answer(answer) {
                self.respond(caller, Response::Proposed(answers));
            }
        }
        for ticket in reads {
            if let Some((caller, question)) = self.reads.remove(&ticket) {
                self.answer(caller, question);
            }
        }
        if let Some(forgery) = forgery {
            self.report(Report::Forged(forgery));
        }
        let news = News {
            checkpoints,
            installed,
            applied,
        };
        self.actions.push_back(Action::Tell(Box::new(news)));
        if let Some(snapshot) = snapshot {
            self.stage = Stage::Keeping;
            self.actions.push_back(Action::Keep(Box::new(snapshot)));
        }
    }

    fn answer(&mut self, caller: Caller, question: M::Question) {
        let age = match self.replica.is_leader() {
            true => Micros(0),
            false => self.now.tick.since(self.heard_at),
        };
        let moment = ReadMoment {
            applied: self.replica.applied(),
            time: self.replica.time(),
            age_ms: age.0 / 1_000,
        };
        let reply = self.replica.machine().answer(question);
        self.respond(caller, Response::Answered { reply, moment });
    }

    fn respond(&mut self, caller: Caller, response: Response<M>) {
        self.actions.push_back(Action::Respond { caller, response });
    }

    fn report(&mut self, report: Report) {
        self.actions.push_back(Action::Report(Box::new(report)));
    }

    fn fail(&mut self, failure: ReplicaFailure) {
        self.stage = Stage::Over;
        self.actions.push_back(Action::Stop(Box::new(failure)));
    }
}

/// Whether a round brought anything that is to be durable.
fn is_for_disk(work: &Work) -> bool {
    let persist = &work.persist;
    !work.parts.is_empty() || persist.snapshot.is_some() || persist.must_sync
}

#[cfg(test)]
mod tests;
