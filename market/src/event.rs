//! The events by which the exchange reports what each batch changed. A reader of all events in
//! order knows every order, lease and balance.

use serde::{Deserialize, Serialize};

use crate::dispute::{DisputeId, DisputeState};
use crate::ids::{AccountKey, LeaseId, OrderId};
use crate::lease::{CloseReason, NoteState};
use crate::order::{Side, Trade};
use crate::request::MoneyRequest;
use crate::rules::Upgrade;
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Price, Units};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An account was opened.
    Registered {
        /// The new account.
        account: AccountKey,
    },
    /// The exchange forgot an account that held less than a deposit, to make room for another.
    Forgotten {
        /// The forgotten account.
        account: AccountKey,
    },
    /// A command, or the passing of time, changed an account's balances.
    Balance {
        /// The account whose balances changed.
        account: AccountKey,
        /// The balances before.
        before: Balances,
        /// The balances after.
        after: Balances,
    },
    /// Credits of one account moved for a reason that no other event names.
    Moved {
        /// The account whose credits moved.
        account: AccountKey,
        /// Why they moved.
        reason: MoveReason,
        /// The credits that moved.
        amount: Credits,
    },
    /// An account asked the operators for a deposit or a withdrawal of credits.
    Requested(MoneyRequest),
    /// The operators began to pay a withdrawal out.
    Locked(MoneyRequest),
    /// A request ended.
    Decided {
        /// The request as it was at its end.
        request: MoneyRequest,
        /// Whether the operators confirmed it; otherwise it was refused or made room for another.
        confirmed: bool,
        /// The reason, unless it was confirmed.
        reason: Name,
    },
    /// An operator gave a command that needs more than one operator.
    Approved {
        /// The number of the command's approval.
        approval: u64,
        /// The operator that gave the command.
        account: AccountKey,
        /// The operators that have given the command so far.
        given: u32,
        /// The operators that must give it.
        needed: u32,
    },
    /// The operators froze an account.
    Frozen {
        /// The frozen account.
        account: AccountKey,
        /// The operators' reason, for all to read.
        reason: Name,
    },
    /// The operators thawed an account.
    Thawed {
        /// The thawed account.
        account: AccountKey,
    },
    /// The operators announced a change of the rules.
    RulesDue {
        /// The number of the change.
        change: u64,
        /// The log time at which it takes effect.
        at: Millis,
    },
    /// A change of the rules took effect.
    RulesChanged {
        /// The number of the change.
        change: u64,
    },
    /// The operators cancelled an announced change.
    RulesKept {
        /// The number of the change.
        change: u64,
    },
    /// The operators announced another version of the rules.
    UpgradeDue(Upgrade),
    /// Another version of the rules applies.
    Upgraded {
        /// The version that applies now.
        to: u16,
    },
    /// One account transferred credits to another.
    Transferred {
        /// The sending account.
        from: AccountKey,
        /// The receiving account.
        to: AccountKey,
        /// The credits transferred.
        amount: Credits,
        /// The purpose of the transfer.
        reference: Name,
    },
    /// An order rests in the book.
    Rested {
        /// The order's account.
        account: AccountKey,
        /// The order's id.
        order: OrderId,
        /// Whether the order is a bid or an ask.
        side: Side,
        /// The order's price per device-second.
        price: Price,
        /// The units that rest.
        quantity: Units,
    },
    /// An order left the book.
    OrderClosed {
        /// The order's account.
        account: AccountKey,
        /// The order's id.
        order: OrderId,
        /// Why the order left the book.
        reason: OrderEnd,
    },
    /// A bid and an ask traded, which opened a lease.
    Traded(Trade),
    /// A buyer stated that the work of its lease has begun.
    WorkStarted {
        /// The lease whose work has begun.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
    },
    /// A provider stated that it is ready for a lease and sees no work.
    ProviderReady {
        /// The lease for which it is ready.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The log time at which the market will end the lease unless the buyer acts.
        until: Millis,
    },
    /// A provider filed a note, or the note was answered.
    Note {
        /// The lease of the note.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The usage that the note states.
        usage: DeviceMicros,
        /// The state of the note.
        state: NoteState,
    },
    /// A lease will end before its deadline.
    LeaseEnding {
        /// The lease that will end.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The log time at which the lease ends.
        at: Millis,
        /// Why it ends early.
        reason: CloseReason,
    },
    /// A lease ended: its device is free, and payment stays open until `until`.
    LeaseEnded {
        /// The lease that ended.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The log time at which the lease will close if no receipt arrives.
        until: Millis,
        /// Why it ended.
        reason: CloseReason,
    },
    /// A lease that waited for its device has started.
    LeaseStarted {
        /// The lease that started.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The log time at which the lease ends.
        deadline: Millis,
    },
    /// The buyer extended a lease.
    LeaseExtended {
        /// The lease with the new deadline.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The new deadline, in log time.
        deadline: Millis,
    },
    /// A provider lost stake for a proven fault.
    Slashed {
        /// The lease in which the fault was.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// Credits that the provider lost.
        slashed: Credits,
        /// The part of them that the buyer got.
        compensated: Credits,
    },
    /// A lease was paid and refunded.
    LeaseClosed {
        /// The closed lease.
        lease: LeaseId,
        /// The lease's buyer.
        buyer: AccountKey,
        /// The lease's provider.
        provider: AccountKey,
        /// The reason why the lease ended.
        reason: CloseReason,
        /// Credits paid to the provider.
        paid: Credits,
        /// The market's fee.
        fee: Credits,
        /// Credits returned to the buyer.
        refunded: Credits,
    },
    /// A buyer accused a provider of a wrong output.
    Accused {
        /// The dispute's id.
        dispute: DisputeId,
        /// The lease of the output.
        lease: LeaseId,
        /// The lease's buyer, who accuses.
        buyer: AccountKey,
        /// The accused provider.
        provider: AccountKey,
        /// The credits that the accuser put up.
        bond: Credits,
        /// The log time at which the dispute ends without effect.
        until: Millis,
    },
    /// A dispute was decided, or its time is over.
    DisputeClosed {
        /// The dispute's id.
        dispute: DisputeId,
        /// The lease of the output.
        lease: LeaseId,
        /// The lease's buyer, who accused.
        buyer: AccountKey,
        /// The accused provider.
        provider: AccountKey,
        /// How it ended.
        state: DisputeState,
    },
}

