//! Checks every message of a peer before raft-rs sees it, because raft-rs trusts its messages. A
//! bad message must cause a refusal and never a panic.

use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::{Accusation, Replica};
use crate::batch::{Batch, BatchError, BatchHeader};
use crate::ids::{ReplicaId, Term};
use crate::machine::StateMachine;
use crate::manifest::ManifestError;
use crate::snapshot::SnapshotError;
use crate::wire::WireError;
use souk_proof::{LogIndex, LogTime};

/// How far the time of an entry or a state can be ahead of the local clock, in milliseconds, unless
/// the log already has that time: more than the differences between maintained clocks. A leader
/// stamps entries with the time that a majority's clocks show, so if it exceeds this, the leader
/// lies or the local clock is wrong.
const AHEAD_MS_MAX: u64 = 600_000;

/// Why a replica dropped a peer's message.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The bytes are no frame of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It names another sender than the transport does.
    #[error("replica {from} sent a message in the name of replica {claimed}")]
    Sender {
        /// The replica that sent it.
        from: ReplicaId,
        /// The replica that it names.
        claimed: u64,
    },
    /// It is for another replica.
    #[error("a message for replica {0}")]
    Recipient(u64),
    /// It proposes an entry that no replica could apply.
    #[error("replica {from} proposes an unreadable entry: {cause}")]
    Entry {
        /// The replica that sent it.
        from: ReplicaId,
        /// The fault in the entry.
        #[source]
        cause: BatchError,
    },
    /// It proposes no entry.
    #[error("the proposal of replica {0} has no entry")]
    Empty(ReplicaId),
    /// It comes before the new group has agreed on the time; its origin will send the proposal
    /// again.
    #[error("the clocks of a majority are not known yet")]
    NoTime,
    /// It offers a snapshot that cannot be read.
    #[error("replica {from} offers an unreadable snapshot: {cause}")]
    Manifest {
        /// The replica that sent it.
        from: ReplicaId,
        /// The fault in the offer.
        #[source]
        cause: ManifestError,
    },
    /// The parts of a snapshot verify, but do not form a snapshot.
    #[error("the parts of the snapshot verify, but it cannot be read: {0}")]
    Snapshot(#[from] SnapshotError),
    /// The snapshot differs from its offer, or has impossible members.
    #[error("the snapshot from replica {0} is not what it offered")]
    Unlike(ReplicaId),
    /// It offers a state for which no majority of the members vouches.
    #[error("replica {from} offers a state for which {vouched} of {members} members vouch")]
    Unvouched {
        /// The replica that sent it.
        from: ReplicaId,
        /// The members with a valid signature.
        vouched: usize,
        /// The members that could sign.
        members: usize,
    },
    /// It offers a state for which fewer members vouch than for the one in transfer.
    #[error("replica {0} offers a state with fewer signatures than the one under way")]
    Fewer(ReplicaId),
    /// It offers a state shortly after this replica refused an earlier offer of the sender.
    #[error("replica {0} offered a state that was refused; its offers wait")]
    Doubted(ReplicaId),
    /// It contains a change of members that no operator ordered.
    #[error(transparent)]
    Unordered(Accusation),
    /// It forwards a proposal to a replica that does not lead; its origin will send it again.
    #[error("this replica is not the leader")]
    NotLeader,
    /// This replica must first verify earlier entries; the sender will repeat the message.
    #[error("an entry in the log is not verified yet")]
    Unverified,
    /// It comes from a leader that has just sent an entry that must not be in the log.
    #[error("replica {0} sent an entry that must not be in the log; it is ignored in this term")]
    Accused(ReplicaId),
    /// It states as committed an entry that this log does not hold.
    #[error("replica {from} says that entry {commit} is committed; it is missing here")]
    Commit {
        /// The replica that sent it.
        from: ReplicaId,
        /// The entry that it states as committed.
        commit: LogIndex,
    },
    /// Its entries are not consecutive.
    #[error("replica {from} sends entry {index} where it does not belong")]
    Order {
        /// The replica that sent it.
        from: ReplicaId,
        /// The entry out of place.
        index: LogIndex,
    },
    /// It would replace a committed entry.
    #[error("replica {from} sends an entry {index} that differs from the committed one")]
    Conflict {
        /// The replica that sent it.
        from: ReplicaId,
        /// The term of the message.
        term: Term,
        /// The entry in conflict.
        index: LogIndex,
    },
    /// It would set the log's clock far into the future.
    #[error("replica {from} sends an entry or a state of {time}, far ahead of the clock here")]
    Ahead {
        /// The replica that sent it.
        from: ReplicaId,
        /// The time in the message.
        time: LogTime,
    },
    /// raft-rs dropped it, as it can.
    #[error("raft dropped it: {0}")]
    Dropped(#[from] raft::Error),
}

impl<M: StateMachine> Replica<M> {
    /// Admits only messages that raft can process safely.
    pub(super) fn admit_message(
        &self,
        from: ReplicaId,
        message: &Message,
    ) -> Result<(), StepError> {
        use MessageType::{
            MsgAppend, MsgHeartbeat, MsgPropose, MsgReadIndex, MsgSnapshot, MsgTimeoutNow,
            MsgTransferLeader,
        };
        let kind = message.get_msg_type();
        let forwarded = matches!(kind, MsgPropose | MsgReadIndex | MsgTransferLeader);
        if message.from != from.get() && !forwarded {
            return Err(StepError::Sender {
                from,
                claimed: message.from,
            });
        }
        if message.to != self.config.id.get() {
            return Err(StepError::Recipient(message.to));
        }
        if matches!(kind, MsgPropose | MsgReadIndex) && message.entries.is_empty() {
            return Err(StepError::Empty(from));
        }
        if kind == MsgTimeoutNow && self.has_unverified() {
            return Err(StepError::Unverified);
        }
        if matches!(kind, MsgAppend | MsgHeartbeat | MsgSnapshot) {
            self.admit_leader(from, message)?;
        }
        match kind {
            MsgAppend => self.admit_entries(from, message),
            MsgHeartbeat => {
                let last = self.raw.raft.raft_log.last_index();
                let commit = LogIndex(message.commit);
                match message.term >= self.raw.raft.term && commit.0 > last {
                    true => Err(StepError::Commit { from, commit }),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn admit_leader(&self, from: ReplicaId, message: &Message) -> Result<(), StepError> {
        if self.is_accused(message) {
            return Err(StepError::Accused(from));
        }
        // Entries of an earlier term must be verified first, while this replica knows who sent
        // them.
        let unstable = !self.raw.raft.raft_log.unstable_entries().is_empty();
        match unstable && message.term > self.raw.raft.term {
            true => Err(StepError::Unverified),
            false => Ok(()),
        }
    }

    /// Checks that entries are consecutive and readable, replace no committed entry, and have no
    /// time far in the future.
    fn admit_entries(&self, from: ReplicaId, message: &Message) -> Result<(), StepError> {
        let log = &self.raw.raft.raft_log;
        let mut before = (message.index, message.log_term);
        // No log begins at zero, because the first state comes as a snapshot.
        if message.index == 0 {
            let index = LogIndex(0);
            return Err(StepError::Order { from, index });
        }
        for entry in &message.entries {
            let (index, term) = (entry.index, entry.term);
            let follows =
                index.checked_sub(1) == Some(before.0) && term >= before.1 && term <= message.term;
            if !follows {
                let index = LogIndex(index);
                return Err(StepError::Order { from, index });
            }
            // raft reports term 0 for an entry that a snapshot replaced: it cannot be compared any
            // more.
            let here = log.term(index).unwrap_or(0);
            if index <= log.committed && here != 0 && here != term {
                let index = LogIndex(index);
                let term = Term(message.term);
                return Err(StepError::Conflict { from, term, index });
            }
            self.admit_entry(from, entry)?;
            before = (index, term);
        }
        Ok(())
    }

    fn admit_entry(&self, from: ReplicaId, entry: &Entry) -> Result<(), StepError> {
        if entry.get_entry_type() != EntryType::EntryNormal || entry.data.is_empty() {
            return Ok(());
        }
        let head = BatchHeader::from_entry_data(&entry.data)
            .map_err(|cause| StepError::Entry { from, cause })?;
        self.admit_time(from, head.time)
    }

    /// Refuses a time far ahead of the local clock, unless the log already has that time.
    pub(super) fn admit_time(&self, from: ReplicaId, time: LogTime) -> Result<(), StepError> {
        let latest = self.clocks.local_time().0.saturating_add(AHEAD_MS_MAX);
        match time.0 > latest && time > self.time {
            true => Err(StepError::Ahead { from, time }),
            false => Ok(()),
        }
    }

    /// Appends a batch that another replica forwarded, if this replica leads.
    pub(super) fn on_forwarded(
        &mut self,
        from: ReplicaId,
        message: Message,
    ) -> Result<(), StepError> {
        if !self.is_leader() {
            return Err(StepError::NotLeader);
        }
        if self.entry_time() == LogTime(0) {
            return Err(StepError::NoTime);
        }
        for entry in message.entries {
            let is_batch = entry.get_entry_type() == EntryType::EntryNormal;
            let batch = Batch::decode(entry.data.clone());
            let batch = batch.map_err(|cause| StepError::Entry { from, cause })?;
            if !is_batch || batch.commands.is_empty() {
                return Err(StepError::Empty(from));
            }
            if batch.id.origin != from {
                let claimed = batch.id.origin.get();
                return Err(StepError::Sender { from, claimed });
            }
            self.verify_forwarded(from, batch, entry.data);
        }
        Ok(())
    }
}
