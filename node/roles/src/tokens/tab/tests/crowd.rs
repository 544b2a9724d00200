//! Several tabs at once at one provider that sells few slots. A seed draws which side lies, vanishes
//! or idles, whose clock is wrong, and the order of all that happens; [`promises`] says what must
//! hold in the end.

mod promises;

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{Bid, Units, WantedTokens};

use super::*;
use crate::provider::Action as ProviderAction;
use crate::provider::tests::world::{MORE_BUYERS, ran};

/// The slots of the provider.
const SLOTS: u32 = 2;

/// The accounts that buy tabs.
const BUYERS: [u8; 4] = [2, MORE_BUYERS[0], MORE_BUYERS[1], MORE_BUYERS[2]];

/// The most tabs of a history.
const TABS_MAX: usize = 8;

/// The most tokens of a message and of an answer.
const INPUT_MAX: u64 = 400;
const OUTPUT_MAX: u64 = 300;

/// What a provider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProviderManner {
    Honest,
    /// It counts more tokens than its texts have.
    CountsMore,
    /// Some answers have twice the tokens that they may have.
    IsTooLong,
    /// One field of its receipts is false.
    FalsifiesReceipts,
    /// It notes any usage.
    NotesAnything,
    /// Some requests get no answer, and some only their beginning.
    Idles,
}

/// What a buyer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BuyerManner {
    Honest,
    /// Its process dies.
    Vanishes,
    /// It keeps the slot and sends nothing more.
    Holds,
    /// It reads the answers, and signs no receipt.
    NeverSigns,
    /// It also never tells the log that the work has begun.
    HidesWork,
    /// It refuses what it got.
    Disputes,
    /// It ends the lease in the middle of an answer.
    Cuts,
    /// Its process dies, comes back to the provider, and signs.
    Resumes,
}

const PROVIDER_MANNERS: [ProviderManner; 10] = [
    ProviderManner::Honest,
    ProviderManner::Honest,
    ProviderManner::Honest,
    ProviderManner::Honest,
    ProviderManner::Honest,
    ProviderManner::CountsMore,
    ProviderManner::IsTooLong,
    ProviderManner::FalsifiesReceipts,
    ProviderManner::NotesAnything,
    ProviderManner::Idles,
];

const BUYER_MANNERS: [BuyerManner; 12] = [
    BuyerManner::Honest,
    BuyerManner::Honest,
    BuyerManner::Honest,
    BuyerManner::Honest,
    BuyerManner::Honest,
    BuyerManner::Vanishes,
    BuyerManner::Holds,
    BuyerManner::NeverSigns,
    BuyerManner::HidesWork,
    BuyerManner::Disputes,
    BuyerManner::Cuts,
    BuyerManner::Resumes,
];

/// A request and its answer as they truly are.
#[derive(Clone, Copy, Debug)]
struct TrueAnswer {
    count: TokenCount,
    /// The most tokens that the request allows.
    most: TokenCount,
}

impl TrueAnswer {
    fn draw(job: JobId, request: u32, is_too_long: bool) -> TrueAnswer {
        let seed = u64::from(job.0[0]) << 32 | u64::from(request);
        let mut dice = Dice::new(seed);
        let (input, limit) = (1 + dice.below(INPUT_MAX), 1 + dice.below(OUTPUT_MAX));
        let output = match is_too_long && dice.is_hit(40) {
            true => 2 * limit,
            false => 1 + dice.below(limit),
        };
        let count = |output| TokenCount {
            input,
            output,
            ..TokenCount::default()
        };
        TrueAnswer {
            count: count(output),
            most: count(limit),
        }
    }

    fn is_too_long(&self) -> bool {
        self.count.output > self.most.output
    }

    fn device_time(&self, terms: TokenTerms) -> Micros {
        Micros(self.count.device_time(terms).0)
    }
}

/// A clock that differs from the log's.
#[derive(Clone, Copy, Debug)]
struct WrongClock {
    ahead_ms: i64,
    /// How much faster it is, in millionths.
    faster_ppm: u64,
}

