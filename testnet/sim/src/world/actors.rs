//! Simulates the machines of accounts that trade through market clients: traders, providers and
//! buyers. Each runs the client's core of a real node on the simulated network, with a clock of its
//! own.

mod answer_delivery;
pub mod jobs;
mod trader;

use std::collections::BTreeMap;

use souk_consensus::LogTime;
use souk_market::{
    AccountKey, Credits, Genesis, MarketId, Millis, Name, Nonce, SignedBatch, SigningKey,
};
use souk_roles::clock::{Micros, Now};
use souk_roles::market::client::{
    Action, CallId, Event as ClientEvent, MarketClient, NoReply, Reply, RequestAttempt,
    ValidatorAnswer, ValidatorIndex, WatchId,
};
use souk_roles::market::market_protocol::Request;
use souk_roles::{job, provider};

use crate::machine::{EPOCH_MS, TRUSTED};
use crate::random::Random;
use crate::resources::key;
use crate::world::{Event, World};
use jobs::buyer::Buyer;
use jobs::worker::Worker;
use jobs::{EffectAnswer, Frame};
use trader::Trader;

/// Accounts that trade at random.
const TRADERS: usize = 6;

/// Accounts that sell devices for jobs, and accounts that buy jobs.
const WORKERS: usize = 6;
const BUYERS: usize = 3;

/// Number of the first accounts, which buy no jobs.
const JOBLESS: usize = TRADERS + WORKERS;

/// Milliseconds of waiting for the market that count as bad service.
const LATE_MS: u64 = 2_000;

/// A machine with an account.
pub struct Actor {
    pub account: AccountKey,
    market: MarketId,
    client: MarketClient,
    pub life: u64,
    /// The difference of the clock from simulated time, and its drift.
    ahead_ms: i64,
    drift_ppm: i64,
    /// When the client wakes next.
    wakes: Option<u64>,
    asked: u64,
    /// Time of the last trouble: a new life, a lost stream or command, some seconds without the
    /// market, a misdeed, or a clock jump.
    pub troubled_at: u64,
    /// When each pending call was made.
    asked_at: BTreeMap<CallId, u64>,
    /// The nonces that sign each pending call.
    signed: BTreeMap<CallId, Vec<Nonce>>,
    /// The time of the core's last wake, and the number of wakes at that time.
    woken: (u64, u32),
    pub role: Role,
}

/// The role that a machine plays in the market.
pub enum Role {
    /// The machine trades at random.
    Trader(Box<Trader>),
    /// The machine sells a device.
    Worker(Box<Worker>),
    /// The machine buys jobs.
    Buyer(Box<Buyer>),
}

impl Role {
    /// Returns whether the process runs.
    pub fn is_running(&self) -> bool {
        match self {
            Role::Trader(_) | Role::Buyer(_) => true,
            Role::Worker(worker) => worker.core.is_some(),
        }
    }

    /// Returns whether it is a provider that its owner stops: it gives the leases back that it
    /// still sells.
    pub fn is_stopping(&self) -> bool {
        let Role::Worker(worker) = self else {
            return false;
        };
        let core = worker.core.as_ref();
        core.is_some_and(|core| core.status().stage > provider::Stage::Selling)
    }
}

/// An event between actors and validators.
pub enum ActorEvent {
    /// The client wakes.
    Wake { life: u64 },
    /// The core wakes.
    RoleWake { life: u64 },
    /// The machine's user or environment acts.
    Act,
    /// An end of a stream receives a frame.
    Frame {
        link: u64,
        forth: bool,
        frame: Frame,
    },
    /// An effect of the core completes.
    Done { life: u64, done: Box<EffectAnswer> },
    /// A question reaches a validator.
    Put {
        life: u64,
        putting: RequestAttempt,
        node: usize,
        question: Box<Request>,
    },
    /// An answer reaches the client.
    Heard {
        life: u64,
        putting: RequestAttempt,
        heard: Box<Result<ValidatorAnswer, NoReply>>,
    },
    /// A validator's current clock reaches the client.
    Time { life: u64, node: usize },
    /// A request to watch changes reaches a validator.
    Watch {
        life: u64,
        watch: WatchId,
        node: usize,
        account: AccountKey,
    },
    /// A validator's notice of a change, or the end of its notices, reaches the client.
    Watched {
        life: u64,
        watch: WatchId,
        goes_on: bool,
    },
}

/// An actor's pending question at a validator.
pub struct Waiter {
    pub actor: usize,
    pub life: u64,
    pub putting: RequestAttempt,
    pub node: usize,
    pub question: Box<Request>,
}

/// A watcher of changes at a validator.
struct Watcher {
    actor: usize,
    life: u64,
    watch: WatchId,
    account: AccountKey,
}

