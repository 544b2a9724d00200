//! Compares the outputs of two sessions that compute the same step, so that a caller gets only an
//! output on which two sessions agree. The two have no provider in common.
//!
//! Both sessions get the same tokens: those that the first one drew. If both then draw the same
//! tokens, the step is done; if the caller also wants logits, these must be close too. Otherwise
//! the step waits for a judgement.

use serde::{Deserialize, Serialize};

use super::action::Action;
use super::event::{Caller, OutputId};
use super::failure::SessionFailure;
use super::sequence::{Requester, SessionOutput};
use super::text_session::StepOrder;
use super::{SessionCore, Wait};

/// The phase of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ComparisonPhase {
    /// Both sessions compute the step.
    Computing,
    /// The shell compares the logits of both outputs.
    Comparing,
    /// The outputs differ, and another comparison is judged.
    Unjudged,
    /// Both sessions compute the step again, with all logits.
    Repeating,
    /// The shell checks each repeated output.
    Checking,
    /// The shell compares the repeated outputs.
    Confirming,
    /// A third session will compute the step, once a part of the budget is free.
    Undecided,
    /// The third session with this number computes the step.
    Deciding(u32),
    /// The shell compares the repeated outputs with that of the third session.
    Weighing(u32),
}

/// A step that two sessions compute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Comparison {
    pub caller: Caller,
    pub order: StepOrder,
    pub phase: ComparisonPhase,
    /// The numbers of the two sessions.
    pub pair: [u32; 2],
    /// The results of both sessions in this phase.
    results: [Option<Result<SessionOutput, SessionFailure>>; 2],
    /// The output of each session, once both are there.
    pub outputs: Vec<SessionOutput>,
    /// The output of each session for the repeated step, once both are there.
    pub repeats: Vec<SessionOutput>,
    /// The output of the third session.
    pub third: Option<SessionOutput>,
    /// Whether each session can be right.
    pub marks: [bool; 2],
    /// The number of the shell's answers that this phase needs.
    pub pending: u32,
}

/// A session of a comparison: its place in the pair. A negative answer clears its mark.
pub(super) type Question = usize;

impl Comparison {
    fn new(caller: Caller, order: StepOrder, pair: [u32; 2]) -> Comparison {
        Comparison {
            caller,
            order,
            phase: ComparisonPhase::Computing,
            pair,
            results: [None, None],
            outputs: Vec::new(),
            repeats: Vec::new(),
            third: None,
            marks: [true; 2],
            pending: 0,
        }
    }

    /// Removes and returns all outputs.
    fn take_outputs(&mut self) -> Vec<OutputId> {
        let results = self.results.iter_mut().filter_map(Option::take);
        let results = results.filter_map(Result::ok);
        let outputs = self.outputs.drain(..).chain(self.repeats.drain(..));
        let all = results.chain(outputs).chain(self.third.take());
        all.map(|it| it.output).collect()
    }
}

impl SessionCore {
    /// Begins a step that two sessions compute.
    pub(super) fn begin_comparison(&mut self, caller: Caller, order: StepOrder, pair: [u32; 2]) {
        let id = self.next_comparison;
        self.next_comparison += 1;
        self.comparisons
            .insert(id, Comparison::new(caller, order.clone(), pair));
        self.request_pair(id, pair, &order);
    }

    /// Returns a comparison that must exist.
    pub(super) fn comparison_mut(&mut self, id: u64) -> &mut Comparison {
        let comparison = self.comparisons.get_mut(&id);
        comparison.expect("a comparison that the core named exists")
    }

    /// Asks both sessions for a step.
    pub(super) fn request_pair(&mut self, id: u64, pair: [u32; 2], order: &StepOrder) {
        for number in pair {
            self.request_step(number, Requester::Comparison(id), order);
        }
    }

    /// Begins a comparison anew, with the sessions in use.
    pub(super) fn begin_again(&mut self, id: u64) {
        let [first, second] = self.active_sessions[..] else {
            return;
        };
        let comparison = self.comparison_mut(id);
        let outputs = comparison.take_outputs();
        let order = comparison.order.clone();
        let pair = [first, second];
        *comparison = Comparison::new(comparison.caller, order.clone(), pair);
        self.unused.extend(outputs);
        if self.judged == Some(id) {
            self.judged = None;
        }
        self.request_pair(id, pair, &order);
    }

