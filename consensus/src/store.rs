//! What one replica keeps on disk: the write-ahead log and two snapshots.
//!
//! The older snapshot and the log after it are kept, so that an audit can replay from one snapshot
//! to the next, and a slow replica can be brought up by entries instead of a snapshot.

use std::io;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};

use crate::disk::{Disk, read_whole};
use crate::ids::{Incarnation, LogIndex, Term};
use crate::incoming::{IncomingFile, KeptPart, ReceivedParts};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::wal::{Append, Contents, Wal, WalConfig, WalError, WalOpenError};

/// The name a snapshot has until it is durable.
const UNFINISHED: &str = "unfinished-snapshot";

/// Sizes of the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreConfig {
    /// The write-ahead log.
    pub wal: WalConfig,
}

/// What a replica starts from.
#[derive(Debug)]
pub struct Recovery {
    /// The latest snapshot.
    pub snapshot: Snapshot,
    /// The entries after it.
    pub entries: Vec<Entry>,
    /// Term, vote and commit.
    pub hard_state: HardState,
    /// This life of the replica.
    pub incarnation: Incarnation,
    /// File and byte where a torn write was cut off, if one was.
    pub cut: Option<(String, u64)>,
}

/// How many snapshots are kept, with the log after the oldest of them.
pub(crate) const KEPT: usize = 2;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The write-ahead log.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// A snapshot is damaged.
    #[error(
        "the snapshot {name} is damaged: {cause}. Restore the folder from a backup, or remove this \
         replica from the group and add it again under a new id"
    )]
    Snapshot {
        /// File name.
        name: String,
        /// What is wrong.
        #[source]
        cause: SnapshotError,
    },
    /// There is a log and no snapshot.
    #[error(
        "there are {entries} log entries and no snapshot before them: a file was removed. Restore \
         the folder from a backup, or add this replica again under a new id"
    )]
    NoSnapshot {
        /// How many.
        entries: usize,
    },
    /// There is a snapshot and no log.
    #[error(
        "there is a snapshot of entry {snapshot} and no log after it: the files were removed. This \
         replica may have promised what was there, so it does not start: restore its folder from a \
         backup, or remove it from the group and add it again under a new id"
    )]
    NoLog {
        /// Last entry of the snapshot.
        snapshot: LogIndex,
    },
    /// The log begins too late.
    #[error("the latest snapshot ends at {snapshot}, the log begins at {log}: a file was removed")]
    Gap {
        /// Last entry of the snapshot.
        snapshot: LogIndex,
        /// First entry of the log.
        log: LogIndex,
    },
    /// The system failed.
    #[error("cannot read the folder: {0}")]
    Read(#[from] io::Error),
}

/// What is to be made durable with one sync; see [`Store::persist`].
#[derive(Debug, Default)]
pub struct Persist {
    /// A snapshot received from the leader, which replaces the log.
    pub snapshot: Option<Snapshot>,
    /// Entries; they replace any at or after their first index.
    pub entries: Vec<Entry>,
    /// Term, vote and commit.
    pub hard_state: Option<HardState>,
    /// False if nothing of it is needed after a crash.
    pub must_sync: bool,
}

/// An open store.
#[derive(Debug)]
pub struct Store<D> {
    disk: D,
    wal: Wal,
    snapshots: Vec<LogIndex>,
    /// What a replica that has no state yet has already promised.
    hard_state: HardState,
    /// The file of a snapshot that is on its way here.
    incoming: Option<IncomingFile>,
    /// What an earlier life received of it, until it is taken.
    received: Option<ReceivedParts>,
}

impl<D: Disk> Store<D> {
    /// Opens a folder's store. A folder never used gives none recovered: the caller then decides
    /// whether to [`Store::bootstrap`] it or to let it join a group.
    ///
    /// # Errors
    /// When what is on disk can't be trusted, or the system fails.
    pub fn open(
        mut disk: D,
        config: StoreConfig,
    ) -> Result<(Self, Option<Recovery>), StoreOpenError> {
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
        let (incoming, received) = IncomingFile::open(&mut disk, covered)?.unzip();
        if let Some(snapshot) = newest.as_ref().filter(|it| !leads_to(&contents, it)) {
            begin_after(snapshot, &mut wal, &mut disk)?;
        }
        let store = Self {
            disk,
            wal,
            snapshots,
            hard_state,
            incoming,
            received,
        };
        let Some(snapshot) = newest else {
            return match contents.entries.len() {
                0 => Ok((store, None)),
                entries => Err(StoreOpenError::NoSnapshot { entries }),
            };
        };
        Ok((store, Some(recover(snapshot, contents, incarnation)?)))
    }

