//! Defines the events that happen to a training run: quotes, answers of steps, the ends of leases,
//! and records.

use souk_market::{AccountKey, Credits, JobId, Receipt};

use super::facts::{LossBits, Shortage, States};
use crate::clock::Micros;

/// An event that happens to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lease could be bought from this provider, under this id.
    Quoted {
        /// The id of the lease's job.
        job: JobId,
        /// The provider that the plan names.
        provider: AccountKey,
    },
    /// No lease can be bought.
    NotQuoted {
        /// Whether offers or money were short.
        short_of: Shortage,
    },
    /// The market sold the present lease.
    Leased {
        /// Its provider, which need not be the one that the plan names.
        provider: AccountKey,
        /// What the market holds for it.
        escrow: Credits,
    },
    /// The present lease can take one more step or evaluation.
    StepWanted,
    /// The answer to the next step or evaluation of the present lease, in their order.
    Answered(StepAnswer),
    /// One request of the oldest evaluation under way is answered, and more of them follow. Its
    /// last one is [`Event::Answered`].
    BatchAnswered,
    /// The time of the present lease ends soon: it can take one more step.
    TimeShort,
    /// The present lease is over.
    LeaseEnded(LeaseEnd),
    /// The oldest record without an answer is on the disk.
    Recorded,
    /// The journal could not be written.
    NotRecorded,
    /// The caller stops the run: the first time after the steps under way, then at once.
    Stop,
}

/// The answer to a step or an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAnswer {
    /// A finite loss. The states are there if the step had to bring them, and finite.
    Done {
        /// The loss of the batch before the step, or of the held-out examples.
        loss: LossBits,
        /// The states after it.
        states: Option<States>,
    },
    /// The loss, or a number of the states, is infinite or no number.
    NotFinite {
        /// The loss of the batch, which can be finite if a state is not.
        loss: LossBits,
    },
    /// The buyer sent only some requests of this evaluation, because the caller stops the run, or
    /// the time of the lease ends soon. They are answered. It has no loss.
    Abandoned,
    /// It is no step: an output is missing, or has another type or shape.
    Malformed,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEnd {
    /// Its cost so far, or the most that it can still cost; none if the market does not answer, so
    /// that its escrow counts.
    pub cost: Option<Credits>,
    /// The receipts that both parties signed for it.
    pub receipts: Vec<Receipt>,
    /// Why it ended, from which the core can blame its provider.
    pub why: LeaseEndReason,
    /// How long a request of it took by the buyer's clock; none if none was answered.
    pub request_time: Option<Micros>,
    /// How long a request takes by the ask of the lease.
    pub planned_time: Micros,
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEndReason {
    /// All steps sent are answered.
    Done,
    /// All steps sent are answered, and the provider gave no receipt that the buyer could sign.
    Unsigned,
    /// The time of the lease was over.
    TimeOver,
    /// It was not bought: another buyer, or another worker of this one, was faster.
    Unsold,
    /// The provider failed, or was lost.
    Fault,
    /// The buyer ended it.
    Cancelled,
}
