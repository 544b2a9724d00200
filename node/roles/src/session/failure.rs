//! The reasons why a step has no output.

use serde::{Deserialize, Serialize};
use souk_market::Credits;

use crate::job::End;

/// Why a step, or a whole text, failed. The shell makes the texts for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionFailure {
    /// The last quote of a session failed.
    NotQuoted {
        /// The session's number.
        session: u32,
        /// The whole budget of the session; none for no limit.
        budget: Option<Credits>,
        /// The part of it that is neither paid nor held.
        left: Option<Credits>,
    },
    /// The job of a session could not begin.
    NotOpened {
        /// The session's number.
        session: u32,
    },
    /// The job of a session ended, and the core buys no other one.
    Ended {
        /// The session's number.
        session: u32,
        /// How the job ended.
        end: End,
    },
    /// Sessions end before they make a token.
    EndsBeforeToken {
        /// The number of the last session.
        session: u32,
    },
    /// The user stopped the text while it waited for a session.
    Interrupted,
    /// The sessions were finished before the step was done.
    Finished,
    /// The sequence has another step in progress.
    Busy,
    /// The core does not know the tokens of the step, or those before it.
    UnknownTokens,
    /// Two sessions differ, and no third one decides.
    Undecided {
        /// The numbers of the two sessions.
        sessions: [u32; 2],
        /// The position of the token that differs.
        position: usize,
    },
    /// Two sessions differ, and a third one differs from both.
    ThirdDiffers {
        /// The numbers of the two sessions.
        sessions: [u32; 2],
        /// The position of the token that differs.
        position: usize,
    },
}
