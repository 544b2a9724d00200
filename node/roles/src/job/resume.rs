//! Recovery after a crash: the core pays right results, disputes refused ones, ends leases that
//! still run or did not begin, and judges the results that providers completed meanwhile as usual.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{CloseReason, Command, LeaseState};
use souk_memory::ContentId;

use super::action::{Action, JobEvent};
use super::event::{Answer, Leg};
use super::facts::{End, Past, PastAttempt, attempt_id};
use super::plan::Exclusion;
use super::reason::{Objection, Reason};
use super::running::{START_AFTER, max_work_time, time_until};
use super::state::{Attempt, KnownRequest, Stage, UncertainPurchase, Wait};
use super::timer::Timer;
use super::{JobCore, running, start};
use crate::clock::Micros;
use crate::lease::{Opening, ProviderMessage, WorkResult};

/// How soon and for how long the core contacts a provider again whose stream breaks: the provider
/// may be restarting.
const ASK_PERIOD: Micros = Micros::from_millis(500);
const ASKED_FOR: Micros = Micros::from_seconds(5);

impl JobCore {
    pub(super) fn look_after(&mut self, past: Past) {
        (self.has_begun, self.is_resumed) = (true, true);
        self.excluded.extend(&past.excluded);
        self.next_attempt = past.next_attempt();
        self.costs = past.max_lease_costs();
        for (request, values) in &past.kept {
            let known = self.known.entry(*request).or_default();
            known.values.clone_from(values);
        }
        for (request, answer) in &past.answered {
            let known = self.known.entry(*request).or_default();
            known.makers = past.leg_providers(answer.attempt);
            known.answer = Some(answer.clone());
        }
        for (n, (escrow, until)) in &past.skipped {
            let until = self.now.tick.plus(time_until(*until, self.now.log));
            let escrow = *escrow;
            self.uncertain
                .insert(*n, UncertainPurchase { escrow, until });
        }
        self.past = Some(past);
        let ids = self.attempt_ids();
        self.request_effect(Action::Look { ids }, Wait::LookPast);
    }

    /// Finds the makers of an answer that the caller does not have but an earlier life gave. The
    /// buyer has paid for it, and its makers will serve it for some time.
    pub(super) fn find_makers(&mut self, request: u32, known: &KnownRequest) {
        let outputs = known.answer.iter().flat_map(|answer| &answer.outputs);
        let mut missing = outputs.filter(|(name, _)| !known.values.contains_key(name));
        if missing.next().is_some() && !known.makers.is_empty() {
            let providers = known.makers.clone();
            self.request_effect(Action::Find { providers }, Wait::FindPast { request });
        }
    }

    /// Fetches the answer from its makers, or leaves the request for an attempt.
    pub(super) fn on_makers_found(&mut self, request: u32, answer: &Answer) {
        let asked = self.requests.get(&request);
        let known = asked.and_then(|asked| self.known.get(&asked.id)).cloned();
        let (Answer::Found(_), Some(known)) = (answer, known) else {
            return;
        };
        let Some(answer) = known.answer else {
            return;
        };
        for (name, id) in answer.outputs {
            if known.values.contains_key(&name) {
                continue;
            }
            let wait = Wait::FetchPast {
                request,
                name: name.clone(),
                id,
            };
            self.fetch_content(answer.attempt, name, id, known.makers.clone(), wait);
        }
    }

    /// Takes a fetched value, or leaves the request for an attempt.
    pub(super) fn on_past_fetched(
        &mut self,
        request: u32,
        name: String,
        id: ContentId,
        answer: &Answer,
    ) {
        let asked = self.requests.get_mut(&request);
        if let (Some(asked), Answer::Fetched) = (asked, answer) {
            asked.values.insert(name, id);
        }
    }

