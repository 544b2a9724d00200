//! Defines [`Approval`], a command of the market's operators that waits for more of them: a market
//! can require several operators to give the same command. The exchange stores it until enough have
//! given it or its time is over.

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::ids::AccountKey;
use crate::units::Millis;

/// The time within which the other operators must give the same command: a day of log time.
pub const APPROVAL_LIFE: Millis = Millis(24 * 3_600_000);

/// The most waiting commands that one operator can have begun.
pub const APPROVALS_MAX: usize = 16;

/// A command that waits for more operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The number of the approval, from 1.
    pub id: u64,
    /// The command that the operators decide on.
    pub command: Command,
    /// The operators that have given the command, in this order.
    pub given: Vec<AccountKey>,
    /// The log time at which the exchange forgets the command.
    pub until: Millis,
}
