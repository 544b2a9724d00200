//! A validator's core: takes the events of its replica, and returns its actions in a safe order.
//!
//! [`ValidatorCore::apply`] takes the events that arrived together; then [`ValidatorCore::next`]
//! returns one action after the other, until none is left. It works in rounds:
//!
//! 1. send the messages that need no disk: a leader's entries leave while its disk still writes;
//! 2. request checks of forwarded commands, and write the work of the round to the disk;
//! 3. acknowledge the work once it is durable, and only then apply it;
//! 4. respond to the callers, and then report to the followers of the log;
//! 5. make a due snapshot durable, and delete the log behind it.
//!
//! Other cores return all actions at once. This one returns them one at a time because the next may
//! take long to compute: an acknowledgement does not wait until the state machine has applied the
//! entries that the others wait for. So the core allocates no list of actions.

use std::collections::{BTreeMap, VecDeque};

use souk_consensus::replica::{
    Forgery, Outcome, Proposal, QueueFull, ReadTicket, RoundWork, StepError,
};
use souk_consensus::{LogTime, Replica, Verdict};

use super::action::{Action, ReplicaFailure, Report, Response, RoundResults};
use super::event::{Caller, Consistency, Event, ReadMoment};
use super::proposals::PendingProposals;
use super::questions::AnsweringMachine;
use crate::clock::{Micros, Now};

/// The most ticks to make up after a delay; more would only start needless elections.
const LATE_TICKS_MAX: u32 = 4;

/// How long a leader waits for more commands before it sends messages with only the commit index:
/// some round trips of a client that answers at once.
pub const COMMIT_PAUSE: Micros = Micros::from_millis(2);

/// The progress of a round.
enum Stage {
    /// No round is under way.
    Idle,
    /// The disk writes the round's work.
    Persisting,
    /// The work is durable, and acknowledged.
    Durable(Box<RoundWork>),
    /// The disk writes a snapshot.
    Keeping,
    /// The replica cannot continue.
    Over,
}

/// The most bytes of commands that wait because the state refuses them: a few of the largest.
const HELD_BYTES_MAX: usize = 8 << 20;

fn bytes_of<C>(commands: &[Proposal<C>]) -> usize {
    commands.iter().map(|command| command.bytes.len()).sum()
}

/// What a caller waits for until the state holds everything acknowledged before.
enum PendingRead<M: AnsweringMachine> {
    /// The answer to a question.
    Question(M::Question),
    /// A proposal of commands, all of which an older state refuses.
    Proposal(Vec<Proposal<M::Command>>),
}

/// A validator; see the module.
pub struct ValidatorCore<M: AnsweringMachine> {
    replica: Replica<M>,
    stage: Stage,
    /// The pending actions, in order.
    actions: VecDeque<Action<M>>,
    proposals: PendingProposals,
    reads: BTreeMap<ReadTicket, (Caller, PendingRead<M>)>,
    /// The bytes of the commands among them.
    held_bytes: usize,
    /// The verdicts that arrived while the disk wrote a round's work.
    verdicts: Vec<Verdict<M::Command>>,
    /// The length of a tick, and the moment of the next one.
    tick: Micros,
    next_tick: Micros,
    /// When the leader sends the commit index to the others, if no event comes before.
    tells_at: Option<Micros>,
    /// When it last heard a leader, or last led.
    heard_at: Micros,
    now: Now,
}

impl<M: AnsweringMachine> ValidatorCore<M> {
    /// Creates a validator from a replica that was restored from its disk. In each moment,
    /// [`Now::log`] is the time of its own clock.
    pub fn new(replica: Replica<M>, tick: Micros, now: Now) -> Self {
        assert!(tick > Micros(0), "a tick takes time");
        Self {
            replica,
            stage: Stage::Idle,
            actions: VecDeque::new(),
            proposals: PendingProposals::default(),
            reads: BTreeMap::new(),
            held_bytes: 0,
            verdicts: Vec::new(),
            tick,
            next_tick: now.tick.plus(tick),
            tells_at: None,
            heard_at: now.tick,
            now,
        }
    }