/// The simulated machines of all accounts.
pub struct Actors {
    pub list: Vec<Actor>,
    random: Random,
    /// Watchers by validator and its life.
    watchers: BTreeMap<(usize, u64), Vec<Watcher>>,
}

impl Actors {
    /// Creates the actors of a seed, and adds their accounts to the genesis.
    pub fn new(seed: u64, nodes: usize, genesis: &mut Genesis) -> Self {
        let mut random = Random::new(seed, "actors");
        let count = TRADERS + WORKERS + BUYERS;
        let keys: Vec<SigningKey> = (0..count).map(|_| key(&mut random)).collect();
        for (number, key) in keys.iter().enumerate() {
            let name = Name::try_from(format!("actor {number}")).expect("a short plain name");
            let purse = Credits(1_000_000_000);
            genesis.accounts.push((key.into(), name, purse));
        }
        // The market is full, so a newcomer must replace an account without credits.
        genesis.rules.accounts_max = genesis.accounts.len() as u32;
        let market = genesis.market_id();
        let traders = keys[..TRADERS].to_vec();
        let mut role = |number: usize, key: &SigningKey| match number {
            0..TRADERS => {
                let of = Random::new(seed, &format!("trader {number}"));
                Role::Trader(Box::new(Trader::new(traders.clone(), market, of)))
            }
            TRADERS..JOBLESS => {
                Role::Worker(Box::new(Worker::new(key.clone(), market, &mut random)))
            }
            _ => Role::Buyer(Box::new(Buyer::new(key.clone(), market, &mut random))),
        };
        let actor = |(number, key): (usize, &SigningKey)| Actor {
            account: key.into(),
            market,
            client: MarketClient::new(key.into(), market, nodes),
            life: 0,
            ahead_ms: 0,
            drift_ppm: 0,
            wakes: None,
            asked: 0,
            troubled_at: 0,
            asked_at: BTreeMap::new(),
            signed: BTreeMap::new(),
            woken: (0, 0),
            role: role(number, key),
        };
        let mut list: Vec<Actor> = keys.iter().enumerate().map(actor).collect();
        for actor in &mut list {
            actor.ahead_ms = random.draw_signed(3_000);
            actor.drift_ppm = random.draw_signed(500);
        }
        Self {
            list,
            random,
            watchers: BTreeMap::new(),
        }
    }

    /// Returns the index of an account's machine.
    pub fn place_of(&self, account: AccountKey) -> Option<usize> {
        self.list.iter().position(|actor| actor.account == account)
    }

    /// Returns the number of actors.
    pub fn len(&self) -> usize {
        self.list.len()
    }
}

impl Actor {
    /// Returns the actor's own clock.
    fn clock_time(&self, now: u64) -> Micros {
        let drifted = now as i64 / 1_000 * self.drift_ppm / 1_000;
        let shown = (EPOCH_MS + now).saturating_add_signed(self.ahead_ms + drifted);
        Micros::from_millis(shown)
    }

    /// Returns the moment by both clocks.
    pub fn moment_at(&self, now: u64) -> Now {
        let own = Millis(self.clock_time(now).0 / 1_000);
        Now {
            tick: Micros::from_millis(now),
            log: self.client.log_time(own),
        }
    }

    /// Returns whether the actor has waited long for the market.
    pub fn is_waiting(&self, now: u64) -> bool {
        self.asked_at.values().any(|at| at + LATE_MS < now)
    }

    /// Records trouble if `is_harmed`.
    fn harm_if(&mut self, is_harmed: bool, now: u64) {
        if is_harmed {
            self.troubled_at = now;
        }
    }

    /// Returns the id of the next call.
    pub fn name(&mut self) -> CallId {
        self.asked += 1;
        CallId(self.asked)
    }
}

impl World {
    /// Handles an event of an actor, or of a validator on its behalf.
    pub(crate) fn on_actor(&mut self, actor: usize, event: ActorEvent) {
        let of_life = |life: u64| self.actors.list[actor].life == life;
        match event {
            ActorEvent::Act => self.take_turn(actor),
            // A wake is void if an earlier one has fired and scheduled another.
            ActorEvent::Wake { life }
                if of_life(life) && self.actors.list[actor].wakes == Some(self.now) =>
            {
                self.actors.list[actor].wakes = None;
                self.apply_client_event(actor, ClientEvent::TimerFired);
            }
            ActorEvent::RoleWake { life } if of_life(life) => self.wake_role(actor),
            ActorEvent::Frame { link, forth, frame } => self.on_frame(link, forth, frame),
            ActorEvent::Done { life, done } => self.on_done(actor, life, *done),
            ActorEvent::Heard {
                life,
                putting,
                heard,
            } if of_life(life) => {
                let heard = *heard;
                self.apply_client_event(actor, ClientEvent::Heard { putting, heard });
            }
            ActorEvent::Watched {
                life,
                watch,
                goes_on,
            } if of_life(life) => {
                self.apply_client_event(actor, ClientEvent::Watched { watch, goes_on })
            }
            ActorEvent::Put {
                life,
                putting,
                node,
                question,
            } => self.on_put(Waiter {
                actor,
                life,
                putting,
                node,
                question,
            }),
            ActorEvent::Watch {
                life,
                watch,
                node,
                account,
            } => self.on_watch(
                node,
                Watcher {
                    actor,
                    life,
                    watch,
                    account,
                },
            ),
            ActorEvent::Time { life, node } if of_life(life) => {
                if self.nodes[node].running.is_some() {
                    let (LogTime(time), validator) =
                        (self.nodes[node].clock_time(self.now), ValidatorIndex(node));
                    let time = Millis(time);
                    self.apply_client_event(actor, ClientEvent::Time { validator, time });
                }
            }
            ActorEvent::Wake { .. }
            | ActorEvent::RoleWake { .. }
            | ActorEvent::Time { .. }
            | ActorEvent::Heard { .. }
            | ActorEvent::Watched { .. } => {}
        }
    }

