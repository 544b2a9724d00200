//! The write-ahead log: the log that a replica writes to disk before it acknowledges anything. It
//! writes into pre-zeroed, recycled files (segments), with one sync for each batch of records.
//!
//! A batch is one frame: a 64-byte header that verifies itself, and a payload of records. The log
//! must sync a frame before it writes the next one. So the log ends at the first incomplete
//! frame, and a frame after a broken one proves that the broken one had been durable. Segments are
//! zero before use, and the header says how many sectors of its frame are rightly zero. This
//! distinguishes a frame whose crash left sectors unwritten from one that was written and then
//! damaged. Recovery cuts the first off; the second must stop the start, because the replica may
//! have acknowledged its content.

mod frame;
mod records;
mod recovery;

use std::collections::BTreeMap;
use std::io;

use raft::eraftpb::{Entry, HardState};

use crate::codec::Writer;
use crate::disk::Disk;
use crate::ids::{Incarnation, Term};
use souk_proof::LogIndex;

pub use frame::FrameError;
pub use records::{Record, RecordError};
pub use recovery::{Contents, WalDamage, WalOpenError};

/// The most zeroed segments in reserve: one is in use while the other is being filled.
const SPARES_MAX: usize = 2;

/// The prefix of the segments' names.
const SEGMENT_PREFIX: &str = "wal-";

/// The bytes that one write zeroes.
const ZERO_BYTES: usize = 1 << 20;

/// The most memory to keep for the next frame; the log frees a larger buffer.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The sizes of the log on disk.
#[derive(Clone, Copy, Debug)]
pub struct WalConfig {
    /// The bytes of a segment; a larger batch gets a segment of its own size.
    pub segment_bytes: u64,
}

impl Default for WalConfig {
    /// 16 MiB: zeroing one takes about 10 ms, and 64 of them are a gigabyte of log.
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
        }
    }
}

/// An error after which the disk's state is unknown: the replica must stop, and start again from
/// the data that the disk then holds.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {name}: the replica stops, since what is durable is unknown")]
pub struct WalError {
    /// The attempted action.
    pub action: &'static str,
    /// The file's name.
    pub name: String,
    /// The system's error.
    #[source]
    pub cause: io::Error,
}

/// Data that one sync makes durable, in this order.
#[derive(Clone, Debug, Default)]
pub struct Append<'a> {
    /// The entry and term after which the log now begins, because a snapshot of it was installed.
    pub snapshot: Option<(LogIndex, Term)>,
    /// Entries; they replace any at or after their first index.
    pub entries: &'a [Entry],
    /// The term, vote and commit index.
    pub hard_state: Option<&'a HardState>,
}

#[derive(Debug)]
struct Segment {
    /// The highest index that its frames contain.
    last: LogIndex,
    length: u64,
}

/// The open log.
#[derive(Debug)]
pub struct Wal {
    config: WalConfig,
    segments: BTreeMap<u64, Segment>,
    spares: Vec<(String, u64)>,
    spare_number: u64,
    active: u64,
    /// The file name of the active segment.
    name: String,
    offset: u64,
    frame_number: u64,
    incarnation: Incarnation,
    hard_state: HardState,
    /// The memory of the last frame, for the next one.
    buffer: Vec<u8>,
}

impl Wal {
    /// Opens the log of a folder, cuts off a torn tail and begins a new life of the replica.
    ///
    /// # Errors
    /// If a file is damaged or missing, or a system call fails.
    pub fn open(disk: &mut impl Disk, config: WalConfig) -> Result<(Self, Contents), WalOpenError> {
        recovery::open_wal(disk, config)
    }

