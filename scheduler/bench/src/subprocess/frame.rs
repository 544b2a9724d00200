//! Frames between two processes: a kind, then fields of bytes one after the other.
//!
//! Both ends must come from one build and have one owner, because frames have no version. A reader
//! still accepts frames up to a maximum length only, and malformed frames are errors.

use std::io::{self, Read, Write};

use bytes::Bytes;

/// Maximum length of a frame: a large model with its weights.
const FRAME_BYTES_MAX: u64 = 64 << 30;
/// Bytes to read at a time, so that memory grows only as bytes arrive.
const CHUNK_BYTES: usize = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks which device the process has.
    Profile,
    /// Asks whether the device supports an operator.
    Supports,
    /// Sends a subgraph to compile.
    Compile,
    /// Runs a program.
    Run,
    /// Drops a program.
    Forget,
    /// Reports success, with the result.
    Done,
    /// Reports that the task is at fault.
    Refused,
    /// Reports that the device is at fault.
    Failed,
}

const KINDS: [Kind; 8] = [
    Kind::Profile,
    Kind::Supports,
    Kind::Compile,
    Kind::Run,
    Kind::Forget,
    Kind::Done,
    Kind::Refused,
    Kind::Failed,
];

/// A field in two separate parts, such as a tensor's header and its elements.
pub(super) type Field<'a> = [&'a [u8]; 2];

/// Returns a field in one part.
pub(super) fn new_field(bytes: &[u8]) -> Field<'_> {
    [bytes, &[]]
}

/// Writes a frame.
pub(super) fn write_frame(to: &mut impl Write, kind: Kind, fields: &[Field<'_>]) -> io::Result<()> {
    let place = KINDS.iter().position(|known| *known == kind);
    let code = place.expect("every kind is listed") as u8;
    let of = |field: &Field<'_>| field[0].len() + field[1].len();
    let length: usize = fields.iter().map(|field| 8 + of(field)).sum();
    let mut head = Vec::with_capacity(9);
    head.push(code);
    head.extend_from_slice(&(length as u64).to_le_bytes());
    to.write_all(&head)?;
    for field in fields {
        to.write_all(&(of(field) as u64).to_le_bytes())?;
        to.write_all(field[0])?;
        to.write_all(field[1])?;
    }
    to.flush()
}

/// Reads a frame; returns none if the other end has closed.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Option<(Kind, Vec<Bytes>)>> {
    let mut head = [0; 9];
    match from.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let kind = *KINDS
        .get(usize::from(head[0]))
        .ok_or_else(malformed_error)?;
    let length = u64::from_le_bytes(head[1..].try_into().expect("there are eight"));
    if length > FRAME_BYTES_MAX {
        return Err(malformed_error());
    }
    let mut body = Vec::new();
    while (body.len() as u64) < length {
        let start = body.len();
        let more = CHUNK_BYTES.min((length - start as u64) as usize);
        body.resize(start + more, 0);
        from.read_exact(&mut body[start..])?;
    }
    split_fields(Bytes::from(body)).map(|fields| Some((kind, fields)))
}

/// Returns the fields of a frame without a copy.
fn split_fields(mut body: Bytes) -> io::Result<Vec<Bytes>> {
    let mut fields = Vec::new();
    while !body.is_empty() {
        if body.len() < 8 {
            return Err(malformed_error());
        }
        let length = body.split_to(8);
        let length = u64::from_le_bytes(length[..].try_into().expect("there are eight"));
        let length = usize::try_from(length).map_err(|_| malformed_error())?;
        if length > body.len() {
            return Err(malformed_error());
        }
        fields.push(body.split_to(length));
    }
    Ok(fields)
}

pub(super) fn malformed_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the other process sent no frame",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut sent = Vec::new();
        write_frame(
            &mut sent,
            Kind::Run,
            &[new_field(b"one"), new_field(b""), [b"thr", b"ee"]],
        )
        .unwrap();
        write_frame(&mut sent, Kind::Done, &[]).unwrap();
        let mut from = &sent[..];
        let (kind, fields) = read_frame(&mut from).unwrap().unwrap();
        assert_eq!((kind, fields.len()), (Kind::Run, 3));
        assert_eq!(&fields[2][..], b"three");
        assert_eq!(
            read_frame(&mut from).unwrap(),
            Some((Kind::Done, Vec::new()))
        );
        assert_eq!(read_frame(&mut from).unwrap(), None);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_takes_no_memory(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = read_frame(&mut &bytes[..]);
        }
    }
}