    fn take_turn(&mut self, actor: usize) {
        let gap = match &self.actors.list[actor].role {
            Role::Trader(_) => 1_500,
            Role::Worker(_) | Role::Buyer(_) => 3_000,
        };
        let next = self.now + self.actors.random.draw_between(50, gap);
        self.schedule_event(next, Event::Actor(actor, ActorEvent::Act));
        if !self.healed && self.actors.random.chance(10) {
            self.actors.list[actor].ahead_ms += self.actors.random.draw_signed(20_000);
            self.record_trouble(actor);
        }
        match self.actors.list[actor].role {
            Role::Trader(_) => self.act_as_trader(actor),
            Role::Worker(_) => self.act_on_worker(actor),
            Role::Buyer(_) => self.act_on_buyer(actor),
        }
    }

    fn act_as_trader(&mut self, actor: usize) {
        if self.healed {
            return;
        }
        if self.actors.random.chance(5) {
            return self.restart_client(actor);
        }
        let of = &mut self.actors.list[actor];
        let (asked, time, account) = (of.name(), of.moment_at(self.now).log, of.account);
        let Role::Trader(trader) = &mut of.role else {
            return;
        };
        let event = trader.next_action(asked, account, time);
        self.apply_client_event(actor, event);
        if self.actors.random.chance(5) {
            self.apply_client_event(actor, ClientEvent::Unwatch(account));
            self.apply_client_event(actor, ClientEvent::Watch(account));
        }
    }

    fn act_on_worker(&mut self, actor: usize) {
        let runs = self.actors.list[actor].role.is_running();
        if !runs {
            return self.start_worker(actor);
        }
        if self.has_stopped(actor) {
            // The process has ended, and nothing is lost.
            return self.end_worker(actor);
        }
        let power = self.actors.random.chance(700);
        match self.actors.random.draw_below(1_000) {
            _ if self.healed => {}
            0..40 => self.kill_worker(actor, power),
            40..50 => {
                self.record_trouble(actor);
                self.tell_worker(actor, provider::Event::Stop);
            }
            _ => {}
        }
    }

    fn has_stopped(&self, actor: usize) -> bool {
        matches!(&self.actors.list[actor].role, Role::Worker(worker) if worker.is_over)
    }

    fn wake_role(&mut self, actor: usize) {
        let now = Some(self.now);
        match &mut self.actors.list[actor].role {
            Role::Worker(worker) if worker.wakes == now => {
                worker.wakes = None;
                self.count_wake(actor);
                self.tell_worker(actor, provider::Event::TimerFired);
            }
            Role::Buyer(buyer) if buyer.wakes == now => {
                buyer.wakes = None;
                self.count_wake(actor);
                self.tell_buyer(actor, job::Event::TimerFired);
            }
            _ => {}
        }
    }

    /// Restarts a process: it receives no answer to earlier questions.
    pub(crate) fn restart_client(&mut self, actor: usize) {
        let nodes = self.nodes.len();
        let of = &mut self.actors.list[actor];
        of.life += 1;
        of.wakes = None;
        of.signed.clear();
        of.asked_at.clear();
        of.troubled_at = self.now;
        of.client = MarketClient::new(of.account, of.market, nodes);
        let life = of.life;
        self.counts.clients_restarted += 1;
        self.operations
            .forget_waiters(|waiter| waiter.actor == actor && waiter.life < life);
    }

