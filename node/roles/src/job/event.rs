//! What happens to a job.

use serde::{Deserialize, Serialize};
use souk_market::{Acceptance, AccountKey, Lease, Receipt, Refusal, Trade};

use super::plan::{NoPlan, Plan};
use crate::effect::Ticket;
use crate::lease::{Contact, ProviderWord, Request};

/// One lease of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leg {
    /// The attempt's number.
    pub attempt: u32,
    /// Its place in the attempt's plan.
    pub place: u32,
}

/// Everything that can happen to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// One more request, with all of the job's inputs, which can be fetched from here. Numbers rise
    /// from one to the next, and no more than the window are given that were not taken back as
    /// answers.
    NewRequest {
        /// The request.
        request: Request,
        /// How many times as much it brings as the inputs that were planned with.
        size: u32,
    },
    /// No request comes any more.
    NoMore,
    /// The user stops the job.
    Cancel,
    /// The provider of a leg said something.
    Said {
        /// The leg.
        leg: Leg,
        /// What.
        word: ProviderWord,
    },
    /// A leg's provider was not reached, went away or said what is no word. Nothing of that stream
    /// is told afterwards.
    Gone {
        /// The leg.
        leg: Leg,
        /// How, for people.
        why: String,
    },
    /// A followed lease stands like this now.
    Changed(Box<Lease>),
    /// A moment that was asked for is here.
    Woke,
    /// An effect came to this.
    Answer {
        /// Which.
        ticket: Ticket,
        /// What.
        answer: Answer,
    },
}

/// What an effect came to. Which answers an action has stands at the action.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A plan.
    Planned(Box<Plan>),
    /// There is none.
    NotPlanned {
        /// Why.
        why: NoPlan,
        /// Whether it may be otherwise a moment later.
        passes: bool,
    },
    /// A trade for each bid, in their order.
    Bought(Vec<Trade>),
    /// Nothing was bought.
    NotBought(Refusal),
    /// No answer came, or the nonce was used: it may have been bought, now or soon.
    Uncertain(String),
    /// Every lease under the ids that were looked at, closed ones too as far as the log has them.
    Leases(Vec<Lease>),
    /// The log could not be asked.
    NotSeen(String),
    /// Where the providers are.
    Found(Vec<Contact>),
    /// Nobody knows where this one is.
    NotFound(AccountKey),
    /// What the market made of a command. A lease that is closed already, a nonce that was used
    /// and a note that is not open count as done.
    Commanded(Result<(), CommandError>),
    /// The contents can be fetched from here.
    Served,
    /// They cannot: there is no room.
    NotServed(String),
    /// The content is here, and is a tensor.
    Fetched,
    /// It is not.
    NotFetched(FetchFault),
    /// The other provider took it, or why not.
    HandedOn(Result<(), String>),
    /// Whether two contents are the same but for rounding.
    Compared(bool),
    /// The receipt with both signatures.
    Signed(Box<Receipt>),
    /// The values are on the disk.
    Kept,
    /// The facts are on the disk, and all that were given before them.
    Recorded,
    /// Values or facts may not be on the disk.
    NotWritten(String),
    /// The caller has the answer where it stays.
    Taken,
    /// The caller wants neither this answer nor any other.
    NotTaken,
}

impl Answer {
    /// What the market's answer to a command means to a job: what is done already, by whomever,
    /// counts as done.
    #[must_use]
    pub fn commanded(result: Result<Acceptance, Refusal>) -> Answer {
        Answer::Commanded(match result {
            Ok(_)
            | Err(
                Refusal::LeaseClosed { .. }
                | Refusal::LeaseEnded { .. }
                | Refusal::NonceUsed { .. }
                | Refusal::NoteNone { .. },
            ) => Ok(()),
            Err(refusal) => Err(CommandError::Refused(refusal)),
        })
    }
}

/// Why the market did not do what was commanded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandError {
    /// It refused.
    Refused(Refusal),
    /// No answer came.
    Unreachable(String),
}

/// Why a content is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchFault {
    /// Nobody gave it.
    Lost(String),
    /// It came, and is no tensor.
    NoTensor(String),
}
