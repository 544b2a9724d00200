//! The write-ahead log: pre-zeroed, recycled segments and one sync for each batch of records.
//!
//! A batch is one frame: a 64-byte header that verifies itself, and a payload of records. The next
//! frame is written only after the last one was synced. So the log ends at the first frame that is
//! not whole, and a frame after a broken one proves that the broken one had been durable. Since
//! segments are zero before they are written, a frame whose crash left sectors unwritten can be
//! told from one that was written and then damaged: the header says how many of its sectors are
//! zero by right. The first is cut off, the second stops the start, because the replica may
//! have promised what was in it.

mod frame;
mod records;
mod recovery;

use std::collections::BTreeMap;
use std::io;

use raft::eraftpb::{Entry, HardState};

use crate::codec::Writer;
use crate::disk::Disk;
use crate::ids::{Incarnation, LogIndex, Term};

pub use frame::FrameError;
pub use records::{Record, RecordError};
pub use recovery::{Contents, WalDamage, WalOpenError};

/// Zeroed segments kept ready; one is in use while the other is being filled.
const SPARES_MAX: usize = 2;

/// What the names of segments begin with.
const SEGMENT_PREFIX: &str = "wal-";

/// Bytes zeroed by one write.
const ZERO_BYTES: usize = 1 << 20;

/// Memory kept for the next frame; one that was larger is given back.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// Sizes of the log on disk.
#[derive(Clone, Copy, Debug)]
pub struct WalConfig {
    /// Bytes of a segment; a single larger batch gets a segment of its own size.
    pub segment_bytes: u64,
}

impl Default for WalConfig {
    /// 16 MiB: zeroing one takes some 10 ms, and 64 of them are a gigabyte of log.
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
        }
    }
}

/// An error after which nothing is known about the disk: the replica must stop, and start again
/// from what the disk then holds.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {name}: the replica stops, since what is durable is unknown")]
pub struct WalError {
    /// What was tried.
    pub action: &'static str,
    /// The file.
    pub name: String,
    /// What the system said.
    #[source]
    pub cause: io::Error,
}

/// What one sync makes durable, in this order.
#[derive(Clone, Debug, Default)]
pub struct Append<'a> {
    /// The log now begins after this entry: a snapshot of it was installed.
    pub snapshot: Option<(LogIndex, Term)>,
    /// Entries; they replace any at or after their first index.
    pub entries: &'a [Entry],
    /// Term, vote and commit.
    pub hard_state: Option<&'a HardState>,
}

#[derive(Debug)]
struct Segment {
    /// The highest index any frame in it speaks of.
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
    /// When a file is damaged or missing, or the system fails.
    pub fn open(disk: &mut impl Disk, config: WalConfig) -> Result<(Self, Contents), WalOpenError> {
        recovery::open(disk, config)
    }

    /// Whether a folder holds a log.
    ///
    /// # Errors
    /// When the system fails.
    pub fn exists(disk: &mut impl Disk) -> io::Result<bool> {
        let names = disk.list()?;
        Ok(names.iter().any(|name| name.starts_with(SEGMENT_PREFIX)))
    }

    /// Reads the log of a folder without changing anything: for the audit.
    ///
    /// # Errors
    /// When a file is damaged or missing, or the system fails.
    pub fn read(disk: &mut impl Disk) -> Result<Contents, WalOpenError> {
        recovery::read(disk)
    }

