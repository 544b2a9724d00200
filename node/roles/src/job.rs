//! A buyer's job: decides which leases to buy, what to send to providers, and which results to pay.
//!
//! A job is one or many requests, worked on in *attempts*. An attempt buys a gang of leases, its
//! *legs*, over one plan, and sends requests through them. The core signs and pays right results.
//! If a provider fails, the core keeps the results so far, and the next attempt will do the rest
//! without that provider.
//!
//! ```text
//! buying:  Planning -> Buying -> Finding -> Running -> Judging -> settled, and again
//! a leg:   Sold -> Opened -> Accepted -> Ready -> Working -> Finished -> Right -> Signing
//!            any -> Lost;  Finished -> Refused, or Doubted until answers decide   -> Settled
//!            Signing -> Refused, if the market refuses the receipt
//! ```
//! One file a step: `buying` goes from a plan to leases, `running` handles the messages of
//! providers, `limiting` sets the work that continues after a loss, `attempt_failure` selects the
//! provider to exclude, `tensor_relay` passes on tensors that readers did not accept, `requests`
//! follows each request, `warning` warns the caller of a session before its leases end, `seen_time`
//! measures how long a provider had work, `paying` answers usage notes of long work, `comparing`
//! compares two runs, `judging` decides which is right, `settling` pays or refuses, `resume`
//! recovers after a crash, and `ending` ends the job.

pub mod action;
mod attempt_failure;
pub mod bidding;
mod buying;
mod comparing;
mod ending;
pub mod event;
mod extending;
pub mod facts;
mod heartbeat;
mod judging;
mod limiting;
mod lineage;
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
mod status;
mod tensor_relay;
#[cfg(test)]
mod tests;
mod timer;
mod warning;
mod warning_time;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, LeaseId, Millis};
use souk_memory::ContentId;

use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, PendingEffects, Ticket};
use crate::lease::{Request, THINGS_MAX};

pub use action::{Action, JobEvent, Outcome, Spending};
pub use event::{Answer, CommandError, Event, FetchFault, Leg};
pub use facts::{End, Fact, Past, attempt_id, request_id};
pub use money::{bid_for_leg, escrow_and_duration};
pub use plan::{Exclusion, Plan, PlanRequest, PlanScope};
pub use reason::{Loss, Objection, Reason};
pub use spec::{JobSpec, Limits};
pub use status::JobStatus;

use comparing::Pair;
use ending::{Ending, EndingStep};
use state::{
    Attempt, AttemptPlan, AttemptPurpose, Judging, KnownRequest, LegState, OpenRequest, Phase,
    Question, Stage, UncertainPurchase, Wait,
};
use timer::Timer;

/// The most pending effects: for each content of a plan two fetches of runs to compare, and the
/// answer.
pub const WAITS_MAX: usize = 4 * THINGS_MAX;

/// How long after the end of its lease an output can still be on its way.
const FETCH_GRACE: Micros = Micros::from_seconds(300);

/// The most providers that a job may lose before it fails.
const LOSSES_MAX: usize = 4;

/// The core that decides about one job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobCore {
    spec: JobSpec,
    begun: Micros,
    now: Now,
    has_begun: bool,
    /// Whether an earlier life began it.
    is_resumed: bool,
    main: AttemptPlan,
    check: Option<Check>,
    attempts: BTreeMap<u32, Attempt>,
    next_attempt: u32,
    requests: BTreeMap<u32, OpenRequest>,
    /// Whether no more requests follow.
    no_more: bool,
    /// Whether the caller wants no more answers.
    is_unwanted: bool,
    answered: u32,
    excluded: Vec<Exclusion>,
    /// The providers that report that the job's inputs are at fault.
    blamers: BTreeSet<AccountKey>,
    /// The makers of tensors, each with the readers that failed because an input did not arrive.
    starved: BTreeMap<AccountKey, BTreeSet<AccountKey>>,
    losses: Vec<Reason>,
    paid: Vec<AccountKey>,
    pairs: BTreeMap<u32, Pair>,
    next_pair: u32,
    followed: Vec<LeaseId>,
    uncertain: BTreeMap<u32, UncertainPurchase>,
    /// The cost and escrow of each lease when it was last seen.
    costs: BTreeMap<LeaseId, Spending>,
    /// The knowledge of earlier lives about requests, by request id.
    known: BTreeMap<ContentId, KnownRequest>,
    /// The history of earlier lives, until the core has handled it.
    past: Option<Past>,
    ending: Option<Ending>,
    timers: Timers<Timer>,
    pending: PendingEffects<Wait>,
    #[serde(skip)]
    effects: Vec<Effect<Action>>,
}

