//! The events that happen to a job, and the answers to its actions.

use serde::{Deserialize, Serialize};
use souk_market::{Acceptance, AccountKey, Lease, Receipt, Refusal, Trade};

use super::plan::{NoPlan, Plan};
use crate::effect::Ticket;
use crate::lease::{Contact, ProviderMessage, Request};

/// One lease of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leg {
    /// The attempt's number.
    pub attempt: u32,
    /// Its place in the attempt's plan.
    pub place: u32,
}

/// An event that happens to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One more request with all of the job's inputs, which providers can fetch from here. Numbers
    /// rise. The caller must not send more than the window allows beyond the answers it took.
    NewRequest {
        /// The request with its inputs.
        request: Request,
        /// Its size as a multiple of the planned inputs.
        size: u32,
    },
    /// No more requests will follow.
    NoMore,
    /// The user stops the job.
    Cancel,
    /// The provider of a leg sent a message.
    MessageReceived {
        /// The leg of the provider.
        leg: Leg,
        /// The provider's message.
        message: ProviderMessage,
    },
    /// A leg's provider was unreachable, disconnected or sent an invalid message. The shell must
    /// send no further event of that stream.
    PeerLost {
        /// The leg of the provider.
        leg: Leg,
        /// The reason, for people.
        why: String,
    },
    /// The new state of a followed lease.
    Changed(Box<Lease>),
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
    /// A plan.
    Planned(Box<Plan>),
    /// The planner found no plan.
    NotPlanned {
        /// The reason, with its kind.
        why: NoPlan,
        /// Whether a plan can exist a moment later.
        passes: bool,
    },
    /// A trade for each bid, in their order.
    Bought(Vec<Trade>),
    /// The market sold no lease.
    NotBought(Refusal),
    /// No answer came, or the nonce was used: the market may have sold the leases, or may still.
    Uncertain(String),
    /// Every lease under the requested ids, including closed ones that the log still has.
    Leases(Vec<Lease>),
    /// The log did not answer.
    NotSeen(String),
    /// The contacts of the providers.
    Found(Vec<Contact>),
    /// No validator knows the address of this provider.
    NotFound(AccountKey),
    /// The market's result for a command. A lease that is closed already, a used nonce and a note
    /// that is not open count as success.
    Commanded(Result<(), CommandError>),
    /// Providers can fetch the contents from here.
    Served,
    /// The contents cannot be served: this node has no room.
    NotServed(String),
    /// The content is here, and is a tensor.
    Fetched,
    /// The content is not here, or is no tensor.
    NotFetched(FetchFault),
    /// This node has no room for the content: its holders are not at fault.
    NotStored(String),
    /// The other provider accepted the tensor, or why not.
    HandedOn(Result<(), String>),
    /// Whether two contents are equal within the tolerance.
    Compared(bool),
    /// The receipt with both signatures.
    Signed(Box<Receipt>),
    /// The values are on the disk.
    Kept,
    /// These facts and all earlier ones are on the disk.
    Recorded,
    /// Values or facts may not be on the disk.
    NotWritten(String),
    /// The caller has stored the answer.
    Taken,
    /// The caller wants no more answers.
    NotTaken,
}

impl Answer {
    /// Converts the market's result for a command into an answer. A command whose effect exists
    /// already counts as success.
    #[must_use]
    pub fn from_command_result(result: Result<Acceptance, Refusal>) -> Answer {
        Answer::Commanded(match result {
            Ok(_)
            | Err(
                Refusal::LeaseClosed { .. } | Refusal::LeaseEnded { .. } | Refusal::NoteNone { .. },
            ) => Ok(()),
            Err(refusal) => Err(CommandError::Refused(refusal)),
        })
    }
}

/// Why the market did not carry out a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandError {
    /// The market refused it.
    Refused(Refusal),
    /// No answer came.
    Unreachable(String),
}

/// Why a content is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchFault {
    /// No holder sent it.
    Lost(String),
    /// It arrived, and is no tensor.
    NoTensor(String),
}

#[cfg(test)]
mod tests {
    use souk_market::{LeaseId, Nonce};

    use super::*;

    #[test]
    fn a_command_counts_as_carried_out_if_its_effect_exists() {
        let of = |refusal| Answer::from_command_result(Err(refusal));
        let answered = of(Refusal::NoteNone { lease: LeaseId(1) });
        assert!(
            matches!(answered, Answer::Commanded(Ok(()))),
            "{answered:?}"
        );
        // Another batch used the nonce: this one has no effect.
        let used = of(Refusal::NonceUsed { nonce: Nonce(1) });
        assert!(matches!(used, Answer::Commanded(Err(_))), "{used:?}");
    }
}