    /// Gives an event to a client's core, and carries out its actions.
    pub(crate) fn apply_client_event(&mut self, actor: usize, event: ClientEvent) {
        if let ClientEvent::Ask { asked, .. } | ClientEvent::Carry { asked, .. } = &event {
            let of = &mut self.actors.list[actor];
            of.asked_at.insert(*asked, self.now);
        }
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let of = &mut self.actors.list[actor];
            let (now, own) = (of.moment_at(self.now), of.clock_time(self.now));
            for action in of.client.apply(now, own, event) {
                events.extend(self.carry_out_for(actor, action));
            }
        }
        let of = &mut self.actors.list[actor];
        let wakes = of.client.wakes_at();
        let wakes = wakes.map(|at| at.0.div_ceil(1_000).max(self.now));
        if let Some(at) = wakes
            && of.wakes.is_none_or(|known| known > at)
        {
            of.wakes = Some(at);
            let life = of.life;
            self.schedule_event(at, Event::Actor(actor, ActorEvent::Wake { life }));
        }
    }

    fn carry_out_for(&mut self, actor: usize, action: Action) -> Option<ClientEvent> {
        let life = self.actors.list[actor].life;
        match action {
            Action::Sign { asked, batch } => {
                let (batch, signature) = (*batch, TRUSTED);
                let signed = &mut self.actors.list[actor].signed;
                signed.entry(asked).or_default().push(batch.nonce);
                let batch = Box::new(SignedBatch { batch, signature });
                return Some(ClientEvent::Signed { asked, batch });
            }
            Action::Put {
                putting,
                validator,
                question,
                ..
            } => {
                self.counts.questions_put += 1;
                let node = validator.0;
                self.send_message(
                    actor,
                    ActorEvent::Put {
                        life,
                        putting,
                        node,
                        question,
                    },
                );
            }
            Action::AskTime(validator) => {
                let node = validator.0;
                self.send_message(actor, ActorEvent::Time { life, node });
            }
            Action::Stop(putting) => self.operations.forget_waiters(|waiter| {
                (waiter.actor, waiter.life, waiter.putting) == (actor, life, putting)
            }),
            Action::Watch {
                watch,
                validator,
                account,
            } => {
                let node = validator.0;
                self.send_message(
                    actor,
                    ActorEvent::Watch {
                        life,
                        watch,
                        node,
                        account,
                    },
                );
            }
            Action::Unwatch(watch) => self.end_watch(actor, life, watch),
            Action::Changed(_) => self.on_account_changed(actor),
            Action::WatchLost(_) => {
                if let Role::Worker(_) = self.actors.list[actor].role {
                    self.tell_worker(actor, provider::Event::WatchLost);
                }
            }
            Action::Reply { asked, reply } => self.on_reply(actor, asked, reply),
        }
        None
    }

    fn on_account_changed(&mut self, actor: usize) {
        self.counts.changes_heard += 1;
        match self.actors.list[actor].role {
            Role::Trader(_) => {}
            Role::Worker(_) => self.tell_worker(actor, provider::Event::Changed),
            Role::Buyer(_) => self.look_at_followed(actor),
        }
    }

    fn on_reply(&mut self, actor: usize, asked: CallId, reply: Reply) {
        self.check_carried(actor, asked, &reply);
        let asked_at = self.actors.list[actor].asked_at.remove(&asked);
        let is_late = asked_at.is_some_and(|at| at + LATE_MS < self.now);
        if is_late || !matches!(reply, Reply::Answer(_) | Reply::Carried(_)) {
            self.record_trouble(actor);
        }
        match &reply {
            Reply::Uncertain(_) => self.counts.batches_uncertain += 1,
            Reply::Unreached(_) => self.counts.questions_unreached += 1,
            Reply::Answer(_) | Reply::Carried(_) | Reply::NotTaken(_) => {
                self.counts.questions_answered += 1;
            }
        }
        match &mut self.actors.list[actor].role {
            Role::Trader(trader) => trader.on_reply(reply),
            Role::Worker(_) => self.on_worker_reply(actor, asked, reply),
            Role::Buyer(_) => self.on_buyer_reply(actor, asked, reply),
        }
    }

    /// Records trouble of a machine.
    pub(crate) fn record_trouble(&mut self, actor: usize) {
        self.actors.list[actor].troubled_at = self.now;
    }

    /// Checks that the log has the batch that a reply reports, with the same results, and that it
    /// carried out the commands of the call once, however often they were signed.
    fn check_carried(&mut self, actor: usize, asked: CallId, reply: &Reply) {
        let of = &mut self.actors.list[actor];
        let (account, nonces) = (of.account, of.signed.remove(&asked).unwrap_or_default());
        if self.checker.count_spent(account, &nonces) > 1 {
            let what = format!("the log carried out {nonces:?}, which signed the same commands");
            self.breach_of_job(actor, what);
        }
        let Reply::Carried(results) = reply else {
            return;
        };
        if !self.checker.has_carried(account, &nonces, results.clone()) {
            let what = format!("{results:?} under {nonces:?} is not in the log");
            self.breach_of_job(actor, what);
        }
    }
}
