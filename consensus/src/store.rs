//! The data of one replica on disk: the write-ahead log and the last two snapshots. A replica
//! starts from them.
//!
//! The store keeps the older snapshot and the log after it, so that an audit can replay from one
//! snapshot to the next, and a slow replica can catch up with entries instead of a snapshot.

use std::io;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};

use crate::disk::{Disk, read_whole};
use crate::ids::{Incarnation, Term};
use crate::incoming_snapshot::{IncomingSnapshotFile, PartToStore, StoredParts};
use crate::snapshot::{LAYOUT, Snapshot, SnapshotError};
use crate::wal::{Append, Contents, Wal, WalConfig, WalError, WalOpenError};
use souk_proof::LogIndex;

/// The name of a snapshot's file until it is durable.
const UNFINISHED: &str = "unfinished-snapshot";

/// The sizes of the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreConfig {
    /// The sizes of the write-ahead log.
    pub wal: WalConfig,
}

/// The data from which a replica starts.
#[derive(Debug)]
pub struct Recovery {
    /// The latest snapshot.
    pub snapshot: Snapshot,
    /// The entries after it.
    pub entries: Vec<Entry>,
    /// The term, vote and commit index.
    pub hard_state: HardState,
    /// The incarnation of this start.
    pub incarnation: Incarnation,
    /// The file and offset at which a torn write was cut off, if there was one.
    pub cut: Option<(String, u64)>,
}

