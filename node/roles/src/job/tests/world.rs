//! Simulates the world around one job for its tests: a real exchange, providers that are honest,
//! fail or cheat ([`Style`]), a planner that makes chains of parts, and a journal. A seed
//! determines the order of events, so the same seed gives the same history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use souk_market::{
    Acceptance, AccountKey, Ask, Band, Batch, BuyerFilter, CloseReason, Command, Credits, DeviceId,
    DeviceMicros, Dtype, Exchange, Genesis, JobId, Lease, LeaseId, LeaseState, Limit, Listing,
    Millis, Name, Nonce, Permille, Price, Receipt, ReceiptBody, Refusal, Regions, Resources,
    SignedBatch, SigningKey, TimeInForce, Units, VerifiedBatch,
};
use souk_memory::ContentId;

use crate::clock::{Micros, Now};
use crate::effect::{Effect, Ticket};
use crate::job::plan::{
    NoPlan, NoPlanKind, PlanFeedback, PlanInput, PlanLeg, PlanOutput, PlanPart,
};
use crate::job::reason::Term;
use crate::job::*;
use crate::lease::{
    ALIVE_PERIOD, BuyerMessage, Contact, Failure, Offer, Opening, ProviderMessage, Request, Source,
    Start, UntakenOffer, WorkResult, transcript,
};

/// How a provider behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Honest,
    /// Its results are wrong.
    Liar,
    /// It disappears after this many messages.
    Vanishes(u32),
    /// It sends nothing more after this many messages.
    Mute(u32),
    /// It fails when it is to run.
    Fails,
    /// It gives its device back after so many parts.
    Reclaims(u32),
    /// It bills work that it did not do.
    Overbills,
    /// It bills all the time of its lease.
    BillsAll,
    /// It bills so much idle time.
    BillsIdle(Micros),
    /// Its receipt is false in one term of the lease.
    Misstates(Term),
    /// It says that its inputs are at fault.
    BlamesInput,
    /// It crashes after this many messages, starts again, and is honest from then on.
    Restarts(u32),
    /// It and its machine stand still after so many messages.
    Freezes(u32),
    /// It sends messages that make no sense.
    Confused,
    /// Its results are wrong, and it is gone after so many messages.
    LiesAndVanishes(u32),
    /// It takes no offer from others.
    Untaking,
    /// It serves its outputs to the buyer, but not to other providers.
    Starves,
    /// It serves what it made so slowly that it never arrives.
    Trickles,
    /// Its results are wrong, and come after three seconds.
    LiesLate,
    /// It is right, and its parts come after so many seconds.
    TakesLong(u64),
}

/// What a provider does with one lease, whatever becomes of the buyer.
struct Session {
    provider: usize,
    start: Start,
    begun: Micros,
    has_gone: bool,
    requests: Vec<Request>,
    no_more: bool,
    limit: Option<u32>,
    said: VecDeque<ProviderMessage>,
    messages: u32,
    runs: u32,
    made: BTreeMap<u32, Vec<Vec<(String, ContentId)>>>,
    /// What of it was said: others have that.
    offered: BTreeSet<ContentId>,
    inputs: BTreeSet<ContentId>,
    finished: Option<WorkResult>,
    is_dead: bool,
    is_over: bool,
}

/// How much is asked, and in what market.
#[derive(Clone, Copy)]
struct JobSize {
    requests: u32,
    sequences: u32,
    window: u32,
    closed_leases_kept: u32,
}

impl JobSize {
    fn of(requests: u32) -> JobSize {
        JobSize {
            requests,
            sequences: 0,
            window: 4,
            closed_leases_kept: u32::MAX,
        }
    }
}

/// How long each run takes, unless a test says otherwise.
const RUN_MICROS: u64 = 500;

/// Steps that it may take until what was told is written down.
const TOLD_STEPS: usize = 8;

/// The world.
pub struct World {
    pub core: JobCore,
    pub now: Now,
    pub spec: JobSpec,
    pub styles: Vec<Style>,
    pub outcome: Option<Outcome>,
    /// Answers with the caller: number and whether the value is the model's.
    pub answers: Vec<(u32, bool)>,
    pub events: Vec<JobEvent>,
    /// How many answers the caller had when it was warned of the end of leases.
    pub warned_after: Vec<usize>,
    /// What each lease cost or held when it was seen last.
    costs: BTreeMap<LeaseId, u64>,
    /// How many there were when each of the last steps began.
    told: [usize; TOLD_STEPS],
    pub disk: Vec<Fact>,
    pub lives: u32,
    /// Effects drop answers and time jumps so often, in thousandths.
    pub chaos: u64,
    pub parts: u32,
    pub legs: u32,
    /// Whether only a run tells how long a part takes.
    pub is_open_ended: bool,
    /// In a session, the caller wants what feeds the next request after so many requests.
    pub keeps_each: u32,
    /// Requests that are not given to the core yet.
    pub to_ask: VecDeque<u32>,
    pub crash_at: Option<u32>,
    pub cancel_at: Option<u32>,
    pub refuse_answers_after: Option<usize>,
    /// The write that the disk does not take, counted from 0.
    pub fail_record: Option<u32>,
    /// How the market answers the first settlement, if not as it should.
    pub settlement_fault: Option<CommandError>,
    /// A provider that nobody finds.
    pub unknown: Option<usize>,
    /// The answer to the first gang is lost, and whether the gang was bought.
    pub lose_answer_to_gang: Option<bool>,
    /// The caller has no more for now.
    pub is_holding: bool,
    /// How much later a gang is bought of which no answer came, if it is.
    pub gang_comes_after: Option<Micros>,
    /// Whether the process ends before it can put down that no answer came.
    pub is_killed_with_gang: bool,
    /// Whether its buyer hears of no change in the log.
    pub is_deaf: bool,
    /// The ids under which gangs were sent to the market, but for those that it refused.
    pub bought_as: Vec<JobId>,
    seed: u64,
    market: Exchange,
    nonce: u64,
    pending: Vec<(Ticket, Action)>,
    /// The fetches of what never arrives, and when the buyer gives each up.
    trickling: Vec<(Micros, Ticket)>,
    records: VecDeque<(Ticket, Vec<Fact>)>,
    streams: BTreeMap<Leg, LeaseId>,
    works: BTreeMap<LeaseId, Session>,
    /// What a content is worth: honest results of one thing differ in the id and not in this.
    values: BTreeMap<ContentId, u64>,
    /// The values that the buyer's machine holds.
    here: BTreeMap<ContentId, BTreeSet<Option<u32>>>,
    /// The fetch for which the buyer has no room, counted from here.
    pub full_at: Option<u32>,
    plans: BTreeMap<ContentId, Vec<u32>>,
    followed: Vec<LeaseId>,
    pub has_said_last: bool,
    /// From this request on those that should bring their input do not.
    pub forgets: Option<u32>,
    /// How many times as much each request brings as was planned with.
    pub size: u32,
    /// How long each run takes.
    pub run_micros: u64,
    /// When the clock began by which the buyer's process of now measures.
    clock_began: Micros,
    steps: u32,
    recorded: u32,
    /// A gang of which no answer came, and when it is bought.
    late_gang: Option<(Micros, Vec<souk_market::Bid>)>,
    has_failed_disk: bool,
    commands_lost: u32,
}

