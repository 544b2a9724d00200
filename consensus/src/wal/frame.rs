//! Encodes and checks one frame, the unit of a write to the write-ahead log: a header of 64 bytes,
//! then the payload, padded to a multiple of 64 bytes.
//!
//! 64 divides the sector of 512 bytes, so a header can never cross sectors and is either written
//! or not.

use std::ops::Range;

use bytes::Bytes;

use crate::codec::Writer;

/// The bytes of a header, and the alignment of frames.
pub(super) const HEADER_BYTES: usize = 64;

/// The unit that a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// The first bytes of a header: its name and layout version.
const MAGIC: [u8; 8] = *b"soukWAL1";

/// The bytes of a digest in the header.
const DIGEST_BYTES: usize = 16;

/// The bytes of the header before its own digest.
const FIELDS_BYTES: usize = HEADER_BYTES - DIGEST_BYTES;

/// Why there is no valid frame at an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Only zeros: nothing was written here.
    #[error("nothing was written here")]
    Blank,
    /// Some of its sectors were never written.
    #[error("the last write was cut short by a crash")]
    Torn,
    /// The header does not verify.
    #[error("the header is damaged")]
    Header,
    /// The payload does not verify.
    #[error("the payload of {payload_bytes} bytes is damaged")]
    Payload {
        /// The payload's length in bytes.
        payload_bytes: usize,
    },
    /// The frame is intact, but belongs elsewhere.
    #[error("frame {found} of segment {segment} is in the place of frame {wanted}")]
    Misplaced {
        /// The expected frame number.
        wanted: u64,
        /// The frame number found.
        found: u64,
        /// The segment for which it was written.
        segment: u64,
    },
}

/// A decoded frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub number: u64,
    pub payload: Bytes,
    /// The offset of the next frame.
    pub end: usize,
}

/// Returns the length of a frame with this payload, header and padding included.
pub(super) fn padded_length(payload_bytes: usize) -> u64 {
    (HEADER_BYTES + payload_bytes).next_multiple_of(HEADER_BYTES) as u64
}

/// Creates a writer for a frame's payload, in a reused buffer with space for the header.
pub(super) fn begin_payload(mut buffer: Vec<u8>) -> Writer {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
    Writer::from_vec(buffer)
}

/// Returns the number of bytes written after [`begin_payload`].
pub(super) fn payload_bytes(writer: &Writer) -> usize {
    writer.len() - HEADER_BYTES
}

/// Turns the bytes written after [`begin_payload`] into the frame with this number, at `offset` of
/// `segment`.
pub(super) fn seal_payload(writer: Writer, segment: u64, number: u64, offset: u64) -> Vec<u8> {
    let mut frame = writer.into_bytes();
    let payload = &frame[HEADER_BYTES..];
    let payload_bytes = u32::try_from(payload.len()).expect("a batch is far below 4 GiB");
    let total = usize::try_from(padded_length(payload.len())).expect("a frame fits memory");
    let mut header = Writer::with_capacity(HEADER_BYTES);
    header.write_raw(&MAGIC);
    header.write_u64(segment);
    header.write_u64(number);
    header.write_u32(payload_bytes);
    header.write_u32(blank_sectors(payload, payload_start(offset)));
    header.write_raw(&short_digest(payload));
    let mut header = header.into_bytes();
    let closing = short_digest(&header);
    header.extend_from_slice(&closing);
    frame[..HEADER_BYTES].copy_from_slice(&header);
    frame.resize(total, 0);
    frame
}

