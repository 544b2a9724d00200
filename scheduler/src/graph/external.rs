//! Reads the constants of a model, checks their length against their type and extents, and computes
//! their content ids. Constants in files next to the model are read once for their ids, and their
//! values stay in the files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use souk_onnx::{TensorProto, external_location, raw_bytes};

use super::{ImportError, Weight};

/// Scheme of an external location that names content by its id and not by a file.
pub(crate) const CONTENT_SCHEME: &str = "blake3:";

/// Returns the path of a file from its path relative to the model's folder.
pub(super) type Files<'a> = dyn FnMut(&str) -> Option<PathBuf> + 'a;

/// Values that stay in a file, because planning does not need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    path: PathBuf,
    offset: u64,
    length: u64,
}

impl FilePart {
    /// Reads the bytes as they are now.
    ///
    /// # Errors
    /// If the file no longer exists or is too short.
    pub fn read(&self) -> io::Result<Bytes> {
        let length = usize::try_from(self.length).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.open_at_offset()?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    /// Returns the content id of the bytes.
    fn id(&self) -> io::Result<ContentId> {
        ContentId::of_reader(self.open_at_offset()?.take(self.length))
    }

    fn open_at_offset(&self) -> io::Result<File> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(file)
    }
}

/// Reads the values of a constant, checks them and computes their content id.
pub(super) fn read_weight(
    proto: TensorProto,
    files: &mut Files<'_>,
) -> Result<Weight, ImportError> {
    let Ok(dtype) = DType::from_onnx_code(proto.data_type()) else {
        // Strings have no fixed width, so their values stay in the message.
        let byte_length = proto.string_data.iter().map(|text| text.len() as u64).sum();
        return Ok(Weight {
            proto,
            id: None,
            bytes: None,
            file: None,
            byte_length,
        });
    };
    let expected = expected_length(&proto, dtype)?;
    let large = expected >= Weight::EXTERNAL_BYTES_MIN;
    let (mut id, mut bytes, mut file) = (None, None, None);
    match external_location(&proto) {
        None => bytes = Some(raw_bytes(&proto)?),
        Some(place) => match place.strip_prefix(CONTENT_SCHEME) {
            Some(hex) => id = Some(content_id(&proto, hex)?),
            None => file = Some(find_file_part(&proto, place, files)?),
        },
    }
    let found = bytes.as_ref().map(|bytes| bytes.len() as u64);
    let found = found.or(file.as_ref().map(|file| file.length));
    if let Some(found) = found.filter(|found| *found != expected) {
        let name = proto.name().to_owned();
        return Err(ImportError::WeightLength {
            name,
            expected,
            found,
        });
    }
    let gone = |_| ImportError::ExternalMissing {
        name: proto.name().to_owned(),
        location: external_location(&proto).unwrap_or_default().to_owned(),
    };
    match &file {
        Some(part) if large => id = Some(part.id().map_err(gone)?),
        Some(part) => bytes = Some(part.read().map_err(gone)?),
        None => {
            id = id.or_else(|| {
                bytes
                    .as_deref()
                    .filter(|_| large)
                    .map(ContentId::for_content)
            })
        }
    }
    Ok(Weight {
        proto: to_declaration(proto),
        id,
        file: file.filter(|_| bytes.is_none()),
        bytes,
        byte_length: expected,
    })
}

/// Keeps only the name, type and extents, so that the values exist once.
fn to_declaration(proto: TensorProto) -> TensorProto {
    TensorProto {
        dims: proto.dims,
        data_type: proto.data_type,
        name: proto.name,
        ..TensorProto::default()
    }
}

fn expected_length(proto: &TensorProto, dtype: DType) -> Result<u64, ImportError> {
    let count = proto.element_count();
    let length = count.and_then(|count| dtype.byte_length(count));
    length
        .map(|length| length as u64)
        .ok_or_else(|| ImportError::WeightLength {
            name: proto.name().to_owned(),
            expected: u64::MAX,
            found: 0,
        })
}

fn content_id(proto: &TensorProto, hex: &str) -> Result<ContentId, ImportError> {
    hex.parse().map_err(|_| ImportError::ExternalEntry {
        name: proto.name().to_owned(),
        key: "location",
        value: hex.to_owned(),
    })
}

fn find_file_part(
    proto: &TensorProto,
    place: &str,
    files: &mut Files<'_>,
) -> Result<FilePart, ImportError> {
    let name = || proto.name().to_owned();
    let location = || place.to_owned();
    if !stays_inside(place) {
        return Err(ImportError::ExternalOutside {
            name: name(),
            location: location(),
        });
    }
    let found = files(place).and_then(|path| Some((path.metadata().ok()?.len(), path)));
    let (length, path) = found.ok_or_else(|| ImportError::ExternalMissing {
        name: name(),
        location: location(),
    })?;
    let offset = parse_entry(proto, "offset")?.unwrap_or(0);
    let count = parse_entry(proto, "length")?.unwrap_or(length.saturating_sub(offset));
    let end = offset.saturating_add(count);
    if offset > length || end > length {
        return Err(ImportError::ExternalRange {
            name: name(),
            location: location(),
            offset,
            end,
            length,
        });
    }
    Ok(FilePart {
        path,
        offset,
        length: count,
    })
}

fn parse_entry(proto: &TensorProto, key: &'static str) -> Result<Option<u64>, ImportError> {
    let Some(text) = proto.external_entry(key) else {
        return Ok(None);
    };
    let parsed = text.trim().parse().map(Some);
    parsed.map_err(|_| ImportError::ExternalEntry {
        name: proto.name().to_owned(),
        key,
        value: text.to_owned(),
    })
}

/// Returns whether a path can only lead below the folder that it starts from, on any system.
fn stays_inside(place: &str) -> bool {
    let absolute = place.starts_with(['/', '\\']) || place.contains(':');
    let climbs = place.split(['/', '\\']).any(|part| part == "..");
    !place.is_empty() && !absolute && !climbs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_folder_are_read() {
        for inside in ["weights.bin", "data/w.bin", "a..b/c"] {
            assert!(stays_inside(inside), "{inside}");
        }
        for outside in [
            "",
            "/etc/passwd",
            "../w",
            "a/../../w",
            "C:\\w",
            "\\\\host\\w",
            "a\\..\\w",
        ] {
            assert!(!stays_inside(outside), "{outside}");
        }
    }
}
