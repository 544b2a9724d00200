//! The effects that a validator core requests.

use souk_consensus::replica::{
    Answer, AppliedEntry, ApplyError, ChangeError, Divergence, Forgery, ProposalRefusal, RoundWork,
    StepError,
};
use souk_consensus::wire::Envelope;
use souk_consensus::{Check, Checkpoint, LogIndex, ReplicaId, SealedLeaf, Snapshot, Tile, TreeTip};

use super::event::{Caller, ReadMoment};
use super::questions::AnsweringMachine;

/// An effect that the core requests. The shell must begin each before it asks the core for the
/// next: messages leave before the disk writes, and acknowledgements before the state machine
/// applies.
pub enum Action<M: AnsweringMachine> {
    /// Send messages. A full connection drops the rest: raft resends the important ones.
    Send(Vec<Envelope>),
    /// Verify these on any thread, in parallel with later actions. Answer: a `Verdict` for each, in
    /// any order.
    Check(Vec<Check>),
    /// Make parts and entries durable, with one sync. Answer: `Persisted` with the same work. A
    /// disk failure ends the validator.
    Persist(Box<RoundWork>),
    /// Respond to a caller.
    Respond {
        /// The caller to respond to.
        caller: Caller,
        /// The response for the caller.
        response: Response<M>,
    },
    /// Report a round's results to the followers of the log. This ends the round, unless a snapshot
    /// is due.
    Tell(Box<RoundResults>),
    /// Make a snapshot durable, and delete the entries that it replaces. Answer: `Kept`.
    Keep(Box<Snapshot>),
    /// Make the state derived from the log durable too, because the log before a snapshot is
    /// deleted.
    SyncViews,
    /// Report an event to people.
    Report(Box<Report>),
    /// The replica cannot continue. No action follows.
    Stop(Box<ReplicaFailure>),
}

/// A response to a caller.
pub enum Response<M: AnsweringMachine> {
    /// The results of commands that were proposed together, in their order.
    Proposed(Vec<Answer>),
    /// The state refuses all commands that were proposed together, so the log has none of them.
    Foreseen {
        /// The results, in the order of the commands.
        results: Vec<Vec<u8>>,
        /// The age of that state.
        moment: ReadMoment,
    },
    /// The validator accepted nothing.
    Refused(ProposalRefusal),
    /// The machine's answer, and the state it reflects.
    Answered {
        /// The answer to the question.
        reply: M::Reply,
        /// The age of that state.
        moment: ReadMoment,
    },
    /// Whether a change of members was proposed.
    Members(Result<(), ChangeError>),
}

/// The results of a round.
#[derive(Debug, Default)]
pub struct RoundResults {
    /// The digests of the whole state that the round reached.
    pub checkpoints: Vec<Checkpoint>,
    /// A snapshot replaced the state: every view derived from it must be rebuilt.
    pub installed: Option<LogIndex>,
    /// The tiles of the history that the round filled. They must be on disk before the snapshot
    /// that may follow: after that, nothing makes them again.
    pub tiles: Vec<Tile>,
    /// Leaves that clients will want to prove.
    pub sealed: Vec<SealedLeaf>,
    /// The last tree head that the round reached, to cosign.
    pub tip: Option<TreeTip>,
    /// The applied entries, in order.
    pub applied: Vec<AppliedEntry>,
}

/// An event that people see.
#[derive(Debug)]
pub enum Report {
    /// The core dropped a peer's message; the group continues without it.
    Dropped {
        /// The peer that sent it.
        from: ReplicaId,
        /// The reason for the drop.
        error: StepError,
    },
    /// Another validator sent a forgery. The core refused and did not acknowledge it.
    Forged(Forgery),
}

/// Why a replica cannot continue: it must restart from the state on its disk.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaFailure {
    /// It cannot restore the leader's snapshot, or apply an entry.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Its state differs from the group's.
    #[error(transparent)]
    Diverged(#[from] Divergence),
}
