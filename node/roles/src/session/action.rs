//! The effects that a session core requests, each with its possible answers.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, JobId};

use super::event::{Caller, OutputId};
use super::failure::SessionFailure;
use super::step::Step;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::job::End;

/// An effect that the session core requests. The shell must begin the effects of one session in
/// their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Plan a session over the current book. Answer: `Quoted`.
    Quote {
        /// The session's number.
        session: u32,
        /// The credits that the session can spend; none for no limit.
        budget: Option<Credits>,
        /// The providers from which the session must not buy.
        excluded: Vec<AccountKey>,
        /// The least time to wait for devices that others have leased; none for the time that the
        /// user allows.
        wait_longer: Option<Micros>,
    },
    /// Buy the last quote of this session, and begin its job. No answer; [`super::Event::Ended`]
    /// follows, or [`super::Event::NotOpened`] if the job cannot begin.
    Open {
        /// The session's number.
        session: u32,
        /// The number of steps that can run at a time.
        window: u32,
    },
    /// Send a step to the open job of a session. The job numbers its requests from 0 in the order
    /// of these actions. [`super::Event::Answered`] follows, unless the job ends first: then the
    /// shell must drop the step.
    SendStep {
        /// The session's number.
        session: u32,
        /// The number of the sequence.
        sequence: u32,
        /// The step.
        step: Step,
    },
    /// Stop the open job of a session at once. No answer; [`super::Event::Ended`] follows.
    Cancel {
        /// The session's number.
        session: u32,
    },
    /// No more steps follow for the open job of a session. No answer; [`super::Event::Ended`]
    /// follows.
    Close {
        /// The session's number.
        session: u32,
    },
    /// Look up what the market says about the cost of ended jobs. Answer: `Spent`.
    LookUpSpending {
        /// The jobs that can still return credits.
        jobs: Vec<JobId>,
    },
    /// Give a caller the output of its step. The core does not mention the output again. No answer.
    Answer {
        /// The caller that waits for the step.
        caller: Caller,
        /// The output of the step.
        output: OutputId,
    },
    /// Report to a caller that its step has no output. No answer.
    Fail {
        /// The caller that waits for the step.
        caller: Caller,
        /// The reason.
        failure: SessionFailure,
    },
    /// Drop an output that no caller needs. The core does not mention it again. No answer.
    Drop {
        /// The output.
        output: OutputId,
    },
    /// Compare the logits of two outputs. They are close if they have the same shape and differ by
    /// no more than the tolerance. Answer: `Compared`.
    Compare {
        /// The first output.
        left: OutputId,
        /// The second output.
        right: OutputId,
        /// The rows of `right` that `left` has, in this order; none if both have the same rows.
        rows: Option<Vec<usize>>,
    },
    /// Check that each token that an output draws follows from the logits of the same output.
    /// Answer: `Checked`.
    Check {
        /// The output.
        output: OutputId,
        /// The step that it belongs to, which wants all logits.
        step: Step,
    },
    /// Report an event to people. No answer.
    Notify(Notice),
    /// The sessions are closed, and their receipts are complete. No answer.
    Finished {
        /// The caller that wanted it.
        caller: Caller,
        /// The reason why the sessions failed, if they did.
        failure: Option<SessionFailure>,
    },
    /// Cancel an effect, which must then send no answer. No answer to this either.
    Stop(Ticket),
}

/// An event of a session that people see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A session failed, and the core buys another one.
    Replaced {
        /// The session's number.
        session: u32,
        /// How its job ended.
        end: End,
    },
    /// A session computed all steps that it was bought for, and the core buys another one.
    UsedUp {
        /// The session's number.
        session: u32,
    },
    /// A session drew a token that the model does not have, and leaves.
    FalseToken {
        /// The session's number.
        session: u32,
    },
    /// Two sessions differ, and a third decides.
    Differ {
        /// The numbers of the two sessions.
        sessions: [u32; 2],
        /// The position of the token that differs.
        position: usize,
    },
    /// A third session disagreed with this one, which leaves.
    Outvoted {
        /// The session's number.
        session: u32,
        /// The position of the token that differs.
        position: usize,
    },
}
