//! Tracks the pending operations of clients: sends batches and reads to random validators, retries
//! those without an answer, and passes the results to the clients and the checker.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use souk_consensus::replica::{Proposal, StepError};
use souk_consensus::{Digest, LogIndex};
use souk_market::Millis;
use souk_roles::market::client::NoReply;
use souk_roles::market::market_protocol::{Answer, Request};
use souk_roles::validator::action::{Report, Response, RoundResults};
use souk_roles::validator::event::{Caller, Consistency, Event as CoreEvent, ReadMoment};

use crate::RUSH_MAX;
use crate::machine::{BatchResult, Decoding, EPOCH_MS, SimExchange, hash_result};
use crate::node::CompletedRound;
use crate::world::actors::Waiter;
use crate::world::{Event, World};

/// Simulated milliseconds until a client tries another validator.
const PATIENCE_MS: u64 = 3_000;

/// Maximum clients waiting at once; further ones send nothing.
const WAITING_MAX: usize = 400;

/// Reads that accept one validator's own state, per thousand.
const GLANCES: u64 = 300;

/// The caller that changes the members.
pub(crate) const OPERATOR: Caller = Caller(u64::MAX);

/// A client's pending operation.
enum Operation {
    Write {
        person: usize,
        bytes: Bytes,
        command: Rc<Decoding>,
    },
    Read,
    /// A read of one validator's own state; the expected result is known once the validator has the
    /// question.
    Glance(Option<ReadMoment>),
    /// A question of an actor, which retries itself.
    Asked(Waiter),
}

/// All operations of clients that wait for an answer.
#[derive(Default)]
pub struct Operations {
    next: u64,
    waiting: BTreeMap<u64, (Operation, LogIndex)>,
}

impl Operations {
    /// Returns the number of the next operation.
    fn name(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Returns the number of waiting clients.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Removes the questions of these actors, which no longer wait.
    pub fn forget_waiters(&mut self, is_over: impl Fn(&Waiter) -> bool) {
        let over = |operation: &Operation| match operation {
            Operation::Asked(waiter) => is_over(waiter),
            _ => false,
        };
        self.waiting.retain(|_, (operation, _)| !over(operation));
    }

    /// Describes the first pending operation, for a report.
    pub fn describe_first(&self) -> String {
        match self.waiting.first_key_value() {
            Some((number, (Operation::Write { .. }, _))) => format!("write {number}"),
            Some((number, (Operation::Read, _))) => format!("read {number}"),
            Some((number, (Operation::Glance(_), _))) => format!("glance {number}"),
            Some((number, (Operation::Asked(waiter), _))) => {
                let Waiter { actor, node, .. } = waiter;
                format!("question {number} of actor {actor} at node {node}")
            }
            None => "nothing".to_owned(),
        }
    }
}

impl World {
    /// Sends a batch to a random validator, sometimes to two, or batches of a few people at the
    /// same moment.
    pub(crate) fn on_write(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.config.write_gap_ms();
        let next = self.now + self.random.draw_between(0, 2 * gap);
        self.schedule_event(next, Event::Write);
        if self.config.rushes && self.random.chance(500) {
            return self.on_rush();
        }
        let Some(number) = self.write() else { return };
        self.ask_validator(number);
        if self.random.chance(30) {
            self.ask_validator(number);
        }
        self.vanish_client(number);
    }

    /// Sends several batches to one validator before it processes any.
    fn on_rush(&mut self) {
        let count = self.random.draw_between(2, RUSH_MAX);
        let mut numbers: Vec<u64> = (0..count).filter_map(|_| self.write()).collect();
        if self.reorders > 0 {
            self.random.shuffle(&mut numbers);
        }
        let node = self.random.draw_index(self.nodes.len());
        let mut took = false;
        for number in &numbers {
            took |= self.hand_in(*number, node);
        }
        if took {
            self.run_rounds(node);
        }
        for number in numbers {
            self.vanish_client(number);
        }
    }

    /// Creates the next batch, unless too many clients wait already.
    fn write(&mut self) -> Option<u64> {
        if self.operations.waiting_count() >= WAITING_MAX {
            return None;
        }
        let letter = self.people.write(Millis(EPOCH_MS + self.now));
        self.counts.commands += letter.commands as u64;
        let command = self.decoded.borrow_mut().get(&letter.bytes);
        let bytes = Bytes::from(letter.bytes);
        Some(self.open_operation(Operation::Write {
            person: letter.person,
            bytes,
            command,
        }))
    }

    /// Makes some clients vanish, so that they never hear the result.
    fn vanish_client(&mut self, number: u64) {
        if self.random.chance(20) {
            self.operations.waiting.remove(&number);
        }
    }

    /// Sends a read to a random validator.
    pub(crate) fn on_read(&mut self) {
        if self.healed {
            return;
        }
        let next = self.now + self.random.draw_between(50, 350);
        self.schedule_event(next, Event::Read);
        let operation = match self.random.chance(GLANCES) {
            true => Operation::Glance(None),
            false => Operation::Read,
        };
        let number = self.open_operation(operation);
        self.ask_validator(number);
    }

