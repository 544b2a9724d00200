//! Runs one sequence of a session: queues the steps that its callers ask for, and sends steps ahead
//! of them.
//!
//! If a step contains no token, the provider continues with the token that it drew last. So this
//! file sends steps ahead: while the buyer reads one token, the provider computes the next. If the
//! caller asks for a different step, those sent ahead become stale, and this file drops their
//! answers.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;

use super::event::{Caller, OutputId};
use super::look_ahead::LookAhead;
use super::step::Step;
use super::token_history::TokenHistory;
use crate::clock::Micros;

/// The one that waits for a step of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Requester {
    /// A caller of the core.
    Caller(Caller),
    /// The comparison with this number.
    Comparison(u64),
}

/// The output of a step of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionOutput {
    pub output: OutputId,
    /// The tokens that the step draws.
    pub drawn: Vec<i64>,
    /// The number of the session's job, among its jobs.
    pub opening: u32,
    /// The providers of that job.
    pub providers: Vec<AccountKey>,
}

/// A step that a requester waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AskedStep {
    pub step: Step,
    pub requester: Requester,
    /// Its number among the steps that were asked of the session.
    pub order: u64,
}

/// A running step.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunningStep {
    /// The step. If it continues with the token that the step before it draws, its tokens are
    /// unknown until that one is done.
    step: Step,
    is_stale: bool,
    since: Micros,
}

/// A sequence and its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SessionSequence {
    history: TokenHistory,
    awaited: Option<AskedStep>,
    /// Running steps, in their order: stale ones, then the others.
    running: VecDeque<RunningStep>,
    /// Finished steps that the caller has not asked for yet.
    early: VecDeque<(Step, SessionOutput)>,
    /// The number of positions of the sequence.
    positions: usize,
}

impl SessionSequence {
    /// Creates an empty sequence with this number of positions. A step replays at most
    /// `replay_tokens_max` tokens.
    pub fn new(positions: usize, replay_tokens_max: usize) -> SessionSequence {
        SessionSequence {
            history: TokenHistory::new(replay_tokens_max),
            awaited: None,
            running: VecDeque::new(),
            early: VecDeque::new(),
            positions,
        }
    }

    /// Returns whether the tokens before position `after` are known.
    pub fn is_known_before(&self, before: &[u32], after: usize) -> bool {
        self.history.is_known_before(before, after)
    }

    /// Asks for a step after the tokens `before`. If its output is already there, returns it.
    pub fn request_step(
        &mut self,
        before: &[u32],
        asked: AskedStep,
        ahead: &mut LookAhead,
        unused: &mut Vec<OutputId>,
    ) -> Option<SessionOutput> {
        let step = &asked.step;
        let is_other_text = self.history.go_back(before, step.after);
        let early = self.early.front().filter(|_| !is_other_text);
        if early.is_some_and(|(early, _)| early == step) {
            let (_, output) = self.early.pop_front()?;
            self.history.on_done(step);
            return Some(output);
        }
        let next = self.running.iter().find(|running| !running.is_stale);
        let is_next = self.early.is_empty() && next.is_some_and(|next| next.step == *step);
        if is_other_text || !is_next {
            if next.is_some() || !self.early.is_empty() {
                ahead.restart();
            }
            self.drop_early(unused);
            self.mark_stale();
        }
        self.awaited = Some(asked);
        None
    }

    fn drop_early(&mut self, unused: &mut Vec<OutputId>) {
        unused.extend(self.early.drain(..).map(|(_, early)| early.output));
    }

    fn mark_stale(&mut self) {
        self.running.iter_mut().for_each(|it| it.is_stale = true);
    }

    /// Returns the step that is waited for.
    pub fn awaited_step(&self) -> Option<&AskedStep> {
        self.awaited.as_ref()
    }

    /// Removes and returns the one that waits.
    pub fn give_up(&mut self) -> Option<Requester> {
        self.awaited.take().map(|asked| asked.requester)
    }

    /// Prepares the sequence for a new session, whose caches are empty.
    pub fn begin_anew(&mut self, unused: &mut Vec<OutputId>) {
        self.history.begin_anew();
        self.running.clear();
        self.drop_early(unused);
    }

    /// Returns whether no step of those that it needs runs.
    pub fn is_idle(&self) -> bool {
        self.running.iter().all(|running| running.is_stale)
    }

    /// Returns the next step to send: the one asked for, or one further ahead.
    pub fn next_step(&self, ahead: &LookAhead) -> Option<Step> {
        let mut fresh = self.running.iter().filter(|running| !running.is_stale);
        let steps = self.early.len() + fresh.clone().count();
        let Some(last) = fresh.next_back() else {
            let asked = self.awaited.as_ref()?;
            return Some(self.history.next_step(&asked.step));
        };
        let next = last.step.after_it();
        let next = next.filter(|next| next.after < self.positions);
        // No step can run ahead while the tokens are being replayed.
        next.filter(|_| self.history.is_whole() && steps < ahead.steps())
    }

    /// Records that the step of [`Self::next_step`] was sent.
    pub fn on_sent(&mut self, step: Step, since: Micros) {
        self.running.push_back(RunningStep {
            step,
            is_stale: false,
            since,
        });
    }

    /// Records that the first running step is done. Returns the output and the one that waits, if
    /// it is the output of the step asked for.
    pub fn on_done(
        &mut self,
        output: SessionOutput,
        now: Micros,
        ahead: &mut LookAhead,
        unused: &mut Vec<OutputId>,
    ) -> Option<(Requester, SessionOutput)> {
        let Some(done) = self.running.pop_front() else {
            unused.push(output.output);
            return None;
        };
        if done.step.tokens.len() == 1 {
            ahead.adapt_steps(now.since(done.since));
        }
        if done.is_stale {
            unused.push(output.output);
            return None;
        }
        let drawn = output.drawn.last();
        let drawn = drawn.and_then(|token| u32::try_from(*token).ok());
        match (self.running.front_mut(), drawn) {
            (Some(next), Some(token)) => next.step.tokens = vec![token],
            // The caller learns of the fault; no step can continue from it.
            (_, None) => self.mark_stale(),
            (None, Some(_)) => {}
        }
        let Some(asked) = self.awaited.take() else {
            self.early.push_back((done.step, output));
            return None;
        };
        if self.history.on_done(&asked.step) {
            return Some((asked.requester, output));
        }
        self.awaited = Some(asked);
        unused.push(output.output);
        None
    }
}
