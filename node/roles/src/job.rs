//! A buyer's job: what is bought, who is told what, what is right and paid, and what is not.
//!
//! A job is requests, one or many. It is done in *attempts*: an attempt buys a gang of leases, its
//! *legs*, over one plan, and sends requests through them. What is right is signed and paid; where
//! a provider fails, what was made is kept, and the next attempt does what is left without it.
//!
//! ```text
//! buying:  Planning -> Buying -> Finding -> Running -> Judging -> settled, and again
//! a leg:   Sold -> Opened -> Accepted -> Ready -> Working -> Finished -> Right -> Signing
//!            any -> Lost;  Finished -> Refused, or Doubted until answers decide   -> Settled
//! ```
//! One file a step: `buying` from a plan to leases, `running` the words of providers, `limiting`
//! what is run where one is lost, `losing` who is done without then, `handing_on` tensors that were
//! not taken, `requests` the way of each request, `seen_time` how long a provider had something to
//! do, `paying` what work that takes long has used so far, `comparing` two runs of one thing,
//! `judging` what is right, `settling` who is paid and who is not, `resume` the way back after a
//! crash, `ending` the way out.

pub mod action;
mod bidding;
mod buying;
mod comparing;
mod ending;
pub mod event;
mod extending;
pub mod facts;
mod handing_on;
mod judging;
mod lease_span;
mod limiting;
mod lineage;
mod losing;
mod money;
mod paying;
pub mod plan;
pub mod reason;
mod receipt;
mod requests;
mod resume;
mod running;
mod seen_span;
mod seen_time;
mod settling;
pub mod spec;
mod start;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;

use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, Ticket, Waits};
use crate::lease::{Request, THINGS_MAX};

pub use action::{Action, JobEvent, Outcome, Spending};
pub use event::{Answer, CommandError, Event, FetchFault, Leg};
pub use facts::{End, Fact, Past, attempt_id, request_id};
pub use money::{bid, holds};
pub use plan::{Exclusion, Plan, PlanRequest, Work};
pub use reason::{Loss, Objection, Reason};
pub use spec::{JobSpec, Limits};

use comparing::Pair;
use ending::{Ending, EndingStep};
use state::{
    Attempt, Errand, Judging, KnownRequest, OpenRequest, Phase, Pursuit, Question, Stage, Timer,
    Uncertain, Wait,
};

/// Effects whose answers are awaited at a time: of each thing of a plan two runs may be fetched to
/// be compared, and the answer.
pub const WAITS_MAX: usize = 4 * THINGS_MAX;

/// Providers a job may lose before it is given up.
const LOSSES_MAX: usize = 4;

/// The decisions about one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobCore {
    spec: JobSpec,
    begun: Micros,
    now: Now,
    has_begun: bool,
    /// Whether an earlier life began it.
    is_resumed: bool,
    main: Pursuit,
    check: Option<Check>,
    attempts: BTreeMap<u32, Attempt>,
    next_attempt: u32,
    requests: BTreeMap<u32, OpenRequest>,
    /// No request comes any more.
    no_more: bool,
    /// The caller wants no answer any more.
    is_unwanted: bool,
    answered: u32,
    excluded: Vec<Exclusion>,
    /// Providers that say that the job's inputs are at fault.
    blamers: BTreeSet<AccountKey>,
    losses: Vec<Reason>,
    paid: Vec<AccountKey>,
    pairs: BTreeMap<u32, Pair>,
    next_pair: u32,
    followed: Vec<LeaseId>,
    uncertain: BTreeMap<u32, Uncertain>,
    /// What each lease cost and held when it was seen last.
    costs: BTreeMap<LeaseId, Spending>,
    /// What earlier lives know of requests, by what was asked.
    known: BTreeMap<ContentId, KnownRequest>,
    /// What an earlier life did, until it is looked after.
    past: Option<Past>,
    ending: Option<Ending>,
    timers: Timers<Timer>,
    waits: Waits<Wait>,
    #[serde(skip)]
    effects: Vec<Effect<Action>>,
}

