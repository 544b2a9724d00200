//! Lists the moments for which a job core sets timers, such as the job's deadline or an overdue
//! heartbeat.

use serde::{Deserialize, Serialize};

use super::event::Leg;
use super::state::AttemptPurpose;

/// The moments that a job core awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Timer {
    /// The job reaches its deadline.
    Deadline,
    /// The core looks at the book or the escrow again.
    LookAgain(AttemptPurpose),
    /// The core warns the caller of a session that the attempt's leases end soon.
    Warn(u32),
    /// The attempt sends its last request.
    SendDeadline(u32),
    /// The attempt stops waiting for answers.
    AnswerDeadline(u32),
    /// The attempt's first lease ends.
    LeaseEnd(u32),
    /// Half of the remaining lease time is over; the core can extend the leases.
    Extend(u32),
    /// The core reports to the log that a leg's work has begun.
    Start(Leg),
    /// A provider's heartbeat is overdue.
    Silent(Leg),
    /// The core must answer a usage note of a leg at work.
    Note(Leg),
    /// A part is overdue.
    Patience { leg: Leg, request: u32, part: u32 },
    /// The last result of a leg that the core stopped is overdue.
    LastResult(Leg),
    /// The core contacts a provider at work again.
    AskAgain(Leg),
    /// The core decides on a leg in doubt.
    Decide(Leg),
    /// The core looks for running leases one last time.
    LookLast,
}

impl Timer {
    /// Returns the leg whose conversation the timer belongs to.
    pub(super) fn leg(self) -> Option<Leg> {
        match self {
            Timer::Start(leg)
            | Timer::Silent(leg)
            | Timer::Note(leg)
            | Timer::Patience { leg, .. }
            | Timer::LastResult(leg)
            | Timer::AskAgain(leg) => Some(leg),
            _ => None,
        }
    }
}