impl WrongClock {
    fn draw(dice: &mut Dice) -> WrongClock {
        let span = match dice.below(6) {
            0 => 45_000,
            1..=3 => 500,
            _ => 0,
        };
        WrongClock {
            ahead_ms: dice.below(2 * span + 1) as i64 - span as i64,
            faster_ppm: dice.below(300),
        }
    }

    fn show(self, now: Now) -> Now {
        let more = now.tick.0 / 1_000_000 * self.faster_ppm;
        Now {
            tick: Micros(now.tick.0 + more),
            log: Millis(now.log.0.saturating_add_signed(self.ahead_ms)),
        }
    }
}

/// One tab, with its buyer.
struct PlayedTab {
    owner: SigningKey,
    job: JobId,
    manner: BuyerManner,
    clock: WrongClock,
    /// None once its process is gone.
    core: Option<TabCore>,
    pending: VecDeque<Effect<TabAction>>,
    stream: Option<StreamId>,
    heard: usize,
    heard_alive: u32,
    lease: Option<LeaseId>,
    last_seen: Option<Lease>,
    /// When the provider learns that the buyer is gone.
    hangs_at: Option<Micros>,
    asked: u32,
    delivered: u32,
    /// The device time of the answers that were delivered.
    seen: DeviceMicros,
    /// That of the answer that is counted now.
    counting: DeviceMicros,
    failures: Vec<TabFailure>,
    outcome: Option<TabOutcome>,
}

/// The provider's side of a request.
#[derive(Clone, Copy, Debug)]
struct PlayedRun {
    job: JobId,
    began: Micros,
}

/// A provider, its tabs, and what a seed draws.
struct Crowd {
    world: World,
    dice: Dice,
    terms: TokenTerms,
    manner: ProviderManner,
    /// Until when the provider's process is dead.
    dead_until: Option<Micros>,
    /// Whether it was dead for long, or lost what it had put down.
    has_lost_time: bool,
    has_lost_disk: bool,
    /// The leases that were open when it died. Its journal does not say whether their last answer
    /// was lost, so its buyer can dispute the whole note.
    interrupted: BTreeSet<LeaseId>,
    listing: Listing,
    card: ContentId,
    tabs: Vec<PlayedTab>,
    runs: BTreeMap<(LeaseId, u32), PlayedRun>,
    /// The true device time of all answers that the provider made, by lease.
    made: BTreeMap<LeaseId, DeviceMicros>,
    /// How often what happened.
    events: BTreeMap<&'static str, u32>,
}

