//! Decodes and encodes ONNX models. The errors distinguish a file that is no model from a truncated
//! model and from one that exceeds a limit.

use bytes::Bytes;
use prost::Message;
use thiserror::Error;

use super::budget::{ExceededLimit, UsageError, count_model};
use super::{AttributeProto, ModelProto};

/// Reasons why bytes are not an ONNX model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("the file is empty")]
    Empty,
    /// The bytes do not follow the protobuf layout of a model.
    #[error("not an ONNX model, or a damaged one ({length} bytes): {reason}")]
    NotOnnx {
        /// Number of bytes.
        length: usize,
        /// The protobuf reader's message.
        reason: String,
    },
    /// The bytes end inside a field that claims to be longer.
    #[error("the ONNX model is cut short: field {field} needs {needed} bytes, {present} are there")]
    Truncated {
        /// Number of the field of `ModelProto` that is cut.
        field: u32,
        /// Bytes that the field claims.
        needed: u64,
        /// Bytes left in the file.
        present: u64,
    },
    /// The model exceeds a limit.
    #[error(transparent)]
    ExceededLimit(#[from] ExceededLimit),
    /// The model has no graph.
    #[error("the ONNX model has no graph")]
    NoGraph,
    /// The model states neither an IR version nor operator sets, so it is some other protobuf.
    #[error("not an ONNX model: it states neither an IR version nor an operator set")]
    NoVersion,
}

/// Decodes a model. Weights stay in `bytes`, shared, so each of them will keep the whole file in
/// memory. Use [`split_file`](crate::split_file) if that must not happen.
///
/// # Errors
/// [`DecodeError`], which says how the file is not a model.
pub fn decode_model(bytes: Bytes) -> Result<ModelProto, DecodeError> {
    if bytes.is_empty() {
        return Err(DecodeError::Empty);
    }
    check_framing(&bytes)?;
    let length = bytes.len();
    count_model(&bytes).map_err(|refused| match refused {
        UsageError::ExceededLimit(beyond) => DecodeError::ExceededLimit(beyond),
        UsageError::Malformed => DecodeError::NotOnnx {
            length,
            reason: "a message does not follow the layout".to_owned(),
        },
    })?;
    let model = ModelProto::decode(bytes).map_err(|error| DecodeError::NotOnnx {
        length,
        reason: error.to_string(),
    })?;
    if model.ir_version.is_none() && model.opset_import.is_empty() {
        return Err(DecodeError::NoVersion);
    }
    if model.graph.is_none() {
        return Err(DecodeError::NoGraph);
    }
    Ok(model)
}

/// Encodes a model. Equal models have equal bytes, because the schema contains no maps.
#[must_use]
pub fn encode_model(model: &ModelProto) -> Bytes {
    Bytes::from(model.encode_to_vec())
}

/// Encodes an attribute alone, as it is within a model.
#[must_use]
pub fn encode_attribute(attribute: &AttributeProto) -> Bytes {
    Bytes::from(attribute.encode_to_vec())
}

/// Steps over the outermost fields, to distinguish a truncated file from one that never was ONNX.
fn check_framing(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut at = 0;
    let not_onnx = |reason: &str| DecodeError::NotOnnx {
        length: bytes.len(),
        reason: reason.to_owned(),
    };
    while at < bytes.len() {
        let key =
            read_varint(bytes, &mut at).ok_or_else(|| not_onnx("a field without a number"))?;
        let field = u32::try_from(key >> 3).map_err(|_| not_onnx("an impossible field number"))?;
        let needed = match key & 7 {
            0 => read_varint(bytes, &mut at).map(|_| 0),
            1 => Some(8),
            2 => read_varint(bytes, &mut at),
            5 => Some(4),
            _ => return Err(not_onnx("an impossible field type")),
        };
        let present = (bytes.len() - at) as u64;
        let needed = needed.ok_or(DecodeError::Truncated {
            field,
            needed: 1,
            present,
        })?;
        if field == 0 || field > FIELD_MAX {
            return Err(not_onnx("a field that no ONNX model has"));
        }
        if needed > present {
            return Err(DecodeError::Truncated {
                field,
                needed,
                present,
            });
        }
        at += usize::try_from(needed).expect("no more than is present");
    }
    Ok(())
}

/// Far above the 26 of today, because newer models must pass; the keys of text files are far beyond
/// it.
const FIELD_MAX: u32 = 1000;

fn read_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphProto, NodeProto};

    fn model() -> ModelProto {
        let node = NodeProto {
            op_type: Some("Relu".into()),
            input: vec!["x".into()],
            output: vec!["y".into()],
            ..NodeProto::default()
        };
        ModelProto {
            ir_version: Some(8),
            graph: Some(GraphProto {
                node: vec![node],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    #[test]
    fn a_model_survives_the_round_trip() {
        assert_eq!(decode_model(encode_model(&model())), Ok(model()));
    }

    #[test]
    fn every_cut_of_a_model_is_an_error() {
        let bytes = encode_model(&model());
        for length in 0..bytes.len() {
            assert!(
                decode_model(bytes.slice(..length)).is_err(),
                "{length} bytes"
            );
        }
        let cut = decode_model(bytes.slice(..bytes.len() - 1));
        assert!(matches!(cut, Err(DecodeError::Truncated { field: 7, .. })));
    }

    #[test]
    fn other_files_are_named_as_such() {
        let text = decode_model(Bytes::from_static(b"hello, I am a text file"));
        assert!(matches!(text, Err(DecodeError::NotOnnx { .. })), "{text:?}");
        assert_eq!(decode_model(Bytes::new()), Err(DecodeError::Empty));
    }

    #[test]
    fn raw_bytes_are_shared_with_the_file() {
        let weights = crate::TensorProto {
            raw_data: Some(Bytes::from(vec![7u8; 4096])),
            ..Default::default()
        };
        let mut model = model();
        model.graph.as_mut().unwrap().initializer.push(weights);
        let file = encode_model(&model);
        let decoded = decode_model(file.clone()).unwrap();
        let raw = decoded.graph.unwrap().initializer[0]
            .raw_data
            .clone()
            .unwrap();
        assert!(file.as_ptr_range().contains(&raw.as_ptr()));
    }
}