    pub(super) fn on_past_seen(&mut self, answer: Answer) {
        let leases = match answer {
            Answer::Leases(leases) => leases,
            other => return self.end_job(End::Failed(super::bidding::unreachable_reason(other))),
        };
        let past = self.past.clone().expect("it is looked after");
        let closed: BTreeMap<_, _> = leases
            .iter()
            .filter_map(|lease| match lease.state {
                LeaseState::Closed { reason, .. } => Some((lease.id, reason)),
                _ => None,
            })
            .collect();
        for (lease, receipt) in &past.right {
            // An earlier life may have settled the receipt without reporting it.
            let is_paid = match closed.get(lease) {
                None => false,
                Some(CloseReason::Receipt) => true,
                Some(_) => continue,
            };
            if let Some(leg) = past.leg_of(*lease) {
                let receipt = Box::new(receipt.clone());
                self.request_effect(Action::Sign { receipt }, Wait::SignPast { leg, is_paid });
            }
        }
        let refused = past.refused.keys();
        for lease in refused.filter(|lease| !closed.contains_key(lease)) {
            self.dispute_lease(*lease);
        }
        let main = past
            .attempts
            .iter()
            .rev()
            .find(|(_, attempt)| !attempt.is_check);
        let mut asked = BTreeSet::new();
        if let Some((n, attempt)) = main {
            asked = self.take_up(*n, attempt, &past);
            self.take_deadlines(*n, &leases);
        }
        let is_known = |lease: &souk_market::LeaseId| {
            past.right.contains_key(lease) || past.refused.contains_key(lease)
        };
        let running = leases.iter().filter(|lease| lease.is_running());
        let running = running.map(|lease| lease.id);
        let others = running.filter(|lease| !asked.contains(lease) && !is_known(lease));
        for lease in others.collect::<Vec<_>>() {
            self.end_lease(lease);
        }
        if asked.is_empty() {
            self.past = None;
        }
    }

    /// Handles a receipt that an earlier life found right: reports it, and settles it unless it is
    /// paid.
    pub(super) fn on_past_signed(&mut self, leg: Leg, is_paid: bool, answer: Answer) {
        let Answer::Signed(receipt) = answer else {
            return self.end_job(End::Failed(super::bidding::unreachable_reason(answer)));
        };
        let lease = receipt.body.lease;
        self.report_event(JobEvent::Signed {
            leg,
            receipt: receipt.clone(),
        });
        if !is_paid {
            self.submit_command(Command::Settle(receipt), Wait::Settle { lease, leg: None });
        }
    }

    /// Takes up the last attempt again. Returns the leases whose providers the core asks.
    fn take_up(
        &mut self,
        n: u32,
        past: &PastAttempt,
        all: &Past,
    ) -> BTreeSet<souk_market::LeaseId> {
        let is_sound = past.plan.check_plan().is_ok() && past.plan.legs.len() == past.terms.len();
        let mut attempt = Attempt::new_resumed(past.plan.clone(), past.terms.clone());
        let mut asked = BTreeSet::new();
        for place in attempt.places() {
            let briefing = start::StartFacts {
                plan: &past.plan,
                terms: past.terms.iter().collect(),
                contacts: &[],
                job: attempt_id(self.spec.job, n),
                priority: self.spec.limits.priority,
                last: past.last,
                sequences: self.spec.sequences,
            };
            let leg = &mut attempt.legs[place as usize];
            leg.start = Some(briefing.build_start(place, &past.first));
            let lease = leg.terms.lease;
            let is_judged = all.right.contains_key(&lease) || all.refused.contains_key(&lease);
            match is_judged {
                true => leg.stage = Stage::Settled,
                false => drop(asked.insert(lease)),
            }
        }
        attempt.add(&past.first);
        if !is_sound || asked.is_empty() {
            return BTreeSet::new();
        }
        self.attempts.insert(n, attempt);
        self.find_past(n);
        asked
    }

    fn find_past(&mut self, n: u32) {
        let legs = self.attempt_mut(n).legs.iter();
        let open = legs.filter(|leg| leg.stage == Stage::Sold);
        let providers: Vec<_> = open.map(|leg| leg.terms.provider).collect();
        if !providers.is_empty() {
            self.request_effect(Action::Find { providers }, Wait::Find(n));
        }
    }

    pub(super) fn on_past_found(&mut self, n: u32, answer: Answer) {
        match answer {
            Answer::Found(_) => {
                for place in self.attempt_mut(n).places() {
                    let leg = Leg { attempt: n, place };
                    if self.attempt_mut(n).leg(place).stage == Stage::Sold {
                        self.ask_how_it_went(leg);
                    }
                }
            }
            Answer::NotFound(provider) => {
                let attempt = self.attempt_mut(n);
                let is_it = |place: &u32| attempt.leg(*place).terms.provider == provider;
                let place = attempt.places().find(is_it);
                let Some(place) = place.filter(|it| attempt.leg(*it).stage == Stage::Sold) else {
                    let text = "a provider is not found that was not asked for".to_owned();
                    return self.end_job(End::Failed(Reason::Unreachable(text)));
                };
                self.end_leg_unpaid(Leg { attempt: n, place });
                self.find_past(n);
            }
            other => self.end_job(End::Failed(super::bidding::unreachable_reason(other))),
        }
    }

