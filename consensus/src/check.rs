//! Commands to be verified, and what came of it.
//!
//! The crate knows no signature: a [`Check`] goes out as an effect, the caller runs it on any
//! thread, and its [`Verdict`] comes back as an input.

use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

use crate::batch::{Batch, BatchError};
use crate::ids::LogIndex;
use crate::machine::{CommandFault, MemberChange, StateMachine};

/// Names one check until its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckTicket(pub u64);

/// The commands of one batch, which another replica took in.
#[derive(Clone, Debug)]
pub struct Check {
    /// What its verdict names.
    pub ticket: CheckTicket,
    /// The commands.
    pub commands: Vec<Bytes>,
}

/// What a check came to.
#[derive(Debug)]
pub struct Verdict<C> {
    /// The check.
    pub ticket: CheckTicket,
    /// Each command, ready to be applied, or the first that is forged.
    pub outcome: Result<Vec<C>, ForgedCommand>,
}

/// A command that its author did not sign.
#[derive(Clone, Debug, thiserror::Error)]
#[error("command {offset} is forged: {cause}")]
pub struct ForgedCommand {
    /// Its place in the batch, from zero.
    pub offset: usize,
    /// What is wrong with it; it names the account.
    #[source]
    pub cause: Arc<CommandFault>,
}

impl Check {
    /// Verifies the commands of all checks together; their verdicts are in the same order.
    #[must_use]
    pub fn run_all<M: StateMachine>(checks: &[Self]) -> Vec<Verdict<M::Command>> {
        let commands = checks.iter().flat_map(|it| &it.commands);
        let commands: Vec<&[u8]> = commands.map(|it| &**it).collect();
        let verified = M::verify_each(&commands);
        assert_eq!(verified.len(), commands.len(), "each was verified");
        let mut verified = verified.into_iter();
        let verdict = |check: &Self| {
            let of_check = verified
                .by_ref()
                .take(check.commands.len())
                .collect::<Vec<_>>();
            let forged = |(offset, it): (usize, Result<M::Command, CommandFault>)| {
                it.map_err(|cause| ForgedCommand {
                    offset,
                    cause: Arc::new(cause),
                })
            };
            Verdict {
                ticket: check.ticket,
                outcome: of_check.into_iter().enumerate().map(forged).collect(),
            }
        };
        checks.iter().map(verdict).collect()
    }
}

/// The batch in an entry, if it holds one; its index is the ticket of the check of it.
pub(crate) fn batch_of(entry: &Entry) -> Option<Result<Batch, BatchError>> {
    let batch = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
    batch.then(|| Batch::decode(entry.data.clone()))
}

/// What is to be verified of entries that were found on disk, before anything rests on them.
/// Each check's ticket is its entry's index. What can't be read has no check.
#[must_use]
pub fn checks_of(entries: &[Entry]) -> Vec<Check> {
    let check = |entry: &Entry| {
        let batch = batch_of(entry)?.ok()?;
        (!batch.commands.is_empty()).then(|| Check {
            ticket: CheckTicket(entry.index),
            commands: batch.commands,
        })
    };
    entries.iter().filter_map(check).collect()
}

/// An entry that must not be in the log: found by this replica, sent by its leader.
#[derive(Clone, Debug, thiserror::Error)]
#[error("entry {index} must not be in the log: {fault}")]
pub struct EntryFault {
    /// The entry.
    pub index: LogIndex,
    /// What is wrong with it.
    #[source]
    pub fault: Fault,
}

/// Why an entry must not be in the log.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// Someone's signature does not hold.
    #[error(transparent)]
    Forged(#[from] ForgedCommand),
    /// It is in this replica's name, which sent no such batch.
    #[error("it names this replica as its origin, which did not send it")]
    Framed,
    /// It is no batch.
    #[error("it can't be read: {0}")]
    Unreadable(#[from] BatchError),
    /// It changes the members otherwise than the machine's state says.
    #[error("it changes the members as nobody ordered: {0}")]
    Unordered(MemberChange),
    /// It changes a member that no replica can be.
    #[error("it changes a member with the id 0")]
    NoMember,
}
