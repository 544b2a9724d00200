//! Simulates the validators of a crowd as one exchange, whose commits take the measured time of
//! real replicas, and a queue of requests for each validator.

use std::cell::RefCell;
use std::collections::BTreeMap;

use souk_consensus::{LogIndex, LogTime, Position, StateMachine};
use souk_market::{Event as MarketEvent, Exchange, Genesis, Millis, VerifiedBatch};
use souk_roles::lease::Contact;
use souk_roles::market::client::{NoReply, ValidatorAnswer};
use souk_roles::market::market_protocol::{Answer, Request};
use souk_roles::validator::exchange::{BatchResult, ExchangeMachine, Watch};
use souk_roles::validator::questions::answer_request;

use super::{Crowd, CrowdEvent, Put};
use crate::crowd::costs;
use crate::crowd::supply::{self, REGIONS};
use crate::machine::EPOCH_MS;

/// The longest queue of a validator, in microseconds of work. A longer one answers that it is busy.
const QUEUE_US_MAX: u64 = 2_000_000;

/// The events of the exchange since the last look.
#[derive(Default)]
struct Recorder(RefCell<Vec<MarketEvent>>);

impl Watch for Recorder {
    fn on_events(&mut self, _at: Position, _time: Millis, events: &[MarketEvent]) {
        self.0.get_mut().extend_from_slice(events);
    }
}

/// One validator: a queue.
struct Validator {
    region: usize,
    /// When its queue will be empty.
    free_at: u64,
    busy_us: u64,
}

/// The validators of a crowd, of which the first is the leader.
pub struct Validators {
    list: Vec<Validator>,
    machine: ExchangeMachine<Recorder>,
    /// The time from a proposal to a majority and back, in microseconds.
    majority_us: u64,
    last_commit: u64,
    ticks_at: Option<u64>,
    index: u64,
    /// The number of orders in the book: counting them anew for each question takes longer than to
    /// answer many of them.
    orders: u64,
    /// The number of commands and the bytes of all batches, and the longest wait in a queue.
    pub commands: u64,
    pub log_bytes: u64,
    pub wait_us_max: u64,
    /// Questions by kind, with the bytes in both directions.
    pub questions: BTreeMap<&'static str, (u64, u64)>,
}

impl Validators {
    /// Creates this many validators, distributed over the regions in turn.
    pub fn new(count: usize, genesis: &Genesis) -> Self {
        let region = |number: usize| number % (REGIONS - 1);
        let mut ways: Vec<u64> = (0..count)
            .map(|number| 2 * supply::way_us(region(0), region(number)))
            .collect();
        ways[0] = 0;
        ways.sort_unstable();
        let validator = |number| Validator {
            region: region(number),
            free_at: 0,
            busy_us: 0,
        };
        Self {
            list: (0..count).map(validator).collect(),
            machine: ExchangeMachine::new(genesis, Recorder::default()),
            majority_us: ways[count / 2],
            last_commit: 0,
            ticks_at: None,
            index: 0,
            orders: 0,
            commands: 0,
            log_bytes: 0,
            wait_us_max: 0,
            questions: BTreeMap::new(),
        }
    }

    pub fn region(&self, node: usize) -> usize {
        self.list[node].region
    }

    pub fn exchange(&self) -> &Exchange {
        self.machine.exchange()
    }

    /// Returns the hash of the whole state.
    pub fn digest(&self) -> [u8; 32] {
        self.machine.digest()
    }

    /// Returns the processor time of the busiest validator, in microseconds.
    pub fn busy_us_max(&self) -> u64 {
        self.list.iter().map(|it| it.busy_us).max().unwrap_or(0)
    }

