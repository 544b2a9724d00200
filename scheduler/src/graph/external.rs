//! Constants: their bytes found, checked against their extents, and named by content.

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use souk_onnx::{TensorProto, location, raw_bytes};

use super::{ImportError, Weight};

/// Scheme of an external location that names bytes by content instead of by file.
pub(crate) const CONTENT_SCHEME: &str = "blake3:";

/// Gives the whole contents of a file by its path relative to the model's folder.
pub(super) type Files<'a> = dyn FnMut(&str) -> Option<Bytes> + 'a;

/// A constant with its values fetched, checked and named.
pub(super) fn weight(proto: TensorProto, files: &mut Files<'_>) -> Result<Weight, ImportError> {
    let Ok(dtype) = DType::from_onnx_code(proto.data_type()) else {
        // Strings: values of no fixed width stay in the message.
        let byte_length = proto.string_data.iter().map(|text| text.len() as u64).sum();
        return Ok(Weight {
            proto,
            id: None,
            bytes: None,
            byte_length,
        });
    };
    let expected = expected_length(&proto, dtype)?;
    let (known, bytes) = match location(&proto) {
        None => (None, Some(raw_bytes(&proto)?)),
        Some(place) => match place.strip_prefix(CONTENT_SCHEME) {
            Some(hex) => (Some(content_id(&proto, hex)?), None),
            None => (None, Some(read(&proto, place, files)?)),
        },
    };
    if let Some(found) = bytes.as_ref().map(|bytes| bytes.len() as u64)
        && found != expected
    {
        let name = proto.name().to_owned();
        return Err(ImportError::WeightLength {
            name,
            expected,
            found,
        });
    }
    let large = expected >= Weight::EXTERNAL_BYTES_MIN;
    let id = known.or_else(|| bytes.as_deref().filter(|_| large).map(ContentId::of));
    Ok(Weight {
        proto: declaration(proto),
        id,
        bytes,
        byte_length: expected,
    })
}

/// Name, type and extents alone, so that the values are held once.
fn declaration(proto: TensorProto) -> TensorProto {
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

fn read(proto: &TensorProto, place: &str, files: &mut Files<'_>) -> Result<Bytes, ImportError> {
    let name = || proto.name().to_owned();
    let location = || place.to_owned();
    if !stays_inside(place) {
        return Err(ImportError::ExternalOutside {
            name: name(),
            location: location(),
        });
    }
    let file = files(place).ok_or_else(|| ImportError::ExternalMissing {
        name: name(),
        location: location(),
    })?;
    let length = file.len() as u64;
    let offset = number(proto, "offset")?.unwrap_or(0);
    let count = number(proto, "length")?.unwrap_or(length.saturating_sub(offset));
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
    let index = |at: u64| usize::try_from(at).expect("within a file that is in memory");
    Ok(file.slice(index(offset)..index(end)))
}

fn number(proto: &TensorProto, key: &'static str) -> Result<Option<u64>, ImportError> {
    let Some(text) = proto.external(key) else {
        return Ok(None);
    };
    let parsed = text.trim().parse().map(Some);
    parsed.map_err(|_| ImportError::ExternalEntry {
        name: proto.name().to_owned(),
        key,
        value: text.to_owned(),
    })
}

/// Whether a path can only lead below the folder it starts from, on any system.
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
