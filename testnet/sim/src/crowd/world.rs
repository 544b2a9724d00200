//! Holds the state of a crowd and runs its main loop. Each machine has the market client of a real
//! node; the loop takes the next event from the timing wheel and passes it to the core that it is
//! for.
//!
//! All times are virtual, in microseconds from the beginning of the run. An *actor* is the index of
//! a machine, a *node* that of a validator, and a *life* the number of a machine's process.

mod checks;
mod customer;
mod follower;
mod links;
pub(super) mod report;
mod seller;
mod validators;

use std::collections::BTreeMap;

use souk_market::{AccountKey, Credits, Genesis, MarketId, Millis, Name, SignedBatch, SigningKey};
use souk_roles::clock::{Micros, Now};
use souk_roles::effect::Ticket;
use souk_roles::lease::{BuyerMessage, Opening, ProviderMessage};
use souk_roles::market::client::{
    Action, CallId, Event as ClientEvent, MarketClient, NoReply, RequestAttempt, ValidatorAnswer,
    ValidatorIndex, WatchId,
};
use souk_roles::market::market_protocol::Request;
use souk_roles::{job, provider};

use self::checks::Ledger;
use self::customer::{Customer, Job};
use self::links::LeaseLink;
use self::seller::Seller;
use self::validators::Validators;
use super::CrowdConfig;
use super::counts::{CrowdCounts, Traffic};
use super::numbered::NumberedItems;
use super::supply;
use super::wheel::Wheel;
use crate::machine::{EPOCH_MS, TRUSTED};
use crate::random::Random;
use crate::resources::key;

/// The credits with which an account begins: enough that no honest buyer runs out within a day.
const PURSE: Credits = Credits(1_000_000_000_000);

/// How long a run continues after the end of demand so that its leases can end, in microseconds:
/// more than the longest work and the time after which the market closes a lease that its parties
/// do not settle.
pub const SETTLE_US: u64 = 4 * 3_600_000_000;

/// A machine with an account. In the list of machines the providers come first, then the buyers.
pub struct Machine {
    pub account: AccountKey,
    pub key: SigningKey,
    pub client: MarketClient,
    /// The number of processes that have ended on it. The world ignores events for earlier
    /// processes.
    pub life: u32,
    /// The index of its region, which determines the delays of its messages.
    pub region: usize,
    /// The watch over its account that a validator serves, if any.
    pub watch: Option<WatchId>,
    /// The time of its scheduled [`CrowdEvent::ClientWake`].
    wakes: Option<u64>,
    /// The id of its last call to its client.
    calls: u64,
}

/// An event of the simulation, with the actor (index of a machine) and the life of its process, or
/// the number of a job or a stream.
pub enum CrowdEvent {
    /// A machine's client has requested to wake now.
    ClientWake(usize, u32),
    /// A provider's core has requested to wake now.
    ProviderWake(usize, u32),
    /// A job's core has requested to wake now.
    JobWake(u64),
    /// A question or a batch reaches a validator.
    Put(Box<Put>),
    /// The leader has confirmed that it leads, so the validator can answer a question from its
    /// state.
    Ready(Box<Put>),
    /// A batch is committed.
    Commit(Box<Put>),
    /// The exchange has something to do by its clock.
    Tick,
    /// A validator's answer reaches a machine.
    Heard(
        usize,
        u32,
        RequestAttempt,
        Box<Result<ValidatorAnswer, NoReply>>,
    ),
    /// A machine's question for the time reaches a validator.
    AskTime(usize, u32, usize),
    /// A validator's time reaches a machine.
    Time(usize, u32, usize),
    /// A machine's request to watch its account reaches a validator.
    Watch(usize, u32, WatchId),
    /// A validator's report that the account changed reaches the machine.
    Watched(usize, u32, WatchId),
    /// An effect that a provider's core requested is done.
    ProviderDone(usize, u32, Ticket, Box<provider::Answer>),
    /// An effect that a job's core requested is done.
    JobDone(u64, Ticket, Box<job::Answer>),
    /// A frame reaches the other end of the stream with this number.
    Frame(u64, Box<LeaseFrame>),
    /// A provider's heartbeat reaches the buyer. It is the most frequent frame, so it has no box.
    Heartbeat(u64),
    /// The next job arrives, or a burst of them.
    Arrive,
    /// A provider leaves, in order or not.
    Leave(usize, u32),
    /// A provider's next process starts.
    Return(usize),
    /// The pause ends between two questions of a buyer about its leases.
    LookPause(usize),
}

