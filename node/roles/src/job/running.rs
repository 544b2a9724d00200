//! Runs an attempt: sends each provider its parts, starts all of them together, and handles the
//! messages of each until it has finished or is lost.

use std::collections::BTreeSet;

use souk_market::{AccountKey, Millis};

use super::action::{Action, JobEvent};
use super::event::Leg;
use super::facts::End;
use super::plan::{NoPlan, NoPlanKind};
use super::reason::{Loss, Reason};
use super::state::{Attempt, LegState, Progress, Stage};
use super::timer::Timer;
use super::{JobCore, start};
use crate::clock::Micros;
use crate::lease::{
    self, BuyerMessage, Failure, Opening, ProviderMessage, Request, Source, WINDOW_MAX, WorkResult,
};

/// A part can take its planned time this many times over, plus the allowance: a plan uses peak
/// figures, and machines are shared.
const RUN_MARGIN: u64 = 20;
pub(super) const RUN_ALLOWANCE: Micros = Micros::from_seconds(5);

/// The longest silence before the core drops a provider, whose heartbeat comes every few seconds.
/// The first message can take longer, because the provider first finds peers and asks the log.
const SILENCE_MAX: Micros = Micros::from_seconds(9);
const FIRST_WORD_MAX: Micros = Micros::from_seconds(20);

/// A timer this late shows that the machine slept, so the core heard no provider meanwhile.
const SLEPT: Micros = Micros::from_seconds(1);

/// The delay before the core reports to the log that the work of a lease has begun. The receipt
/// pays for shorter work, which needs no report: a short job sends no extra command, and a long one
/// waits for none.
pub(super) const START_AFTER: Micros = Micros::from_seconds(2);

/// Returns how long work can take that the plan expects to take `expected`: plans err, but not by
/// so much.
pub(super) fn max_work_time(expected: Micros) -> Micros {
    Micros(expected.0.saturating_mul(RUN_MARGIN)).plus(RUN_ALLOWANCE)
}

/// Returns the time until a moment of the log.
pub(super) fn time_until(moment: Millis, now: Millis) -> Micros {
    Micros::from_millis(moment.saturating_since(now).0)
}

impl JobCore {
    /// Sends every provider its work, and sets the timers.
    pub(super) fn open_all(&mut self, n: u32) {
        let tick = self.now.tick;
        let attempt = self.attempts.get_mut(&n).expect("it was served just now");
        let mut opened = Vec::new();
        for (place, leg) in (0..).zip(&mut attempt.legs) {
            if leg.stage != Stage::Sold {
                continue;
            }
            (leg.stage, leg.called) = (Stage::Opened, Some(tick));
            let start = leg.start.clone().expect("it was made before");
            let opening = Opening::Start(Box::new(start));
            let leg_id = Leg { attempt: n, place };
            opened.push((leg_id, leg.terms.provider, opening));
        }
        self.set_lease_timers(n);
        for (leg, provider, opening) in opened {
            self.hear_from(leg);
            self.timers
                .set_timer(Timer::Start(leg), tick.plus(START_AFTER));
            self.push_effect(Action::Open {
                leg,
                provider,
                opening,
            });
        }
    }

    /// Returns the leg, if its provider can still report.
    pub(super) fn talking_leg(&mut self, leg: Leg) -> Option<&mut LegState> {
        let attempt = self.attempts.get_mut(&leg.attempt)?;
        let state = attempt.legs.get_mut(leg.place as usize)?;
        state.stage.is_talking().then_some(state)
    }

