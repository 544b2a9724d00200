//! Simulates the world around a provider's core for its tests: the market, the disk, the store and
//! the device. It also checks the invariants of the effects that the core requests.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{
    Acceptance, AccountKey, Batch, Bid, Command, Credits, Dtype, Exchange, Genesis, JobId,
    KindCode, Lease, LeaseId, Limit, Millis, Nonce, Outcome, Price, Receipt, Resources, SigningKey,
    Term, Throughput, TimeInForce, TokenTerms, Units, Wants,
};
use souk_memory::ContentId;

use crate::clock::{Micros, Now};
use crate::effect::{Effect, Ticket};
use crate::lease::{
    BuyerMessage, Failure, Feedback, Input, Offer, OfferAnswer, Opening, Output, Part,
    ProviderMessage, Request, Source, Start, WorkResult,
};
use crate::provider::{
    Action, Answer, Arrival, Config, Event, Fact, MarketView, NotDone, Past, ProviderCore, Report,
    RunResult, StreamId, Terms,
};
use crate::tokens::card::TextCard;
use crate::tokens::counting::TokenCount;

pub const PRICE: Price = Price(1_000_000);

/// The keys of further accounts that can buy.
pub const MORE_BUYERS: [u8; 3] = [12, 13, 14];

/// A provider and all around it.
pub struct World {
    pub core: ProviderCore,
    pub now: Now,
    pub exchange: Exchange,
    provider: SigningKey,
    resources: Resources,
    pub buyer: SigningKey,
    nonces: u64,
    streams: u64,
    /// The effects that the core requested and the world has not carried out yet.
    pub pending: Vec<Effect<Action>>,
    /// What is on the disk.
    pub journal: Vec<Fact>,
    pub is_disk_full: bool,
    /// The messages that the core sent, by stream.
    pub said: BTreeMap<StreamId, Vec<ProviderMessage>>,
    /// How often it was said that the provider lives, in all and by stream.
    pub alive: u32,
    pub alive_on: BTreeMap<StreamId, u32>,
    /// How many leases of the device the provider sells at most.
    pub units: Units,
    /// What was answered to offers.
    pub replies: Vec<OfferAnswer>,
    pub hung: BTreeSet<StreamId>,
    pub reports: Vec<Report>,
    /// Every command that was given.
    pub commands: Vec<Command>,
    /// How often each content is pinned.
    pub pins: BTreeMap<ContentId, i64>,
    /// Places that are open, and runs at work in each.
    pub places: BTreeMap<LeaseId, BTreeSet<Ticket>>,
    pub slots: u32,
    /// How many sequences leases have that are sessions: so many of their runs go on at once.
    sequences: BTreeMap<LeaseId, u32>,
    ran: BTreeSet<(LeaseId, u32, u32)>,
    began: BTreeSet<LeaseId>,
    pub is_over: bool,
    /// How often the core looked at the market.
    pub looks: u32,
}

pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

pub fn account(key: &SigningKey) -> AccountKey {
    AccountKey(key.verifying_key().to_bytes())
}

pub fn id(name: &str) -> ContentId {
    ContentId::for_content(name.as_bytes())
}

fn resources() -> Resources {
    Resources {
        kind: KindCode(2),
        kind_name: "gpu".try_into().unwrap(),
        model: "Test 24".try_into().unwrap(),
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        link_bandwidth: 1 << 30,
        link_latency_us: 200,
        ..Resources::default()
    }
}

fn config(exchange: &Exchange, provider: &SigningKey, resources: Resources) -> Config {
    Config {
        account: account(provider),
        market: exchange.market(),
        resources,
        capacity: Units(32),
        price_min: Price(1),
        memory_bytes_max: 1_000_000,
        made_bytes_max: 1_000_000,
        patience: Micros::from_seconds(60),
    }
}

