//! The state of one session: its sequences, its open job and its budget. If the user wants the
//! results checked, two sessions compute the same text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;

use super::event::OutputId;
use super::failure::SessionFailure;
use super::look_ahead::LookAhead;
use super::sequence::{AskedStep, Requester, SessionOutput, SessionSequence};
use super::session_budget::SessionBudget;
use super::step::Step;
use crate::clock::Micros;
use crate::job::{End, Reason};

/// A step of a sequence, and all tokens before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StepOrder {
    pub sequence: u32,
    pub before: Vec<u32>,
    pub step: Step,
}

/// The stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// It has no job, and nothing waits for one.
    Idle,
    /// It waits until no other session chooses providers.
    Queued,
    /// The shell looks up which credits came back.
    LookingUpSpending,
    /// The shell plans it.
    Quoting,
    /// Its budget is too small until credits come back.
    WaitingForCredits,
    /// Its job runs.
    Open,
    /// Its job runs and gets no more steps.
    Closing,
}

/// The choice of the providers of a session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Purchase {
    /// Whether it replaces a session whose devices and credits can come back.
    pub is_replacement: bool,
    /// The time since which it waits for credits.
    pub short_since: Option<Micros>,
    /// Whether its quote is the last one.
    pub is_last: bool,
}

/// The job of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenJob {
    window: usize,
    next_request: u32,
    /// The sequence of each running step, by the step's number.
    running: BTreeMap<u32, u32>,
    pub is_cancelled: bool,
    /// Whether it drew a token that the model does not have, so the session cancelled it.
    pub is_false: bool,
}

/// The end of a session's job, which no other job has replaced yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobEnd {
    /// How it ended; none if it answered all requests.
    pub how: Option<End>,
    pub before: Vec<Reason>,
    /// Whether the session cancelled it because of a token that the model does not have.
    pub is_false: bool,
}

/// A session and its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TextSession {
    pub stage: Stage,
    pub budget: SessionBudget,
    pub purchase: Purchase,
    pub open: Option<OpenJob>,
    pub end: Option<JobEnd>,
    /// Whether it leaves the text once it is closed.
    pub is_leaving: bool,
    /// The number of its jobs so far.
    pub openings: u32,
    /// The providers of the last job.
    providers: Vec<AccountKey>,
    /// The sessions that were bought since the last token.
    pub bought: u32,
    /// The sessions since the last token whose providers report that the input does not fit the
    /// model.
    pub blamed: u32,
    /// The last failure.
    pub failure: Option<SessionFailure>,
    sequences: BTreeMap<u32, SessionSequence>,
    ahead: LookAhead,
    asks: u64,
    positions: usize,
    replay_tokens_max: usize,
}

impl TextSession {
    /// Creates a session without a job. Each sequence has so many positions, and is replayed in
    /// chunks.
    pub fn new(budget: SessionBudget, positions: usize, replay_tokens_max: usize) -> TextSession {
        TextSession {
            stage: Stage::Idle,
            budget,
            purchase: Purchase::default(),
            open: None,
            end: None,
            is_leaving: false,
            openings: 0,
            providers: Vec::new(),
            bought: 0,
            blamed: 0,
            failure: None,
            sequences: BTreeMap::new(),
            ahead: LookAhead::new(1),
            asks: 0,
            positions,
            replay_tokens_max,
        }
    }

    /// Returns whether a step is waited for.
    pub fn is_waiting(&self) -> bool {
        self.sequences
            .values()
            .any(|it| it.awaited_step().is_some())
    }

    /// Returns whether a step of this sequence is waited for.
    pub fn is_waiting_for(&self, sequence: u32) -> bool {
        let sequence = self.sequences.get(&sequence);
        sequence.is_some_and(|it| it.awaited_step().is_some())
    }

