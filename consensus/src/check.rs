//! The check of a batch's signatures, which a replica requests from its caller, and the verdict
//! that it gets back. A replica counts batches of other replicas only after their verdict.
//!
//! The crate knows no signatures: it returns a [`Check`] as an effect. The caller can run it on any
//! thread and must pass the [`Verdict`] back as an input.

use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

use crate::batch::{Batch, BatchError};
use crate::machine::{CommandFault, MemberChange, StateMachine};
use souk_proof::LogIndex;

/// Names one check until its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckTicket(pub u64);

/// The commands of one batch that another replica proposed.
#[derive(Clone, Debug)]
pub struct Check {
    /// The ticket that the verdict must carry.
    pub ticket: CheckTicket,
    /// The commands to verify.
    pub commands: Vec<Bytes>,
}

/// The result of a check.
#[derive(Debug)]
pub struct Verdict<C> {
    /// The ticket of the check.
    pub ticket: CheckTicket,
    /// The verified commands, ready to apply, or the first forged one.
    pub outcome: Result<Vec<C>, ForgedCommand>,
}

/// A command that its author did not sign.
#[derive(Clone, Debug, thiserror::Error)]
#[error("command {offset} is forged: {cause}")]
pub struct ForgedCommand {
    /// The command's index in the batch.
    pub offset: usize,
    /// The fault, which names the account.
    #[source]
    pub cause: Arc<CommandFault>,
}

impl Check {
    /// Verifies the commands of all checks together and returns the verdicts in the same order.
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

/// Decodes the batch of an entry, if the entry holds one. The entry's index is the ticket of the
/// batch's check.
pub(crate) fn batch_of(entry: &Entry) -> Option<Result<Batch, BatchError>> {
    let batch = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
    batch.then(|| Batch::decode(entry.data.clone()))
}

/// Returns the checks of entries found on disk, which must run before anything relies on the
/// entries. Each check's ticket is its entry's index. An unreadable entry has no check.
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

/// An entry that must not be in the log, because this replica found a fault in what its leader
/// sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error("entry {index} must not be in the log: {fault}")]
pub struct EntryFault {
    /// The index of the entry.
    pub index: LogIndex,
    /// The fault in it.
    #[source]
    pub fault: Fault,
}

/// Why an entry must not be in the log.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// The signature of a command does not hold.
    #[error(transparent)]
    Forged(#[from] ForgedCommand),
    /// It names this replica as its origin, and this replica did not propose it.
    #[error("it names this replica as its origin, which did not send it")]
    Framed,
    /// It is not a readable batch.
    #[error("it can't be read: {0}")]
    Unreadable(#[from] BatchError),
    /// It changes the members against the machine's state.
    #[error("it makes a change of members that was not ordered: {0}")]
    Unordered(MemberChange),
    /// It states how the members leave a joint configuration, so that they could stay in it.
    #[error("it could keep the members in a joint configuration for ever")]
    Joint,
    /// It changes a member with the id 0, which no replica can have.
    #[error("it changes a member with the id 0")]
    NoMember,
}
