//! Follows each request of a job from its outputs to its delivery: compares outputs that two
//! providers made, fetches the right ones, and gives them to the caller. Within a sequence it
//! delivers answers in order; sequences do not wait for each other.

use super::JobCore;
use super::action::Action;
use super::comparing::{self, Pair, Purpose, Side};
use super::event::{Answer, FetchFault, Leg};
use super::facts::Fact;
use super::reason::{Objection, Reason};
use super::state::{AttemptPurpose, Judging, OpenRequest, Progress, Stage, Tensors, Wait};
use crate::lease;

impl OpenRequest {
    /// Returns the values of it that legs can read: its inputs, and the kept values.
    pub(super) fn readable_values(&self) -> Tensors {
        let mut readable = self.inputs.clone();
        let is_input = |name: &String| self.inputs.iter().any(|(input, _)| input == name);
        let values = self.values.iter().filter(|(name, _)| !is_input(name));
        readable.extend(values.map(|(name, id)| (name.clone(), *id)));
        readable
    }
}

impl JobCore {
    /// Returns the request that needs a content to be fetched, if the content is of no use once the
    /// caller has its answer. An earlier life and a check number requests in their own way.
    pub(super) fn request_in_need(&self, n: u32, wait: &Wait) -> Option<u32> {
        if let Wait::FetchPast { request, .. } = wait {
            return Some(*request);
        }
        let attempt = self.attempts.get(&n)?;
        if attempt.is_resumed || attempt.purpose == AttemptPurpose::Check {
            return None;
        }
        match wait {
            Wait::FetchAnswer { request, .. } => Some(*request),
            Wait::FetchPair { pair, .. } => match self.pairs.get(pair)?.purpose {
                Purpose::Twins { request, .. } => Some(request),
                Purpose::Third { .. } | Purpose::Doubt { .. } => None,
            },
            Wait::FetchUntaken { untaken, .. } => {
                // A value that feeds the next request outlives the answer that it came with.
                let lease::Offer { request, name, .. } = &untaken.offer;
                let mut fed = attempt.plan.feedback_inputs();
                match fed.any(|(_, fed)| fed.name == *name) {
                    true => attempt.next_in_sequence(*request),
                    false => Some(*request),
                }
            }
            _ => None,
        }
    }

    /// Handles new outputs of a request.
    pub(super) fn on_progress(&mut self, n: u32, request: u32) {
        let is_wanted = self.requests.contains_key(&request);
        let attempt = self.attempt_mut(n);
        let is_wanted = is_wanted || attempt.purpose == AttemptPurpose::Check;
        let is_open = attempt.progress[&request] == Progress::Open;
        if !is_wanted || !is_open || !attempt.is_made(request) {
            return;
        }
        attempt.progress.insert(request, Progress::Comparing);
        self.compare_request(n, request);
        self.on_request_compared(n, request);
    }

    /// Compares the outputs that two runs made and that differ in some bit.
    pub(super) fn compare_request(&mut self, n: u32, request: u32) {
        let attempt = self.attempt_mut(n);
        let mut pairs = Vec::new();
        let mut alike = Vec::new();
        for part in 0..u32::try_from(attempt.plan.parts.len()).expect("parts are few") {
            if attempt.alike.contains_key(&(request, part)) {
                continue;
            }
            let planned = &attempt.plan.parts[part as usize];
            let first = planned.leg;
            let Some(second) = attempt.plan.second_of(first) else {
                continue;
            };
            let is_there = |place| attempt.part_outputs(place, request, part).is_some();
            if !is_there(first) || !is_there(second) {
                continue;
            }
            let before = pairs.len();
            for output in &planned.outputs {
                let value = |place| attempt.value(place, request, part, &output.name);
                let (Some(left), Some(right)) = (value(first), value(second)) else {
                    unreachable!("each part gives what it is to give, or its leg is lost")
                };
                if left != right {
                    let side = |id, place| Side {
                        id,
                        maker: Some(Leg { attempt: n, place }),
                    };
                    let sides = (side(left, first), side(right, second));
                    pairs.push((part, output.name.clone(), sides, planned.tolerance_ppm));
                }
            }
            if pairs.len() == before {
                alike.push(part);
            }
        }
        for part in alike {
            self.attempt_mut(n).alike.insert((request, part), true);
        }
        for (part, name, sides, tolerance) in pairs {
            let purpose = Purpose::Twins {
                attempt: n,
                request,
                part,
            };
            let (left, right) = sides;
            self.compare_contents(purpose, name, left, right, tolerance);
        }
    }