    /// Handles the timeout of a client.
    pub(crate) fn on_retry(&mut self, operation: u64) {
        if self.operations.waiting.contains_key(&operation) {
            self.counts.retries += 1;
            self.ask_validator(operation);
        }
    }

    fn open_operation(&mut self, operation: Operation) -> u64 {
        let number = self.operations.name();
        self.operations
            .waiting
            .insert(number, (operation, self.checker.required_index()));
        number
    }

    /// Asks a random validator, and schedules a retry.
    fn ask_validator(&mut self, number: u64) {
        let node = self.random.draw_index(self.nodes.len());
        if self.hand_in(number, node) {
            self.run_rounds(node);
        }
    }

    /// Gives an operation to a validator, which processes it later. If there is no answer, the
    /// client tries another. Returns false if the validator does not accept it.
    fn hand_in(&mut self, number: u64, node: usize) -> bool {
        self.schedule_event(self.now + PATIENCE_MS, Event::Retry { operation: number });
        let busy = self.nodes[node].busy_until > self.now;
        if busy || self.nodes[node].running.is_none() {
            return false;
        }
        let moment = self.moment_of(node);
        let Some((operation, _)) = self.operations.waiting.get_mut(&number) else {
            return false;
        };
        let caller = Caller(number);
        let event = match operation {
            Operation::Write { command, .. } if !self.nodes[node].forges && !command.authentic => {
                self.operations.waiting.remove(&number);
                self.counts.turned_away += 1;
                return false;
            }
            Operation::Write { bytes, command, .. } => CoreEvent::Propose {
                caller,
                commands: vec![Proposal {
                    bytes: bytes.clone(),
                    command: command.clone(),
                }],
            },
            Operation::Asked(_) => unreachable!("an actor's question is handed in once"),
            Operation::Read => read(caller, Box::new(Request::Totals)),
            Operation::Glance(expected) => {
                *expected = moment;
                CoreEvent::Ask {
                    caller,
                    consistency: Consistency::Stale,
                    question: Box::new(Request::Totals),
                }
            }
        };
        self.nodes[node].apply_event(self.now, event);
        true
    }

    /// Gives an actor's question to a validator.
    pub(crate) fn hand_in_for(&mut self, waiter: Waiter) {
        let node = waiter.node;
        let batch = match &*waiter.question {
            Request::Submit(batch) => Some(Bytes::from(batch.encode())),
            _ => None,
        };
        let command = batch.map(|bytes| {
            let command = self.decoded.borrow_mut().get(&bytes);
            Proposal { bytes, command }
        });
        if command.as_ref().is_some_and(|it| !it.command.authentic) {
            return self.send_answer(&waiter, Err(NoReply::Unavailable));
        }
        // If the actor died after sending a batch, the batch takes effect and nothing awaits its
        // result.
        let is_alive = self.actors.list[waiter.actor].life == waiter.life;
        if !is_alive && command.is_none() {
            return;
        }
        let question = waiter.question.clone();
        let number = match is_alive {
            true => self.open_operation(Operation::Asked(waiter)),
            false => self.operations.name(),
        };
        let caller = Caller(number);
        let event = match command {
            Some(command) => CoreEvent::Propose {
                caller,
                commands: vec![command],
            },
            None => read(caller, question),
        };
        self.nodes[node].apply_event(self.now, event);
        self.run_rounds(node);
    }

    /// Handles the results of a round for clients and checks.
    pub(crate) fn on_round(&mut self, node: usize, done: CompletedRound) {
        let CompletedRound {
            responses,
            reports,
            news,
            has_kept,
            ..
        } = done;
        self.counts.snapshots_taken += u64::from(has_kept);
        self.on_news(node, &news);
        for report in reports {
            match report {
                Report::Dropped { from, error } => {
                    self.counts.messages_dropped += 1;
                    match error {
                        StepError::Conflict { term, .. } => {
                            self.on_contradiction(node, from, term);
                        }
                        StepError::Unvouched { .. } | StepError::Unlike(_) => {
                            self.on_unvouched(node, from);
                        }
                        _ => {}
                    }
                }
                Report::Forged(forgery) => self.on_forgery(node, &forgery),
            }
        }
        for (caller, response) in responses {
            self.on_response(caller, response);
        }
        if !news.checkpoints.is_empty() {
            self.check_views(node);
        }
        self.tell_watchers(node);
    }

    fn on_news(&mut self, node: usize, news: &RoundResults) {
        let id = self.nodes[node].id;
        let latest = self.latest_time();
        for applied in &news.applied {
            self.checker.on_applied(applied, latest);
        }
        self.check_leases();
        let Some(running) = &self.nodes[node].running else {
            return;
        };
        let reached = running.replica().applied_index();
        for checkpoint in &news.checkpoints {
            let here = checkpoint.index == reached;
            let whole = here.then(|| running.replica().machine().exchange());
            self.checker.on_checkpoint(id, checkpoint, whole);
            self.counts.checkpoints += 1;
        }
        if let Some(tip) = &news.tip {
            self.checker.on_head(id, tip.head);
        }
        self.counts.snapshots_installed += u64::from(news.installed.is_some());
    }