    /// Makes one batch durable with one sync.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn append(&mut self, disk: &mut impl Disk, batch: &Append<'_>) -> Result<(), WalError> {
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state.clone();
        }
        let mut frame = frame::begin(std::mem::take(&mut self.buffer));
        records::encode(batch, &mut frame);
        if !self.fits(frame::payload_bytes(&frame)) {
            frame = self.roll(disk, batch)?;
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

    fn fits(&self, payload_bytes: usize) -> bool {
        let length = self
            .segments
            .get(&self.active)
            .map_or(0, |segment| segment.length);
        self.offset + frame::length(payload_bytes) <= length
    }

    /// Starts the next segment; its first frame repeats what older segments are needed for.
    fn roll(&mut self, disk: &mut impl Disk, batch: &Append<'_>) -> Result<Writer, WalError> {
        let mut frame = frame::begin(Vec::new());
        records::encode_first(self.incarnation, &self.hard_state, batch, &mut frame);
        let payload_bytes = frame::payload_bytes(&frame);
        let wanted = frame::length(payload_bytes).max(self.config.segment_bytes);
        let number = self.active + 1;
        let name = segment_name(number);
        let length = self.take_spare(disk, &name, wanted)?;
        disk.sync_names()
            .map_err(failed("sync the folder of", &name))?;
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
            self.fits(payload_bytes),
            "a new segment holds the frame it was made for"
        );
        Ok(frame)
    }

    /// Gives a zeroed segment its name, from the spares if one is large enough.
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
                .map_err(failed("rename", &spare))?;
            return Ok(length);
        }
        let spare = self.new_spare_name();
        zero(disk, &spare, wanted)?;
        disk.rename(&spare, name)
            .map_err(failed("rename", &spare))?;
        Ok(wanted)
    }

    fn new_spare_name(&mut self) -> String {
        self.spare_number += 1;
        format!("spare-{:016x}", self.spare_number)
    }

    fn write_frame(&mut self, disk: &mut impl Disk, frame: Writer) -> Result<(), WalError> {
        let frame = frame::seal(frame, self.active, self.frame_number, self.offset);
        let name = &self.name;
        disk.write(name, self.offset, &frame)
            .map_err(failed("write", name))?;
        disk.sync(name).map_err(failed("sync", name))?;
        self.offset += frame.len() as u64;
        self.frame_number += 1;
        if frame.capacity() <= BUFFER_BYTES_MAX {
            self.buffer = frame;
        }
        Ok(())
    }

    /// Gives up the segments that speak only of entries up to `covered`, which a durable snapshot
    /// covers. Some are zeroed and kept for later use.
    ///
    /// # Errors
    /// Any error is final; see [`WalError`].
    pub fn release(&mut self, disk: &mut impl Disk, covered: LogIndex) -> Result<(), WalError> {
        while let Some(entry) = self.segments.first_entry() {
            if *entry.key() == self.active || entry.get().last > covered {
                break;
            }
            let (number, segment) = entry.remove_entry();
            self.recycle(disk, &segment_name(number), segment.length)?;
        }
        Ok(())
    }

    fn recycle(&mut self, disk: &mut impl Disk, name: &str, length: u64) -> Result<(), WalError> {
        if self.spares.len() >= SPARES_MAX || length != self.config.segment_bytes {
            disk.remove(name).map_err(failed("remove", name))?;
            return disk
                .sync_names()
                .map_err(failed("sync the folder of", name));
        }
        let spare = self.new_spare_name();
        disk.rename(name, &spare).map_err(failed("rename", name))?;
        disk.sync_names()
            .map_err(failed("sync the folder of", name))?;
        zero(disk, &spare, length)?;
        self.spares.push((spare, length));
        Ok(())
    }

    /// This life's number.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

/// The file name of a segment.
fn segment_name(number: u64) -> String {
    format!("{SEGMENT_PREFIX}{number:016x}")
}

/// Fills a file with zeros and makes them durable.
fn zero(disk: &mut impl Disk, name: &str, length: u64) -> Result<(), WalError> {
    let zeros = vec![0_u8; ZERO_BYTES.min(usize::try_from(length).unwrap_or(ZERO_BYTES))];
    let mut at = 0;
    while at < length {
        let part = usize::try_from(length - at)
            .unwrap_or(ZERO_BYTES)
            .min(zeros.len());
        disk.write(name, at, &zeros[..part])
            .map_err(failed("zero", name))?;
        at += part as u64;
    }
    disk.sync(name).map_err(failed("sync", name))
}

fn failed<'a>(action: &'static str, name: &'a str) -> impl FnOnce(io::Error) -> WalError + 'a {
    move |cause| WalError {
        action,
        name: name.to_owned(),
        cause,
    }
}
