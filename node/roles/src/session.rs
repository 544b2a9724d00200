//! One use of a language model by a buyer: this core decides which sessions to buy, which steps to
//! send to them, and which outputs its callers get.
//!
//! A *session* is a job whose providers keep the caches of a language model between requests. A
//! *step* adds tokens to one of its sequences and returns the tokens drawn after them. A caller is
//! a part of the buyer's program that waits for a step; the shell is `node/texts`. The buyer's
//! tokens are the source of truth: if a provider fails, the core spends the remaining budget on a
//! session with other providers, and replays the tokens into its caches. The core owns one session,
//! or two that compute each step and must agree; if they differ, a third decides which one leaves.
//!
//! ```text
//! a session:  Idle -> Queued -> LookingUpSpending -> Quoting -> Open -> Idle, and again
//!             Quoting -> WaitingForCredits -> LookingUpSpending
//!             Open -> Closing -> Idle
//! ```
//! Files:
//! - `event`, `action`, `failure`, `step`: the inputs and outputs of the core.
//! - `buying` chooses providers, `running` sends steps and replaces sessions that end, `comparing`
//!   compares two sessions, `judging` decides which one is right, and `finishing` closes them.
//! - `text_session` is the state of one session, `sequence` of one of its sequences,
//!   `token_history` of the tokens of that sequence, `session_budget` of the credits, and `sellers`
//!   of the providers that each session must avoid.
//! - `look_ahead` limits the steps that run before a caller asks for them.

pub mod action;
mod buying;
mod closing;
mod comparing;
pub mod event;
pub mod failure;
mod judging;
mod look_ahead;
mod running;
mod sellers;
mod sequence;
mod session_budget;
pub mod step;
#[cfg(test)]
pub(crate) mod tests;
mod text_session;
mod token_history;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits};

use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, PendingEffects};

pub use action::{Action, Notice};
pub use event::{Answer, Caller, Choice, Event, OutputId, QuoteFailure};
pub use failure::SessionFailure;
pub use step::Step;

use comparing::{Comparison, Question};
use sellers::SessionSellers;
use sequence::{Requester, SessionOutput};
use session_budget::SessionBudget;
use text_session::{Stage, StepOrder, TextSession};

/// The size and the limits of one use of a language model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfig {
    /// The most that all sessions may ever cost; none for no limit.
    pub budget: Option<Credits>,
    /// The number of positions of each sequence.
    pub positions: usize,
    /// The number of sequences.
    pub sequences: u32,
    /// The number of the model's tokens: an honest provider draws only tokens below it.
    pub vocabulary: u32,
    /// The most steps of a session that can run at a time.
    pub window_max: u32,
    /// The number of sessions that compute each step, 1 or 2: with two, the core compares their
    /// outputs.
    pub sessions_per_step: u32,
    /// The most tokens of one step that replays a sequence.
    pub replay_tokens_max: usize,
}

/// The core that decides about the sessions of one use of a language model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionCore {
    config: SessionConfig,
    now: Micros,
    is_stopped: bool,
    sessions: BTreeMap<u32, TextSession>,
    /// The numbers of the sessions that compute each step: as many as
    /// [`SessionConfig::sessions_per_step`].
    active_sessions: Vec<u32>,
    next_session: u32,
    /// The parts of the budget that no session has.
    spare: Vec<SessionBudget>,
    sellers: SessionSellers,
    /// The session that chooses its providers.
    choosing: Option<u32>,
    /// The sessions that wait to choose.
    choosers: VecDeque<u32>,
    comparisons: BTreeMap<u64, Comparison>,
    next_comparison: u64,
    /// The comparison that is judged.
    judged: Option<u64>,
    /// The comparisons that wait for a judgement.
    unjudged: VecDeque<u64>,
    /// The failure of a comparison.
    failure: Option<SessionFailure>,
    /// The callers that wait for the end of all sessions.
    finishers: Vec<Caller>,
    /// The steps that wait for that end.
    postponed: BTreeMap<Caller, StepOrder>,
    /// The results of steps that their requesters have not seen yet.
    results: VecDeque<StepResult>,
    /// The outputs to drop.
    unused: Vec<OutputId>,
    timers: Timers<u32>,
    pending: PendingEffects<Wait>,
    #[serde(skip)]
    effects: Vec<Effect<Action>>,
}

