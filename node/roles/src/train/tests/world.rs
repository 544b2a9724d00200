//! A market of one buyer under a seed: its providers compute a chain of hashes in place of a
//! model, its disk loses what was not written, and its buyer can be killed between any two events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use souk_market::{AccountKey, Credits, JobId, MarketId, Millis, Permille};
use souk_memory::ContentId;

use super::*;
use crate::clock::Micros;

/// How a provider behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Honest,
    /// It may die in any step.
    Mortal,
    /// A request takes far longer than its ask states, so that the time of its leases can be over
    /// after a few of them.
    Lagging,
    /// It does nothing and sends states that it was sent before.
    Old,
    /// Its losses are no numbers.
    NotFinite,
    /// It leaves states out, or gives none of the right shape.
    Malformed,
    /// It leaves out some steps, and answers as if it had done them.
    Lazy,
    /// Its states look right, and are others.
    Poisoned,
}

/// The account that pays for each run.
pub const PAYER: Payer = Payer {
    market: MarketId([1; 32]),
    account: AccountKey([2; 32]),
};

/// What a step costs, and what a lease holds for each step.
const STEP_COST: u64 = 2;
const STEP_ESCROW: u64 = 5;

const WINDOW: usize = 4;

/// How long a request takes, and how long at a provider of [`Style::Lagging`].
const REQUEST_TIME: Micros = Micros::from_millis(1);
pub const LAGGING_TIME: Micros = Micros::from_millis(10);

/// The requests that a lease can still answer beside those under way when the buyer hears that its
/// time ends soon: the longest evaluation, and the last step.
const WARNED_BEFORE: u64 = 6;

/// The spare time of a lease, in requests of a lagging provider.
const SPARE: u64 = 2 * WARNED_BEFORE;

/// The loss that a provider of [`Style::NotFinite`] claims.
const NOT_A_NUMBER: LossBits = LossBits(f32::NAN.to_bits());

/// Lives and ends until the world gives up.
const ENDS_MAX: usize = 200;

struct Lease {
    provider: usize,
    /// The true state, and its position.
    state: ContentId,
    position: u64,
    queue: VecDeque<RunRequest>,
    escrow: u64,
    steps_left: u64,
    evaluations_left: u64,
    no_more: bool,
    /// The number of requests done: a step is one, an evaluation several.
    done: u64,
    /// How many requests of the present evaluation are done.
    batches_done: u64,
    /// Whether the caller stopped while the last request was an evaluation.
    is_abandoned: bool,
    /// How many requests the provider can do in the time of the lease, if it lags.
    limit: u64,
    /// Whether the buyer hears before that time is over.
    is_warned: bool,
    job: JobId,
}

impl Lease {
    /// Returns how long a request of it took.
    fn request_time(&self, style: Style) -> Option<Micros> {
        let time = match style {
            Style::Lagging => LAGGING_TIME,
            _ => REQUEST_TIME,
        };
        (self.done > 0).then_some(time)
    }
}

pub struct World {
    pub core: TrainCore,
    pub spec: RunSpec,
    pub steps: u64,
    pub disk: Vec<Fact>,
    pub ends: Vec<End>,
    pub lives: u32,
    pub deaths: u32,
    pub lies: u32,
    /// The evaluations that a stop cut short.
    pub abandoned: u32,
    /// How often the buyer heard that the time of a lease ends soon.
    pub warnings: u32,
    pub leases: u32,
    /// The steps sent over all lives.
    pub sent: Vec<Step>,
    /// The positions of the evaluations sent over all lives.
    pub evaluated: Vec<u64>,
    /// Nobody dies but by style, and the buyer is never killed.
    pub is_calm: bool,
    pub stop_after: Option<u64>,
    /// How many requests a provider that lags can do in a lease that was bought by its ask, instead
    /// of a few.
    pub lagging_limit: Option<u64>,
    /// The times of requests by which leases were bought.
    pub request_times: Vec<Option<Micros>>,
    pub first_stop: Option<u64>,
    /// The providers that an audit convicted, over all lives.
    pub convicted: Vec<AccountKey>,
    /// What was short when no lease could be bought, the last time.
    pub short_of: Option<Shortage>,
    /// After how many records the buyer is killed, once.
    dies_after: Option<usize>,
    styles: Vec<Style>,
    began: Fact,
    queue: VecDeque<Fact>,
    states: BTreeSet<ContentId>,
    wish: Option<LeaseWish>,
    quoted: Option<(JobId, usize)>,
    lease: Option<Lease>,
    events: VecDeque<Event>,
    /// The cost of each lease, which the market knows.
    costs: BTreeMap<JobId, u64>,
    is_over: bool,
    random: u64,
}

