//! The end of an attempt: decides which results are right, which values to keep and whom to pay.
//!
//! Two runs of a part read the same inputs, so honest results must agree within rounding. If they
//! differ, or only one of the two completed, a third provider runs the part. The buyer pays the
//! providers that agree with the third run and no others.

use std::collections::BTreeMap;

use souk_memory::ContentId;

use super::action::{Action, JobEvent};
use super::comparing::{Purpose, Side};
use super::event::{Answer, Leg};
use super::facts::{End, Fact};
use super::reason::Reason;
use super::state::{
    Attempt, AttemptPlan, AttemptPurpose, Judging, Progress, Question, Stage, Wait,
};
use super::timer::Timer;
use super::{Check, JobCore, comparing, lineage};

/// The request that an attempt leaves unanswered, if its values are worth keeping.
#[derive(Clone, Copy)]
struct UnansweredRequest {
    /// The request's number in the attempt.
    made_as: u32,
    /// The request's number in the job.
    number: u32,
}

impl JobCore {
    /// Takes one step with an attempt whose legs are over. Returns whether it did.
    pub(super) fn judge_attempt(&mut self, n: u32) -> bool {
        let attempt = self.attempt_mut(n);
        let (judging, is_over) = (
            attempt.judging,
            attempt.legs.iter().all(|it| it.stage.is_over()),
        );
        if !is_over || !self.is_at_rest(n) {
            return false;
        }
        let next = match judging {
            Judging::Running => {
                if !self.is_known_what_is_left(n) {
                    return false;
                }
                self.close_run(n);
                Judging::Comparing
            }
            Judging::Comparing => {
                self.ask_questions(n);
                Judging::Checking
            }
            Judging::Checking => {
                if !self.attempt_mut(n).questions.is_empty() {
                    return self.decide_question(n);
                }
                self.fetch_what_is_left(n);
                Judging::Fetching
            }
            Judging::Fetching => {
                let right = self.attempt_mut(n).right.values();
                let ids: Vec<ContentId> = right.copied().collect();
                self.report_event(JobEvent::Returned);
                if !ids.is_empty() {
                    self.request_effect(Action::Keep { ids }, Wait::Keep(n));
                }
                Judging::Keeping
            }
            Judging::Keeping => {
                self.put_down(n);
                Judging::Settling
            }
            Judging::Settling => {
                let all_closed = self
                    .attempt_mut(n)
                    .legs
                    .iter()
                    .all(|it| it.stage.is_closed());
                if all_closed {
                    self.conclude_attempt(n);
                }
                return all_closed;
            }
            Judging::Doubting => {
                let mut legs = self.attempt_mut(n).legs.iter();
                let is_decided = legs.all(|it| it.stage >= Stage::Settled);
                if is_decided {
                    self.attempts.remove(&n);
                }
                return is_decided;
            }
        };
        if self.ending.is_none() {
            self.attempt_mut(n).judging = next;
        }
        true
    }

    /// Returns whether no answer of an attempt is pending.
    fn is_at_rest(&self, n: u32) -> bool {
        let mut waits = self.pending.iter();
        !waits.any(|wait| wait.attempt_number() == Some(n)) && !self.is_comparing(n)
    }

    /// Returns whether the core knows which request is left; a resumed job may not have received it
    /// yet.
    fn is_known_what_is_left(&self, n: u32) -> bool {
        let is_resumed = self.attempts.get(&n).is_some_and(|it| it.is_resumed);
        let has_heard = self.no_more || !self.requests.is_empty();
        !is_resumed || self.spec.requests > 1 || has_heard
    }

    /// Closes an attempt whose conversations are over, and checks each receipt against the
    /// purchase.
    fn close_run(&mut self, n: u32) {
        for timer in [
            Timer::Warn(n),
            Timer::SendDeadline(n),
            Timer::AnswerDeadline(n),
            Timer::LeaseEnd(n),
            Timer::Extend(n),
        ] {
            self.timers.stop_timer(timer);
        }
        self.stop_effects(|wait| match wait {
            Wait::FetchUntaken { maker, .. } | Wait::HandOn { maker, .. } => maker.attempt == n,
            _ => false,
        });
        for (leg, objection) in self.receipt_objections(n) {
            let provider = self.leg_provider(leg);
            self.refuse_payment(
                leg,
                Reason::Receipt {
                    provider,
                    objection,
                },
            );
        }
        match self.attempt_mut(n).is_resumed {
            true => {
                for request in self.attempt_mut(n).requests_made() {
                    self.compare_request(n, request);
                }
            }
            false => {
                if let Some(left) = self.find_left_request(n) {
                    self.compare_request(n, left.made_as);
                }
            }
        }
    }

