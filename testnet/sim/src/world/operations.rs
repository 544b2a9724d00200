//! What clients asked for and are waiting for.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use souk_consensus::replica::{Outcome, Proposal};
use souk_consensus::{History, LogIndex};
use souk_roles::market::client::Silence;
use souk_roles::market::words::Request;

use crate::RUSH_MAX;
use crate::machine::Decoding;
use crate::world::actors::Waiter;
use crate::world::{Event, World};

/// Simulated milliseconds after which a client tries another validator.
const PATIENCE_MS: u64 = 3_000;

/// Clients waiting at once; more people stay at home.
const WAITING_MAX: usize = 400;

/// What one client waits for.
enum Operation {
    Write {
        person: usize,
        bytes: Bytes,
        command: Rc<Decoding>,
    },
    Read,
    /// A question of an actor, which asks anew itself.
    Asked(Waiter),
}

/// All that is waited for.
#[derive(Default)]
pub struct Operations {
    next: u64,
    waiting: BTreeMap<u64, (Operation, LogIndex)>,
}

impl Operations {
    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Nobody waits any more for what these asked.
    pub fn forget(&mut self, is_over: impl Fn(&Waiter) -> bool) {
        let over = |operation: &Operation| match operation {
            Operation::Asked(waiter) => is_over(waiter),
            _ => false,
        };
        self.waiting.retain(|_, (operation, _)| !over(operation));
    }

    /// What the first of them waits for, for a report.
    pub fn first(&self) -> String {
        match self.waiting.first_key_value() {
            Some((number, (Operation::Write { .. }, _))) => format!("write {number}"),
            Some((number, (Operation::Read, _))) => format!("read {number}"),
            Some((number, (Operation::Asked(waiter), _))) => {
                let Waiter { actor, node, .. } = waiter;
                format!("question {number} of actor {actor} at node {node}")
            }
            None => "nothing".to_owned(),
        }
    }
}

impl World {
    /// Somebody sends a batch to some validator, and sometimes to two; or a few people send theirs
    /// at the same moment.
    pub(crate) fn on_write(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.config.write_gap_ms();
        let next = self.now + self.random.between(0, 2 * gap);
        self.at(next, Event::Write);
        if self.config.rushes && self.random.chance(500) {
            return self.on_rush();
        }
        let Some(number) = self.write() else { return };
        self.ask(number);
        if self.random.chance(30) {
            self.ask(number);
        }
        self.vanish(number);
    }

    /// Several batches reach one validator before it looks at any.
    fn on_rush(&mut self) {
        let count = self.random.between(2, RUSH_MAX);
        let mut numbers: Vec<u64> = (0..count).filter_map(|_| self.write()).collect();
        if self.reorders > 0 {
            self.random.shuffle(&mut numbers);
        }
        let node = self.random.place(self.nodes.len());
        let mut took = false;
        for number in &numbers {
            took |= self.hand_in(*number, node);
        }
        if took {
            self.work(node);
        }
        for number in numbers {
            self.vanish(number);
        }
    }

    /// The next batch somebody writes, if not too many wait already.
    fn write(&mut self) -> Option<u64> {
        if self.operations.waiting() >= WAITING_MAX {
            return None;
        }
        let letter = self.people.write();
        self.counts.commands += letter.commands as u64;
        let command = self.decoded.borrow_mut().get(&letter.bytes);
        let bytes = Bytes::from(letter.bytes);
        Some(self.open(Operation::Write {
            person: letter.person,
            bytes,
            command,
        }))
    }

    /// Some clients vanish: whatever comes of what they sent, nobody hears.
    fn vanish(&mut self, number: u64) {
        if self.random.chance(20) {
            self.operations.waiting.remove(&number);
        }
    }

    /// Somebody reads at some validator.
    pub(crate) fn on_read(&mut self) {
        if self.healed {
            return;
        }
        let next = self.now + self.random.between(50, 350);
        self.at(next, Event::Read);
        let number = self.open(Operation::Read);
        self.ask(number);
    }

    /// A client has waited long enough.
    pub(crate) fn on_retry(&mut self, operation: u64) {
        if self.operations.waiting.contains_key(&operation) {
            self.counts.retries += 1;
            self.ask(operation);
        }
    }

    fn open(&mut self, operation: Operation) -> u64 {
        let number = self.operations.next;
        self.operations.next += 1;
        self.operations
            .waiting
            .insert(number, (operation, self.checker.begin()));
        number
    }

    /// Asks some validator, and comes back if there is no answer.
    fn ask(&mut self, number: u64) {
        let node = self.random.place(self.nodes.len());
        if self.hand_in(number, node) {
            self.work(node);
        }
    }

