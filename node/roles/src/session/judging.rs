//! Decides which of two sessions is right when their outputs for a step differ.
//!
//! Both sessions repeat the step with all logits. Each token must be the one that its logits draw,
//! and the logits must be close. If not, a third session gets the text so far, and decides: it
//! replaces the session that differs from it. Only one comparison is judged at a time.

use souk_market::AccountKey;

use super::SessionCore;
use super::action::{Action, Notice};
use super::comparing::{Comparison, ComparisonPhase};
use super::failure::SessionFailure;
use super::sequence::{Requester, SessionOutput};
use super::text_session::{StepOrder, TextSession};

impl Comparison {
    /// Returns the step with all logits, and the tokens before it.
    fn repeated_order(&self) -> StepOrder {
        let order = self.order.clone();
        StepOrder {
            step: order.step.with_logits(),
            ..order
        }
    }

    /// Returns the position of the token that differs.
    fn position(&self) -> usize {
        self.order.step.end_position()
    }
}

impl SessionCore {
    /// Begins the next judgement, or buys the third session of the one that runs. Returns whether
    /// it did.
    pub(super) fn advance_judgement(&mut self) -> bool {
        if let Some(id) = self.judged {
            let is_undecided = self.comparison_mut(id).phase == ComparisonPhase::Undecided;
            return is_undecided && self.add_third_session(id);
        }
        let Some(id) = self.unjudged.pop_front() else {
            return false;
        };
        if self.has_same_providers(id) {
            self.judged = Some(id);
            let comparison = self.comparison_mut(id);
            comparison.phase = ComparisonPhase::Repeating;
            let (pair, order) = (comparison.pair, comparison.repeated_order());
            self.request_pair(id, pair, &order);
        } else {
            self.begin_again(id);
        }
        true
    }

    /// Returns whether both sessions are in use, and bought no new providers since they computed
    /// the step.
    fn has_same_providers(&self, id: u64) -> bool {
        let comparison = &self.comparisons[&id];
        let is_same = |(number, opening): (&u32, u32)| {
            let session = self.sessions.get(number);
            session.is_some_and(|it| it.openings == opening)
        };
        let are_same = |outputs: &[SessionOutput]| {
            let openings = outputs.iter().map(|it| it.opening);
            comparison.pair.iter().zip(openings).all(is_same)
        };
        comparison.pair[..] == self.active_sessions[..]
            && are_same(&comparison.outputs)
            && are_same(&comparison.repeats)
    }

    pub(super) fn on_repeated(&mut self, id: u64) {
        if !self.has_same_providers(id) {
            return self.begin_again(id);
        }
        let comparison = self.comparison_mut(id);
        comparison.phase = ComparisonPhase::Checking;
        comparison.marks = [true; 2];
        let step = comparison.repeated_order().step;
        for side in [0, 1] {
            let comparison = self.comparison_mut(id);
            let (first, again) = (&comparison.outputs[side], &comparison.repeats[side]);
            if again.drawn.is_empty() || first.drawn != again.drawn {
                comparison.marks[side] = false;
                continue;
            }
            let (first, output) = (first.output, again.output);
            // A caller that wants logits uses those of the first output.
            let rows = comparison.order.step.logit_rows.clone();
            let step = step.clone();
            self.ask_shell(id, side, Action::Check { output, step });
            if !rows.is_empty() {
                self.compare_outputs(id, side, [first, output], Some(rows));
            }
        }
        if self.comparison_mut(id).pending == 0 {
            self.advance_phase(id);
        }
    }

    /// Goes on with a judgement once the shell has answered all questions of a phase.
    pub(super) fn advance_phase(&mut self, id: u64) {
        let comparison = self.comparison_mut(id);
        match comparison.phase {
            ComparisonPhase::Checking if comparison.marks == [true, true] => {
                comparison.phase = ComparisonPhase::Confirming;
                let [left, right] = [0, 1].map(|side| comparison.repeats[side].output);
                self.compare_outputs(id, 0, [left, right], None);
            }
            ComparisonPhase::Checking => self.await_third(id),
            ComparisonPhase::Confirming if comparison.marks[0] => self.answer_comparison(id, 0),
            ComparisonPhase::Confirming => {
                comparison.marks = [true; 2];
                self.await_third(id);
            }
            ComparisonPhase::Weighing(third) => self.decide(id, third),
            phase => unreachable!("{phase:?} asks no questions of a judgement"),
        }
    }

