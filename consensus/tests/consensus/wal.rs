//! Tests the write-ahead log on real files: it must return what is durable, cut off torn writes,
//! and refuse to start on damage, with the place.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use raft::eraftpb::{Entry, HardState};
use souk_consensus::wal::{Append, Contents, Wal, WalConfig, WalOpenError};
use souk_consensus::{Disk, FolderDisk, LogIndex, Term};

const SEGMENT_BYTES: u64 = 16 << 10;
const CONFIG: WalConfig = WalConfig {
    segment_bytes: SEGMENT_BYTES,
};

fn entry(index: u64, term: u64, bytes: usize) -> Entry {
    let data = Bytes::from(vec![u8::try_from(index % 251).unwrap() + 1; bytes]);
    Entry {
        index,
        term,
        data,
        ..Entry::default()
    }
}

fn open(folder: &Path) -> (FolderDisk, Wal, Contents) {
    let mut disk = FolderDisk::open(folder).unwrap();
    let (wal, contents) = Wal::open(&mut disk, CONFIG).unwrap();
    (disk, wal, contents)
}

/// Writes `batches` batches of one entry of `bytes` bytes each.
fn fill(folder: &Path, batches: u64, bytes: usize) {
    let (mut disk, mut wal, contents) = open(folder);
    let first = contents.entries.len() as u64 + 1;
    for index in first..first + batches {
        let entries = [entry(index, 1, bytes)];
        let hard_state = HardState {
            term: 1,
            vote: 2,
            commit: index - 1,
            ..HardState::default()
        };
        let batch = Append {
            snapshot: None,
            entries: &entries,
            hard_state: Some(&hard_state),
        };
        wal.append_batch(&mut disk, &batch).unwrap();
    }
}

fn segment(folder: &Path, number: u64) -> std::path::PathBuf {
    folder.join(format!("wal-{number:016x}"))
}

/// Where the last non-zero byte of a segment stands.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

fn damage(folder: &Path, number: u64, change: impl FnOnce(&mut Vec<u8>)) {
    let path = segment(folder, number);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn refusal(folder: &Path) -> (String, u64, String) {
    let mut disk = FolderDisk::open(folder).unwrap();
    let error = Wal::open(&mut disk, CONFIG).unwrap_err();
    let text = error.to_string();
    match error {
        WalOpenError::Damaged {
            segment, offset, ..
        } => (segment, offset, text),
        other => panic!("{other}"),
    }
}

#[test]
fn everything_appended_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 100, 500);
    let (_, wal, contents) = open(folder.path());
    assert_eq!(contents.entries.len(), 100);
    assert_eq!(contents.entries[41], entry(42, 1, 500));
    assert_eq!(contents.hard_state.commit, 99);
    assert_eq!(contents.cut, None);
    assert_eq!(wal.incarnation().0, contents.incarnation.0 + 1);
    assert!(
        segment(folder.path(), 4).exists(),
        "100 batches fill several segments"
    );
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_size() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 3, 100_000);
    let (_, _, contents) = open(folder.path());
    assert_eq!(contents.entries.len(), 3);
}

#[test]
fn entries_written_again_replace_what_followed_them() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 10, 100);
    let (mut disk, mut wal, _) = open(folder.path());
    let entries = [entry(6, 2, 10), entry(7, 2, 10)];
    let batch = Append {
        entries: &entries,
        ..Append::default()
    };
    wal.append_batch(&mut disk, &batch).unwrap();
    drop(disk);
    let (_, _, contents) = open(folder.path());
    let terms: Vec<(u64, u64)> = contents.entries.iter().map(|e| (e.index, e.term)).collect();
    assert_eq!(terms[4..], [(5, 1), (6, 2), (7, 2)]);
}

#[test]
fn an_installed_snapshot_ends_the_log_before_it() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 10, 100);
    let (mut disk, mut wal, _) = open(folder.path());
    let entries = [entry(51, 3, 10)];
    let batch = Append {
        snapshot: Some((LogIndex(50), Term(3))),
        entries: &entries,
        hard_state: None,
    };
    wal.append_batch(&mut disk, &batch).unwrap();
    drop(disk);
    let (_, _, contents) = open(folder.path());
    assert_eq!(contents.entries, entries);
}

#[test]
fn a_write_whose_sectors_did_not_all_arrive_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5, 2_000);
    damage(folder.path(), 1, |bytes| {
        let end = written(bytes);
        let sector = (end - 1_000) / 512 * 512;
        bytes[sector..sector + 512].fill(0);
    });
    let (_, _, contents) = open(folder.path());
    assert_eq!(contents.entries.len(), 4);
    let (file, offset) = contents.cut.unwrap();
    assert_eq!(file, "wal-0000000000000001");
    assert_eq!(offset % 64, 0);
    fill(folder.path(), 3, 2_000);
    assert_eq!(open(folder.path()).2.entries.len(), 7);
}

