//! What happens to a provider.

use serde::{Deserialize, Serialize};
use souk_market::{
    Acceptance, AccountKey, Lease, Millis, OrderId, Permille, Price, Receipt, Refusal, Resources,
    SpotPrice, Units,
};
use souk_memory::ContentId;

use crate::clock::Micros;
use crate::effect::Ticket;
use crate::lease::{BuyerWord, Failure, OfferAnswer, Opening};

/// A stream that a peer opened. None has the number of another, in all the life of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u64);

/// Everything that can happen to a provider.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A peer opened a stream, and this is its first word.
    Opened {
        /// The stream.
        stream: StreamId,
        /// Who is at its other end, as its transport has proven.
        peer: AccountKey,
        /// What it said.
        opening: Opening,
    },
    /// The buyer at the other end of a stream said something.
    Said {
        /// The stream.
        stream: StreamId,
        /// What.
        word: BuyerWord,
    },
    /// A stream is over, or its peer said what is no word: nothing comes of it any more, and
    /// nothing that is sent arrives.
    Hung {
        /// The stream.
        stream: StreamId,
    },
    /// Something about this account has changed in the log: notice was given, a lease was bought or
    /// has ended.
    Changed,
    /// The device is to be sold by these figures from the next ask on.
    SpeedDue(Box<Resources>),
    /// The process of a lease's own ended by itself.
    SandboxLost {
        /// The lease.
        lease: souk_market::LeaseId,
        /// How.
        fault: Failure,
    },
    /// The provider is to stop, and give its leases time.
    Stop,
    /// It was asked again: the time is over.
    Hurry,
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
    /// Another provider answered an offer, or could not be asked.
    Offered(Result<OfferAnswer, String>),
    /// A lease as the log has it; none where the log does not know it, or not any more.
    LeaseSeen(Option<Box<Lease>>),
    /// What the log has of this account.
    MarketSeen(Box<MarketView>),
    /// The market could not be asked.
    NotSeen(String),
    /// What the market made of a command.
    Commanded(Result<Acceptance, NotDone>),
    /// All contents that were asked for are here, in the order in which they were asked for.
    Came(Vec<Arrival>),
    /// A content did not come, or is not what it was said to be.
    NotCome(Failure),
    /// No graph of the work is against the owner's limits, or the first thing that is.
    Checked(Result<(), Failure>),
    /// A place to run the lease in is ready, and may be given so many runs at once.
    Sandboxed {
        /// How many, at least one.
        slots: u32,
    },
    /// There is no place to run it in.
    NoSandbox(Failure),
    /// A part is compiled, or why it is not.
    Prepared(Result<(), Failure>),
    /// A part was run, or why it was not.
    Ran(Result<RunResult, Failure>),
    /// Facts are on the disk.
    Recorded,
    /// They may not be: the disk did not take them.
    NotWritten(String),
    /// The receipt with this provider's signature.
    Signed(Box<Receipt>),
}

/// Why the market did not do what was commanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// It refused.
    #[error(transparent)]
    Refused(Refusal),
    /// No answer came: it may have been done.
    #[error("no answer came, and it may have been done: {0}")]
    Uncertain(String),
}

/// What the log has of a provider's account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MarketView {
    /// Its leases that are not closed, those that it bought itself among them.
    pub leases: Vec<Lease>,
    /// Units of its device that are on offer.
    pub offered: Units,
    /// How many orders it has in the book.
    pub open_orders: u32,
    /// Its asks in the book, if they were asked for.
    pub asks: Vec<OrderId>,
    /// What an ask would say now; none where nothing is sold at this hour.
    pub due: Option<Terms>,
}

/// What of an ask changes with the hour and the market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Per device-second.
    pub price: Price,
    /// The longest lease.
    pub duration_max: Millis,
    /// The notice before a spot lease ends.
    pub notice: Millis,
    /// What spot leases of other notices cost.
    pub spot: Vec<SpotPrice>,
    /// What part of its price a second costs in which the device is held and not used.
    pub idle: Permille,
    /// The least reputation of a buyer.
    pub reputation_min: Permille,
}

/// A content that is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Which.
    pub id: ContentId,
    /// How long it is.
    pub bytes: u64,
    /// How much of it came over the network; nothing where it was here.
    pub moved: u64,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// The outputs that were asked for, in that order; they are in the store.
    pub outputs: Vec<(String, ContentId)>,
    /// Their length.
    pub bytes: u64,
    /// Device time.
    pub busy: Micros,
    /// Device time by the figures that the device is sold with; none where nobody can say.
    pub promised: Option<Micros>,
}
