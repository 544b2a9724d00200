//! Buys the leases for the work that a job has left. It checks the budget, requests a plan over the
//! current book, passes the plan to `bidding`, and then looks up the addresses of the leases'
//! providers. It does so for new attempts and for the third runs that decide between two results.
//! Only one of the two can buy at a time, because the second must know the attempt number and the
//! escrow of the first.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{Command, Credits, Lease};
use souk_memory::ContentId;

use super::action::{Action, JobEvent, Spending};
use super::bidding::{book_pause, unreachable_reason};
use super::event::Answer;
use super::facts::{End, Fact, Terms, attempt_id};
use super::plan::{Exclusion, NoPlan, NoPlanKind, Plan, PlanRequest, PlanScope};
use super::reason::Reason;
use super::state::{
    Attempt, AttemptPlan, AttemptPurpose, Judging, LegState, Phase, Shortage, Stage, Wait,
};
use super::timer::Timer;
use super::warning_time::WarningTime;
use super::{JobCore, start};
use crate::clock::Micros;
use crate::lease::Request;

/// How long the core waits for the escrow of ended leases if the budget needs it, and how often it
/// looks. The wait is longer than markets let receipts come late.
const ESCROW_WAIT: Micros = Micros::from_seconds(120);
const ESCROW_PERIOD: Micros = Micros::from_millis(500);

impl JobCore {
    /// Begins the purchase for an purpose that has nothing under way. Returns whether it took a
    /// step.
    pub(super) fn advance_purpose(&mut self, purpose: AttemptPurpose) -> bool {
        let is_there = match purpose {
            AttemptPurpose::Main => {
                self.past.is_none() && self.requests.values().any(|it| !it.is_given)
            }
            AttemptPurpose::Check => self.check.is_some() && !self.is_given_on_its_way(),
        };
        let mut attempts = self.attempts.values();
        let is_busy = attempts.any(|it| it.purpose == purpose && it.judging != Judging::Doubting);
        if purpose == AttemptPurpose::Main && self.past.is_none() && !is_busy {
            if self.requests.is_empty() && self.no_more {
                self.end_job(match self.is_unwanted {
                    true => End::Cancelled,
                    false => End::Done,
                });
                return false;
            }
            if self.is_fetching_answers() {
                return false;
            }
            if self.give_kept() {
                return true;
            }
        }
        let is_idle = is_there && !is_busy && self.pursuit_mut(purpose).phase == Phase::Idle;
        if !is_idle || self.is_buying() {
            return false;
        }
        self.prepare_purchase(purpose);
        true
    }

    /// Returns whether an purpose is about to buy. The other one must wait, because it needs the
    /// number and the escrow of that purchase.
    pub(super) fn is_buying(&self) -> bool {
        self.pending.iter().any(|wait| {
            matches!(
                wait,
                Wait::Look(_)
                    | Wait::Plan(_)
                    | Wait::Announce(_)
                    | Wait::Buy(_)
                    | Wait::Adopt(_)
                    | Wait::Skip(_)
                    | Wait::LookToExtend(_)
                    | Wait::Extend(_)
            )
        })
    }

    /// Returns whether the core fetches an answer that an earlier life gave.
    fn is_fetching_answers(&self) -> bool {
        let mut waits = self.pending.iter();
        waits.any(|wait| matches!(wait, Wait::FindPast { .. } | Wait::FetchPast { .. }))
    }

    /// Returns whether the core still fetches an input of a third run.
    fn is_given_on_its_way(&self) -> bool {
        let mut waits = self.pending.iter();
        waits.any(|wait| matches!(wait, Wait::FetchGiven { .. }))
    }

    /// Looks up the rest of the budget if there is a budget and the job has bought something.
    fn prepare_purchase(&mut self, purpose: AttemptPurpose) {
        let now = self.now.tick;
        let has_bought = self.next_attempt > 0;
        if self.spec.sequences > 0 && has_bought {
            return self.end_job(End::Failed(self.session_over()));
        }
        let budget = self.spec.limits.budget;
        let pursuit = self.pursuit_mut(purpose);
        pursuit.since.get_or_insert(now);
        if budget.is_some() && has_bought {
            pursuit.phase = Phase::Looking;
            let ids = self.attempt_ids();
            self.request_effect(Action::Look { ids }, Wait::Look(purpose));
            return;
        }
        pursuit.left = budget;
        self.plan_or_buy(purpose);
    }