    /// Returns the request that is left of an attempt, if its values help: it is the only one left
    /// of the job, or two of its runs differ.
    fn find_left_request(&self, n: u32) -> Option<UnansweredRequest> {
        let attempt = self.attempts.get(&n)?;
        if attempt.purpose == AttemptPurpose::Check {
            return None;
        }
        let mut open = self.requests.iter().filter(|(_, asked)| !asked.is_given);
        let (&number, asked) = open.next()?;
        let is_alone = open.next().is_none() && (self.no_more || self.spec.requests == 1);
        let is_broken = attempt.progress.get(&number) == Some(&Progress::Broken);
        if attempt.is_resumed && self.spec.sequences > 0 {
            // The inputs do not show which step of the session the request was.
            return None;
        }
        if attempt.is_resumed {
            let mut inputs = asked.inputs.iter();
            let is_same = inputs.all(|(_, id)| attempt.request_inputs.contains(id));
            let made_as = *attempt.sent.first()?;
            return (is_alone && is_same).then_some(UnansweredRequest { made_as, number });
        }
        let is_sent = attempt.sent.contains(&number);
        (is_sent && (is_alone || is_broken)).then_some(UnansweredRequest {
            made_as: number,
            number,
        })
    }

    /// Asks about the parts of the request left whose two runs do not confirm each other.
    fn ask_questions(&mut self, n: u32) {
        if self.attempt_mut(n).is_resumed {
            self.attempt_mut(n).taint_what_nobody_bears_out();
            return self.doubt_attempt(n);
        }
        let Some(left) = self.find_left_request(n) else {
            return;
        };
        let request = left.made_as;
        let attempt = self.attempt_mut(n);
        let (mut questions, mut tainted) = (Vec::new(), Vec::new());
        for (part, planned) in (0..).zip(&attempt.plan.parts) {
            let first = planned.leg;
            let Some(second) = attempt.plan.second_of(first) else {
                continue;
            };
            let is_usable = |place: &u32| attempt.is_usable(*place, request, part);
            let runs: BTreeMap<u32, bool> = [first, second]
                .into_iter()
                .filter(is_usable)
                .map(|place| (place, true))
                .collect();
            let is_alike = attempt.alike.get(&(request, part)) == Some(&true);
            if !is_usable(&first) && !is_alike {
                // No leg can still show whether the value that other parts read was right.
                tainted.extend(lineage::transitive_readers(&attempt.plan, part));
            }
            if runs.is_empty() || (runs.len() == 2 && is_alike) {
                continue;
            }
            let differs = |name: &&String| {
                let value = |place| attempt.value(place, request, part, name);
                value(first) != value(second)
            };
            let mut names = planned.outputs.iter().map(|output| &output.name);
            let value = names.find(differs).cloned().unwrap_or_default();
            let question = Question {
                request,
                part,
                value,
                runs,
                third: None,
                is_compared: false,
            };
            questions.push(question);
        }
        questions.retain(|question| !tainted.contains(&question.part));
        attempt.tainted.extend(tainted);
        attempt.questions = questions;
    }

    /// Takes one step with an attempt's first question. Returns whether it did.
    fn decide_question(&mut self, n: u32) -> bool {
        let attempt = self.attempt_mut(n);
        let question = attempt.questions[0].clone();
        let is_usable = |place: &u32| attempt.is_usable(*place, question.request, question.part);
        if question.third.is_none() && !question.runs.keys().any(is_usable) {
            // No run is left to decide about, and none to show what other parts read of it.
            attempt.questions.remove(0);
            attempt.taint_parts(lineage::transitive_readers(&attempt.plan, question.part));
            return true;
        }
        if self.check.is_some() {
            return false;
        }
        match (&question.third, question.is_compared) {
            (None, _) => {
                self.begin_check(n, &question);
                true
            }
            (Some(third), false) => {
                self.compare_with_third(n, &question, third);
                true
            }
            (Some(third), true) => {
                self.attempt_mut(n).questions.remove(0);
                self.decide_by_third(n, &question, third.clone());
                true
            }
        }
    }

