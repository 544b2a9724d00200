//! Why content is not where it was wanted.

use thiserror::Error;

use super::Handle;
use crate::place::Place;

/// Why the bookkeeping refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HoldError {
    /// It was released, or never held.
    #[error("{handle} is not held: it was released")]
    Unknown {
        /// What.
        handle: Handle,
    },
    /// There is no copy there.
    #[error("{handle} has no copy in {place}: call ensure_on first")]
    Absent {
        /// What.
        handle: Handle,
        /// Where.
        place: Place,
    },
    /// A place without a limit holds nothing.
    #[error("{place} has no memory: set its limit first")]
    NoPool {
        /// Where.
        place: Place,
    },
    /// The place is full of what may not go.
    #[error(
        "{place} has no room for {wanted} bytes: {used} of {limit} are held and cannot be moved"
    )]
    NoRoom {
        /// Where.
        place: Place,
        /// Its limit in bytes.
        limit: u64,
        /// Bytes held.
        used: u64,
        /// Bytes wanted.
        wanted: u64,
    },
    /// No path leads there from any place that has it.
    #[error("{handle} cannot be brought to {to}: no path leads there from where it lies")]
    NoPath {
        /// What.
        handle: Handle,
        /// Where to.
        to: Place,
    },
    /// Whoever offers it states another length than it is known to have.
    #[error("{handle} has {bytes} bytes, {stated} were stated: one of both is wrong")]
    Length {
        /// What.
        handle: Handle,
        /// Its length as it is known.
        bytes: u64,
        /// The length stated.
        stated: u64,
    },
    /// A move must end first: carry out the one that was begun for it, or wait until another was.
    #[error("a move to or from {place} must end first")]
    Moving {
        /// Where.
        place: Place,
    },
    /// A device's own memory and the disk are filled by moves and by what the device makes there,
    /// a peer's by the peer.
    #[error("{place} is filled by moves and by what is made there: bring content there instead")]
    Own {
        /// Where.
        place: Place,
    },
    /// A copy is in use.
    #[error("{handle} is in use in {place}: unpin it first")]
    Pinned {
        /// What.
        handle: Handle,
        /// Where.
        place: Place,
    },
}
