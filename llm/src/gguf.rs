//! GGUF files: metadata and tensors of a model in one file.
//!
//! Read within bounds: nothing is reserved on the file's word alone, every length is held against
//! what is left of it, and a type that is not known is refused by its name. Blocks of 8 and of 4
//! bits stay what they are; the other types of blocks that are known are put into 8 bits.

mod blocks;

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Shape, Tensor};
use thiserror::Error;

use crate::weights::{BLOCK, Weight};
use blocks::BlockKind;

/// The first bytes of every file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Versions that are read: sizes are of 64 bits from the second on.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// What tensors' places are multiples of, unless the file says otherwise.
const ALIGNMENT_DEFAULT: u64 = 32;
/// Arrays within arrays at most.
const DEPTH_MAX: usize = 4;
/// Most dimensions a tensor has.
const RANK_MAX: usize = 4;
/// Entries of the metadata, and tensors, at most: a thousand times those of a common file.
const ENTRIES_MAX: u64 = 1 << 16;
/// Values of the metadata at most, those of arrays among them: twice those of the largest
/// vocabularies, of words, kinds and merges. Each takes up to 32 bytes.
const VALUES_MAX: usize = 3 << 19;
/// Bytes of its texts at most.
const TEXT_BYTES_MAX: usize = 24 << 20;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number that is not negative.
    Unsigned(u64),
    /// A negative one.
    Negative(i64),
    /// A float.
    Float(f64),
    /// A truth.
    Bool(bool),
    /// A text.
    Text(String),
    /// Several of one type.
    Array(Vec<Value>),
}

/// A file.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The metadata.
    pub metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Place>,
    /// The file, or its parts.
    files: Vec<Bytes>,
}

/// Where a tensor lies, and what it is.
#[derive(Clone, Debug)]
struct Place {
    /// Outermost first, as everywhere else; the file has them the other way round.
    dims: Vec<usize>,
    kind: Kind,
    /// In which of the parts.
    part: usize,
    start: usize,
    length: usize,
}

/// How a tensor's numbers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    /// Put into 8 bits.
    Blocks(BlockKind),
}

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GgufError {
    /// It does not begin as one.
    #[error("the file is no GGUF file")]
    Magic,
    /// A version that is not known.
    #[error("GGUF version {0} is not known; versions 2 and 3 are")]
    Version(u32),
    /// It ends in the middle.
    #[error("the GGUF file is cut short: {needed} bytes are needed at byte {at} of {length}")]
    Short {
        /// Where.
        at: usize,
        /// How many are needed.
        needed: u64,
        /// Length of the file.
        length: usize,
    },
    /// A text that is not UTF-8.
    #[error("a text at byte {0} is not UTF-8")]
    Text(usize),
    /// A type of metadata that is not known, or arrays too deep.
    #[error("metadata of type {kind} at byte {at} is not known")]
    Metadata {
        /// Its number.
        kind: u32,
        /// Where.
        at: usize,
    },
    /// A type of tensor that is not read.
    #[error(
        "tensor {name:?} is of type {kind}, which is not read; f32, f16, bf16, q8_0, q4_0 are, \
         and, kept in 8 bits, q2_K to q6_K, q4_1, q5_0, q5_1, iq4_nl, iq4_xs"
    )]
    Kind {
        /// The tensor.
        name: String,
        /// The type's name.
        kind: String,
    },
    /// Sizes that cannot be.
    #[error("tensor {name:?} has impossible sizes")]
    Sizes {
        /// The tensor.
        name: String,
    },
    /// Alignment that cannot be.
    #[error("the alignment {0} is no power of two")]
    Alignment(u64),
    /// More than any model has.
    #[error("the GGUF file has more than {most} {what}")]
    Large {
        /// What is too many.
        what: &'static str,
        /// How many are read.
        most: u64,
    },
    /// A part is missing, or is of another model.
    #[error("the GGUF file says that its parts have {stated} tensors, and they have {found}")]
    Parts {
        /// Tensors that the first part says there are.
        stated: u64,
        /// Those of the parts.
        found: u64,
    },
    /// The same name twice.
    #[error("{0:?} is there twice")]
    Twice(String),
}

/// Names of the types of tensors by number, for those that are refused.
const KINDS: [&str; 40] = [
    "f32", "f16", "q4_0", "q4_1", "4", "5", "q5_0", "q5_1", "q8_0", "q8_1", "q2_K", "q3_K", "q4_K",
    "q5_K", "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s",
    "iq4_xs", "i8", "i16", "i32", "i64", "f64", "iq1_m", "bf16", "31", "32", "33", "tq1_0",
    "tq2_0", "36", "37", "38", "mxfp4",
];

impl Kind {
    fn of(number: u32, name: &str) -> Result<Self, GgufError> {
        match number {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            2 => Ok(Self::Q4_0),
            8 => Ok(Self::Q8_0),
            30 => Ok(Self::Bf16),
            _ => BlockKind::of(number).map(Self::Blocks).ok_or_else(|| {
                let known = KINDS.get(number as usize).map(|it| (*it).to_owned());
                GgufError::Kind {
                    name: name.to_owned(),
                    kind: known.unwrap_or_else(|| number.to_string()),
                }
            }),
        }
    }

    /// Elements in a block, and its bytes.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (BLOCK, 2 + BLOCK),
            Self::Q4_0 => (BLOCK, 2 + BLOCK / 2),
            Self::Blocks(kind) => kind.block(),
        }
    }
}