    /// Starts a third run of the part on the inputs that both runs read.
    fn begin_check(&mut self, n: u32, question: &Question) {
        let asked = self.requests.values().find(|asked| !asked.is_given);
        let readable = asked
            .map(|asked| asked.readable_values())
            .unwrap_or_default();
        let attempt = self.attempt_mut(n);
        let part = &attempt.plan.parts[question.part as usize];
        let (mut inputs, mut made) = (Vec::new(), Vec::new());
        for input in &part.inputs {
            let value = match input.maker {
                None => {
                    let named = readable.iter().find(|(name, _)| *name == input.name);
                    named.map(|(_, id)| *id)
                }
                Some(maker) => {
                    let place = attempt.plan.parts[maker as usize].leg;
                    let leg = Leg { attempt: n, place };
                    let value = attempt.value(place, question.request, maker, &input.name);
                    made.extend(value.map(|id| (leg, input.name.clone(), id)));
                    value
                }
            };
            inputs.extend(value.map(|id| (input.name.clone(), id)));
        }
        if inputs.len() < part.inputs.len() {
            return self.leave_question(n);
        }
        let pursuit = AttemptPlan::default();
        self.check = Some(Check {
            of: n,
            inputs,
            pursuit,
        });
        // This buyer serves these inputs to the third provider.
        for (leg, name, id) in made {
            let of = self.attempt_mut(n);
            let holders = comparing::value_holders(of, leg.place, question.request, &name, id);
            let wait = Wait::FetchGiven {
                leg,
                name: name.clone(),
            };
            self.fetch_content(n, name, id, holders, wait);
        }
    }

    /// Drops the question, because no leg can still give the inputs of the part; a later attempt
    /// repeats it.
    fn leave_question(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        let question = attempt.questions.remove(0);
        attempt.taint_parts(lineage::part_and_readers(&attempt.plan, question.part));
    }

    /// Handles an input of a third run that its maker sent or did not send.
    pub(super) fn on_given_fetched(&mut self, leg: Leg, name: String, answer: Answer) {
        match answer {
            Answer::Fetched => {}
            Answer::NotFetched(fault) => {
                self.check = None;
                self.stop_effects(|wait| matches!(wait, Wait::FetchGiven { .. }));
                self.leave_question(leg.attempt);
                self.on_not_fetched(leg, name, fault);
            }
            other => self.end_job(End::Failed(super::bidding::unreachable_reason(other))),
        }
    }

    fn compare_with_third(
        &mut self,
        n: u32,
        question: &Question,
        third: &BTreeMap<String, ContentId>,
    ) {
        let attempt = self.attempt_mut(n);
        let part = &attempt.plan.parts[question.part as usize];
        let mut runs = question.runs.clone();
        runs.retain(|place, _| attempt.is_usable(*place, question.request, question.part));
        let mut pairs = Vec::new();
        for (place, agrees) in &mut runs {
            for output in &part.outputs {
                let value = attempt.value(*place, question.request, question.part, &output.name);
                match (value, third.get(&output.name)) {
                    (Some(left), Some(right)) if left == *right => {}
                    (Some(left), Some(right)) => {
                        let maker = Some(Leg {
                            attempt: n,
                            place: *place,
                        });
                        let sides = (
                            Side { id: left, maker },
                            Side {
                                id: *right,
                                maker: None,
                            },
                        );
                        pairs.push((*place, output.name.clone(), sides));
                    }
                    _ => *agrees = false,
                }
            }
        }
        let tolerance = part.tolerance_ppm;
        let open = &mut attempt.questions[0];
        (open.runs, open.is_compared) = (runs, true);
        for (place, name, sides) in pairs {
            let (purpose, (left, right)) = (Purpose::Third { attempt: n, place }, sides);
            self.compare_contents(purpose, name, left, right, tolerance);
        }
    }

