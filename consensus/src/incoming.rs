//! The parts of a snapshot on its way to this replica, kept on disk so that a restart asks only
//! for the rest.
//!
//! One file: a header with the snapshot's index and manifest, then each part at its place. Nothing
//! is synced, since nothing rests on it: what a crash left is compared with the manifest part by
//! part, and what does not verify is asked for again.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::disk::{Disk, read_whole};
use crate::ids::LogIndex;
use crate::manifest::Manifest;

/// The file's name.
const NAME: &str = "incoming-snapshot";

/// First bytes of the file: name and layout version.
const MAGIC: &[u8; 8] = b"soukINC1";

/// A part to be kept, and what it is a part of.
#[derive(Clone, Debug)]
pub struct KeptPart {
    /// The snapshot's last entry.
    pub index: LogIndex,
    /// The file's header, which names the snapshot.
    pub header: Bytes,
    /// Where the part stands in the snapshot.
    pub start: u64,
    /// The part.
    pub bytes: Bytes,
}

/// What an earlier life received of a snapshot: each part verified.
#[derive(Debug)]
pub struct ReceivedParts {
    /// The snapshot's last entry.
    pub index: LogIndex,
    /// All parts, by number, that are here.
    pub parts: BTreeMap<u32, Bytes>,
}

/// What the file on disk is for.
#[derive(Debug)]
pub(crate) struct IncomingFile {
    index: LogIndex,
    header: Bytes,
}

/// The header of the file for a snapshot.
pub(crate) fn header(index: LogIndex, manifest: &Manifest) -> Bytes {
    let mut writer = Writer::default();
    writer.raw(MAGIC);
    writer.u64(index.0);
    writer.block(&manifest.encode());
    writer.finish().into()
}

impl IncomingFile {
    /// Reads what an earlier life left. A file that can't be used, or that `newest` makes
    /// superfluous, is removed.
    pub(crate) fn open(
        disk: &mut impl Disk,
        newest: LogIndex,
    ) -> io::Result<Option<(Self, ReceivedParts)>> {
        if !disk.list()?.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let found = read_whole(disk, NAME).ok().and_then(|it| decode(it.into()));
        match found.filter(|(file, _)| file.index > newest) {
            Some(found) => Ok(Some(found)),
            None => disk.remove(NAME).map(|()| None),
        }
    }

    /// Writes a part; the file is begun anew where `file` is for another snapshot.
    pub(crate) fn keep(
        file: &mut Option<Self>,
        disk: &mut impl Disk,
        part: &KeptPart,
    ) -> io::Result<()> {
        if file.as_ref().is_none_or(|file| file.header != part.header) {
            Self::forget(file, disk, LogIndex(u64::MAX))?;
            disk.write(NAME, 0, &part.header)?;
            *file = Some(Self {
                index: part.index,
                header: part.header.clone(),
            });
        }
        disk.write(NAME, part.header.len() as u64 + part.start, &part.bytes)
    }

    /// Removes the file if a snapshot of `index` makes it superfluous.
    pub(crate) fn forget(
        file: &mut Option<Self>,
        disk: &mut impl Disk,
        index: LogIndex,
    ) -> io::Result<()> {
        match file.take_if(|file| file.index <= index) {
            Some(_) => disk.remove(NAME),
            None => Ok(()),
        }
    }

    /// The file's name, for errors.
    pub(crate) fn name() -> String {
        NAME.to_owned()
    }
}

fn decode(bytes: Bytes) -> Option<(IncomingFile, ReceivedParts)> {
    let mut reader = Reader::new(
        bytes
            .strip_prefix(MAGIC)
            .map(|rest| bytes.slice_ref(rest))?,
    );
    let index = LogIndex(reader.u64().ok()?);
    let manifest = Manifest::decode(reader.block().ok()?).ok()?;
    let header = header(index, &manifest);
    let content = bytes.slice(header.len()..);
    let part = |number: u32| {
        let range = manifest.range(number)?;
        let bytes = content.get(range).map(|part| content.slice_ref(part))?;
        manifest.verifies(number, &bytes).then_some((number, bytes))
    };
    let parts = (0..manifest.parts()).filter_map(part).collect();
    Some((
        IncomingFile { index, header },
        ReceivedParts { index, parts },
    ))
}