impl Gguf {
    /// Reads a file's metadata and where its tensors lie.
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
        if reader.take(4)? != MAGIC {
            return Err(GgufError::Magic);
        }
        let version = reader.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(GgufError::Version(version));
        }
        let (tensors, entries) = (reader.u64()?, reader.u64()?);
        for (what, count) in [("tensors", tensors), ("entries", entries)] {
            if count > ENTRIES_MAX {
                let most = ENTRIES_MAX;
                return Err(GgufError::Large { what, most });
            }
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = reader.text()?;
            let kind = reader.u32()?;
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
            let (name, place) = reader.place()?;
            if places.insert(name.clone(), place).is_some() {
                return Err(GgufError::Twice(name));
            }
        }
        let base = (reader.at as u64).checked_next_multiple_of(alignment);
        let base = base.ok_or(GgufError::Alignment(alignment))?;
        for place in places.values_mut() {
            place.settle(base, file.len())?;
        }
        Ok(Self {
            metadata,
            tensors: places,
            files: vec![file.clone()],
        })
    }

    /// How many files the model is in.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.number("split.count").unwrap_or(1).max(1)
    }

    /// Adds the tensors of the other parts.
    ///
    /// # Errors
    /// [`GgufError::Twice`], or [`GgufError::Parts`] where they are not as many as the first part
    /// says.
    pub fn join(mut self, others: Vec<Self>) -> Result<Self, GgufError> {
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
        match self.number("split.tensors.count") {
            Some(stated) if stated != found => Err(GgufError::Parts { stated, found }),
            _ => Ok(self),
        }
    }

    /// A whole number of the metadata.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Unsigned(number) => Some(*number),
            _ => None,
        }
    }

    /// A float of the metadata.
    #[must_use]
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Float(float) => Some(*float),
            _ => None,
        }
    }

    /// A text of the metadata.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An array of the metadata.
    #[must_use]
    pub fn array(&self, key: &str) -> Option<&[Value]> {
        match self.metadata.get(key)? {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The names of its tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor, its blocks taken apart. Those that are neither of 8 nor of 4 bits become blocks of
    /// 8, each number off by half a step at most.
    pub(crate) fn weight(&self, name: &str) -> Option<Weight> {
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
            Kind::F32 => plain(DType::F32),
            Kind::F16 => plain(DType::F16),
            Kind::Bf16 => plain(DType::Bf16),
            Kind::Q8_0 => blocks(DType::I8, eights(&bytes)),
            Kind::Q4_0 => blocks(DType::I4, fours(&bytes)),
            Kind::Blocks(kind) => blocks(DType::I8, kind.eights(&bytes)),
        })
    }
}

/// Integers and scales of blocks of 8 bits.
fn eights(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (_, size) = Kind::Q8_0.block();
    let blocks = bytes.len() / size;
    let mut integers = Vec::with_capacity(blocks * BLOCK);
    let mut scales = Vec::with_capacity(blocks * 2);
    for block in bytes.chunks_exact(size) {
        scales.extend_from_slice(&block[..2]);
        integers.extend_from_slice(&block[2..]);
    }
    (integers, scales)
}

/// Integers and scales of blocks of 4 bits: in the file the second half of a block lies above the
/// first, and 8 is zero; in a tensor neighbours share a byte, and integers have signs.
fn fours(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (_, size) = Kind::Q4_0.block();
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
        // Less 8 in four bits is the uppermost bit turned.
        integers.extend(low.chain(high).map(|pair| pair ^ 0x88));
    }
    (integers, scales)
}

impl Place {
    /// Where it lies in a file whose tensors begin at `base`.
    fn settle(&mut self, base: u64, length: usize) -> Result<(), GgufError> {
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

/// A file as it is read from its beginning.
struct Reader<'a> {
    file: &'a Bytes,
    at: usize,
    values_left: usize,
    text_bytes_left: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: u64) -> Result<&[u8], GgufError> {
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

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("as many were taken"))
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let at = self.at;
        let length = self.u64()?;
        self.text_bytes_left = usize::try_from(length)
            .ok()
            .and_then(|length| self.text_bytes_left.checked_sub(length))
            .ok_or(GgufError::Large {
                what: "bytes of texts",
                most: TEXT_BYTES_MAX as u64,
            })?;
        let bytes = self.take(length)?;
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
            0 => Value::Unsigned(u64::from(u8::from_le_bytes(self.array()?))),
            1 => signed(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array()?))),
            3 => signed(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => signed(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < DEPTH_MAX => {
                let (kind, count) = (self.u32()?, self.u64()?);
                // Each takes a byte at least, so a false count ends with the file.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, depth + 1)?);
                }
                Value::Array(values)
            }
            10 => Value::Unsigned(self.u64()?),
            11 => signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => {
                let at = self.at;
                return Err(GgufError::Metadata { kind, at });
            }
        })
    }

    fn place(&mut self) -> Result<(String, Place), GgufError> {
        let name = self.text()?;
        let wrong = || GgufError::Sizes { name: name.clone() };
        let rank = self.u32()? as usize;
        if rank > RANK_MAX {
            return Err(wrong());
        }
        let mut dims = Vec::with_capacity(rank);
        for _ in 0..rank {
            dims.push(usize::try_from(self.u64()?).map_err(|_| wrong())?);
        }
        dims.reverse();
        let kind = Kind::of(self.u32()?, &name)?;
        let start = usize::try_from(self.u64()?).map_err(|_| wrong())?;
        let (elements, bytes) = kind.block();
        let count = Shape::new(dims.clone()).map_err(|_| wrong())?.count();
        let row = dims.last().copied().unwrap_or(1);
        if !row.is_multiple_of(elements) {
            return Err(wrong());
        }
        let length = (count / elements).checked_mul(bytes).ok_or_else(wrong)?;
        let place = Place {
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