impl World {
    /// A provider whose ask is in the book.
    pub fn selling() -> World {
        let mut world = World::empty();
        world.settle();
        assert_eq!(world.exchange.all_asks().count(), 1, "it is on offer");
        world
    }

    /// A provider of a model, whose ask is in the book.
    pub fn selling_model(card: &TextCard, terms: TokenTerms) -> World {
        let mut world = World::empty_of_model(card, terms);
        world.settle();
        world
    }

    /// A provider of a model that has not begun to sell.
    pub fn empty_of_model(card: &TextCard, terms: TokenTerms) -> World {
        World::empty_with(card.to_resources(terms))
    }

    pub fn empty() -> World {
        World::empty_with(resources())
    }

    fn empty_with(resources: Resources) -> World {
        let (provider, buyer) = (key(1), key(2));
        let mut genesis = Genesis::new("test".try_into().unwrap(), account(&key(9)));
        let rich = Credits(1_000_000_000_000);
        genesis.accounts = vec![
            (account(&provider), "provider".try_into().unwrap(), rich),
            (account(&buyer), "buyer".try_into().unwrap(), rich),
        ];
        let more = MORE_BUYERS.map(|seed| (account(&key(seed)), Default::default(), rich));
        genesis.accounts.extend(more);
        let exchange = Exchange::new(genesis);
        let now = Now {
            tick: Micros(7),
            log: Millis(1_000_000),
        };
        let of = config(&exchange, &provider, resources.clone());
        let (core, effects) = ProviderCore::resume(of, Past::default(), now);
        let mut world = World {
            core,
            now,
            exchange,
            provider,
            resources,
            buyer,
            nonces: 0,
            streams: 0,
            pending: Vec::new(),
            journal: Vec::new(),
            is_disk_full: false,
            said: BTreeMap::new(),
            alive: 0,
            alive_on: BTreeMap::new(),
            units: Units(u32::MAX),
            replies: Vec::new(),
            hung: BTreeSet::new(),
            reports: Vec::new(),
            commands: Vec::new(),
            pins: BTreeMap::new(),
            places: BTreeMap::new(),
            slots: 1,
            sequences: BTreeMap::new(),
            ran: BTreeSet::new(),
            began: BTreeSet::new(),
            is_over: false,
            looks: 0,
        };
        world.take(effects);
        world
    }

    /// The process dies; of what was being put down nothing came to the disk. Nothing must happen
    /// to it until it starts again.
    pub fn kill(&mut self) {
        self.pending.clear();
        self.pins.clear();
        self.places.clear();
        self.hung.extend(self.said.keys().copied());
    }

    /// The disk is lost.
    pub fn lose_disk(&mut self) {
        self.journal.clear();
        self.began.clear();
        self.ran.clear();
    }

    /// The process dies and starts again.
    pub fn restart(&mut self) {
        self.kill();
        self.is_over = false;
        let past = Past::from_facts(self.journal.clone());
        let of = config(&self.exchange, &self.provider, self.resources.clone());
        let (core, effects) = ProviderCore::resume(of, past, self.now);
        self.core = core;
        self.take(effects);
    }

    /// Something happens.
    pub fn on(&mut self, event: Event) {
        let effects = self.core.apply(self.now, event);
        self.take(effects);
        self.core.assert_invariants();
        if let Some(wakes_at) = self.core.wakes_at() {
            assert!(wakes_at >= self.now.tick, "no moment that has passed");
        }
    }

    /// Advances the time, and fires the timers that become due.
    pub fn pass(&mut self, millis: u64) {
        let until = self.now.tick.plus(Micros::from_millis(millis));
        let log = self.now.log.0 + millis;
        loop {
            let next = self.core.wakes_at().filter(|wakes| *wakes <= until);
            let Some(next) = next else { break };
            let gone = next.max(self.now.tick).since(self.now.tick);
            self.now.tick = self.now.tick.plus(gone);
            self.now.log = Millis((self.now.log.0 + gone.0 / 1_000).min(log));
            self.exchange.tick(self.now.log);
            self.on(Event::TimerFired);
        }
        (self.now.tick, self.now.log) = (until, Millis(log));
        self.exchange.tick(self.now.log);
    }

