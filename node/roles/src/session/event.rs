//! The events that happen to sessions, and the answers to the core's actions.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, JobId};

use super::step::Step;
use crate::effect::Ticket;
use crate::job::{End, Reason, Spending};

/// A caller that waits for a step or for the end. The shell must never use a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Caller(pub u64);

/// The outputs of one step, which stay in the shell. It must never use a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OutputId(pub u64);

/// An event that happens to sessions.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A caller wants a step. [`super::Action::Answer`] or [`super::Action::Fail`] follows. The
    /// caller must not send the next step of a sequence before that.
    Step {
        /// The caller.
        caller: Caller,
        /// The number of the sequence.
        sequence: u32,
        /// All tokens before the step. It can be empty if the core has them from earlier steps and
        /// does not compare sessions.
        before: Vec<u32>,
        /// The step; its tokens must be known.
        step: Step,
    },
    /// A caller wants all sessions closed. [`super::Action::Finished`] follows. The next step buys
    /// other sessions, from any provider.
    Finish {
        /// The caller.
        caller: Caller,
    },
    /// The user stops the text. The core buys no session after that.
    Stop,
    /// A step of a session is done. The answers of one sequence come in the order of its steps.
    Answered {
        /// The session's number.
        session: u32,
        /// The number of the step in the session's open job.
        request: u32,
        /// The step's outputs.
        output: OutputId,
        /// The tokens that it draws, one for each row; empty if it draws none.
        drawn: Vec<i64>,
    },
    /// The job of a session could not begin, and bought nothing.
    NotOpened {
        /// The session's number.
        session: u32,
    },
    /// The job of a session is over; no more answers of it follow.
    Ended {
        /// The session's number.
        session: u32,
        /// The job's id.
        job: JobId,
        /// How it ended; none if it answered all of its requests.
        how: Option<End>,
        /// The earlier failures that the job recovered from.
        before: Vec<Reason>,
        /// The cost of the job.
        spending: Spending,
    },
    /// A moment that the core requested is here.
    TimerFired,
    /// The answer to an effect.
    EffectAnswered {
        /// The effect's ticket.
        ticket: Ticket,
        /// The answer to that effect.
        answer: Answer,
    },
}

/// The answer to an effect. Each [`super::Action`] lists its answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The plan of a session, or why there is none.
    Quoted(Result<Choice, QuoteFailure>),
    /// The cost of each job; none if no market answered.
    Spent(Vec<(JobId, Option<Spending>)>),
    /// Whether all logits of two outputs are close.
    Compared(bool),
    /// Whether each drawn token follows from its logits.
    Checked(bool),
}

/// The providers that a quote chose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Their accounts.
    pub providers: Vec<AccountKey>,
}

/// Why there is no quote. The shell keeps the text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuoteFailure {
    /// Whether the budget cannot pay for any ask.
    pub is_short: bool,
}