/// A question or a batch of commands that a machine sends to a validator.
pub struct Put {
    pub actor: usize,
    pub life: u32,
    pub putting: RequestAttempt,
    /// The index of the validator.
    pub node: usize,
    pub question: Request,
}

/// A frame on the stream between the buyer and the provider of a lease.
pub enum LeaseFrame {
    Opening(Opening),
    Buyer(BuyerMessage),
    Provider(ProviderMessage),
    /// The buyer closed its end, or it broke.
    BuyerGone,
    /// The provider closed its end, or it broke.
    ProviderGone,
}

/// The state of a crowd: its machines, jobs, streams and validators, and the queue of events.
pub struct Crowd {
    pub config: CrowdConfig,
    pub now: u64,
    pub wheel: Wheel<CrowdEvent>,
    pub random: Random,
    pub market: MarketId,
    pub machines: Vec<Machine>,
    pub sellers: Vec<Seller>,
    pub buyers: Vec<Customer>,
    pub jobs: NumberedItems<Job>,
    pub links: NumberedItems<LeaseLink>,
    pub validators: Validators,
    /// The index of each account's machine.
    pub actors: BTreeMap<AccountKey, usize>,
    pub ledger: Ledger,
    pub counts: CrowdCounts,
    /// The traffic until the end of demand; `None` before.
    pub traffic: Option<Traffic>,
    /// The mean length of a job's work, in microseconds.
    pub mean_length: u64,
    /// The hash of the final state of each job's and provider's core. Equal runs must have equal
    /// hashes.
    pub cores: blake3::Hasher,
}

impl Crowd {
    /// Creates the world at the beginning of a run, with all its machines and validators.
    pub fn new(config: &CrowdConfig) -> Self {
        let mut random = Random::new(config.seed, "crowd");
        let count = config.providers + config.buyers;
        let operator = key(&mut random);
        let name = Name::try_from("crowd").expect("a short plain name");
        let mut genesis = Genesis::new(name, (&operator).into());
        let keys: Vec<SigningKey> = (0..count).map(|_| key(&mut random)).collect();
        for (number, key) in keys.iter().enumerate() {
            let name = Name::try_from(format!("actor {number}")).expect("a short plain name");
            genesis.accounts.push((key.into(), name, PURSE));
        }
        let market = genesis.market_id();
        let machine = |key: SigningKey, random: &mut Random| Machine {
            account: (&key).into(),
            client: MarketClient::new((&key).into(), market, config.replicas),
            key,
            life: 0,
            region: supply::draw_region(random),
            watch: None,
            wakes: None,
            calls: 0,
        };
        let machines: Vec<Machine> = keys
            .into_iter()
            .map(|key| machine(key, &mut random))
            .collect();
        let sellers = (0..config.providers).map(|_| Seller::draw(config, &mut random));
        let sellers: Vec<Seller> = sellers.collect();
        let accounts = machines.iter().enumerate();
        let mut world = Self {
            config: config.clone(),
            now: 0,
            wheel: Wheel::default(),
            market,
            actors: accounts.map(|(actor, it)| (it.account, actor)).collect(),
            machines,
            buyers: (0..config.buyers).map(|_| Customer::default()).collect(),
            jobs: NumberedItems::default(),
            links: NumberedItems::default(),
            validators: Validators::new(config.replicas, &genesis),
            ledger: Ledger::new(&sellers),
            sellers,
            counts: CrowdCounts::default(),
            traffic: None,
            mean_length: supply::mean_length(),
            cores: blake3::Hasher::new(),
            random,
        };
        world.begin_run();
        world
    }

    /// Schedules the start of each provider within the first minute, and the first job after it.
    fn begin_run(&mut self) {
        for actor in 0..self.config.providers {
            let at = self.random.draw_below(60_000_000);
            self.add_event(at, CrowdEvent::Return(actor));
        }
        for buyer in self.config.providers..self.machines.len() {
            let account = self.machines[buyer].account;
            self.tell_client(buyer, ClientEvent::Watch(account));
        }
        self.add_event(60_000_000, CrowdEvent::Arrive);
    }

