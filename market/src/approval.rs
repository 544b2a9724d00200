//! A command of the operators that not enough of them have given yet.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::ids::AccountKey;
use crate::units::Millis;

/// How long the others have to give the same command: a day of log time.
pub const APPROVAL_LIFE: Millis = Millis(24 * 3_600_000);

/// Commands that one operator may have begun at a time.
pub const APPROVALS_MAX: usize = 16;

/// A command that waits for more operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Its number, from 1.
    pub id: u64,
    /// What is to be done.
    pub command: Command,
    /// Who has given it, in this order.
    pub given: Vec<AccountKey>,
    /// When it is forgotten.
    pub until: Millis,
}