/// The deciding between two runs of a part of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Check {
    /// The attempt that is decided about.
    of: u32,
    inputs: Vec<(String, ContentId)>,
    pursuit: Pursuit,
}

/// How a job stands, for whoever looks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Attempts that bought something.
    pub attempts: u32,
    /// Leases at work.
    pub working: u32,
    /// Requests that are with the caller.
    pub answered: u32,
    /// Requests that are not.
    pub waiting: u32,
    /// What failed and was done without.
    pub losses: Vec<Reason>,
    /// How it ends, once it does.
    pub ending: Option<End>,
    /// Whether nothing comes any more.
    pub is_over: bool,
}

impl JobCore {
    /// Begins a job, from a plan for all of it if there is one yet.
    #[must_use]
    pub fn begin(spec: JobSpec, plan: Option<Plan>, now: Now) -> (JobCore, Vec<Effect<Action>>) {
        let mut core = JobCore::new(spec, now);
        core.main.plan = plan.map(Box::new);
        let began = Fact::Began {
            job: core.spec.job,
            subject: core.spec.subject,
            command: core.spec.command.clone(),
            at: now.log,
        };
        core.record(vec![began], Wait::Began);
        (core.clone_without_effects(), core.effects)
    }

    /// Goes on with a job whose buyer died.
    #[must_use]
    pub fn resume(spec: JobSpec, past: Past, now: Now) -> (JobCore, Vec<Effect<Action>>) {
        let mut core = JobCore::new(spec, now);
        core.look_after(past);
        (core.clone_without_effects(), core.effects)
    }

    fn new(spec: JobSpec, now: Now) -> JobCore {
        let named = spec.limits.excluded.iter();
        let named = named.map(|provider| Exclusion {
            provider: *provider,
            ask: None,
        });
        let excluded = named.collect();
        let mut core = JobCore {
            spec,
            begun: now.tick,
            now,
            has_begun: false,
            is_resumed: false,
            main: Pursuit::default(),
            check: None,
            attempts: BTreeMap::new(),
            next_attempt: 0,
            requests: BTreeMap::new(),
            no_more: false,
            is_unwanted: false,
            answered: 0,
            excluded,
            blamers: BTreeSet::new(),
            losses: Vec::new(),
            paid: Vec::new(),
            pairs: BTreeMap::new(),
            next_pair: 0,
            followed: Vec::new(),
            uncertain: BTreeMap::new(),
            costs: BTreeMap::new(),
            known: BTreeMap::new(),
            past: None,
            ending: None,
            timers: Timers::default(),
            waits: Waits::default(),
            effects: Vec::new(),
        };
        if let Some(deadline) = core.spec.limits.deadline {
            core.timers.set(Timer::Deadline, now.tick.plus(deadline));
        }
        core
    }

    fn clone_without_effects(&self) -> JobCore {
        JobCore {
            effects: Vec::new(),
            ..self.clone()
        }
    }

