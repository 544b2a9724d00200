//! Credits on their way in or out: what an account asks for and the market's operator decides.

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, RequestId};
use crate::text::Name;
use crate::units::{Credits, Millis};

/// Which way credits are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Into the market: the account is credited once it is confirmed.
    Deposit,
    /// Out of it: the credits are held until then, and gone after.
    Withdrawal,
}

/// An account's request that is not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoneyRequest {
    /// Its id.
    pub id: RequestId,
    /// Whose.
    pub account: AccountKey,
    /// In or out.
    pub direction: Direction,
    /// How much.
    pub amount: Credits,
    /// What it is known by outside: a transfer's text, an address to pay to.
    pub reference: Name,
    /// When it was made.
    pub made: Millis,
    /// Who pays it out, once the operators have locked it.
    pub lock: Option<PayoutLock>,
}

/// A withdrawal that the operators have begun to pay out: from then on their answer alone ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayoutLock {
    /// The operator that pays: the last of those whose word it took.
    pub payer: AccountKey,
    /// When it was locked.
    pub at: Millis,
}