    /// Returns the providers that a session decides about.
    pub(super) fn judged_providers(&self, number: u32) -> Vec<AccountKey> {
        let judged = self.judged.map(|id| &self.comparisons[&id]);
        let judged = judged.filter(|it| it.phase == ComparisonPhase::Deciding(number));
        let outputs = judged.into_iter().flat_map(|it| &it.repeats);
        outputs.flat_map(|it| it.providers.clone()).collect()
    }

    fn await_third(&mut self, id: u64) {
        let comparison = self.comparison_mut(id);
        comparison.phase = ComparisonPhase::Undecided;
        let (sessions, position) = (comparison.pair, comparison.position());
        self.push_effect(Action::Notify(Notice::Differ { sessions, position }));
    }

    /// Buys a third session that decides. Returns whether it did, or cannot.
    fn add_third_session(&mut self, id: u64) -> bool {
        if self.is_stopped {
            self.fail_undecided(id);
            return true;
        }
        let Some(budget) = self.take_budget_part() else {
            return false;
        };
        // A session that left may have used the budget before.
        let can_wait = !budget.holding_jobs().is_empty();
        let third = self.next_session;
        self.next_session += 1;
        let config = &self.config;
        let session = TextSession::new(budget, config.positions, config.replay_tokens_max);
        self.sessions.insert(third, session);
        let comparison = self.comparison_mut(id);
        comparison.phase = ComparisonPhase::Deciding(third);
        let order = comparison.repeated_order();
        self.request_step(third, Requester::Comparison(id), &order);
        if self.session_mut(third).is_waiting() {
            self.buy_session(third, can_wait);
        }
        true
    }

    pub(super) fn on_third_result(
        &mut self,
        id: u64,
        third: u32,
        result: Result<SessionOutput, SessionFailure>,
    ) {
        let Ok(decided) = result else {
            self.let_session_leave(third);
            return self.fail_undecided(id);
        };
        let output = decided.output;
        let comparison = self.comparison_mut(id);
        comparison.third = Some(decided);
        comparison.phase = ComparisonPhase::Weighing(third);
        for side in [0, 1] {
            let comparison = self.comparison_mut(id);
            if comparison.marks[side] {
                let repeated = comparison.repeats[side].output;
                self.compare_outputs(id, side, [repeated, output], None);
            }
        }
        if self.comparison_mut(id).pending == 0 {
            self.advance_phase(id);
        }
    }

    /// Ends a judgement: each session is right if it agrees with the third.
    fn decide(&mut self, id: u64, third: u32) {
        let comparison = self.comparison_mut(id);
        let (sessions, position) = (comparison.pair, comparison.position());
        let wrong = match comparison.marks {
            [true, true] => {
                self.answer_comparison(id, 0);
                return self.let_session_leave(third);
            }
            [true, false] => 1,
            [false, true] => 0,
            [false, false] => {
                let failure = SessionFailure::ThirdDiffers { sessions, position };
                self.failure = Some(failure.clone());
                self.fail_comparison(id, failure);
                return self.let_session_leave(third);
            }
        };
        let outvoted = comparison.repeats[wrong].providers.clone();
        self.sellers.record_outvoted_providers(outvoted);
        let session = sessions[wrong];
        self.push_effect(Action::Notify(Notice::Outvoted { session, position }));
        self.active_sessions[wrong] = third;
        self.answer_comparison(id, 1 - wrong);
        self.let_session_leave(session);
    }

    fn fail_undecided(&mut self, id: u64) {
        let comparison = self.comparison_mut(id);
        let (sessions, position) = (comparison.pair, comparison.position());
        let failure = SessionFailure::Undecided { sessions, position };
        self.failure = Some(failure.clone());
        self.fail_comparison(id, failure);
    }
}
