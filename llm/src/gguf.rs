//! Reads GGUF files, llama.cpp's format of models: metadata and tensors in one file or in several
//! parts.
//!
//! The reader works within bounds: it will not reserve memory on the file's word alone, checks
//! every length against the rest of the file, and refuses an unsupported type by its name. Blocks
//! of 8 and 4 bits stay as they are; other supported block types are converted to 8 bits.

mod blocks;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Shape, Tensor};
use thiserror::Error;

use crate::weights::{BLOCK, Weight};
use blocks::BlockKind;

/// The first bytes of every file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Supported versions: sizes have 64 bits from the second on.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Alignment of tensors in bytes, unless the file names another, which must be a power of two.
const ALIGNMENT_DEFAULT: u64 = 32;
/// Maximum nesting of arrays.
const DEPTH_MAX: usize = 4;
/// Maximum dimensions of a tensor.
const RANK_MAX: usize = 4;
/// Maximum number of metadata entries, and of tensors: a thousand times those of a common file.
const ENTRIES_MAX: u64 = 1 << 16;
/// Maximum number of values in the metadata, including those in arrays: twice those of the largest
/// vocabularies with their words, kinds and merges. Each takes up to 32 bytes.
const VALUES_MAX: usize = 3 << 19;
/// Maximum bytes of the metadata's texts.
const TEXT_BYTES_MAX: usize = 24 << 20;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(String),
    /// An array of values of one type.
    Array(Vec<Value>),
}

/// A GGUF file, or the parts of one model.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The metadata, by key.
    pub metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorEntry>,
    /// The contents of the file or of each part.
    files: Vec<Bytes>,
}

/// The position and the type of a tensor.
#[derive(Clone, Debug)]
struct TensorEntry {
    /// Sizes with the outermost first; the file has them in reverse order.
    dims: Vec<usize>,
    kind: Encoding,
    /// Index of the tensor's part.
    part: usize,
    start: usize,
    length: usize,
}

/// How a tensor's numbers are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    /// Converted to 8 bits.
    Blocks(BlockKind),
}

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GgufError {
    /// The file does not begin with the magic bytes.
    #[error("the file is not a GGUF file")]
    Magic,
    /// The version is not supported.
    #[error("GGUF version {0} is not known; versions 2 and 3 are")]
    Version(u32),
    /// The file ends early.
    #[error("the GGUF file is cut short: {needed} bytes are needed at byte {at} of {length}")]
    Short {
        /// Position in bytes.
        at: usize,
        /// Bytes needed there.
        needed: u64,
        /// Length of the file in bytes.
        length: usize,
    },
    /// A text is not UTF-8.
    #[error("a text at byte {0} is not UTF-8")]
    Text(usize),
    /// The type of a metadata value is unknown, or arrays nest too deep.
    #[error("metadata of type {kind} at byte {at} is not known")]
    Metadata {
        /// The number of the type.
        kind: u32,
        /// Position in bytes.
        at: usize,
    },
    /// The type of a tensor is not supported.
    #[error(
        "tensor {name:?} has type {kind}, which is not supported; supported are f32, f16, bf16, \
         q8_0, q4_0 and, kept in 8 bits, q2_K to q6_K, q4_1, q5_0, q5_1, iq4_nl, iq4_xs"
    )]
    Encoding {
        /// The tensor's name.
        name: String,
        /// The type's name.
        kind: String,
    },
    /// The sizes of a tensor are impossible.
    #[error("tensor {name:?} has impossible sizes")]
    Sizes {
        /// The tensor's name.
        name: String,
    },
    /// The alignment is impossible.
    #[error("the alignment {0} is not a power of two")]
    Alignment(u64),
    /// The file exceeds a limit.
    #[error("the GGUF file has more than {most} {what}")]
    Large {
        /// The things that are too many.
        what: &'static str,
        /// Maximum that the reader accepts.
        most: u64,
    },
    /// A part is missing, or belongs to another model.
    #[error("the GGUF file says that its parts have {stated} tensors, but they have {found}")]
    Parts {
        /// Number of tensors that the first part states.
        stated: u64,
        /// Number of tensors in the parts.
        found: u64,
    },
    /// A name occurs twice.
    #[error("{0:?} occurs twice")]
    Twice(String),
}