    /// Gives an operation to a validator, which has yet to work on it, and to another one if there
    /// is no answer. False if it takes nothing in.
    fn hand_in(&mut self, number: u64, node: usize) -> bool {
        self.at(self.now + PATIENCE_MS, Event::Retry { operation: number });
        let busy = self.nodes[node].busy_until > self.now;
        let forges = self.nodes[node].forges;
        let Some(running) = self.nodes[node].running.as_mut().filter(|_| !busy) else {
            return false;
        };
        let Some((operation, _)) = self.operations.waiting.get(&number) else {
            return false;
        };
        match operation {
            Operation::Write { command, .. } if !forges && !command.authentic => {
                self.operations.waiting.remove(&number);
                self.counts.turned_away += 1;
                return false;
            }
            Operation::Write { bytes, command, .. } => match running.replica.propose(Proposal {
                bytes: bytes.clone(),
                command: command.clone(),
            }) {
                Ok(ticket) => {
                    running.proposals.insert(ticket, number);
                }
                Err(_) => self.counts.busy += 1,
            },
            Operation::Asked(_) => unreachable!("an actor's question is handed in once"),
            Operation::Read => match running.replica.read() {
                Ok(ticket) => drop(running.reads.insert(ticket, number)),
                Err(_) => self.counts.busy += 1,
            },
        }
        true
    }

    /// Gives an actor's question to a validator.
    pub(crate) fn hand_in_for(&mut self, waiter: Waiter) {
        let (node, forged) = (waiter.node, Silence::Unavailable);
        let batch = match &*waiter.question {
            Request::Submit(batch) => Some(Bytes::from(batch.encode())),
            _ => None,
        };
        let command = batch.map(|bytes| {
            let command = self.decoded.borrow_mut().get(&bytes);
            Proposal { bytes, command }
        });
        if command
            .as_ref()
            .is_some_and(|proposal| !proposal.command.authentic)
        {
            return self.answer(&waiter, Err(forged));
        }
        if self.actors.list[waiter.actor].life != waiter.life {
            // Who asked died while it was on its way: a batch takes effect, and nobody waits.
            if let (Some(running), Some(proposal)) = (&mut self.nodes[node].running, command) {
                self.counts.busy += u64::from(running.replica.propose(proposal).is_err());
                self.work(node);
            }
            return;
        }
        let number = self.open(Operation::Asked(waiter));
        let Some(running) = self.nodes[node].running.as_mut() else {
            return;
        };
        let taken = match command {
            Some(proposal) => {
                let ticket = running.replica.propose(proposal).ok();
                ticket.map(|ticket| {
                    running.proposals.insert(ticket, number);
                })
            }
            None => {
                let ticket = running.replica.read().ok();
                ticket.map(|ticket| {
                    running.reads.insert(ticket, number);
                })
            }
        };
        if taken.is_none()
            && let Some((Operation::Asked(waiter), _)) = self.operations.waiting.remove(&number)
        {
            self.counts.busy += 1;
            return self.answer(&waiter, Err(Silence::Busy));
        }
        self.work(node);
    }

    /// What a round brought for clients and for the checks.
    pub(crate) fn on_outcome(&mut self, node: usize, outcome: Outcome) {
        let id = self.nodes[node].id;
        let latest = self.latest_time();
        for applied in &outcome.applied {
            self.checker.on_applied(applied, latest);
        }
        if let Some(forgery) = &outcome.forgery {
            self.on_forgery(node, forgery);
        }
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        let reached = running.replica.applied();
        for checkpoint in &outcome.checkpoints {
            let here = checkpoint.index == reached;
            let whole = here.then(|| running.replica.machine().exchange());
            self.checker.on_checkpoint(id, checkpoint, whole);
            self.counts.checkpoints += 1;
        }
        self.counts.snapshots_installed += u64::from(outcome.installed.is_some());
        self.counts.snapshots_taken += u64::from(outcome.snapshot.is_some());
        let mut ended = Vec::new();
        for answer in outcome.answers {
            if let (Some(number), Ok(result)) =
                (running.proposals.remove(&answer.ticket), answer.result)
            {
                ended.push((number, answer.index, result));
            }
        }
        for ticket in outcome.reads {
            if let Some(number) = running.reads.remove(&ticket) {
                ended.push((number, reached, Vec::new()));
            }
        }
        for (number, index, result) in ended {
            self.complete(number, index, &result);
        }
        if !outcome.checkpoints.is_empty() {
            self.check_views(node);
        }
        self.tell_watchers(node);
    }

    fn complete(&mut self, number: u64, index: LogIndex, result: &[u8]) {
        let Some((operation, wanted)) = self.operations.waiting.remove(&number) else {
            return;
        };
        match operation {
            Operation::Write { person, bytes, .. } => {
                self.counts.acknowledged += 1;
                self.people.read(person, result);
                self.checker
                    .on_acknowledged(number, History::leaf(&bytes, result));
            }
            Operation::Read => self.counts.reads += 1,
            Operation::Asked(waiter) => {
                self.counts.questions += 1;
                if let Request::Submit(batch) = &*waiter.question {
                    let leaf = History::leaf(&batch.encode(), result);
                    self.checker.on_acknowledged(number, leaf);
                }
                self.on_asked(&waiter, result);
            }
        }
        self.checker.on_completed(number, wanted, index);
    }
}