/// The result of a step of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StepResult {
    session: u32,
    requester: Requester,
    result: Result<SessionOutput, SessionFailure>,
}

/// The purpose of a pending answer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Wait {
    /// The quote of a session.
    Quote(u32),
    /// The credits that came back to a session.
    Spending(u32),
    /// A question of a comparison.
    Question { comparison: u64, about: Question },
}

impl SessionCore {
    /// Creates a core whose sessions have no providers yet: the first step buys them.
    #[must_use]
    pub fn new(config: SessionConfig) -> SessionCore {
        let is_compared = config.sessions_per_step > 1;
        // The budget covers the two sessions and one that decides between them.
        let parts = if is_compared { 3 } else { 1 };
        let part = config.budget.map(|budget| Credits(budget.0 / parts));
        let mut spare: Vec<SessionBudget> = (0..parts).map(|_| SessionBudget::new(part)).collect();
        let active_sessions: Vec<u32> = if is_compared { vec![0, 1] } else { vec![0] };
        let budgets = active_sessions
            .iter()
            .zip(spare.drain(..active_sessions.len()));
        let new = |(number, budget): (&u32, SessionBudget)| {
            let session = TextSession::new(budget, config.positions, config.replay_tokens_max);
            (*number, session)
        };
        let sessions: BTreeMap<u32, TextSession> = budgets.map(new).collect();
        SessionCore {
            now: Micros::default(),
            is_stopped: false,
            next_session: sessions.len() as u32,
            sessions,
            active_sessions,
            spare,
            sellers: SessionSellers::default(),
            choosing: None,
            choosers: VecDeque::new(),
            comparisons: BTreeMap::new(),
            next_comparison: 0,
            judged: None,
            unjudged: VecDeque::new(),
            failure: None,
            finishers: Vec::new(),
            postponed: BTreeMap::new(),
            results: VecDeque::new(),
            unused: Vec::new(),
            timers: Timers::default(),
            pending: PendingEffects::default(),
            effects: Vec::new(),
            config,
        }
    }

