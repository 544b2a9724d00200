//! What a validator wants done.

use souk_consensus::replica::{
    Answer, AppliedEntry, ApplyError, ChangeError, Divergence, Forgery, ProposalRefusal, StepError,
    Work,
};
use souk_consensus::wire::Envelope;
use souk_consensus::{Check, Checkpoint, LogIndex, ReplicaId, Snapshot};

use super::event::{Caller, ReadMoment};
use super::questions::AnsweringMachine;

/// One thing to be done. Each is begun before the core is asked for the next one: what is sent
/// first has left before the disk is asked, and what is acknowledged before it is applied.
pub enum Action<M: AnsweringMachine> {
    /// Send these. What does not fit on a way is dropped: raft sends again what matters.
    Send(Vec<Envelope>),
    /// Verify these beside what follows, on any thread: a `Verdict` each, in any order.
    Check(Vec<Check>),
    /// Make parts and entries durable, with one sync: `Persisted` with the same work. A disk that
    /// fails ends the validator.
    Persist(Box<Work>),
    /// Tell who asked.
    Respond {
        /// Who.
        caller: Caller,
        /// What.
        response: Response<M>,
    },
    /// What a round has brought, for whoever follows the log. It ends the round, unless a snapshot
    /// is to be kept.
    Tell(Box<News>),
    /// Make a snapshot durable, and give up what it makes superfluous: `Kept`.
    Keep(Box<Snapshot>),
    /// What is derived from the log is to be durable too, now that the log is given up behind a
    /// snapshot.
    SyncViews,
    /// Something that people see.
    Report(Box<Report>),
    /// The replica can't go on. Nothing comes after it.
    Stop(Box<ReplicaFailure>),
}

/// What is told to who asked.
pub enum Response<M: AnsweringMachine> {
    /// What became of commands that were proposed together, in their order.
    Proposed(Vec<Answer>),
    /// Nothing was taken.
    Refused(ProposalRefusal),
    /// What the machine answers, and what that reflects.
    Answered {
        /// The answer.
        reply: M::Reply,
        /// How fresh it is.
        moment: ReadMoment,
    },
    /// Whether a change of members was proposed.
    Members(Result<(), ChangeError>),
}

/// What a round has brought.
#[derive(Debug, Default)]
pub struct News {
    /// Digests of the whole state that were reached.
    pub checkpoints: Vec<Checkpoint>,
    /// A snapshot replaced the state: whatever was derived from it must be read anew.
    pub installed: Option<LogIndex>,
    /// Entries applied, in order.
    pub applied: Vec<AppliedEntry>,
}

/// What people see.
#[derive(Debug)]
pub enum Report {
    /// A peer's message was dropped; the group goes on without it.
    Dropped {
        /// The peer.
        from: ReplicaId,
        /// Why.
        error: StepError,
    },
    /// What another validator sent is forged. It is refused, and was not acknowledged.
    Forged(Forgery),
}

/// Why a replica can't go on: it must be started anew, from what the disk holds.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaFailure {
    /// A snapshot from the leader can't be restored, or an entry not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The state is not the group's.
    #[error(transparent)]
    Diverged(#[from] Divergence),
}