    /// Plays the run until demand has ended and all jobs and leases have ended, but at most
    /// [`SETTLE_US`] longer than demand. No provider leaves by chance after the end of demand.
    pub fn play(&mut self) {
        while let Some((time, event)) = self.wheel.take_next() {
            if time > self.config.end_us() {
                if self.traffic.is_none() {
                    self.traffic = Some(self.sum_traffic());
                }
                if self.is_at_rest() {
                    break;
                }
            }
            if time > self.config.end_us() + SETTLE_US {
                break;
            }
            self.now = time;
            self.counts.events += 1;
            self.handle_event(event);
        }
        for job in self.jobs.iter() {
            self.cores.update(job.core.digest().as_bytes());
        }
        for seller in &self.sellers {
            if let Some(core) = &seller.core {
                self.cores.update(&core.digest());
            }
        }
    }

    /// Returns the traffic so far.
    pub fn sum_traffic(&self) -> Traffic {
        let sellers = || self.sellers.iter();
        Traffic {
            questions: sellers().map(|seller| seller.questions).sum(),
            bytes: sellers().map(|seller| seller.bytes).sum(),
            idle_questions: sellers().map(|seller| seller.idle_questions).sum(),
            idle_bytes: sellers().map(|seller| seller.idle_bytes).sum(),
            validator_us: self.validators.busy_us_max(),
            log_bytes: self.validators.log_bytes,
            commands: self.validators.commands,
            lease_messages: self.counts.lease_messages,
            asks: self.validators.exchange().census().orders,
            by_kind: self.validators.questions.clone(),
        }
    }

    /// Returns whether all jobs and leases have ended.
    fn is_at_rest(&self) -> bool {
        self.jobs.len() == 0 && self.ledger.open_count() == 0
    }

    /// Returns whether jobs still arrive and providers still come and go.
    pub fn is_running(&self) -> bool {
        self.now < self.config.end_us()
    }

    pub fn add_event(&mut self, time: u64, event: CrowdEvent) {
        self.wheel.add_event(time.max(self.now), event);
    }

    fn handle_event(&mut self, event: CrowdEvent) {
        let lives = |world: &Crowd, actor: usize, life: u32| world.machines[actor].life == life;
        match event {
            CrowdEvent::ClientWake(actor, life) if lives(self, actor, life) => {
                self.wake_client(actor);
            }
            CrowdEvent::ProviderWake(actor, life) if lives(self, actor, life) => {
                self.wake_provider(actor);
            }
            CrowdEvent::JobWake(job) => self.wake_job(job),
            CrowdEvent::Put(put) => self.on_put(put),
            CrowdEvent::Ready(put) => self.on_ready(*put),
            CrowdEvent::Commit(put) => self.on_commit(*put),
            CrowdEvent::Tick => self.on_tick(),
            CrowdEvent::Heard(actor, life, putting, heard) if lives(self, actor, life) => {
                let heard = *heard;
                self.tell_client(actor, ClientEvent::Heard { putting, heard });
            }
            CrowdEvent::AskTime(actor, life, node) => self.on_ask_time(actor, life, node),
            CrowdEvent::Time(actor, life, node) if lives(self, actor, life) => {
                let way = supply::way_us(self.validators.region(node), self.machines[actor].region);
                let time = Millis(EPOCH_MS + self.now.saturating_sub(way) / 1_000);
                let validator = ValidatorIndex(node);
                self.tell_client(actor, ClientEvent::Time { validator, time });
            }
            CrowdEvent::Watch(actor, life, watch) if lives(self, actor, life) => {
                self.machines[actor].watch = Some(watch);
                self.report_change(actor, self.now);
            }
            CrowdEvent::Watched(actor, life, watch) if lives(self, actor, life) => {
                let goes_on = true;
                self.tell_client(actor, ClientEvent::Watched { watch, goes_on });
            }
            CrowdEvent::ProviderDone(actor, life, ticket, answer) if lives(self, actor, life) => {
                self.on_provider_done(actor, ticket, *answer);
            }
            CrowdEvent::JobDone(job, ticket, answer) => self.on_job_done(job, ticket, *answer),
            CrowdEvent::Frame(link, frame) => self.on_frame(link, *frame),
            CrowdEvent::Heartbeat(link) => {
                self.on_frame(link, LeaseFrame::Provider(ProviderMessage::Alive));
            }
            CrowdEvent::Arrive => self.on_arrival(),
            CrowdEvent::Leave(actor, life) if lives(self, actor, life) => self.on_leave(actor),
            CrowdEvent::Return(actor) => self.start_provider(actor),
            CrowdEvent::LookPause(buyer) => self.end_look_pause(buyer),
            _ => {}
        }
    }