    fn ask_how_it_went(&mut self, leg: Leg) {
        let (tick, log) = (self.now.tick, self.now.log);
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        state.stage = Stage::Asked;
        // No one saw the work meanwhile: at most, the leg was at work since its lease began.
        let passed = time_until(log, state.terms.start);
        state.seen.resume_work(passed, tick);
        let (lease, provider) = (state.terms.lease, state.terms.provider);
        let parts = &state.start.as_ref().expect("the core built its work").parts;
        let expected = parts
            .iter()
            .fold(Micros(0), |sum, part| sum.plus(part.expected));
        // If the lease is over already, the core still waits for an answer.
        let ends = time_until(state.terms.deadline, log).max(running::RUN_ALLOWANCE);
        let moment = tick.plus(ends.min(max_work_time(expected)));
        self.timers.set_timer(Timer::LastResult(leg), moment);
        self.hear_from(leg);
        self.timers
            .set_timer(Timer::Start(leg), tick.plus(START_AFTER));
        let opening = Opening::Resume(lease);
        self.push_effect(Action::Open {
            leg,
            provider,
            opening,
        });
    }

    pub(super) fn ask_again(&mut self, leg: Leg) {
        let terms = &self.attempt_mut(leg.attempt).leg(leg.place).terms;
        let (lease, provider) = (terms.lease, terms.provider);
        let opening = Opening::Resume(lease);
        self.push_effect(Action::Open {
            leg,
            provider,
            opening,
        });
    }

    pub(super) fn on_asked_said(&mut self, leg: Leg, message: ProviderMessage) {
        match message {
            ProviderMessage::Finished(finished) => self.on_past_finished(leg, *finished),
            // A restarted provider knows no such lease; that is no reason to avoid it.
            ProviderMessage::Failed(_) => self.end_leg_unpaid(leg),
            // The provider is at work: its result will name the outputs made meanwhile.
            _ => {}
        }
    }

    /// Handles the end of a stream on which the core asked a provider about its lease.
    pub(super) fn on_asked_broken(&mut self, leg: Leg) {
        let now = self.now.tick;
        let state = self.attempts[&leg.attempt].leg(leg.place);
        match now.since(state.last_heard) < ASKED_FOR {
            true => self
                .timers
                .set_timer(Timer::AskAgain(leg), now.plus(ASK_PERIOD)),
            false => self.on_asked_gone(leg),
        }
    }

    pub(super) fn on_asked_gone(&mut self, leg: Leg) {
        let terms = &self.attempt_mut(leg.attempt).leg(leg.place).terms;
        let excluded = Exclusion {
            provider: terms.provider,
            ask: Some(terms.ask),
        };
        self.exclude_provider(excluded, "provider_vanished");
        self.end_leg_unpaid(leg);
    }

    /// Takes the result of an earlier life's leg, whose outputs the core knows from that result
    /// alone.
    fn on_past_finished(&mut self, leg: Leg, finished: WorkResult) {
        let outputs = finished.outputs.clone();
        self.take_finished(leg, finished);
        let provider = self.leg_provider(leg);
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        let start = state.start.clone().expect("the core built its work");
        for (request, made) in outputs {
            let mut made = made.into_iter().peekable();
            let mut parts = Vec::new();
            for part in &start.parts {
                if made.peek().is_none() {
                    break;
                }
                let given: Vec<_> = made.by_ref().take(part.outputs.len()).collect();
                let named: BTreeSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
                let wanted = part.outputs.iter().map(|output| output.name.as_str());
                if named != wanted.collect() {
                    let objection = Objection::Outputs;
                    return self.refuse_payment(
                        leg,
                        Reason::Receipt {
                            provider,
                            objection,
                        },
                    );
                }
                parts.push(given);
            }
            if made.peek().is_some() || state.outputs_made.insert(request, parts).is_some() {
                let objection = Objection::Outputs;
                return self.refuse_payment(
                    leg,
                    Reason::Receipt {
                        provider,
                        objection,
                    },
                );
            }
        }
    }
}
