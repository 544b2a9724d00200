//! What is replicated: the border between this crate and the exchange it knows nothing of.

use crate::history::{Digest, History};
use crate::ids::{LogIndex, LogTime};

/// Where in the log something was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The entry.
    pub index: LogIndex,
    /// The command inside the entry, from zero.
    pub offset: u32,
}

/// A snapshot's bytes that the machine cannot take.
#[derive(Debug, thiserror::Error)]
#[error("the state machine refused the snapshot")]
pub struct RestoreError {
    /// Why, in the machine's own words.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// What a machine can't do from some moment on.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct Unable {
    /// Why, in the machine's own words; they say what to do.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// What is wrong with a command that nobody who may command has signed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct CommandFault {
    /// Why, in the machine's own words; they name the account.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// A deterministic state machine: equal inputs in equal order give equal states and results on
/// every replica, whatever the machine, the moment or the order of its memory.
///
/// No method may fail: a command that is wrong is refused by a result that says so.
pub trait StateMachine {
    /// A command whose author was checked: what is applied.
    type Command;

    /// Reads a command and checks what can be checked of it without the state: that its author
    /// signed it. Costs more than all else and needs nothing of the replica, so the caller does it
    /// on threads of its own; see [`crate::Check`].
    ///
    /// # Errors
    /// When it must not be proposed, and must not be in the log.
    fn verify(command: &[u8]) -> Result<Self::Command, CommandFault>;

    /// What [`StateMachine::verify`] says of each, in their order: a machine may know how to check
    /// many signatures sooner together than one after the other.
    fn verify_each(commands: &[&[u8]]) -> Vec<Result<Self::Command, CommandFault>> {
        commands.iter().map(|it| Self::verify(it)).collect()
    }

    /// Why nothing may be applied at `now`, if this build of the machine can't do what the others
    /// do then: the replica stops before.
    fn unable(&self, _now: LogTime) -> Option<Unable> {
        None
    }

    /// Applies one command and returns its result, which its proposer is answered with.
    fn apply(&mut self, at: Position, now: LogTime, command: &Self::Command) -> Vec<u8>;

    /// What the history keeps of a command and its result. A machine that has hashed both before
    /// may say so; it can't be anything else, for whoever verifies a history hashes them again.
    fn leaf(&self, _at: Position, command: &[u8], result: &[u8]) -> Digest {
        History::leaf(command, result)
    }

    /// Lets time pass without a command; the result tells what that caused.
    fn tick(&mut self, at: Position, now: LogTime) -> Vec<u8>;

    /// The next moment something would happen by time alone. The leader proposes a tick once its
    /// clock is past it, and never when there is none.
    fn wakes_at(&self) -> Option<LogTime>;

    /// BLAKE3 of the whole state, in an order that does not depend on memory.
    fn digest(&self) -> [u8; 32];

    /// The whole state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the whole state by what [`StateMachine::snapshot`] gave.
    ///
    /// # Errors
    /// When the bytes are not such a state; the machine may then be in any state.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError>;
}