    /// Time goes on while the provider's process is dead.
    pub fn pass_without_provider(&mut self, millis: u64) {
        self.now.tick = self.now.tick.plus(Micros::from_millis(millis));
        self.now.log = Millis(self.now.log.0 + millis);
        self.exchange.tick(self.now.log);
    }

    /// Time goes on and all that is wanted is done at once.
    pub fn live(&mut self, millis: u64) {
        let steps = millis.div_ceil(250);
        for _ in 0..steps {
            self.pass(250);
            self.settle();
        }
    }

    /// Carries out all that is wanted, well, until nothing is.
    pub fn settle(&mut self) {
        self.settle_but(|_| false);
    }

    /// The same but for what is held up.
    pub fn settle_but(&mut self, mut is_held: impl FnMut(&Action) -> bool) {
        for _ in 0..10_000 {
            let next = self.pending.iter();
            let mut next = next.enumerate();
            let Some((place, _)) = next.find(|(_, effect)| !is_held(&effect.action)) else {
                return;
            };
            self.carry_out(place, true);
        }
        panic!("it never comes to rest: {:?}", self.pending);
    }

    /// Carries out one thing that is wanted, well or badly.
    pub fn carry_out(&mut self, place: usize, is_well: bool) {
        let Effect { ticket, action } = self.pending.remove(place);
        let answer = self.answer(ticket, &action, is_well);
        self.on(Event::EffectAnswered { ticket, answer });
    }

    /// The first thing of a kind that is wanted.
    pub fn wanted(&self, is_of: impl Fn(&Action) -> bool) -> Option<usize> {
        self.pending.iter().position(|effect| is_of(&effect.action))
    }

    /// What a kind of thing comes to, instead of what usually does.
    pub fn answer_with(&mut self, is_of: impl Fn(&Action) -> bool, answer: Answer) {
        let place = self.wanted(is_of).expect("it is wanted");
        let Effect { ticket, action } = self.pending.remove(place);
        if let Action::Run { lease, .. } = action {
            self.places.entry(lease).or_default().remove(&ticket);
        }
        self.on(Event::EffectAnswered { ticket, answer });
    }

    fn take(&mut self, effects: Vec<Effect<Action>>) {
        for effect in effects {
            assert!(!self.is_over, "nothing comes after the end");
            self.look(&effect);
            let is_done = self.at_once(&effect);
            if !is_done {
                self.pending.push(effect);
            }
        }
    }

    /// What must hold of everything that is wanted.
    fn look(&mut self, effect: &Effect<Action>) {
        let is_down =
            |world: &World, is_of: &dyn Fn(&Fact) -> bool| world.journal.iter().any(is_of);
        match &effect.action {
            Action::Record(facts) => {
                for fact in facts {
                    if let Fact::Began { lease, .. } = fact {
                        // Tried again where the disk was full.
                        let is_new = self.began.insert(*lease);
                        assert!(is_new || !is_down(self, &|f| is_began(f, *lease)));
                    }
                }
            }
            Action::Bring { lease, .. } | Action::Sandbox { lease, .. } => {
                assert!(is_down(self, &|fact| is_began(fact, *lease)), "Began first");
            }
            Action::Run {
                lease,
                request,
                part,
                ..
            } => {
                assert!(is_down(self, &|fact| is_began(fact, *lease)), "Began first");
                assert!(self.ran.insert((*lease, *request, *part)), "it runs once");
                let slots = self.slots.max(self.sequences[lease]);
                let runs = self.places.get_mut(lease).expect("it has a place");
                runs.insert(effect.ticket);
                assert!(runs.len() <= slots as usize, "runs have slots");
            }
            Action::SendMessage {
                message: ProviderMessage::Accepted,
                ..
            } => {}
            Action::SendMessage {
                message: ProviderMessage::Finished(finished),
                ..
            } => {
                let of = finished.receipt.body.lease;
                let is_ran = |f: &Fact| matches!(f, Fact::Ran { lease, .. } if *lease == of);
                assert!(is_down(self, &is_ran), "Ran first");
                assert!(finished.receipt.verify_provider().is_ok());
            }
            Action::Command(command) => {
                self.commands.push((**command).clone());
                if let Command::Settle(receipt) = &**command {
                    let of = receipt.body.lease;
                    let is_signed = |f: &Fact| matches!(f, Fact::Signed { receipt } if receipt.body.lease == of);
                    assert!(is_down(self, &is_signed), "Signed first");
                }
            }
            _ => {}
        }
    }