    /// Returns whether a folder holds a log.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn exists(disk: &mut impl Disk) -> io::Result<bool> {
        let names = disk.list_files()?;
        Ok(names.iter().any(|name| name.starts_with(SEGMENT_PREFIX)))
    }

    /// Reads the log of a folder without changing it, for the audit.
    ///
    /// # Errors
    /// If a file is damaged or missing, or a system call fails.
    pub fn read(disk: &mut impl Disk) -> Result<Contents, WalOpenError> {
        recovery::read(disk)
    }

    /// Makes one batch durable with one sync.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn append_batch(
        &mut self,
        disk: &mut impl Disk,
        batch: &Append<'_>,
    ) -> Result<(), WalError> {
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state.clone();
        }
        let mut frame = frame::begin_payload(std::mem::take(&mut self.buffer));
        records::encode(batch, &mut frame);
        if !self.has_room(frame::payload_bytes(&frame)) {
            frame = self.start_segment(disk, batch)?;
        }
        self.write_frame(disk, frame)?;
        let last = batch
            .entries
            .last()
            .map(|entry| LogIndex(entry.index))
            .unwrap_or_default();
        let installed = batch.snapshot.map(|(index, _)| index).unwrap_or_default();
        let segment = self
            .segments
            .get_mut(&self.active)
            .expect("the active segment is known");
        segment.last = segment.last.max(last).max(installed);
        Ok(())
    }

    fn has_room(&self, payload_bytes: usize) -> bool {
        let length = self
            .segments
            .get(&self.active)
            .map_or(0, |segment| segment.length);
        self.offset + frame::padded_length(payload_bytes) <= length
    }

    /// Starts the next segment; its first frame repeats the records for which older segments would
    /// be needed.
    fn start_segment(
        &mut self,
        disk: &mut impl Disk,
        batch: &Append<'_>,
    ) -> Result<Writer, WalError> {
        let mut frame = frame::begin_payload(Vec::new());
        records::encode_first(self.incarnation, &self.hard_state, batch, &mut frame);
        let payload_bytes = frame::payload_bytes(&frame);
        let wanted = frame::padded_length(payload_bytes).max(self.config.segment_bytes);
        let number = self.active + 1;
        let name = segment_name(number);
        let length = self.take_spare(disk, &name, wanted)?;
        disk.sync_names()
            .map_err(to_wal_error("sync the folder of", &name))?;
        self.segments.insert(
            number,
            Segment {
                last: LogIndex(0),
                length,
            },
        );
        self.active = number;
        self.name = name;
        self.offset = 0;
        assert!(
            self.has_room(payload_bytes),
            "a new segment holds the frame it was made for"
        );
        Ok(frame)
    }

    /// Renames a zeroed segment to `name`: a spare if one is large enough, otherwise a new one.
    fn take_spare(
        &mut self,
        disk: &mut impl Disk,
        name: &str,
        wanted: u64,
    ) -> Result<u64, WalError> {
        let fitting = self.spares.iter().position(|(_, length)| *length >= wanted);
        if let Some(place) = fitting {
            let (spare, length) = self.spares.swap_remove(place);
            disk.rename(&spare, name)
                .map_err(to_wal_error("rename", &spare))?;
            return Ok(length);
        }
        let spare = self.new_spare_name();
        zero_file(disk, &spare, wanted)?;
        disk.rename(&spare, name)
            .map_err(to_wal_error("rename", &spare))?;
        Ok(wanted)
    }

    fn new_spare_name(&mut self) -> String {
        self.spare_number += 1;
        format!("spare-{:016x}", self.spare_number)
    }

    fn write_frame(&mut self, disk: &mut impl Disk, frame: Writer) -> Result<(), WalError> {
        let frame = frame::seal_payload(frame, self.active, self.frame_number, self.offset);
        let name = &self.name;
        disk.write(name, self.offset, &frame)
            .map_err(to_wal_error("write", name))?;
        disk.sync_file(name).map_err(to_wal_error("sync", name))?;
        self.offset += frame.len() as u64;
        self.frame_number += 1;
        if frame.capacity() <= BUFFER_BYTES_MAX {
            self.buffer = frame;
        }
        Ok(())
    }

    /// Removes the segments with entries only up to `covered`, which a durable snapshot covers.
    /// Some are zeroed and kept for later use.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn release_segments(
        &mut self,
        disk: &mut impl Disk,
        covered: LogIndex,
    ) -> Result<(), WalError> {
        while let Some(entry) = self.segments.first_entry() {
            if *entry.key() == self.active || entry.get().last > covered {
                break;
            }
            let (number, segment) = entry.remove_entry();
            self.recycle_segment(disk, &segment_name(number), segment.length)?;
        }
        Ok(())
    }

    fn recycle_segment(
        &mut self,
        disk: &mut impl Disk,
        name: &str,
        length: u64,
    ) -> Result<(), WalError> {
        if self.spares.len() >= SPARES_MAX || length != self.config.segment_bytes {
            disk.remove(name).map_err(to_wal_error("remove", name))?;
            return disk
                .sync_names()
                .map_err(to_wal_error("sync the folder of", name));
        }
        let spare = self.new_spare_name();
        disk.rename(name, &spare)
            .map_err(to_wal_error("rename", name))?;
        disk.sync_names()
            .map_err(to_wal_error("sync the folder of", name))?;
        zero_file(disk, &spare, length)?;
        self.spares.push((spare, length));
        Ok(())
    }

    /// Returns the incarnation of this start.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

/// Returns the file name of a segment.
fn segment_name(number: u64) -> String {
    format!("{SEGMENT_PREFIX}{number:016x}")
}

/// Fills a file with zeros and makes them durable.
fn zero_file(disk: &mut impl Disk, name: &str, length: u64) -> Result<(), WalError> {
    let zeros = vec![0_u8; ZERO_BYTES.min(usize::try_from(length).unwrap_or(ZERO_BYTES))];
    let mut at = 0;
    while at < length {
        let part = usize::try_from(length - at)
            .unwrap_or(ZERO_BYTES)
            .min(zeros.len());
        disk.write(name, at, &zeros[..part])
            .map_err(to_wal_error("zero", name))?;
        at += part as u64;
    }
    disk.sync_file(name).map_err(to_wal_error("sync", name))
}

fn to_wal_error<'a>(
    action: &'static str,
    name: &'a str,
) -> impl FnOnce(io::Error) -> WalError + 'a {
    move |cause| WalError {
        action,
        name: name.to_owned(),
        cause,
    }
}
