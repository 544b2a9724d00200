//! What happened, in order: enough to follow every order, lease and balance from outside.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, LeaseId, OrderId};
use crate::lease::{CloseReason, NoteState};
use crate::order::{Side, Trade};
use crate::request::MoneyRequest;
use crate::rules::Upgrade;
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
    /// An account that held less than a deposit made room for another: it is not known any more.
    Forgotten {
        /// Whose.
        account: AccountKey,
    },
    /// A command, or time, changed an account's balances.
    Balance {
        /// Whose.
        account: AccountKey,
        /// What they were.
        before: Balances,
        /// What they are now.
        after: Balances,
    },
    /// Credits of one account moved for a reason that nothing else tells.
    Moved {
        /// Whose.
        account: AccountKey,
        /// Why.
        reason: MoveReason,
        /// How much.
        amount: Credits,
    },
    /// An account asked the operator for credits, or for some of its own to go out.
    Requested(MoneyRequest),
    /// The operators began to pay a withdrawal out.
    Locked(MoneyRequest),
    /// A request was decided.
    Decided {
        /// Which.
        request: MoneyRequest,
        /// Whether it was done.
        confirmed: bool,
        /// Why not.
        reason: Name,
    },
    /// An operator gave a command of which more than one is needed.
    Approved {
        /// The number of the command.
        approval: u64,
        /// Who gave it.
        account: AccountKey,
        /// How many have.
        given: u32,
        /// How many must.
        needed: u32,
    },
    /// An account was frozen.
    Frozen {
        /// Whose.
        account: AccountKey,
        /// Why.
        reason: Name,
    },
    /// An account is not frozen any more.
    Thawed {
        /// Whose.
        account: AccountKey,
    },
    /// The rules will change.
    RulesDue {
        /// The number of the change.
        change: u64,
        /// When it takes effect.
        at: Millis,
    },
    /// The rules have changed.
    RulesChanged {
        /// The number of the change.
        change: u64,
    },
    /// A change that was told is not made.
    RulesKept {
        /// The number of the change.
        change: u64,
    },
    /// Another version of the rules will apply.
    UpgradeDue(Upgrade),
    /// Another version of the rules applies.
    Upgraded {
        /// Which.
        to: u16,
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

/// What an account has, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Balances {
    /// What it may spend or withdraw.
    pub available: Credits,
    /// What is held for its orders and leases.
    pub escrow: Credits,
    /// What it has at stake.
    pub stake: Credits,
}

/// Why credits of one account moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// The operator credited it.
    Credited,
    /// The operator took what the market had earned.
    Collected,
    /// It put them at stake.
    Staked,
    /// It took them back from stake.
    Unstaked,
    /// It made room for others in a full market, and held less than a deposit.
    Forfeited,
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
    /// The market was full of orders, of classes or of accounts, it held less than a deposit, and
    /// gave way.
    Evicted,
    /// Its account was frozen.
    Frozen,
}

impl Event {
    /// The accounts it concerns, two at most.
    pub fn accounts(&self) -> impl Iterator<Item = AccountKey> {
        let (first, second) = match self {
            Self::Auction { .. }
            | Self::RulesDue { .. }
            | Self::RulesChanged { .. }
            | Self::RulesKept { .. }
            | Self::UpgradeDue(_)
            | Self::Upgraded { .. } => (None, None),
            Self::Registered { account }
            | Self::Forgotten { account }
            | Self::Approved { account, .. }
            | Self::Frozen { account, .. }
            | Self::Thawed { account }
            | Self::Balance { account, .. }
            | Self::Moved { account, .. }
            | Self::Rested { account, .. }
            | Self::OrderClosed { account, .. } => (Some(*account), None),
            Self::Requested(request) | Self::Locked(request) | Self::Decided { request, .. } => {
                (Some(request.account), None)
            }
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