    /// Does what is not answered; whether it is such a thing.
    fn at_once(&mut self, effect: &Effect<Action>) -> bool {
        match &effect.action {
            Action::SendMessage { stream, message } => {
                assert!(!self.hung.contains(stream) || self.is_peer_gone(*stream));
                let said = self.said.entry(*stream).or_default();
                match message {
                    ProviderMessage::Alive => {
                        self.alive += 1;
                        *self.alive_on.entry(*stream).or_default() += 1;
                    }
                    message => said.push(message.clone()),
                }
            }
            Action::Reply { taken, .. } => self.replies.push(*taken),
            Action::CloseStream { stream } => drop(self.hung.insert(*stream)),
            Action::Release { contents } => {
                for content in contents {
                    *self.pins.entry(*content).or_default() -= 1;
                }
            }
            Action::Hold { contents } => {
                for content in contents {
                    *self.pins.entry(*content).or_default() += 1;
                }
            }
            Action::EndSandbox { lease } => drop(self.places.remove(lease)),
            Action::Tell(report) => self.reports.push(report.clone()),
            Action::Stop(ticket) => self.stop(*ticket),
            Action::Over => self.is_over = true,
            Action::Learn { start, .. } => {
                self.sequences.insert(start.lease, start.sequences);
            }
            Action::Hurry { .. } => {}
            Action::Bring { contents, .. } => {
                for content in contents {
                    *self.pins.entry(content.id).or_default() += 1;
                }
                return false;
            }
            Action::Sandbox { lease, .. } => {
                self.places.insert(*lease, BTreeSet::new());
                return false;
            }
            _ => return false,
        }
        true
    }

    fn is_peer_gone(&self, _stream: StreamId) -> bool {
        // A stream that its peer closed may be written to until that is known.
        true
    }

    fn stop(&mut self, ticket: Ticket) {
        self.pending.retain(|effect| effect.ticket != ticket);
        for runs in self.places.values_mut() {
            runs.remove(&ticket);
        }
    }

