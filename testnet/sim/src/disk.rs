//! A disk that forgets what was not synced, sector by sector, and fails on command.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use souk_consensus::Disk;

use super::random::Random;

/// The unit that is written whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Writes of a log after one that landed elsewhere, which prove that it had been acknowledged.
const WRITES_AFTER: u32 = 3;

/// A handle on a simulated disk; it outlives the replica that uses it.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<DiskState>>,
}

/// What a disk does wrong, until it is told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// After so many more syncs, of files or of names, one fails with EIO.
    pub sync_fails: Option<u32>,
    /// The same, but that nothing is lost by it: the process is killed before that sync.
    pub killed_at_sync: Option<u32>,
    /// Every write fails with ENOSPC, about half of its sectors written.
    pub full: bool,
    /// The next read comes back short.
    pub short_read: bool,
    /// The next write of a log's file lands elsewhere in it; how long power is lost after that.
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
    /// A write went elsewhere: how many writes of the log followed, and how long power is to be
    /// lost.
    misdirected: Option<(u32, u64)>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Remove(String),
    /// One transaction of a journal: after a crash there is the one name or the other.
    Rename(String, String),
}

/// What reads see, and what a crash would put back of it.
#[derive(Default)]
struct FileState {
    seen: Vec<u8>,
    /// So many of its first bytes are durable, but for what was written since the last sync.
    durable_bytes: usize,
    /// How durable bytes were before they were overwritten, in order.
    overwritten: Vec<(usize, Vec<u8>)>,
    dirty: Vec<(usize, usize)>,
    /// What is durable, where a sync failed and reads still see what it lost.
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
        put(&mut self.seen, offset, bytes);
        self.dirty.push((offset, end));
    }

    fn sync(&mut self) {
        if let Some(durable) = &mut self.apart {
            for (start, end) in self.dirty.iter().copied() {
                put(durable, start, &self.seen[start..end]);
            }
            durable.resize(self.seen.len(), 0);
        }
        self.dirty.clear();
        self.overwritten.clear();
        self.durable_bytes = self.seen.len();
    }

    /// Each unsynced sector arrived or did not, and reads see what arrived.
    fn crash(&mut self, random: &mut Random) {
        if self.dirty.is_empty() && self.apart.is_none() {
            return;
        }
        self.seen = self.lose(random);
        self.durable_bytes = self.seen.len();
    }

    /// Each unsynced sector arrived or did not, and nothing of it is tried again. Gives what is
    /// durable.
    fn lose(&mut self, random: &mut Random) -> Vec<u8> {
        let mut durable = self.apart.take().unwrap_or_else(|| self.as_synced());
        self.overwritten.clear();
        for (start, end) in std::mem::take(&mut self.dirty) {
            let keep = random.below(1_001);
            let first = start / SECTOR_BYTES * SECTOR_BYTES;
            for sector in (first..end).step_by(SECTOR_BYTES) {
                let (from, to) = (sector.max(start), (sector + SECTOR_BYTES).min(end));
                if random.chance(keep) {
                    put(&mut durable, from, &self.seen[from..to]);
                }
            }
        }
        durable
    }

    /// The file as it was at the last sync.
    fn as_synced(&self) -> Vec<u8> {
        let mut durable = self.seen[..self.durable_bytes].to_vec();
        for (offset, before) in self.overwritten.iter().rev() {
            durable[*offset..offset + before.len()].copy_from_slice(before);
        }
        durable
    }
}

/// Writes into a file, which becomes longer if need be.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if file.len() < offset {
        file.resize(offset, 0);
    }
    let (over, beyond) = bytes.split_at(bytes.len().min(file.len() - offset));
    file[offset..offset + over.len()].copy_from_slice(over);
    file.extend_from_slice(beyond);
}

impl SimDisk {
    /// An empty disk with its own stream of chance.
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

