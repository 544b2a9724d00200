//! Tests audits of a log that somebody changed, checksums included: the audit must name the entry
//! or the snapshot, and the digest that it contradicts.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use souk_consensus::audit::{Audit, AuditError, audit};
use souk_consensus::replica::Proposal;
use souk_consensus::snapshot::SnapshotParts;
use souk_consensus::{
    CommandFault, Digest, FolderDisk, LogIndex, LogTime, Position, Replica, ReplicaConfig,
    ReplicaId, RestoreError, Snapshot, StateMachine, Store, StoreConfig, wal::WalConfig,
};

/// Bytes of a frame's header: magic 8, segment 8, number 8, payload's length 4, blank sectors 4,
/// payload's digest 16, and the digest 16 of all that.
const HEADER: usize = 64;

const CHECKPOINT_ENTRIES: u64 = 4;

/// All commands one after the other. Those that begin with `-` nobody signed.
#[derive(Clone, Debug, Default)]
struct Lines(Vec<u8>);

impl StateMachine for Lines {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        let cause = || CommandFault {
            cause: "account 7 did not sign it".into(),
        };
        let signed = command[0] != b'-';
        signed.then_some(command.to_vec()).ok_or_else(cause)
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Vec<u8>) -> Vec<u8> {
        self.0.extend_from_slice(command);
        command.clone()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.0).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

/// A replica alone writes a folder with two snapshots and a log of 30 commands.
fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        StoreConfig::default(),
        LogIndex(32),
        Lines::default(),
    );
    folder
}

/// A replica alone writes up to an entry, from a state on; the snapshots it gave up, by their
/// files.
fn write(
    folder: &Path,
    config: StoreConfig,
    end: LogIndex,
    state: Lines,
) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut given_up = BTreeMap::new();
    let me = ReplicaId::new(1).unwrap();
    let disk = FolderDisk::open(folder).unwrap();
    let (mut store, _) = Store::open(disk, config).unwrap();
    let genesis = Replica::genesis_snapshot(&[me], &state);
    let recovered = store.bootstrap(genesis).unwrap();
    let config = ReplicaConfig {
        snapshot_entries: 16,
        checkpoint_entries: CHECKPOINT_ENTRIES,
        ..ReplicaConfig::new(me, 1)
    };
    let mut replica = Replica::new(config, recovered, Vec::new(), Lines::default()).unwrap();
    let (mut proposed, mut now) = (0, 1_000);
    while replica.applied_index() < end {
        now += 10;
        replica.tick(LogTime(now));
        if replica.is_leader() && proposed < end.0 - 2 {
            let command = format!("+command {proposed:02};");
            for proposal in Proposal::verify_commands::<Lines>(vec![Bytes::from(command)]) {
                replica.propose(proposal.unwrap()).unwrap();
            }
            proposed += 1;
        }
        while let Some(work) = replica.take_work(LogTime(now)) {
            store.persist(&work.persist).unwrap();
            let outcome = replica.on_persisted(work).unwrap();
            if let Some(snapshot) = outcome.snapshot {
                store.save_snapshot(&snapshot).unwrap();
                for file in files(folder, "snapshot-") {
                    given_up.insert(file.clone(), std::fs::read(file).unwrap());
                }
                let keep_from = store.remove_old_data().unwrap();
                replica.compact(snapshot, keep_from);
            }
        }
    }
    given_up.retain(|file, _| !file.exists());
    given_up
}

fn audited(folder: &Path) -> Result<Audit, AuditError> {
    let mut disk = FolderDisk::open(folder).unwrap();
    audit(&mut disk, CHECKPOINT_ENTRIES, Lines::default)
}

fn refusal(folder: &Path) -> String {
    audited(folder).unwrap_err().to_string()
}

/// The files of a kind, oldest first.
fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(kind)
    };
    let mut paths: Vec<PathBuf> = paths.filter(named).collect();
    paths.sort();
    paths
}

fn place_of(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

/// The frames of a segment, header and payload.
fn frames(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut frames = Vec::new();
    let mut start = 0;
    while bytes[start..].starts_with(b"soukWAL1") {
        let length = bytes[start + 24..start + 28].try_into().unwrap();
        let end = start + HEADER + u32::from_le_bytes(length) as usize;
        frames.push(start..end);
        start = end.next_multiple_of(HEADER);
    }
    frames
}

/// Makes a frame's checksums fit its content, as a forger would.
fn seal(bytes: &mut [u8], frame: &Range<usize>) {
    let payload = blake3::hash(&bytes[frame.start + HEADER..frame.end]);
    bytes[frame.start + 32..frame.start + 48].copy_from_slice(&payload.as_bytes()[..16]);
    let header = blake3::hash(&bytes[frame.start..frame.start + 48]);
    bytes[frame.start + 48..frame.start + 64].copy_from_slice(&header.as_bytes()[..16]);
}

/// Puts one text in the place of another in the log, with checksums that fit.
fn forge(folder: &Path, text: &[u8], other: &[u8]) {
    assert_eq!(text.len(), other.len());
    for path in files(folder, "wal-") {
        let mut bytes = std::fs::read(&path).unwrap();
        let Some(place) = place_of(&bytes, text) else {
            continue;
        };
        bytes[place..place + other.len()].copy_from_slice(other);
        let frames = frames(&bytes);
        let frame = frames.iter().find(|frame| frame.contains(&place)).unwrap();
        seal(&mut bytes, frame);
        return std::fs::write(path, bytes).unwrap();
    }
    panic!("{} is in no log", String::from_utf8_lossy(text));
}

/// Writes a snapshot of the folder anew, with a digest that fits.
fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<u8>, &mut Digest)) {
    let snapshot = Snapshot::decode_with_vouchers(std::fs::read(path).unwrap().into()).unwrap();
    let (mut machine, mut state) = (snapshot.machine.to_vec(), snapshot.state);
    change(&mut machine, &mut state);
    let forged = Snapshot::new(&SnapshotParts {
        index: snapshot.index,
        term: snapshot.term,
        members: &snapshot.members,
        time: snapshot.time,
        sessions: &snapshot.sessions,
        history: &snapshot.history,
        growth: snapshot.growth,
        state,
        machine: &machine,
    });
    std::fs::write(path, forged.encode_with_vouchers()).unwrap();
}