/// Decodes the frame at `offset` in the bytes of a segment, and checks that it has the wanted
/// number.
pub(super) fn decode(
    bytes: &Bytes,
    offset: usize,
    segment: u64,
    wanted: u64,
) -> Result<Frame, FrameError> {
    let rest = bytes.get(offset..).unwrap_or_default();
    let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::Blank);
    };
    if header.iter().all(|byte| *byte == 0) {
        return Err(if is_blank(rest) {
            FrameError::Blank
        } else {
            FrameError::Torn
        });
    }
    let header = Header::decode(header).ok_or(FrameError::Header)?;
    if header.segment != segment || header.number != wanted {
        return Err(FrameError::Misplaced {
            wanted,
            found: header.number,
            segment: header.segment,
        });
    }
    let range = offset + HEADER_BYTES..offset + HEADER_BYTES + header.payload_bytes;
    let payload = verify_payload(bytes, range, &header)?;
    let end = offset + usize::try_from(padded_length(payload.len())).expect("it was in memory");
    Ok(Frame {
        number: header.number,
        payload,
        end,
    })
}

struct Header {
    segment: u64,
    number: u64,
    payload_bytes: usize,
    blank_sectors: u32,
    digest: [u8; DIGEST_BYTES],
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (fields, closing) = bytes.split_at(FIELDS_BYTES);
        if fields[..8] != MAGIC || short_digest(fields) != closing {
            return None;
        }
        Some(Self {
            segment: u64::from_le_bytes(fields[8..16].try_into().ok()?),
            number: u64::from_le_bytes(fields[16..24].try_into().ok()?),
            payload_bytes: u32::from_le_bytes(fields[24..28].try_into().ok()?) as usize,
            blank_sectors: u32::from_le_bytes(fields[28..32].try_into().ok()?),
            digest: fields[32..48].try_into().ok()?,
        })
    }
}

fn verify_payload(
    bytes: &Bytes,
    range: Range<usize>,
    header: &Header,
) -> Result<Bytes, FrameError> {
    let damaged = FrameError::Payload {
        payload_bytes: header.payload_bytes,
    };
    if range.end > bytes.len() {
        return Err(damaged);
    }
    let payload = bytes.slice(range.clone());
    if short_digest(&payload) == header.digest {
        return Ok(payload);
    }
    let unwritten = blank_sectors(&payload, range.start) > header.blank_sectors;
    Err(if unwritten { FrameError::Torn } else { damaged })
}

/// Returns the number of the frame whose header is at `offset`, if there is one.
pub(super) fn read_frame_number(bytes: &Bytes, offset: usize) -> Option<u64> {
    let header = bytes
        .get(offset..)?
        .first_chunk()
        .and_then(Header::decode)?;
    Some(header.number)
}

/// Returns the offset of a whole header of `segment` with a number above `number`, at or after
/// `offset`.
pub(super) fn find_later_frame(
    bytes: &Bytes,
    offset: usize,
    segment: u64,
    number: u64,
) -> Option<usize> {
    let starts = (offset..bytes.len().saturating_sub(HEADER_BYTES)).step_by(HEADER_BYTES);
    starts.into_iter().find(|start| {
        let header = bytes[*start..].first_chunk().and_then(Header::decode);
        header.is_some_and(|header| header.segment == segment && header.number > number)
    })
}

/// Returns whether all bytes are zero.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn payload_start(offset: u64) -> usize {
    usize::try_from(offset).expect("a segment fits memory") + HEADER_BYTES
}

/// Returns the number of sectors in which the payload has only zeros. If more are zero on disk than
/// when the frame was written, some were never written.
fn blank_sectors(payload: &[u8], start: usize) -> u32 {
    let first = (SECTOR_BYTES - start % SECTOR_BYTES) % SECTOR_BYTES;
    let (head, rest) = payload.split_at(first.min(payload.len()));
    let blank = |part: &&[u8]| !part.is_empty() && is_blank(part);
    let count = usize::from(blank(&head)) + rest.chunks(SECTOR_BYTES).filter(blank).count();
    u32::try_from(count).expect("a payload has fewer sectors than bytes")
}

fn short_digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let whole = blake3::hash(bytes);
    *whole
        .as_bytes()
        .first_chunk()
        .expect("a digest has 32 bytes")
}