const BUYER: u8 = 1;

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn account(number: u8) -> AccountKey {
    AccountKey::from(&key(number))
}

fn provider_key(provider: usize) -> SigningKey {
    key(u8::try_from(provider).unwrap() + 10)
}

fn mix(a: u64, b: u64) -> u64 {
    let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let hash = ContentId::for_content(&bytes);
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap())
}

/// What part `part` of the model makes of what it reads.
fn model(part: u32, inputs: &[u64]) -> u64 {
    inputs
        .iter()
        .fold(u64::from(part) + 7, |sum, input| mix(sum, *input))
}

fn name_of(part: u32, parts: u32) -> String {
    match part + 1 == parts {
        true => "y".to_owned(),
        false => format!("v{part}"),
    }
}

/// What a part reads: the one before it, and every third the one before that, too.
fn reads(part: u32) -> Vec<Option<u32>> {
    let mut reads = vec![part.checked_sub(1)];
    if part >= 2 && part.is_multiple_of(3) {
        reads.push(Some(part - 2));
    }
    reads
}

pub fn limits() -> Limits {
    Limits {
        budget: None,
        deadline: None,
        time_max: Micros::from_seconds(600),
        wait: Micros::from_seconds(2),
        providers_min: 1,
        providers_max: 8,
        excluded: Vec::new(),
        regions: Regions(0),
        reputation_min: Permille(0),
        notice_min: Millis(0),
        copies: 1,
        spot: false,
        priority: 1,
    }
}

/// Nobody gains by work that is refused: its provider has no more than the price of a device that
/// is held.
pub fn assert_refused(lease: &Lease) {
    match lease.state {
        LeaseState::Closed { at, paid, .. } => {
            let held = DeviceMicros::from_units(lease.quantity, at.saturating_since(lease.start));
            let idle = ReceiptBody::amount_due(lease.price, lease.idle_counts(held));
            assert!(Some(paid) <= idle, "{lease:?}");
            assert_eq!(lease.accepted, DeviceMicros(0), "{lease:?}");
        }
        state => assert!(
            matches!(state, LeaseState::Due { reason, .. } if reason == CloseReason::Disputed),
            "{lease:?}"
        ),
    }
}

impl World {
    /// A world of providers with these styles, and a job of so many requests.
    pub fn new(seed: u64, styles: Vec<Style>, requests: u32, limits: Limits) -> World {
        World::of(seed, styles, limits, JobSize::of(requests))
    }

    /// The same in a market that remembers so many leases which are closed.
    pub fn forgetting(requests: u32, limits: Limits, closed_leases_kept: u32) -> World {
        let size = JobSize {
            closed_leases_kept,
            ..JobSize::of(requests)
        };
        World::of(7, vec![Style::Honest; 2], limits, size)
    }

    /// The same with a session of so many sequences. The last part feeds the first, and most
    /// requests that may leave that out do.
    pub fn session(seed: u64, styles: Vec<Style>, requests: u32, sequences: u32) -> World {
        let size = JobSize {
            sequences,
            ..JobSize::of(requests)
        };
        World::of(seed, styles, limits(), size)
    }

    /// A session of one sequence whose next request comes once the one before is answered.
    pub fn session_step_by_step(styles: Vec<Style>, requests: u32) -> World {
        let size = JobSize {
            sequences: 1,
            window: 1,
            ..JobSize::of(requests)
        };
        World::of(7, styles, limits(), size)
    }

    fn of(seed: u64, styles: Vec<Style>, limits: Limits, size: JobSize) -> World {
        let JobSize {
            requests,
            sequences,
            window,
            closed_leases_kept,
        } = size;
        let mut genesis = Genesis::new("world".try_into().unwrap(), account(0));
        genesis.rules.note_deadline = Millis(10_000);
        genesis.rules.settle_grace = Millis(20_000);
        genesis.rules.closed_leases_kept = closed_leases_kept;
        let mut add = |key: AccountKey| {
            genesis
                .accounts
                .push((key, Name::default(), Credits(1_000_000_000_000)));
        };
        add(account(BUYER));
        for provider in 0..styles.len() {
            add(AccountKey::from(&provider_key(provider)));
        }
        let market = Exchange::new(genesis);
        let spec = JobSpec {
            sequences,
            job: JobId([seed as u8; 32]),
            account: account(BUYER),
            market: market.market(),
            subject: ContentId::for_content(b"subject"),
            command: "{}".to_owned(),
            outputs: vec!["y".to_owned()],
            requests,
            window,
            request_inputs: BTreeSet::new(),
            limits,
        };
        let now = Now {
            tick: Micros::from_seconds(1),
            log: Millis(1_000_000),
        };
        let (core, effects) = JobCore::begin(spec.clone(), None, now);
        let mut world = World {
            core,
            now,
            spec,
            styles,
            outcome: None,
            answers: Vec::new(),
            events: Vec::new(),
            warned_after: Vec::new(),
            costs: BTreeMap::new(),
            told: [0; TOLD_STEPS],
            disk: Vec::new(),
            lives: 1,
            chaos: 0,
            parts: 3,
            legs: 2,
            is_open_ended: false,
            keeps_each: 1,
            to_ask: (0..requests).collect(),
            crash_at: None,
            cancel_at: None,
            refuse_answers_after: None,
            fail_record: None,
            settlement_fault: None,
            unknown: None,
            lose_answer_to_gang: None,
            gang_comes_after: None,
            is_killed_with_gang: false,
            is_deaf: false,
            bought_as: Vec::new(),
            is_holding: false,
            recorded: 0,
            late_gang: None,
            seed,
            market,
            nonce: 0,
            pending: Vec::new(),
            trickling: Vec::new(),
            records: VecDeque::new(),
            streams: BTreeMap::new(),
            works: BTreeMap::new(),
            values: BTreeMap::new(),
            here: BTreeMap::new(),
            full_at: None,
            plans: BTreeMap::new(),
            followed: Vec::new(),
            has_said_last: false,
            forgets: None,
            size: 1,
            run_micros: RUN_MICROS,
            clock_began: Micros(0),
            steps: 0,
            has_failed_disk: false,
            commands_lost: 0,
        };
        for provider in 0..world.styles.len() {
            world.place_ask(provider);
        }
        world.take(effects);
        world
    }

