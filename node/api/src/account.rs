//! Defines the public JSON of accounts, of the movements of their credits, and of their requests to
//! deposit or withdraw credits.

use serde::Serialize;
use serde_json::Value;
use souk_market::{Account, Balances, Direction, MoneyRequest, PayoutLock};
use souk_roles::market::statement::{LogPlace, StatementLine};

use crate::time::format_moment;

/// An account. Amounts are in micro-credits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccountView {
    /// Its key.
    pub account: String,
    /// Its name for people.
    pub name: String,
    /// What it can spend.
    pub available: u64,
    /// What its orders, leases and withdrawals hold.
    pub escrow: u64,
    /// What it has at stake.
    pub stake: u64,
    /// What it has earned as a provider.
    pub earned: u64,
    /// How many of its orders rest in the books.
    pub open_orders: u32,
    /// How many leases that it sold are not closed.
    pub leases_sold: u32,
    /// How many leases that it bought are not closed.
    pub leases_bought: u32,
    /// From 0 to 1000.
    pub reputation: u16,
    /// Why it is frozen; null if it is not.
    pub frozen: Option<String>,
}

/// A movement of an account's credits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MovementView {
    /// Where in the log it is.
    pub place: String,
    /// When it happened.
    pub at: String,
    /// What the account had.
    pub before: BalancesView,
    /// What the account has since.
    pub after: BalancesView,
    /// What caused it: events of the market.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub causes: Vec<Value>,
}

/// What an account has, in micro-credits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BalancesView {
    /// What it can spend.
    pub available: u64,
    /// What its orders, leases and withdrawals hold.
    pub escrow: u64,
    /// What it has at stake.
    pub stake: u64,
}

/// A request of an account to deposit or withdraw credits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MoneyRequestView {
    /// The request's id.
    pub request: u64,
    /// The account that made it.
    pub account: String,
    /// `deposit` or `withdrawal`.
    pub direction: &'static str,
    /// Micro-credits.
    pub amount: u64,
    /// What identifies the payment outside the market.
    pub reference: String,
    /// When the account made it.
    pub requested_at: String,
    /// Who pays it out; null before the operators have locked it.
    pub lock: Option<LockView>,
}

/// A withdrawal that an operator has begun to pay out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LockView {
    /// The account of the operator that pays.
    pub payer: String,
    /// When the operators locked it.
    pub at: String,
}

impl From<&Account> for AccountView {
    fn from(account: &Account) -> AccountView {
        AccountView {
            account: account.key.to_string(),
            name: account.name.to_string(),
            available: account.available.0,
            escrow: account.escrow.0,
            stake: account.stake.0,
            earned: account.earned.0,
            open_orders: account.open_orders,
            leases_sold: account.open_leases,
            leases_bought: account.leases_bought,
            reputation: account.reputation.score.0,
            frozen: account.frozen.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&Balances> for BalancesView {
    fn from(balances: &Balances) -> BalancesView {
        BalancesView {
            available: balances.available.0,
            escrow: balances.escrow.0,
            stake: balances.stake.0,
        }
    }
}

impl From<&StatementLine> for MovementView {
    fn from(line: &StatementLine) -> MovementView {
        let causes = line.causes.iter().map(serde_json::to_value);
        MovementView {
            place: format_place(line.place),
            at: format_moment(line.time),
            before: BalancesView::from(&line.before),
            after: BalancesView::from(&line.after),
            causes: causes.flatten().collect(),
        }
    }
}

impl From<&MoneyRequest> for MoneyRequestView {
    fn from(request: &MoneyRequest) -> MoneyRequestView {
        MoneyRequestView {
            request: request.id.0,
            account: request.account.to_string(),
            direction: match request.direction {
                Direction::Deposit => "deposit",
                Direction::Withdrawal => "withdrawal",
            },
            amount: request.amount.0,
            reference: request.reference.to_string(),
            requested_at: format_moment(request.made),
            lock: request.lock.as_ref().map(LockView::from),
        }
    }
}

impl From<&PayoutLock> for LockView {
    fn from(lock: &PayoutLock) -> LockView {
        LockView {
            payer: lock.payer.to_string(),
            at: format_moment(lock.at),
        }
    }
}

/// Formats a place in the log: entry, command and movement, such as `17.0.2`.
#[must_use]
pub fn format_place(place: LogPlace) -> String {
    format!("{}.{}.{}", place.index, place.offset, place.part)
}

/// Parses a place in the log; returns `None` if the text is not one.
#[must_use]
pub fn parse_place(text: &str) -> Option<LogPlace> {
    let [index, offset, part] = text.split('.').collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(LogPlace {
        index: index.parse().ok()?,
        offset: offset.parse().ok()?,
        part: part.parse().ok()?,
    })
}
