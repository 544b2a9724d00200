//! Defines positions and times in the replicated log, and the tree head, which summarises the
//! history and the state at one entry.

use std::fmt;

use crate::digest::Digest;

/// The position of an entry in the log; the genesis snapshot has index 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogIndex(pub u64);

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Milliseconds since the Unix epoch, as a leader stamped them; in the log, time never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogTime(pub u64);

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// The position of an applied command in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The index of the entry.
    pub index: LogIndex,
    /// The command's index in the entry.
    pub offset: u32,
}

/// A summary of the market's history and state at one entry of the log, which validators sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHead {
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The log's clock at that entry.
    pub time: LogTime,
    /// The number of leaves.
    pub size: u64,
    /// The root of the tree.
    pub root: Digest,
    /// The root of the state; none in a head that an earlier release of souk signed.
    pub state: Option<Digest>,
}

impl TreeHead {
    /// Returns whether no honest validator signs both heads: one size has one root and one state.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        let states_differ =
            self.state.is_some() && other.state.is_some() && self.state != other.state;
        self.size == other.size && (self.root != other.root || states_differ)
    }
}
