//! Reads a model file and separates its weights from the graph, so that each weight has its own
//! aligned memory and is copied only once.
//!
//! A message decoded from a file in memory keeps the whole file, where its weights lie at unaligned
//! addresses, so an engine would have to copy each of them. If this module reads the file field by
//! field, they need no copy.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use prost::Message;
use prost::encoding::encode_varint;
use souk_memory::ContentId;
use thiserror::Error;

use super::{DataLocation, StringStringEntryProto, TensorProto};

/// Smaller weights, in bytes, stay in the model.
const SPLIT_BYTES_MIN: u64 = 1024;

/// Number of the field of `ModelProto` with the graph.
const GRAPH: u64 = 7;
/// Number of the field of `GraphProto` with a weight.
const INITIALIZER: u64 = 5;
/// Number of the field of `TensorProto` with the values.
const RAW_DATA: u64 = 9;

/// Reasons why a file cannot be split.
#[derive(Debug, Error)]
pub enum SplitError {
    /// Reading the file failed.
    #[error("cannot read the model: {0}")]
    Read(#[from] io::Error),
    /// Its fields do not follow the protobuf layout.
    #[error("not an ONNX model, or a damaged one: {0}")]
    NotOnnx(&'static str),
}

/// A model and its separated weights by id: each initializer refers to its values as `blake3:` and
/// the id.
pub type Split = (Bytes, BTreeMap<ContentId, Bytes>);

/// Splits the model in a file.
///
/// # Errors
/// [`SplitError`]; other errors of a model will appear when you decode it.
pub fn split_file(path: &Path) -> Result<Split, SplitError> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut splitter = Splitter {
        source: BufReader::new(file),
        weights: BTreeMap::new(),
    };
    let model = splitter.split_message(length, Level::Model)?;
    Ok((model.into(), splitter.weights))
}

/// The kind of message to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Model,
    Graph,
    Tensor,
}

struct Splitter {
    source: BufReader<File>,
    weights: BTreeMap<ContentId, Bytes>,
}

impl Splitter {
    /// Reads a message of `left` bytes, and returns it without its weights.
    fn split_message(&mut self, mut left: u64, level: Level) -> Result<Vec<u8>, SplitError> {
        let mut kept = Vec::new();
        while left > 0 {
            let key = self.read_varint(&mut left)?;
            if key & 7 != 2 {
                encode_varint(key, &mut kept);
                self.copy_scalar(key & 7, &mut left, &mut kept)?;
                continue;
            }
            let length = self.read_varint(&mut left)?;
            left = left
                .checked_sub(length)
                .ok_or(SplitError::NotOnnx("a field is longer than what holds it"))?;
            let part = match (level, key >> 3) {
                (Level::Model, GRAPH) => self.split_message(length, Level::Graph)?,
                (Level::Graph, INITIALIZER) => self.split_message(length, Level::Tensor)?,
                (Level::Tensor, RAW_DATA) if length >= SPLIT_BYTES_MIN => {
                    kept.extend(self.extract_weight(length)?);
                    continue;
                }
                _ => self.read_bytes(length)?,
            };
            encode_varint(key, &mut kept);
            encode_varint(part.len() as u64, &mut kept);
            kept.extend(part);
        }
        Ok(kept)
    }

    /// Separates a weight's values, and returns the fields that state their new location.
    fn extract_weight(&mut self, length: u64) -> Result<Vec<u8>, SplitError> {
        let values = Bytes::from(self.read_bytes(length)?);
        let id = ContentId::for_content(&values);
        self.weights.insert(id, values);
        let place = TensorProto {
            data_location: Some(DataLocation::External as i32),
            external_data: vec![StringStringEntryProto::new(
                "location",
                format!("blake3:{id}"),
            )],
            ..TensorProto::default()
        };
        Ok(place.encode_to_vec())
    }

    /// Reads bytes of the file. The caller must check the length against the rest of the file.
    fn read_bytes(&mut self, length: u64) -> Result<Vec<u8>, SplitError> {
        let length = usize::try_from(length);
        let length = length.map_err(|_| SplitError::NotOnnx("a field is too long"))?;
        let mut bytes = vec![0; length];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn copy_scalar(
        &mut self,
        kind: u64,
        left: &mut u64,
        kept: &mut Vec<u8>,
    ) -> Result<(), SplitError> {
        let length = match kind {
            0 => {
                encode_varint(self.read_varint(left)?, kept);
                return Ok(());
            }
            1 => 8,
            5 => 4,
            _ => return Err(SplitError::NotOnnx("an impossible field type")),
        };
        let cut = SplitError::NotOnnx("a field is cut short");
        *left = left.checked_sub(length).ok_or(cut)?;
        kept.extend(self.read_bytes(length)?);
        Ok(())
    }

    fn read_varint(&mut self, left: &mut u64) -> Result<u64, SplitError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let cut = SplitError::NotOnnx("a field is cut short");
            *left = left.checked_sub(1).ok_or(cut)?;
            let mut byte = [0u8];
            self.source.read_exact(&mut byte)?;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(SplitError::NotOnnx("an impossible number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphProto, ModelProto, decode_model, encode_model};

    fn model(values: usize) -> ModelProto {
        let weight = TensorProto {
            dims: vec![values as i64],
            data_type: Some(1),
            name: Some("w".to_owned()),
            raw_data: Some(Bytes::from(vec![7; values * 4])),
            ..TensorProto::default()
        };
        ModelProto {
            ir_version: Some(10),
            graph: Some(GraphProto {
                name: Some("g".to_owned()),
                initializer: vec![weight],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    #[test]
    fn large_weights_leave_the_model_and_small_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        for (values, split) in [(100, false), (1000, true)] {
            std::fs::write(&path, encode_model(&model(values))).unwrap();
            let (bytes, weights) = split_file(&path).unwrap();
            let found = decode_model(bytes).unwrap();
            assert_eq!(weights.len(), usize::from(split));
            if split {
                let (id, held) = weights.first_key_value().unwrap();
                assert_eq!(held.len(), values * 4);
                let initializer = &found.graph.unwrap().initializer[0];
                let location = format!("blake3:{id}");
                assert_eq!(
                    crate::external_location(initializer),
                    Some(location.as_str())
                );
            } else {
                assert_eq!(found, model(values));
            }
        }
    }

    #[test]
    fn a_file_cut_short_is_refused_wherever_it_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        let whole = encode_model(&model(300));
        for length in 1..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let graph = split_file(&path).map(|(bytes, _)| decode_model(bytes));
            let same = matches!(&graph, Ok(Ok(found)) if found.graph.is_some());
            assert!(!same, "cut after {length} bytes");
        }
    }
}
