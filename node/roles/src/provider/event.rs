//! The events that happen to a provider, and the answers to its actions.

use serde::{Deserialize, Serialize};
use souk_market::{
    Acceptance, AccountKey, Lease, Millis, OrderId, Permille, Price, Receipt, Refusal, Resources,
    SpotPrice, Units,
};
use souk_memory::ContentId;

use crate::clock::Micros;
use crate::effect::Ticket;
use crate::lease::{BuyerMessage, Failure, OfferAnswer, Opening};
use crate::tokens::counting::TokenCount;

/// A stream that a peer opened. A core must never see the same number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u64);

/// An event that happens to a provider.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A peer opened a stream with this first message.
    Opened {
        /// The new stream.
        stream: StreamId,
        /// The account at its other end, proven by the transport.
        peer: AccountKey,
        /// The first message.
        opening: Opening,
    },
    /// The buyer at the other end of a stream sent a message.
    MessageReceived {
        /// The stream of the message.
        stream: StreamId,
        /// The buyer's message.
        message: BuyerMessage,
    },
    /// A stream ended, or its peer sent an invalid message. The shell must send no further event of
    /// the stream, and no message sent on it will arrive.
    StreamClosed {
        /// The stream that ended.
        stream: StreamId,
    },
    /// The log changed for this account, or may have: for example, a buyer bought a lease, or a
    /// lease received notice or ended. A validator reports such changes from now on.
    Changed,
    /// The validator that reported changes no longer does, so the core must look by itself.
    WatchLost,
    /// The terms of the next ask changed on this machine: the owner wrote another price, the hours
    /// began or ended, or the disk became full or free.
    TermsChanged,
    /// From the next ask on, the provider must sell the device with these resources.
    SpeedDue(Box<Resources>),
    /// The sandbox process of a lease ended by itself.
    SandboxLost {
        /// The lease that ran there.
        lease: souk_market::LeaseId,
        /// How the process ended.
        fault: Failure,
    },
    /// The provider must stop, and give its leases time.
    Stop,
    /// The provider must stop now: a second request to stop arrived.
    Hurry,
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
    /// Another provider's answer to an offer, or why it gave none.
    Offered(Result<OfferAnswer, String>),
    /// The lease in the log; none if the log does not know it, or no longer does.
    LeaseSeen(Option<Box<Lease>>),
    /// The log's view of this account.
    MarketSeen(Box<MarketView>),
    /// The market did not answer.
    NotSeen(String),
    /// The market's result for a command.
    Commanded(Result<Acceptance, NotDone>),
    /// All requested contents are here, in the requested order.
    Arrived(Vec<Arrival>),
    /// A content did not arrive, or is not of the expected kind.
    NotArrived(Failure),
    /// The owner's limits allow every graph of the work, or the first violation.
    Checked(Result<(), Failure>),
    /// A sandbox for the lease is ready.
    Sandboxed {
        /// The number of runs that it accepts at once, at least one.
        slots: u32,
    },
    /// No sandbox can run the lease.
    NoSandbox(Failure),
    /// The device compiled a part, or why it did not.
    Prepared(Result<(), Failure>),
    /// The device ran a part, or why it did not.
    Ran(Result<RunResult, FailedRun>),
    /// The facts are on the disk.
    Recorded,
    /// The disk did not accept the facts, which may or may not be on it.
    NotWritten(String),
    /// The receipt with this provider's signature.
    Signed(Box<Receipt>),
}

/// Why the market did not carry out a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// The market refused it.
    #[error(transparent)]
    Refused(Refusal),
    /// No answer came, so the market may have carried it out.
    #[error("no answer came; the command may have been carried out: {0}")]
    Uncertain(String),
}

/// The log's view of a provider's account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MarketView {
    /// Its open leases, including those that it bought.
    pub leases: Vec<Lease>,
    /// The units of its device on offer.
    pub offered: Units,
    /// The number of its orders in the book.
    pub open_orders: u32,
    /// Its asks in the book, if the action requested them.
    pub asks: Vec<OrderId>,
    /// The terms of an ask placed now; none if the provider does not sell at this hour.
    pub due: Option<Terms>,
    /// The most leases that can be sold at once now; the configured capacity holds beside it.
    pub slots: Units,
}

/// The terms of an ask that change with the hour and the market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The price per device-second.
    pub price: Price,
    /// The longest lease.
    pub duration_max: Millis,
    /// The notice before a spot lease ends.
    pub notice: Millis,
    /// The prices of spot leases with other notices.
    pub spot: Vec<SpotPrice>,
    /// The share of the price for a second in which the buyer holds the device unused.
    pub idle: Permille,
    /// The least reputation that a buyer must have.
    pub reputation_min: Permille,
}

/// A content that is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The id of the content.
    pub id: ContentId,
    /// Its length in bytes.
    pub bytes: u64,
    /// The bytes that came over the network; 0 if the content was here.
    pub moved: u64,
}

/// A run without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRun {
    /// The failure that the buyer receives.
    pub failure: Failure,
    /// The device time by the speed in the ask; none if it cannot be computed.
    pub promised: Option<Micros>,
}

impl From<Failure> for FailedRun {
    fn from(failure: Failure) -> FailedRun {
        FailedRun {
            failure,
            promised: None,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// The requested outputs, in that order; they are in the store.
    pub outputs: Vec<(String, ContentId)>,
    /// The length of the outputs in bytes.
    pub bytes: u64,
    /// The device time of the run.
    pub busy: Micros,
    /// The device time by the speed in the ask; none if it cannot be computed.
    pub promised: Option<Micros>,
    /// The tokens of a request of a tab, which give the device time.
    pub tokens: Option<TokenCount>,
}