/// Names of tensor types by number, for error messages about unsupported ones.
const KINDS: [&str; 40] = [
    "f32", "f16", "q4_0", "q4_1", "4", "5", "q5_0", "q5_1", "q8_0", "q8_1", "q2_K", "q3_K", "q4_K",
    "q5_K", "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s",
    "iq4_xs", "i8", "i16", "i32", "i64", "f64", "iq1_m", "bf16", "31", "32", "33", "tq1_0",
    "tq2_0", "36", "37", "38", "mxfp4",
];

impl Encoding {
    fn from_number(number: u32, name: &str) -> Result<Self, GgufError> {
        match number {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            2 => Ok(Self::Q4_0),
            8 => Ok(Self::Q8_0),
            30 => Ok(Self::Bf16),
            _ => BlockKind::from_number(number)
                .map(Self::Blocks)
                .ok_or_else(|| {
                    let known = KINDS.get(number as usize).map(|it| (*it).to_owned());
                    GgufError::Encoding {
                        name: name.to_owned(),
                        kind: known.unwrap_or_else(|| number.to_string()),
                    }
                }),
        }
    }

    /// Returns the number of elements in a block, and its bytes.
    fn block_layout(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (BLOCK, 2 + BLOCK),
            Self::Q4_0 => (BLOCK, 2 + BLOCK / 2),
            Self::Blocks(kind) => kind.block_layout(),
        }
    }
}