/// An account's credits by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Balances {
    /// Credits that the account can spend or withdraw.
    pub available: Credits,
    /// Credits that its orders, leases and withdrawal requests hold.
    pub escrow: Credits,
    /// Credits at stake.
    pub stake: Credits,
}

/// Why credits of one account moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// The operators credited the account.
    Credited,
    /// The operators collected the market's earnings.
    Collected,
    /// The account staked the credits.
    Staked,
    /// The account took the credits back from stake.
    Unstaked,
    /// The exchange forgot the account, which held less than a deposit, to make room in a full
    /// market.
    Forfeited,
}

/// Why an order left the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderEnd {
    /// The order traded in full.
    Filled,
    /// The account cancelled the order, or amended it to a new one.
    Cancelled,
    /// The order expired.
    Expired,
    /// The exchange cancelled the part that could not trade at once, as the time in force says.
    Unfilled,
    /// The market was full of orders, classes or accounts, and evicted the order, which held less
    /// than a deposit.
    Evicted,
    /// The operators froze the account.
    Frozen,
}

impl Event {
    /// Returns the accounts that the event concerns, two at most.
    pub fn involved_accounts(&self) -> impl Iterator<Item = AccountKey> {
        let (first, second) = match self {
            Self::RulesDue { .. }
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
            }
            | Self::Accused {
                buyer, provider, ..
            }
            | Self::DisputeClosed {
                buyer, provider, ..
            } => (Some(*buyer), Some(*provider)),
        };
        first.into_iter().chain(second)
    }
}
