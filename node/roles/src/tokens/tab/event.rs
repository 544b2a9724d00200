//! Defines the events that happen to a tab, the effects that its core requests, and how a tab ends.

use serde::Serialize;
use souk_market::{
    AccountKey, Bid, Command, Credits, DeviceMicros, Lease, Receipt, Refusal, Trade,
};
use souk_memory::ContentId;

use super::BillObjection;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::job::facts::Terms;
use crate::lease::{BuyerMessage, Failure, ProviderMessage, Start};
use crate::tokens::counting::TokenCount;

/// An event that happens to a tab.
#[derive(Clone, Debug, PartialEq)]
pub enum TabEvent {
    /// The owner sends a request; none may be open.
    NewRequest {
        /// The content of the request.
        body: ContentId,
        /// The most tokens that it can be billed as. The tab does not take it if these do not fit
        /// into the rest of its lease's device time.
        most: TokenCount,
    },
    /// The owner closes the tab after its open request.
    Close,
    /// The provider sent a message.
    MessageReceived(ProviderMessage),
    /// The stream to the provider ended.
    StreamClosed {
        /// Why, for people.
        why: String,
    },
    /// The lease changed in the log.
    Changed {
        /// The lease.
        lease: Box<Lease>,
    },
    /// Text of the open answer arrived.
    TextArrived {
        /// The tokens of the open request, by the text that came so far.
        streamed: TokenCount,
    },
    /// A moment that the core asked for is here.
    TimerFired,
    /// The answer to an effect.
    EffectAnswered {
        /// The effect's ticket.
        ticket: Ticket,
        /// Its answer.
        answer: TabAnswer,
    },
}

/// The answer to an effect; each [`TabAction`] lists its answers.
#[derive(Clone, Debug, PartialEq)]
pub enum TabAnswer {
    /// The market sold the lease.
    Bought(Box<Trade>),
    /// The market refused the bid.
    NotBought(Refusal),
    /// No answer came, so the market may have sold the lease, or may yet do so.
    Uncertain(String),
    /// The leases that the log has of the tab's id.
    Leases(Vec<Lease>),
    /// The provider's addresses are known.
    Found,
    /// The provider cannot be reached.
    NotFound(String),
    /// The answer to a request is here, with the tokens that the buyer counts.
    Counted(TokenCount),
    /// The answer did not arrive, or is not a valid one.
    NotCounted(String),
    /// The buyer has no memory for the answer.
    NotStored(String),
    /// The receipt with the buyer's signature.
    Signed(Box<Receipt>),
    /// The market's result for a command.
    Commanded(Result<(), String>),
}

/// An effect that the core requests.
#[derive(Clone, Debug, PartialEq)]
pub enum TabAction {
    /// Buy the lease. TabAnswer: `Bought`, `NotBought` or `Uncertain`.
    Buy(Box<Bid>),
    /// Look for the lease of a purchase without an answer. TabAnswer: `Leases` or `Uncertain`.
    Look,
    /// Find the provider's addresses. TabAnswer: `Found` or `NotFound`.
    Find(AccountKey),
    /// Open the stream to the provider, and grant it the card and the request. No answer;
    /// [`TabEvent::StreamClosed`] follows if it fails.
    Open(Box<Start>),
    /// Send a message on the stream. No answer.
    SendMessage(BuyerMessage),
    /// Close the stream after its pending messages are sent. No answer.
    CloseStream,
    /// The lease is bought: follow it in the log, and report each change of it. No answer.
    Follow(Box<Terms>),
    /// Fetch the answer to the open request and count it. TabAnswer: `Counted`,
    /// `NotCounted` or `NotStored`.
    Count {
        /// The request's number.
        request: u32,
        /// The answer's content.
        answer: ContentId,
    },
    /// Give the owner the counted answer to the open request. No answer.
    Deliver,
    /// Tell the owner that its open request has no answer. No answer.
    Fail(TabFailure),
    /// Sign a receipt as the buyer. TabAnswer: `Signed`.
    Sign(Box<Receipt>),
    /// Send a command to the market, again if no answer comes. TabAnswer: `Commanded`.
    Command(Box<Command>),
    /// The tab is over. No action follows.
    Over(TabOutcome),
}

/// Why a tab ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum TabFailure {
    /// The market sold no lease.
    #[error("the market sold no tab: {0}")]
    NotSold(Refusal),
    /// Another provider placed a cheaper ask meanwhile, and sold the tab.
    #[error("another provider than the chosen one sold the tab")]
    OtherProvider,
    /// The market did not answer.
    #[error("the market did not answer: {0}")]
    Unreachable(String),
    /// The buyer has no memory for the answer, which says nothing about the provider.
    #[error("this buyer's memory is full: {0}")]
    Memory(String),
    /// The provider could not be reached.
    #[error("the provider could not be reached: {0}")]
    NotReached(String),
    /// The provider refused or failed.
    #[error("the provider failed: {0}")]
    Failed(Failure),
    /// The provider was silent.
    #[error("the provider was silent for {} s", .0.0 / 1_000_000)]
    Silent(Micros),
    /// The provider's message did not belong here.
    #[error("the provider sent an unexpected message")]
    Confused,
    /// The provider's answer could not be used.
    #[error("the provider's answer could not be used: {0}")]
    BadAnswer(String),
    /// The provider's bill is not what the buyer counted.
    #[error("the provider's bill is wrong: {0}")]
    Bill(BillObjection),
    /// The lease ended, or the tab was closing, before the request could begin.
    #[error("the tab was over before the request began")]
    Closing,
}

impl TabFailure {
    /// Returns whether another provider could answer the request.
    #[must_use]
    pub fn is_of_provider(&self) -> bool {
        !matches!(self, TabFailure::Unreachable(_) | TabFailure::Memory(_))
    }
}

/// How a tab ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TabOutcome {
    /// The receipt with both signatures, if the provider gave one that the buyer could sign.
    pub receipt: Option<Box<Receipt>>,
    /// Why it ended early, if it did.
    pub failure: Option<TabFailure>,
    /// The device time of the tokens that the buyer counted.
    pub counted: DeviceMicros,
    /// What the lease cost, if the log has closed it; the whole escrow while that is unknown.
    pub cost: Credits,
}

/// The stage of a tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum TabStage {
    /// The market has not yet answered the bid.
    Buying,
    /// The purchase has no answer: the core looks in the log.
    Adopting,
    /// The provider's addresses are looked up.
    Finding,
    /// The provider has the start, and has not accepted it.
    Opened,
    /// The provider prepares the model.
    Preparing,
    /// The provider answers requests.
    Serving,
    /// No more requests follow; the receipt is to come.
    Finishing,
    /// The buyer signs.
    Signing,
    /// The market settles the receipt.
    Settling,
    /// The lease ends without a receipt; the core answers notes until the log has closed it.
    Ending,
    /// The tab is over.
    Over,
}