    /// Makes a new folder's first snapshot durable.
    ///
    /// # Errors
    /// When the system fails.
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

    /// What a replica starts from that has no state yet and waits for a leader's snapshot.
    #[must_use]
    pub fn join(&self) -> Recovery {
        Recovery {
            snapshot: Snapshot::nothing(),
            entries: Vec::new(),
            hard_state: self.hard_state.clone(),
            incarnation: self.wal.incarnation(),
            cut: None,
        }
    }

    /// This life of the replica.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.wal.incarnation()
    }

    /// What an earlier life received of a snapshot; for [`crate::Replica::resume`].
    pub fn take_received(&mut self) -> Option<ReceivedParts> {
        self.received.take()
    }

    /// Keeps parts of a snapshot on its way here, for a later life. Nothing is synced.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn keep_parts(&mut self, parts: &[KeptPart]) -> Result<(), WalError> {
        let disk = &mut self.disk;
        let mut kept = parts
            .iter()
            .map(|part| IncomingFile::keep(&mut self.incoming, disk, part));
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
        self.wal.append(&mut self.disk, &batch)
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
            .list()
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
        disk.sync(UNFINISHED).map_err(failed("sync"))?;
        disk.rename(UNFINISHED, &name).map_err(failed("rename"))?;
        disk.sync_names().map_err(failed("sync the folder of"))?;
        if self.snapshots.last() != Some(&snapshot.index) {
            self.snapshots.push(snapshot.index);
        }
        IncomingFile::forget(&mut self.incoming, &mut self.disk, snapshot.index)
            .map_err(incoming_failed("remove"))
    }

    /// Gives up what is older than the two last snapshots. Returns the first index kept.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn release(&mut self) -> Result<LogIndex, WalError> {
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
        self.wal.release(&mut self.disk, oldest)?;
        Ok(LogIndex(oldest.0 + 1))
    }

    /// The disk, for what else is kept on it.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }
}

fn incoming_failed(action: &'static str) -> impl Fn(io::Error) -> WalError {
    move |cause| WalError {
        action,
        name: IncomingFile::name(),
        cause,
    }
}

/// Whether the log holds the snapshot's last entry, or begins after it.
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

/// Says in the log that it begins after the snapshot. The replica stopped when it had received the
/// snapshot and before it had written that: what comes next would not follow what is there.
fn begin_after(
    snapshot: &Snapshot,
    wal: &mut Wal,
    disk: &mut impl Disk,
) -> Result<(), WalOpenError> {
    let mark = Append {
        snapshot: Some((snapshot.index, snapshot.term)),
        ..Append::default()
    };
    Ok(wal.append(disk, &mark)?)
}

/// Fits the log to the snapshot.
pub(crate) fn recover(
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

/// The file name of a snapshot.
fn snapshot_name(index: LogIndex) -> String {
    format!("snapshot-{:016x}", index.0)
}

/// The snapshots in a folder, oldest first.
///
/// # Errors
/// When the system fails.
pub fn snapshots_of(disk: &mut impl Disk) -> io::Result<Vec<LogIndex>> {
    let number = |name: &String| u64::from_str_radix(name.strip_prefix("snapshot-")?, 16).ok();
    Ok(disk
        .list()?
        .iter()
        .filter_map(number)
        .map(LogIndex)
        .collect())
}

/// Reads and checks a snapshot.
///
/// # Errors
/// When it is damaged, or the system fails.
pub fn read_snapshot(disk: &mut impl Disk, index: LogIndex) -> Result<Snapshot, StoreOpenError> {
    let name = snapshot_name(index);
    let bytes = Bytes::from(read_whole(disk, &name)?);
    Snapshot::decode_vouched(bytes).map_err(|cause| StoreOpenError::Snapshot { name, cause })
}