    pub(super) fn on_message_received(&mut self, leg: Leg, message: ProviderMessage) {
        let Some(state) = self.talking_leg(leg) else {
            return;
        };
        let (stage, provider) = (state.stage, state.terms.provider);
        let (has_fetched, has_stalled) = (state.has_fetched, state.has_stalled);
        self.hear_from(leg);
        if stage == Stage::Asked {
            return self.on_asked_said(leg, message);
        }
        match (message, stage) {
            (ProviderMessage::Alive, _) => {}
            (ProviderMessage::Failed(failure), _) => {
                let failure = failure.truncate_texts();
                self.note_blame(leg, &failure);
                self.lose_leg(leg, Reason::Failed { provider, failure });
            }
            (ProviderMessage::Accepted, Stage::Opened) => {
                self.set_stage(leg, Stage::Accepted);
                self.hear_from(leg);
                let now = self.now.tick;
                self.attempt_mut(leg.attempt).legs[leg.place as usize].record_echo(now);
                self.begin_ready_legs(leg.attempt);
            }
            (
                ProviderMessage::Fetched {
                    pieces,
                    held,
                    bytes,
                },
                Stage::Accepted | Stage::Ready | Stage::Working,
            ) if !has_fetched => {
                self.attempt_mut(leg.attempt).legs[leg.place as usize].has_fetched = true;
                self.report_event(JobEvent::Fetched {
                    provider,
                    pieces,
                    held,
                    bytes,
                });
            }
            (ProviderMessage::Ready, Stage::Accepted) => {
                self.set_stage(leg, Stage::Ready);
                self.report_event(JobEvent::Ready { provider });
                self.begin_ready_legs(leg.attempt);
            }
            (ProviderMessage::Running { request, part }, Stage::Working) => {
                self.on_running(leg, request, part);
            }
            (
                ProviderMessage::Made {
                    request,
                    part,
                    outputs,
                },
                Stage::Working,
            ) => {
                self.on_made(leg, request, part, outputs);
            }
            (ProviderMessage::Untaken(untaken), Stage::Working) => self.on_untaken(leg, *untaken),
            (ProviderMessage::Stalled(failure), _) if !has_stalled => {
                self.on_stalled(leg, stage, failure);
            }
            (ProviderMessage::Finished(finished), Stage::Working) => {
                self.on_finished(leg, *finished)
            }
            _ => self.lose_reporting_leg(leg, Loss::Confused),
        }
    }

    /// Restarts the timer for a provider's silence, after its message or a message to it.
    pub(super) fn hear_from(&mut self, leg: Leg) {
        let now = self.now.tick;
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        state.last_heard = now;
        let patience = state.silence_max();
        self.timers
            .set_timer(Timer::Silent(leg), now.plus(patience));
    }

    pub(super) fn on_silent(&mut self, leg: Leg) {
        let now = self.now.tick;
        let Some(state) = self.talking_leg(leg) else {
            return;
        };
        let patience = state.silence_max();
        if now.since(state.last_heard) > patience.plus(SLEPT) {
            return self.hear_from(leg);
        }
        match state.stage {
            Stage::Asked => self.on_asked_gone(leg),
            _ => self.lose_reporting_leg(leg, Loss::Silent { patience }),
        }
    }

    /// Notes that a provider blames the job's inputs.
    fn note_blame(&mut self, leg: Leg, failure: &Failure) {
        if let Failure::BadInput(_) = failure {
            let provider = self.leg_provider(leg);
            self.blamers.insert(provider);
        }
    }

    pub(super) fn on_peer_lost(&mut self, leg: Leg, why: String) {
        if self
            .talking_leg(leg)
            .is_some_and(|state| state.stage == Stage::Asked)
        {
            return self.on_asked_broken(leg);
        }
        self.lose_reporting_leg(leg, Loss::Gone(lease::truncate_text(why)));
    }

    /// Handles a leg whose work is overdue.
    pub(super) fn on_late(&mut self, leg: Leg) {
        match self.talking_leg(leg).map(|state| state.stage) {
            Some(Stage::Asked) => self.on_asked_gone(leg),
            _ => self.lose_reporting_leg(leg, Loss::Deadline),
        }
    }

