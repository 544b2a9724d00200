//! The trait [`StateMachine`], through which a replica uses the machine that it replicates: it
//! verifies and applies commands, and takes and restores snapshots of its state. In production the
//! machine is the market's exchange, which this crate does not know.

use std::collections::BTreeSet;
use std::fmt;

use souk_proof::{Digest, LogTime, Position};

use crate::ids::ReplicaId;
use crate::voucher::{OfferedState, Tally};

/// The error of a machine that cannot restore a snapshot's bytes.
#[derive(Debug, thiserror::Error)]
#[error("the state machine refused the snapshot")]
pub struct RestoreError {
    /// The machine's reason.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// The error of a machine that cannot apply entries from some time on.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct MachineFailure {
    /// The machine's reason, which says what to do.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// Why a command is refused as forged: its author has not signed it.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct CommandFault {
    /// The machine's reason, which names the account.
    #[source]
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

/// One step of a change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a new replica, which receives the log and has no vote.
    AddLearner(ReplicaId),
    /// Grants a vote to a learner that caught up.
    Promote(ReplicaId),
    /// Removes a replica permanently.
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

/// The state's judgement of a change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeStanding {
    /// The operators ordered it, so replicas carry it out.
    Ordered,
    /// The operators ordered it and then cancelled it. An honest leader can have proposed it; it
    /// has no effect.
    Outdated,
    /// No operator ordered it, as far as this state shows.
    Unordered,
}

/// A deterministic state machine: equal inputs in equal order give equal states and results on
/// every replica, independent of the hardware, the time and the layout of memory.
///
/// No method can fail: a wrong command must get a result that refuses it.
pub trait StateMachine {
    /// A command with a verified author, ready to apply.
    type Command;

    /// Decodes a command and checks it without the state, that is, the signature of its author.
    /// This costs more than everything else and needs nothing of the replica, so callers should do
    /// it on their own threads; see [`crate::Check`].
    ///
    /// # Errors
    /// If the command must be neither proposed nor in the log.
    fn verify_command(command: &[u8]) -> Result<Self::Command, CommandFault>;

    /// Gives the results of [`StateMachine::verify_command`] for each command, in order. A machine
    /// can check many signatures faster together.
    fn verify_each(commands: &[&[u8]]) -> Vec<Result<Self::Command, CommandFault>> {
        commands.iter().map(|it| Self::verify_command(it)).collect()
    }

    /// Returns why this build of the machine can apply nothing at `now`, if other builds act
    /// differently from then on. The replica will stop before that time.
    fn unsupported_reason(&self, _now: LogTime) -> Option<MachineFailure> {
        None
    }

    /// Applies one command and returns its result, which the replica sends to the proposer.
    fn apply_command(&mut self, at: Position, now: LogTime, command: &Self::Command) -> Vec<u8>;

    /// Returns the digest of all that the last application or tick caused besides its result, for
    /// the history; see [`souk_proof::Leaf`]. A machine whose applications do more than their
    /// results say must override this.
    fn events_digest(&self) -> Digest {
        Digest::for_content(&[])
    }

    /// Returns whether clients will want to prove the last application: then its command and result
    /// leave the replica as a [`souk_proof::SealedLeaf`].
    fn is_proof_due(&self) -> bool {
        false
    }

    /// Advances time without a command and returns the consequences as the result.
    fn tick(&mut self, at: Position, now: LogTime) -> Vec<u8>;

    /// Returns the next time at which time alone causes a change. The leader proposes a tick once
    /// its clock has passed that time, and never if there is none.
    fn wakes_at(&self) -> Option<LogTime>;

    /// Returns the state's judgement of a change of members. An answer other than
    /// [`ChangeStanding::Unordered`] must never become that again. A machine without an opinion
    /// leaves the members to the leader.
    fn judge_change(&self, _change: MemberChange) -> ChangeStanding {
        ChangeStanding::Ordered
    }

    /// Signs a statement as this replica; returns no bytes if members have no keys.
    fn sign_statement(&self, _statement: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    /// Returns whether a member signed a statement. A machine without keys believes every sender.
    fn has_signed(&self, _by: ReplicaId, _statement: &[u8], _signature: &[u8]) -> bool {
        true
    }

    /// Counts the members that must vouch for a state that another replica offers, and those that
    /// do. A machine that replicates the list of possible members also counts those that joined
    /// since; see [`OfferedState`].
    fn count_vouchers(&self, offered: &OfferedState<'_>) -> Tally {
        let members = match offered.known.is_empty() {
            true => offered.voters,
            false => offered.known,
        };
        let statement = offered.certificate.statement.signing_bytes();
        let vouchers = offered.certificate.vouchers.iter();
        let valid = vouchers.filter(|it| {
            members.contains(&it.by) && self.has_signed(it.by, &statement, &it.signature)
        });
        Tally {
            members: members.len(),
            vouched: valid.map(|it| it.by).collect::<BTreeSet<_>>().len(),
        }
    }

    /// Returns a digest that is quick to read, changes with every application and does not depend
    /// on the layout of memory. It need not cover the whole state, because replicas also sign a
    /// digest of all bytes of [`StateMachine::snapshot`].
    fn digest(&self) -> [u8; 32];

    /// Returns the root of the state, which depends on the state alone, for tree heads. A machine
    /// with a large state must override this: it needs to hash only what changed since the last
    /// call.
    fn state_root(&mut self) -> Digest {
        Digest::for_content(&self.snapshot())
    }

    /// Encodes the whole state. [`StateMachine::restore`] must accept the bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the whole state by one that [`StateMachine::snapshot`] encoded.
    ///
    /// # Errors
    /// If the bytes are not such a state; the machine may then be in any state.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError>;
}
