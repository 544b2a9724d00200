//! Deposits and withdrawals: an account can request them and the market's operators decide.

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, RequestId};
use crate::text::Name;
use crate::units::{Credits, Millis};

/// The direction in which credits move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Into the market: confirmation credits the account.
    Deposit,
    /// Out of the market: the exchange holds the credits until confirmation removes them.
    Withdrawal,
}

/// An account's undecided request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoneyRequest {
    /// The request's id.
    pub id: RequestId,
    /// The account that made the request.
    pub account: AccountKey,
    /// Whether credits go in or out.
    pub direction: Direction,
    /// The credits to move.
    pub amount: Credits,
    /// A reference that identifies the payment outside the market: the text of a transfer, or an
    /// address to pay to.
    pub reference: Name,
    /// The log time at which the account made the request.
    pub made: Millis,
    /// The operator that must pay the request out, once the operators have locked it.
    pub lock: Option<PayoutLock>,
}

/// A withdrawal that the operators have begun to pay out; from then on only they can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayoutLock {
    /// The operator that pays: the one whose command completed the approval.
    pub payer: AccountKey,
    /// The log time of the lock.
    pub at: Millis,
}
