//! What is replicated: the border between this crate and the exchange it knows nothing of.

use std::collections::BTreeSet;
use std::fmt;

use crate::history::{Digest, History};
use crate::ids::{LogIndex, LogTime, ReplicaId};
use crate::voucher::{OfferedState, Tally};

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

/// One step of a change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Takes in a new replica that receives the log and has no vote.
    AddLearner(ReplicaId),
    /// Gives a learner that caught up a vote.
    Promote(ReplicaId),
    /// Removes a replica for good.
    Remove(ReplicaId),
}

impl fmt::Display for MemberChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddLearner(id) => write!(f, "replica {id} becomes a learner"),
            Self::Promote(id) => write!(f, "replica {id} gets a vote"),
            Self::Remove(id) => write!(f, "replica {id} leaves"),
        }
    }
}

/// What a state says about a change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeStanding {
    /// The operators want it: replicas carry it out.
    Ordered,
    /// They wanted it and no longer do. An honest leader may have proposed it; it has no effect.
    Outdated,
    /// Nobody ordered it, as far as this state goes.
    Unordered,
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

    /// What the state says about a change of members. An answer other than
    /// [`ChangeStanding::Unordered`] must never become that again. A machine without an opinion
    /// leaves the members to the leader.
    fn judge_change(&self, _change: MemberChange) -> ChangeStanding {
        ChangeStanding::Ordered
    }

    /// This replica's signature; empty where members have no keys.
    fn sign(&self, _statement: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    /// Whether a member signed a statement. A machine without keys believes every sender.
    fn has_signed(&self, _by: ReplicaId, _statement: &[u8], _signature: &[u8]) -> bool {
        true
    }

    /// Who must vouch for a state that another replica offers, and who has. A machine that
    /// replicates who may become a member also counts those that joined since; see
    /// [`OfferedState`].
    fn tally(&self, offered: &OfferedState<'_>) -> Tally {
        let members = match offered.known.is_empty() {
            true => offered.voters,
            false => offered.known,
        };
        let statement = offered.certificate.statement.bytes();
        let vouchers = offered.certificate.vouchers.iter();
        let valid = vouchers.filter(|it| {
            members.contains(&it.by) && self.has_signed(it.by, &statement, &it.signature)
        });
        Tally {
            members: members.len(),
            vouched: valid.map(|it| it.by).collect::<BTreeSet<_>>().len(),
        }
    }

    /// A digest that is quick to read and changes with everything applied, in an
    /// order that does not depend on memory. It need not cover the whole state: replicas also sign
    /// a digest of everything that [`StateMachine::snapshot`] gives.
    fn digest(&self) -> [u8; 32];

    /// The whole state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the whole state by what [`StateMachine::snapshot`] gave.
    ///
    /// # Errors
    /// When the bytes are not such a state; the machine may then be in any state.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError>;
}