/// The state after so many steps of the undisturbed run.
pub fn honest_state(position: u64) -> ContentId {
    (0..position).fold(ContentId::for_content(b"first"), next_state)
}

fn next_state(state: ContentId, position: u64) -> ContentId {
    let batch = [&state.as_bytes()[..], &position.to_le_bytes()].concat();
    ContentId::for_content(&batch)
}

fn loss_at(state: ContentId, position: u64) -> LossBits {
    let after = next_state(state, position);
    let bytes = after.as_bytes();
    LossBits(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn held_out_loss(state: ContentId) -> LossBits {
    loss_at(state, u64::MAX)
}

fn named(state: ContentId) -> States {
    vec![("parameters".to_owned(), state)]
}

/// The state that a provider of [`Style::Poisoned`] makes, which no other one makes.
fn poisoned_state(provider: usize, state: ContentId) -> ContentId {
    next_state(state, u64::MAX - provider as u64 - 1)
}

pub fn account(provider: usize) -> AccountKey {
    AccountKey([u8::try_from(provider).unwrap() + 1; 32])
}

impl World {
    pub fn new(seed: u64, styles: Vec<Style>) -> World {
        World::with_audits(seed, styles, None)
    }

    /// Creates a world in which another provider runs this share of the segments again.
    pub fn with_audits(seed: u64, styles: Vec<Style>, share: Option<Permille>) -> World {
        let audits = share.map(|share| AuditSpec {
            share,
            secret: [u8::try_from(seed % 251).unwrap(); 32],
        });
        let spec = RunSpec {
            keep_steps: 1 + seed % 7,
            lease_steps_max: 5 + seed % 23,
            budget: Some(Credits(100_000)),
            evaluation: (!seed.is_multiple_of(4)).then_some(EvaluationSpec {
                every_steps: 1 + seed % 11,
                requests: 1 + seed % 5,
            }),
        };
        let steps = 20 + seed % 41;
        let first = honest_state(0);
        let began = Fact::Began {
            subject: ContentId::for_content(b"subject"),
            payer: PAYER,
            steps,
            states: named(first),
            command: String::new(),
            at: Millis(7),
            audits,
        };
        let (core, actions) = TrainCore::begin(spec, began.clone());
        let mut world = World {
            core,
            spec,
            steps,
            disk: Vec::new(),
            ends: Vec::new(),
            lives: 1,
            deaths: 0,
            lies: 0,
            abandoned: 0,
            warnings: 0,
            leases: 0,
            sent: Vec::new(),
            evaluated: Vec::new(),
            is_calm: false,
            stop_after: None,
            lagging_limit: None,
            request_times: Vec::new(),
            first_stop: None,
            convicted: Vec::new(),
            short_of: None,
            dies_after: None,
            styles,
            began,
            queue: VecDeque::new(),
            states: BTreeSet::new(),
            wish: None,
            quoted: None,
            lease: None,
            events: VecDeque::new(),
            costs: BTreeMap::new(),
            is_over: false,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        };
        world.carry_out(actions);
        world
    }

    pub fn set_budget(&mut self, budget: Credits) {
        self.spec.budget = Some(budget);
        self.kill_buyer();
    }

    pub fn set_lease_steps_max(&mut self, steps: u64) {
        self.spec.lease_steps_max = steps;
        self.kill_buyer();
    }

    /// Kills the buyer once its journal has so many records, and none of those on their way to it.
    pub fn die_after(&mut self, records: usize) {
        self.dies_after = Some(records);
    }

    /// Returns how the providers behave.
    pub fn styles(&self) -> &[Style] {
        &self.styles
    }

    pub fn is_done(&self) -> bool {
        self.ends.last() == Some(&End::Done)
    }

    /// Returns how many states are on the disk.
    pub fn kept_states(&self) -> usize {
        self.states.len()
    }

    pub fn is_lease_end(&self, position: u64) -> bool {
        position == self.steps || position.is_multiple_of(self.spec.lease_steps_max)
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// Lives until the run is done, or the buyer gives up.
    pub fn live(&mut self) {
        while self.ends.len() < ENDS_MAX {
            if !self.is_over {
                self.step();
                continue;
            }
            let is_last = self.ends.last() == Some(&End::Done);
            let past = self.core.past();
            let is_done = past.is_done() && past.due_audits.is_empty();
            assert_eq!(is_last, is_done, "whoever has all steps is done");
            let is_broke = self.short_of == Some(Shortage::Money);
            if is_last || is_broke || self.is_calm && self.stop_after.is_none() {
                return;
            }
            self.stop_after = None;
            self.start_again();
        }
    }

    fn step(&mut self) {
        if self.dies_after.is_some_and(|it| self.disk.len() >= it) {
            self.dies_after = None;
            return self.begin_next_life(0);
        }
        let is_wild = !self.is_calm;
        if is_wild && self.draw(120) == 0 {
            return self.kill_buyer();
        }
        if is_wild && self.draw(400) == 0 {
            return self.tell(Event::Stop);
        }
        if let Some(after) = self.stop_after
            && self.sent.len() as u64 >= after
            && self.first_stop.is_none()
        {
            self.first_stop = Some(0);
            return self.tell(Event::Stop);
        }
        match self.draw(4) {
            0 if !self.queue.is_empty() => self.write(),
            1 if !self.events.is_empty() => {
                let event = self.events.pop_front().unwrap();
                self.tell(event);
            }
            2 => self.feed(),
            3 => self.compute(),
            _ => {}
        }
    }

    fn tell(&mut self, event: Event) {
        let is_abandoning = matches!(event, Event::Stop | Event::TimeShort);
        if let Some(lease) = self.lease.as_mut().filter(|_| is_abandoning) {
            lease.is_abandoned |= matches!(lease.queue.back(), Some(RunRequest::Evaluation { .. }));
        }
        let actions = self.core.apply(event);
        self.carry_out(actions);
    }

    fn write(&mut self) {
        let fact = self.queue.pop_front().unwrap();
        self.disk.push(fact);
        self.tell(Event::Recorded);
    }

    /// Tells the buyer that the time of a lagging provider's lease ends soon, if it does.
    fn warn_of_end(&mut self) {
        let batches = self.spec.evaluation.map_or(0, |it| it.requests);
        let Some(lease) = &mut self.lease else { return };
        let requests = lease.queue.iter().map(|request| match request {
            RunRequest::Step(_) => 1,
            RunRequest::Evaluation { .. } => batches,
        });
        let to_come = lease.done + requests.sum::<u64>() + WARNED_BEFORE;
        let is_lagging = self.styles[lease.provider] == Style::Lagging;
        let is_short = is_lagging && lease.done > 0 && to_come >= lease.limit;
        if is_short && std::mem::take(&mut lease.is_warned) {
            self.warnings += 1;
            self.tell(Event::TimeShort);
        }
    }

    fn feed(&mut self) {
        self.warn_of_end();
        let has_room = self
            .lease
            .as_ref()
            .is_some_and(|it| it.queue.len() < WINDOW && !it.no_more);
        if has_room {
            self.tell(Event::StepWanted);
        }
    }

    /// The provider does a step, dies, or finishes its lease.
    fn compute(&mut self) {
        self.warn_of_end();
        let Some(lease) = &self.lease else { return };
        let style = self.styles[lease.provider];
        let is_mortal = style == Style::Mortal && self.draw(12) == 0;
        let lease = self.lease.as_mut().unwrap();
        if is_mortal {
            self.deaths += 1;
            return self.end_lease(LeaseEndReason::Fault);
        }
        if style == Style::Lagging && lease.done >= lease.limit {
            return self.end_lease(LeaseEndReason::TimeOver);
        }
        let step = match lease.queue.pop_front() {
            None => {
                if lease.no_more || lease.steps_left + lease.evaluations_left == 0 {
                    self.end_lease(LeaseEndReason::Done);
                }
                return;
            }
            Some(request @ RunRequest::Evaluation { position }) => {
                assert_eq!(position, lease.position, "it follows the steps before it");
                lease.queue.push_front(request);
                return self.compute_batch(style);
            }
            Some(RunRequest::Step(step)) => step,
        };
        assert_eq!(
            step.position, lease.position,
            "each step follows the one before"
        );
        let loss = loss_at(lease.state, step.position);
        let old = lease.state;
        // Without the last step of a segment too, two that are lazy could lie alike.
        let is_skipped = style == Style::Lazy && step.position % 3 == 1 && !step.keep;
        self.lies += u32::from(is_skipped);
        if style == Style::Poisoned && step.position % 5 == 3 {
            self.lies += 1;
            lease.state = poisoned_state(lease.provider, lease.state);
        } else if !is_skipped {
            lease.state = next_state(lease.state, step.position);
        }
        lease.position += 1;
        lease.done += 1;
        let states = step.keep.then(|| named(lease.state));
        let answer = match style {
            Style::Old if step.keep => {
                self.lies += 1;
                let from = self.wish.as_ref().unwrap().from.states[0].1;
                lease.state = old;
                StepAnswer::Done {
                    loss,
                    states: Some(named(from)),
                }
            }
            Style::NotFinite if step.position > self.wish.as_ref().unwrap().from.position => {
                self.lies += 1;
                StepAnswer::NotFinite { loss: NOT_A_NUMBER }
            }
            Style::Malformed if step.keep && lease.done > 2 => {
                self.lies += 1;
                StepAnswer::Malformed
            }
            _ => StepAnswer::Done { loss, states },
        };
        self.tell(Event::Answered(answer));
    }

    /// The provider does a request of an evaluation, the last of which answers it.
    fn compute_batch(&mut self, style: Style) {
        let batches = self.spec.evaluation.expect("it evaluates").requests;
        let lease = self.lease.as_mut().expect("it is at work");
        if lease.is_abandoned && lease.queue.len() == 1 {
            lease.queue.pop_front();
            self.abandoned += 1;
            return self.tell(Event::Answered(StepAnswer::Abandoned));
        }
        lease.done += 1;
        lease.batches_done += 1;
        if style == Style::Malformed && lease.done > 2 {
            self.lies += 1;
            return self.tell(Event::Answered(StepAnswer::Malformed));
        }
        if lease.batches_done < batches {
            return self.tell(Event::BatchAnswered);
        }
        lease.batches_done = 0;
        lease.queue.pop_front();
        let (loss, states) = (held_out_loss(lease.state), None);
        let answer = match style {
            Style::NotFinite => StepAnswer::NotFinite { loss: NOT_A_NUMBER },
            _ => StepAnswer::Done { loss, states },
        };
        self.tell(Event::Answered(answer));
    }

    fn end_lease(&mut self, why: LeaseEndReason) {
        let lease = self.lease.take().expect("it ends once");
        let cost = self.close(&lease);
        let is_known = self.draw(8) > 0 || self.is_calm;
        self.tell(Event::LeaseEnded(LeaseEnd {
            cost: is_known.then_some(Credits(cost)),
            receipts: Vec::new(),
            why,
            request_time: lease.request_time(self.styles[lease.provider]),
            planned_time: LAGGING_TIME,
        }));
        let of_it = |fact: &&Fact| matches!(fact, Fact::LeaseOver { .. });
        if let Some(Fact::LeaseOver { blame, .. }) = self.queue.iter().rev().find(of_it) {
            assert!(
                *blame != Blame::Avoided || lease.done == 0,
                "it did {} requests",
                lease.done
            );
        }
    }

    fn close(&mut self, lease: &Lease) -> u64 {
        let cost = (lease.done * STEP_COST).min(lease.escrow);
        self.costs.insert(lease.job, cost);
        cost
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Quote(wish) => self.quote(wish),
                Action::BeginLease => self.begin_lease(),
                Action::Send(request) => {
                    let is_kept = |fact: &&Fact| matches!(fact, Fact::Kept { .. });
                    let waiting = self.queue.iter().filter(is_kept).count();
                    assert!(
                        waiting < running::UNRECORDED_STATES_MAX,
                        "states wait in memory"
                    );
                    self.send(request);
                }
                Action::SendNoMore => {
                    if let Some(lease) = &mut self.lease {
                        lease.no_more = true;
                    }
                }
                Action::CancelLease => {
                    if self.lease.is_some() {
                        // The job pays, and ends a moment later.
                        let lease = self.lease.take().unwrap();
                        let cost = self.close(&lease);
                        self.events.push_back(Event::LeaseEnded(LeaseEnd {
                            cost: Some(Credits(cost)),
                            receipts: Vec::new(),
                            why: LeaseEndReason::Cancelled,
                            request_time: lease.request_time(self.styles[lease.provider]),
                            planned_time: LAGGING_TIME,
                        }));
                    }
                }
                Action::KeepStates(states) => self.states.extend(states.iter().map(|it| it.1)),
                Action::RestoreStates(kept) => {
                    assert_eq!(kept, self.core.past().kept);
                    assert!(self.queue.is_empty(), "all is on the disk");
                    self.assert_written(&kept.states);
                }
                Action::ShowAudit { from, end, verdict } => {
                    assert!(from < end && end <= self.steps);
                    if let AuditVerdict::Convicted { provider, .. } = verdict {
                        self.convicted.push(provider);
                    }
                }
                Action::ForgetStates(states) => {
                    self.states
                        .retain(|it| !states.iter().any(|(_, gone)| gone == it));
                }
                Action::Record(fact) => self.queue.push_back(fact),
                Action::ShowStep { done, .. } => assert!(done <= self.steps),
                Action::ShowEvaluation { position, .. } => assert!(position <= self.steps),
                Action::End(end) => {
                    assert!(self.queue.is_empty(), "all is on the disk");
                    assert!(self.lease.is_none(), "no lease is left open");
                    if end == End::Stopped && self.first_stop.is_some() {
                        self.first_stop = Some(self.core.past().kept.position);
                    }
                    self.ends.push(end);
                    self.is_over = true;
                }
            }
        }
    }

    /// Takes what the lease was bought for, and no more.
    fn send(&mut self, request: RunRequest) {
        let lease = self.lease.as_mut().expect("it runs");
        match request {
            RunRequest::Step(step) => {
                self.sent.push(step);
                lease.steps_left -= 1;
            }
            RunRequest::Evaluation { position } => {
                self.evaluated.push(position);
                lease.evaluations_left -= 1;
            }
        }
        lease.queue.push_back(request);
    }

    fn quote(&mut self, wish: LeaseWish) {
        if !self.has_deceivers() {
            let honest = named(honest_state(wish.from.position));
            assert_eq!(wish.from.states, honest, "it goes on from the right states");
        }
        self.assert_written(&wish.from.states);
        if let Some(claim) = wish.claims.first() {
            assert_eq!(wish.steps, claim.losses.len() as u64);
            self.assert_written(&claim.states);
        }
        let able: Vec<usize> = (0..self.styles.len())
            .filter(|it| !wish.excluded.contains(&account(*it)))
            .collect();
        let is_poor = wish.budget.is_some_and(|left| left.0 < self.cost_of(&wish));
        let is_taken = !self.is_calm && self.draw(30) == 0;
        self.short_of = match (able.is_empty() || is_taken, is_poor) {
            (true, _) => Some(Shortage::Offers),
            (false, true) => Some(Shortage::Money),
            (false, false) => None,
        };
        let event = match self.short_of {
            Some(short_of) => Event::NotQuoted { short_of },
            None => {
                let provider = able[self.draw(able.len() as u64) as usize];
                self.leases += 1;
                let job = JobId(*ContentId::for_content(&self.leases.to_le_bytes()).as_bytes());
                self.quoted = Some((job, provider));
                let provider = account(provider);
                Event::Quoted { job, provider }
            }
        };
        self.wish = Some(wish);
        self.events.push_back(event);
    }

    fn requests_of(&self, wish: &LeaseWish) -> u64 {
        let batches = self.spec.evaluation.map_or(0, |it| it.requests);
        wish.steps + wish.evaluations * batches
    }

    /// Returns what a lease costs whose requests are all answered.
    fn cost_of(&self, wish: &LeaseWish) -> u64 {
        self.requests_of(wish) * STEP_COST
    }

    fn assert_written(&self, states: &States) {
        let is_written = |it: &(String, ContentId)| self.states.contains(&it.1);
        assert!(states.iter().all(is_written), "{states:?} are on the disk");
    }

    /// Returns whether somebody makes wrong states that look right.
    fn has_deceivers(&self) -> bool {
        let deceives = |style: &Style| matches!(style, Style::Lazy | Style::Poisoned);
        self.styles.iter().any(deceives)
    }

    /// Returns whether each step that a deceiver can have made was run again.
    fn is_checked(&self) -> bool {
        let past = self.core.past();
        let has_all = past.audits.is_some_and(|spec| spec.share.0 == 1_000);
        has_all && past.audit_findings.unaudited_steps == 0 && past.due_audits.is_empty()
    }

    fn begin_lease(&mut self) {
        let wish = self.wish.clone().expect("it was quoted");
        let (job, provider) = self.quoted.take().expect("it was quoted");
        let is_noted = |fact: &Fact| matches!(fact, Fact::Leasing { job: of, .. } if *of == job);
        assert!(
            self.disk.iter().any(is_noted),
            "a lease is noted before it is bought"
        );
        let left = wish.budget.map_or(u64::MAX, |budget| budget.0);
        let requests = self.requests_of(&wish);
        let escrow = (requests * STEP_ESCROW).min(left);
        self.costs.insert(job, escrow);
        let limit = match (wish.request_time, self.lagging_limit) {
            (Some(each), _) => SPARE + requests * 2 * each.0 / LAGGING_TIME.0,
            (None, Some(limit)) => limit,
            (None, None) => 1 + self.draw(6),
        };
        self.request_times.push(wish.request_time);
        let is_warned = self.is_calm || self.draw(4) > 0;
        self.lease = Some(Lease {
            provider,
            state: wish.from.states[0].1,
            position: wish.from.position,
            queue: VecDeque::new(),
            escrow,
            steps_left: wish.steps,
            evaluations_left: wish.evaluations,
            no_more: false,
            done: 0,
            batches_done: 0,
            is_abandoned: false,
            limit: limit.max(1),
            is_warned,
            job,
        });
        self.send(wish.first);
        let (provider, escrow) = (account(provider), Credits(escrow));
        self.tell(Event::Leased { provider, escrow });
    }

    /// The buyer is killed: what waits for the disk is there or not, and its lease is lost.
    fn kill_buyer(&mut self) {
        let written = self.draw(self.queue.len() as u64 + 1);
        self.begin_next_life(written);
    }

    /// Kills the buyer once so many of the records on their way are on the disk.
    fn begin_next_life(&mut self, written: u64) {
        for _ in 0..written {
            self.disk.extend(self.queue.pop_front());
        }
        if let Some(lease) = self.lease.take() {
            self.close(&lease);
        }
        self.lives += 1;
        self.start_again();
    }

    /// Goes on by the journal.
    fn start_again(&mut self) {
        (self.is_over, self.wish, self.quoted) = (false, None, None);
        self.queue.clear();
        self.events.clear();
        if self.disk.is_empty() {
            let (core, actions) = TrainCore::begin(self.spec, self.began.clone());
            self.core = core;
            return self.carry_out(actions);
        }
        let mut past = Past::from_facts(self.disk.iter().cloned()).expect("the journal holds");
        if let Some((job, provider)) = past.open_lease {
            let settled = Fact::LeaseOver {
                provider,
                cost: Credits(self.costs.get(&job).copied().unwrap_or(0)),
                receipts: Vec::new(),
                blame: Blame::Nothing,
            };
            self.disk.push(settled.clone());
            past.apply(settled).expect("it follows");
        }
        let (core, actions) = TrainCore::resume(self.spec, past);
        self.core = core;
        self.carry_out(actions);
    }

    /// Returns the positions at which an undisturbed run evaluates.
    pub fn evaluation_points(&self) -> impl Iterator<Item = u64> + use<> {
        let (spec, steps) = (self.spec.evaluation, self.steps);
        (0..=steps).filter(move |at| {
            spec.is_some_and(|it| at.is_multiple_of(it.every_steps) || *at == steps)
        })
    }

    /// Asserts that the chain has each step once with its right loss, and that no more was spent
    /// than the budget.
    pub fn assert_well(&self) {
        let past = Past::from_facts(self.disk.iter().cloned()).expect("the journal holds");
        let steps = past.losses.len() as u64;
        assert_eq!(steps, past.kept.position, "each batch counts once");
        let is_honest = !self.has_deceivers() || self.is_checked();
        if is_honest {
            let right = |position| loss_at(honest_state(position), position);
            let losses: Vec<LossBits> = (0..past.kept.position).map(right).collect();
            assert_eq!(past.losses, losses, "each batch counts once, in its place");
            assert_eq!(past.kept.states, named(honest_state(past.kept.position)));
        }
        self.assert_honest_are_not_blamed(&past);
        let spent: u64 = self.costs.values().sum();
        assert!(spent <= past.spent.0, "{spent} were spent");
        let budget = self.spec.budget.expect("there is one");
        assert!(past.spent <= budget, "{past:?} of {budget:?}");
        if is_honest {
            self.assert_evaluated(&past);
        }
    }

    /// Asserts that only providers that lie are no longer bought from, and that nothing of a
    /// convicted one is left.
    fn assert_honest_are_not_blamed(&self, past: &Past) {
        let is_honest =
            |style: &Style| matches!(style, Style::Honest | Style::Mortal | Style::Lagging);
        let styles = self.styles.iter().enumerate();
        for (provider, style) in styles.filter(|(_, style)| is_honest(style)) {
            let provider = account(provider);
            assert!(!past.banned.contains(&provider), "{style:?} {provider:?}");
            assert!(!self.convicted.contains(&provider));
        }
        let of_convicted = |provider: &AccountKey| past.audit_findings.convicted.contains(provider);
        assert!(!past.anchors.iter().any(|it| of_convicted(&it.provider)));
    }

    fn assert_evaluated(&self, past: &Past) {
        let points: Vec<u64> = self.evaluation_points().collect();
        let before = |at: &&u64| **at < past.kept.position;
        let at_least = points.iter().filter(before).count();
        let held_out = points.iter().take(past.held_out.len().max(at_least));
        let claimed = past.held_out.iter().map(|(at, loss)| match loss {
            // Nobody refutes a loss that is no number, and nothing follows from it.
            loss if *loss == NOT_A_NUMBER => (*at, held_out_loss(honest_state(*at))),
            loss => (*at, *loss),
        });
        let held_out = held_out.map(|at| (*at, held_out_loss(honest_state(*at))));
        assert_eq!(
            claimed.collect::<Vec<_>>(),
            held_out.collect::<Vec<_>>(),
            "each of them once"
        );
        if self.is_done() {
            assert_eq!(past.kept.position, self.steps);
            // The last one can fail.
            assert!(past.held_out.len() + 1 >= points.len());
        }
    }
}
