//! What can happen to a validator.

use bytes::Bytes;
use souk_consensus::replica::{MemberChange, Proposal, Work};
use souk_consensus::{LogIndex, LogTime, ReplicaId, Snapshot, Verdict};

use super::questions::AnsweringMachine;

/// Names who asked something. Whoever drives a core gives it, and the response carries it; the
/// core makes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// It reflects everything acknowledged anywhere before the question.
    Linearizable,
    /// Whatever this validator has; [`ReadMoment`] says how old it is.
    Stale,
}

/// What an answer reflects.
#[derive(Clone, Copy, Debug)]
pub struct ReadMoment {
    /// The last entry applied here.
    pub applied: LogIndex,
    /// The log's clock.
    pub time: LogTime,
    /// Milliseconds since this validator last heard from a leader, or is one: 0.
    pub age_ms: u64,
}

/// Everything that can happen to a validator. While something is on its way to the disk only
/// verdicts may come before the word that it is there.
pub enum Event<M: AnsweringMachine> {
    /// A peer sent something; the transport authenticated it.
    Peer {
        /// The peer.
        from: ReplicaId,
        /// What it sent.
        bytes: Bytes,
    },
    /// Verified commands are to be replicated, all or none: `Proposed` or `Refused`.
    Propose {
        /// Who asks.
        caller: Caller,
        /// The commands, in order.
        commands: Vec<Proposal<M::Command>>,
    },
    /// The machine is to be read: `Answered` or `Refused`.
    Ask {
        /// Who asks.
        caller: Caller,
        /// How fresh the answer must be.
        consistency: Consistency,
        /// The question.
        question: M::Question,
    },
    /// The network does not reach a peer.
    Unreachable(ReplicaId),
    /// The members are to change: `Members`.
    Members {
        /// Who asks.
        caller: Caller,
        /// What is to change, all at once.
        changes: Vec<MemberChange>,
    },
    /// Another voter is to lead.
    Transfer(ReplicaId),
    /// A check has ended.
    Verdict(Verdict<M::Command>),
    /// What was to be durable is.
    Persisted(Box<Work>),
    /// A snapshot is durable, and what it makes superfluous given up.
    Kept {
        /// The snapshot.
        snapshot: Box<Snapshot>,
        /// The first entry that the disk still has.
        keep_from: LogIndex,
    },
    /// Nothing else happened up to the moment at which the core wanted to be woken.
    Woke,
}