    /// Queues work at a validator, and returns when it is done; none if its queue is full.
    fn queue_work(&mut self, node: usize, now: u64, cost_us: u64) -> Option<u64> {
        let validator = &mut self.list[node];
        let wait = validator.free_at.saturating_sub(now);
        if wait > QUEUE_US_MAX {
            return None;
        }
        self.wait_us_max = self.wait_us_max.max(wait);
        validator.busy_us += cost_us;
        validator.free_at = validator.free_at.max(now) + cost_us;
        Some(validator.free_at)
    }

    /// Charges all validators but one the cost of a command.
    fn charge_others(&mut self, but: usize, now: u64) {
        for (node, validator) in self.list.iter_mut().enumerate() {
            if node != but {
                let cost = costs::SIGNATURE_US + costs::COMMAND_US;
                validator.busy_us += cost;
                validator.free_at = validator.free_at.max(now) + cost;
            }
        }
    }

    fn count_question(&mut self, kind: &'static str, bytes: u64) {
        let (questions, sum) = self.questions.entry(kind).or_default();
        *questions += 1;
        *sum += bytes;
    }
}

impl Crowd {
    /// Handles a question that reaches a validator.
    pub fn on_put(&mut self, put: Box<Put>) {
        let node = put.node;
        let cost = match &put.question {
            Request::Submit(_) => costs::SIGNATURE_US + costs::COMMAND_US,
            question => costs::question_us(question, self.validators.orders),
        };
        let Some(done) = self.validators.queue_work(node, self.now, cost) else {
            self.counts.busy += 1;
            return self.send_answer(&put, Err(NoReply::Busy));
        };
        let to_leader = match node {
            0 => 0,
            _ => supply::way_us(self.validators.region(node), self.validators.region(0)),
        };
        let majority = self.validators.majority_us;
        if let Request::Submit(_) = &put.question {
            let at = done + to_leader + costs::COMMIT_US + majority;
            let at = at.max(self.validators.last_commit);
            self.validators.last_commit = at;
            return self.add_event(at, CrowdEvent::Commit(put));
        }
        // The leader confirms with a majority that it leads, and names the index to answer from.
        let at = done + 2 * to_leader + majority;
        self.add_event(at, CrowdEvent::Ready(put));
    }

    /// Answers a question from the state.
    pub fn on_ready(&mut self, put: Put) {
        let answer = match &put.question {
            Request::Find(accounts) => {
                let contact = |account: &_| Contact {
                    account: *account,
                    addresses: vec!["/ip4/203.0.113.77/udp/7700/quic-v1".to_owned()],
                };
                Answer::Found(accounts.iter().map(contact).collect())
            }
            question => answer_request(self.validators.exchange(), question.clone()),
        };
        let bytes = encoded_size(&put.question) + encoded_size(&answer);
        let bytes = bytes + 2 * costs::FRAME_BYTES;
        let kind = put.question.kind();
        self.validators.count_question(kind, bytes);
        self.count_for_provider(put.actor, 1, bytes);
        self.send_answer(&put, Ok(answer));
    }

    /// Applies a committed batch.
    pub fn on_commit(&mut self, put: Put) {
        let Request::Submit(signed) = put.question else {
            unreachable!("only batches are committed");
        };
        let (question, bytes) = (signed.clone(), signed.encode().len() as u64);
        let commands = signed.batch.commands.len() as u64;
        let batch = VerifiedBatch::from_own_log(signed).expect("a client's batches are sound");
        let validators = &mut self.validators;
        validators.charge_others(put.node, self.now);
        validators.commands += commands;
        validators.log_bytes += bytes;
        validators.index += 1;
        validators.count_question("submit", bytes + 2 * costs::FRAME_BYTES);
        let at = Position {
            index: LogIndex(validators.index),
            offset: 0,
        };
        let time = LogTime(EPOCH_MS + self.now / 1_000);
        let BatchResult::Applied(results) = validators.machine.apply_batch(at, time, &batch) else {
            unreachable!("a batch is no order");
        };
        self.counts.count_refusals(&results);
        let put = Put {
            question: Request::Submit(question),
            ..put
        };
        self.send_answer(&put, Ok(Answer::Applied(results)));
        self.on_market_events();
    }