impl Gguf {
    /// Reads a file's metadata and the positions of its tensors.
    ///
    /// # Errors
    /// [`GgufError`].
    pub fn read(file: &Bytes) -> Result<Self, GgufError> {
        let mut reader = Reader {
            file,
            at: 0,
            values_left: VALUES_MAX,
            text_bytes_left: TEXT_BYTES_MAX,
        };
        if reader.take_bytes(4)? != MAGIC {
            return Err(GgufError::Magic);
        }
        let version = reader.read_u32()?;
        if !VERSIONS.contains(&version) {
            return Err(GgufError::Version(version));
        }
        let (tensors, entries) = (reader.read_u64()?, reader.read_u64()?);
        for (what, count) in [("tensors", tensors), ("entries", entries)] {
            if count > ENTRIES_MAX {
                let most = ENTRIES_MAX;
                return Err(GgufError::Large { what, most });
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = reader.read_text()?;
            let kind = reader.read_u32()?;
            let value = reader.value(kind, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(GgufError::Twice(key));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            Some(Value::Unsigned(alignment)) => *alignment,
            _ => ALIGNMENT_DEFAULT,
        };
        if !alignment.is_power_of_two() {
            return Err(GgufError::Alignment(alignment));
        }
        let mut places = BTreeMap::new();
        for _ in 0..tensors {
            let (name, place) = reader.read_tensor_location()?;
            if places.insert(name.clone(), place).is_some() {
                return Err(GgufError::Twice(name));
            }
        }
        let base = (reader.at as u64).checked_next_multiple_of(alignment);
        let base = base.ok_or(GgufError::Alignment(alignment))?;
        for place in places.values_mut() {
            place.resolve_range(base, file.len())?;
        }
        Ok(Self {
            metadata,
            tensors: places,
            files: vec![file.clone()],
        })
    }

    /// Returns the number of files that make up the model.
    #[must_use]
    pub fn part_count(&self) -> u64 {
        self.metadata_integer("split.count").unwrap_or(1).max(1)
    }

    /// Adds the tensors of the other parts.
    ///
    /// # Errors
    /// [`GgufError::Twice`], or [`GgufError::Parts`] if their number differs from the one in the
    /// first part.
    pub fn join_parts(mut self, others: Vec<Self>) -> Result<Self, GgufError> {
        for mut other in others {
            let part = self.files.len();
            self.files.append(&mut other.files);
            for (name, mut place) in other.tensors {
                place.part = part;
                if self.tensors.insert(name.clone(), place).is_some() {
                    return Err(GgufError::Twice(name));
                }
            }
        }
        let found = self.tensors.len() as u64;
        match self.metadata_integer("split.tensors.count") {
            Some(stated) if stated != found => Err(GgufError::Parts { stated, found }),
            _ => Ok(self),
        }
    }

    /// Returns an integer of the metadata.
    #[must_use]
    pub fn metadata_integer(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Unsigned(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns a float of the metadata.
    #[must_use]
    pub fn metadata_float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Float(float) => Some(*float),
            _ => None,
        }
    }

    /// Returns a text of the metadata.
    #[must_use]
    pub fn metadata_text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an array of the metadata.
    #[must_use]
    pub fn metadata_array(&self, key: &str) -> Option<&[Value]> {
        match self.metadata.get(key)? {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the names of the tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns a tensor with its blocks split into integers and scales. Blocks of neither 8 nor 4
    /// bits become blocks of 8; each number is off by at most half a step.
    pub(crate) fn read_weight(&self, name: &str) -> Option<Weight> {
        let place = self.tensors.get(name)?;
        let file = &self.files[place.part];
        let bytes = file.slice(place.start..place.start + place.length);
        let tensor = |dtype, dims: &[usize], bytes| {
            let shape = Shape::new(dims).expect("sizes were checked");
            Tensor::new(dtype, shape, bytes).expect("the length was computed from the sizes")
        };
        let plain = |dtype| Weight::Floats(tensor(dtype, &place.dims, bytes.clone()));
        let blocks = |dtype, (integers, scales): (Vec<u8>, Vec<u8>)| {
            let mut by_block = place.dims.clone();
            if let Some(last) = by_block.last_mut() {
                *last /= BLOCK;
            }
            Weight::Blocks {
                integers: tensor(dtype, &place.dims, integers.into()),
                scales: tensor(DType::F16, &by_block, scales.into()),
            }
        };
        Some(match place.kind {
            Encoding::F32 => plain(DType::F32),
            Encoding::F16 => plain(DType::F16),
            Encoding::Bf16 => plain(DType::Bf16),
            Encoding::Q8_0 => blocks(DType::I8, split_q8_blocks(&bytes)),
            Encoding::Q4_0 => blocks(DType::I4, split_q4_blocks(&bytes)),
            Encoding::Blocks(kind) => blocks(DType::I8, kind.to_q8_blocks(&bytes)),
        })
    }
}

/// Returns the integers and scales of 8-bit blocks.
fn split_q8_blocks(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (_, size) = Encoding::Q8_0.block_layout();
    let blocks = bytes.len() / size;
    let mut integers = Vec::with_capacity(blocks * BLOCK);
    let mut scales = Vec::with_capacity(blocks * 2);
    for block in bytes.chunks_exact(size) {
        scales.extend_from_slice(&block[..2]);
        integers.extend_from_slice(&block[2..]);
    }
    (integers, scales)
}

/// Returns the integers and scales of 4-bit blocks. In the file, the second half of a block is in
/// the upper bits of the first, and 8 means zero; in a tensor, neighbours share a byte and integers
/// are signed.
fn split_q4_blocks(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (_, size) = Encoding::Q4_0.block_layout();
    let blocks = bytes.len() / size;
    let mut integers = Vec::with_capacity(blocks * BLOCK / 2);
    let mut scales = Vec::with_capacity(blocks * 2);
    for block in bytes.chunks_exact(size) {
        scales.extend_from_slice(&block[..2]);
        let packed = &block[2..];
        let low = packed
            .chunks_exact(2)
            .map(|pair| (pair[0] & 15) | (pair[1] << 4));
        let high = packed
            .chunks_exact(2)
            .map(|pair| (pair[0] >> 4) | (pair[1] & 0xf0));
        // Subtracting 8 in four bits flips the uppermost bit.
        integers.extend(low.chain(high).map(|pair| pair ^ 0x88));
    }
    (integers, scales)
}

impl TensorEntry {
    /// Computes the tensor's range in a file whose tensors begin at `base`.
    fn resolve_range(&mut self, base: u64, length: usize) -> Result<(), GgufError> {
        let start = base.checked_add(self.start as u64);
        let end = start.and_then(|start| start.checked_add(self.length as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= length as u64 => {
                self.start = start as usize;
                Ok(())
            }
            _ => Err(GgufError::Short {
                at: self.start,
                needed: self.length as u64,
                length,
            }),
        }
    }
}

/// Reads a file from its beginning.
struct Reader<'a> {
    file: &'a Bytes,
    at: usize,
    values_left: usize,
    text_bytes_left: usize,
}

impl Reader<'_> {
    fn take_bytes(&mut self, count: u64) -> Result<&[u8], GgufError> {
        let left = self.file.len() - self.at;
        if count > left as u64 {
            return Err(GgufError::Short {
                at: self.at,
                needed: count,
                length: self.file.len(),
            });
        }
        let start = self.at;
        self.at += count as usize;
        Ok(&self.file[start..self.at])
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let bytes = self.take_bytes(N as u64)?;
        Ok(bytes.try_into().expect("as many were taken"))
    }

    fn read_u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.read_array()?))
    }