    fn answer(&mut self, ticket: Ticket, action: &Action, is_well: bool) -> Answer {
        let fault = || Failure::Crashed("it was played".to_owned());
        match action {
            Action::Offer { .. } if is_well => Answer::Offered(Ok(OfferAnswer::Yes)),
            Action::Offer { .. } => Answer::Offered(Err("no answer".to_owned())),
            Action::LookAt { .. } | Action::LookAtMarket { .. } if !is_well => {
                Answer::NotSeen("nobody answers".to_owned())
            }
            Action::LookAt { lease } => {
                Answer::LeaseSeen(self.exchange.lease(*lease).cloned().map(Box::new))
            }
            Action::LookAtMarket { asks } => {
                self.looks += 1;
                Answer::MarketSeen(Box::new(self.view(*asks)))
            }
            Action::Command(command) => Answer::Commanded(self.command(command, is_well)),
            Action::Bring { contents, .. } if is_well => Answer::Arrived(
                contents
                    .iter()
                    .map(|content| Arrival {
                        id: content.id,
                        bytes: 100,
                        moved: 100,
                    })
                    .collect(),
            ),
            Action::Bring { .. } => Answer::NotArrived(Failure::Input("nobody has it".to_owned())),
            Action::Check { .. } if is_well => Answer::Checked(Ok(())),
            Action::Check { .. } => Answer::Checked(Err(Failure::Limit("no".to_owned()))),
            Action::Sandbox { .. } if is_well => Answer::Sandboxed { slots: self.slots },
            Action::Sandbox { lease, .. } => {
                self.places.remove(lease);
                Answer::NoSandbox(fault())
            }
            Action::Prepare { .. } if is_well => Answer::Prepared(Ok(())),
            Action::Prepare { .. } => Answer::Prepared(Err(Failure::Compile("no".to_owned()))),
            Action::Run {
                lease,
                request,
                work,
                ..
            } => {
                self.places.entry(*lease).or_default().remove(&ticket);
                Answer::Ran(match is_well {
                    true => Ok(ran(work, *request)),
                    false => Err(fault().into()),
                })
            }
            Action::Record(facts) if is_well && !self.is_disk_full => {
                self.journal.extend(facts.iter().cloned());
                Answer::Recorded
            }
            Action::Record(_) => Answer::NotWritten("the disk is full".to_owned()),
            Action::Sign(body) => {
                let receipt = Receipt::new((**body).clone());
                Answer::Signed(Box::new(receipt.sign_as_provider(&self.provider)))
            }
            action => panic!("{action:?} is not answered"),
        }
    }

    fn view(&self, asks: bool) -> MarketView {
        let me = account(&self.provider);
        let mine = |lease: &&Lease| lease.provider == me && !lease.is_closed();
        let known = self.exchange.account(me).expect("it has an account");
        let listed = self
            .exchange
            .all_asks()
            .filter(|listing| listing.provider == me);
        MarketView {
            leases: self.exchange.leases().filter(mine).cloned().collect(),
            offered: known.offered_units(super::super::DEVICE),
            open_orders: known.open_orders,
            asks: match asks {
                true => listed.map(|listing| listing.order).collect(),
                false => Vec::new(),
            },
            due: Some(Terms {
                price: PRICE,
                duration_max: Millis(3_600_000),
                notice: Millis(5_000),
                spot: Vec::new(),
                idle: souk_market::Permille(100),
                reputation_min: souk_market::Permille(0),
            }),
            slots: self.units,
        }
    }

    fn command(&mut self, command: &Command, is_well: bool) -> Result<Acceptance, NotDone> {
        let key = self.provider.clone();
        let done = self.carry(&key, command.clone());
        match is_well {
            true => done.map_err(NotDone::Refused),
            false => Err(NotDone::Uncertain("no answer".to_owned())),
        }
    }

