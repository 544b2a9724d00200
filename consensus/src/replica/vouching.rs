//! What a replica vouches for: nothing before the commands in it were verified.
//!
//! A command is applied on the word of the replica that took it in. The caller verifies behind, and
//! a checkpoint is told to the others, and a snapshot given out to be kept, only when everything up
//! to it was verified. So a forged command is found before anyone takes a state with it for good.

use std::collections::VecDeque;

use super::{Checkpoint, Replica};
use crate::ids::LogIndex;
use crate::machine::StateMachine;
use crate::snapshot::Snapshot;
use crate::wire::{Envelope, PeerMessage};

/// Checkpoints that may wait; of more, the oldest are never told, which costs one comparison each.
const WAITING_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Vouching {
    /// Everything up to here was verified.
    verified: LogIndex,
    checkpoints: VecDeque<Checkpoint>,
    snapshot: Option<Snapshot>,
}

impl Vouching {
    /// Everything up to `index` counts as verified: it was in a snapshot.
    pub(super) fn begin(&mut self, index: LogIndex) {
        *self = Self {
            verified: self.verified.max(index),
            ..Self::default()
        };
    }

    pub(super) fn on_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.checkpoints.push_back(checkpoint);
        if self.checkpoints.len() > WAITING_MAX {
            self.checkpoints.pop_front();
        }
    }

    pub(super) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    pub(super) fn on_snapshot(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }

    /// Whether a snapshot waits of which everything was verified.
    pub(super) fn is_snapshot_ready(&self) -> bool {
        let verified = |snapshot: &Snapshot| snapshot.index <= self.verified;
        self.snapshot.as_ref().is_some_and(verified)
    }

    pub(super) fn take_snapshot(&mut self) -> Option<Snapshot> {
        let ready = self.is_snapshot_ready();
        self.snapshot.take_if(|_| ready)
    }
}

impl<M: StateMachine> Replica<M> {
    /// Every command up to `index` was verified, here or by being taken in here.
    pub fn on_verified(&mut self, index: LogIndex) {
        assert!(index <= self.applied, "what is verified was applied");
        self.vouching.verified = self.vouching.verified.max(index);
        let verified = self.vouching.verified;
        let waiting = &mut self.vouching.checkpoints;
        let ready = waiting.partition_point(|checkpoint| checkpoint.index <= verified);
        if ready == 0 {
            return;
        }
        let ready: Vec<Checkpoint> = waiting.drain(..ready).collect();
        let others = self.others();
        for checkpoint in ready {
            let bytes = PeerMessage::Checkpoint(checkpoint).encode();
            self.outbox.extend(others.iter().map(|to| Envelope {
                to: *to,
                bytes: bytes.clone(),
            }));
        }
    }

    /// How far everything was verified.
    #[must_use]
    pub fn verified(&self) -> LogIndex {
        self.vouching.verified
    }
}