    /// Takes in what happened, and says what is to be done, in this order.
    pub fn apply(&mut self, now: Now, event: Event) -> Vec<Effect<Action>> {
        // A log's clock is an estimate and may go back; patience is not measured by it.
        self.now = Now {
            tick: now.tick.max(self.now.tick),
            log: now.log,
        };
        if !self.is_over() {
            self.take(event);
            self.settle_down();
        }
        self.assert_bounds();
        std::mem::take(&mut self.effects)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::NewRequest { request, size } => self.on_request(request, size),
            Event::NoMore => {
                self.no_more = true;
                self.fill_running();
            }
            Event::Cancel => self.end(End::Cancelled),
            Event::Said { leg, word } => self.on_said(leg, word),
            Event::Gone { leg, why } => self.on_gone(leg, why),
            Event::Changed(lease) => self.on_changed(&lease),
            Event::Woke => {
                while let Some(timer) = self.timers.pop(self.now.tick) {
                    self.on_timer(timer);
                }
            }
            Event::Answer { ticket, answer } => {
                if let Some(wait) = self.waits.take(ticket) {
                    self.on_answer(wait, answer);
                }
            }
        }
    }

    fn on_request(&mut self, request: Request, size: u32) {
        let Request {
            number,
            sequence,
            inputs,
        } = request;
        if self.no_more || self.ending.is_some() {
            return;
        }
        let last = self.requests.last_key_value();
        assert!(last.is_none_or(|(last, _)| *last < number), "requests rise");
        let id = request_id(&inputs);
        // What a step of a session gives does not follow from what it brings.
        let known = self.known.get(&id).filter(|_| self.spec.sequences == 0);
        let known = known.cloned().unwrap_or_default();
        self.find_makers(number, &known);
        let asked = OpenRequest {
            sequence,
            size,
            id,
            values: known.values,
            answered_by: known.answer.map(|answer| answer.attempt),
            inputs,
            is_given: false,
        };
        self.requests.insert(number, asked);
        self.fill_running();
    }

    fn on_answer(&mut self, wait: Wait, answer: Answer) {
        if let Answer::NotWritten(why) = answer {
            return self.on_not_written(&wait, why);
        }
        match wait {
            Wait::Began => self.has_begun = true,
            Wait::Record | Wait::RecordSkipped(_) => {}
            Wait::Skip(errand) => self.on_skipped(errand),
            Wait::Announce(errand) => self.send_bids(errand),
            Wait::Look(errand) => self.on_looked(errand, answer),
            Wait::Plan(errand) => self.on_planned(errand, answer),
            Wait::Buy(errand) => self.on_bought(errand, answer),
            Wait::Adopt(errand) => self.on_adopted(errand, answer),
            Wait::Find(n) => self.on_found(n, answer),
            Wait::RecordAttempt(n) => self.serve(n),
            Wait::Serve(n) => self.on_served(n, answer),
            Wait::FetchAnswer { leg, request, name } => {
                self.on_answer_fetched(leg, request, name, answer);
            }
            Wait::FetchKept { leg, name, id } => self.on_kept_fetched(leg, (name, id), answer),
            Wait::FetchGiven { leg, name } => self.on_given_fetched(leg, name, answer),
            Wait::FindPast { request } => self.on_makers_found(request, &answer),
            Wait::FetchPast { request, name, id } => {
                self.on_past_fetched(request, (name, id), &answer);
            }
            Wait::FetchPair { pair, is_left } => self.on_pair_fetched(pair, is_left, answer),
            Wait::Compare { pair } => self.on_compared(pair, answer),
            Wait::FetchUntaken {
                maker,
                consumer,
                untaken,
            } => {
                self.on_untaken_fetched(maker, consumer, untaken, answer);
            }
            Wait::HandOn {
                maker,
                consumer,
                untaken,
            } => {
                self.on_handed_on(maker, consumer, untaken, answer);
            }
            Wait::Give { attempt, request } => self.on_taken(attempt, request, answer),
            Wait::Keep(n) => self.on_kept(n),
            Wait::RecordRight(n) => self.on_right(n),
            Wait::Sign { lease, leg } => self.on_signed(lease, leg, answer),
            Wait::SignPast { leg, is_paid } => self.on_past_signed(leg, is_paid, answer),
            Wait::Settle { lease, leg } => self.on_settled(lease, leg, answer),
            Wait::RecordRefused { leg, lease, why } => self.tell_refused(leg, lease, why),
            Wait::StartWork(leg) => self.on_work_started(leg, answer),
            Wait::Dispute(lease)
            | Wait::EndLease(lease)
            | Wait::AcceptNote(lease)
            | Wait::Extend(lease) => self.on_commanded(lease, answer),
            Wait::LookToExtend(n) => self.on_looked_to_extend(n, answer),
            Wait::LookPast => self.on_past_seen(answer),
            Wait::LookLast => self.on_last_seen(answer),
            Wait::RecordOver => self.close(),
        }
    }

    fn on_not_written(&mut self, wait: &Wait, why: String) {
        match wait {
            Wait::RecordOver => self.close(),
            Wait::RecordRefused { leg, lease, .. } => {
                let (leg, lease) = (*leg, *lease);
                self.end(End::Failed(Reason::Journal(why)));
                // Silence might pay for it: it is disputed although no journal says so, and nothing
                // is said that none says.
                self.effect(Action::Hang { leg });
                self.dispute(lease);
            }
            _ => self.end(End::Failed(Reason::Journal(why))),
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Deadline => {
                let deadline = self.spec.limits.deadline.unwrap_or_default();
                self.end(End::Failed(Reason::Late(deadline)));
            }
            Timer::LookAgain(errand) => self.look_again(errand),
            Timer::SendUntil(n) => self.on_send_over(n),
            Timer::AwaitUntil(n) => self.on_await_over(n),
            Timer::LeaseEnd(n) => self.on_lease_end(n),
            Timer::Extend(n) => self.on_half_over(n),
            Timer::Start(leg) => self.start_work(leg),
            Timer::Silent(leg) => self.on_silent(leg),
            Timer::Note(leg) => self.answer_note(leg),
            Timer::Patience { leg, request, part } => self.on_slow(leg, request, part),
            Timer::Wrap(leg) => self.on_late(leg),
            Timer::AskAgain(leg) => self.ask_again(leg),
            Timer::Decide(leg) => self.decide(leg),
            Timer::LookLast => self.look_last(),
        }
    }

    /// Takes every step that nothing has to be awaited for.
    fn settle_down(&mut self) {
        while self.ending.is_none() && self.step() {}
        if self.ending.is_some() {
            self.step_out();
        }
        self.observe();
        self.follow();
    }

    /// One step; whether there may be another.
    fn step(&mut self) -> bool {
        if !self.has_begun {
            return false;
        }
        let numbers: Vec<u32> = self.attempts.keys().copied().collect();
        if numbers.into_iter().any(|n| self.judge(n)) {
            return true;
        }
        self.advance(Errand::Check) || self.advance(Errand::Main)
    }

    /// When it wants to be woken.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// Whether nothing comes any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let ending = self.ending.as_ref();
        ending.is_some_and(|ending| ending.step == EndingStep::Over)
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        let legs = self.attempts.values().flat_map(|attempt| &attempt.legs);
        let working = legs.filter(|leg| leg.stage == Stage::Working).count();
        JobStatus {
            attempts: self.next_attempt,
            working: u32::try_from(working).unwrap_or(u32::MAX),
            answered: self.answered,
            waiting: u32::try_from(self.requests.len()).unwrap_or(u32::MAX),
            losses: self.losses.clone(),
            ending: self.ending.as_ref().map(|ending| ending.how.clone()),
            is_over: self.is_over(),
        }
    }

    /// A hash of all that it remembers: equal histories give equal ones.
    #[must_use]
    pub fn digest(&self) -> ContentId {
        let words = postcard::to_allocvec(self).expect("what it remembers can be written");
        ContentId::of(&words)
    }

    fn assert_bounds(&self) {
        assert!(self.waits.len() <= WAITS_MAX, "too much is awaited at once");
        if self.is_over() {
            assert!(self.waits.is_empty(), "a job that is over awaits nothing");
            assert_eq!(self.timers.wakes_at(), None, "nor a moment");
        }
    }

    /// Asserts all that holds between two events.
    ///
    /// # Panics
    /// Where something does not hold, which is a fault of this code.
    pub fn audit(&self) {
        self.assert_bounds();
        let mains = self.attempts.values();
        let mains = mains.filter(|it| it.judging != Judging::Doubting);
        let (mains, checks): (Vec<_>, Vec<_>) = mains.partition(|it| it.errand == Errand::Main);
        assert!(mains.len() <= 1, "one attempt runs at a time");
        assert!(checks.len() <= mains.len(), "and one that decides about it");
        for (n, attempt) in &self.attempts {
            attempt.audit(*n);
            assert!(*n < self.next_attempt, "no number is given twice");
        }
        for (timer, _) in self.timers.iter() {
            assert!(self.has_owner(timer), "{timer:?} has no owner");
        }
        let mut waiting = BTreeSet::new();
        for asked in self.requests.values() {
            match asked.is_given {
                false => drop(waiting.insert(asked.sequence)),
                true => assert!(
                    !waiting.contains(&asked.sequence),
                    "answers of a sequence are given in order"
                ),
            }
        }
    }

    fn has_owner(&self, timer: Timer) -> bool {
        let runs = |n: u32| {
            self.attempts
                .get(&n)
                .is_some_and(|it| it.judging == Judging::Running)
        };
        let stage = |leg: Leg| Some(self.attempts.get(&leg.attempt)?.leg(leg.place).stage);
        match timer {
            Timer::Deadline => true,
            Timer::LookAgain(Errand::Main) => self.main.phase == Phase::Pausing,
            Timer::LookAgain(Errand::Check) => {
                let check = self.check.as_ref();
                check.is_some_and(|check| check.pursuit.phase == Phase::Pausing)
            }
            Timer::SendUntil(n) | Timer::AwaitUntil(n) | Timer::LeaseEnd(n) | Timer::Extend(n) => {
                runs(n)
            }
            Timer::Start(leg)
            | Timer::Silent(leg)
            | Timer::Patience { leg, .. }
            | Timer::Wrap(leg)
            | Timer::AskAgain(leg) => stage(leg).is_some_and(Stage::is_talking),
            Timer::Note(leg) => stage(leg).is_some_and(|it| it <= Stage::Finished),
            Timer::LookLast => {
                let ending = self.ending.as_ref();
                ending.is_some_and(|ending| ending.step == EndingStep::Looking)
            }
            Timer::Decide(leg) => stage(leg) == Some(Stage::Doubted),
        }
    }

    fn effect(&mut self, action: Action) -> Ticket {
        let ticket = self.waits.unanswered();
        self.effects.push(Effect { ticket, action });
        ticket
    }

    fn ask(&mut self, action: Action, wait: Wait) {
        let ticket = self.waits.open(wait);
        self.effects.push(Effect { ticket, action });
    }

    /// Has something come that was made in an attempt.
    fn fetch(
        &mut self,
        n: u32,
        (name, id): (String, ContentId),
        holders: Vec<AccountKey>,
        wait: Wait,
    ) {
        let fetch = Action::Fetch {
            job: attempt_id(self.spec.job, n),
            name,
            id,
            holders,
        };
        self.ask(fetch, wait);
    }

    fn record(&mut self, facts: Vec<Fact>, wait: Wait) {
        self.ask(Action::Record(facts), wait);
    }

    fn tell(&mut self, event: JobEvent) {
        self.effect(Action::Tell(event));
    }

    fn command(&mut self, command: souk_market::Command, wait: Wait) {
        self.ask(Action::Command(Box::new(command)), wait);
    }

    /// Stops what is awaited and is over.
    fn stop(&mut self, is_over: impl FnMut(&Wait) -> bool) {
        for ticket in self.waits.forget(is_over) {
            self.effect(Action::Stop(ticket));
        }
    }

    /// The ids of all attempts that may have bought something.
    fn ids(&self) -> Vec<souk_market::JobId> {
        let numbers = 0..=self.next_attempt;
        numbers.map(|n| attempt_id(self.spec.job, n)).collect()
    }

    fn pursuit(&mut self, errand: Errand) -> &mut Pursuit {
        match errand {
            Errand::Main => &mut self.main,
            Errand::Check => {
                let check = self.check.as_mut();
                &mut check.expect("a check is under way").pursuit
            }
        }
    }

    fn attempt(&mut self, n: u32) -> &mut Attempt {
        let attempt = self.attempts.get_mut(&n);
        attempt.expect("what is awaited of an attempt is stopped with it")
    }

    /// The question that a check is to decide.
    fn question(&mut self) -> Option<&mut Question> {
        let of = self.check.as_ref()?.of;
        self.attempts.get_mut(&of)?.questions.first_mut()
    }
}