    /// Applies an event and returns the effects to carry out, in this order.
    pub fn apply(&mut self, now: Now, event: Event) -> Vec<Effect<Action>> {
        self.now = now.tick.max(self.now);
        self.handle_event(event);
        while self.take_step() {}
        for output in std::mem::take(&mut self.unused) {
            self.push_effect(Action::Drop { output });
        }
        self.assert_bounds();
        std::mem::take(&mut self.effects)
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Step {
                caller,
                sequence,
                before,
                step,
            } => {
                let order = StepOrder {
                    sequence,
                    before,
                    step,
                };
                self.on_step(caller, order);
            }
            Event::Finish { caller } => self.on_finish(caller),
            Event::Stop => self.on_stop(),
            Event::Answered {
                session,
                request,
                output,
                drawn,
            } => self.on_answered(session, request, output, drawn),
            Event::NotOpened { session } => self.on_not_opened(session),
            Event::Ended {
                session,
                job,
                how,
                before,
                spending,
            } => {
                if self.has_job(session) {
                    self.on_spending(session, job, spending);
                    self.on_ended(session, how, before);
                }
            }
            Event::TimerFired => {
                while let Some(session) = self.timers.pop(self.now) {
                    self.look_up_spending(session);
                }
            }
            Event::EffectAnswered { ticket, answer } => {
                if let Some(wait) = self.pending.take_wait(ticket) {
                    self.on_answer(wait, answer);
                }
            }
        }
    }

    fn on_step(&mut self, caller: Caller, order: StepOrder) {
        if self.is_busy(order.sequence) {
            let failure = SessionFailure::Busy;
            return self.push_effect(Action::Fail { caller, failure });
        }
        if !self.finishers.is_empty() {
            self.postponed.insert(caller, order);
            return;
        }
        self.begin_step(caller, order);
    }

    /// Begins a step once no end of the sessions is waited for.
    fn begin_step(&mut self, caller: Caller, order: StepOrder) {
        match self.active_sessions[..] {
            [first, second] => self.begin_comparison(caller, order, [first, second]),
            _ => self.request_step(self.active_sessions[0], Requester::Caller(caller), &order),
        }
    }

    fn is_busy(&self, sequence: u32) -> bool {
        let mut compared = self.comparisons.values();
        let mut postponed = self.postponed.values();
        self.sessions[&self.active_sessions[0]].is_waiting_for(sequence)
            || compared.any(|it| it.order.sequence == sequence)
            || postponed.any(|it| it.sequence == sequence)
    }

    fn on_answer(&mut self, wait: Wait, answer: Answer) {
        match (wait, answer) {
            (Wait::Quote(session), Answer::Quoted(quoted)) => self.on_quoted(session, quoted),
            (Wait::Spending(session), Answer::Spent(spent)) => self.on_spent(session, &spent),
            (
                Wait::Question { comparison, about },
                Answer::Compared(is_so) | Answer::Checked(is_so),
            ) => self.on_question_answered(comparison, about, is_so),
            (wait, answer) => unreachable!("{answer:?} does not answer {wait:?}"),
        }
    }

    /// Takes one step that needs no event. Returns whether another may follow.
    fn take_step(&mut self) -> bool {
        if let Some(result) = self.results.pop_front() {
            self.on_result(result);
            return true;
        }
        let numbers: Vec<u32> = self.sessions.keys().copied().collect();
        numbers
            .into_iter()
            .any(|number| self.advance_session(number))
            || self.begin_choice()
            || self.advance_judgement()
            || self.end_finish()
    }

    fn on_result(&mut self, result: StepResult) {
        let StepResult {
            session,
            requester,
            result,
        } = result;
        match (requester, result) {
            (Requester::Caller(caller), Ok(SessionOutput { output, .. })) => {
                self.push_effect(Action::Answer { caller, output });
            }
            (Requester::Caller(caller), Err(failure)) => {
                self.push_effect(Action::Fail { caller, failure });
            }
            (Requester::Comparison(id), result) => self.on_compared_result(id, session, result),
        }
    }

    /// Returns the moment at which you must send [`Event::TimerFired`], if any.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// Returns the accounts of the providers from which the sessions in use bought last. You can
    /// report them to people.
    #[must_use]
    pub fn provider_accounts(&self) -> Vec<AccountKey> {
        let active_sessions = self.active_sessions.iter();
        let accounts = active_sessions.flat_map(|number| self.sellers.session_accounts(*number));
        accounts.copied().collect()
    }

    fn push_effect(&mut self, action: Action) {
        let ticket = self.pending.new_ticket();
        self.effects.push(Effect { ticket, action });
    }

    fn push_question(&mut self, action: Action, wait: Wait) {
        let ticket = self.pending.open_wait(wait);
        self.effects.push(Effect { ticket, action });
    }

    /// Stops the effects whose purposes `is_over` selects.
    fn stop_effects(&mut self, is_over: impl FnMut(&Wait) -> bool) {
        for ticket in self.pending.forget_waits(is_over) {
            self.push_effect(Action::Stop(ticket));
        }
    }

    /// Returns a session that must exist.
    fn session_mut(&mut self, number: u32) -> &mut TextSession {
        let session = self.sessions.get_mut(&number);
        session.expect("a session that the core named exists")
    }

    fn has_job(&self, number: u32) -> bool {
        let session = self.sessions.get(&number);
        session.is_some_and(|it| matches!(it.stage, Stage::Open | Stage::Closing))
    }

    fn assert_bounds(&self) {
        let mut sessions = self.sessions.values();
        assert!(sessions.all(TextSession::is_within_window));
    }
}