    /// Continues with a request whose runs were compared.
    pub(super) fn on_request_compared(&mut self, n: u32, request: u32) {
        let is_compared = !self.pairs.values().any(|pair| {
            matches!(pair.purpose, Purpose::Twins { attempt, request: of, .. }
                if (attempt, of) == (n, request))
        });
        let attempt = self.attempt_mut(n);
        if !is_compared || attempt.progress.get(&request) != Some(&Progress::Comparing) {
            return;
        }
        let mut parts = attempt.alike.range((request, 0)..=(request, u32::MAX));
        if parts.any(|(_, alike)| !alike) {
            attempt.progress.insert(request, Progress::Broken);
            // The core must decide between the two runs before it sends them any other request.
            attempt.no_more = true;
            for place in attempt.places() {
                self.limit_leg(Leg { attempt: n, place }, 0);
            }
            return;
        }
        attempt.progress.insert(request, Progress::Fetching);
        for (name, id, leg) in self.wanted_outputs(n, request) {
            let holders =
                comparing::value_holders(self.attempt_mut(n), leg.place, request, &name, id);
            let wait = Wait::FetchAnswer {
                leg,
                request,
                name: name.clone(),
            };
            self.fetch_content(n, name, id, holders, wait);
        }
        self.on_request_fetched(n, request);
    }

    /// Returns the wanted outputs of a request, each with its maker.
    fn wanted_outputs(
        &mut self,
        n: u32,
        request: u32,
    ) -> Vec<(String, souk_memory::ContentId, Leg)> {
        let keep = self.keeps_feedback(request);
        let attempt = self.attempt_mut(n);
        let parts = (0..).zip(&attempt.plan.parts);
        let mut answer = Vec::new();
        for (number, part) in parts {
            for output in part.outputs.iter().filter(|output| output.is_wanted) {
                if !keep && attempt.plan.is_feedback(number, &output.name) {
                    continue;
                }
                let id = attempt.value(part.leg, request, number, &output.name);
                let id = id.expect("the request is made by all");
                let leg = Leg {
                    attempt: n,
                    place: part.leg,
                };
                answer.push((output.name.clone(), id, leg));
            }
        }
        answer
    }

    pub(super) fn on_answer_fetched(
        &mut self,
        leg: Leg,
        request: u32,
        name: String,
        answer: Answer,
    ) {
        let n = leg.attempt;
        match answer {
            Answer::Fetched => self.on_request_fetched(n, request),
            Answer::NotFetched(fault) => {
                self.attempt_mut(n)
                    .progress
                    .insert(request, Progress::Broken);
                self.on_not_fetched(leg, name, fault);
            }
            other => self.end_job(super::End::Failed(super::bidding::unreachable_reason(
                other,
            ))),
        }
    }

    /// Excludes the maker of an output that did not arrive.
    pub(super) fn on_not_fetched(&mut self, leg: Leg, name: String, fault: FetchFault) {
        let provider = self.leg_provider(leg);
        let is_over = self.attempt_mut(leg.attempt).leg(leg.place).stage > Stage::Doubted;
        let reason = match fault {
            FetchFault::Lost(why) => Reason::Output {
                provider,
                why: lease::truncate_text(why),
            },
            FetchFault::NoTensor(cause) => {
                let cause = lease::truncate_text(cause);
                let objection = Objection::NoTensor { name, cause };
                Reason::Receipt {
                    provider,
                    objection,
                }
            }
        };
        if is_over {
            // The core excludes the maker already, and all that it made.
            self.attempt_mut(leg.attempt).failed.get_or_insert(reason);
            return self.limit_others(leg.attempt);
        }
        let stage = self.attempt_mut(leg.attempt).leg(leg.place).stage;
        match (&reason, stage) {
            (_, Stage::Doubted) => self.refuse_payment(leg, reason),
            (Reason::Receipt { .. }, Stage::Finished) => {
                self.refuse_payment(leg, reason);
                self.limit_others(leg.attempt);
            }
            _ => self.lose_leg(leg, reason),
        }
    }

    fn on_request_fetched(&mut self, n: u32, request: u32) {
        let is_here = !self.pending.iter().any(|wait| {
            matches!(wait, Wait::FetchAnswer { leg, request: of, .. }
                if (leg.attempt, *of) == (n, request))
        });
        let attempt = self.attempt_mut(n);
        if !is_here || attempt.progress.get(&request) != Some(&Progress::Fetching) {
            return;
        }
        attempt.progress.insert(request, Progress::Here);
        match self.attempt_mut(n).purpose {
            AttemptPurpose::Main => {
                self.note_answer(n);
                self.give_answers(n);
            }
            AttemptPurpose::Check => {
                let answer = self.wanted_outputs(n, request).into_iter();
                let third = answer.map(|(name, id, _)| (name, id)).collect();
                let question = self.question_mut().expect("a check is of a question");
                question.third = Some(third);
            }
        }
    }