    /// A command of somebody's.
    pub fn carry(
        &mut self,
        key: &SigningKey,
        command: Command,
    ) -> Result<Acceptance, souk_market::Refusal> {
        self.nonces += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account: account(key),
            nonce: Nonce(self.nonces),
            expires: Millis(self.now.log.0 + 60_000),
            commands: vec![command],
        };
        let verified = batch.sign(key).verify().expect("it is signed");
        let outcome = self.exchange.apply(self.now.log, &verified).outcomes.pop();
        outcome.map(Outcome::into_result).expect("one a command")
    }

    /// The buyer leases the device for so long, and has told the log that the work begins.
    pub fn buy(&mut self, term: Term, millis: u64) -> Lease {
        let lease = self.buy_quietly(term, millis).id;
        let buyer = self.buyer.clone();
        let started = self.carry(&buyer, Command::StartWork { lease });
        started.expect("its buyer says so");
        self.exchange.lease(lease).expect("it was bought").clone()
    }

    /// A lease whose buyer tells the log nothing more.
    pub fn buy_quietly(&mut self, term: Term, millis: u64) -> Lease {
        let listing = self.exchange.all_asks().next().expect("it is on offer");
        let bid = Bid {
            class: listing.class,
            wants: Wants::default(),
            limit: Limit::Price(PRICE),
            budget: Credits(10_000_000_000),
            quantity: Units(1),
            all_or_none: true,
            duration: Millis(millis),
            start_delay_max: Millis(0),
            term,
            tif: TimeInForce::Fok,
            job: JobId([5; 32]),
        };
        let buyer = self.buyer.clone();
        let bought = self.carry(&buyer, Command::PlaceBid(Box::new(bid)));
        let Ok(Acceptance::Placed { trades, .. }) = bought else {
            panic!("it was not bought: {bought:?}");
        };
        let lease = self.exchange.lease(trades[0].lease);
        lease.expect("it was bought").clone()
    }

    /// A stream of the buyer's.
    pub fn open(&mut self, opening: Opening) -> StreamId {
        let peer = account(&self.buyer);
        self.open_as(peer, opening)
    }

    pub fn open_as(&mut self, peer: AccountKey, opening: Opening) -> StreamId {
        let stream = StreamId(self.streams);
        self.streams += 1;
        self.said.insert(stream, Vec::new());
        self.on(Event::Opened {
            stream,
            peer,
            opening,
        });
        stream
    }

    pub fn say(&mut self, stream: StreamId, message: BuyerMessage) {
        self.on(Event::MessageReceived { stream, message });
    }

    pub fn hang(&mut self, stream: StreamId) {
        self.hung.insert(stream);
        self.on(Event::StreamClosed { stream });
    }

    /// Names of what was said on a stream.
    pub fn messages(&self, stream: StreamId) -> Vec<String> {
        let messages = self.said[&stream].iter();
        messages.map(name).collect()
    }

    /// The result that was told on a stream.
    pub fn finished(&self, stream: StreamId) -> WorkResult {
        let messages = self.said[&stream].iter();
        let mut told = messages.filter_map(|message| match message {
            ProviderMessage::Finished(finished) => Some((**finished).clone()),
            _ => None,
        });
        told.next().expect("it was told")
    }

    /// The buyer signs what it was told.
    pub fn sign(&mut self, stream: StreamId) {
        let receipt = self.finished(stream).receipt.sign_as_buyer(&self.buyer);
        self.say(stream, BuyerMessage::Signed(Box::new(receipt)));
    }

    /// What a lease was paid in the end.
    pub fn paid(&self, lease: LeaseId) -> Option<Credits> {
        self.journal.iter().find_map(|fact| match fact {
            Fact::Closed {
                lease: of, paid, ..
            } if *of == lease => *paid,
            _ => None,
        })
    }

    /// Nothing is at work, owed, pinned or open.
    pub fn assert_at_rest(&self) {
        let status = self.core.status();
        assert_eq!((status.at_work, status.owed), (Vec::new(), Vec::new()));
        let pinned: Vec<_> = self.pins.iter().filter(|(_, count)| **count != 0).collect();
        assert_eq!(pinned, Vec::new(), "pins are let go");
        assert!(self.places.is_empty(), "places are closed");
        let began = self
            .journal
            .iter()
            .filter(|f| matches!(f, Fact::Began { .. }));
        let closed = self
            .journal
            .iter()
            .filter(|f| matches!(f, Fact::Closed { .. }));
        assert_eq!(began.count(), closed.count(), "what began was closed");
    }
}

fn is_began(fact: &Fact, of: LeaseId) -> bool {
    matches!(fact, Fact::Began { lease, .. } if *lease == of)
}

/// The tokens of a request of a tab: 30 ms, as a run takes.
pub const RUN_TOKENS: TokenCount = TokenCount {
    input: 40,
    cached: 0,
    output: 20,
};

