//! Holds in memory the part of the log that raft-rs reads: the entries since the last compaction
//! (the removal of entries that a snapshot covers).
//!
//! The write-ahead log holds the same entries on disk, and a running replica will not read them
//! back. Snapshots bound the number of entries.

use std::cell::OnceCell;
use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{self, ConfState, Entry, HardState};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::ids::Term;
use crate::manifest::{Manifest, SnapshotOffer};
use crate::snapshot::Snapshot;
use crate::voucher::Certificate;
use souk_proof::Digest;
use souk_proof::LogIndex;

/// Entries after `base`, the hard state, and the latest snapshot.
#[derive(Debug)]
pub struct Log {
    base: LogIndex,
    base_term: Term,
    entries: VecDeque<Entry>,
    hard_state: HardState,
    members: ConfState,
    snapshot: Snapshot,
    /// The manifest of the snapshot, which a follower gets before it requests the parts. The log
    /// computes it on the first use, because it hashes the snapshot twice and most snapshots are
    /// never sent.
    manifest: OnceCell<Manifest>,
    chunk_bytes: usize,
}

impl Log {
    /// Creates a log that continues from a snapshot with the entries found after it.
    #[must_use]
    pub fn new(
        snapshot: Snapshot,
        hard_state: HardState,
        entries: Vec<Entry>,
        chunk_bytes: usize,
    ) -> Self {
        let mut log = Self {
            base: snapshot.index,
            base_term: snapshot.term,
            entries: VecDeque::new(),
            hard_state,
            members: snapshot.members.clone(),
            manifest: OnceCell::new(),
            chunk_bytes,
            snapshot,
        };
        log.append_entries(entries);
        log
    }

    /// Returns the last index.
    #[must_use]
    pub fn last_entry_index(&self) -> LogIndex {
        LogIndex(self.base.0 + self.entries.len() as u64)
    }

    /// Returns the first index that the log still holds.
    #[must_use]
    pub fn first_entry_index(&self) -> LogIndex {
        LogIndex(self.base.0 + 1)
    }

    /// Returns the latest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the members as of the last applied change.
    #[must_use]
    pub fn members(&self) -> &ConfState {
        &self.members
    }

    /// Records an applied membership change.
    pub fn on_members_changed(&mut self, members: ConfState) {
        self.members = members;
    }

    /// Records a persisted hard state.
    pub fn on_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Appends persisted entries; they replace any at or after their first index. They must not
    /// leave a gap or begin before the first index that the log holds.
    pub fn append_entries(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else {
            return;
        };
        assert!(
            first > self.base.0,
            "an entry before the compacted part never changes"
        );
        let keep = (first - self.base.0 - 1) as usize;
        assert!(keep <= self.entries.len(), "the log has no gap");
        self.entries.truncate(keep);
        self.entries.extend(entries);
        assert!(
            self.entries
                .back()
                .is_none_or(|entry| entry.index == self.last_entry_index().0)
        );
    }

    /// Takes the log without the entries from `first` on, which this replica has not acknowledged.
    #[must_use]
    pub fn take_before(&mut self, first: LogIndex) -> Self {
        assert!(first > self.base, "what a snapshot covers stays");
        let nothing = Self::new(
            Snapshot::new_empty(),
            HardState::default(),
            Vec::new(),
            self.chunk_bytes,
        );
        let mut log = std::mem::replace(self, nothing);
        log.entries.truncate((first.0 - log.base.0 - 1) as usize);
        log.hard_state.commit = log.hard_state.commit.min(log.last_entry_index().0);
        assert!(log.last_entry_index() < first);
        log
    }

    /// Replaces the whole log by a snapshot received from the leader.
    pub fn install_snapshot(&mut self, snapshot: Snapshot) {
        self.entries.clear();
        self.base = snapshot.index;
        self.base_term = snapshot.term;
        self.members = snapshot.members.clone();
        self.hard_state.commit = self.hard_state.commit.max(snapshot.index.0);
        self.take_snapshot(snapshot);
        assert_eq!(self.last_entry_index(), self.base, "nothing follows it yet");
    }

