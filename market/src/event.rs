//! What happened, in order: enough to follow every order, lease and balance from outside.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, LeaseId, OrderId, RequestId};
use crate::lease::{CloseReason, NoteState};
use crate::order::{Side, Trade};
use crate::request::MoneyRequest;
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An account was opened.
    Registered {
        /// Whose.
        account: AccountKey,
    },
    /// An account's balances are now these.
    Balance {
        /// Whose.
        account: AccountKey,
        /// What it may spend or withdraw.
        available: Credits,
        /// What is held for its orders and leases.
        escrow: Credits,
        /// What it has at stake.
        stake: Credits,
    },
    /// An account asked the operator for credits, or for some of its own to go out.
    Requested(MoneyRequest),
    /// A request was decided.
    Decided {
        /// Which.
        request: RequestId,
        /// Whose.
        account: AccountKey,
        /// Whether it was done.
        confirmed: bool,
        /// Why not.
        reason: Name,
    },
    /// Credits went from one account to another.
    Transferred {
        /// Whose they were.
        from: AccountKey,
        /// Whose they are.
        to: AccountKey,
        /// How much.
        amount: Credits,
        /// What for.
        reference: Name,
    },
    /// An order rests in the book.
    Rested {
        /// Whose.
        account: AccountKey,
        /// Which.
        order: OrderId,
        /// Bid or ask.
        side: Side,
        /// At what price.
        price: Price,
        /// How many units.
        quantity: Units,
    },
    /// An order left the book.
    OrderClosed {
        /// Whose.
        account: AccountKey,
        /// Which.
        order: OrderId,
        /// Why.
        reason: OrderEnd,
    },
    /// A bid and an ask met and a lease began.
    Traded(Trade),
    /// A buyer said that the work of its lease has begun.
    WorkStarted {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
    },
    /// A provider is ready for a lease that its buyer has not begun.
    ProviderReady {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// When the reserve is due.
        until: Millis,
    },
    /// A note was filed or answered.
    Note {
        /// On which lease.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// The usage it states.
        usage: DeviceMicros,
        /// What became of it.
        state: NoteState,
    },
    /// A lease will end before its deadline.
    LeaseEnding {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// When.
        at: Millis,
        /// Why.
        reason: CloseReason,
    },
    /// A lease ended: the device is free, the money is open until `until`.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// When it closes without a receipt.
        until: Millis,
        /// Why.
        reason: CloseReason,
    },
    /// A lease that waited for the device has it now.
    LeaseStarted {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// When it ends.
        deadline: Millis,
    },
    /// A lease was made longer.
    LeaseExtended {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// When it ends now.
        deadline: Millis,
    },
    /// A provider lost stake for a proven fault.
    Slashed {
        /// In which lease.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// What the provider lost.
        slashed: Credits,
        /// What of it the buyer got.
        compensated: Credits,
    },
    /// An auction was held; its trades follow.
    Auction {
        /// In which class.
        class: Class,
        /// The one price of all its trades.
        price: Price,
        /// Units that could trade at it, of orders that each suit at least one of the other side.
        quantity: u64,
    },
    /// A lease was paid and refunded.
    LeaseClosed {
        /// Which.
        lease: LeaseId,
        /// Its buyer.
        buyer: AccountKey,
        /// Its provider.
        provider: AccountKey,
        /// Why.
        reason: CloseReason,
        /// What the provider got.
        paid: Credits,
        /// What the market took.
        fee: Credits,
        /// What the buyer got back.
        refunded: Credits,
    },
}

/// Why an order left the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderEnd {
    /// All of it traded.
    Filled,
    /// Its account cancelled it, or amended it to a new order.
    Cancelled,
    /// Its time was over.
    Expired,
    /// What of it could not trade at once was cancelled, as its time in force says.
    Unfilled,
}

impl Event {
    /// The accounts it concerns, two at most.
    pub fn accounts(&self) -> impl Iterator<Item = AccountKey> {
        let (first, second) = match self {
            Self::Auction { .. } => (None, None),
            Self::Registered { account }
            | Self::Balance { account, .. }
            | Self::Rested { account, .. }
            | Self::OrderClosed { account, .. }
            | Self::Decided { account, .. } => (Some(*account), None),
            Self::Requested(request) => (Some(request.account), None),
            Self::Transferred { from, to, .. } => (Some(*from), Some(*to)),
            Self::Traded(Trade {
                buyer, provider, ..
            })
            | Self::WorkStarted {
                buyer, provider, ..
            }
            | Self::ProviderReady {
                buyer, provider, ..
            }
            | Self::Note {
                buyer, provider, ..
            }
            | Self::LeaseEnding {
                buyer, provider, ..
            }
            | Self::LeaseEnded {
                buyer, provider, ..
            }
            | Self::LeaseStarted {
                buyer, provider, ..
            }
            | Self::LeaseExtended {
                buyer, provider, ..
            }
            | Self::Slashed {
                buyer, provider, ..
            }
            | Self::LeaseClosed {
                buyer, provider, ..
            } => (Some(*buyer), Some(*provider)),
        };
        first.into_iter().chain(second)
    }
}