#[test]
fn a_folder_as_it_was_written_comes_out_as_written() {
    let folder = written();
    let audit = audited(folder.path()).unwrap();
    assert_eq!(audit.snapshots, [LogIndex(17)], "{audit:?}");
    assert!(audit.to >= LogIndex(31), "{audit:?}");
    assert_eq!(audit.commands, audit.to.0 - 2, "{audit:?}");
    assert!(audit.checkpoints.len() >= 6, "{audit:?}");
}

#[test]
fn a_snapshot_that_a_power_cut_brought_back_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let wal = WalConfig {
        segment_bytes: 1_024,
    };
    let given_up = write(
        folder.path(),
        StoreConfig { wal },
        LogIndex(90),
        Lines::default(),
    );
    let (file, bytes) = given_up.last_key_value().unwrap();
    std::fs::write(file, bytes).unwrap();
    let audit = audited(folder.path()).unwrap();
    assert_eq!(files(folder.path(), "snapshot-").len(), 3);
    assert_eq!(audit.snapshots.len(), 1, "{audit:?}");
    assert!(audit.to >= LogIndex(89), "{audit:?}");
    // A log that does not reach back to the two that are kept is no leftover of that.
    std::fs::remove_file(file).unwrap();
    std::fs::remove_file(&files(folder.path(), "wal-")[0]).unwrap();
    assert!(audited(folder.path()).is_err());
}

#[test]
fn a_large_state_is_written_again_once_its_log_is_worth_it() {
    let snapshots = |bytes: usize| {
        let folder = tempfile::tempdir().unwrap();
        let state = Lines(vec![b'x'; bytes]);
        let config = StoreConfig::default();
        let given_up = write(folder.path(), config, LogIndex(120), state);
        given_up.len() + files(folder.path(), "snapshot-").len()
    };
    let (small, middle, large) = (snapshots(100), snapshots(40_000), snapshots(1 << 20));
    assert!(small >= 7, "every 16 entries: {small}");
    assert!((2..=4).contains(&middle), "every 5,000 bytes: {middle}");
    assert_eq!(large, 1);
}

#[test]
fn an_altered_command_without_its_checksum_is_damage() {
    let folder = written();
    let path = &files(folder.path(), "wal-")[0];
    let mut bytes = std::fs::read(path).unwrap();
    let place = place_of(&bytes, b"+command 05;").unwrap();
    bytes[place + 1] = b'C';
    std::fs::write(path, bytes).unwrap();
    let said = refusal(folder.path());
    assert!(said.starts_with("the log is damaged in wal-"), "{said}");
    assert!(said.contains("bytes is damaged"), "{said}");
}

#[test]
fn a_command_that_its_account_did_not_sign_is_named_with_its_entry() {
    let folder = written();
    forge(folder.path(), b"+command 05;", b"-command 05;");
    let said = refusal(folder.path());
    let place = "command 0 of entry 8, taken in by replica 1, is forged: ";
    assert_eq!(said, format!("{place}account 7 did not sign it"));
}

#[test]
fn another_command_that_is_signed_leads_to_another_state_than_the_one_written() {
    let folder = written();
    forge(folder.path(), b"+command 05;", b"+command 99;");
    let said = refusal(folder.path());
    let place = "after replaying from entry 1, the state at entry 17 is ";
    assert!(said.starts_with(place), "{said}");
    assert!(said.ends_with(" was recorded"), "{said}");
}

#[test]
fn a_snapshot_with_another_state_is_not_what_the_log_comes_to() {
    let folder = written();
    rewrite(&files(folder.path(), "snapshot-")[1], |machine, state| {
        machine[3] ^= 1;
        *state = Digest(*blake3::hash(machine).as_bytes());
    });
    let said = refusal(folder.path());
    let place = "after replaying from entry 1, the state at entry 17 is ";
    assert!(said.starts_with(place), "{said}");
}

#[test]
fn a_digest_that_the_state_does_not_have_is_named_with_both() {
    let folder = written();
    let other = Digest([7; 32]);
    rewrite(&files(folder.path(), "snapshot-")[0], |_, state| {
        *state = other;
    });
    let said = refusal(folder.path());
    let found = Digest(Lines::default().digest());
    let wanted =
        format!("the snapshot of entry 1 restores to the state {found}; {other} was recorded");
    assert_eq!(said, wanted);
}

#[test]
fn a_log_that_ends_before_a_snapshot_says_where() {
    let folder = written();
    let path = &files(folder.path(), "wal-")[0];
    let mut bytes = std::fs::read(path).unwrap();
    let place = place_of(&bytes, b"+command 10;").unwrap();
    let frames = frames(&bytes);
    let frame = frames.iter().find(|frame| frame.contains(&place)).unwrap();
    let start = frame.start;
    bytes[start..].fill(0);
    std::fs::write(path, bytes).unwrap();
    let said = refusal(folder.path());
    let wanted = "the log ends at entry 12, before the snapshot of entry 17";
    assert_eq!(said, wanted);
}
