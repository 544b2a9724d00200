//! The events that can happen to a validator.

use bytes::Bytes;
use souk_consensus::replica::{MemberChange, Proposal, RoundWork};
use souk_consensus::{LogIndex, LogTime, ReplicaId, Snapshot, Verdict};

use super::questions::AnsweringMachine;

/// The id of a caller. The driver of a core chooses it and the response repeats it; the core does
/// not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// It reflects everything acknowledged anywhere before the question.
    Linearizable,
    /// It reflects this validator's own state; [`ReadMoment`] gives its age.
    Stale,
}

/// The state that an answer reflects.
#[derive(Clone, Copy, Debug)]
pub struct ReadMoment {
    /// The last entry applied here.
    pub applied: LogIndex,
    /// The log's clock.
    pub time: LogTime,
    /// Milliseconds since this validator last heard from a leader; 0 if it leads.
    pub age_ms: u64,
}

/// An event that can happen to a validator. While the disk writes, only verdicts may come before
/// the event that reports the write.
pub enum Event<M: AnsweringMachine> {
    /// A peer sent a message; the transport authenticated it.
    Peer {
        /// The peer that sent it.
        from: ReplicaId,
        /// The bytes of the message.
        bytes: Bytes,
    },
    /// A caller proposes verified commands, all or none. Response: `Proposed`, `Foreseen` or
    /// `Refused`.
    Propose {
        /// The caller that proposes.
        caller: Caller,
        /// The commands, in order.
        commands: Vec<Proposal<M::Command>>,
    },
    /// A caller reads the machine. Response: `Answered` or `Refused`.
    Ask {
        /// The caller that reads.
        caller: Caller,
        /// How fresh the answer must be.
        consistency: Consistency,
        /// The question to the machine.
        question: M::Question,
    },
    /// The network does not reach a peer.
    Unreachable(ReplicaId),
    /// A caller changes the members. Response: `Members`.
    Members {
        /// The caller that changes the members.
        caller: Caller,
        /// The changes, which take effect together.
        changes: Vec<MemberChange>,
    },
    /// Another voter should lead.
    Transfer(ReplicaId),
    /// A check has ended.
    Verdict(Verdict<M::Command>),
    /// The work of a round is durable.
    Persisted(Box<RoundWork>),
    /// A snapshot is durable, and the entries that it replaces are deleted.
    Kept {
        /// The snapshot that is durable.
        snapshot: Box<Snapshot>,
        /// The first entry that the disk still has.
        keep_from: LogIndex,
    },
    /// No other event came before the moment that the core requested.
    TimerFired,
}