    pub(super) fn on_compared_result(
        &mut self,
        id: u64,
        session: u32,
        result: Result<SessionOutput, SessionFailure>,
    ) {
        let Some(comparison) = self.comparisons.get_mut(&id) else {
            self.unused.extend(result.ok().map(|it| it.output));
            return;
        };
        if comparison.phase == ComparisonPhase::Deciding(session) {
            return self.on_third_result(id, session, result);
        }
        let side = comparison.pair.iter().position(|it| *it == session);
        let side = side.expect("only the pair and a third compute a step");
        comparison.results[side] = Some(result);
        if comparison.results.iter().all(Option::is_some) {
            self.on_pair_done(id);
        }
    }

    fn on_pair_done(&mut self, id: u64) {
        let comparison = self.comparison_mut(id);
        let (pair, phase) = (comparison.pair, comparison.phase);
        let results = comparison.results.iter_mut().filter_map(Option::take);
        let (done, failed): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
        let outputs: Vec<SessionOutput> = done.into_iter().filter_map(Result::ok).collect();
        if let Some(failure) = failed.into_iter().find_map(Result::err) {
            self.unused.extend(outputs.into_iter().map(|it| it.output));
            // A session may have left in the meantime.
            return match pair[..] == self.active_sessions[..] {
                true => self.fail_comparison(id, failure),
                false => self.begin_again(id),
            };
        }
        if phase == ComparisonPhase::Repeating {
            self.comparison_mut(id).repeats = outputs;
            return self.on_repeated(id);
        }
        self.comparison_mut(id).outputs = outputs;
        let comparison = self.comparison_mut(id);
        let [left, right] = &comparison.outputs[..] else {
            unreachable!("both sessions have an output");
        };
        let mut shared = left
            .providers
            .iter()
            .filter(|it| right.providers.contains(it));
        if shared.next().is_some() {
            // A provider left one session and worked for the other one since.
            return self.begin_again(id);
        }
        if left.drawn.is_empty() || left.drawn != right.drawn {
            self.await_judgement(id);
        } else if comparison.order.step.logit_rows.is_empty() {
            self.answer_comparison(id, 0);
        } else {
            let (left, right) = (left.output, right.output);
            comparison.phase = ComparisonPhase::Comparing;
            self.compare_outputs(id, 0, [left, right], None);
        }
    }

    /// Asks the shell whether two outputs are close. A negative answer clears the mark of a
    /// session.
    pub(super) fn compare_outputs(
        &mut self,
        id: u64,
        about: Question,
        pair: [OutputId; 2],
        rows: Option<Vec<usize>>,
    ) {
        let [left, right] = pair;
        self.ask_shell(id, about, Action::Compare { left, right, rows });
    }

    /// Asks the shell a question about a session of a comparison.
    pub(super) fn ask_shell(&mut self, id: u64, about: Question, action: Action) {
        self.comparison_mut(id).pending += 1;
        let comparison = id;
        self.push_question(action, Wait::Question { comparison, about });
    }

    pub(super) fn on_question_answered(&mut self, id: u64, about: Question, is_so: bool) {
        let comparison = self.comparison_mut(id);
        comparison.marks[about] &= is_so;
        comparison.pending -= 1;
        if comparison.pending > 0 {
            return;
        }
        match comparison.phase {
            ComparisonPhase::Comparing if is_so => self.answer_comparison(id, 0),
            ComparisonPhase::Comparing => self.await_judgement(id),
            _ => self.advance_phase(id),
        }
    }

    fn await_judgement(&mut self, id: u64) {
        self.comparison_mut(id).phase = ComparisonPhase::Unjudged;
        self.unjudged.push_back(id);
    }

    /// Gives the caller the output of a session, by its place in the pair.
    pub(super) fn answer_comparison(&mut self, id: u64, side: usize) {
        let output = self.comparison_mut(id).outputs.swap_remove(side).output;
        let caller = self.remove_comparison(id);
        self.push_effect(Action::Answer { caller, output });
    }

    /// Reports to the caller that the step has no output.
    pub(super) fn fail_comparison(&mut self, id: u64, failure: SessionFailure) {
        let caller = self.remove_comparison(id);
        self.push_effect(Action::Fail { caller, failure });
    }

    fn remove_comparison(&mut self, id: u64) -> Caller {
        let comparison = self.comparisons.remove(&id);
        let mut comparison = comparison.expect("a comparison that the core named exists");
        self.unused.extend(comparison.take_outputs());
        if self.judged == Some(id) {
            self.judged = None;
        }
        comparison.caller
    }

    /// Fails all comparisons, because the sessions are finished.
    pub(super) fn end_comparisons(&mut self) {
        self.stop_effects(|wait| matches!(wait, Wait::Question { .. }));
        self.unjudged.clear();
        let ids: Vec<u64> = self.comparisons.keys().copied().collect();
        for id in ids {
            self.fail_comparison(id, SessionFailure::Finished);
        }
    }
}