/// The decision between two runs of a part of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Check {
    /// The attempt that the check decides about.
    of: u32,
    inputs: Vec<(String, ContentId)>,
    pursuit: AttemptPlan,
}

impl JobCore {
    /// Begins a job, from a plan for all of it if one exists already. Returns the core and its
    /// first effects.
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
        core.record_facts(vec![began], Wait::Began);
        (core.clone_without_effects(), core.effects)
    }

    /// Resumes a job after its buyer's crash. Returns the core and its first effects.
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
            main: AttemptPlan::default(),
            check: None,
            attempts: BTreeMap::new(),
            next_attempt: 0,
            requests: BTreeMap::new(),
            no_more: false,
            is_unwanted: false,
            answered: 0,
            excluded,
            blamers: BTreeSet::new(),
            starved: BTreeMap::new(),
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
            pending: PendingEffects::default(),
            effects: Vec::new(),
        };
        if let Some(deadline) = core.spec.limits.deadline {
            core.timers
                .set_timer(Timer::Deadline, now.tick.plus(deadline));
        }
        core
    }

    fn clone_without_effects(&self) -> JobCore {
        JobCore {
            effects: Vec::new(),
            ..self.clone()
        }
    }

    /// Applies an event and returns the effects to carry out, in this order.
    pub fn apply(&mut self, now: Now, event: Event) -> Vec<Effect<Action>> {
        // A log's clock is an estimate and can go back; timers do not depend on it.
        self.now = Now {
            tick: now.tick.max(self.now.tick),
            log: now.log,
        };
        if let Some(leg) = self.find_plain_heartbeat(&event) {
            self.hear_from(leg);
            return Vec::new();
        }
        self.apply_in_full(event)
    }

    fn apply_in_full(&mut self, event: Event) -> Vec<Effect<Action>> {
        if !self.is_over() {
            self.handle_event(event);
            self.settle_down();
        }
        self.assert_bounds();
        std::mem::take(&mut self.effects)
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::NewRequest { request, size } => self.on_request(request, size),
            Event::NoMore => {
                self.no_more = true;
                self.fill_running();
            }
            Event::Cancel => self.end_job(End::Cancelled),
            Event::MessageReceived { leg, message } => self.on_message_received(leg, message),
            Event::PeerLost { leg, why } => self.on_peer_lost(leg, why),
            Event::Changed(lease) => self.on_lease_changed(&lease),
            Event::TimerFired => {
                while let Some(timer) = self.timers.pop(self.now.tick) {
                    self.on_timer(timer);
                }
            }
            Event::EffectAnswered { ticket, answer } => {
                if let Some(wait) = self.pending.take_wait(ticket) {
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
            keep,
        } = request;
        if self.no_more || self.ending.is_some() {
            return;
        }
        let last = self.requests.last_key_value();
        assert!(last.is_none_or(|(last, _)| *last < number), "requests rise");
        let id = request_id(&inputs);
        // A step of a session also depends on earlier steps, so equal inputs do not imply equal
        // outputs.
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
            keep,
            is_given: false,
        };
        self.requests.insert(number, asked);
        self.fill_running();
    }

    fn on_answer(&mut self, wait: Wait, answer: Answer) {
        match answer {
            Answer::NotWritten(why) => return self.on_not_written(&wait, why),
            Answer::NotStored(why) => return self.end_job(End::Failed(Reason::Memory(why))),
            _ => {}
        }
        match wait {
            Wait::Began => self.has_begun = true,
            Wait::Record | Wait::RecordSkipped(_) => {}
            Wait::Skip(purpose) => self.on_skipped(purpose),
            Wait::Announce(purpose) => self.send_bids(purpose),
            Wait::Look(purpose) => self.on_looked(purpose, answer),
            Wait::Plan(purpose) => self.on_planned(purpose, answer),
            Wait::Buy(purpose) => self.on_bought(purpose, answer),
            Wait::Adopt(purpose) => self.on_adopted(purpose, answer),
            Wait::Find(n) => self.on_found(n, answer),
            Wait::RecordAttempt(n) => self.serve_contents(n),
            Wait::Serve(n) => self.on_served(n, answer),
            Wait::FetchAnswer { leg, request, name } => {
                self.on_answer_fetched(leg, request, name, answer);
            }
            Wait::FetchKept { leg, name, id } => self.on_kept_fetched(leg, name, id, answer),
            Wait::FetchGiven { leg, name } => self.on_given_fetched(leg, name, answer),
            Wait::FindPast { request } => self.on_makers_found(request, &answer),
            Wait::FetchPast { request, name, id } => {
                self.on_past_fetched(request, name, id, &answer);
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
            Wait::RecordRight(n) => self.sign_right_receipts(n),
            Wait::Sign { lease, leg } => self.on_signed(lease, leg, answer),
            Wait::SignPast { leg, is_paid } => self.on_past_signed(leg, is_paid, answer),
            Wait::Settle { lease, leg } => self.on_settled(lease, leg, answer),
            Wait::RecordRefused { leg, lease, why } => {
                self.send_refusal_and_dispute(leg, lease, why)
            }
            Wait::StartWork(leg) => self.on_work_started(leg, answer),
            Wait::Dispute(lease)
            | Wait::EndLease(lease)
            | Wait::AcceptNote(lease)
            | Wait::Extend(lease) => self.on_commanded(lease, answer),
            Wait::LookToExtend(n) => self.on_looked_to_extend(n, answer),
            Wait::LookPast => self.on_past_seen(answer),
            Wait::LookLast => self.on_last_seen(answer),
            Wait::RecordOver => self.close_job(),
        }
    }

    fn on_not_written(&mut self, wait: &Wait, why: String) {
        match wait {
            Wait::RecordOver => self.close_job(),
            Wait::RecordRefused { leg, lease, .. } => {
                let (leg, lease) = (*leg, *lease);
                self.end_job(End::Failed(Reason::Journal(why)));
                // Silence might pay for the lease. The core disputes it although no journal records
                // that, and sends no reason that no journal has.
                self.push_effect(Action::CloseStream { leg });
                self.dispute_lease(lease);
            }
            _ => self.end_job(End::Failed(Reason::Journal(why))),
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Deadline => {
                let deadline = self.spec.limits.deadline.unwrap_or_default();
                self.end_job(End::Failed(Reason::Late(deadline)));
            }
            Timer::LookAgain(purpose) => self.look_again(purpose),
            Timer::Warn(n) => self.on_warning_due(n),
            Timer::SendDeadline(n) => self.on_send_deadline(n),
            Timer::AnswerDeadline(n) => self.on_answer_deadline(n),
            Timer::LeaseEnd(n) => self.on_lease_end(n),
            Timer::Extend(n) => self.on_half_over(n),
            Timer::Start(leg) => self.start_work(leg),
            Timer::Silent(leg) => self.on_silent(leg),
            Timer::Note(leg) => self.answer_note(leg),
            Timer::Patience { leg, request, part } => self.on_slow(leg, request, part),
            Timer::LastResult(leg) => self.on_late(leg),
            Timer::AskAgain(leg) => self.ask_again(leg),
            Timer::Decide(leg) => self.refuse_doubtful_leg(leg),
            Timer::LookLast => self.look_last(),
        }
    }

    /// Takes every step that needs no answer.
    fn settle_down(&mut self) {
        while self.ending.is_none() && self.take_step() {}
        if self.ending.is_some() {
            self.step_out();
        }
        self.observe_work();
        self.follow_leases();
    }

    /// Takes one step and returns whether another may follow.
    fn take_step(&mut self) -> bool {
        if !self.has_begun {
            return false;
        }
        let numbers: Vec<u32> = self.attempts.keys().copied().collect();
        if numbers.into_iter().any(|n| self.judge_attempt(n)) {
            return true;
        }
        self.advance_purpose(AttemptPurpose::Check) || self.advance_purpose(AttemptPurpose::Main)
    }

    /// Returns the moment at which you must send [`Event::TimerFired`], if any.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// Returns whether no more actions follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let ending = self.ending.as_ref();
        ending.is_some_and(|ending| ending.step == EndingStep::Over)
    }

    /// Returns a hash of the whole state: equal histories give equal hashes.
    #[must_use]
    pub fn digest(&self) -> ContentId {
        let bytes = postcard::to_allocvec(self).expect("what it remembers can be written");
        ContentId::for_content(&bytes)
    }

    fn assert_bounds(&self) {
        assert!(self.pending.len() <= WAITS_MAX, "too much is awaited");
        if self.is_over() {
            assert!(self.pending.is_empty(), "a job that is over awaits nothing");
            assert_eq!(self.timers.wakes_at(), None, "nor a moment");
        }
    }

    /// Asserts the invariants that hold between two events.
    ///
    /// # Panics
    /// Panics if an invariant is broken, which is a fault of this code.
    pub fn assert_invariants(&self) {
        self.assert_bounds();
        let mains = self.attempts.values();
        let mains = mains.filter(|it| it.judging != Judging::Doubting);
        let (mains, checks): (Vec<_>, Vec<_>) =
            mains.partition(|it| it.purpose == AttemptPurpose::Main);
        assert!(mains.len() <= 1, "one attempt runs at a time");
        assert!(checks.len() <= mains.len(), "and one that decides about it");
        for (n, attempt) in &self.attempts {
            attempt.assert_invariants(*n);
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
            Timer::LookAgain(AttemptPurpose::Main) => self.main.phase == Phase::Pausing,
            Timer::LookAgain(AttemptPurpose::Check) => {
                let check = self.check.as_ref();
                check.is_some_and(|check| check.pursuit.phase == Phase::Pausing)
            }
            Timer::Warn(n)
            | Timer::SendDeadline(n)
            | Timer::AnswerDeadline(n)
            | Timer::LeaseEnd(n)
            | Timer::Extend(n) => runs(n),
            Timer::Start(leg)
            | Timer::Silent(leg)
            | Timer::Patience { leg, .. }
            | Timer::LastResult(leg)
            | Timer::AskAgain(leg) => stage(leg).is_some_and(Stage::is_talking),
            Timer::Note(leg) => stage(leg).is_some_and(|it| it <= Stage::Finished),
            Timer::LookLast => {
                let ending = self.ending.as_ref();
                ending.is_some_and(|ending| ending.step == EndingStep::Looking)
            }
            Timer::Decide(leg) => stage(leg) == Some(Stage::Doubted),
        }
    }

    fn push_effect(&mut self, action: Action) -> Ticket {
        let ticket = self.pending.new_ticket();
        self.effects.push(Effect { ticket, action });
        ticket
    }

    fn request_effect(&mut self, action: Action, wait: Wait) {
        let ticket = self.pending.open_wait(wait);
        self.effects.push(Effect { ticket, action });
    }

    /// Fetches a content that an attempt made. If it is not here some time after the attempt's
    /// leases end, it was not delivered.
    fn fetch_content(
        &mut self,
        n: u32,
        name: String,
        id: ContentId,
        holders: Vec<AccountKey>,
        wait: Wait,
    ) {
        let legs = self.attempts.get(&n).into_iter();
        let ends = legs.flat_map(|attempt| &attempt.legs);
        let end = ends.map(LegState::ends_at_most).max().unwrap_or(Millis(0));
        let fetch = Action::Fetch {
            job: attempt_id(self.spec.job, n),
            request: self.request_in_need(n, &wait),
            name,
            id,
            holders,
            patience: running::time_until(end, self.now.log).plus(FETCH_GRACE),
        };
        self.request_effect(fetch, wait);
    }

    fn record_facts(&mut self, facts: Vec<Fact>, wait: Wait) {
        self.request_effect(Action::Record(facts), wait);
    }

    fn report_event(&mut self, event: JobEvent) {
        self.push_effect(Action::Tell(event));
    }

    fn submit_command(&mut self, command: souk_market::Command, wait: Wait) {
        self.request_effect(Action::Command(Box::new(command)), wait);
    }

    /// Cancels the effects whose purpose is over.
    fn stop_effects(&mut self, is_over: impl FnMut(&Wait) -> bool) {
        for ticket in self.pending.forget_waits(is_over) {
            self.push_effect(Action::Stop(ticket));
        }
    }

    /// Returns the ids of all attempts that may have bought leases.
    fn attempt_ids(&self) -> Vec<souk_market::JobId> {
        let numbers = 0..=self.next_attempt;
        numbers.map(|n| attempt_id(self.spec.job, n)).collect()
    }

    fn pursuit_mut(&mut self, purpose: AttemptPurpose) -> &mut AttemptPlan {
        match purpose {
            AttemptPurpose::Main => &mut self.main,
            AttemptPurpose::Check => {
                let check = self.check.as_mut();
                &mut check.expect("a check is under way").pursuit
            }
        }
    }

    fn attempt_mut(&mut self, n: u32) -> &mut Attempt {
        let attempt = self.attempts.get_mut(&n);
        attempt.expect("what is awaited of an attempt is stopped with it")
    }

    /// Returns the question that a check must decide.
    fn question_mut(&mut self) -> Option<&mut Question> {
        let of = self.check.as_ref()?.of;
        self.attempts.get_mut(&of)?.questions.first_mut()
    }
}
