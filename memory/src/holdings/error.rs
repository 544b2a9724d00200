//! Defines [`HoldError`], the reasons why [`Holdings`](super::Holdings) refuses a change.

use thiserror::Error;

use super::Handle;
use crate::location::Location;

/// Why the bookkeeping refused a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HoldError {
    /// The content was released, or never held.
    #[error("{handle} is not held: it was released")]
    Unknown {
        /// The handle of the content.
        handle: Handle,
    },
    /// The place has no copy.
    #[error("{handle} has no copy in {place}: call ensure_on first")]
    Absent {
        /// The handle of the content.
        handle: Handle,
        /// The place without a copy.
        place: Location,
    },
    /// The place has no limit, so it can hold nothing.
    #[error("{place} has no memory: set its limit first")]
    NoPool {
        /// The place without a limit.
        place: Location,
    },
    /// The place is full of copies that cannot go.
    #[error(
        "{place} has no room for {wanted} bytes: {used} of {limit} are held and cannot be moved"
    )]
    NoRoom {
        /// The full place.
        place: Location,
        /// The limit of the place, in bytes.
        limit: u64,
        /// Bytes that the place holds.
        used: u64,
        /// Bytes that the change needs.
        wanted: u64,
    },
    /// No path leads there from any place that has a copy; the owner can declare one.
    #[error("{handle} cannot be brought to {to}: no path leads there from where it lies")]
    NoPath {
        /// The handle of the content.
        handle: Handle,
        /// The place to reach.
        to: Location,
    },
    /// The party that offers the content states another length than the known one.
    #[error("{handle} has {bytes} bytes, {stated} were stated: one of them is wrong")]
    Length {
        /// The handle of the content.
        handle: Handle,
        /// The known length in bytes.
        bytes: u64,
        /// The stated length in bytes.
        stated: u64,
    },
    /// A transfer must end first: carry out the one begun for this change, or wait for another's.
    #[error("a move to or from {place} must end first")]
    Moving {
        /// The place from or to which the transfer goes.
        place: Location,
    },
    /// Only transfers, or the device itself, fill a device's own memory; only transfers fill the
    /// disk, and only the peer fills a peer's memory.
    #[error("content cannot be put in {place} directly: move it there")]
    Own {
        /// The place that the process cannot fill directly.
        place: Location,
    },
    /// A copy is in use: its users must unpin it first.
    #[error("{handle} is in use in {place}: unpin it first")]
    Pinned {
        /// The handle of the content.
        handle: Handle,
        /// The place of the copy in use.
        place: Location,
    },
}