    fn take_snapshot(&mut self, snapshot: Snapshot) {
        self.manifest = OnceCell::new();
        self.snapshot = snapshot;
    }

    /// Returns a part of the latest snapshot, if `snapshot` is its digest.
    #[must_use]
    pub fn snapshot_chunk(&self, snapshot: Digest, number: u32) -> Option<Bytes> {
        let wanted = self.manifest().digest() == snapshot;
        let range = wanted
            .then(|| self.manifest().part_range(number))
            .flatten()?;
        Some(self.snapshot.bytes.slice(range))
    }

    fn manifest(&self) -> &Manifest {
        let bytes = &self.snapshot.bytes;
        self.manifest
            .get_or_init(|| Manifest::for_snapshot(bytes, self.chunk_bytes))
    }

    /// Records a snapshot that this replica made, and removes the entries before `keep_from`. The
    /// snapshot must cover those entries and must not be older than the latest one.
    pub fn compact(&mut self, snapshot: Snapshot, keep_from: LogIndex) {
        assert!(
            keep_from.0 <= snapshot.index.0 + 1,
            "what is forgotten is in the snapshot"
        );
        assert!(
            snapshot.index >= self.snapshot.index,
            "snapshots go forward"
        );
        let forget = keep_from.0.saturating_sub(self.first_entry_index().0) as usize;
        if let Some(last) = forget
            .checked_sub(1)
            .and_then(|place| self.entries.get(place))
        {
            self.base_term = Term(last.term);
            self.base = LogIndex(last.index);
            self.entries.drain(..forget);
        }
        self.take_snapshot(snapshot);
    }

    /// Returns the term at an index, if the log knows it.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.base {
            return Some(self.base_term);
        }
        if index == self.snapshot.index {
            return Some(self.snapshot.term);
        }
        self.get(index).map(|entry| Term(entry.term))
    }

    /// Returns the entry at an index, if the log holds it.
    #[must_use]
    pub fn get(&self, index: LogIndex) -> Option<&Entry> {
        let place = index.0.checked_sub(self.base.0 + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(
            self.hard_state.clone(),
            self.members.clone(),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(
            high <= self.last_entry_index().0 + 1,
            "raft asks for entries up to {high}, there are fewer"
        );
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let range = (low - self.base.0 - 1) as usize..(high - self.base.0 - 1) as usize;
        let mut bytes = 0_u64;
        let mut taken = Vec::with_capacity(range.len().min(1024));
        for entry in self.entries.range(range) {
            bytes += size_of(entry);
            if !taken.is_empty() && bytes > max_bytes {
                break;
            }
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_at(LogIndex(index)) {
            Some(term) => Ok(term.0),
            None if index < self.base.0 => Err(raft::Error::Store(StorageError::Compacted)),
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first_entry_index().0)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_entry_index().0)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        // A replica ignores a snapshot of which it is no member; members make one at the entry that
        // adds a new replica. It also refuses a snapshot for which no majority vouches.
        let members = &self.snapshot.members;
        let known = members.get_voters().contains(&to) || members.get_learners().contains(&to);
        let is_vouched = !self.snapshot.vouchers.is_empty();
        if self.snapshot.index.0 < request_index || !known || !is_vouched {
            return Err(raft::Error::Store(
                StorageError::SnapshotTemporarilyUnavailable,
            ));
        }
        let offer = SnapshotOffer {
            certificate: Certificate {
                statement: self.snapshot.statement(),
                vouchers: self.snapshot.vouchers.clone(),
            },
            manifest: self.manifest().clone(),
        };
        let data = offer.encode();
        let mut snapshot = eraftpb::Snapshot {
            data,
            ..eraftpb::Snapshot::default()
        };
        let metadata = snapshot.mut_metadata();
        metadata.index = self.snapshot.index.0;
        metadata.term = self.snapshot.term.0;
        metadata.set_conf_state(self.snapshot.members.clone());
        Ok(snapshot)
    }
}

/// Returns the weight of an entry in a message: its data and about twenty bytes of numbers around
/// it.
pub(crate) fn size_of(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len() + 24) as u64
}