    /// Returns why a session cannot continue: its states ended with its leases.
    fn session_over(&self) -> Reason {
        let over = || {
            let text = "the session's leases are over".to_owned();
            let kind = NoPlanKind::Other;
            Reason::NoPlan(NoPlan { kind, text })
        };
        self.losses.last().cloned().unwrap_or_else(over)
    }

    pub(super) fn look_again(&mut self, purpose: AttemptPurpose) {
        if purpose == AttemptPurpose::Check && self.check.is_none() {
            return;
        }
        let pursuit = self.pursuit_mut(purpose);
        assert_eq!(pursuit.phase, Phase::Pausing, "a moment is waited for");
        pursuit.phase = Phase::Idle;
    }

    pub(super) fn on_looked(&mut self, purpose: AttemptPurpose, answer: Answer) {
        let leases = match answer {
            Answer::Leases(leases) => leases,
            other => return self.end_job(End::Failed(unreachable_reason(other))),
        };
        let spending = self.count_costs(&leases);
        let tick = self.now.tick;
        let known = |n: u32, leases: &[Lease], job| {
            let id = attempt_id(job, n);
            leases.iter().any(|lease| lease.job == id)
        };
        let job = self.spec.job;
        self.uncertain
            .retain(|n, gang| gang.until > tick && !known(*n, &leases, job));
        let uncertain: u64 = self.uncertain.values().map(|gang| gang.escrow.0).sum();
        let held = Credits(spending.held.0.saturating_add(uncertain));
        let budget = self.spec.limits.budget;
        let left = budget.map(|Credits(budget)| {
            Credits(
                budget
                    .saturating_sub(spending.spent.0)
                    .saturating_sub(held.0),
            )
        });
        let pursuit = self.pursuit_mut(purpose);
        (pursuit.held, pursuit.left) = (held, left);
        if let Some(Shortage {
            until,
            held: before,
            reason,
        }) = pursuit.shortage.clone()
        {
            if held < before {
                pursuit.shortage = None;
            } else if tick >= until {
                return self.end_job(End::Failed(reason));
            } else {
                return self.pause_purpose(purpose, ESCROW_PERIOD);
            }
        }
        self.plan_or_buy(purpose);
    }

    fn plan_or_buy(&mut self, purpose: AttemptPurpose) {
        if let Some(plan) = self.pursuit_mut(purpose).plan.take() {
            return self.buy_leases(purpose, plan);
        }
        let limits = self.spec.limits.clone();
        let excluded = self.excluded_from(purpose);
        let left = self.pursuit_mut(purpose).left;
        let passed = self.now.tick.since(self.begun);
        let deadline = limits.deadline.map(|deadline| deadline.since(passed));
        let wanted = match purpose {
            AttemptPurpose::Main => {
                let requests = self.spec.requests.saturating_sub(self.answered).max(1);
                let values = self.common_values();
                let paid = u32::try_from(self.paid.len()).unwrap_or(u32::MAX);
                // What follows a full receipt is spread as that was.
                let spread = if self.losses.is_empty() { 0 } else { paid };
                PlanRequest {
                    work: PlanScope::Rest(values.into_iter().collect()),
                    budget: left,
                    deadline,
                    providers_min: limits.providers_min.saturating_sub(spread).max(1),
                    providers_max: limits.providers_max,
                    excluded,
                    copies: limits.copies,
                    requests,
                }
            }
            AttemptPurpose::Check => {
                let check = self.check.clone().expect("a check is under way");
                let of = self.attempts.get(&check.of).expect("it is decided about");
                let question = of.questions.first().expect("there is a question");
                PlanRequest {
                    work: PlanScope::Part {
                        plan: of.plan.id,
                        part: question.part,
                        inputs: check.inputs,
                    },
                    budget: left,
                    deadline,
                    providers_min: 1,
                    providers_max: 1,
                    excluded,
                    copies: 1,
                    requests: 1,
                }
            }
        };
        self.pursuit_mut(purpose).phase = Phase::Planning;
        self.request_effect(Action::Plan(Box::new(wanted)), Wait::Plan(purpose));
    }