#[test]
fn a_write_whose_header_did_not_arrive_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5, 2_000);
    let mut start = 0;
    damage(folder.path(), 1, |bytes| {
        start = (0..written(bytes))
            .rev()
            .find(|at| bytes[*at..].starts_with(b"soukWAL1"))
            .unwrap();
        bytes[start..start + 64].fill(0);
    });
    let (_, _, contents) = open(folder.path());
    assert_eq!(contents.entries.len(), 4);
    assert_eq!(
        contents.cut,
        Some(("wal-0000000000000001".to_owned(), start as u64))
    );
}

#[test]
fn a_bit_flipped_in_the_last_batch_is_damage_and_not_a_torn_write() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5, 2_000);
    damage(folder.path(), 1, |bytes| {
        let place = written(bytes) - 700;
        bytes[place] ^= 8;
    });
    let (segment, _, text) = refusal(folder.path());
    assert_eq!(segment, "wal-0000000000000001");
    assert!(text.contains("payload"), "{text}");
    assert!(text.contains("restore its folder from a backup"), "{text}");
}

#[test]
fn damage_in_the_middle_is_refused_with_segment_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 60, 1_000);
    damage(folder.path(), 2, |bytes| bytes[5_000] ^= 1);
    let (segment, offset, text) = refusal(folder.path());
    assert_eq!(segment, "wal-0000000000000002");
    assert!((3_000..=5_000).contains(&offset), "{offset}");
    assert!(text.contains(&format!("at byte {offset}")), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: proptest::test_runner::RngSeed::Fixed(23),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_damaged_log_is_refused_or_is_the_beginning_of_what_was_written(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 6, 300);
        let (_, _, whole) = open(folder.path());
        damage(folder.path(), 1, |bytes| {
            let end = written(bytes);
            for (place, byte) in changes {
                bytes[place.index(end)] = byte;
            }
        });
        let mut disk = FolderDisk::open(folder.path()).unwrap();
        if let Ok((_, contents)) = Wal::open(&mut disk, CONFIG) {
            prop_assert!(whole.entries.starts_with(&contents.entries));
        }
    }
}

#[test]
fn blanked_sectors_in_the_middle_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 10, 1_000);
    damage(folder.path(), 1, |bytes| bytes[2_048..3_072].fill(0));
    let (_, _, text) = refusal(folder.path());
    assert!(text.contains("there is a later frame"), "{text}");
}

#[test]
fn a_missing_segment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 60, 1_000);
    std::fs::remove_file(segment(folder.path(), 2)).unwrap();
    let (segment, _, text) = refusal(folder.path());
    assert_eq!(segment, "wal-0000000000000002");
    assert!(text.contains("missing"), "{text}");
}

#[test]
fn segments_are_recycled_blank_and_the_log_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut disk, mut wal, _) = open(folder.path());
    for index in 1..=200 {
        let entries = [entry(index, 1, 1_000)];
        let batch = Append {
            entries: &entries,
            ..Append::default()
        };
        wal.append_batch(&mut disk, &batch).unwrap();
        if index % 20 == 0 {
            wal.release_segments(&mut disk, LogIndex(index - 10))
                .unwrap();
        }
    }
    drop(disk);
    let names = std::fs::read_dir(folder.path()).unwrap();
    let files = names.filter(|name| name.as_ref().unwrap().file_name() != "lock");
    let count = files.count();
    assert!(count <= 6, "{count} files of the log");
    let (_, _, contents) = open(folder.path());
    assert!(contents.entries[0].index <= 191);
    assert_eq!(contents.entries.last().unwrap().index, 200);
}

