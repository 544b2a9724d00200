//! The effects that a replica asks its caller to carry out in each round, in order: messages to
//! send, checks to run, data to persist, and then the answers to commands and what else follows
//! from new entries.

use bytes::Bytes;
use raft::eraftpb::HardState;

use super::proposals::Ticket;
use super::reads::ReadTicket;
use super::transfer::Incoming;
use super::{Forgery, Replica};
use crate::batch::BatchId;
use crate::check::Check;
use crate::checkpoint::Checkpoint;
use crate::ids::Term;
use crate::incoming_snapshot::PartToStore;
use crate::machine::StateMachine;
use crate::snapshot::Snapshot;
use crate::store::Persist;
use crate::tree_head::TreeTip;
use crate::wire::{Envelope, to_envelopes};
use souk_proof::{LogIndex, LogTime};
use souk_proof::{SealedLeaf, Tile};

/// The first half of a round: send, check, persist, send.
#[derive(Debug)]
pub struct RoundWork {
    /// Messages to send at once; a leader can send appends while its own disk is still writing.
    pub send_first: Vec<Envelope>,
    /// Checks that you can run concurrently with the rest; see [`Replica::on_verified`].
    pub checks: Vec<Check>,
    /// Parts of a snapshot to store; see [`crate::Store::store_parts`].
    pub parts: Vec<PartToStore>,
    /// Data to make durable.
    pub persist: Persist,
    /// Messages to send once the data is durable: votes, and acknowledgements of entries verified
    /// before.
    pub send_after: Vec<Envelope>,
}

/// The second half of a round: the consequences of committed entries.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Messages to send.
    pub send: Vec<Envelope>,
    /// Entries applied, in order.
    pub applied: Vec<AppliedEntry>,
    /// Answers to commands that this replica proposed.
    pub answers: Vec<Answer>,
    /// Reads that you can now answer from the machine.
    pub reads: Vec<ReadTicket>,
    /// Checkpoints that this round reached.
    pub checkpoints: Vec<Checkpoint>,
    /// Tiles of the history that this round filled, to write before the next snapshot is stored:
    /// after that, nothing makes them again.
    pub tiles: Vec<Tile>,
    /// Leaves that clients will want to prove; see [`StateMachine::is_proof_due`].
    pub sealed: Vec<SealedLeaf>,
    /// The last tree head that this round reached.
    pub tip: Option<TreeTip>,
    /// The last entry of a snapshot that replaced the state: you must derive again whatever you
    /// derived from the state.
    pub installed: Option<LogIndex>,
    /// A snapshot to store and then pass to [`Replica::compact`], because enough entries were
    /// applied since the last one.
    pub snapshot: Option<Snapshot>,
    /// Entries of the leader that must not be in the log, which the replica removed.
    pub forgery: Option<Forgery>,
}

/// One applied entry.
#[derive(Debug)]
pub struct AppliedEntry {
    /// The entry's index.
    pub index: LogIndex,
    /// The entry's term.
    pub term: Term,
    /// The id of the batch, which replicas apply once.
    pub batch: BatchId,
    /// The log's clock.
    pub time: LogTime,
    /// The commands and their results; an entry without a command advances time.
    pub results: Vec<(Bytes, Vec<u8>)>,
}

/// The answer to a command that this replica proposed.
#[derive(Debug)]
pub struct Answer {
    /// The ticket that [`Replica::propose`] returned.
    pub ticket: Ticket,
    /// The entry that holds the command, or the snapshot's last entry.
    pub index: LogIndex,
    /// The machine's result.
    pub result: Result<Vec<u8>, NoAnswer>,
}

/// Why the result of a command is unknown here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// A snapshot covers the command, so another replica applied it.
    #[error("the command was applied; its result is not known here")]
    InSnapshot,
}

impl<M: StateMachine> Replica<M> {
    /// Returns the next round of effects, if there is any. `now` is the local clock.
    pub fn take_work(&mut self, now: LogTime) -> Option<RoundWork> {
        self.on_call(now);
        self.flush();
        if !self.has_work() {
            return None;
        }
        let mut ready = self.raw.ready();
        let snapshot = (!ready.snapshot().is_empty()).then(|| {
            let bytes = ready.snapshot().data.clone();
            Snapshot::decode_with_vouchers(bytes).expect("it was decoded when it was received")
        });
        let must_sync = ready.must_sync();
        let entries = ready.take_entries();
        self.on_written(&entries);
        let persist = Persist {
            snapshot,
            entries,
            hard_state: must_sync.then(|| self.hard_state()),
            must_sync,
        };
        let mut send_first = std::mem::take(&mut self.outbox);
        send_first.extend(to_envelopes(ready.take_messages()));
        let free = self
            .verifying
            .hold_unverified(ready.take_persisted_messages());
        let send_after = to_envelopes(free);
        self.in_work = Some(ready);
        let parts = self.incoming.as_mut().map(Incoming::take_unstored_parts);
        Some(RoundWork {
            send_first,
            checks: self.verifying.take_checks(),
            parts: parts.unwrap_or_default(),
            persist,
            send_after,
        })
    }

    fn has_work(&self) -> bool {
        let unstored = self
            .incoming
            .as_ref()
            .is_some_and(Incoming::has_unstored_parts);
        let waits = self.verifying.has_checks() || self.vouching.has_certified();
        unstored || waits || self.raw.has_ready() || !self.outbox.is_empty()
    }

    /// Returns the term, the vote, and the commit index as far as entries are verified.
    fn hard_state(&self) -> HardState {
        let mut hard_state = self.raw.raft.hard_state();
        hard_state.commit = hard_state.commit.min(self.verifying.verified_index());
        hard_state
    }
}
