//! Tests the store on real files: after a crash between any two of its writes, it must recover the
//! right data.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use raft::eraftpb::{ConfState, Entry};
use souk_consensus::History;
use souk_consensus::snapshot::{LogGrowth, SnapshotParts};
use souk_consensus::store::Recovery;
use souk_consensus::wal::WalConfig;
use souk_consensus::{
    Digest, Disk, FolderDisk, LogIndex, LogTime, Persist, Sessions, Snapshot, Store, StoreConfig,
    Term,
};

fn snapshot(index: u64, term: u64) -> Snapshot {
    Snapshot::new(&SnapshotParts {
        index: LogIndex(index),
        term: Term(term),
        members: &ConfState::from((vec![1, 2, 3], vec![])),
        time: LogTime(0),
        sessions: &Sessions::default(),
        history: &History::default(),
        growth: LogGrowth::default(),
        state: Digest::default(),
        machine: b"books and balances",
    })
}

fn open(folder: &Path) -> (Store<FolderDisk>, Option<Recovery>) {
    let disk = FolderDisk::open(folder).unwrap();
    let wal = WalConfig {
        segment_bytes: 16 << 10,
    };
    Store::open(disk, StoreConfig { wal }).unwrap()
}

fn append(store: &mut Store<FolderDisk>, indexes: std::ops::RangeInclusive<u64>, term: u64) {
    let entry = |index| Entry {
        index,
        term,
        ..Entry::default()
    };
    let persist = Persist {
        snapshot: None,
        entries: indexes.map(entry).collect(),
        hard_state: None,
        must_sync: true,
    };
    store.persist(&persist).unwrap();
}

fn recovered(folder: &Path) -> (u64, Vec<(u64, u64)>) {
    let recovered = open(folder).1.unwrap();
    let entries = recovered.entries.iter();
    let entries = entries.map(|entry| (entry.index, entry.term)).collect();
    (recovered.snapshot.index.0, entries)
}

/// A folder with a snapshot of entry 1 and a log up to `last`, whose replica then received a
/// snapshot of entry 50 in term 3 and died before the log was told.
fn died_before_the_log_was_told(last: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, none) = open(folder.path());
    assert!(none.is_none());
    store.bootstrap(snapshot(1, 1)).unwrap();
    append(&mut store, 2..=last, 1);
    store.save_snapshot(&snapshot(50, 3)).unwrap();
    folder
}

#[test]
fn the_log_goes_on_after_a_snapshot_it_was_not_told_of() {
    let folder = died_before_the_log_was_told(10);
    let (mut store, recovered_first) = open(folder.path());
    assert_eq!(recovered_first.unwrap().snapshot.index.0, 50);
    append(&mut store, 51..=52, 3);
    drop(store);
    assert_eq!(recovered(folder.path()), (50, vec![(51, 3), (52, 3)]));
}

#[test]
fn entries_of_another_branch_do_not_hide_those_after_the_snapshot() {
    let folder = died_before_the_log_was_told(60);
    let (mut store, recovered_first) = open(folder.path());
    assert!(recovered_first.unwrap().entries.is_empty());
    append(&mut store, 51..=52, 3);
    drop(store);
    assert_eq!(recovered(folder.path()), (50, vec![(51, 3), (52, 3)]));
}

#[test]
fn a_snapshot_of_the_replica_itself_keeps_the_entries_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    store.bootstrap(snapshot(1, 1)).unwrap();
    append(&mut store, 2..=60, 3);
    store.save_snapshot(&snapshot(50, 3)).unwrap();
    drop(store);
    for _ in 0..2 {
        let (index, entries) = recovered(folder.path());
        assert_eq!((index, entries.len()), (50, 10));
    }
}

/// A disk that lists its writes and syncs of names, in order.
struct Recorder {
    disk: FolderDisk,
    done: Rc<RefCell<Vec<&'static str>>>,
}

impl Disk for Recorder {
    fn list_files(&mut self) -> io::Result<Vec<String>> {
        self.disk.list_files()
    }

    fn file_length(&mut self, name: &str) -> io::Result<u64> {
        self.disk.file_length(name)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.done.borrow_mut().push("write");
        self.disk.write(name, offset, bytes)
    }

    fn sync_file(&mut self, name: &str) -> io::Result<()> {
        self.disk.sync_file(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.done.borrow_mut().push("sync names");
        self.disk.sync_names()
    }
}

#[test]
fn a_snapshot_renamed_by_a_killed_process_is_durable_before_the_log_relies_on_it() {
    let folder = died_before_the_log_was_told(60);
    let done = Rc::new(RefCell::new(Vec::new()));
    let disk = Recorder {
        disk: FolderDisk::open(folder.path()).unwrap(),
        done: done.clone(),
    };
    Store::open(disk, StoreConfig::default()).unwrap();
    let done = done.borrow();
    assert!(done.contains(&"write"), "it marks the log: {done:?}");
    assert_eq!(done.first(), Some(&"sync names"), "{done:?}");
}