    /// Asks for a step of a sequence, which must have none in progress. If its output is already
    /// there, returns it.
    pub fn request_step(
        &mut self,
        order: &StepOrder,
        requester: Requester,
        unused: &mut Vec<OutputId>,
    ) -> Result<Option<SessionOutput>, SessionFailure> {
        let step = order.step.clone();
        let sequence = self.sequences.entry(order.sequence);
        let sequence = sequence
            .or_insert_with(|| SessionSequence::new(self.positions, self.replay_tokens_max));
        if !step.has_known_tokens() || !sequence.is_known_before(&order.before, step.after) {
            return Err(SessionFailure::UnknownTokens);
        }
        self.asks += 1;
        let asked = AskedStep {
            step,
            requester,
            order: self.asks,
        };
        Ok(sequence.request_step(&order.before, asked, &mut self.ahead, unused))
    }

    /// Removes and returns all that wait.
    pub fn give_up(&mut self) -> Vec<Requester> {
        let sequences = self.sequences.values_mut();
        sequences.filter_map(SessionSequence::give_up).collect()
    }

    /// Records that the session has a new job of these providers with this window, which computes
    /// at most `ahead` steps of a sequence at a time.
    pub fn on_opened(&mut self, providers: Vec<AccountKey>, window: usize, ahead: usize) {
        self.providers = providers;
        self.stage = Stage::Open;
        self.openings += 1;
        self.ahead = LookAhead::new(ahead);
        self.open = Some(OpenJob {
            window,
            next_request: 0,
            running: BTreeMap::new(),
            is_cancelled: false,
            is_false: false,
        });
    }

    /// Records that the job of the session is over.
    pub fn on_over(&mut self, unused: &mut Vec<OutputId>) {
        self.open = None;
        for sequence in self.sequences.values_mut() {
            sequence.begin_anew(unused);
        }
    }

    /// Forgets all sequences, and what happened since the last token.
    pub fn forget_sequences(&mut self, unused: &mut Vec<OutputId>) {
        for sequence in self.sequences.values_mut() {
            sequence.begin_anew(unused);
        }
        self.sequences.clear();
        (self.bought, self.blamed) = (0, 0);
    }

    /// Returns the next step to send and its sequence, and records it as sent: the step that waits
    /// longest, or else one ahead. Returns none if the window has no room.
    pub fn send_step(&mut self, now: Micros) -> Option<(u32, Step)> {
        let open = self.open.as_mut()?;
        if open.running.len() >= open.window || open.is_cancelled {
            return None;
        }
        let asked = self.sequences.iter().filter(|(_, it)| it.is_idle());
        let asked = asked.filter_map(|(number, it)| Some((it.awaited_step()?.order, *number)));
        let first = asked.min().map(|(_, number)| number);
        let mut numbers = first.into_iter().chain(self.sequences.keys().copied());
        let (number, step) = numbers.find_map(|number| {
            let step = self.sequences.get(&number)?.next_step(&self.ahead)?;
            Some((number, step))
        })?;
        let sequence = self.sequences.get_mut(&number)?;
        sequence.on_sent(step.clone(), now);
        open.running.insert(open.next_request, number);
        open.next_request += 1;
        Some((number, step))
    }

    /// Records the output of a running step. Returns it and the one that waits for it, if any.
    pub fn on_answered(
        &mut self,
        request: u32,
        output: OutputId,
        drawn: Vec<i64>,
        now: Micros,
        unused: &mut Vec<OutputId>,
    ) -> Option<(Requester, SessionOutput)> {
        let open = self.open.as_mut();
        let number = open.and_then(|open| open.running.remove(&request));
        let sequence = number.and_then(|number| self.sequences.get_mut(&number));
        let Some(sequence) = sequence else {
            unused.push(output);
            return None;
        };
        let output = SessionOutput {
            output,
            drawn,
            opening: self.openings,
            providers: self.providers.clone(),
        };
        sequence.on_done(output, now, &mut self.ahead, unused)
    }

    /// Records that the open job drew a token that the model does not have. Returns its providers
    /// the first time.
    pub fn on_false_token(&mut self) -> Option<&[AccountKey]> {
        let open = self.open.as_mut()?;
        let is_new = !std::mem::replace(&mut open.is_false, true);
        is_new.then_some(&self.providers)
    }

    /// Returns whether the open job drew a token that the model does not have.
    pub fn is_false(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_false)
    }

    /// Returns whether no more steps run than the window allows.
    pub fn is_within_window(&self) -> bool {
        let open = self.open.as_ref();
        open.is_none_or(|open| open.running.len() <= open.window)
    }
}
