//! Reads and writes the header of a `.npy` file: the text of a Python dictionary with three keys,
//! which states element type, order and shape.

use super::NpyError;
use crate::{DType, RANK_MAX, Shape};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The alignment in bytes of the elements, to which headers are padded.
const ALIGN: usize = 64;
/// The bytes of the magic, the version and the two-byte length of version 1.
const PREFIX: usize = 10;
/// The most bytes that a file can claim for its header. NumPy's own bound on a header that it
/// trusts is 10,000, because dimensions are few and numbers short.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// NumPy's type characters (kind and bytes), the element type, and the bytes of each number in it.
const TYPES: [(&str, DType, usize); 14] = [
    ("f2", DType::F16, 2),
    ("f4", DType::F32, 4),
    ("f8", DType::F64, 8),
    ("i1", DType::I8, 1),
    ("i2", DType::I16, 2),
    ("i4", DType::I32, 4),
    ("i8", DType::I64, 8),
    ("u1", DType::U8, 1),
    ("u2", DType::U16, 2),
    ("u4", DType::U32, 4),
    ("u8", DType::U64, 8),
    ("b1", DType::Bool, 1),
    ("c8", DType::Complex64, 4),
    ("c16", DType::Complex128, 8),
];

/// The content of a header, with its type resolved.
pub(super) struct Header {
    pub dtype: DType,
    /// The bytes of one number, which a change of byte order must reverse: half an element for
    /// complex types.
    pub swap_bytes: usize,
    pub big_endian: bool,
    pub fortran: bool,
    pub dims: Vec<usize>,
}

/// The fields of a header's dictionary.
pub(super) struct Fields<'a> {
    /// NumPy's name of the element type.
    pub descr: &'a str,
    pub fortran: bool,
    pub dims: Vec<usize>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of a file's header and the offset of its elements.
    pub fn read(file: &'a [u8]) -> Result<(Self, usize), NpyError> {
        if !file.starts_with(MAGIC) {
            return Err(NpyError::Magic);
        }
        let cut = |expected| NpyError::HeaderCut {
            expected,
            found: file.len(),
        };
        let &[major, minor] = file
            .get(6..8)
            .and_then(|it| it.first_chunk())
            .ok_or(cut(PREFIX))?;
        let (start, length) = match (major, minor) {
            (1, 0) => {
                let bytes = file
                    .get(8..10)
                    .and_then(|it| it.first_chunk())
                    .ok_or(cut(PREFIX))?;
                (PREFIX, usize::from(u16::from_le_bytes(*bytes)))
            }
            (2 | 3, 0) => {
                let bytes = file
                    .get(8..12)
                    .and_then(|it| it.first_chunk())
                    .ok_or(cut(12))?;
                (12, u32::from_le_bytes(*bytes) as usize)
            }
            _ => return Err(NpyError::Version { major, minor }),
        };
        if length > HEADER_BYTES_MAX {
            return Err(NpyError::Header {
                reason: "it is longer than 64 KiB",
            });
        }
        let end = start + length;
        let text = file.get(start..end).ok_or(cut(end))?;
        let text = std::str::from_utf8(text).map_err(|_| NpyError::Header {
            reason: "it is not text",
        })?;
        Ok((Self::parse(text)?, end))
    }

    fn parse(text: &'a str) -> Result<Self, NpyError> {
        let descr = parse_quoted(value_of(text, "descr")?)?;
        let fortran = match value_of(text, "fortran_order")? {
            value if value.starts_with("True") => true,
            value if value.starts_with("False") => false,
            _ => {
                return Err(NpyError::Header {
                    reason: "'fortran_order' is no truth value",
                });
            }
        };
        let dims = parse_tuple(value_of(text, "shape")?)?;
        Ok(Self {
            descr,
            fortran,
            dims,
        })
    }
}