pub fn ran(part: &Part, request: u32) -> RunResult {
    let output = |output: &Output| {
        let name = &output.name;
        (name.clone(), id(&format!("{name} of {request}")))
    };
    RunResult {
        outputs: part.outputs.iter().map(output).collect(),
        bytes: 10,
        busy: Micros::from_millis(30),
        promised: Some(Micros::from_millis(30)),
        tokens: Some(RUN_TOKENS),
    }
}

fn name(message: &ProviderMessage) -> String {
    match message {
        ProviderMessage::Accepted => "accepted".to_owned(),
        ProviderMessage::Fetched { .. } => "fetched".to_owned(),
        ProviderMessage::Ready => "ready".to_owned(),
        ProviderMessage::Running { request, part } => format!("running {request}.{part}"),
        ProviderMessage::Made { request, part, .. } => format!("made {request}.{part}"),
        ProviderMessage::Untaken(untaken) => format!("untaken {}", untaken.offer.name),
        ProviderMessage::Stalled(why) => format!("stalled: {why}"),
        ProviderMessage::Finished(_) => "finished".to_owned(),
        ProviderMessage::Failed(why) => format!("failed: {why}"),
        ProviderMessage::Alive => "alive".to_owned(),
    }
}

/// A part that reads `x` and gives `y`.
pub fn part(reads: &[(&str, Source)], gives: &str) -> Part {
    let input = |(name, source): &(&str, Source)| Input {
        name: (*name).to_owned(),
        source: *source,
        fed: None,
    };
    Part {
        name: format!("the part of {gives}"),
        graph: id(&format!("graph of {gives}")),
        weights: vec![id("weights")],
        inputs: reads.iter().map(input).collect(),
        outputs: vec![Output {
            name: gives.to_owned(),
            consumers: Vec::new(),
            is_wanted: true,
        }],
        flops: 1_000_000,
        expected: Micros::from_millis(30),
    }
}

/// The request of this number, which gives `x`.
pub fn request(number: u32) -> Request {
    let inputs = vec![("x".to_owned(), id(&format!("x of {number}")))];
    Request::new(number, inputs)
}

/// The start of a lease of one part, and of one request where it is the last.
pub fn start(lease: &Lease, last: bool) -> Start {
    Start {
        sequences: 0,
        lease: lease.id,
        job: lease.job,
        parts: vec![part(&[("x", Source::Buyer)], "y")],
        peers: Vec::new(),
        priority: 0,
        first: request(0),
        last,
    }
}

/// A start of two parts, of which the second wants `z` of another lease too.
pub fn start_of_two(lease: &Lease, last: bool) -> Start {
    let (lease_of_other, provider) = maker();
    let other = Source::Lease {
        lease: lease_of_other,
        provider,
    };
    Start {
        sequences: 0,
        parts: vec![
            part(&[("x", Source::Buyer)], "y"),
            part(&[("y", Source::Own), ("z", other)], "w"),
        ],
        ..start(lease, last)
    }
}

/// Who makes what this provider's leases are fed or read, if they do not.
pub fn maker() -> (LeaseId, AccountKey) {
    (LeaseId(77), account(&key(3)))
}

/// The start of a session of two sequences, where `x` is fed: by `y` of its own, or by `z` of
/// another lease.
pub fn start_of_fed(lease: &Lease, maker: Option<(LeaseId, AccountKey)>) -> Start {
    let mut start = Start {
        sequences: 2,
        ..start(lease, false)
    };
    let name = if maker.is_some() { "z" } else { "y" }.to_owned();
    start.parts[0].inputs[0].fed = Some(Feedback { name, maker });
    start
}

/// An offer of what the second part of such a start wants.
pub fn offer(lease: &Lease, request: u32) -> Offer {
    Offer {
        from: maker().0,
        to: lease.id,
        request,
        name: "z".to_owned(),
        tensor: id(&format!("z of {request}")),
    }
}

pub fn is_run(action: &Action) -> bool {
    matches!(action, Action::Run { .. })
}

pub fn is_bring(action: &Action) -> bool {
    matches!(action, Action::Bring { .. })
}
