//! Simulates a disk that loses unsynced data, sector by sector, and fails on command. The log and
//! the snapshots of simulated validators and the journals of simulated jobs lie on it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use souk_consensus::Disk;

use super::random::Random;

/// The unit of atomic writes.
const SECTOR_BYTES: usize = 512;

/// Log writes after a misdirected one that prove its acknowledgement.
const WRITES_AFTER: u32 = 3;

/// A handle to a simulated disk, which outlives the replica that uses it.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<DiskState>>,
}

/// Faults of a disk, until changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// Number of syncs (of files or of names) before one that fails with EIO.
    pub sync_fails: Option<u32>,
    /// Number of syncs before the process is killed, which loses nothing.
    pub killed_at_sync: Option<u32>,
    /// Whether every write fails with ENOSPC after about half of its sectors.
    pub full: bool,
    /// Whether the next read returns too few bytes.
    pub short_read: bool,
    /// If set, the next write to a log file goes to a wrong offset. The value is the duration of
    /// the power loss that follows.
    pub misdirects: Option<u64>,
}

struct DiskState {
    random: Random,
    next_file: u64,
    files: BTreeMap<u64, FileState>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending: Vec<NameChange>,
    faults: DiskFaults,
    /// After a misdirected write: the number of later log writes, and the duration of the power
    /// loss to come.
    misdirected: Option<(u32, u64)>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Remove(String),
    /// A rename in one journal transaction: after a crash, one of the two names exists.
    Rename(String, String),
}

/// A file as reads see it, and its state after a crash.
#[derive(Default)]
struct FileState {
    seen: Vec<u8>,
    /// Number of leading durable bytes, except those written since the last sync.
    durable_bytes: usize,
    /// Earlier contents of overwritten durable bytes, in order.
    overwritten: Vec<(usize, Vec<u8>)>,
    dirty: Vec<(usize, usize)>,
    /// The durable bytes if a sync failed and reads still see the lost ones.
    apart: Option<Vec<u8>>,
}

impl FileState {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        let durable = offset.min(self.durable_bytes)..end.min(self.durable_bytes);
        if self.apart.is_none() && !durable.is_empty() {
            let before = self.seen[durable].to_vec();
            self.overwritten.push((offset, before));
        }
        write_at(&mut self.seen, offset, bytes);
        self.dirty.push((offset, end));
    }

    fn sync(&mut self) {
        if let Some(durable) = &mut self.apart {
            for (start, end) in self.dirty.iter().copied() {
                write_at(durable, start, &self.seen[start..end]);
            }
            durable.resize(self.seen.len(), 0);
        }
        self.dirty.clear();
        self.overwritten.clear();
        self.durable_bytes = self.seen.len();
    }

    /// Keeps or drops each unsynced sector; reads then see the result.
    fn crash(&mut self, random: &mut Random) {
        if self.dirty.is_empty() && self.apart.is_none() {
            return;
        }
        self.seen = self.lose_unsynced(random);
        self.durable_bytes = self.seen.len();
    }

    /// Keeps or drops each unsynced sector for good, and returns the durable bytes.
    fn lose_unsynced(&mut self, random: &mut Random) -> Vec<u8> {
        let mut durable = self.apart.take().unwrap_or_else(|| self.as_synced());
        self.overwritten.clear();
        for (start, end) in std::mem::take(&mut self.dirty) {
            let keep = random.draw_below(1_001);
            let first = start / SECTOR_BYTES * SECTOR_BYTES;
            for sector in (first..end).step_by(SECTOR_BYTES) {
                let (from, to) = (sector.max(start), (sector + SECTOR_BYTES).min(end));
                if random.chance(keep) {
                    write_at(&mut durable, from, &self.seen[from..to]);
                }
            }
        }
        durable
    }

    /// Returns the file as of the last sync.
    fn as_synced(&self) -> Vec<u8> {
        let mut durable = self.seen[..self.durable_bytes].to_vec();
        for (offset, before) in self.overwritten.iter().rev() {
            durable[*offset..offset + before.len()].copy_from_slice(before);
        }
        durable
    }
}

/// Writes into a file and extends it if necessary.
fn write_at(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if file.len() < offset {
        file.resize(offset, 0);
    }
    let (over, beyond) = bytes.split_at(bytes.len().min(file.len() - offset));
    file[offset..offset + over.len()].copy_from_slice(over);
    file.extend_from_slice(beyond);
}

impl SimDisk {
    /// Creates an empty disk with its own random stream.
    pub fn new(random: Random) -> Self {
        let state = DiskState {
            random,
            next_file: 1,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending: Vec::new(),
            faults: DiskFaults::default(),
            misdirected: None,
        };
        Self {
            state: Rc::new(RefCell::new(state)),
        }
    }

    /// Loses power: unsynced data can disappear.
    pub fn crash(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let kept = state.random.draw_index(state.pending.len() + 1);
        for change in state.pending.drain(..).take(kept) {
            apply_change(&mut state.durable_names, change);
        }
        state.names.clone_from(&state.durable_names);
        let names = &state.names;
        state
            .files
            .retain(|file, _| names.values().any(|named| named == file));
        for file in state.files.values_mut() {
            file.crash(&mut state.random);
        }
    }

    /// Returns whether a sync has failed since the last power loss, so that reads can see lost
    /// data.
    pub fn has_failed(&self) -> bool {
        let state = self.state.borrow();
        state.files.values().any(|file| file.apart.is_some())
    }

    /// Returns the duration of the power loss that is due, because enough writes followed a
    /// misdirected one.
    pub fn is_due(&self) -> Option<u64> {
        let misdirected = &mut self.state.borrow_mut().misdirected;
        let (_, down_ms) = misdirected.take_if(|(after, _)| *after >= WRITES_AFTER)?;
        Some(down_ms)
    }