    fn decide_by_third(&mut self, n: u32, question: &Question, third: BTreeMap<String, ContentId>) {
        let value = question.value.clone();
        let wrong: Vec<u32> = question
            .runs
            .iter()
            .filter(|(_, agrees)| !**agrees)
            .map(|(place, _)| *place)
            .collect();
        // If one of the two runs was lost, a third that differs is one claim against another.
        let is_split = !wrong.is_empty() && wrong.len() == question.runs.len();
        for place in &wrong {
            let leg = Leg {
                attempt: n,
                place: *place,
            };
            let provider = self.leg_provider(leg);
            let reason = match is_split {
                true => Reason::Disagreement {
                    value: value.clone(),
                },
                false => Reason::Outvoted {
                    provider,
                    value: value.clone(),
                },
            };
            if self.attempt_mut(n).leg(*place).stage == Stage::Finished {
                self.refuse_payment(leg, reason);
            }
        }
        if is_split {
            return self.end_job(End::Failed(Reason::Disagreement { value }));
        }
        let attempt = self.attempt_mut(n);
        let first = attempt.plan.parts[question.part as usize].leg;
        if wrong.contains(&first) {
            // The readers of the wrong value have wrong inputs, second runs included.
            attempt.taint_parts(lineage::part_and_readers(&attempt.plan, question.part));
            attempt.right.extend(third);
        } else if !question.runs.contains_key(&first) {
            // Other parts read a value of the lost run, which the third run did not check.
            attempt.taint_parts(lineage::transitive_readers(&attempt.plan, question.part));
        }
    }

    /// Fetches the right values of the request left that remaining parts or the caller need.
    fn fetch_what_is_left(&mut self, n: u32) {
        let Some(left) = self.find_left_request(n) else {
            return;
        };
        let values = self.requests[&left.number].values.clone();
        let keep = self.keeps_feedback(left.number);
        let attempt = self.attempt_mut(n);
        let request = left.made_as;
        let done = |part: u32| attempt.output_holder(request, part).is_some();
        let mut wanted = Vec::new();
        for (number, part) in (0..).zip(&attempt.plan.parts) {
            let Some(place) = attempt.output_holder(request, number) else {
                continue;
            };
            for output in &part.outputs {
                let is_read = output.readers.iter().any(|reader| !done(*reader));
                let is_here =
                    values.contains_key(&output.name) || attempt.right.contains_key(&output.name);
                let value = attempt.value(place, request, number, &output.name);
                let is_feedback = attempt.plan.is_feedback(number, &output.name);
                let is_wanted = output.is_wanted && (keep || !is_feedback);
                if let (true, false, Some(id)) = (is_wanted || is_read, is_here, value) {
                    let name = output.name.clone();
                    let holders = comparing::value_holders(attempt, place, request, &name, id);
                    wanted.push((Leg { attempt: n, place }, name, id, holders));
                }
            }
        }
        for (leg, name, id, holders) in wanted {
            let wait = Wait::FetchKept {
                leg,
                name: name.clone(),
                id,
            };
            self.fetch_content(n, name, id, holders, wait);
        }
    }

    pub(super) fn on_kept_fetched(
        &mut self,
        leg: Leg,
        name: String,
        id: ContentId,
        answer: Answer,
    ) {
        match answer {
            Answer::Fetched => {
                self.attempt_mut(leg.attempt).right.insert(name, id);
            }
            Answer::NotFetched(fault) => self.on_not_fetched(leg, name, fault),
            other => self.end_job(End::Failed(super::bidding::unreachable_reason(other))),
        }
    }

    pub(super) fn on_kept(&mut self, n: u32) {
        let Some(left) = self.find_left_request(n) else {
            return;
        };
        let right = self.attempt_mut(n).right.clone();
        let asked = self.requests.get_mut(&left.number).expect("it is left");
        asked.values.extend(right);
    }