    pub(super) fn on_planned(&mut self, purpose: AttemptPurpose, answer: Answer) {
        let (why, passes) = match answer {
            Answer::Planned(plan) => match self.check_plan(purpose, &plan) {
                Ok(()) => return self.buy_leases(purpose, plan),
                Err(why) => (why, false),
            },
            Answer::NotPlanned { why, passes } => (why, passes),
            other => return self.end_job(End::Failed(unreachable_reason(other))),
        };
        if let Some(bad_input) = self.bad_input() {
            return self.end_job(End::Failed(bad_input));
        }
        if passes && self.may_wait(purpose) {
            return self.pause_before_book(purpose);
        }
        let reason = Reason::NoPlan(why);
        match reason.is_budget() {
            true => self.on_shortage(purpose, reason),
            false => self.end_job(End::Failed(reason)),
        }
    }

    /// Checks that a plan is valid, reads only values that exist, and makes all wanted outputs.
    fn check_plan(&self, purpose: AttemptPurpose, plan: &Plan) -> Result<(), NoPlan> {
        let kind = NoPlanKind::Other;
        let no_plan = |text: String| NoPlan { kind, text };
        plan.check_plan()
            .map_err(|fault| no_plan(fault.to_string()))?;
        let open = self.requests.values().find(|asked| !asked.is_given);
        let values = self.common_values();
        let is_there = |name: &String| match purpose {
            AttemptPurpose::Main => open.is_some_and(|asked| {
                let given = asked.inputs.iter().any(|(input, _)| input == name);
                given || values.contains_key(name)
            }),
            AttemptPurpose::Check => self
                .check
                .as_ref()
                .is_some_and(|check| check.inputs.iter().any(|(input, _)| input == name)),
        };
        let mut inputs = plan.parts.iter().flat_map(|part| &part.inputs);
        let missing = inputs.find(|input| input.maker.is_none() && !is_there(&input.name));
        if let Some(missing) = missing {
            return Err(no_plan(format!(
                "nobody has {}, which the plan reads",
                missing.name
            )));
        }
        let outputs = plan.parts.iter().flat_map(|part| &part.outputs);
        let wanted: Vec<&String> = outputs
            .filter(|it| it.is_wanted)
            .map(|it| &it.name)
            .collect();
        let is_made = |name: &&String| values.contains_key(*name) || wanted.contains(name);
        let is_asked = |name: &String| wanted.contains(&name);
        match purpose {
            AttemptPurpose::Check if !self.asked_of_check().iter().all(is_asked) => {
                Err(no_plan("the plan does not make all of the part".to_owned()))
            }
            AttemptPurpose::Main if !self.spec.outputs.iter().all(|name| is_made(&name)) => {
                Err(no_plan("the plan does not make all outputs".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the providers not to buy from. A third run must not go to a provider whose result it
    /// decides about.
    pub(super) fn excluded_from(&self, purpose: AttemptPurpose) -> Vec<Exclusion> {
        let mut excluded = self.excluded.clone();
        let check = self
            .check
            .as_ref()
            .filter(|_| purpose == AttemptPurpose::Check);
        let of = check.and_then(|check| self.attempts.get(&check.of));
        let parties = of.into_iter().flat_map(|of| &of.legs);
        excluded.extend(parties.map(|leg| Exclusion {
            provider: leg.terms.provider,
            ask: None,
        }));
        excluded
    }

    /// Returns the values that every unanswered request has, as the first one has them; none if
    /// more requests can still come.
    fn common_values(&self) -> BTreeMap<String, ContentId> {
        let mut open = self.requests.values().filter(|asked| !asked.is_given);
        let all_came = self.no_more || self.spec.requests == 1;
        let Some(first) = open.next().filter(|_| all_came) else {
            return BTreeMap::new();
        };
        let mut common = first.values.clone();
        for asked in open {
            common.retain(|name, _| asked.values.contains_key(name));
        }
        common
    }

    /// Returns the names of the values that a check must make.
    fn asked_of_check(&self) -> Vec<String> {
        let of = self
            .check
            .as_ref()
            .and_then(|check| self.attempts.get(&check.of));
        let part = of.and_then(|of| {
            let question = of.questions.first()?;
            of.plan.parts.get(question.part as usize)
        });
        let outputs = part.into_iter().flat_map(|part| &part.outputs);
        outputs.map(|output| output.name.clone()).collect()
    }

    /// Returns for how long a purchase has waited for devices.
    fn waited(&mut self, purpose: AttemptPurpose) -> Micros {
        let tick = self.now.tick;
        let since = self.pursuit_mut(purpose).since;
        since.map_or(Micros(0), |since| tick.since(since))
    }

    /// Returns whether a purchase may wait longer for devices.
    pub(super) fn may_wait(&mut self, purpose: AttemptPurpose) -> bool {
        self.waited(purpose) < self.spec.limits.wait
    }

    /// Pauses a purchase before it looks at the book again.
    pub(super) fn pause_before_book(&mut self, purpose: AttemptPurpose) {
        let pause = book_pause(self.waited(purpose), self.spec.limits.wait);
        self.pause_purpose(purpose, pause);
    }

    pub(super) fn pause_purpose(&mut self, purpose: AttemptPurpose, time: Micros) {
        self.pursuit_mut(purpose).phase = Phase::Pausing;
        let until = self.now.tick.plus(time);
        self.timers.set_timer(Timer::LookAgain(purpose), until);
    }

    /// Waits until ended leases return some of their escrow, if any hold some.
    pub(super) fn on_shortage(&mut self, purpose: AttemptPurpose, reason: Reason) {
        if let Some(bad_input) = self.bad_input() {
            return self.end_job(End::Failed(bad_input));
        }
        let until = self.now.tick.plus(ESCROW_WAIT);
        let pursuit = self.pursuit_mut(purpose);
        let held = pursuit.held;
        if held == Credits(0) {
            return self.end_job(End::Failed(reason));
        }
        pursuit.shortage = Some(Shortage {
            until,
            held,
            reason,
        });
        self.pause_purpose(purpose, ESCROW_PERIOD);
    }

    pub(super) fn begin_attempt(
        &mut self,
        purpose: AttemptPurpose,
        plan: Box<Plan>,
        terms: Vec<Terms>,
    ) {
        let n = self.next_attempt;
        self.next_attempt += 1;
        *self.pursuit_mut(purpose) = AttemptPlan::default();
        let leases = terms.iter();
        let leases = leases
            .map(|it| (it.provider, it.lease, it.escrow))
            .collect();
        self.report_event(JobEvent::Leased { attempt: n, leases });
        let held = terms
            .iter()
            .map(|it| (it.lease, Spending::from_held(it.escrow)));
        self.costs.extend(held);
        let providers = terms.iter().map(|terms| terms.provider).collect();
        self.attempts.insert(n, Attempt::new(purpose, plan, terms));
        self.request_effect(Action::Find { providers }, Wait::Find(n));
    }

    pub(super) fn on_found(&mut self, n: u32, answer: Answer) {
        if self.attempt_mut(n).is_resumed {
            return self.on_past_found(n, answer);
        }
        let contacts = match answer {
            Answer::Found(contacts) => contacts,
            Answer::NotFound(provider) => {
                return self.abandon_attempt(n, Reason::Unknown(provider));
            }
            other => return self.end_job(End::Failed(unreachable_reason(other))),
        };
        let purpose = self.attempt_mut(n).purpose;
        let Some((number, asked, last)) = self.first_request(purpose) else {
            // Nobody wants an answer any more.
            return self.skip_attempt(n);
        };
        let (job, priority) = (attempt_id(self.spec.job, n), self.spec.limits.priority);
        let sequence = self.sequence_of(number);
        let first = Request {
            number,
            sequence,
            inputs: asked,
            keep: self.keeps_feedback(number),
        };
        let sequences = self.spec.sequences;
        let attempt = self.attempt_mut(n);
        if let Some(reason) = attempt.missing_input_reason(&first) {
            return self.end_job(End::Failed(reason));
        }
        for place in attempt.places() {
            let briefing = start::StartFacts {
                plan: &attempt.plan,
                terms: attempt.legs.iter().map(|leg| &leg.terms).collect(),
                contacts: &contacts,
                job,
                priority,
                last,
                sequences,
            };
            let start = briefing.build_start(place, &first);
            attempt.legs[place as usize].start = Some(start);
        }
        attempt.note_first_request(&first, last);
        let terms = attempt.legs.iter().map(|leg| leg.terms.clone()).collect();
        let (is_check, plan) = (purpose == AttemptPurpose::Check, attempt.plan.clone());
        let fact = Fact::Attempt {
            n,
            is_check,
            plan,
            terms,
            first,
            last,
        };
        self.record_facts(vec![fact], Wait::RecordAttempt(n));
    }

    /// Returns the first unanswered request: its number, the values that legs can read, and whether
    /// it is the only one.
    fn first_request(&self, purpose: AttemptPurpose) -> Option<(u32, super::state::Tensors, bool)> {
        if purpose == AttemptPurpose::Check {
            let check = self.check.as_ref()?;
            return Some((0, check.inputs.clone(), true));
        }
        let mut open = self.requests.iter().filter(|(_, asked)| !asked.is_given);
        let (number, asked) = open.next()?;
        let is_alone = open.next().is_none() && self.no_more;
        Some((
            *number,
            asked.readable_values(),
            is_alone || self.spec.requests == 1,
        ))
    }

    pub(super) fn serve_contents(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        let parts = attempt.plan.parts.iter();
        let content = parts.flat_map(|part| part.weights.iter().chain([&part.graph]));
        let contents = content.chain(&attempt.request_inputs).copied();
        let contents: BTreeSet<_> = contents.collect();
        let contents = contents.into_iter().collect();
        self.request_effect(Action::Serve { contents }, Wait::Serve(n));
    }

    pub(super) fn on_served(&mut self, n: u32, answer: Answer) {
        match answer {
            Answer::Served => self.open_all(n),
            Answer::NotServed(why) => self.end_job(End::Failed(Reason::Memory(why))),
            other => self.end_job(End::Failed(unreachable_reason(other))),
        }
    }

    /// Ends a lease before its time, so that its escrow comes back.
    pub(super) fn end_lease(&mut self, lease: souk_market::LeaseId) {
        if let Some(ending) = &mut self.ending {
            ending.leases_ended += 1;
        }
        self.submit_command(Command::EndLease { lease }, Wait::EndLease(lease));
    }
}

impl Attempt {
    fn new(purpose: AttemptPurpose, plan: Box<Plan>, terms: Vec<Terms>) -> Attempt {
        assert_eq!(plan.legs.len(), terms.len(), "each leg has a lease");
        Attempt {
            purpose,
            is_resumed: false,
            plan,
            legs: terms.into_iter().map(LegState::new).collect(),
            sent: Vec::new(),
            sequences: BTreeMap::new(),
            progress: BTreeMap::new(),
            request_inputs: BTreeSet::new(),
            requests_max: 1,
            no_more: false,
            warning: WarningTime::default(),
            has_begun: false,
            failed: None,
            stalled: None,
            judging: Judging::Running,
            alike: BTreeMap::new(),
            questions: Vec::new(),
            tainted: BTreeSet::new(),
            right: BTreeMap::new(),
        }
    }

    /// Creates an attempt of an earlier life, about whose legs nothing is known.
    pub(super) fn new_resumed(plan: Box<Plan>, terms: Vec<Terms>) -> Attempt {
        let mut attempt = Attempt::new(AttemptPurpose::Main, plan, terms);
        (attempt.is_resumed, attempt.no_more, attempt.has_begun) = (true, true, true);
        attempt
    }

    /// Asserts what must hold between two events.
    pub(super) fn assert_invariants(&self, n: u32) {
        assert_eq!(
            self.legs.len(),
            self.plan.legs.len(),
            "each leg has a lease"
        );
        assert!(self.under_way() <= crate::lease::WINDOW_MAX as usize);
        for (place, leg) in self.legs.iter().enumerate() {
            assert!(
                leg.requests_sent <= self.sent.len(),
                "leg {place} of {n} knows what was not sent"
            );
            let is_working = leg.stage == Stage::Working;
            assert!(
                !is_working || self.has_begun,
                "leg {place} of {n} went before all accepted"
            );
            let is_signed = matches!(leg.stage, Stage::Right | Stage::Signing | Stage::Settled);
            assert!(!is_signed || leg.receipt.is_some() || self.is_resumed);
            assert_eq!(leg.doubt.is_some(), leg.stage == Stage::Doubted);
        }
    }
}
