//! The steps of one sequence (text) of a session: the step that a caller waits for, the steps that
//! the provider runs, and the finished steps that nobody has asked for yet.
//!
//! A sequence sends steps ahead of the caller: while the buyer reads one token, the provider
//! already computes the next. Such a step contains no token, so that the provider continues with
//! the token that it drew last. If the caller then asks for a different step, the steps sent ahead
//! become stale, and the sequence drops their outputs.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;

use super::event::{Caller, OutputId};
use super::look_ahead::LookAhead;
use super::step::Step;
use super::token_history::TokenHistory;
use crate::clock::Micros;

/// Who waits for a step of a session.
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
    /// The index, among the session's jobs, of the job that computed it.
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
    /// The step. If it was sent ahead, it has no tokens until the step before it is done.
    step: Step,
    is_stale: bool,
    since: Micros,
}

/// A sequence and its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SessionSequence {
    history: TokenHistory,
    /// The step that a requester waits for.
    awaited: Option<AskedStep>,
    /// Running steps in the order in which they were sent. All stale ones precede the others.
    running: VecDeque<RunningStep>,
    /// Steps sent ahead that are finished, and that no caller has asked for yet.
    early: VecDeque<(Step, SessionOutput)>,
    /// The maximum number of tokens of the sequence.
    positions: usize,
}

impl SessionSequence {
    /// Creates an empty sequence for at most `positions` tokens. A step replays at most
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

    /// Asks for a step after the tokens `before`. If its output is already there, returns it. Adds
    /// the outputs that nobody needs any more to `unused`.
    pub fn request_step(
        &mut self,
        before: &[u32],
        asked: AskedStep,
        ahead: &mut LookAhead,
        unused: &mut Vec<OutputId>,
    ) -> Option<SessionOutput> {
        let step = &asked.step;
        let is_other_text = self.history.go_back(before, step.after);
        let first_early = self.early.front().filter(|_| !is_other_text);
        if first_early.is_some_and(|(early, _)| early == step) {
            let (_, output) = self.early.pop_front()?;
            self.history.on_done(step);
            return Some(output);
        }
        let running = self.running.iter().find(|running| !running.is_stale);
        let is_running =
            self.early.is_empty() && running.is_some_and(|running| running.step == *step);
        if is_other_text || !is_running {
            if running.is_some() || !self.early.is_empty() {
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
        for running in &mut self.running {
            running.is_stale = true;
        }
    }

    /// Returns the step that a requester waits for.
    pub fn awaited_step(&self) -> Option<&AskedStep> {
        self.awaited.as_ref()
    }

    /// Removes the step that a requester waits for, and returns the requester.
    pub fn give_up(&mut self) -> Option<Requester> {
        self.awaited.take().map(|asked| asked.requester)
    }

    /// Prepares the sequence for a new session, whose caches are empty.
    pub fn begin_anew(&mut self, unused: &mut Vec<OutputId>) {
        self.history.begin_anew();
        self.running.clear();
        self.drop_early(unused);
    }

    /// Returns whether no step runs, except stale ones.
    pub fn is_idle(&self) -> bool {
        self.running.iter().all(|running| running.is_stale)
    }

    /// Returns the next step to send: the one that a requester waits for, or one ahead of it.
    pub fn next_step(&self, ahead: &LookAhead) -> Option<Step> {
        let mut fresh = self.running.iter().filter(|running| !running.is_stale);
        let steps_ahead = self.early.len() + fresh.clone().count();
        let Some(last) = fresh.next_back() else {
            let asked = self.awaited.as_ref()?;
            return Some(self.history.next_step(&asked.step));
        };
        let next = last.step.after_it();
        let next = next.filter(|next| next.after < self.positions);
        // No step can run ahead while the tokens are being replayed.
        next.filter(|_| self.history.is_whole() && steps_ahead < ahead.steps())
    }

    /// Records that the step of [`Self::next_step`] was sent.
    pub fn on_sent(&mut self, step: Step, since: Micros) {
        self.running.push_back(RunningStep {
            step,
            is_stale: false,
            since,
        });
    }

    /// Records that the first running step is done. If a requester waits for it, returns the
    /// requester and the output. Adds the output to `unused` if nobody needs it.
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
            // Without a valid token no step can continue. The caller reports the fault.
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