impl Crowd {
    fn new(seed: u64) -> Crowd {
        let mut dice = Dice::new(seed ^ 0x7ab5);
        let floor_us = dice.pick(&[0, 0, 50_000, 300_000]);
        let terms = TokenTerms { floor_us, ..TERMS };
        let card = TextCard::new("qwen/qwen3-8b").unwrap();
        let mut world = World::empty_of_model(&card, terms);
        world.units = Units(SLOTS);
        world.settle();
        let listing = world.exchange.all_asks().next().expect("it is on offer");
        assert_eq!(listing.quantity, Units(SLOTS));
        let manner = dice.pick(&PROVIDER_MANNERS);
        Crowd {
            world,
            dice,
            terms,
            manner,
            dead_until: None,
            has_lost_time: false,
            has_lost_disk: false,
            interrupted: BTreeSet::new(),
            listing,
            card: card.id(),
            tabs: Vec::new(),
            runs: BTreeMap::new(),
            made: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    fn note_event(&mut self, name: &'static str) {
        *self.events.entry(name).or_default() += 1;
    }

    fn begin_tab(&mut self) {
        let owner = key(self.dice.pick(&BUYERS));
        let job = JobId([u8::try_from(self.tabs.len() + 1).unwrap(); 32]);
        let spec = TabSpec {
            market: self.world.exchange.market(),
            account: account(&owner),
            job,
            listing: Box::new(self.listing.clone()),
            excluded: Vec::new(),
            is_strict: false,
            card: self.card,
            duration: Millis(300_000),
        };
        let clock = WrongClock::draw(&mut self.dice);
        let now = clock.show(self.world.now);
        let (core, effects) = TabCore::begin(spec, id("body 0"), now);
        self.tabs.push(PlayedTab {
            owner,
            job,
            manner: self.dice.pick(&BUYER_MANNERS),
            clock,
            core: Some(core),
            pending: effects.into(),
            stream: None,
            heard: 0,
            heard_alive: 0,
            lease: None,
            last_seen: None,
            hangs_at: None,
            asked: 1,
            delivered: 0,
            seen: DeviceMicros(0),
            counting: DeviceMicros(0),
            failures: Vec::new(),
            outcome: None,
        });
    }

    fn true_answer(&self, job: JobId, request: u32) -> TrueAnswer {
        TrueAnswer::draw(job, request, self.manner == ProviderManner::IsTooLong)
    }

    fn on(&mut self, place: usize, event: TabEvent) {
        let tab = &mut self.tabs[place];
        let now = tab.clock.show(self.world.now);
        if let Some(core) = &mut tab.core {
            let effects = core.apply(now, event);
            tab.pending.extend(effects);
        }
    }

    /// The next step of one tab's buyer.
    fn carry_out(&mut self, place: usize) {
        let Some(Effect { ticket, action }) = self.tabs[place].pending.pop_front() else {
            return;
        };
        if let Some(answer) = self.answer_action(place, action) {
            self.on(place, TabEvent::EffectAnswered { ticket, answer });
        }
    }

    fn answer_action(&mut self, place: usize, action: TabAction) -> Option<TabAnswer> {
        let manner = self.tabs[place].manner;
        Some(match action {
            TabAction::Buy(bid) => return Some(self.buy(place, bid)),
            TabAction::Look => {
                let job = self.tabs[place].job;
                let leases = self.world.exchange.leases();
                TabAnswer::Leases(leases.filter(|it| it.job == job).cloned().collect())
            }
            TabAction::Find(_) if self.dead_until.is_some() && self.dice.is_hit(50) => {
                TabAnswer::NotFound("nobody knows where it is".to_owned())
            }
            TabAction::Find(_) => TabAnswer::Found,
            TabAction::Open(start) => {
                self.open(place, Opening::Start(start));
                return None;
            }
            TabAction::SendMessage(message) => {
                let stream = self.tabs[place].stream;
                if let Some(stream) = stream.filter(|_| self.dead_until.is_none()) {
                    self.world.say(stream, message);
                }
                return None;
            }
            TabAction::CloseStream => {
                self.hang(place);
                return None;
            }
            TabAction::Follow(terms) => {
                self.tabs[place].lease = Some(terms.lease);
                return None;
            }
            TabAction::Count { request, .. } => {
                let answer = self.true_answer(self.tabs[place].job, request);
                match answer.is_too_long() {
                    true => TabAnswer::NotCounted("it is too long".to_owned()),
                    false => {
                        let tab = &mut self.tabs[place];
                        tab.counting = DeviceMicros(answer.device_time(self.terms).0);
                        TabAnswer::Counted(answer.count)
                    }
                }
            }
            TabAction::Deliver => {
                let tab = &mut self.tabs[place];
                tab.delivered += 1;
                tab.seen.0 += tab.counting.0;
                return None;
            }
            TabAction::Fail(failure) => {
                self.tabs[place].failures.push(failure);
                return None;
            }
            TabAction::Sign(receipt) => match manner {
                BuyerManner::NeverSigns | BuyerManner::HidesWork => {
                    self.vanish(place);
                    return None;
                }
                BuyerManner::Disputes => {
                    self.dispute(place);
                    return None;
                }
                _ => {
                    let owner = &self.tabs[place].owner;
                    TabAnswer::Signed(Box::new(receipt.sign_as_buyer(owner)))
                }
            },
            TabAction::Command(command) => {
                let hides = manner == BuyerManner::HidesWork;
                let done = match *command {
                    Command::StartWork { .. } if hides => Ok(()),
                    command => {
                        let owner = self.tabs[place].owner.clone();
                        let done = self.world.carry(&owner, command);
                        done.map(drop).map_err(|refusal| refusal.to_string())
                    }
                };
                TabAnswer::Commanded(done)
            }
            TabAction::Over(outcome) => {
                let earlier = self.tabs[place].outcome.replace(outcome);
                assert_eq!(earlier, None, "it ends once");
                return None;
            }
        })
    }

    fn buy(&mut self, place: usize, bid: Box<Bid>) -> TabAnswer {
        let wanted = WantedTokens {
            model: self.listing.resources.model.clone(),
            most: self.terms,
        };
        assert_eq!(bid.wants.tokens, Some(wanted), "no dearer and no other one");
        let owner = self.tabs[place].owner.clone();
        let bought = self.world.carry(&owner, Command::PlaceBid(bid));
        if self.dice.is_hit(4) {
            return TabAnswer::Uncertain("no answer".to_owned());
        }
        match bought {
            Ok(Acceptance::Placed { trades, .. }) => TabAnswer::Bought(Box::new(trades[0])),
            Ok(other) => panic!("{other:?} is no trade"),
            Err(refusal) => TabAnswer::NotBought(refusal),
        }
    }

    fn open(&mut self, place: usize, opening: Opening) {
        if self.dead_until.is_some() {
            let why = "nobody listens".to_owned();
            return self.on(place, TabEvent::StreamClosed { why });
        }
        let peer = account(&self.tabs[place].owner);
        let stream = self.world.open_as(peer, opening);
        let tab = &mut self.tabs[place];
        (tab.stream, tab.heard, tab.heard_alive) = (Some(stream), 0, 0);
    }

    /// The tab's end of the stream closes.
    fn hang(&mut self, place: usize) {
        let Some(stream) = self.tabs[place].stream.take() else {
            return;
        };
        match self.dead_until {
            Some(_) => drop(self.world.hung.insert(stream)),
            None => self.world.hang(stream),
        }
    }

    /// The connection of a tab breaks.
    fn break_stream(&mut self, place: usize) {
        if self.tabs[place].stream.is_some() {
            self.note_event("a connection broke");
            self.hang(place);
            let why = "the connection is broken".to_owned();
            self.on(place, TabEvent::StreamClosed { why });
        }
    }

    /// The process of a tab is gone. Its provider learns that at once or later.
    fn vanish(&mut self, place: usize) {
        let later = match self.tabs[place].manner {
            BuyerManner::Holds => None,
            _ => Some(Micros::from_millis(
                self.dice.below(2) * self.dice.below(30_000),
            )),
        };
        let tab = &mut self.tabs[place];
        tab.core = None;
        tab.pending.clear();
        tab.hangs_at = later.map(|later| self.world.now.tick.plus(later));
    }

    fn dispute(&mut self, place: usize) {
        if let Some(lease) = self.tabs[place].lease {
            let owner = self.tabs[place].owner.clone();
            drop(self.world.carry(&owner, Command::Dispute { lease }));
        }
        self.vanish(place);
    }

    /// The tab hears the provider's next message, or what changed in the log.
    fn hear(&mut self, place: usize) -> bool {
        let tab = &mut self.tabs[place];
        if tab.core.is_none() {
            return false;
        }
        let lease = tab.lease.and_then(|id| self.world.exchange.lease(id));
        if let Some(lease) = lease.filter(|lease| tab.last_seen.as_ref() != Some(lease)) {
            let lease = Box::new(lease.clone());
            tab.last_seen = Some((*lease).clone());
            self.on(place, TabEvent::Changed { lease });
            return true;
        }
        let Some(stream) = tab.stream else {
            return false;
        };
        let alive = self.world.alive_on.get(&stream).copied().unwrap_or(0);
        if tab.heard_alive < alive {
            tab.heard_alive = alive;
            self.on(place, TabEvent::MessageReceived(ProviderMessage::Alive));
            return true;
        }
        if let Some(message) = self.world.said[&stream].get(tab.heard).cloned() {
            tab.heard += 1;
            let message = self.falsify(message);
            self.on(place, TabEvent::MessageReceived(message));
            return true;
        }
        if self.world.hung.contains(&stream) {
            tab.stream = None;
            let why = "the provider closed the stream".to_owned();
            self.on(place, TabEvent::StreamClosed { why });
            return true;
        }
        false
    }

    /// A liar's receipt has a false field, and its signature.
    fn falsify(&mut self, message: ProviderMessage) -> ProviderMessage {
        let ProviderMessage::Finished(mut finished) = message else {
            return message;
        };
        if self.manner != ProviderManner::FalsifiesReceipts {
            return ProviderMessage::Finished(finished);
        }
        self.note_event("a receipt was false");
        let mut body = finished.receipt.body.clone();
        let metered = body.metered.as_mut().expect("tokens were sold");
        match self.dice.below(10) {
            0 => body.model = "another".try_into().unwrap(),
            1 => body.graph.0 = [7; 32],
            2 => metered.output += 1 + self.dice.below(300),
            3 => metered.input += 1 + self.dice.below(300),
            4 => metered.held.0 += 100_000_000,
            5 => body.idle.0 += 9_000_000,
            6 => body.price.0 += 1,
            7 => metered.terms.input_us += 1,
            8 => body.class.emulated = !body.class.emulated,
            _ => body.outputs = vec![body.graph],
        }
        body.usage = metered.usage();
        let due = ReceiptBody::amount_due(body.price, body.billable_usage());
        body.amount = due.expect("it fits");
        finished.receipt = Receipt::new(body).sign_as_provider(&key(1));
        ProviderMessage::Finished(finished)
    }

    /// The text of an open answer arrives, as far as it is made.
    fn stream_text(&mut self, place: usize) {
        let tab = &self.tabs[place];
        let (Some(core), Some(lease)) = (&tab.core, tab.lease) else {
            return;
        };
        let (came, Some(open)) = (core.streamed.output, &core.open) else {
            return;
        };
        let Some(run) = self.runs.get(&(lease, open.number)) else {
            return;
        };
        let answer = self.true_answer(run.job, open.number);
        let made_ms = self.world.now.tick.since(run.began).0 / 1_000;
        let output = answer.count.output.min(answer.most.output).min(made_ms);
        if output > came
            && self
                .world
                .wanted(|it| is_run_of(it, lease, open.number))
                .is_some()
        {
            let streamed = TokenCount {
                output,
                ..answer.count
            };
            self.on(place, TabEvent::TextArrived { streamed });
        }
    }

    /// Carries out one thing that the provider wants; a run takes the time of its tokens.
    fn serve(&mut self, place: usize, is_well: bool) {
        let ProviderAction::Run { lease, request, .. } = self.world.pending[place].action else {
            return self.world.carry_out(place, is_well);
        };
        let Some(job) = self.world.exchange.lease(lease).map(|it| it.job) else {
            return self.world.carry_out(place, false);
        };
        let began = self.world.now.tick;
        let run = *self
            .runs
            .entry((lease, request))
            .or_insert(PlayedRun { job, began });
        let answer = self.true_answer(run.job, request);
        let is_idle = self.manner == ProviderManner::Idles
            && Dice::new(u64::from(request) ^ lease.0 << 8).is_hit(30);
        let due = run.began.plus(answer.device_time(self.terms));
        if is_idle || self.world.now.tick < due {
            return;
        }
        if !is_well {
            self.note_event("an engine failed");
            return self.world.carry_out(place, false);
        }
        let mut told = answer.count;
        if self.manner == ProviderManner::CountsMore && self.dice.is_hit(50) {
            told.output += 1 + self.dice.below(100);
        }
        self.made.entry(lease).or_default().0 += answer.device_time(self.terms).0;
        let ProviderAction::Run { work, .. } = &self.world.pending[place].action else {
            unreachable!("it is a run");
        };
        let result = RunResult {
            busy: Micros(told.device_time(self.terms).0),
            tokens: Some(told),
            ..ran(work, request)
        };
        let is_it = |it: &ProviderAction| is_run_of(it, lease, request);
        self.world
            .answer_with(is_it, ProviderAnswer::Ran(Ok(result)));
    }

    /// Carries out what the provider wants but for runs under way, until nothing else is wanted.
    fn serve_all(&mut self) {
        for _ in 0..1_000 {
            let is_other = |effect: &Effect<ProviderAction>| !is_run(&effect.action);
            match self.world.pending.iter().position(is_other) {
                Some(place) => self.serve(place, true),
                None => break,
            }
        }
        let mut place = 0;
        while place < self.world.pending.len() {
            let before = self.world.pending[place].ticket;
            self.serve(place, true);
            let is_still = |it: &Effect<ProviderAction>| it.ticket == before;
            place += usize::from(self.world.pending.get(place).is_some_and(is_still));
        }
    }

    fn kill_provider(&mut self) {
        if self.dead_until.is_some() {
            return;
        }
        self.note_event("a provider died");
        // Its disk is quick.
        let is_record = |it: &ProviderAction| matches!(it, ProviderAction::Record(_));
        while let Some(place) = self.world.wanted(is_record) {
            self.world.carry_out(place, true);
        }
        self.world.kill();
        let leases = self.world.exchange.leases();
        let open = leases.filter(|lease| !lease.is_closed());
        self.interrupted.extend(open.map(|lease| lease.id));
        let millis = match self.dice.below(8) {
            0 => 10_000_000,
            1 => self.dice.below(300_000),
            _ => self.dice.below(20_000),
        };
        self.has_lost_time |= millis > 20_000;
        self.dead_until = Some(self.world.now.tick.plus(Micros::from_millis(millis)));
        if self.dice.below(4) == 0 {
            self.note_event("a disk was lost");
            self.has_lost_disk = true;
            self.world.lose_disk();
        }
    }

    /// Time goes on for everybody.
    fn pass(&mut self, millis: u64) {
        match self.dead_until {
            Some(until) => {
                self.world.pass_without_provider(millis);
                if self.world.now.tick >= until {
                    self.dead_until = None;
                    self.world.restart();
                }
            }
            None => self.world.pass(millis),
        }
        for place in 0..self.tabs.len() {
            let tab = &self.tabs[place];
            let now = tab.clock.show(self.world.now).tick;
            let wakes = tab.core.as_ref().and_then(TabCore::wakes_at);
            if wakes.is_some_and(|at| at <= now) {
                self.on(place, TabEvent::TimerFired);
            }
            let is_due = |at: Micros| at <= self.world.now.tick;
            if self.tabs[place].hangs_at.is_some_and(is_due) {
                self.tabs[place].hangs_at = None;
                self.hang(place);
                if self.tabs[place].manner == BuyerManner::Resumes {
                    self.resume(place);
                }
            }
        }
    }

    /// A buyer that lost its process comes back to the provider.
    fn resume(&mut self, place: usize) {
        if let Some(lease) = self.tabs[place].lease
            && self.dead_until.is_none()
        {
            self.note_event("a buyer came back");
            self.open(place, Opening::Resume(lease));
        }
    }

    /// A buyer that came back signs what it is told.
    fn sign_as_resumed(&mut self, place: usize) {
        let tab = &self.tabs[place];
        let (None, Some(stream), BuyerManner::Resumes) = (&tab.core, tab.stream, tab.manner) else {
            return;
        };
        let mut told = self.world.said[&stream].iter();
        let receipt = told.find_map(|message| match message {
            ProviderMessage::Finished(finished) => Some(finished.receipt.clone()),
            _ => None,
        });
        if let Some(receipt) = receipt.filter(|_| self.dead_until.is_none()) {
            let owner = &self.tabs[place].owner;
            let signed = Box::new(receipt.sign_as_buyer(owner));
            self.world.say(stream, BuyerMessage::Signed(signed));
            self.note_event("a buyer signed after it came back");
            self.tabs[place].stream = None;
        }
    }

    /// A seldom thing that a tab's buyer does, by its manner.
    fn misbehave(&mut self, place: usize) {
        let tab = &self.tabs[place];
        if tab.core.is_none() || tab.lease.is_none() || tab.outcome.is_some() {
            return;
        }
        match tab.manner {
            BuyerManner::Honest | BuyerManner::NeverSigns | BuyerManner::HidesWork => {}
            BuyerManner::Vanishes | BuyerManner::Holds | BuyerManner::Resumes => {
                self.vanish(place);
            }
            BuyerManner::Disputes => self.dispute(place),
            BuyerManner::Cuts => {
                let lease = tab.lease.expect("it is bought");
                let owner = tab.owner.clone();
                drop(self.world.carry(&owner, Command::EndLease { lease }));
                self.vanish(place);
            }
        }
    }

    /// A provider that notes anything does so.
    fn note_anything(&mut self, place: usize) {
        let Some(lease) = self.tabs[place].lease else {
            return;
        };
        let possible = self
            .world
            .exchange
            .lease(lease)
            .map_or(0, |lease| lease.usage_possible(self.world.now.log).0);
        let usage = DeviceMicros(1 + self.dice.below(possible.max(1)));
        let note = Command::NoteUsage { lease, usage };
        if self.world.carry(&key(1), note).is_ok() {
            self.note_event("a note was false");
        }
    }

    fn ask(&mut self, place: usize) {
        let tab = &mut self.tabs[place];
        let Some(core) = tab.core.as_ref().filter(|core| core.is_free()) else {
            return;
        };
        let (job, next) = (tab.job, core.next);
        tab.asked += 1;
        let body = id(&format!("body {next}"));
        let most = self.true_answer(job, next).most;
        self.on(place, TabEvent::NewRequest { body, most });
    }

    /// One step of a history.
    fn step(&mut self) {
        let has_free = self.world.exchange.all_asks().next().is_some();
        let wants = self.dice.below(if has_free { 8 } else { 400 }) == 0;
        if wants && self.tabs.len() < TABS_MAX {
            self.begin_tab();
        }
        if self.tabs.is_empty() {
            return;
        }
        let place = self.pick_tab();
        match self.dice.below(24) {
            0..=6 => self.carry_out(place),
            7..=11 => drop(self.hear(place)),
            12..=16 if !self.world.pending.is_empty() => {
                let wanted = self.dice.below(self.world.pending.len() as u64) as usize;
                let is_well = self.dice.below(60) != 0;
                self.serve(wanted, is_well);
            }
            17..=18 => {
                let millis = 1 + self.dice.below(400);
                self.pass(millis);
            }
            19..=20 => self.ask(place),
            21 => self.stream_text(place),
            22 => self.sign_as_resumed(place),
            _ => self.disturb(place),
        }
    }

    /// Picks a tab, seldom one that is over.
    fn pick_tab(&mut self) -> usize {
        let is_open = |tab: &PlayedTab| tab.core.is_some() && tab.outcome.is_none();
        let open = self.tabs.iter().enumerate().filter(|(_, tab)| is_open(tab));
        let mut places: Vec<usize> = open.map(|(place, _)| place).collect();
        if places.is_empty() || self.dice.is_hit(10) {
            places = (0..self.tabs.len()).collect();
        }
        self.dice.pick(&places)
    }

    /// Something seldom.
    fn disturb(&mut self, place: usize) {
        match self.dice.below(100) {
            0..=5 => self.misbehave(place),
            6..=8 => self.on(place, TabEvent::Close),
            9..=10 => self.break_stream(place),
            11 if self.dice.is_hit(50) => self.kill_provider(),
            12..=15 if self.manner == ProviderManner::NotesAnything => self.note_anything(place),
            16..=18 => {
                let millis = 1_000 + self.dice.below(6_000);
                self.pass(millis);
            }
            _ => {}
        }
    }

    /// A liar whose receipt was of no use, or that notes anything, notes what there can be.
    fn lie_in_notes(&mut self) {
        let is_liar = match self.manner {
            ProviderManner::NotesAnything => true,
            ProviderManner::FalsifiesReceipts => self.events.contains_key("a receipt was false"),
            _ => false,
        };
        if is_liar && self.dice.is_hit(20) && !self.tabs.is_empty() {
            let place = self.dice.below(self.tabs.len() as u64) as usize;
            self.note_anything(place);
        }
    }

    /// All that is wanted is done at once, until nothing is.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.dead_until.is_none() {
                self.serve_all();
            }
            let mut is_quiet = true;
            for place in 0..self.tabs.len() {
                self.sign_as_resumed(place);
                self.stream_text(place);
                is_quiet &= !self.hear(place) && self.tabs[place].pending.is_empty();
                self.carry_out(place);
            }
            if is_quiet {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Time goes on, and all that is wanted is done at once.
    fn live(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.pass(1_000);
            self.lie_in_notes();
            self.settle();
        }
    }
}

fn is_run_of(action: &ProviderAction, of: LeaseId, number: u32) -> bool {
    matches!(
        action,
        ProviderAction::Run { lease, request, .. } if (*lease, *request) == (of, number)
    )
}