    fn on_response(&mut self, caller: Caller, response: Response<SimExchange>) {
        let Caller(number) = caller;
        match response {
            Response::Proposed(answers) => {
                for answer in answers {
                    // If a snapshot replaced the entry, its result is lost, and the client
                    // asks again.
                    if let Ok(result) = answer.result {
                        self.on_written(number, answer.index, &result);
                    }
                }
            }
            Response::Foreseen { results, moment } => {
                for result in results {
                    self.on_foreseen(number, moment, &result);
                }
            }
            Response::Answered { reply, moment } => self.on_read_done(number, moment, *reply),
            Response::Refused(_) => {
                self.counts.busy += 1;
                self.on_busy(number);
            }
            Response::Members(changed) => {
                let changed = u64::from(changed.is_ok());
                self.counts.member_changes += changed;
                self.counts.member_changes_apart += changed * u64::from(self.network.is_cut());
            }
        }
    }

    /// Handles a full validator: an actor hears it at once, other clients retry after a while.
    fn on_busy(&mut self, number: u64) {
        if let Some((Operation::Asked(_), _)) = self.operations.waiting.get(&number)
            && let Some((Operation::Asked(waiter), _)) = self.operations.waiting.remove(&number)
        {
            self.send_answer(&waiter, Err(NoReply::Busy));
        }
    }

    /// Handles an applied batch.
    fn on_written(&mut self, number: u64, index: LogIndex, result: &[u8]) {
        if let Some((leaf, wanted)) = self.on_result(number, result) {
            self.checker.on_acknowledged(number, leaf);
            self.checker.on_completed(number, wanted, index);
        }
    }

    /// Handles a batch that a replica refused from its state. No log has it.
    fn on_foreseen(&mut self, number: u64, moment: ReadMoment, result: &[u8]) {
        if let Some((Operation::Asked(waiter), _)) = self.operations.waiting.get(&number)
            && let Request::Submit(signed) = &*waiter.question
        {
            self.checker.on_batch_result(&signed.batch, result);
        }
        if let Some((_, wanted)) = self.on_result(number, result) {
            self.counts.foreseen += 1;
            self.checker.on_completed(number, wanted, moment.applied);
        }
    }

    /// Gives a batch's result to its sender. Returns the digest of both, and the index that the
    /// batch's state must have reached.
    fn on_result(&mut self, number: u64, result: &[u8]) -> Option<(Digest, LogIndex)> {
        let (operation, wanted) = self.operations.waiting.remove(&number)?;
        let leaf = match operation {
            Operation::Write { person, bytes, .. } => {
                self.counts.acknowledged += 1;
                self.people.read(person, result);
                hash_result(&bytes, result)
            }
            Operation::Asked(waiter) => {
                self.counts.questions += 1;
                let Request::Submit(batch) = &*waiter.question else {
                    unreachable!("only batches are written");
                };
                let leaf = hash_result(&batch.encode(), result);
                let answer = match postcard::from_bytes(result) {
                    Ok(BatchResult::Applied(results)) => Answer::Applied(results),
                    _ => Answer::Unavailable("no result of a batch".to_owned()),
                };
                self.send_answer(&waiter, Ok(answer));
                leaf
            }
            Operation::Read | Operation::Glance(_) => unreachable!("a read is not written"),
        };
        Some((leaf, wanted))
    }

    /// Handles a read that a replica answered from its state.
    fn on_read_done(&mut self, number: u64, moment: ReadMoment, answer: Answer) {
        let Some((operation, wanted)) = self.operations.waiting.remove(&number) else {
            return;
        };
        match operation {
            Operation::Read => self.counts.reads += 1,
            Operation::Asked(waiter) => {
                self.counts.questions += 1;
                self.send_answer(&waiter, Ok(answer));
            }
            Operation::Glance(expected) => {
                self.counts.glances += 1;
                let expected = expected.expect("it was known when it was asked");
                return self.checker.on_glance(number, expected, moment);
            }
            Operation::Write { .. } => unreachable!("a batch is no question"),
        }
        self.checker.on_completed(number, wanted, moment.applied);
    }

    /// Returns the moment that a running validator must state for an answer from its own state.
    fn moment_of(&self, node: usize) -> Option<ReadMoment> {
        let running = self.nodes[node].running.as_ref()?;
        let replica = running.replica();
        let heard = running.heard_leader_at;
        let age_ms = match replica.is_leader() {
            true => 0,
            false => self.now - heard,
        };
        Some(ReadMoment {
            applied: replica.applied_index(),
            time: self.checker.time_at(replica.applied_index()),
            age_ms,
        })
    }
}

/// Returns a question whose answer includes everything acknowledged before it.
fn read(caller: Caller, question: Box<Request>) -> CoreEvent<SimExchange> {
    CoreEvent::Ask {
        caller,
        consistency: Consistency::Linearizable,
        question,
    }
}
