//! One frame: 64 bytes of header, then the payload, padded to the next 64 bytes.
//!
//! 64 divides the sector of 512 bytes, so a header never lies across two sectors and is either
//! written or not.

use std::ops::Range;

use bytes::Bytes;

use crate::codec::Writer;

/// Bytes of a header, and the alignment of frames.
pub(super) const HEADER_BYTES: usize = 64;

/// The unit a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// First bytes of a header: name and layout version.
const MAGIC: [u8; 8] = *b"soukWAL1";

/// Bytes of a digest kept in the header.
const DIGEST_BYTES: usize = 16;

/// Header fields before the header's own digest.
const FIELDS_BYTES: usize = HEADER_BYTES - DIGEST_BYTES;

/// What stands where a frame was expected and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Zeros: nothing was written here.
    #[error("nothing was written here")]
    Blank,
    /// Some of its sectors were never written.
    #[error("the last write was cut short by a crash")]
    Torn,
    /// A header that doesn't verify.
    #[error("the header is damaged")]
    Header,
    /// A payload that doesn't verify.
    #[error("the payload of {payload_bytes} bytes is damaged")]
    Payload {
        /// Its length.
        payload_bytes: usize,
    },
    /// A whole frame that belongs elsewhere.
    #[error("frame {found} of segment {segment} stands where frame {wanted} belongs")]
    Misplaced {
        /// The frame number that belongs here.
        wanted: u64,
        /// The frame number found.
        found: u64,
        /// The segment it was written for.
        segment: u64,
    },
}

/// A frame read.
#[derive(Debug)]
pub(super) struct Frame {
    pub number: u64,
    pub payload: Bytes,
    /// Where the next frame begins.
    pub end: usize,
}

/// Bytes a frame takes, padding included.
pub(super) fn length(payload_bytes: usize) -> u64 {
    (HEADER_BYTES + payload_bytes).next_multiple_of(HEADER_BYTES) as u64
}

/// A writer for a frame's payload, in a buffer that is used again: room for the header is left.
pub(super) fn begin(mut buffer: Vec<u8>) -> Writer {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
    Writer::after(buffer)
}

/// Bytes written after [`begin`].
pub(super) fn payload_bytes(writer: &Writer) -> usize {
    writer.len() - HEADER_BYTES
}

/// Makes what was written after [`begin`] a frame for `offset` of `segment`.
pub(super) fn seal(writer: Writer, segment: u64, number: u64, offset: u64) -> Vec<u8> {
    let mut frame = writer.finish();
    let payload = &frame[HEADER_BYTES..];
    let payload_bytes = u32::try_from(payload.len()).expect("a batch is far below 4 GiB");
    let total = usize::try_from(length(payload.len())).expect("a frame fits memory");
    let mut header = Writer::with_capacity(HEADER_BYTES);
    header.raw(&MAGIC);
    header.u64(segment);
    header.u64(number);
    header.u32(payload_bytes);
    header.u32(blank_parts(payload, payload_start(offset)));
    header.raw(&digest(payload));
    let mut header = header.finish();
    let closing = digest(&header);
    header.extend_from_slice(&closing);
    frame[..HEADER_BYTES].copy_from_slice(&header);
    frame.resize(total, 0);
    frame
}

/// Reads the frame at `offset` of a whole segment.
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
    let payload = payload(bytes, range, &header)?;
    let end = offset + usize::try_from(length(payload.len())).expect("it was in memory");
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
    blank_parts: u32,
    digest: [u8; DIGEST_BYTES],
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (fields, closing) = bytes.split_at(FIELDS_BYTES);
        if fields[..8] != MAGIC || digest(fields) != closing {
            return None;
        }
        Some(Self {
            segment: u64::from_le_bytes(fields[8..16].try_into().ok()?),
            number: u64::from_le_bytes(fields[16..24].try_into().ok()?),
            payload_bytes: u32::from_le_bytes(fields[24..28].try_into().ok()?) as usize,
            blank_parts: u32::from_le_bytes(fields[28..32].try_into().ok()?),
            digest: fields[32..48].try_into().ok()?,
        })
    }
}

fn payload(bytes: &Bytes, range: Range<usize>, header: &Header) -> Result<Bytes, FrameError> {
    let damaged = FrameError::Payload {
        payload_bytes: header.payload_bytes,
    };
    if range.end > bytes.len() {
        return Err(damaged);
    }
    let payload = bytes.slice(range.clone());
    if digest(&payload) == header.digest {
        return Ok(payload);
    }
    let unwritten = blank_parts(&payload, range.start) > header.blank_parts;
    Err(if unwritten { FrameError::Torn } else { damaged })
}

/// The number of the frame whose header stands at `offset`, if one does.
pub(super) fn number_at(bytes: &Bytes, offset: usize) -> Option<u64> {
    let header = bytes
        .get(offset..)?
        .first_chunk()
        .and_then(Header::decode)?;
    Some(header.number)
}

/// Whether a whole frame of `segment` with a number above `number` stands at or after `offset`.
pub(super) fn find_later(bytes: &Bytes, offset: usize, segment: u64, number: u64) -> Option<usize> {
    let starts = (offset..bytes.len().saturating_sub(HEADER_BYTES)).step_by(HEADER_BYTES);
    starts.into_iter().find(|start| {
        let header = bytes[*start..].first_chunk().and_then(Header::decode);
        header.is_some_and(|header| header.segment == segment && header.number > number)
    })
}

/// Whether nothing was written.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn payload_start(offset: u64) -> usize {
    usize::try_from(offset).expect("a segment fits memory") + HEADER_BYTES
}

/// How many of the sectors the payload touches hold nothing but zeros of it.
fn blank_parts(payload: &[u8], start: usize) -> u32 {
    let first = (SECTOR_BYTES - start % SECTOR_BYTES) % SECTOR_BYTES;
    let (head, rest) = payload.split_at(first.min(payload.len()));
    let blank = |part: &&[u8]| !part.is_empty() && is_blank(part);
    let count = usize::from(blank(&head)) + rest.chunks(SECTOR_BYTES).filter(blank).count();
    u32::try_from(count).expect("a payload has fewer sectors than bytes")
}

fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let whole = blake3::hash(bytes);
    *whole
        .as_bytes()
        .first_chunk()
        .expect("a digest has 32 bytes")
}