    fn set_stage(&mut self, leg: Leg, stage: Stage) {
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        assert!(stage > state.stage, "a leg goes on and never back");
        state.stage = stage;
    }

    /// Orders the ready legs to begin, once all have accepted.
    fn begin_ready_legs(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        if attempt.legs.iter().any(|leg| leg.stage < Stage::Accepted) {
            return;
        }
        attempt.has_begun = true;
        for place in attempt.places() {
            let leg = Leg { attempt: n, place };
            if self.attempt_mut(n).leg(place).stage == Stage::Ready {
                self.set_stage(leg, Stage::Working);
                let now = self.now.tick;
                self.attempt_mut(n).warning.begin_answer(now);
                self.push_effect(Action::SendMessage {
                    leg,
                    message: BuyerMessage::Go,
                });
                self.begin_first(leg);
                self.catch_up(leg);
            }
        }
        self.fill_window(n);
    }

    /// Starts the first request, which a leg received when its stream opened.
    fn begin_first(&mut self, leg: Leg) {
        let now = self.now.tick;
        let attempt = self.attempt_mut(leg.attempt);
        let first = attempt.sent[0];
        let state = &mut attempt.legs[leg.place as usize];
        let inputs = &state.start.as_ref().expect("the core built its work").parts[0].inputs;
        let is_all_here = inputs.iter().all(|input| input.source == Source::Buyer);
        (state.requests_sent, state.called) = (1, is_all_here.then_some(now));
        state.open.insert(first);
    }

    /// Sends as many requests as the window allows, and says when none follows.
    pub(super) fn fill_window(&mut self, n: u32) {
        let window = self.spec.window.clamp(1, WINDOW_MAX) as usize;
        let now = self.now.tick;
        let attempt = self.attempts.get_mut(&n).expect("it is filled");
        if attempt.no_more || !attempt.has_begun {
            return;
        }
        let last = attempt.sent.last().copied();
        let later = self.requests.iter();
        let later = later.filter(|(number, _)| last.is_none_or(|last| **number > last));
        let mut unsent: Vec<Request> = Vec::new();
        for (number, asked) in later {
            let room = attempt.under_way() + unsent.len() < window;
            if !room || attempt.sent.len() + unsent.len() >= attempt.requests_max {
                break;
            }
            unsent.push(Request {
                number: *number,
                sequence: asked.sequence,
                inputs: asked.readable_values(),
                keep: asked.keep,
            });
        }
        for request in &unsent {
            if let Some(reason) = attempt.missing_input_reason(request) {
                return self.end_job(End::Failed(reason));
            }
            attempt.add(request);
            attempt.warning.begin_answer(now);
        }
        let is_full = attempt.sent.len() >= attempt.requests_max;
        let last = attempt.sent.last().copied();
        let mut numbers = self.requests.keys();
        let is_drained = self.no_more && numbers.all(|number| Some(*number) <= last);
        attempt.no_more = is_full || is_drained;
        self.catch_up_all(n);
    }

    pub(super) fn fill_running(&mut self) {
        let running = self.attempts.iter();
        let running = running.filter(|(_, it)| it.purpose == super::state::AttemptPurpose::Main);
        let running: Vec<u32> = running.map(|(n, _)| *n).collect();
        for n in running {
            self.fill_window(n);
        }
    }

    fn catch_up_all(&mut self, n: u32) {
        for place in self.attempt_mut(n).places() {
            self.catch_up(Leg { attempt: n, place });
        }
    }

