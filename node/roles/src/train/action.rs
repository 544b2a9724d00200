//! The effects that the core of a training run requests of its shell, in the order in which the
//! shell must carry them out.

use souk_market::{AccountKey, Credits};

use super::audits::AuditVerdict;
use super::facts::{Checkpoint, End, Fact, LossBits, SegmentClaim, States};
use crate::clock::Micros;

/// An effect that the core of a training run requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look for the next lease. Answer: [`super::Event::Quoted`] or [`super::Event::NotQuoted`].
    Quote(LeaseWish),
    /// Buy the quoted lease, and send the states and the first step. The lease's steps are wanted
    /// by [`super::Event::StepWanted`], its answers are [`super::Event::Answered`], and
    /// [`super::Event::LeaseEnded`] is its last event.
    BeginLease,
    /// Send one more step or evaluation.
    Send(RunRequest),
    /// Send no more of them, and end the lease when those under way are answered. No answer.
    SendNoMore,
    /// End the lease at once. No answer but its end.
    CancelLease,
    /// Write states to the disk; the next record names them. No answer.
    KeepStates(States),
    /// Write a fact to the journal. Answer: [`super::Event::Recorded`] once it and all before it
    /// are on the disk, or [`super::Event::NotRecorded`].
    Record(Fact),
    /// States that no later life needs. No answer.
    ForgetStates(States),
    /// The last kept states are these older ones, which are on the disk. No answer, or
    /// [`super::Event::NotRecorded`].
    RestoreStates(Checkpoint),
    /// Show a step to people. If its lease ends before the next kept states, it is shown again. No
    /// answer.
    ShowStep {
        /// The number of steps done, this one included.
        done: u64,
        /// The loss of its batch, before the step.
        loss: LossBits,
    },
    /// Show an evaluation to people. It counts once it is in the journal.
    ShowEvaluation {
        /// The number of steps done.
        position: u64,
        /// The loss of the held-out examples after these steps.
        loss: LossBits,
    },
    /// Show an audit to people. No answer.
    ShowAudit {
        /// The position of its first step.
        from: u64,
        /// The position after its last step.
        end: u64,
        /// The verdict of the audit.
        verdict: AuditVerdict,
    },
    /// The run is over, and no action follows.
    End(End),
}

/// The next lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseWish {
    /// Where it begins.
    pub from: Checkpoint,
    /// Its first step or evaluation.
    pub first: RunRequest,
    /// How many steps the buyer can send.
    pub steps: u64,
    /// How many evaluations the buyer can also send.
    pub evaluations: u64,
    /// How long a request took in the slowest lease of this life; none if none is over. The time of
    /// the lease must suffice for such requests, as far as the budget allows.
    pub request_time: Option<Micros>,
    /// The most that it may cost; none for no limit.
    pub budget: Option<Credits>,
    /// The part of the run's budget that is kept back for the audits of the lease.
    pub kept_back: Credits,
    /// The providers from which not to buy.
    pub excluded: Vec<AccountKey>,
    /// If the lease is an audit, the claims of others about the results of its steps: first that of
    /// the provider that made them, whose states are on the disk, then those of the providers that
    /// ran them again. If the lease's answers equal one of these claims within rounding, you must
    /// report them with the bits of that claim.
    pub claims: Vec<SegmentClaim>,
}

/// The next request of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRequest {
    /// A step.
    Step(Step),
    /// The loss of the held-out examples, which changes no state. It can be several requests of the
    /// lease, but it has one answer.
    Evaluation {
        /// How many steps must be done before it.
        position: u64,
    },
}

/// A step to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many steps must be done before it.
    pub position: u64,
    /// Whether its answer must bring the states.
    pub keep: bool,
}

impl Step {
    /// Returns a step of an audit that ends at `end`.
    pub(super) fn of_audit(position: u64, end: u64) -> Step {
        let keep = position + 1 == end;
        Step { position, keep }
    }
}