    pub fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.seed >> 33) % below.max(1)
    }

    fn is_drawn(&mut self, of_thousand: u64) -> bool {
        self.draw(1_000) < of_thousand
    }

    fn place_ask(&mut self, provider: usize) {
        let resources = Resources {
            memory_bytes: 1 << 30,
            ..Resources::default()
        };
        let ask = Ask {
            device: DeviceId(1),
            capacity: Units(64),
            resources,
            limit: Limit::Price(Price(1_000 + 10 * provider as u64)),
            // So that a provider that is back offers anew while one of its leases runs.
            quantity: Units(32),
            duration_min: Millis(1),
            duration_max: Millis(3_600_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(0),
            accepts: BuyerFilter::default(),
            tif: TimeInForce::Gtc,
        };
        let key = AccountKey::from(&provider_key(provider));
        self.command(key, Command::PlaceAsk(Box::new(ask))).unwrap();
    }

    /// A provider that died is back: it sells by a new ask.
    fn restart(&mut self, provider: usize) {
        self.styles[provider] = Style::Honest;
        let key = AccountKey::from(&provider_key(provider));
        let leases = self.market.leases();
        let begun = leases.filter(|lease| lease.provider == key && lease.is_running());
        let begun: Vec<LeaseId> = begun.map(|lease| lease.id).collect();
        for lease in begun {
            self.command(key, Command::GiveUp { lease }).unwrap();
        }
        let asks = self.market.all_asks().filter(|ask| ask.provider == key);
        let orders: Vec<_> = asks.map(|ask| ask.order).collect();
        for order in orders {
            self.command(key, Command::Cancel { order }).unwrap();
        }
        self.place_ask(provider);
    }

    fn command(&mut self, account: AccountKey, command: Command) -> Result<Acceptance, Refusal> {
        self.nonce += 1;
        let batch = Batch {
            market: self.market.market(),
            account,
            nonce: Nonce(self.nonce),
            expires: self.now.log.saturating_add(Millis(60_000)),
            commands: vec![command],
        };
        let signature = souk_market::Signature([0; 64]);
        let batch = VerifiedBatch::from_own_log(SignedBatch { batch, signature }).unwrap();
        let mut outcome = self.market.apply(self.now.log, &batch);
        outcome.outcomes.remove(0).into_result()
    }

    pub fn leases(&self) -> Vec<Lease> {
        let ids: BTreeSet<JobId> = (0..64).map(|n| attempt_id(self.spec.job, n)).collect();
        self.market
            .leases()
            .filter(|it| ids.contains(&it.job))
            .cloned()
            .collect()
    }

    fn request(&mut self, number: u32) -> Request {
        let value = mix(42, u64::from(number));
        let id = ContentId::for_content(&value.to_le_bytes());
        self.values.insert(id, value);
        self.hold(id, Some(number));
        self.spec.request_inputs.insert(id);
        let is_forgotten = self.forgets.is_some_and(|from| number >= from);
        let inputs = match self.brings(number) && !is_forgotten {
            true => vec![("x".to_owned(), id)],
            false => Vec::new(),
        };
        let mut request = Request::new(number, inputs);
        request.sequence = self.sequence(number);
        request.keep = self.keeps(number);
        request
    }

    fn keeps(&self, number: u32) -> bool {
        (number + 1).is_multiple_of(self.keeps_each)
    }

    fn sequence(&self, number: u32) -> u32 {
        number.checked_rem(self.spec.sequences).unwrap_or(0)
    }

    /// Whether a request brings its input, or is fed by the one before it in its sequence.
    pub fn brings(&self, number: u32) -> bool {
        let sequences = self.spec.sequences;
        sequences == 0 || number < sequences || mix(3, u64::from(number)).is_multiple_of(4)
    }

    /// What the model makes of a request.
    fn right_answer(&self, number: u32) -> u64 {
        let read = match self.brings(number) {
            true => mix(42, u64::from(number)),
            false => self.right_answer(number - self.spec.sequences),
        };
        let mut made: Vec<u64> = Vec::new();
        for part in 0..self.parts {
            let inputs = reads(part).into_iter().map(|maker| match maker {
                None => read,
                Some(maker) => made[maker as usize],
            });
            made.push(model(part, &inputs.collect::<Vec<_>>()));
        }
        *made.last().unwrap()
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Outcome {
        for _ in 0..60_000 {
            if let Some(outcome) = &self.outcome {
                return outcome.clone();
            }
            self.step();
        }
        panic!(
            "the job does not end: {:?} {:?}",
            self.core.status(),
            self.pending
        );
    }

    pub fn step(&mut self) {
        self.steps += 1;
        self.told.rotate_left(1);
        self.told[TOLD_STEPS - 1] = self.events.len();
        if self.crash_at == Some(self.steps) {
            return self.crash();
        }
        if self.cancel_at == Some(self.steps) {
            return self.apply(Event::Cancel);
        }
        match self.draw(10) {
            0..=3 => self.answer_one(),
            4..=6 => self.hear_one(),
            7 => self.feed(),
            8 => self.pass(2_000),
            _ => self.wake(),
        }
    }

    pub fn pass(&mut self, micros: u64) {
        self.now.tick = self.now.tick.plus(Micros(micros));
        self.now.log = Millis(1_000_000 + self.now.tick.0 / 1_000);
        self.market.tick(self.now.log);
        let tick = self.now.tick;
        if let Some((_, bids)) = self.late_gang.take_if(|(moment, _)| *moment <= tick) {
            // It is bought after all, or the book has moved.
            let _ = self.command(account(BUYER), Command::PlaceGang(bids));
            self.assert_budget();
        }
    }

    /// The moment by the clock of the buyer's process.
    fn core_now(&self) -> Now {
        let tick = self.now.tick.since(self.clock_began);
        Now { tick, ..self.now }
    }

    /// Time goes on to the next moment that is waited for, where nothing else happens.
    fn wake(&mut self) {
        let is_busy = !self.pending.is_empty() || !self.records.is_empty();
        let leases: Vec<LeaseId> = self.streams.values().copied().collect();
        let is_talking = leases.into_iter().any(|lease| {
            let is_dead = self.works[&lease].is_dead;
            let style = self.styles[self.works[&lease].provider];
            let is_late = style == Style::LiesLate && self.is_late(lease);
            !is_dead && (is_late || self.work_on(lease) || !self.works[&lease].said.is_empty())
        });
        let moment = self.core.wakes_at();
        let moment = moment.map(|moment| moment.plus(self.clock_began));
        let given_up = self.trickling.iter().map(|(moment, _)| *moment);
        let Some(moment) = moment.into_iter().chain(given_up).min() else {
            return;
        };
        let can_feed = !self.to_ask.is_empty() && self.core.status().waiting < self.spec.window;
        if moment > self.now.tick {
            if (is_busy || is_talking || can_feed) && !self.is_drawn(self.chaos) {
                return;
            }
            // Who lives says so, whatever else it says.
            let whole = moment.since(self.now.tick);
            self.pass(whole.min(ALIVE_PERIOD).0);
            self.hear_all_alive();
            if whole > ALIVE_PERIOD {
                return;
            }
        }
        self.tell_changes();
        if self.outcome.is_none() {
            self.apply(Event::TimerFired);
        }
        let tick = self.now.tick;
        let due = self
            .trickling
            .iter()
            .position(|(moment, _)| *moment <= tick);
        if let Some(due) = due {
            let (_, ticket) = self.trickling.remove(due);
            let answer = Answer::NotFetched(FetchFault::Lost("too slow".to_owned()));
            self.apply(Event::EffectAnswered { ticket, answer });
        }
    }

    fn hear_all_alive(&mut self) {
        for (leg, lease) in self.streams.clone() {
            let work = &self.works[&lease];
            let is_frozen = matches!(self.styles[work.provider], Style::Freezes(_));
            if !(work.is_dead && is_frozen) && self.streams.contains_key(&leg) {
                self.heard(leg, ProviderMessage::Alive);
            }
        }
    }

    pub fn tell_changes(&mut self) {
        if self.is_deaf {
            return;
        }
        for lease in self.followed.clone() {
            if let Some(lease) = self.market.lease(lease).cloned() {
                self.apply(Event::Changed(Box::new(lease)));
            }
        }
    }

    pub fn feed(&mut self) {
        if self.is_holding {
            return;
        }
        let open = self.core.status().waiting;
        if let Some(number) = self
            .to_ask
            .front()
            .copied()
            .filter(|_| open < self.spec.window)
        {
            self.to_ask.pop_front();
            let request = self.request(number);
            let size = self.size;
            self.apply(Event::NewRequest { request, size });
        } else if self.to_ask.is_empty() && !self.has_said_last {
            self.has_said_last = true;
            self.apply(Event::NoMore);
        }
    }

    /// The buyer dies, if its job is not over, and goes on with it in another life.
    pub fn restart_buyer(&mut self) {
        self.outcome = None;
        self.crash();
    }

    /// The buyer's machine dies: what is not on its disk is gone. Another goes on with the job.
    fn crash(&mut self) {
        // What was told last is not written down yet.
        self.events.truncate(self.told[0]);
        self.lives += 1;
        self.pending.clear();
        self.trickling.clear();
        self.records.clear();
        self.followed.clear();
        for lease in std::mem::take(&mut self.streams).into_values() {
            self.hang(lease);
        }
        let kept = self.disk.iter().filter_map(|fact| match fact {
            Fact::Kept { id, .. } => Some((*id, [None].into())),
            _ => None,
        });
        self.here = kept.collect();
        let answered: BTreeSet<u32> = self.answers.iter().map(|(number, _)| *number).collect();
        let left = (0..self.spec.requests).filter(|number| !answered.contains(number));
        self.to_ask = left.collect();
        self.has_said_last = false;
        for number in 0..self.spec.requests {
            self.request(number);
        }
        self.pass(500_000);
        // The clock of another process begins with it.
        self.clock_began = self.now.tick;
        let past = Past::from_facts(self.disk.clone());
        let (core, effects) = match past.began {
            Some(_) => JobCore::resume(self.spec.clone(), past, self.core_now()),
            None => JobCore::begin(self.spec.clone(), None, self.core_now()),
        };
        self.core = core;
        self.take(effects);
    }

    pub fn apply(&mut self, event: Event) {
        if self.outcome.is_some() {
            return;
        }
        let in_full = self.apply_heartbeat_in_full(&event);
        let effects = self.core.apply(self.core_now(), event);
        if let Some(in_full) = in_full {
            assert!(effects.is_empty(), "a plain heartbeat asks for nothing");
            assert_eq!(self.core.digest(), in_full, "no step is left out");
        }
        self.core.assert_invariants();
        self.take(effects);
        self.assert_budget();
    }

    /// Returns the digest of the core after all steps of a heartbeat that the core handles in
    /// short; none for other events.
    fn apply_heartbeat_in_full(&self, event: &Event) -> Option<souk_memory::ContentId> {
        self.core.find_plain_heartbeat(event)?;
        let mut other = self.core.clone();
        other.now = self.core_now();
        other.now.tick = other.now.tick.max(self.core.now.tick);
        let effects = other.apply_in_full(event.clone());
        assert!(effects.is_empty(), "it asks for nothing");
        Some(other.digest())
    }

    fn assert_budget(&mut self) {
        let Some(budget) = self.spec.limits.budget else {
            return;
        };
        let leases = self.leases().into_iter();
        self.costs
            .extend(leases.map(|it| (it.id, it.cost.0 + it.escrow.0)));
        let spent: u64 = self.costs.values().sum();
        assert!(spent <= budget.0, "{spent} of {} are spent", budget.0);
    }

    fn take(&mut self, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            assert!(self.outcome.is_none(), "nothing comes after the end");
            self.check(&action);
            match action {
                Action::Record(facts) => self.records.push_back((ticket, facts)),
                Action::Open { leg, opening, .. } => self.open(leg, opening),
                Action::SendMessage { leg, message } => self.say(leg, message),
                Action::CloseStream { leg } => {
                    if let Some(lease) = self.streams.remove(&leg) {
                        self.hang(lease);
                    }
                }
                Action::Follow { leases } => self.followed = leases,
                Action::Tell(event) => self.events.push(event),
                Action::Warn => self.warned_after.push(self.answers.len()),
                Action::Stop(ticket) => {
                    self.pending.retain(|(other, _)| *other != ticket);
                    self.trickling.retain(|(_, other)| *other != ticket);
                }
                Action::Over(outcome) => self.outcome = Some(*outcome),
                other => self.pending.push((ticket, other)),
            }
        }
        if self.outcome.is_some() {
            assert_eq!(self.core.wakes_at(), None);
        }
    }

    /// What others may see comes after the facts that it follows from.
    fn check(&self, action: &Action) {
        let is_synced = |is_it: &dyn Fn(&Fact) -> bool| self.disk.iter().any(is_it);
        match action {
            Action::Buy { .. } => assert!(is_synced(&|fact| matches!(fact, Fact::Began { .. }))),
            Action::Open {
                leg,
                opening: Opening::Start(_),
                ..
            } => {
                let n = leg.attempt;
                assert!(is_synced(
                    &|fact| matches!(fact, Fact::Attempt { n: of, .. } if *of == n)
                ));
            }
            Action::Sign { receipt } => assert!(is_synced(
                &|fact| matches!(fact, Fact::Right { receipt: right } if right == receipt)
            )),
            Action::SendMessage {
                leg,
                message: BuyerMessage::Refused { .. },
            } => {
                // Nothing arrives on a closed stream.
                let lease = self.streams.get(leg);
                assert!(lease.is_none_or(|lease| is_synced(
                    &|fact| matches!(fact, Fact::Refused { lease: it, .. } if it == lease)
                )));
            }
            _ => {}
        }
    }

    fn answer_one(&mut self) {
        let count = self.pending.len() + usize::from(!self.records.is_empty());
        if count == 0 {
            return;
        }
        let drawn = self.draw(count as u64) as usize;
        if drawn == self.pending.len() {
            let (ticket, facts) = self.records.pop_front().unwrap();
            let is_full = self.fail_record == Some(self.recorded);
            self.recorded += 1;
            if is_full || (self.chaos > 0 && self.is_drawn(self.chaos / 10)) {
                self.has_failed_disk = true;
                let answer = Answer::NotWritten("the disk is full".to_owned());
                return self.apply(Event::EffectAnswered { ticket, answer });
            }
            self.disk.extend(facts);
            return self.apply(Event::EffectAnswered {
                ticket,
                answer: Answer::Recorded,
            });
        }
        let is_give = |it: &(Ticket, Action)| matches!(it.1, Action::Give { .. });
        // Answers are written one after the other.
        let first = self.pending.iter().position(is_give);
        let drawn = first
            .filter(|_| is_give(&self.pending[drawn]))
            .unwrap_or(drawn);
        let (ticket, action) = self.pending.remove(drawn);
        if let Action::Fetch {
            holders, patience, ..
        } = &action
            && self.styles[self.place_of(holders[0])] == Style::Trickles
        {
            let until = self.now.tick.plus(*patience);
            return self.trickling.push((until, ticket));
        }
        let answer = self.answer(action);
        self.apply(Event::EffectAnswered { ticket, answer });
    }

    fn answer(&mut self, action: Action) -> Answer {
        let is_bad = self.is_drawn(self.chaos);
        match action {
            Action::Plan(_) if is_bad => {
                let why = NoPlan {
                    kind: NoPlanKind::NoneEligible,
                    text: "none".to_owned(),
                };
                Answer::NotPlanned { why, passes: true }
            }
            Action::Plan(wanted) => self.plan(&wanted),
            Action::Buy { id, bids } => {
                self.bought_as.push(id);
                match self.lose_answer_to_gang.take() {
                    Some(true) => {
                        self.command(account(BUYER), Command::PlaceGang(bids))
                            .unwrap();
                        return Answer::Uncertain("no answer".to_owned());
                    }
                    Some(false) => {
                        let after = self.gang_comes_after;
                        self.late_gang = after.map(|after| (self.now.tick.plus(after), bids));
                        if self.is_killed_with_gang {
                            self.crash_at = Some(self.steps + 1);
                        }
                        return Answer::Uncertain("no answer".to_owned());
                    }
                    None => {}
                }
                let is_lost = is_bad && self.is_drawn(500);
                if is_bad && !is_lost {
                    let moment = self.now.tick.plus(Micros::from_seconds(1));
                    self.late_gang = Some((moment, bids));
                    return Answer::Uncertain("no answer".to_owned());
                }
                assert!(bids.iter().all(|bid| bid.job == id));
                match self.command(account(BUYER), Command::PlaceGang(bids)) {
                    Ok(_) if is_lost => Answer::Uncertain("no answer".to_owned()),
                    Ok(Acceptance::Ganged { trades }) => Answer::Bought(trades),
                    Ok(other) => panic!("{other:?}"),
                    Err(refusal) => {
                        self.bought_as.pop();
                        Answer::NotBought(refusal)
                    }
                }
            }
            Action::Look { .. } if is_bad && self.is_drawn(200) => {
                Answer::NotSeen("no validator".to_owned())
            }
            Action::Find { providers } if self.is_unknown(&providers).is_some() => {
                Answer::NotFound(self.is_unknown(&providers).unwrap())
            }
            Action::Find { providers } if is_bad => Answer::NotFound(providers[0]),
            Action::Serve { .. } if is_bad && self.is_drawn(200) => {
                Answer::NotServed("no room".to_owned())
            }
            Action::Look { ids } => {
                let leases = self.market.leases();
                Answer::Leases(leases.filter(|it| ids.contains(&it.job)).cloned().collect())
            }
            Action::Find { providers } => Answer::Found(
                providers
                    .into_iter()
                    .map(|account| Contact {
                        account,
                        addresses: vec![],
                    })
                    .collect(),
            ),
            Action::Command(_) if is_bad && self.commands_lost < 2 => {
                self.commands_lost += 1;
                let why = "no validator".to_owned();
                Answer::Commanded(Err(CommandError::Unreachable(why)))
            }
            Action::Command(command) => {
                let is_settlement = matches!(*command, Command::Settle(_));
                match self.settlement_fault.take_if(|_| is_settlement) {
                    Some(fault) => Answer::Commanded(Err(fault)),
                    None => Answer::from_command_result(self.command(account(BUYER), *command)),
                }
            }
            Action::Fetch {
                id,
                holders,
                request,
                ..
            } => {
                assert!(!holders.is_empty() && self.values.contains_key(&id));
                let is_full = self.full_at == Some(0);
                self.full_at = self.full_at.map(|left| left.saturating_sub(1));
                match (is_full, is_bad) {
                    (true, _) => Answer::NotStored("no room".to_owned()),
                    (_, true) => Answer::NotFetched(FetchFault::Lost("gone".to_owned())),
                    (_, false) => {
                        self.hold(id, request);
                        Answer::Fetched
                    }
                }
            }
            Action::HandOn { to, offer, .. } => {
                assert!(self.here.contains_key(&offer.tensor), "it is here");
                let work = self.works.get(&offer.to).unwrap();
                assert_eq!(AccountKey::from(&provider_key(work.provider)), to);
                match self.styles[work.provider] {
                    Style::Untaking => Answer::HandedOn(Err("no".to_owned())),
                    _ => Answer::HandedOn(Ok(())),
                }
            }
            Action::Compare { left, right, .. } => {
                let mut sides = [left, right].into_iter();
                assert!(sides.all(|id| self.here.contains_key(&id)), "both are here");
                Answer::Compared(self.values[&left] == self.values[&right])
            }
            Action::Sign { receipt } => {
                Answer::Signed(Box::new(receipt.sign_as_buyer(&key(BUYER))))
            }
            Action::Serve { contents } => {
                let mut tensors = contents.iter().filter(|id| self.values.contains_key(id));
                assert!(tensors.all(|id| self.here.contains_key(id)), "it is here");
                Answer::Served
            }
            Action::Keep { .. } => Answer::Kept,
            Action::Give {
                request,
                outputs,
                is_evidence,
            } => {
                let mut ids = outputs.iter().map(|(_, id)| id);
                assert!(ids.all(|id| self.here.contains_key(id)), "it is here");
                let answer = self.given(request, &outputs);
                if answer == Answer::Taken && !is_evidence {
                    self.drop_held(request);
                }
                answer
            }
            other => panic!("{other:?} is not answered"),
        }
    }

    /// Holds a content until the caller has the answer to a request, or until the job ends.
    fn hold(&mut self, id: ContentId, request: Option<u32>) {
        self.here.entry(id).or_default().insert(request);
    }

    fn drop_held(&mut self, request: u32) {
        self.here.retain(|_, holders| {
            holders.remove(&Some(request));
            !holders.is_empty()
        });
    }

    pub fn window(&self) -> u32 {
        self.spec.window
    }

    /// How many contents the buyer holds.
    pub fn held_count(&self) -> usize {
        self.here.len()
    }

    fn place_of(&self, provider: AccountKey) -> usize {
        let is_it = |it: &usize| AccountKey::from(&provider_key(*it)) == provider;
        (0..self.styles.len()).find(is_it).expect("it is known")
    }

    fn is_unknown(&self, providers: &[AccountKey]) -> Option<AccountKey> {
        let unknown = AccountKey::from(&provider_key(self.unknown?));
        providers.contains(&unknown).then_some(unknown)
    }

    fn given(&mut self, request: u32, outputs: &[(String, ContentId)]) -> Answer {
        if self
            .refuse_answers_after
            .is_some_and(|after| self.answers.len() >= after)
        {
            return Answer::NotTaken;
        }
        let y = outputs.iter().find(|(name, _)| name == "y");
        assert_eq!(y.is_some(), self.keeps(request), "it comes if it is kept");
        let is_right = y.is_none_or(|(_, y)| self.values[y] == self.right_answer(request));
        let sequence = self.sequence(request);
        let mut numbers = self.answers.iter().rev().map(|(number, _)| *number);
        let last = numbers.find(|number| self.sequence(*number) == sequence);
        assert!(
            last.is_none_or(|last| last < request),
            "answers come in order, once"
        );
        self.answers.push((request, is_right));
        Answer::Taken
    }

    /// Deals the parts that are left over the cheapest legs.
    fn plan(&mut self, wanted: &PlanRequest) -> Answer {
        let (parts, kept) = match &wanted.work {
            PlanScope::Rest(kept) => {
                let kept: BTreeSet<String> = kept.iter().map(|(name, _)| name.clone()).collect();
                let (mut needed, mut open) = (BTreeSet::new(), vec![self.parts - 1]);
                while let Some(part) = open.pop() {
                    if !kept.contains(&name_of(part, self.parts)) && needed.insert(part) {
                        open.extend(reads(part).into_iter().flatten());
                    }
                }
                (needed.into_iter().collect::<Vec<u32>>(), kept)
            }
            PlanScope::Part { plan, part, inputs } => {
                let part = self.plans[plan][*part as usize];
                (
                    vec![part],
                    inputs.iter().map(|(name, _)| name.clone()).collect(),
                )
            }
        };
        let asks = self.market.all_asks();
        let is_out = |ask: &Listing| wanted.excluded.iter().any(|it| it.rules_out(ask));
        let listings = asks.filter(|ask| !is_out(ask));
        let mut listings: Vec<_> = listings.collect();
        listings.sort_by_key(|listing| (listing.price, listing.order));
        let legs = u64::from(self.legs.min(wanted.providers_max)).min(parts.len() as u64) as usize;
        let legs = legs.min(listings.len() / wanted.copies.max(1) as usize);
        if legs == 0 {
            let why = NoPlan {
                kind: NoPlanKind::NoneEligible,
                text: "none".to_owned(),
            };
            return Answer::NotPlanned { why, passes: false };
        }
        let count = legs * wanted.copies as usize;
        let twin = |place: usize| place.checked_sub(legs).map(|first| first as u32);
        let plan_legs = (0..count).map(|place| PlanLeg {
            listing: Box::new(listings[place].clone()),
            twin_of: twin(place),
        });
        let place_in_plan = |part: u32| parts.iter().position(|it| *it == part).map(|it| it as u32);
        let is_checked = matches!(wanted.work, PlanScope::Part { .. });
        let plan_parts = parts.iter().enumerate().map(|(number, part)| {
            let inputs = reads(*part).into_iter().map(|maker| PlanInput {
                name: maker.map_or("x".to_owned(), |maker| name_of(maker, self.parts)),
                maker: maker.and_then(place_in_plan),
                fed: (maker.is_none() && self.spec.sequences > 0).then(|| PlanFeedback {
                    part: parts.len() as u32 - 1,
                    name: "y".to_owned(),
                }),
            });
            let inputs: Vec<PlanInput> = inputs.collect();
            assert!(
                inputs
                    .iter()
                    .all(|it| it.maker.is_some() || it.name == "x" || kept.contains(&it.name))
            );
            let readers = parts
                .iter()
                .filter(|reader| reads(**reader).contains(&Some(*part)));
            PlanPart {
                leg: (number % legs) as u32,
                graph: ContentId::for_content(&part.to_le_bytes()),
                weights: Vec::new(),
                inputs,
                outputs: vec![PlanOutput {
                    name: name_of(*part, self.parts),
                    readers: readers
                        .filter_map(|reader| place_in_plan(*reader))
                        .collect(),
                    is_wanted: is_checked || *part + 1 == self.parts,
                }],
                flops: [u64::from(!self.is_open_ended); 2],
                is_open_ended: self.is_open_ended,
                expected: [Micros::from_millis(5); 2],
                tolerance_ppm: 10,
            }
        });
        let (legs, parts_planned): (Vec<_>, Vec<_>) = (plan_legs.collect(), plan_parts.collect());
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        let id = ContentId::for_content(&bytes);
        self.plans.insert(id, parts);
        let makespan = Micros::from_millis(20 * u64::from(wanted.requests.min(50)));
        let plan = Plan {
            id,
            legs,
            parts: parts_planned,
            makespan,
        };
        plan.check_plan().unwrap();
        Answer::Planned(Box::new(plan))
    }

    fn open(&mut self, leg: Leg, opening: Opening) {
        match opening {
            Opening::Start(start) => {
                assert!(start.is_bounded());
                let lease = start.lease;
                let account = self.market.lease(lease).unwrap().provider;
                let is_it = |it: &usize| AccountKey::from(&provider_key(*it)) == account;
                let provider = (0..self.styles.len()).find(is_it).unwrap();
                let work = Session {
                    provider,
                    requests: vec![start.first.clone()],
                    no_more: start.last,
                    start: *start,
                    begun: self.now.tick,
                    has_gone: false,
                    limit: None,
                    said: [ProviderMessage::Accepted, ProviderMessage::Ready].into(),
                    messages: 0,
                    runs: 0,
                    made: BTreeMap::new(),
                    offered: BTreeSet::new(),
                    inputs: BTreeSet::new(),
                    finished: None,
                    is_dead: false,
                    is_over: false,
                };
                let before = self.works.insert(lease, work);
                assert!(before.is_none(), "a lease is started once");
                self.streams.insert(leg, lease);
            }
            Opening::Resume(lease) => {
                self.streams.insert(leg, lease);
                self.work_on(lease);
                let Some(work) = self.works.get_mut(&lease) else {
                    let failed = ProviderMessage::Failed(Failure::Forgotten);
                    self.streams.remove(&leg);
                    return self.heard(leg, failed);
                };
                work.said.clear();
                work.said.push_back(match &work.finished {
                    Some(finished) => ProviderMessage::Finished(Box::new(finished.clone())),
                    None => ProviderMessage::Accepted,
                });
            }
            Opening::Offer(_) => panic!("a buyer hands on by another way"),
        }
    }

    fn heard(&mut self, leg: Leg, message: ProviderMessage) {
        self.apply(Event::MessageReceived { leg, message });
    }

    fn say(&mut self, leg: Leg, message: BuyerMessage) {
        let Some(work) = self.streams.get(&leg).and_then(|it| self.works.get_mut(it)) else {
            return;
        };
        assert!(!work.is_over, "nothing follows the last message");
        match message {
            BuyerMessage::Go => work.has_gone = true,
            BuyerMessage::Next(request) => {
                assert!(!work.no_more && work.start.is_complete_request(&request));
                work.requests.push(request);
            }
            BuyerMessage::NoMore => work.no_more = true,
            BuyerMessage::Limit { parts } => {
                work.limit = Some(parts);
                work.no_more = true;
            }
            BuyerMessage::Signed(receipt) => {
                receipt.verify().unwrap();
                work.is_over = true;
            }
            BuyerMessage::Refused { .. } => {
                work.is_over = true;
                let lease = self.streams[&leg];
                self.note(lease);
            }
        }
    }

    /// The provider of a lease says that it used all the time there was.
    pub fn note_all(&mut self, lease: LeaseId) {
        let of = self.market.lease(lease).expect("it was bought").clone();
        let usage = of.usage_possible(self.now.log);
        let noted = self.command(of.provider, Command::NoteUsage { lease, usage });
        noted.expect("its work has begun in the log");
    }

    /// A provider that lost its buyer, or was refused, says what it used.
    pub fn note(&mut self, lease: LeaseId) {
        let work = &self.works[&lease];
        let account = AccountKey::from(&provider_key(work.provider));
        let usage = DeviceMicros(u64::from(work.runs) * self.run_micros);
        if work.runs > 0 {
            // Whoever notes nothing, or too late, has nothing of it.
            let _ = self.command(account, Command::NoteUsage { lease, usage });
        }
    }

    /// The buyer went away: a provider finishes what it began.
    fn hang(&mut self, lease: LeaseId) {
        let Some(work) = self.works.get_mut(&lease) else {
            return;
        };
        if work.is_over || work.is_dead {
            return;
        }
        work.no_more = true;
        while !self.works[&lease].is_dead && self.work_on(lease) {}
        self.note(lease);
    }

    /// One stream says its next message, or its provider works on.
    fn hear_one(&mut self) {
        let legs: Vec<Leg> = self.streams.keys().copied().collect();
        if legs.is_empty() {
            return;
        }
        let leg = legs[self.draw(legs.len() as u64) as usize];
        let lease = self.streams[&leg];
        let style = self.styles[self.works[&lease].provider];
        if self.works[&lease].is_dead {
            return;
        }
        if self.works[&lease].said.is_empty() {
            self.work_on(lease);
        }
        let work = self.works.get_mut(&lease).unwrap();
        work.messages += u32::from(!work.said.is_empty());
        match style {
            Style::Vanishes(after) | Style::LiesAndVanishes(after) if work.messages > after => {
                work.is_dead = true;
                self.streams.remove(&leg);
                self.apply(Event::PeerLost {
                    leg,
                    why: "it closed the stream".to_owned(),
                })
            }
            Style::Restarts(after) if work.messages > after => {
                let provider = work.provider;
                work.is_dead = true;
                self.streams.remove(&leg);
                self.restart(provider);
                let why = "it closed the stream".to_owned();
                self.apply(Event::PeerLost { leg, why });
            }
            Style::Mute(after) | Style::Freezes(after) if work.messages > after => {
                work.is_dead = true;
            }
            Style::Confused if work.messages > 2 => self.heard(
                leg,
                ProviderMessage::Made {
                    request: 9,
                    part: 9,
                    outputs: vec![],
                },
            ),
            _ => {
                if let Some(message) = work.said.pop_front() {
                    if let ProviderMessage::Made { outputs, .. } = &message {
                        work.offered.extend(outputs.iter().map(|(_, id)| *id));
                    }
                    self.heard(leg, message);
                }
            }
        }
    }

    /// Whether the provider of a lease takes its time still.
    fn is_late(&self, lease: LeaseId) -> bool {
        let work = &self.works[&lease];
        let seconds = match self.styles[work.provider] {
            Style::LiesLate => 3,
            Style::TakesLong(seconds) => seconds,
            _ => 0,
        };
        self.now.tick < work.begun.plus(Micros::from_seconds(seconds))
    }

    /// The provider of a lease runs the next part that it can; whether it did.
    fn work_on(&mut self, lease: LeaseId) -> bool {
        let Some(work) = self.works.get(&lease) else {
            return false;
        };
        if !work.has_gone || work.finished.is_some() || self.is_late(lease) {
            return false;
        }
        let style = self.styles[work.provider];
        if let Some(name) = self.starved_input(work) {
            let failure = Failure::Input(format!("{name}: it is missing"));
            let work = self.works.get_mut(&lease).unwrap();
            work.said.push_back(ProviderMessage::Failed(failure));
            work.has_gone = false;
            return false;
        }
        if style == Style::Fails {
            let failed = ProviderMessage::Failed(Failure::Run("it burns".to_owned()));
            let work = self.works.get_mut(&lease).unwrap();
            work.said.push_back(failed);
            work.has_gone = false;
            return false;
        }
        if style == Style::BlamesInput {
            self.pass(self.run_micros);
            let why = "3 is not below 2".to_owned();
            let work = self.works.get_mut(&lease).unwrap();
            work.runs += 1;
            let stalled = ProviderMessage::Stalled(Failure::BadInput(why));
            work.said.push_back(stalled);
            self.finish(lease);
            return false;
        }
        if let Style::Reclaims(after) = style
            && work.runs >= after
        {
            let work = self.works.get_mut(&lease).unwrap();
            work.said
                .push_back(ProviderMessage::Stalled(Failure::Expired));
            self.finish(lease);
            return false;
        }
        let most = work
            .start
            .parts
            .len()
            .min(work.limit.unwrap_or(u32::MAX) as usize);
        let mut is_done = work.no_more;
        let mut next = None;
        let mut before = BTreeSet::new();
        for request in &work.requests {
            let made = work.made.get(&request.number).map_or(0, Vec::len);
            if made < most {
                is_done = false;
                let is_first = before.insert(request.sequence);
                if work.start.sequences > 0 && !is_first {
                    continue;
                }
                if let Some(inputs) = self.inputs(work, request, made) {
                    next = Some((request.number, made, inputs));
                    break;
                }
            }
        }
        match next {
            Some((request, part, inputs)) => {
                self.run_part(lease, request, part, &inputs);
                true
            }
            None => {
                if is_done {
                    self.finish(lease);
                }
                false
            }
        }
    }

    /// What a provider was offered and its maker does not serve.
    fn starved_input(&self, work: &Session) -> Option<String> {
        let mut inputs = work.start.parts.iter().flat_map(|part| &part.inputs);
        let starving = inputs.find(|input| {
            let Source::Lease { lease, .. } = input.source else {
                return false;
            };
            let maker = self.works.get(&lease);
            maker.is_some_and(|maker| {
                self.styles[maker.provider] == Style::Starves && !maker.offered.is_empty()
            })
        });
        starving.map(|input| input.name.clone())
    }

    fn inputs(&self, work: &Session, request: &Request, part: usize) -> Option<Vec<ContentId>> {
        let inputs = work.start.parts[part].inputs.iter();
        let of = |made: &Session, request: u32, name: &String| {
            let made = made.made.get(&request)?.iter().flatten();
            made.clone()
                .find(|(made, _)| made == name)
                .map(|(_, id)| *id)
        };
        let of_lease = |lease: LeaseId, request: u32, name: &String| {
            let takes = self.styles[work.provider] != Style::Untaking;
            let maker = self.works.get(&lease).filter(|_| takes)?;
            of(maker, request, name).filter(|id| maker.offered.contains(id))
        };
        let mut before = work.requests.iter().rev();
        let before = before
            .find(|it| it.number < request.number && it.sequence == request.sequence)
            .map(|before| before.number);
        let value = |input: &crate::lease::Input| match input.source {
            Source::Buyer => {
                let mut inputs = request.inputs.iter();
                let given = inputs.find(|(name, _)| *name == input.name);
                given.map(|(_, id)| *id).or_else(|| {
                    let fed = input.fed.as_ref().expect("what is not fed is given");
                    let before = before.expect("the first request brings all");
                    match fed.maker {
                        None => of(work, before, &fed.name),
                        Some((lease, _)) => of_lease(lease, before, &fed.name),
                    }
                })
            }
            Source::Own => of(work, request.number, &input.name),
            Source::Lease { lease, .. } => of_lease(lease, request.number, &input.name),
        };
        inputs.map(value).collect()
    }

    fn run_part(&mut self, lease: LeaseId, request: u32, part: usize, inputs: &[ContentId]) {
        self.pass(self.run_micros);
        let parts = self.parts;
        let work = self.works.get_mut(&lease).unwrap();
        let style = self.styles[work.provider];
        let described = &work.start.parts[part];
        let number =
            (0..parts).find(|it| ContentId::for_content(&it.to_le_bytes()) == described.graph);
        let read: Vec<u64> = inputs.iter().map(|id| self.values[id]).collect();
        let mut value = model(number.unwrap(), &read);
        if matches!(
            style,
            Style::Liar | Style::LiesLate | Style::LiesAndVanishes(_)
        ) {
            value ^= 1 + work.provider as u64;
        }
        // Honest devices round each in its own way.
        let noise = (work.provider as u64) % 2;
        let id = ContentId::for_content(&[value.to_le_bytes(), noise.to_le_bytes()].concat());
        self.values.insert(id, value);
        let outputs = vec![(described.outputs[0].name.clone(), id)];
        let part_number = part as u32;
        work.said.push_back(ProviderMessage::Running {
            request,
            part: part_number,
        });
        let consumers = described.outputs[0].consumers.clone();
        let made = ProviderMessage::Made {
            request,
            part: part_number,
            outputs: outputs.clone(),
        };
        work.said.push_back(made);
        for (to, consumer) in consumers {
            let is_it = |it: &&usize| AccountKey::from(&provider_key(**it)) == consumer;
            let taker = (0..self.styles.len()).collect::<Vec<_>>();
            let taker = *taker.iter().find(is_it).unwrap();
            if self.styles[taker] == Style::Untaking {
                let (name, tensor) = outputs[0].clone();
                let offer = Offer {
                    from: lease,
                    to,
                    request,
                    name,
                    tensor,
                };
                let why = "not taken".to_owned();
                let untaken = UntakenOffer {
                    consumer,
                    offer,
                    why,
                };
                work.said
                    .push_back(ProviderMessage::Untaken(Box::new(untaken)));
            }
        }
        for (input, id) in described.inputs.iter().zip(inputs) {
            if input.source != Source::Own {
                work.inputs.insert(*id);
            }
        }
        work.made.entry(request).or_default().push(outputs);
        work.runs += 1;
    }

    fn finish(&mut self, lease: LeaseId) {
        let found = self.market.lease(lease).unwrap().clone();
        let work = self.works.get_mut(&lease).unwrap();
        let theirs = |id: &ContentId| souk_market::ContentId(*id.as_bytes());
        let usage = match self.styles[work.provider] {
            Style::Overbills => DeviceMicros(u64::MAX / 2),
            Style::BillsAll => DeviceMicros::from_units(
                found.quantity,
                found.deadline.saturating_since(found.start),
            ),
            _ => DeviceMicros(u64::from(work.runs).max(1) * self.run_micros),
        };
        let parts = work.made.values().map(Vec::len).max().unwrap_or(1);
        let made = work.made.values().flatten().flatten().map(|(_, id)| id);
        let (inputs, outputs) = match work.start.sequences {
            0 => (
                work.inputs.iter().map(theirs).collect(),
                made.map(theirs).collect(),
            ),
            _ => (Vec::new(), transcript(made).iter().map(theirs).collect()),
        };
        let mut body = ReceiptBody {
            market: self.market.market(),
            lease,
            job: found.job,
            buyer: found.buyer,
            provider: found.provider,
            graph: theirs(&work.start.graph_of(parts)),
            inputs,
            outputs,
            class: found.class,
            model: found.model.clone(),
            emulated: found.class.emulated,
            dtype: Dtype::F32,
            declared_mega_ops: 1,
            delivered_mega_ops: 0,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: found.idle,
            price: found.price,
            amount: Credits(0),
            bytes_in: 0,
            bytes_out: 0,
            started: Millis(1),
            finished: Millis(2),
        };
        match self.styles[work.provider] {
            Style::Misstates(Term::Class) => body.class.memory = Band(body.class.memory.0 + 1),
            Style::Misstates(Term::Model) => body.model = "another".try_into().unwrap(),
            Style::Misstates(Term::IdlePart) => body.idle_part = Permille(1_000),
            Style::Misstates(term) => panic!("no style misstates the {term}"),
            Style::BillsIdle(idle) => body.idle = DeviceMicros(idle.0),
            _ => {}
        }
        let due = ReceiptBody::amount_due(body.price, body.billable_usage());
        body.amount = due.unwrap_or(Credits(1));
        let receipt = Receipt::new(body).sign_as_provider(&provider_key(work.provider));
        let outputs = work.made.iter();
        let outputs = outputs.map(|(n, made)| (*n, made.iter().flatten().cloned().collect()));
        let finished = WorkResult {
            receipt,
            outputs: outputs.collect(),
            shown: Vec::new(),
        };
        work.finished = Some(finished.clone());
        work.said
            .push_back(ProviderMessage::Finished(Box::new(finished)));
    }

    /// How many requests some provider has that it has not done.
    pub fn ahead(&self) -> usize {
        let open = |work: &Session| {
            let parts = work.start.parts.len();
            let made = |number: &u32| work.made.get(number).map_or(0, Vec::len);
            let open = work.requests.iter().map(|request| request.number);
            open.filter(|number| made(number) < parts).count()
        };
        self.works.values().map(open).max().unwrap_or(0)
    }

    /// What holds once the job is over.
    pub fn assert_rest(&self) {
        let leases = self.leases();
        let running = leases.iter().filter(|lease| lease.is_running());
        let running: Vec<_> = running.map(|lease| (lease.id, lease.state)).collect();
        assert!(running.is_empty(), "leases run: {running:?}");
        let is_over = |fact: &Fact| matches!(fact, Fact::Over { .. });
        assert!(self.has_failed_disk || self.disk.iter().any(is_over));
        let past = Past::from_facts(self.disk.clone());
        let how = self.outcome.as_ref().map(|outcome| &outcome.how);
        for lease in &leases {
            let LeaseState::Closed { reason, .. } = lease.state else {
                continue;
            };
            match past.right.get(&lease.id) {
                Some(receipt) if reason == CloseReason::Receipt => {
                    assert_eq!(lease.cost, receipt.body.amount, "what is right is paid");
                    let is_told = |event: &JobEvent| match event {
                        JobEvent::Signed { receipt, .. } => receipt.body.lease == lease.id,
                        _ => false,
                    };
                    let is_told = self.events.iter().any(is_told);
                    assert!(is_told || how != Some(&End::Done), "what is paid is told");
                }
                None => assert_ne!(reason, CloseReason::Receipt, "what is paid is put down"),
                _ => {}
            }
            let is_refused = past.refused.contains_key(&lease.id);
            if is_refused && self.lives == 1 && self.chaos == 0 {
                assert_refused(lease);
            }
        }
    }

    /// How many facts are of a kind.
    pub fn facts(&self, is_it: impl Fn(&Fact) -> bool) -> usize {
        self.disk.iter().filter(|fact| is_it(fact)).count()
    }
}
