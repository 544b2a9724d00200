//! What is let through to raft, which trusts its messages: bytes of peers are refused, never
//! asserted.

use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::{Accusation, Replica};
use crate::batch::{Batch, BatchError, Head};
use crate::ids::{LogIndex, LogTime, ReplicaId, Term};
use crate::machine::StateMachine;
use crate::manifest::ManifestError;
use crate::snapshot::SnapshotError;
use crate::wire::WireError;

/// How far the time of an entry or a state may be ahead of the local clock, in milliseconds, unless
/// the log was there already: more than clocks differ that somebody looks after. A leader stamps
/// with what a majority's clocks show, so one that goes beyond lies, or this clock is wrong.
const AHEAD_MS_MAX: u64 = 600_000;

/// Why a peer's message was dropped.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No frame of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It claims another sender than the transport says.
    #[error("replica {from} speaks in the name of {claimed}")]
    Sender {
        /// Who sent it.
        from: ReplicaId,
        /// Whom it names.
        claimed: u64,
    },
    /// It is for someone else.
    #[error("a message for replica {0}")]
    Recipient(u64),
    /// It proposes what no replica could apply.
    #[error("replica {from} proposes an unreadable entry: {cause}")]
    Entry {
        /// Who sent it.
        from: ReplicaId,
        /// What is wrong.
        #[source]
        cause: BatchError,
    },
    /// It proposes nothing.
    #[error("replica {0} proposes nothing")]
    Empty(ReplicaId),
    /// It comes before a new group knows what time it is; the proposal will be sent again.
    #[error("no majority's clocks were heard yet")]
    NoTime,
    /// It offers no snapshot.
    #[error("replica {from} offers an unreadable snapshot: {cause}")]
    Manifest {
        /// Who sent it.
        from: ReplicaId,
        /// What is wrong.
        #[source]
        cause: ManifestError,
    },
    /// The parts of a snapshot verify, and yet make none.
    #[error("a snapshot whose parts verify is none: {0}")]
    Snapshot(#[from] SnapshotError),
    /// A snapshot is not the one that was offered, or has impossible members.
    #[error("the snapshot from replica {0} is not what it offered")]
    Unlike(ReplicaId),
    /// It offers a state for which no majority of the members vouches.
    #[error("replica {from} offers a state for which {vouched} of {members} members vouch")]
    Unvouched {
        /// Who sent it.
        from: ReplicaId,
        /// Members with a valid signature.
        vouched: usize,
        /// How many members there are.
        members: usize,
    },
    /// It offers a state for which fewer members vouch than for the one under way.
    #[error("replica {0} offers a state with fewer signatures than the one under way")]
    Fewer(ReplicaId),
    /// It offers a state again shortly after one that was refused.
    #[error("replica {0} offered a state that was refused; its offers wait")]
    Doubted(ReplicaId),
    /// It changes the members as nobody ordered.
    #[error(transparent)]
    Unordered(Accusation),
    /// It forwards a proposal to a replica that does not lead; its origin will send it again.
    #[error("this replica does not lead")]
    NotLeader,
    /// It can't be heard before what came earlier was looked at; it will be sent again.
    #[error("something in the log is not verified yet")]
    Unverified,
    /// It is from a leader that has just sent what must not be in the log.
    #[error("replica {0} sent what must not be in the log, and is not heard in this term")]
    Accused(ReplicaId),
    /// It says that more is committed than there is.
    #[error("replica {from} says that entry {commit} is committed, which is not here")]
    Commit {
        /// Who sent it.
        from: ReplicaId,
        /// What it says.
        commit: LogIndex,
    },
    /// Its entries do not follow each other.
    #[error("replica {from} sends entry {index} where it does not belong")]
    Order {
        /// Who sent it.
        from: ReplicaId,
        /// The entry.
        index: LogIndex,
    },
    /// It would replace what is committed.
    #[error("replica {from} sends another entry {index} than the one that is committed")]
    Conflict {
        /// Who sent it.
        from: ReplicaId,
        /// In which term it speaks.
        term: Term,
        /// The entry.
        index: LogIndex,
    },
    /// It would set the log's clock to a time to come.
    #[error("replica {from} sends an entry or a state of {time}, far ahead of the clock here")]
    Ahead {
        /// Who sent it.
        from: ReplicaId,
        /// The time in it.
        time: LogTime,
    },
    /// raft dropped it, as it may.
    #[error("raft dropped it: {0}")]
    Dropped(#[from] raft::Error),
}

impl<M: StateMachine> Replica<M> {
    /// Lets only messages through that raft can bear.
    pub(super) fn admit(&self, from: ReplicaId, message: &Message) -> Result<(), StepError> {
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
        // What came in an earlier term is looked at first, while it is known who sent it.
        let unstable = !self.raw.raft.raft_log.unstable_entries().is_empty();
        match unstable && message.term > self.raw.raft.term {
            true => Err(StepError::Unverified),
            false => Ok(()),
        }
    }

    /// Entries must follow each other, be readable, leave alone what is committed, and not be of a
    /// time to come.
    fn admit_entries(&self, from: ReplicaId, message: &Message) -> Result<(), StepError> {
        let log = &self.raw.raft.raft_log;
        let mut before = (message.index, message.log_term);
        // Nobody's log begins at zero: a first state comes as a snapshot.
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
            // raft has term 0 for what a snapshot took the place of: it can't be compared any more.
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
        let head = Head::of(&entry.data).map_err(|cause| StepError::Entry { from, cause })?;
        self.admit_time(from, head.time)
    }

    /// Refuses a time far ahead of the local clock, unless the log was there already.
    pub(super) fn admit_time(&self, from: ReplicaId, time: LogTime) -> Result<(), StepError> {
        let latest = self.clocks.local().0.saturating_add(AHEAD_MS_MAX);
        match time.0 > latest && time > self.time {
            true => Err(StepError::Ahead { from, time }),
            false => Ok(()),
        }
    }

    /// Another replica wants a batch in the log of this one, if it leads.
    pub(super) fn on_forwarded(
        &mut self,
        from: ReplicaId,
        message: Message,
    ) -> Result<(), StepError> {
        if !self.is_leader() {
            return Err(StepError::NotLeader);
        }
        if self.stamp() == LogTime(0) {
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
