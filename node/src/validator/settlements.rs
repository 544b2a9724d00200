//! Stores the commands that settled receipts, so that a client can prove that its receipt was
//! settled. A thread writes them into a sled database under the numbers of their leaves in the
//! history's tree, and readers find them by lease.
//!
//! The log forgets commands that a snapshot covers. These records are not part of the replicated
//! state, and a validator can start without them. It lacks the records of commands that it received
//! within a snapshot, those of the last moment before a power loss, and the oldest ones beyond a
//! limit. A client that has saved its proof needs none of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use souk_consensus::SealedLeaf;
use souk_market::LeaseId;
use souk_proof::receipt_proof::SettlementRecord;

use super::views;

/// The most rounds whose leaves can wait for the thread, and the most bytes of these leaves.
const WAITING_MAX: usize = 4_096;
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// The most bytes of records; the oldest leaves are removed first.
const BYTES_MAX: u64 = 512 << 20;

/// The names of the rows by leaf, and of the leaves by lease.
const LEAVES: &str = "leaves";
const LEASES: &str = "leases";

/// A validator's records of settlements.
#[derive(Clone, Debug)]
pub(super) struct Settlements {
    rows: Rows,
    waiting: SyncSender<Vec<SealedLeaf>>,
    waiting_bytes: Arc<AtomicU64>,
}

/// The tables of the database.
#[derive(Clone, Debug)]
struct Rows {
    /// Records, by the number of their leaf.
    leaves: sled::Tree,
    /// Numbers of leaves, by lease.
    leases: sled::Tree,
}

impl Settlements {
    /// Opens the records of a folder and starts their thread. If the database is damaged, it is
    /// moved aside and a new one is created.
    ///
    /// # Errors
    /// If the folder cannot be used, for example because another process uses it.
    pub(super) fn open_folder(folder: &Path) -> std::io::Result<Self> {
        let db = match views::open_database(folder) {
            Ok(db) => db,
            Err(sled::Error::Io(error)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the settlements are damaged; starting new ones");
                let aside = folder.with_extension("damaged");
                if aside.exists() {
                    std::fs::remove_dir_all(&aside)?;
                }
                std::fs::rename(folder, aside)?;
                views::open_database(folder).map_err(std::io::Error::other)?
            }
        };
        let rows = Rows::open(&db).map_err(std::io::Error::other)?;
        let (waiting, inbox) = sync_channel(WAITING_MAX);
        let settlements = Self {
            rows: rows.clone(),
            waiting,
            waiting_bytes: Arc::default(),
        };
        let waiting_bytes = settlements.waiting_bytes.clone();
        std::thread::Builder::new()
            .name("settlements".to_owned())
            .spawn(move || write_leaves(rows, &inbox, &waiting_bytes))?;
        Ok(settlements)
    }

    /// Submits leaves that settled receipts, or drops them if the thread is far behind.
    pub(super) fn submit_leaves(&self, leaves: Vec<SealedLeaf>) {
        if leaves.is_empty() {
            return;
        }
        let (count, bytes) = (leaves.len(), count_bytes(&leaves));
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= WAITING_BYTES_MAX;
        if !(has_room && self.waiting.try_send(leaves).is_ok()) {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            tracing::warn!(
                leaves = count,
                "settlements were dropped: the disk is too slow"
            );
        }
    }

    /// Returns the record that settled a lease.
    pub(super) fn read_record(&self, lease: LeaseId) -> sled::Result<Option<SettlementRecord>> {
        self.rows.read_record(lease)
    }
}

fn count_bytes(leaves: &[SealedLeaf]) -> u64 {
    let bytes = leaves
        .iter()
        .map(|leaf| leaf.command.len() + leaf.result.len());
    bytes.sum::<usize>() as u64
}

/// Writes leaves until every sender is gone, and flushes them to the disk whenever none are
/// waiting.
fn write_leaves(rows: Rows, inbox: &Receiver<Vec<SealedLeaf>>, waiting_bytes: &AtomicU64) {
    let mut records = Records::new(rows, BYTES_MAX);
    while let Ok(leaves) = inbox.recv() {
        let mut next = Some(leaves);
        while let Some(leaves) = next {
            let bytes = count_bytes(&leaves);
            for leaf in leaves {
                if let Err(error) = records.insert(leaf) {
                    tracing::warn!(%error, "a settlement could not be written");
                }
            }
            waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            next = inbox.try_recv().ok();
        }
        if let Err(error) = records.rows.leaves.flush() {
            tracing::warn!(%error, "settlements could not be brought to the disk");
        }
    }
}

impl Rows {
    fn open(db: &sled::Db) -> sled::Result<Self> {
        Ok(Self {
            leaves: db.open_tree(LEAVES)?,
            leases: db.open_tree(LEASES)?,
        })
    }

    fn read_record(&self, lease: LeaseId) -> sled::Result<Option<SettlementRecord>> {
        let Some(leaf) = self.leases.get(lease.0.to_be_bytes())? else {
            return Ok(None);
        };
        let row = self.leaves.get(leaf)?;
        // A row of another version does not decode.
        Ok(row.and_then(|row| postcard::from_bytes(&row).ok()))
    }
}

/// The rows, and how many bytes those of leaves have.
struct Records {
    rows: Rows,
    bytes: u64,
    bytes_max: u64,
}

impl Records {
    fn new(rows: Rows, bytes_max: u64) -> Self {
        let lengths = rows.leaves.iter().values().flatten();
        let bytes = lengths.map(|row| row.len() as u64).sum();
        Self {
            rows,
            bytes,
            bytes_max,
        }
    }

    /// Inserts a leaf, under each lease that it settled, and removes the oldest leaves beyond the
    /// limit. After a start the log is applied again, which replaces rows by equal ones.
    fn insert(&mut self, leaf: SealedLeaf) -> sled::Result<()> {
        let number = leaf.number.to_be_bytes();
        let record = SettlementRecord::new(leaf);
        let row = postcard::to_allocvec(&record).expect("plain data in memory always encodes");
        self.bytes += row.len() as u64;
        let before = self.rows.leaves.insert(number, row)?;
        self.forget_bytes(before);
        for lease in record.list_leases() {
            self.rows.leases.insert(lease.0.to_be_bytes(), &number)?;
        }
        while self.bytes > self.bytes_max {
            let Some((number, oldest)) = self.rows.leaves.pop_min()? else {
                return Ok(());
            };
            let record = postcard::from_bytes::<SettlementRecord>(&oldest).ok();
            self.forget_bytes(Some(oldest));
            for lease in record.map(|it| it.list_leases()).unwrap_or_default() {
                let lease = lease.0.to_be_bytes();
                if self.rows.leases.get(lease)?.is_some_and(|it| it == number) {
                    self.rows.leases.remove(lease)?;
                }
            }
        }
        Ok(())
    }

    fn forget_bytes(&mut self, row: Option<sled::IVec>) {
        let bytes = row.map_or(0, |row| row.len() as u64);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests;
