//! Encodes and decodes the bytes of a backup file: a list of digests of parts, then the parts. The
//! digests let an error name the part that is damaged.

use bytes::Bytes;
use souk_consensus::Digest;
use souk_consensus::manifest::{Manifest, ManifestError};

/// The first bytes of a backup: name and layout version.
const MAGIC: &[u8; 8] = b"soukBAK1";

/// Bytes of a part, unless there would be more parts than [`PARTS`]: one page of a disk.
const PART_BYTES_MIN: usize = 4_096;

/// Parts of a large backup; more would hardly locate damage better.
const PARTS: usize = 32_768;

/// The magic, the length of the list, and the list's digest.
const HEAD_BYTES: usize = 8 + 4 + 32;

/// Why bytes are not a valid backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupFault {
    /// The bytes do not begin like a backup.
    #[error("it is not a backup of this version of souk: it begins with {0:?}")]
    Magic(Vec<u8>),
    /// The file ends early.
    #[error("it is cut short: it ends at byte {found}, {wanted} bytes were written")]
    Short {
        /// The length of the file, in bytes.
        found: u64,
        /// The length that was written, in bytes.
        wanted: u64,
    },
    /// The list of parts is damaged.
    #[error("it is damaged between byte 8 and byte {end}, in its list of parts")]
    List {
        /// The first byte after the list.
        end: u64,
    },
    /// The list is intact but not valid.
    #[error("its list of parts makes no sense: {0}")]
    Manifest(#[from] ManifestError),
    /// A part is damaged.
    #[error("it is damaged between byte {start} and byte {end}")]
    Part {
        /// The part's first byte.
        start: u64,
        /// The first byte after it.
        end: u64,
    },
    /// The file has extra bytes at its end.
    #[error("it has {0} bytes after its end")]
    Trailing(u64),
}

/// Encodes a state as a backup.
pub(super) fn encode_backup(state: &Bytes) -> Bytes {
    let manifest = Manifest::for_snapshot(state, PART_BYTES_MIN.max(state.len().div_ceil(PARTS)));
    let list = manifest.encode();
    let length = u32::try_from(list.len()).expect("a list has a bounded number of parts");
    let mut bytes = Vec::with_capacity(HEAD_BYTES + list.len() + state.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&content_digest(&list).0);
    bytes.extend_from_slice(&list);
    bytes.extend_from_slice(state);
    bytes.into()
}

/// Checks a backup and returns its state.
pub(super) fn decode_backup(bytes: &Bytes) -> Result<Bytes, BackupFault> {
    let short = |wanted: usize| BackupFault::Short {
        found: bytes.len() as u64,
        wanted: wanted as u64,
    };
    if !bytes.starts_with(MAGIC) {
        let begin = bytes.iter().take(MAGIC.len()).copied().collect();
        return Err(BackupFault::Magic(begin));
    }
    let head = bytes
        .get(MAGIC.len()..HEAD_BYTES)
        .ok_or(short(HEAD_BYTES))?;
    let (length, wanted) = head.split_at(4);
    let length = u32::from_le_bytes(length.try_into().expect("it was split at four bytes"));
    let end = HEAD_BYTES + length as usize;
    let damaged = BackupFault::List { end: end as u64 };
    if end > bytes.len() {
        return Err(short(end));
    }
    let list = bytes.slice(HEAD_BYTES..end);
    if content_digest(&list).0 != wanted {
        return Err(damaged);
    }
    check_parts(&Manifest::decode(list)?, bytes.slice(end..), end as u64)
}

fn check_parts(manifest: &Manifest, state: Bytes, begin: u64) -> Result<Bytes, BackupFault> {
    let mut whole = 0;
    for number in 0..manifest.part_count() {
        let range = manifest
            .part_range(number)
            .expect("the number is one of its parts");
        let (start, end) = (begin + range.start as u64, begin + range.end as u64);
        whole = range.end;
        match state.get(range) {
            Some(part) if manifest.is_part(number, part) => {}
            Some(_) => return Err(BackupFault::Part { start, end }),
            None => {
                let parts = manifest.part_count() - 1;
                let last = manifest.part_range(parts).map_or(0, |range| range.end);
                return Err(BackupFault::Short {
                    found: begin + state.len() as u64,
                    wanted: begin + last as u64,
                });
            }
        }
    }
    match state.len() - whole {
        0 => Ok(state),
        more => Err(BackupFault::Trailing(more as u64)),
    }
}

fn content_digest(bytes: &[u8]) -> Digest {
    Digest(*souk_memory::ContentId::for_content(bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Bytes {
        (0..=255).cycle().take(10_000).collect::<Vec<u8>>().into()
    }

    #[test]
    fn a_backup_is_read_as_written() {
        assert_eq!(decode_backup(&encode_backup(&state())), Ok(state()));
        assert_eq!(
            decode_backup(&encode_backup(&Bytes::new())),
            Ok(Bytes::new())
        );
    }

    #[test]
    fn a_changed_byte_is_refused_with_its_place() {
        let whole = encode_backup(&state());
        let begin = whole.len() - state().len();
        for (at, place) in [
            (begin, (begin, begin + 4_096)),
            (begin + 5_000, (begin + 4_096, begin + 8_192)),
            (whole.len() - 1, (begin + 8_192, whole.len())),
        ] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1;
            let (start, end) = (place.0 as u64, place.1 as u64);
            assert_eq!(
                decode_backup(&bytes.into()),
                Err(BackupFault::Part { start, end })
            );
        }
        for at in 0..begin {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1;
            assert!(decode_backup(&bytes.into()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn damaged_backups_do_no_harm() {
        let whole = encode_backup(&state().slice(..6_000)).to_vec();
        let mut damage = souk_node_testing::fuzzed::DamageSource::new(19);
        for _ in 0..2_000 {
            let damaged: Bytes = damage.of(&whole).into();
            assert!(decode_backup(&damaged).is_err() || damaged == whole);
        }
    }

    #[test]
    fn a_backup_cut_short_or_with_more_behind_is_refused() {
        let whole = encode_backup(&state());
        for length in 0..whole.len() {
            assert!(
                decode_backup(&whole.slice(..length)).is_err(),
                "{length} bytes"
            );
        }
        let mut more = whole.to_vec();
        more.push(0);
        assert_eq!(decode_backup(&more.into()), Err(BackupFault::Trailing(1)));
    }
}