/// What a caller may do to a log.
#[derive(Clone, Debug)]
enum Act {
    /// Append so many entries of so many bytes, so far back from the end.
    Append {
        count: u64,
        bytes: usize,
        back: u64,
    },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1_u64..5, 0_usize..3_000, 0_u64..4)
            .prop_map(|(count, bytes, back)| Act::Append { count, bytes, back }),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_log_is_the_list_it_stands_for(acts in proptest::collection::vec(act(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let (mut disk, mut wal, _) = open(folder.path());
        let mut list: Vec<Entry> = Vec::new();
        for (term, act) in (1..).zip(acts) {
            match act {
                Act::Append { count, bytes, back } => {
                    let first = (list.len() as u64 + 1).saturating_sub(back).max(1);
                    let entries: Vec<Entry> =
                        (first..first + count).map(|index| entry(index, term, bytes)).collect();
                    list.truncate(usize::try_from(first - 1).unwrap());
                    list.extend(entries.iter().cloned());
                    wal.append_batch(&mut disk, &Append { entries: &entries, ..Append::default() }).unwrap();
                }
                Act::Restart => {
                    drop(disk);
                    let contents;
                    (disk, wal, contents) = open(folder.path());
                    prop_assert_eq!(&contents.entries, &list);
                }
            }
        }
        drop(disk);
        prop_assert_eq!(open(folder.path()).2.entries, list);
    }
}

/// Real files under a system whose memory keeps what a failed sync did not write, as if it had.
struct Forgetful {
    disk: FolderDisk,
    /// What was done to them, in order.
    done: Vec<String>,
    /// Written and not synced: file, place and length.
    dirty: Vec<(String, u64, u64)>,
    /// No sync writes this any more.
    forgotten: Vec<(String, u64, u64)>,
    fails: bool,
}

impl Forgetful {
    fn open(folder: &Path) -> Forgetful {
        Forgetful {
            disk: FolderDisk::open(folder).unwrap(),
            done: Vec::new(),
            dirty: Vec::new(),
            forgotten: Vec::new(),
            fails: false,
        }
    }

    /// The power goes, and with it what was in memory alone.
    fn lose_power(mut self) -> FolderDisk {
        for (name, offset, length) in self.dirty.into_iter().chain(self.forgotten) {
            let zeros = vec![0; usize::try_from(length).unwrap()];
            self.disk.write(&name, offset, &zeros).unwrap();
        }
        self.disk
    }
}

impl Disk for Forgetful {
    fn list_files(&mut self) -> std::io::Result<Vec<String>> {
        self.disk.list_files()
    }

    fn file_length(&mut self, name: &str) -> std::io::Result<u64> {
        self.disk.file_length(name)
    }

    fn read(&mut self, name: &str) -> std::io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.done.push(format!("write {name}"));
        let (length, end) = (bytes.len() as u64, offset + bytes.len() as u64);
        let covers =
            |of: &str, at: u64, length: u64| of == name && at >= offset && at + length <= end;
        self.forgotten
            .retain(|(of, at, length)| !covers(of, *at, *length));
        self.dirty.push((name.to_owned(), offset, length));
        self.disk.write(name, offset, bytes)
    }

    fn sync_file(&mut self, name: &str) -> std::io::Result<()> {
        self.done.push(format!("sync {name}"));
        let of_it = |(of, ..): &mut (String, u64, u64)| of == name;
        let written: Vec<_> = self.dirty.extract_if(.., of_it).collect();
        if self.fails {
            self.forgotten.extend(written);
            return Err(std::io::ErrorKind::Other.into());
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&mut self, name: &str) -> std::io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&mut self) -> std::io::Result<()> {
        self.disk.sync_names()
    }
}

#[test]
fn what_an_earlier_life_did_not_sync_is_durable_before_a_new_segment_follows_it() {
    let full = (15_000..16_320).rev().step_by(64).find_map(|bytes| {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 1, bytes);
        (!segment(folder.path(), 2).exists()).then_some(folder)
    });
    let full = full.unwrap();
    let mut disk = Forgetful::open(full.path());
    Wal::open(&mut disk, CONFIG).unwrap();
    let done = |wanted: &str| disk.done.iter().position(|it| it == wanted);
    let synced = done("sync wal-0000000000000001").expect("the old tail is synced");
    let written = done("write wal-0000000000000002").expect("the new life has no room there");
    assert!(synced < written, "{:?}", disk.done);
}

#[test]
fn what_a_life_after_a_failed_sync_found_stays_when_the_power_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = Forgetful::open(folder.path());
    let (mut wal, _) = Wal::open(&mut disk, CONFIG).unwrap();
    for index in 1..=2 {
        disk.fails = index == 2;
        let entries = [entry(index, 1, 100)];
        let batch = Append {
            entries: &entries,
            ..Append::default()
        };
        assert_eq!(wal.append_batch(&mut disk, &batch).is_err(), disk.fails);
    }
    // The next life finds it, and may tell others that it has it.
    disk.fails = false;
    let (_, contents) = Wal::open(&mut disk, CONFIG).unwrap();
    assert_eq!(contents.entries.len(), 2);
    let mut disk = disk.lose_power();
    let (_, after) = Wal::open(&mut disk, CONFIG).unwrap();
    assert_eq!(after.entries, contents.entries);
}