impl Header {
    /// Reads a file's header and the offset of its elements.
    pub fn read(file: &[u8]) -> Result<(Self, usize), NpyError> {
        let (fields, start) = Fields::read(file)?;
        Ok((Self::from_fields(fields)?, start))
    }

    /// Returns the bytes of one element.
    pub fn element_bytes(&self) -> usize {
        self.dtype
            .byte_width()
            .expect("no type of NumPy's is packed")
    }

    /// Builds the prefix and dictionary of a version 1.0 file.
    pub fn build_prefix(dtype: DType, shape: &Shape) -> Result<Vec<u8>, NpyError> {
        let row = TYPES.iter().find(|row| row.1 == dtype);
        let (name, _, size) = row.ok_or(NpyError::Unwritable { dtype })?;
        let order = if *size == 1 { '|' } else { '<' };
        let sizes: Vec<String> = shape.dims().iter().map(ToString::to_string).collect();
        let comma = if sizes.len() == 1 { "," } else { "" };
        let shape = format!("({}{comma})", sizes.join(", "));
        let mut text =
            format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': {shape}, }}");
        let length = (PREFIX + text.len() + 1).next_multiple_of(ALIGN) - PREFIX;
        text.extend(std::iter::repeat_n(' ', length - text.len() - 1));
        text.push('\n');
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&[1, 0]);
        let length = u16::try_from(length).expect("at most 64 dimensions of 20 digits");
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(text.as_bytes());
        Ok(header)
    }

    fn from_fields(fields: Fields<'_>) -> Result<Self, NpyError> {
        let Fields {
            descr,
            fortran,
            dims,
        } = fields;
        let unknown = || NpyError::Descr {
            descr: descr.to_owned(),
        };
        let mut characters = descr.chars();
        let order = characters.next().ok_or_else(unknown)?;
        let name = characters.as_str();
        let (_, dtype, swap_bytes) = TYPES.iter().find(|row| row.0 == name).ok_or_else(unknown)?;
        let big_endian = match order {
            '<' | '|' | '=' => false,
            '>' => true,
            _ => return Err(unknown()),
        };
        Ok(Self {
            dtype: *dtype,
            swap_bytes: *swap_bytes,
            big_endian,
            fortran,
            dims,
        })
    }
}

/// Returns the text after `'key':`.
fn value_of<'a>(text: &'a str, key: &str) -> Result<&'a str, NpyError> {
    let places = [format!("'{key}'"), format!("\"{key}\"")];
    let found = places
        .iter()
        .find_map(|place| text.split_once(place.as_str()));
    let (_, rest) = found.ok_or(NpyError::Header {
        reason: "a key is missing",
    })?;
    let rest = rest.trim_start();
    let value = rest.strip_prefix(':').ok_or(NpyError::Header {
        reason: "a colon is missing",
    })?;
    Ok(value.trim_start())
}

/// Returns the text within the quotes at the start of `value`.
fn parse_quoted(value: &str) -> Result<&str, NpyError> {
    let quote = value
        .chars()
        .next()
        .filter(|quote| matches!(quote, '\'' | '"'));
    let Some(quote) = quote else {
        // A value without quotes is a structured type: a list of pairs.
        return Err(NpyError::Descr {
            descr: value.chars().take(40).collect(),
        });
    };
    let inside = value[1..].split(quote).next();
    inside.ok_or(NpyError::Header {
        reason: "a quote is not closed",
    })
}

/// Returns the sizes of the tuple at the start of `value`.
fn parse_tuple(value: &str) -> Result<Vec<usize>, NpyError> {
    let refused = NpyError::Header {
        reason: "'shape' is no tuple of sizes",
    };
    let inside = value
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'));
    let (inside, _) = inside.ok_or(refused.clone())?;
    let parts = inside
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let dims: Result<Vec<usize>, _> = parts
        .take(RANK_MAX + 1)
        .map(|part| part.trim_end_matches('L').parse())
        .collect();
    dims.map_err(|_| refused)
}