    /// Returns the replica, to read.
    pub fn replica(&self) -> &Replica<M> {
        &self.replica
    }

    /// Returns whether a round is under way.
    pub fn is_in_round(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Over) || !self.actions.is_empty()
    }

    /// Returns the moment at which you must send [`Event::TimerFired`], if any.
    pub fn wakes_at(&self) -> Option<Micros> {
        let is_over = matches!(self.stage, Stage::Over);
        let earlier = self
            .tells_at
            .map_or(self.next_tick, |at| at.min(self.next_tick));
        (!is_over).then_some(earlier)
    }

    /// Applies an event. You should apply all events that arrived together before you call
    /// [`ValidatorCore::next`]: they share one sync.
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

    /// Returns the next action; none if the core waits for an event.
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
            // It led until then; after a long sleep it learns later whether it still leads.
            self.heard_at = self.now.tick;
        }
        self.now = now;
    }

    /// Returns the time of this machine's own clock.
    fn own_time(&self) -> LogTime {
        LogTime(self.now.log.0)
    }

    fn on_event(&mut self, event: Event<M>) {
        if let Event::TimerFired = event {
            if self.tells_at.is_some_and(|at| at <= self.now.tick) {
                self.tells_at = None;
                self.replica.tell_commit();
            }
            return;
        }
        // The pause restarts, because the messages that follow carry the commit index too.
        self.tells_at = None;
        match event {
            Event::Peer { from, bytes } => {
                match self.replica.step(self.own_time(), from, bytes) {
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
            Event::Propose { caller, commands } => match self.foresee_refusals(&commands) {
                Some(_) => self.hold_proposal(caller, commands),
                None => self.propose(caller, commands),
            },
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
            Event::Verdict(_) | Event::Persisted(_) | Event::Kept { .. } | Event::TimerFired => {
                panic!("nothing is durable that was not to be");
            }
        }
    }

    fn on_question(&mut self, caller: Caller, consistency: Consistency, question: M::Question) {
        match consistency {
            Consistency::Stale => self.answer_caller(caller, question),
            Consistency::Linearizable => self.read_later(caller, PendingRead::Question(question)),
        }
    }

    /// Holds commands that this state refuses until it has everything acknowledged before: another
    /// validator may have acknowledged a command that changes this. Without a leader that takes as
    /// long as there is none, so the bytes are bounded.
    fn hold_proposal(&mut self, caller: Caller, commands: Vec<Proposal<M::Command>>) {
        let bytes = bytes_of(&commands);
        let held = self.held_bytes.saturating_add(bytes);
        if held > HELD_BYTES_MAX {
            let busy = QueueFull {
                commands: self.reads.len(),
                bytes: self.held_bytes,
            };
            return self.respond(caller, Response::Refused(busy.into()));
        }
        self.held_bytes = held;
        self.read_later(caller, PendingRead::Proposal(commands));
    }

    fn read_later(&mut self, caller: Caller, pending: PendingRead<M>) {
        match self.replica.read() {
            Ok(ticket) => {
                let before = self.reads.insert(ticket, (caller, pending));
                assert!(before.is_none(), "a ticket is given once");
            }
            Err(busy) => {
                self.release_bytes(&pending);
                self.respond(caller, Response::Refused(busy.into()));
            }
        }
    }

    fn release_bytes(&mut self, pending: &PendingRead<M>) {
        if let PendingRead::Proposal(commands) = pending {
            let bytes = bytes_of(commands);
            assert!(self.held_bytes >= bytes, "what is held was counted");
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
        }
    }

    fn on_read_ready(&mut self, caller: Caller, pending: PendingRead<M>) {
        self.release_bytes(&pending);
        match pending {
            PendingRead::Question(question) => self.answer_caller(caller, question),
            PendingRead::Proposal(commands) => match self.foresee_refusals(&commands) {
                Some(results) => {
                    let moment = self.read_moment();
                    self.respond(caller, Response::Foreseen { results, moment });
                }
                None => self.propose(caller, commands),
            },
        }
    }

    /// Returns the results of commands, if the state refuses all of them.
    fn foresee_refusals(&self, commands: &[Proposal<M::Command>]) -> Option<Vec<Vec<u8>>> {
        let machine = self.replica.machine();
        let results = commands
            .iter()
            .map(|it| machine.foresee_refusal(&it.command));
        results.collect()
    }

    fn propose(&mut self, caller: Caller, commands: Vec<Proposal<M::Command>>) {
        let count = commands.len();
        match self.replica.propose_all(commands) {
            Ok(first) => self.proposals.insert(first, count, caller),
            Err(refused) => self.respond(caller, Response::Refused(refused)),
        }
    }

    fn on_verdict(&mut self, verdict: Verdict<M::Command>) {
        if let Err(forgery) = self.replica.on_verified(self.own_time(), verdict) {
            self.report(Report::Forged(forgery));
        }
    }

    fn on_persisted(&mut self, mut work: Box<RoundWork>) {
        self.tells_at = None;
        let acknowledged = std::mem::take(&mut work.send_after);
        self.actions.push_back(Action::Send(acknowledged));
        self.stage = Stage::Durable(work);
    }

    /// Begins a round. Returns false if there is no work for it.
    fn begin_round(&mut self) -> bool {
        self.make_up_for_ticks();
        let Some(mut work) = self.replica.take_work(self.own_time()) else {
            return self.end_round();
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
            self.replica.tick(self.own_time());
            self.next_tick = self.next_tick.plus(self.tick);
        }
        self.next_tick = self.now.tick.plus(self.tick);
    }

    /// Ends a round. Returns false unless the replica cannot continue.
    fn end_round(&mut self) -> bool {
        if let Some(divergence) = self.replica.compare_checkpoints() {
            self.stop_with_failure(divergence.into());
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

    fn conclude_round(&mut self, work: RoundWork) {
        let Outcome {
            send,
            applied,
            answers,
            reads,
            checkpoints,
            tiles,
            sealed,
            tip,
            installed,
            snapshot,
            forgery,
        } = match self.replica.on_persisted(work) {
            Ok(outcome) => outcome,
            Err(error) => return self.stop_with_failure(error.into()),
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
            if let Some((caller, pending)) = self.reads.remove(&ticket) {
                self.on_read_ready(caller, pending);
            }
        }
        if let Some(forgery) = forgery {
            self.report(Report::Forged(forgery));
        }
        let news = RoundResults {
            checkpoints,
            installed,
            tiles,
            sealed,
            tip,
            applied,
        };
        self.actions.push_back(Action::Tell(Box::new(news)));
        if let Some(snapshot) = snapshot {
            self.stage = Stage::Keeping;
            self.actions.push_back(Action::Keep(Box::new(snapshot)));
        }
    }

    fn read_moment(&self) -> ReadMoment {
        let age = match self.replica.is_leader() {
            true => Micros(0),
            false => self.now.tick.since(self.heard_at),
        };
        ReadMoment {
            applied: self.replica.applied_index(),
            time: self.replica.log_time(),
            age_ms: age.0 / 1_000,
        }
    }

    fn answer_caller(&mut self, caller: Caller, question: M::Question) {
        let moment = self.read_moment();
        let reply = self.replica.machine().answer_question(question);
        self.respond(caller, Response::Answered { reply, moment });
    }

    fn respond(&mut self, caller: Caller, response: Response<M>) {
        self.actions.push_back(Action::Respond { caller, response });
    }

    fn report(&mut self, report: Report) {
        self.actions.push_back(Action::Report(Box::new(report)));
    }

    fn stop_with_failure(&mut self, failure: ReplicaFailure) {
        self.stage = Stage::Over;
        self.actions.push_back(Action::Stop(Box::new(failure)));
    }
}

/// Returns whether a round has work for the disk.
fn is_for_disk(work: &RoundWork) -> bool {
    let persist = &work.persist;
    !work.parts.is_empty() || persist.snapshot.is_some() || persist.must_sync
}

#[cfg(test)]
mod tests;
