//! Reads the write-ahead log back when a replica starts: keeps whole frames, cuts off a torn write
//! at the end, and refuses to start on damage.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};

use super::frame::{self, Frame, FrameError};
use super::records::{self, Record, RecordError};
use super::{Append, SEGMENT_PREFIX, Segment, Wal, WalConfig, WalError, segment_name, zero_file};
use crate::disk::{Disk, read_whole};
use crate::ids::Incarnation;
use souk_proof::LogIndex;

/// The content of a log when it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The entries, consecutive and without a gap.
    pub entries: Vec<Entry>,
    /// The term, vote and commit index.
    pub hard_state: HardState,
    /// The last incarnation that wrote the log.
    pub incarnation: Incarnation,
    /// The file and offset at which a torn write was cut off, if there was one.
    pub cut: Option<(String, u64)>,
}

/// The damage in the files of a log.
#[derive(Debug, thiserror::Error)]
pub enum WalDamage {
    /// A frame is broken although it was durable once.
    #[error("{cause}")]
    Frame {
        /// The fault in the frame.
        #[source]
        cause: FrameError,
    },
    /// A whole frame follows a torn one.
    #[error("{cause}, but there is a later frame at byte {later}")]
    NotLast {
        /// The fault in the torn frame.
        #[source]
        cause: FrameError,
        /// The offset of the later frame.
        later: u64,
    },
    /// This version cannot read a whole frame.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// Entries are missing.
    #[error("entry {found} follows entry {last}")]
    Gap {
        /// The last entry before the gap.
        last: LogIndex,
        /// The first entry after the gap.
        found: LogIndex,
    },
    /// A whole file is missing.
    #[error("the file is missing, but there are later ones")]
    Missing,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WalOpenError {
    /// The log on this disk is damaged.
    #[error(
        "the log is damaged in {segment} at byte {offset}: {damage}. This replica may have \
         promised what was there, so it does not start: restore its folder from a backup, or \
         remove it from the group and add it again under a new id"
    )]
    Damaged {
        /// The file's name.
        segment: String,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The damage found.
        #[source]
        damage: WalDamage,
    },
    /// The system could not read the log.
    #[error("cannot read the log: {0}")]
    Read(#[from] io::Error),
    /// A system call failed while the log was prepared.
    #[error(transparent)]
    Write(#[from] WalError),
}

/// Opens a log; see [`Wal::open`].
pub(super) fn open_wal(
    disk: &mut impl Disk,
    config: WalConfig,
) -> Result<(Wal, Contents), WalOpenError> {
    let (mut scan, length) = Scan::read_all(disk)?;
    scan.cut_tail(disk)?;
    scan.write_last_again(disk)?;
    let active = scan.segments.last_key_value();
    let active = active.map_or(0, |(number, _)| *number);
    let mut wal = Wal {
        config,
        active,
        name: segment_name(active),
        segments: scan.segments,
        spares: Vec::new(),
        spare_number: 0,
        offset: length,
        frame_number: scan.next_frame.unwrap_or(0),
        incarnation: Incarnation(scan.contents.incarnation.0 + 1),
        hard_state: scan.contents.hard_state.clone(),
        buffer: Vec::new(),
    };
    adopt_spares(disk, &mut wal)?;
    begin_life(disk, &mut wal)?;
    Ok((wal, scan.contents))
}

/// Reads a log without changing it, for the audit.
///
/// # Errors
/// If a file is damaged or missing, or a system call fails.
pub(super) fn read(disk: &mut impl Disk) -> Result<Contents, WalOpenError> {
    Ok(Scan::read_all(disk)?.0.contents)
}

/// Writes the number of a new life, which must come before all else that it writes.
fn begin_life(disk: &mut impl Disk, wal: &mut Wal) -> Result<(), WalError> {
    let batch = Append::default();
    let mut frame = frame::begin_payload(Vec::new());
    records::encode_first(wal.incarnation, &wal.hard_state, &batch, &mut frame);
    if !wal.has_room(frame::payload_bytes(&frame)) {
        frame = wal.start_segment(disk, &batch)?;
    }
    wal.write_frame(disk, frame)
}

/// Keeps the zeroed segments that an earlier life left, and zeroes again those that a crash left
/// half done. Removes those of another size, or more than are needed.
fn adopt_spares(disk: &mut impl Disk, wal: &mut Wal) -> Result<(), WalOpenError> {
    for name in disk.list_files()? {
        let Some(number) = number_of(&name, "spare-") else {
            continue;
        };
        wal.spare_number = wal.spare_number.max(number);
        let bytes = disk.read(&name)?;
        if bytes.len() as u64 != wal.config.segment_bytes || wal.spares.len() >= super::SPARES_MAX {
            disk.remove(&name)?;
            continue;
        }
        if !frame::is_blank(&bytes) {
            zero_file(disk, &name, wal.config.segment_bytes)?;
        }
        wal.spares.push((name, bytes.len() as u64));
    }
    Ok(())
}

fn number_of(name: &str, prefix: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok()
}

#[derive(Default)]
struct Scan {
    contents: Contents,
    segments: BTreeMap<u64, Segment>,
    next_frame: Option<u64>,
    /// The last frame: its segment, its offset there, and its bytes.
    last_frame: Option<(u64, u64, Bytes)>,
    /// The offset of the next frame, and the end of the non-zero bytes after it.
    tail: (u64, u64),
}

impl Scan {
    /// Reads every segment; the number returned is the offset of the next frame in the last one.
    fn read_all(disk: &mut impl Disk) -> Result<(Self, u64), WalOpenError> {
        let mut scan = Self::default();
        let numbers: Vec<u64> = disk
            .list_files()?
            .iter()
            .filter_map(|name| number_of(name, SEGMENT_PREFIX))
            .collect();
        for (place, number) in numbers.iter().enumerate() {
            let wanted = numbers[0] + place as u64;
            if *number != wanted {
                return Err(damage_error(wanted, 0, WalDamage::Missing));
            }
            let bytes = Bytes::from(read_whole(disk, &segment_name(*number))?);
            scan.read_segment(*number, &bytes, place + 1 == numbers.len())?;
        }
        let offset = scan.tail.0;
        Ok((scan, offset))
    }

    fn read_segment(&mut self, number: u64, bytes: &Bytes, last: bool) -> Result<(), WalOpenError> {
        let mut segment = Segment {
            last: LogIndex(0),
            length: bytes.len() as u64,
        };
        let mut offset = 0;
        loop {
            let wanted = self
                .next_frame
                .or_else(|| frame::read_frame_number(bytes, offset));
            match frame::decode(bytes, offset, number, wanted.unwrap_or(0)) {
                Ok(frame) => {
                    self.on_frame(&frame, &mut segment)
                        .map_err(|damage| damage_error(number, offset, damage))?;
                    let written = bytes.slice(offset..frame.end);
                    self.last_frame = Some((number, offset as u64, written));
                    offset = frame.end;
                }
                Err(cause) => {
                    self.on_end(number, bytes, offset, last, cause)?;
                    break;
                }
            }
        }
        self.segments.insert(number, segment);
        Ok(())
    }

    fn on_frame(&mut self, frame: &Frame, segment: &mut Segment) -> Result<(), WalDamage> {
        self.next_frame = Some(frame.number + 1);
        for record in records::decode(frame.payload.clone())? {
            match record {
                Record::Incarnation(incarnation) => self.contents.incarnation = incarnation,
                Record::HardState(hard_state) => self.contents.hard_state = hard_state,
                Record::Snapshot(index, _) => {
                    self.contents.entries.clear();
                    segment.last = segment.last.max(index);
                }
                Record::Entry(entry) => {
                    segment.last = segment.last.max(LogIndex(entry.index));
                    self.on_entry(entry)?;
                }
            }
        }
        Ok(())
    }

    fn on_entry(&mut self, entry: Entry) -> Result<(), WalDamage> {
        let entries = &mut self.contents.entries;
        if let Some(first) = entries.first().map(|first| first.index) {
            let keep = usize::try_from(entry.index.saturating_sub(first)).unwrap_or(usize::MAX);
            if keep > entries.len() {
                let last = LogIndex(first + entries.len() as u64 - 1);
                return Err(WalDamage::Gap {
                    last,
                    found: LogIndex(entry.index),
                });
            }
            entries.truncate(keep);
        }
        entries.push(entry);
        Ok(())
    }

    /// Decides what the first invalid frame means: the log's end, a torn write, or damage.
    fn on_end(
        &mut self,
        number: u64,
        bytes: &Bytes,
        offset: usize,
        last: bool,
        cause: FrameError,
    ) -> Result<(), WalOpenError> {
        let torn = cause == FrameError::Torn;
        if cause != FrameError::Blank && !(torn && last) {
            return Err(damage_error(number, offset, WalDamage::Frame { cause }));
        }
        let expected = self.next_frame.unwrap_or(0);
        if torn && let Some(later) = frame::find_later_frame(bytes, offset, number, expected) {
            let damage = WalDamage::NotLast {
                cause,
                later: later as u64,
            };
            return Err(damage_error(number, offset, damage));
        }
        if torn {
            self.contents.cut = Some((segment_name(number), offset as u64));
        }
        let written = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |place| place + 1);
        self.tail = (offset as u64, written as u64);
        Ok(())
    }

    /// Writes the last frame again. If its sync failed, the life that wrote it stopped, and the
    /// system can hold it in memory as if it were on disk: then no later sync would write it.
    /// Earlier frames were synced before it was begun.
    fn write_last_again(&self, disk: &mut impl Disk) -> Result<(), WalError> {
        let Some((number, offset, bytes)) = &self.last_frame else {
            return Ok(());
        };
        let name = segment_name(*number);
        disk.write(&name, *offset, bytes)
            .map_err(super::to_wal_error("write", &name))?;
        disk.sync_file(&name)
            .map_err(super::to_wal_error("sync", &name))
    }

    /// Zeroes the remains of a torn write, because the next frame needs a zeroed segment.
    fn cut_tail(&mut self, disk: &mut impl Disk) -> Result<(), WalError> {
        let (from, to) = self.tail;
        let (Some((name, _)), true) = (&self.contents.cut, to > from) else {
            return Ok(());
        };
        let length = usize::try_from(to - from).expect("a torn frame fits memory");
        disk.write(name, from, &vec![0; length])
            .map_err(super::to_wal_error("zero", name))?;
        disk.sync_file(name)
            .map_err(super::to_wal_error("sync", name))
    }
}

fn damage_error(number: u64, offset: impl TryInto<u64>, damage: WalDamage) -> WalOpenError {
    let offset = offset.try_into().unwrap_or(u64::MAX);
    WalOpenError::Damaged {
        segment: segment_name(number),
        offset,
        damage,
    }
}
