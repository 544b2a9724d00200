//! What a replica wants done in the world, in the order in which it must be done.

use bytes::Bytes;
use raft::eraftpb::HardState;

use super::proposals::Ticket;
use super::reads::ReadTicket;
use super::transfer::Incoming;
use super::{Forgery, Replica};
use crate::batch::BatchId;
use crate::check::Check;
use crate::checkpoint::Checkpoint;
use crate::ids::{LogIndex, LogTime, Term};
use crate::incoming::KeptPart;
use crate::machine::StateMachine;
use crate::snapshot::Snapshot;
use crate::store::Persist;
use crate::wire::{Envelope, envelopes};

/// The first half of a round: send, persist, send.
#[derive(Debug)]
pub struct Work {
    /// To be sent at once; a leader's appends, while its own disk is still writing.
    pub send_first: Vec<Envelope>,
    /// To be verified, beside what follows; see [`Replica::on_verified`].
    pub checks: Vec<Check>,
    /// Parts of a snapshot to be kept; see [`crate::Store::keep_parts`].
    pub parts: Vec<KeptPart>,
    /// To be made durable.
    pub persist: Persist,
    /// To be sent once it is durable: votes, and acknowledgements of what was verified before.
    pub send_after: Vec<Envelope>,
}

/// The second half of a round: what the log has brought.
#[derive(Debug, Default)]
pub struct Outcome {
    /// To be sent.
    pub send: Vec<Envelope>,
    /// Entries applied, in order.
    pub applied: Vec<AppliedEntry>,
    /// Commands proposed here that are now answered.
    pub answers: Vec<Answer>,
    /// Reads that may now be answered from the machine.
    pub reads: Vec<ReadTicket>,
    /// Digests of the whole state reached by this round.
    pub checkpoints: Vec<Checkpoint>,
    /// A snapshot replaced the state: whatever was derived from it must be derived again.
    pub installed: Option<LogIndex>,
    /// A snapshot to be kept, and then given to [`Replica::compact`]: enough was applied since the
    /// last one.
    pub snapshot: Option<Snapshot>,
    /// What the leader sent and must not be in the log; it was cut off.
    pub forgery: Option<Forgery>,
}

/// One applied entry.
#[derive(Debug)]
pub struct AppliedEntry {
    /// Its index.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// The batch, which is applied once.
    pub batch: BatchId,
    /// The log's clock.
    pub time: LogTime,
    /// Its commands and their results; one without a command let time pass.
    pub results: Vec<(Bytes, Vec<u8>)>,
}

/// The end of a command that was proposed here.
#[derive(Debug)]
pub struct Answer {
    /// What [`Replica::propose`] gave.
    pub ticket: Ticket,
    /// The entry that holds it, or the snapshot's last one.
    pub index: LogIndex,
    /// The machine's result.
    pub result: Result<Vec<u8>, NoAnswer>,
}

/// A command's result that can't be known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It was applied, but this replica learned so by a snapshot.
    #[error("the command was applied; its result is not known here")]
    InSnapshot,
}

impl<M: StateMachine> Replica<M> {
    /// The next round of effects, if there is anything to do. `now` is the local clock.
    pub fn take_work(&mut self, now: LogTime) -> Option<Work> {
        self.on_call(now);
        self.flush();
        if !self.has_work() {
            return None;
        }
        let mut ready = self.raw.ready();
        let snapshot = (!ready.snapshot().is_empty()).then(|| {
            let bytes = ready.snapshot().data.clone();
            Snapshot::decode_vouched(bytes).expect("it was decoded when it was received")
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
        send_first.extend(envelopes(ready.take_messages()));
        let free = self.verifying.hold(ready.take_persisted_messages());
        let send_after = envelopes(free);
        self.in_work = Some(ready);
        let parts = self.incoming.as_mut().map(Incoming::take_unkept);
        Some(Work {
            send_first,
            checks: self.verifying.take_checks(),
            parts: parts.unwrap_or_default(),
            persist,
            send_after,
        })
    }

    fn has_work(&self) -> bool {
        let unkept = self.incoming.as_ref().is_some_and(Incoming::has_unkept);
        let waits = self.verifying.has_checks() || self.vouching.has_certified();
        unkept || waits || self.raw.has_ready() || !self.outbox.is_empty()
    }

    /// Term, vote, and what is committed of that which was verified.
    fn hard_state(&self) -> HardState {
        let mut hard_state = self.raw.raft.hard_state();
        hard_state.commit = hard_state.commit.min(self.verifying.verified());
        hard_state
    }
}