    /// Returns the next request to deliver: the first undelivered one of its sequence, once it is
    /// here. Sequences do not wait for each other.
    fn next_here(&mut self, n: u32) -> Option<u32> {
        let attempt = self.attempt_mut(n);
        let is_here = |it: &u32| attempt.progress[it] == Progress::Here;
        let is_given = |it: &u32| matches!(attempt.progress[it], Progress::Given | Progress::Taken);
        let firsts = attempt.sequences.values().filter_map(|sent| {
            let first = sent.iter().rev().take_while(|it| !is_given(it)).last()?;
            is_here(first).then_some(*first)
        });
        firsts.min()
    }

    /// Returns the sequence that a request is a step of.
    pub(super) fn sequence_of(&self, request: u32) -> u32 {
        self.requests
            .get(&request)
            .map_or(0, |asked| asked.sequence)
    }

    /// Returns whether the caller wants the outputs of a request that feed the next one.
    pub(super) fn keeps_feedback(&self, request: u32) -> bool {
        self.requests.get(&request).is_none_or(|asked| asked.keep)
    }

    /// Passes the answers that are here to the caller.
    fn give_answers(&mut self, n: u32) {
        loop {
            let Some(number) = self.next_here(n) else {
                return;
            };
            if !self.requests.contains_key(&number) {
                return;
            }
            self.attempt_mut(n).progress.insert(number, Progress::Given);
            let answer = self.wanted_outputs(n, number).into_iter();
            let mut outputs: Tensors = answer.map(|(name, id, _)| (name, id)).collect();
            let asked = self.requests.get(&number).expect("it is not answered");
            // A resumed attempt may have repeated a value that was kept before.
            let made: std::collections::BTreeSet<String> =
                outputs.iter().map(|(name, _)| name.clone()).collect();
            let kept = self.spec.outputs.iter();
            let kept = kept.filter(|name| !made.contains(*name));
            let kept = kept.filter_map(|name| Some((name.clone(), *asked.values.get(name)?)));
            outputs.extend(kept);
            self.give_on(Some(n), number, n, outputs);
        }
    }

    fn give_on(&mut self, attempt: Option<u32>, request: u32, by: u32, outputs: Tensors) {
        let names: std::collections::BTreeSet<&String> = outputs.iter().map(|(n, _)| n).collect();
        assert!(
            !self.keeps_feedback(request) || self.spec.outputs.iter().all(|it| names.contains(it)),
            "an answer is whole"
        );
        let asked = self.requests.get_mut(&request).expect("it is not answered");
        assert!(!asked.is_given, "an answer is given once");
        asked.is_given = true;
        let answered = Fact::Answered {
            request: asked.id,
            attempt: by,
            outputs: outputs.clone(),
        };
        self.record_facts(vec![answered], Wait::Record);
        self.weigh_evidence(&outputs);
        let is_evidence = self.pairs.values().any(Pair::reads_answer);
        let wait = Wait::Give { attempt, request };
        self.request_effect(
            Action::Give {
                request,
                outputs,
                is_evidence,
            },
            wait,
        );
    }

    /// Delivers requests whose values are all kept. Returns whether there was one.
    pub(super) fn give_kept(&mut self) -> bool {
        let mut open = self.requests.iter().filter(|(_, asked)| !asked.is_given);
        let Some((number, asked)) = open.next() else {
            return false;
        };
        let value = |name: &String| Some((name.clone(), *asked.values.get(name)?));
        let outputs: Option<Tensors> = self.spec.outputs.iter().map(value).collect();
        let by = asked.answered_by;
        let by = by.unwrap_or(self.next_attempt.saturating_sub(1));
        let number = *number;
        match outputs {
            None => false,
            Some(outputs) => {
                self.give_on(None, number, by, outputs);
                true
            }
        }
    }

    pub(super) fn on_taken(&mut self, attempt: Option<u32>, request: u32, answer: Answer) {
        if answer != Answer::Taken {
            return self.on_not_wanted();
        }
        let taken = self.requests.remove(&request);
        assert!(
            taken.is_some_and(|asked| asked.is_given),
            "what was given is taken"
        );
        self.answered += 1;
        if let Some(n) = attempt {
            self.attempt_mut(n)
                .progress
                .insert(request, Progress::Taken);
            self.fill_window(n);
        }
    }

    /// Stops the job when the caller wants no more answers, and pays for the work done.
    fn on_not_wanted(&mut self) {
        (self.no_more, self.is_unwanted) = (true, true);
        self.requests.clear();
        self.stop_effects(|wait| matches!(wait, Wait::Give { .. }));
        let running = self
            .attempts
            .iter()
            .filter(|(_, it)| it.judging == Judging::Running);
        let running: Vec<u32> = running.map(|(n, _)| *n).collect();
        for n in running {
            self.attempt_mut(n).no_more = true;
            for place in self.attempt_mut(n).places() {
                self.limit_leg(Leg { attempt: n, place }, 0);
            }
        }
    }
}