    /// Applies the changes that are due by the exchange's clock.
    pub fn on_tick(&mut self) {
        self.validators.ticks_at = None;
        self.validators.index += 1;
        let at = Position {
            index: LogIndex(self.validators.index),
            offset: 0,
        };
        let time = LogTime(EPOCH_MS + self.now / 1_000);
        self.validators.machine.tick(at, time);
        self.on_market_events();
    }

    /// Checks the exchange's latest events, and reports them to those who watch.
    fn on_market_events(&mut self) {
        let events = self.validators.machine.watch().0.take();
        self.validators.orders = self.validators.exchange().census().orders;
        let mut touched: Vec<usize> = events
            .iter()
            .flat_map(MarketEvent::involved_accounts)
            .filter_map(|account| self.actors.get(&account).copied())
            .collect();
        touched.sort_unstable();
        touched.dedup();
        for event in &events {
            self.on_market_event(event);
        }
        for actor in touched {
            self.report_change(actor, self.now);
        }
        let wakes = self.validators.machine.wakes_at();
        let wakes = wakes.map(|LogTime(at)| at.saturating_sub(EPOCH_MS) * 1_000);
        if let Some(at) = wakes
            && self.validators.ticks_at.is_none_or(|known| known > at)
        {
            self.validators.ticks_at = Some(at);
            self.add_event(at, CrowdEvent::Tick);
        }
    }

    /// Reports a change of an account to its machine, if a validator watches it.
    pub fn report_change(&mut self, actor: usize, now: u64) {
        let machine = &self.machines[actor];
        let Some(watch) = machine.watch else { return };
        let (life, node) = (machine.life, actor % self.config.replicas);
        self.count_for_provider(actor, 0, costs::FRAME_BYTES);
        let at = now + supply::way_us(self.validators.region(0), self.validators.region(node));
        let at = at + self.way_to(actor, node);
        self.add_event(at, CrowdEvent::Watched(actor, life, watch));
    }

    /// Counts questions if it is a provider that asks.
    fn count_for_provider(&mut self, actor: usize, questions: u64, bytes: u64) {
        if actor < self.config.providers {
            let is_sold = self.ledger.is_sold(actor);
            self.sellers[actor].count_questions(questions, bytes, is_sold);
        }
    }

    /// Handles a question for a validator's clock.
    pub fn on_ask_time(&mut self, actor: usize, life: u32, node: usize) {
        let cost = costs::question_us(&Request::Time, 0);
        self.validators
            .count_question("time", 2 * costs::FRAME_BYTES);
        self.count_for_provider(actor, 1, 2 * costs::FRAME_BYTES);
        if let Some(done) = self.validators.queue_work(node, self.now, cost) {
            let at = done + self.way_to(actor, node);
            self.add_event(at, CrowdEvent::Time(actor, life, node));
        }
    }

    /// Sends a validator's answer to a machine.
    fn send_answer(&mut self, put: &Put, answer: Result<Answer, NoReply>) {
        let heard = answer.map(|answer| ValidatorAnswer {
            time: Some(Millis(EPOCH_MS + self.now / 1_000)),
            answer,
        });
        let from_leader = match &put.question {
            Request::Submit(_) if put.node > 0 => {
                supply::way_us(self.validators.region(0), self.validators.region(put.node))
            }
            _ => 0,
        };
        let at = self.now + from_leader + self.way_to(put.actor, put.node);
        let (actor, life) = (put.actor, put.life);
        self.add_event(
            at,
            CrowdEvent::Heard(actor, life, put.putting, Box::new(heard)),
        );
    }
}

/// Returns the length of a value's encoding.
fn encoded_size(value: &impl serde::Serialize) -> u64 {
    let size = postcard::experimental::serialized_size(value);
    size.map_or(0, |size| size as u64)
}