    fn read_u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.read_array()?))
    }

    fn read_text(&mut self) -> Result<String, GgufError> {
        let at = self.at;
        let length = self.read_u64()?;
        self.text_bytes_left = usize::try_from(length)
            .ok()
            .and_then(|length| self.text_bytes_left.checked_sub(length))
            .ok_or(GgufError::Large {
                what: "bytes of texts",
                most: TEXT_BYTES_MAX as u64,
            })?;
        let bytes = self.take_bytes(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| GgufError::Text(at))?;
        Ok(text.to_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, GgufError> {
        let left = self.values_left.checked_sub(1);
        self.values_left = left.ok_or(GgufError::Large {
            what: "values",
            most: VALUES_MAX as u64,
        })?;
        let signed = |number: i64| match u64::try_from(number) {
            Ok(number) => Value::Unsigned(number),
            Err(_) => Value::Negative(number),
        };
        Ok(match kind {
            0 => Value::Unsigned(u64::from(u8::from_le_bytes(self.read_array()?))),
            1 => signed(i64::from(i8::from_le_bytes(self.read_array()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.read_array()?))),
            3 => signed(i64::from(i16::from_le_bytes(self.read_array()?))),
            4 => Value::Unsigned(u64::from(self.read_u32()?)),
            5 => signed(i64::from(i32::from_le_bytes(self.read_array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.read_array()?))),
            7 => Value::Bool(self.read_array::<1>()? != [0]),
            8 => Value::Text(self.read_text()?),
            9 if depth < DEPTH_MAX => {
                let (kind, count) = (self.read_u32()?, self.read_u64()?);
                // Each value takes at least a byte, so a false count will end with the file.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, depth + 1)?);
                }
                Value::Array(values)
            }
            10 => Value::Unsigned(self.read_u64()?),
            11 => signed(i64::from_le_bytes(self.read_array()?)),
            12 => Value::Float(f64::from_le_bytes(self.read_array()?)),
            _ => {
                let at = self.at;
                return Err(GgufError::Metadata { kind, at });
            }
        })
    }

    fn read_tensor_location(&mut self) -> Result<(String, TensorEntry), GgufError> {
        let name = self.read_text()?;
        let wrong = || GgufError::Sizes { name: name.clone() };
        let rank = self.read_u32()? as usize;
        if rank > RANK_MAX {
            return Err(wrong());
        }
        let mut dims = Vec::with_capacity(rank);
        for _ in 0..rank {
            dims.push(usize::try_from(self.read_u64()?).map_err(|_| wrong())?);
        }
        dims.reverse();
        let kind = Encoding::from_number(self.read_u32()?, &name)?;
        let start = usize::try_from(self.read_u64()?).map_err(|_| wrong())?;
        let (elements, bytes) = kind.block_layout();
        let count = Shape::new(dims.clone())
            .map_err(|_| wrong())?
            .element_count();
        let row = dims.last().copied().unwrap_or(1);
        if !row.is_multiple_of(elements) {
            return Err(wrong());
        }
        let length = (count / elements).checked_mul(bytes).ok_or_else(wrong)?;
        let place = TensorEntry {
            dims,
            kind,
            part: 0,
            start,
            length,
        };
        Ok((name, place))
    }
}

#[cfg(test)]
pub(crate) mod tests;