    /// Returns whether a write was misdirected and too few followed to prove it. Its data is lost
    /// without a trace, which is beyond the promises of replication.
    pub fn has_lost_unseen(&self) -> bool {
        self.state.borrow().misdirected.is_some()
    }

    /// Changes the disk's faults.
    pub fn set_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.state.borrow_mut().faults);
    }

    /// Removes all files, as with a new disk in the same machine.
    pub fn wipe(&self) {
        let mut state = self.state.borrow_mut();
        state.files.clear();
        state.names.clear();
        state.durable_names.clear();
        state.pending.clear();
        state.misdirected = None;
        state.faults.misdirects = None;
    }

    /// Flips one bit in a file whose name begins with `prefix`. The disk must have crashed, so that
    /// visible data is durable.
    pub fn flip_bit(&self, prefix: &str) -> bool {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let named = state
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(prefix));
        let files: Vec<u64> = named.map(|(_, file)| *file).collect();
        if files.is_empty() {
            return false;
        }
        let file = files[state.random.draw_index(files.len())];
        let Some(file) = state.files.get_mut(&file) else {
            return false;
        };
        let written = file.seen.iter().rposition(|byte| *byte != 0);
        let Some(last) = written else {
            return false;
        };
        assert!(file.dirty.is_empty(), "the machine is off");
        let place = state.random.draw_index(last + 1);
        file.seen[place] ^= 1 << state.random.draw_below(8);
        true
    }
}

/// Returns about half of the bytes to write, in whole sectors.
fn first_sectors(offset: u64, bytes: &[u8]) -> &[u8] {
    let sector = SECTOR_BYTES as u64;
    let end = (offset + bytes.len() as u64 / 2) / sector * sector;
    let kept = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
    &bytes[..kept]
}

fn apply_change(names: &mut BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Set(name, file) => drop(names.insert(name, file)),
        NameChange::Remove(name) => drop(names.remove(&name)),
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(&from) {
                names.insert(to, file);
            }
        }
    }
}

/// Counts down and returns true once, at the end.
fn is_next(after: &mut Option<u32>) -> bool {
    let left = after.take();
    *after = left.and_then(|left| left.checked_sub(1));
    left == Some(0)
}

impl DiskState {
    fn change_names(&mut self, change: NameChange) {
        apply_change(&mut self.names, change.clone());
        self.pending.push(change);
    }

    /// Counts a sync and returns whether it fails.
    fn sync_fails(&mut self) -> bool {
        is_next(&mut self.faults.sync_fails)
    }

    /// Counts a sync and fails if the process is killed before it.
    fn check_killed(&mut self) -> io::Result<()> {
        match is_next(&mut self.faults.killed_at_sync) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }

    /// Returns the offset at which a log write lands.
    fn landing_offset(&mut self, name: &str, offset: usize, length: usize) -> io::Result<usize> {
        if let Some((after, _)) = &mut self.misdirected {
            *after += 1;
        }
        let size = self.find_file(name)?.seen.len();
        let last = size.saturating_sub(length) / SECTOR_BYTES;
        let Some(down_ms) = self.faults.misdirects.filter(|_| last > 0) else {
            return Ok(offset);
        };
        let other = self.random.draw_index(last + 1) * SECTOR_BYTES;
        if other == offset {
            return Ok(offset);
        }
        self.faults.misdirects = None;
        self.misdirected = Some((0, down_ms));
        Ok(other)
    }

    fn find_file(&mut self, name: &str) -> io::Result<&mut FileState> {
        let file = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.files.get_mut(file).expect("a name has a file"))
    }
}

impl Disk for SimDisk {
    fn list_files(&mut self) -> io::Result<Vec<String>> {
        Ok(self.state.borrow().names.keys().cloned().collect())
    }

    fn file_length(&mut self, name: &str) -> io::Result<u64> {
        Ok(self.state.borrow_mut().find_file(name)?.seen.len() as u64)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.state.borrow_mut();
        let mut bytes = state.find_file(name)?.seen.clone();
        if std::mem::take(&mut state.faults.short_read) {
            bytes.truncate(bytes.len() / 2);
        }
        Ok(bytes)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let full = state.faults.full;
        let bytes = if full {
            first_sectors(offset, bytes)
        } else {
            bytes
        };
        if !state.names.contains_key(name) {
            let file = state.next_file;
            state.next_file += 1;
            state.files.insert(file, FileState::default());
            state.change_names(NameChange::Set(name.to_owned(), file));
        }
        let mut offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if name.starts_with("wal-") && bytes.iter().any(|byte| *byte != 0) {
            offset = state.landing_offset(name, offset, bytes.len())?;
        }
        state.find_file(name)?.write(offset, bytes);
        if full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync_file(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.check_killed()?;
        if state.sync_fails() {
            // As in Linux, data of a failed write-back counts as written afterwards.
            let mut random = state.random.clone();
            let file = state.find_file(name)?;
            file.apart = Some(file.lose_unsynced(&mut random));
            state.random = random;
            return Err(io::Error::other("EIO"));
        }
        state.find_file(name)?.sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.state
            .borrow_mut()
            .change_names(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.check_killed()?;
        if state.sync_fails() {
            return Err(io::Error::other("EIO"));
        }
        for change in state.pending.drain(..) {
            apply_change(&mut state.durable_names, change);
        }
        let names = &state.durable_names;
        state
            .files
            .retain(|file, _| names.values().any(|named| named == file));
        Ok(())
    }
}