    /// Records the kept values and the right legs. Both must be on the disk before the core signs
    /// any receipt.
    fn put_down(&mut self, n: u32) {
        let mut facts = Vec::new();
        if let Some(left) = self.find_left_request(n) {
            let request = self.requests[&left.number].id;
            let kept = self.attempt_mut(n).right.iter();
            let kept = kept.map(|(name, id)| Fact::Kept {
                request,
                name: name.clone(),
                id: *id,
            });
            facts.extend(kept);
        }
        for leg in &mut self.attempt_mut(n).legs {
            match (leg.stage, leg.is_disputed) {
                // The core disputed this lease: its right result came too late for payment.
                (Stage::Finished, true) => leg.stage = Stage::Refused,
                (Stage::Finished, false) => {
                    leg.stage = Stage::Right;
                    let receipt = leg.receipt.clone().expect("a leg that finished has one");
                    facts.push(Fact::Right { receipt });
                }
                _ => {}
            }
        }
        self.timers
            .stop_all(|timer| matches!(timer, Timer::Note(leg) if leg.attempt == n));
        if !facts.is_empty() {
            self.record_facts(facts, Wait::RecordRight(n));
        }
    }

    /// Concludes an attempt whose payments are done, and leaves the rest to the next one.
    fn conclude_attempt(&mut self, n: u32) {
        let attempt = self.attempt_mut(n);
        let (purpose, is_resumed) = (attempt.purpose, attempt.is_resumed);
        let kept = u32::try_from(attempt.right.len()).unwrap_or(u32::MAX);
        let reason = attempt.failed.take().or(attempt.stalled.take());
        let read_from = reason.as_ref().and_then(Reason::culprit);
        let read_from = read_from.map(|reader| attempt.values_read_by(reader));
        let terms = attempt.legs.iter().map(|leg| &leg.terms);
        let asks = terms.map(|terms| (terms.provider, terms.ask)).collect();
        if attempt.legs.iter().any(|leg| leg.stage == Stage::Doubted) {
            attempt.judging = Judging::Doubting;
        } else {
            self.attempts.remove(&n);
        }
        if is_resumed {
            self.past = None;
        }
        if let Some(reason) = reason.filter(|_| !is_resumed) {
            let reason = self.find_fault(reason, &read_from.unwrap_or_default());
            self.on_failure(purpose, reason, asks, kept);
        }
        if purpose == AttemptPurpose::Check
            && self.question_mut().is_none_or(|it| it.third.is_some())
        {
            self.check = None;
        }
    }
}

impl Attempt {
    /// Marks parts that read a wrong or doubtful value: the core neither keeps them nor asks about
    /// them.
    fn taint_parts(&mut self, parts: Vec<u32>) {
        self.questions.retain(|later| !parts.contains(&later.part));
        self.tainted.extend(parts);
    }

    /// Taints, in an attempt of an earlier life, every reader of a value that two runs disagree on,
    /// because no third run decides there. That holds even if the readers' own two runs agree.
    fn taint_what_nobody_bears_out(&mut self) {
        let Some(request) = self.sent.first().copied() else {
            return;
        };
        for part in (0..).take(self.plan.parts.len()) {
            let first = self.plan.parts[part as usize].leg;
            let is_twice = self.plan.second_of(first).is_some();
            if is_twice && self.alike.get(&(request, part)) != Some(&true) {
                self.taint_parts(lineage::transitive_readers(&self.plan, part));
            }
        }
    }

    /// Returns a place that holds the outputs of a part for a request, if they can be used.
    fn output_holder(&self, request: u32, part: u32) -> Option<u32> {
        let first = self.plan.parts[part as usize].leg;
        let second = self.plan.second_of(first);
        // In a resumed attempt no third run decides between two.
        let is_alone = self.is_resumed && second.is_some();
        if is_alone && self.alike.get(&(request, part)) != Some(&true) {
            return None;
        }
        let mut places = [Some(first), second].into_iter().flatten();
        places.find(|place| self.is_usable(*place, request, part))
    }

    /// Returns the requests for which some leg made an output.
    pub(super) fn requests_made(&self) -> Vec<u32> {
        let made = self.legs.iter().flat_map(|leg| leg.outputs_made.keys());
        let made: std::collections::BTreeSet<u32> = made.copied().collect();
        made.into_iter().collect()
    }
}