    /// Sends a leg the requests that it does not know, and the end of requests.
    pub(super) fn catch_up(&mut self, leg: Leg) {
        let attempt = self.attempts.get_mut(&leg.attempt).expect("it runs");
        let state = &mut attempt.legs[leg.place as usize];
        if state.stage != Stage::Working || state.limit.is_some() {
            return;
        }
        let mut messages = Vec::new();
        while state.requests_sent < attempt.sent.len() {
            let number = attempt.sent[state.requests_sent];
            state.requests_sent += 1;
            state.open.insert(number);
            // Every running leg already received the requests that have answers.
            let asked = self.requests.get(&number).expect("it is not answered");
            let request = Request {
                number,
                sequence: asked.sequence,
                inputs: asked.readable_values(),
                keep: asked.keep,
            };
            let request = start::for_place(&attempt.plan, leg.place, &request);
            messages.push(BuyerMessage::Next(request));
        }
        if attempt.no_more && !state.knows_last {
            state.knows_last = true;
            messages.push(BuyerMessage::NoMore);
        }
        for message in messages {
            self.push_effect(Action::SendMessage { leg, message });
        }
    }

    /// Handles the begin of a part, which the provider reports once: each report costs this node a
    /// line on its disk, and gives the part its whole time.
    fn on_running(&mut self, leg: Leg, request: u32, part: u32) {
        let attempt = self.attempt_mut(leg.attempt);
        let state = attempt.leg(leg.place);
        let start = state.start.as_ref().expect("the core built its work");
        let is_sent = attempt.sent[..state.requests_sent].contains(&request);
        let begun = state.parts_begun.get(&request).copied().unwrap_or(0);
        let in_order = part >= begun.max(state.parts_made(request));
        let (Some(described), true, true) = (start.parts.get(part as usize), is_sent, in_order)
        else {
            return self.lose_reporting_leg(leg, Loss::Confused);
        };
        let name = described.name.clone();
        let provider = state.terms.provider;
        let now = self.now.tick;
        let until = now.plus(self.run_patience(leg, request, part));
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        state.record_echo(now);
        state.parts_begun.insert(request, part + 1);
        self.timers
            .set_timer(Timer::Patience { leg, request, part }, until);
        self.report_event(JobEvent::Running {
            provider,
            part: name,
        });
    }

    /// Returns how long a part may take for a request. The plan's time is for a request of the
    /// usual size.
    fn request_patience(&self, request: u32, expected: Micros) -> Micros {
        let size = self.requests.get(&request).map_or(1, |asked| asked.size);
        max_work_time(Micros(expected.0.saturating_mul(size.max(1).into())))
    }

    /// Returns how long a leg may run a part for a request. If only the run can show its length,
    /// that is the user's own limit.
    fn run_patience(&mut self, leg: Leg, request: u32, part: u32) -> Micros {
        let time_max = self.spec.limits.time_max;
        let attempt = self.attempt_mut(leg.attempt);
        if attempt.is_open_ended(leg, part) {
            return time_max;
        }
        let start = attempt.leg(leg.place).start.as_ref();
        let expected = start.expect("the core built its work").parts[part as usize].expected;
        self.request_patience(request, expected)
    }

    pub(super) fn on_slow(&mut self, leg: Leg, request: u32, part: u32) {
        if self.talking_leg(leg).is_none() {
            return;
        }
        let patience = self.run_patience(leg, request, part);
        self.lose_reporting_leg(leg, Loss::Slow { patience });
    }

    fn on_made(
        &mut self,
        leg: Leg,
        request: u32,
        part: u32,
        outputs: Vec<(String, souk_memory::ContentId)>,
    ) {
        let attempt = self.attempt_mut(leg.attempt);
        let state = &mut attempt.legs[leg.place as usize];
        let start = state.start.as_ref().expect("the core built its work");
        let parts = start.parts.len();
        let described = start.parts.get(part as usize);
        let is_next = state.parts_made(request) == part;
        let is_sent = attempt.sent[..state.requests_sent].contains(&request);
        let named: BTreeSet<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
        let is_right = described.is_some_and(|described| {
            let wanted: BTreeSet<&str> =
                described.outputs.iter().map(|o| o.name.as_str()).collect();
            wanted == named && outputs.len() == wanted.len()
        });
        if !(is_next && is_sent && is_right) {
            return self.lose_reporting_leg(leg, Loss::Confused);
        }
        state.outputs_made.entry(request).or_default().push(outputs);
        if state.parts_made(request) as usize == parts {
            state.open.remove(&request);
        }
        self.timers
            .stop_timer(Timer::Patience { leg, request, part });
        self.on_progress(leg.attempt, request);
    }