/// The snapshots that a store keeps, with the log after the oldest of them.
pub(crate) const KEPT: usize = 2;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The write-ahead log cannot be opened.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// A snapshot is damaged.
    #[error(
        "the snapshot {name} is damaged: {cause}. Restore the folder from a backup, or remove this \
         replica from the group and add it again under a new id"
    )]
    Snapshot {
        /// The file's name.
        name: String,
        /// The damage found.
        #[source]
        cause: SnapshotError,
    },
    /// Another release of souk wrote the snapshot.
    #[error(
        "the snapshot {name} was written by another release of souk: it has layout {found}, and \
         this release reads layout {LAYOUT}. Run the release that wrote it; this one needs a \
         market that it founded"
    )]
    Layout {
        /// The file's name.
        name: String,
        /// The layout version of the file.
        found: char,
    },
    /// There is a log but no snapshot.
    #[error(
        "there are {entries} log entries and no snapshot before them: a file was removed. Restore \
         the folder from a backup, or add this replica again under a new id"
    )]
    NoSnapshot {
        /// The entries in the log.
        entries: usize,
    },
    /// There is a snapshot but no log.
    #[error(
        "there is a snapshot of entry {snapshot} and no log after it: the files were removed. This \
         replica may have promised what was there, so it does not start: restore its folder from a \
         backup, or remove it from the group and add it again under a new id"
    )]
    NoLog {
        /// The last entry of the snapshot.
        snapshot: LogIndex,
    },
    /// The log begins after the entry that follows the snapshot.
    #[error("the latest snapshot ends at {snapshot}, the log begins at {log}: a file was removed")]
    Gap {
        /// The last entry of the snapshot.
        snapshot: LogIndex,
        /// The first entry of the log.
        log: LogIndex,
    },
    /// A system call failed.
    #[error("cannot read the folder: {0}")]
    Read(#[from] io::Error),
    /// The names in the folder cannot be made durable.
    #[error("cannot sync the folder: {0}")]
    Sync(#[source] io::Error),
}

/// Data to make durable with one sync; see [`Store::persist`].
#[derive(Debug, Default)]
pub struct Persist {
    /// A snapshot from the leader, which replaces the log.
    pub snapshot: Option<Snapshot>,
    /// Entries; they replace any at or after their first index.
    pub entries: Vec<Entry>,
    /// The term, vote and commit index.
    pub hard_state: Option<HardState>,
    /// Whether the data is needed after a crash.
    pub must_sync: bool,
}

/// An open store.
#[derive(Debug)]
pub struct Store<D> {
    disk: D,
    wal: Wal,
    snapshots: Vec<LogIndex>,
    /// The term and vote of a replica that has no state yet.
    hard_state: HardState,
    /// The file of a snapshot in transfer.
    incoming: Option<IncomingSnapshotFile>,
    /// The parts of it that the replica stored before its restart, until the caller takes them.
    stored_parts: Option<StoredParts>,
}

impl<D: Disk> Store<D> {
    /// Opens the store of a folder. For an unused folder it returns no recovery: the caller must
    /// then decide whether to [`Store::bootstrap`] it or to let it join a group.
    ///
    /// # Errors
    /// If the files are damaged or missing, or a system call fails.
    pub fn open(
        mut disk: D,
        config: StoreConfig,
    ) -> Result<(Self, Option<Recovery>), StoreOpenError> {
        // A process that was killed after it renamed a snapshot can leave a name that a power loss
        // takes back. The log below relies on it.
        disk.sync_names().map_err(StoreOpenError::Sync)?;
        let snapshots = snapshots_of(&mut disk)?;
        let newest = match snapshots.last() {
            Some(index) => Some(read_snapshot(&mut disk, *index)?),
            None => None,
        };
        // A store has a log from its first moment on, before it has a snapshot.
        if let Some(snapshot) = snapshots.last().copied()
            && !Wal::exists(&mut disk)?
        {
            return Err(StoreOpenError::NoLog { snapshot });
        }
        let (mut wal, contents) = Wal::open(&mut disk, config.wal)?;
        let incarnation = wal.incarnation();
        let hard_state = contents.hard_state.clone();
        let covered = snapshots.last().copied().unwrap_or_default();
        let (incoming, stored_parts) =
            IncomingSnapshotFile::load_parts(&mut disk, covered)?.unzip();
        if let Some(snapshot) = newest.as_ref().filter(|it| !leads_to(&contents, it)) {
            begin_after(snapshot, &mut wal, &mut disk)?;
        }
        let store = Self {
            disk,
            wal,
            snapshots,
            hard_state,
            incoming,
            stored_parts,
        };
        let Some(snapshot) = newest else {
            return match contents.entries.len() {
                0 => Ok((store, None)),
                entries => Err(StoreOpenError::NoSnapshot { entries }),
            };
        };
        Ok((
            store,
            Some(build_recovery(snapshot, contents, incarnation)?),
        ))
    }

    /// Makes the first snapshot of a new folder durable.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn bootstrap(&mut self, genesis: Snapshot) -> Result<Recovery, WalError> {
        self.save_snapshot(&genesis)?;
        let (term, commit) = (genesis.term.0, genesis.index.0);
        let hard_state = HardState {
            term,
            commit,
            ..HardState::default()
        };
        let incarnation = self.wal.incarnation();
        Ok(Recovery {
            snapshot: genesis,
            entries: Vec::new(),
            hard_state,
            incarnation,
            cut: None,
        })
    }

    /// Returns the start data of a replica that has no state yet and waits for a leader's snapshot.
    #[must_use]
    pub fn empty_recovery(&self) -> Recovery {
        Recovery {
            snapshot: Snapshot::new_empty(),
            entries: Vec::new(),
            hard_state: self.hard_state.clone(),
            incarnation: self.wal.incarnation(),
            cut: None,
        }
    }

    /// Returns the incarnation of this start.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.wal.incarnation()
    }

    /// Takes the parts of a snapshot that the replica stored before its restart, for
    /// [`crate::Replica::resume_transfer`].
    pub fn take_stored_parts(&mut self) -> Option<StoredParts> {
        self.stored_parts.take()
    }

    /// Stores parts of a snapshot in transfer, which the replica needs if it restarts. It does not
    /// sync them: a crash can lose them.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn store_parts(&mut self, parts: &[PartToStore]) -> Result<(), WalError> {
        let disk = &mut self.disk;
        let mut kept = parts
            .iter()
            .map(|part| IncomingSnapshotFile::write_part(&mut self.incoming, disk, part));
        kept.try_for_each(|kept| kept)
            .map_err(incoming_failed("write"))
    }

    /// Carries out one [`Persist`]: one sync, or a snapshot and one sync, or nothing.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn persist(&mut self, persist: &Persist) -> Result<(), WalError> {
        if let Some(snapshot) = &persist.snapshot {
            self.save_snapshot(snapshot)?;
        }
        if !persist.must_sync {
            return Ok(());
        }
        let snapshot = persist
            .snapshot
            .as_ref()
            .map(|snapshot| (snapshot.index, snapshot.term));
        let hard_state = persist.hard_state.as_ref();
        let batch = Append {
            snapshot,
            entries: &persist.entries,
            hard_state,
        };
        self.wal.append_batch(&mut self.disk, &batch)
    }

    /// Makes a snapshot durable under its name.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), WalError> {
        let name = snapshot_name(snapshot.index);
        let disk = &mut self.disk;
        let failed = |action| {
            move |cause| WalError {
                action,
                name: UNFINISHED.to_owned(),
                cause,
            }
        };
        if disk
            .list_files()
            .map_err(failed("list the folder for"))?
            .iter()
            .any(|name| name == UNFINISHED)
        {
            disk.remove(UNFINISHED).map_err(failed("remove"))?;
        }
        disk.write(UNFINISHED, 0, &snapshot.bytes)
            .map_err(failed("write"))?;
        let end = snapshot.bytes.len() as u64;
        disk.write(UNFINISHED, end, &snapshot.encode_vouchers())
            .map_err(failed("write"))?;
        disk.sync_file(UNFINISHED).map_err(failed("sync"))?;
        disk.rename(UNFINISHED, &name).map_err(failed("rename"))?;
        disk.sync_names().map_err(failed("sync the folder of"))?;
        if self.snapshots.last() != Some(&snapshot.index) {
            self.snapshots.push(snapshot.index);
        }
        IncomingSnapshotFile::remove_file_up_to(&mut self.incoming, &mut self.disk, snapshot.index)
            .map_err(incoming_failed("remove"))
    }

    /// Removes data older than the two last snapshots. Returns the first index kept.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn remove_old_data(&mut self) -> Result<LogIndex, WalError> {
        while self.snapshots.len() > KEPT {
            let name = snapshot_name(self.snapshots.remove(0));
            let failed = |action, name: String| {
                move |cause| WalError {
                    action,
                    name,
                    cause,
                }
            };
            self.disk
                .remove(&name)
                .map_err(failed("remove", name.clone()))?;
        }
        let oldest = self.snapshots.first().copied().unwrap_or_default();
        self.wal.release_segments(&mut self.disk, oldest)?;
        Ok(LogIndex(oldest.0 + 1))
    }

    /// Returns the disk, for other files on it.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }
}

