//! Stores the commands that settled receipts, so that a client can prove that its receipt was
//! settled. A thread writes them into sled, by lease.
//!
//! The log forgets commands once a snapshot covers them. Records are not part of the replicated
//! state, and a validator can start without them. It lacks those that another validator's snapshot
//! covered, and the oldest once there are too many. A proof that a client saved needs none of them.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use souk_consensus::SealedLeaf;
use souk_market::LeaseId;
use souk_proof::receipt_proof::SettlementRecord;

use super::views;

/// The rounds' leaves that can wait for the thread.
const WAITING_MAX: usize = 4_096;

/// The most bytes of records; the oldest leases' are removed first.
const BYTES_MAX: u64 = 512 << 20;

/// The records of a validator.
#[derive(Clone, Debug)]
pub(super) struct Settlements {
    db: sled::Db,
    waiting: SyncSender<Vec<SealedLeaf>>,
}

impl Settlements {
    /// Opens the records of a folder and starts their thread.
    pub(super) fn open_folder(folder: &Path) -> std::io::Result<Self> {
        let db = views::open_anew(folder).map_err(std::io::Error::other)?;
        let (waiting, inbox) = sync_channel(WAITING_MAX);
        let records = Records::new(db.clone(), BYTES_MAX);
        std::thread::Builder::new()
            .name("settlements".to_owned())
            .spawn(move || write_leaves(records, &inbox))?;
        Ok(Self { db, waiting })
    }

    /// Submits leaves that settled receipts, or drops them if the thread is far behind.
    pub(super) fn submit_leaves(&self, leaves: Vec<SealedLeaf>) {
        if leaves.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(leaves)) = self.waiting.try_send(leaves) {
            tracing::debug!(leaves = leaves.len(), "settlements were dropped");
        }
    }

    /// Returns the record that settled a lease.
    pub(super) fn read_record(&self, lease: LeaseId) -> sled::Result<Option<SettlementRecord>> {
        let row = self.db.get(lease.0.to_be_bytes())?;
        // A row of another version does not decode.
        Ok(row.and_then(|row| postcard::from_bytes(&row).ok()))
    }
}

/// Writes leaves until every sender is gone.
fn write_leaves(mut records: Records, inbox: &Receiver<Vec<SealedLeaf>>) {
    while let Ok(leaves) = inbox.recv() {
        let written = leaves.into_iter().try_for_each(|leaf| records.insert(leaf));
        if let Err(error) = written {
            tracing::warn!(%error, "settlements could not be written");
        }
    }
}

/// The rows, and how many bytes they have.
struct Records {
    db: sled::Db,
    bytes: u64,
    bytes_max: u64,
}

impl Records {
    fn new(db: sled::Db, bytes_max: u64) -> Self {
        let bytes = db.iter().values().flatten().map(|row| row.len() as u64);
        let bytes = bytes.sum();
        Self {
            db,
            bytes,
            bytes_max,
        }
    }

    /// Inserts a leaf under each lease that it settled, and removes the oldest leases beyond the
    /// limit. After a start the log is applied again, which replaces rows by equal ones.
    fn insert(&mut self, leaf: SealedLeaf) -> sled::Result<()> {
        let record = SettlementRecord::new(leaf);
        let row = postcard::to_allocvec(&record).expect("plain data in memory always encodes");
        for lease in record.list_leases() {
            let before = self.db.insert(lease.0.to_be_bytes(), row.clone())?;
            self.bytes += row.len() as u64;
            self.bytes -= before.map_or(0, |row| row.len() as u64);
        }
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.db.pop_min()? else {
                return Ok(());
            };
            self.bytes -= oldest.len() as u64;
        }
        Ok(())
    }
}