    /// Power is lost: what was not synced may be gone.
    pub fn crash(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let kept = state.random.place(state.pending.len() + 1);
        for change in state.pending.drain(..).take(kept) {
            apply(&mut state.durable_names, change);
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

    /// Whether a sync has failed since power was last lost: reads may see what is lost.
    pub fn has_failed(&self) -> bool {
        let state = self.state.borrow();
        state.files.values().any(|file| file.apart.is_some())
    }

    /// How long power is lost now, since a write went elsewhere and enough came after it.
    pub fn is_due(&self) -> Option<u64> {
        let misdirected = &mut self.state.borrow_mut().misdirected;
        let (_, down_ms) = misdirected.take_if(|(after, _)| *after >= WRITES_AFTER)?;
        Some(down_ms)
    }

    /// Whether a write went elsewhere and too few came after it to prove it: what it was to hold is
    /// lost without a trace, which is beyond what replication promises.
    pub fn has_lost_unseen(&self) -> bool {
        self.state.borrow().misdirected.is_some()
    }

    /// Changes what the disk does wrong.
    pub fn set_faults(&self, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.state.borrow_mut().faults);
    }

    /// Removes everything: a new disk in the same machine.
    pub fn wipe(&self) {
        let mut state = self.state.borrow_mut();
        state.files.clear();
        state.names.clear();
        state.durable_names.clear();
        state.pending.clear();
        state.misdirected = None;
        state.faults.misdirects = None;
    }

    /// Flips one bit in a file whose name begins with `prefix`, after a crash: what reads see is
    /// then durable.
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
        let file = files[state.random.place(files.len())];
        let Some(file) = state.files.get_mut(&file) else {
            return false;
        };
        let written = file.seen.iter().rposition(|byte| *byte != 0);
        let Some(last) = written else {
            return false;
        };
        assert!(file.dirty.is_empty(), "the machine is off");
        let place = state.random.place(last + 1);
        file.seen[place] ^= 1 << state.random.below(8);
        true
    }
}

/// About half of what is to be written: whole sectors of it.
fn first_sectors(offset: u64, bytes: &[u8]) -> &[u8] {
    let sector = SECTOR_BYTES as u64;
    let end = (offset + bytes.len() as u64 / 2) / sector * sector;
    let kept = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
    &bytes[..kept]
}

fn apply(names: &mut BTreeMap<String, u64>, change: NameChange) {
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

/// Counts down; true once, when it comes to its end.
fn is_next(after: &mut Option<u32>) -> bool {
    let left = after.take();
    *after = left.and_then(|left| left.checked_sub(1));
    left == Some(0)
}

impl DiskState {
    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, change.clone());
        self.pending.push(change);
    }

    /// Counts a sync; true if it is the one that fails.
    fn sync_fails(&mut self) -> bool {
        is_next(&mut self.faults.sync_fails)
    }

    /// Counts a sync; an error if the process is killed before it.
    fn killed(&mut self) -> io::Result<()> {
        match is_next(&mut self.faults.killed_at_sync) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }

    /// Where a write of a log lands.
    fn misdirect(&mut self, name: &str, offset: usize, length: usize) -> io::Result<usize> {
        if let Some((after, _)) = &mut self.misdirected {
            *after += 1;
        }
        let size = self.file(name)?.seen.len();
        let last = size.saturating_sub(length) / SECTOR_BYTES;
        let Some(down_ms) = self.faults.misdirects.filter(|_| last > 0) else {
            return Ok(offset);
        };
        let other = self.random.place(last + 1) * SECTOR_BYTES;
        if other == offset {
            return Ok(offset);
        }
        self.faults.misdirects = None;
        self.misdirected = Some((0, down_ms));
        Ok(other)
    }

    fn file(&mut self, name: &str) -> io::Result<&mut FileState> {
        let file = self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.files.get_mut(file).expect("a name has a file"))
    }
}

impl Disk for SimDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.state.borrow().names.keys().cloned().collect())
    }

    fn length(&mut self, name: &str) -> io::Result<u64> {
        Ok(self.state.borrow_mut().file(name)?.seen.len() as u64)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.state.borrow_mut();
        let mut bytes = state.file(name)?.seen.clone();
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
            state.change(NameChange::Set(name.to_owned(), file));
        }
        let mut offset = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if name.starts_with("wal-") && bytes.iter().any(|byte| *byte != 0) {
            offset = state.misdirect(name, offset, bytes.len())?;
        }
        state.file(name)?.write(offset, bytes);
        if full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.killed()?;
        if state.sync_fails() {
            // As Linux does it: what could not be written counts as written from then on.
            let mut random = state.random.clone();
            let file = state.file(name)?;
            file.apart = Some(file.lose(&mut random));
            state.random = random;
            return Err(io::Error::other("EIO"));
        }
        state.file(name)?.sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.state
            .borrow_mut()
            .change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.killed()?;
        if state.sync_fails() {
            return Err(io::Error::other("EIO"));
        }
        for change in state.pending.drain(..) {
            apply(&mut state.durable_names, change);
        }
        let names = &state.durable_names;
        state
            .files
            .retain(|file, _| names.values().any(|named| named == file));
        Ok(())
    }
}
