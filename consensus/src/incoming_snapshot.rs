//! Stores the parts of a snapshot that a replica receives from its leader, in the file
//! `incoming-snapshot`.
//!
//! The replica stores each part as it arrives, so that after a restart it requests only the rest.
//! At most one snapshot is in the file. The store removes the file once it has that snapshot or a
//! newer one.
//!
//! The file has a header with the snapshot's index and manifest, then each part at its position.
//! The replica does not sync it, because nothing relies on it: after a crash it will compare each
//! part with the manifest, and request the parts that do not verify again.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::disk::{Disk, read_whole};
use crate::manifest::Manifest;
use souk_proof::LogIndex;

/// The name of the file.
const NAME: &str = "incoming-snapshot";

/// The first bytes of the file: its name and layout version.
const MAGIC: &[u8; 8] = b"soukINC1";

/// A part to store, and the snapshot to which it belongs.
#[derive(Clone, Debug)]
pub struct PartToStore {
    /// The last entry of the snapshot.
    pub index: LogIndex,
    /// The file's header, which names the snapshot.
    pub header: Bytes,
    /// The offset of the part in the snapshot, in bytes.
    pub start: u64,
    /// The bytes of the part.
    pub bytes: Bytes,
}

/// The verified parts of a snapshot that this replica stored before its restart.
#[derive(Debug)]
pub struct StoredParts {
    /// The last entry of the snapshot.
    pub index: LogIndex,
    /// The stored parts by number.
    pub parts: BTreeMap<u32, Bytes>,
}

/// The file on disk, and the snapshot to which it belongs.
#[derive(Debug)]
pub(crate) struct IncomingSnapshotFile {
    index: LogIndex,
    header: Bytes,
}

/// Builds the file's header for a snapshot.
pub(crate) fn build_header(index: LogIndex, manifest: &Manifest) -> Bytes {
    let mut writer = Writer::default();
    writer.write_raw(MAGIC);
    writer.write_u64(index.0);
    writer.write_block(&manifest.encode());
    writer.into_bytes().into()
}

impl IncomingSnapshotFile {
    /// Reads the parts that the replica stored before its restart. Deletes the file if it cannot be
    /// decoded, or if its snapshot ends at or before `newest`, the last entry that the store
    /// covers.
    pub(crate) fn load_parts(
        disk: &mut impl Disk,
        newest: LogIndex,
    ) -> io::Result<Option<(Self, StoredParts)>> {
        if !disk.list_files()?.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let found = read_whole(disk, NAME)
            .ok()
            .and_then(|it| decode_file(it.into()));
        match found.filter(|(file, _)| file.index > newest) {
            Some(found) => Ok(Some(found)),
            None => disk.remove(NAME).map(|()| None),
        }
    }

    /// Writes a part at its position. If the file belongs to another snapshot, deletes that file
    /// first and begins a new one.
    pub(crate) fn write_part(
        file: &mut Option<Self>,
        disk: &mut impl Disk,
        part: &PartToStore,
    ) -> io::Result<()> {
        if file.as_ref().is_none_or(|file| file.header != part.header) {
            Self::remove_file_up_to(file, disk, LogIndex(u64::MAX))?;
            disk.write(NAME, 0, &part.header)?;
            *file = Some(Self {
                index: part.index,
                header: part.header.clone(),
            });
        }
        disk.write(NAME, part.header.len() as u64 + part.start, &part.bytes)
    }

    /// Deletes the file `incoming-snapshot` from the disk if its snapshot ends at or before entry
    /// `index`, because the store then needs none of its parts.
    pub(crate) fn remove_file_up_to(
        file: &mut Option<Self>,
        disk: &mut impl Disk,
        index: LogIndex,
    ) -> io::Result<()> {
        match file.take_if(|file| file.index <= index) {
            Some(_) => disk.remove(NAME),
            None => Ok(()),
        }
    }

    /// Returns the file's name, for errors.
    pub(crate) fn name() -> String {
        NAME.to_owned()
    }
}

fn decode_file(bytes: Bytes) -> Option<(IncomingSnapshotFile, StoredParts)> {
    let mut reader = Reader::new(
        bytes
            .strip_prefix(MAGIC)
            .map(|rest| bytes.slice_ref(rest))?,
    );
    let index = LogIndex(reader.read_u64().ok()?);
    let manifest = Manifest::decode(reader.read_block().ok()?).ok()?;
    let header = build_header(index, &manifest);
    let content = bytes.slice(header.len()..);
    let part = |number: u32| {
        let range = manifest.part_range(number)?;
        let bytes = content.get(range).map(|part| content.slice_ref(part))?;
        manifest.is_part(number, &bytes).then_some((number, bytes))
    };
    let parts = (0..manifest.part_count()).filter_map(part).collect();
    Some((
        IncomingSnapshotFile { index, header },
        StoredParts { index, parts },
    ))
}