    fn on_stalled(&mut self, leg: Leg, stage: Stage, failure: Failure) {
        if stage < Stage::Working {
            // The provider returns a lease that did not begin.
            let reason = self.stalled_by(leg, failure);
            return self.lose_leg(leg, reason);
        }
        self.note_blame(leg, &failure);
        let failed = self.failed_run(leg, &failure);
        let reason = self.stalled_by(leg, failure);
        let attempt = self.attempt_mut(leg.attempt);
        let state = &mut attempt.legs[leg.place as usize];
        (state.has_stalled, state.failed_run) = (true, failed);
        attempt.stalled.get_or_insert(reason);
        self.set_last_result_timer(leg, RUN_ALLOWANCE.plus(RUN_ALLOWANCE));
        self.limit_others(leg.attempt);
    }

    /// Returns the planned time of the failed run, if its inputs are at fault: the longest of those
    /// that can have been under way. If only a run can show its length, that is the time that the
    /// buyer saw.
    fn failed_run(&mut self, leg: Leg, failure: &Failure) -> Micros {
        if !matches!(failure, Failure::BadInput(_)) {
            return Micros(0);
        }
        let seen = self.payable_time(leg);
        let attempt = &self.attempts[&leg.attempt];
        let state = attempt.leg(leg.place);
        let parts = &state.start.as_ref().expect("the core built its work").parts;
        let planned = state.open.iter().filter_map(|request| {
            let number = state.parts_made(*request);
            let part = parts.get(number as usize)?;
            let size = self
                .requests
                .get(request)
                .map_or(1, |asked| asked.size.max(1));
            Some(match attempt.is_open_ended(leg, number) {
                true => seen,
                false => Micros(part.expected.0.saturating_mul(size.into())),
            })
        });
        planned.max().unwrap_or_default()
    }

    /// Returns the reason for a provider's stall.
    fn stalled_by(&mut self, leg: Leg, failure: Failure) -> Reason {
        let attempt = self.attempt_mut(leg.attempt);
        let provider = attempt.leg(leg.place).terms.provider;
        match failure {
            Failure::Expired | Failure::Stopping => attempt.reclaim_reason(leg.place),
            failure => Reason::Failed {
                provider,
                failure: failure.truncate_texts(),
            },
        }
    }

    fn on_finished(&mut self, leg: Leg, finished: WorkResult) {
        let provider = self.attempt_mut(leg.attempt).leg(leg.place).terms.provider;
        self.report_event(JobEvent::Finished { provider });
        self.take_finished(leg, finished);
        let attempt = self.attempt_mut(leg.attempt);
        let state = attempt.leg(leg.place);
        let parts = attempt.plan.parts_at(leg.place).count();
        let sent = &attempt.sent[..state.requests_sent];
        let is_whole = sent
            .iter()
            .all(|it| state.parts_made(*it) as usize == parts);
        if !is_whole && state.limit.is_none() && !state.has_stalled {
            let reason = attempt.reclaim_reason(leg.place);
            attempt.failed.get_or_insert(reason);
            self.limit_others(leg.attempt);
        } else if !attempt.no_more {
            // The leg accepts no other request: the rest is for the next attempt.
            attempt.requests_max = attempt.sent.len();
            attempt.no_more = true;
            self.catch_up_all(leg.attempt);
        }
    }