    /// Returns the present moment for a machine's cores: the virtual time, and the log time as its
    /// client estimates it.
    pub fn moment_of(&self, actor: usize) -> Now {
        Now {
            tick: Micros(self.now),
            log: self.machines[actor].client.log_time(self.own_time()),
        }
    }

    /// Returns the wall clock of all machines: the simulation has no clock skew.
    fn own_time(&self) -> Millis {
        Millis(EPOCH_MS + self.now / 1_000)
    }

    /// Returns the id of a machine's next call.
    pub fn next_call(&mut self, actor: usize) -> CallId {
        let machine = &mut self.machines[actor];
        machine.calls += 1;
        CallId(machine.calls)
    }

    /// Ends a machine's process: its next process begins with a new client, and events for the
    /// ended one have no effect.
    pub fn end_process(&mut self, actor: usize) {
        let (market, replicas) = (self.market, self.config.replicas);
        let machine = &mut self.machines[actor];
        machine.life += 1;
        machine.watch = None;
        machine.wakes = None;
        machine.client = MarketClient::new(machine.account, market, replicas);
    }

    fn wake_client(&mut self, actor: usize) {
        let machine = &mut self.machines[actor];
        if machine.wakes != Some(self.now) {
            return;
        }
        machine.wakes = None;
        match machine.client.wakes_at() {
            Some(at) if at.0 <= self.now => self.tell_client(actor, ClientEvent::TimerFired),
            _ => self.set_client_wake(actor),
        }
    }

    /// Gives an event to a machine's client, carries out the client's actions, and schedules its
    /// next wake.
    pub fn tell_client(&mut self, actor: usize, event: ClientEvent) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let (now, own) = (self.moment_of(actor), self.own_time());
            let own = Micros::from_millis(own.0);
            let own = own.plus(Micros(self.now % 1_000));
            for action in self.machines[actor].client.apply(now, own, event) {
                events.extend(self.carry_out_client(actor, action));
            }
        }
        self.set_client_wake(actor);
    }

    /// Schedules the next moment at which a client must wake, unless it will wake earlier.
    fn set_client_wake(&mut self, actor: usize) {
        let machine = &mut self.machines[actor];
        let wakes = machine.client.wakes_at().map(|at| at.0.max(self.now));
        if let Some(at) = wakes
            && machine.wakes.is_none_or(|known| known > at)
        {
            machine.wakes = Some(at);
            let life = machine.life;
            self.add_event(at, CrowdEvent::ClientWake(actor, life));
        }
    }

    fn carry_out_client(&mut self, actor: usize, action: Action) -> Option<ClientEvent> {
        let life = self.machines[actor].life;
        match action {
            Action::Sign { asked, batch } => {
                let (batch, signature) = (*batch, TRUSTED);
                let batch = Box::new(SignedBatch { batch, signature });
                return Some(ClientEvent::Signed { asked, batch });
            }
            Action::Put {
                putting,
                validator,
                question,
                ..
            } => {
                let node = validator.0;
                let at = self.now + self.way_to(actor, node);
                let put = Put {
                    actor,
                    life,
                    putting,
                    node,
                    question: *question,
                };
                self.add_event(at, CrowdEvent::Put(Box::new(put)));
            }
            Action::AskTime(validator) => {
                let node = validator.0;
                let at = self.now + self.way_to(actor, node);
                self.add_event(at, CrowdEvent::AskTime(actor, life, node));
            }
            // The validator still does the work and answers, but the client ignores the answer.
            Action::Stop(_) => self.counts.questions_stopped += 1,
            Action::Watch {
                watch, validator, ..
            } => {
                let node = validator.0;
                let at = self.now + self.way_to(actor, node);
                self.add_event(at, CrowdEvent::Watch(actor, life, watch));
            }
            Action::Unwatch(_) => self.machines[actor].watch = None,
            Action::Changed(_) => match actor < self.config.providers {
                true => self.tell_provider(actor, provider::Event::Changed),
                false => self.look_at_followed(actor),
            },
            Action::WatchLost(_) => {}
            Action::Reply { asked, reply } => match actor < self.config.providers {
                true => self.on_provider_reply(actor, asked, reply),
                false => self.on_buyer_reply(actor, asked, reply),
            },
        }
        None
    }

    /// Returns the time that a message between a machine and a validator takes one way, in
    /// microseconds.
    pub fn way_to(&self, actor: usize, node: usize) -> u64 {
        supply::way_us(self.machines[actor].region, self.validators.region(node))
    }
}