fn incoming_failed(action: &'static str) -> impl Fn(io::Error) -> WalError {
    move |cause| WalError {
        action,
        name: IncomingSnapshotFile::name(),
        cause,
    }
}

/// Returns whether the log holds the snapshot's last entry, or begins after it.
fn leads_to(contents: &Contents, snapshot: &Snapshot) -> bool {
    let first = contents.entries.first().map(|entry| entry.index);
    let Some(place) = first.and_then(|first| snapshot.index.0.checked_sub(first)) else {
        return true;
    };
    let last = usize::try_from(place).map(|place| contents.entries.get(place));
    last.ok()
        .flatten()
        .is_some_and(|entry| Term(entry.term) == snapshot.term)
}

/// Records in the log that it begins after the snapshot. The replica stopped after it had received
/// the snapshot and before it had written that, so new entries would not follow the old ones.
fn begin_after(
    snapshot: &Snapshot,
    wal: &mut Wal,
    disk: &mut impl Disk,
) -> Result<(), WalOpenError> {
    let mark = Append {
        snapshot: Some((snapshot.index, snapshot.term)),
        ..Append::default()
    };
    Ok(wal.append_batch(disk, &mark)?)
}

/// Combines the log and the snapshot: drops the entries that the snapshot covers or contradicts.
pub(crate) fn build_recovery(
    snapshot: Snapshot,
    contents: Contents,
    incarnation: Incarnation,
) -> Result<Recovery, StoreOpenError> {
    let leads = leads_to(&contents, &snapshot);
    let Contents {
        mut entries,
        mut hard_state,
        cut,
        ..
    } = contents;
    if let Some(first) = entries.first().map(|entry| entry.index) {
        if first > snapshot.index.0 + 1 {
            return Err(StoreOpenError::Gap {
                snapshot: snapshot.index,
                log: LogIndex(first),
            });
        }
        let covered = usize::try_from(snapshot.index.0 + 1 - first).unwrap_or(usize::MAX);
        entries = if leads {
            entries.split_off(covered)
        } else {
            Vec::new()
        };
    }
    if hard_state.term < snapshot.term.0 {
        hard_state.term = snapshot.term.0;
        hard_state.vote = 0;
    }
    hard_state.commit = hard_state.commit.max(snapshot.index.0);
    Ok(Recovery {
        snapshot,
        entries,
        hard_state,
        incarnation,
        cut,
    })
}

/// Returns the file name of a snapshot.
fn snapshot_name(index: LogIndex) -> String {
    format!("snapshot-{:016x}", index.0)
}

/// Lists the snapshots in a folder, oldest first.
///
/// # Errors
/// If a system call fails.
pub fn snapshots_of(disk: &mut impl Disk) -> io::Result<Vec<LogIndex>> {
    let number = |name: &String| u64::from_str_radix(name.strip_prefix("snapshot-")?, 16).ok();
    Ok(disk
        .list_files()?
        .iter()
        .filter_map(number)
        .map(LogIndex)
        .collect())
}

/// Reads and checks a snapshot.
///
/// # Errors
/// If the snapshot is damaged, or a system call fails.
pub fn read_snapshot(disk: &mut impl Disk, index: LogIndex) -> Result<Snapshot, StoreOpenError> {
    let name = snapshot_name(index);
    let bytes = Bytes::from(read_whole(disk, &name)?);
    Snapshot::decode_with_vouchers(bytes).map_err(|cause| match cause {
        SnapshotError::Layout { found } => StoreOpenError::Layout { name, found },
        cause => StoreOpenError::Snapshot { name, cause },
    })
}