    /// Takes the result of a leg. The core must still answer its notes.
    pub(super) fn take_finished(&mut self, leg: Leg, finished: WorkResult) {
        let is_note = |timer| matches!(timer, Timer::Note(_));
        let now = self.now.tick;
        let timers = &mut self.timers;
        timers.stop_all(|timer| timer.leg() == Some(leg) && !is_note(timer));
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        assert!(state.stage < Stage::Finished, "a leg finishes once");
        state.stage = Stage::Finished;
        state.seen.end_span(now);
        state.waited.end_span(now);
        state.receipt = Some(Box::new(finished.receipt));
        let outputs = finished.outputs.iter().flat_map(|(_, outputs)| outputs);
        state.served = outputs.map(|(_, id)| *id).collect();
    }

    pub(super) fn leg_provider(&mut self, leg: Leg) -> AccountKey {
        self.attempt_mut(leg.attempt).leg(leg.place).terms.provider
    }
}

impl Attempt {
    /// Notes the first request, which is part of the legs' starts.
    pub(super) fn note_first_request(&mut self, first: &Request, last: bool) {
        assert!(self.sent.is_empty(), "there is one first request");
        self.add(first);
        let tensors = self.places().map(|place| self.tensors_each(place)).max();
        let start = self.leg(0).start.as_ref().expect("it is made by now");
        let most = start.tensors_max() / tensors.unwrap_or(1).max(1);
        self.requests_max = if last { 1 } else { most.max(1) };
        self.no_more = last;
        for leg in &mut self.legs {
            leg.knows_last = last;
        }
    }

    /// Notes a request as sent.
    pub(super) fn add(&mut self, request: &Request) {
        self.sent.push(request.number);
        let sequence = self.sequences.entry(request.sequence).or_default();
        sequence.push(request.number);
        self.progress.insert(request.number, Progress::Open);
        self.request_inputs
            .extend(request.inputs.iter().map(|(_, id)| *id));
    }

    /// Returns why a request cannot be sent: it lacks an input that no earlier request of its
    /// sequence feeds.
    pub(super) fn missing_input_reason(&self, request: &Request) -> Option<Reason> {
        let given = request.inputs.iter().map(|(name, _)| name.as_str());
        let given: BTreeSet<&str> = given.collect();
        let is_fed = self.sequences.contains_key(&request.sequence);
        let inputs = self.plan.parts.iter().flat_map(|part| &part.inputs);
        let mut needed = inputs.filter(|it| it.maker.is_none() && !(is_fed && it.fed.is_some()));
        let lacking = needed.find(|input| !given.contains(input.name.as_str()))?;
        let (number, name) = (request.number, &lacking.name);
        let text = format!("request {number} brings no {name}, and none before it feeds it");
        let kind = NoPlanKind::Other;
        Some(Reason::NoPlan(NoPlan { kind, text }))
    }

    /// Returns the next request of the same sequence, if it was sent.
    pub(super) fn next_in_sequence(&self, request: u32) -> Option<u32> {
        self.sequences.values().find_map(|sent| {
            let place = sent.binary_search(&request).ok()?;
            sent.get(place + 1).copied()
        })
    }

    /// Returns the most tensors that one request adds to the inputs or to the outputs of a receipt.
    fn tensors_each(&self, place: u32) -> usize {
        let start = self.leg(place).start.as_ref().expect("it is made by now");
        if start.sequences > 0 {
            return start.output_count();
        }
        let inputs = start.parts.iter().flat_map(|part| &part.inputs);
        let outside = inputs.filter(|input| input.source != Source::Own);
        let names: BTreeSet<&str> = outside.map(|input| input.name.as_str()).collect();
        let outputs: usize = start.parts.iter().map(|part| part.outputs.len()).sum();
        names.len().max(outputs)
    }
}

impl LegState {
    /// Returns how long the provider can be silent before the core drops it.
    fn silence_max(&self) -> Micros {
        match self.stage {
            Stage::Sold | Stage::Asked | Stage::Opened => FIRST_WORD_MAX,
            _ => SILENCE_MAX,
        }
    }
}
