//! Counts the resources that a model needs, from its bytes and before souk decodes them, and
//! refuses a model that exceeds a limit, with the name of that limit.
//!
//! A model can come from a stranger: an empty message takes two bytes of a file and hundreds of
//! bytes of memory, and functions that call each other twice double with each call. So the count
//! makes no copy. The expansion of functions is counted in the same way before souk inlines their
//! calls.

use std::mem::size_of;

use thiserror::Error;

use crate::{self as onnx, FunctionProto, GraphProto, NodeProto, type_proto};

/// A model can have at most this many nodes, including those in bodies, and those of functions once
/// per call. The largest exports of language models have some 30,000.
pub const NODES_MAX: u64 = 100_000;
/// The messages of a model can take at most this many bytes in addition to those of its file. A
/// node with its attributes takes about two KiB.
pub const MEMORY_MAX: u64 = 256 << 20;
/// Messages can nest at most this many levels; a body within a body takes three.
const DEPTH_MAX: u64 = 64;

/// The limit that a model exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExceededLimit {
    /// The model has too many nodes.
    #[error("the ONNX model has more than {limit} nodes, functions counted at each call")]
    Nodes {
        /// Most nodes allowed.
        limit: u64,
    },
    /// The model's messages need too much memory.
    #[error("the messages of the ONNX model take more than {limit} bytes beyond its own")]
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// The model nests messages too deeply.
    #[error("the ONNX model nests messages more than {limit} deep")]
    Depth {
        /// Most levels allowed.
        limit: u64,
    },
    /// The inference of the model's bodies takes too many steps.
    #[error("the bodies of the ONNX model take more than {limit} steps to infer")]
    Steps {
        /// Most steps allowed.
        limit: u64,
    },
}

/// Reasons why a model's bytes cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageError {
    /// They do not follow the protobuf layout.
    Malformed,
    /// They exceed a limit.
    ExceededLimit(ExceededLimit),
}

/// The resources that a model, or a part of one, needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of nodes, including those of bodies and functions.
    pub nodes: u64,
    /// Bytes of its messages in addition to those of the file.
    pub memory: u64,
}

impl Usage {
    /// Returns the resources that each inlined call of a function needs; calls within its body
    /// count as one node each.
    ///
    /// # Errors
    /// [`ExceededLimit`] if the body alone exceeds a limit.
    pub fn of_function(function: &FunctionProto) -> Result<Self, ExceededLimit> {
        let bytes = prost::Message::encode_to_vec(function);
        let counted = count_usage(&bytes, Message::Function);
        let counted = counted.or_else(|refused| match refused {
            UsageError::Malformed => Ok(Self::default()),
            UsageError::ExceededLimit(beyond) => Err(beyond),
        })?;
        // Each call copies the body, including its names and texts.
        Ok(counted.with(Self {
            nodes: 0,
            memory: bytes.len() as u64,
        }))
    }

    /// Counts the nodes of a graph. The count of the model's bytes already covers its other
    /// resources.
    #[must_use]
    pub fn of_graph(graph: &GraphProto) -> Self {
        let within = graph.node.iter().flat_map(NodeProto::subgraphs);
        let nodes = Self {
            nodes: graph.node.len() as u64,
            memory: 0,
        };
        within.map(Self::of_graph).fold(nodes, Self::with)
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            nodes: self.nodes.saturating_add(other.nodes),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    /// Returns this usage, if it is within the limits.
    ///
    /// # Errors
    /// [`ExceededLimit`], with the limit that it exceeds.
    pub fn check_limits(self) -> Result<Self, ExceededLimit> {
        if self.nodes > NODES_MAX {
            return Err(ExceededLimit::Nodes { limit: NODES_MAX });
        }
        if self.memory > MEMORY_MAX {
            return Err(ExceededLimit::Memory { limit: MEMORY_MAX });
        }
        Ok(self)
    }
}

/// Counts the resources that the bytes of a model need. Callers must not decode a model that this
/// refuses.
pub(super) fn count_model(bytes: &[u8]) -> Result<Usage, UsageError> {
    count_usage(bytes, Message::Model)
}

fn count_usage(bytes: &[u8], message: Message) -> Result<Usage, UsageError> {
    let mut usage = Usage::default();
    usage.add_message(bytes, message, 1)?;
    Ok(usage)
}

/// The kinds of messages that nest within others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Value,
    Type,
    TensorType,
    Shape,
    Dimension,
    Element,
    Map,
    Function,
    Annotation,
    Training,
    NodeDevice,
    Sharding,
    ShardedDim,
    Entry,
    Numbers,
    Device,
}

/// The memory that a field needs in addition to its bytes.
enum Field {
    /// A message.
    Of(Message),
    /// A text or bytes.
    Text,
    /// Numbers of varying length, each of which takes this many bytes in memory.
    Varints(u64),
    /// No additional memory.
    Plain,
}

impl Message {
    /// Returns the bytes of one message in memory, without separately allocated contents.
    fn struct_size(self) -> u64 {
        let size = match self {
            Self::Model => size_of::<onnx::ModelProto>(),
            Self::Graph => size_of::<GraphProto>(),
            Self::Node => size_of::<NodeProto>(),
            Self::Attribute => size_of::<onnx::AttributeProto>(),
            Self::Tensor => size_of::<onnx::TensorProto>(),
            Self::Sparse => size_of::<onnx::SparseTensorProto>(),
            Self::Value => size_of::<onnx::ValueInfoProto>(),
            Self::Type => size_of::<onnx::TypeProto>(),
            Self::TensorType => size_of::<type_proto::Tensor>(),
            Self::Shape => size_of::<onnx::TensorShapeProto>(),
            Self::Dimension => size_of::<onnx::Dimension>(),
            Self::Element => size_of::<type_proto::Sequence>(),
            Self::Map => size_of::<type_proto::Map>(),
            Self::Function => size_of::<FunctionProto>(),
            Self::Annotation => size_of::<onnx::TensorAnnotation>(),
            Self::Training => size_of::<onnx::TrainingInfoProto>(),
            Self::NodeDevice => size_of::<onnx::NodeDeviceConfigurationProto>(),
            Self::Sharding => size_of::<onnx::ShardingSpecProto>(),
            Self::ShardedDim => size_of::<onnx::ShardedDimProto>(),
            Self::Numbers => size_of::<onnx::IntIntListEntryProto>(),
            Self::Device => size_of::<onnx::DeviceConfigurationProto>(),
            Self::Entry => size_of::<onnx::StringStringEntryProto>(),
        };
        size as u64
    }

    /// Returns the kind of the field with this number.
    fn field_kind(self, number: u64) -> Field {
        use Field::{Of, Plain, Text, Varints};
        match (self, number) {
            (Self::Model, 7) => Of(Self::Graph),
            (Self::Model, 8 | 14) => Of(Self::Entry),
            (Self::Model, 20) => Of(Self::Training),
            (Self::Model, 25) => Of(Self::Function),
            (Self::Model, 26) => Of(Self::Device),
            (Self::Graph, 1) | (Self::Function, 7) => Of(Self::Node),
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) => Of(Self::Tensor),
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Of(Self::Sparse),
            (Self::Graph, 11..=13) | (Self::Function, 12) => Of(Self::Value),
            (Self::Graph, 14) => Of(Self::Annotation),
            (Self::Node, 5) | (Self::Function, 11) => Of(Self::Attribute),
            (Self::Node, 10) => Of(Self::NodeDevice),
            (Self::Graph, 16) | (Self::Node, 9) | (Self::Tensor, 13 | 16) => Of(Self::Entry),
            (Self::Value, 4) | (Self::Function, 9 | 14) => Of(Self::Entry),
            (Self::Annotation, 2) | (Self::Training, 3 | 4) => Of(Self::Entry),
            (Self::Attribute, 6 | 11) | (Self::Training, 1 | 2) => Of(Self::Graph),
            (Self::Attribute, 14 | 15) | (Self::Value, 2) => Of(Self::Type),
            (Self::Sparse, 1 | 2) => Of(Self::Tensor),
            (Self::Type, 1 | 8) => Of(Self::TensorType),
            (Self::Type, 4 | 9) => Of(Self::Element),
            (Self::Type, 5) => Of(Self::Map),
            (Self::Type, 7) | (Self::Tensor, 3) => Of(Self::Entry),
            (Self::TensorType, 2) => Of(Self::Shape),
            (Self::Shape, 1) => Of(Self::Dimension),
            (Self::Element, 1) | (Self::Map, 2) => Of(Self::Type),
            (Self::NodeDevice, 2) => Of(Self::Sharding),
            (Self::Sharding, 3) => Of(Self::Numbers),
            (Self::Sharding, 4) => Of(Self::ShardedDim),
            (Self::ShardedDim, 2) => Of(Self::Numbers),
            (Self::Attribute, 8) | (Self::Tensor, 1 | 7 | 11) | (Self::Sparse, 3) => Varints(8),
            (Self::Sharding, 2) | (Self::Numbers, 2) => Varints(8),
            (Self::Tensor, 5) => Varints(4),
            (Self::Node, 1 | 2) | (Self::Function, 4..=6) | (Self::Device, 3) => Text,
            (Self::Attribute, 9) | (Self::Tensor, 6) => Text,
            _ => Plain,
        }
    }
}

impl Usage {
    fn add_message(
        &mut self,
        mut bytes: &[u8],
        message: Message,
        depth: u64,
    ) -> Result<(), UsageError> {
        if depth > DEPTH_MAX {
            let limit = DEPTH_MAX;
            return Err(UsageError::ExceededLimit(ExceededLimit::Depth { limit }));
        }
        let own = Self {
            nodes: u64::from(message == Message::Node),
            memory: message.struct_size(),
        };
        self.add(own)?;
        while !bytes.is_empty() {
            let key = read_varint(&mut bytes)?;
            let field = message.field_kind(key >> 3);
            match (key & 7, &field) {
                (0, Field::Varints(width)) => {
                    read_varint(&mut bytes)?;
                    self.add_memory(*width)?;
                }
                (0, _) => drop(read_varint(&mut bytes)?),
                (1, _) => drop(take_bytes(&mut bytes, 8)?),
                (5, _) => drop(take_bytes(&mut bytes, 4)?),
                (2, _) => {
                    let length = read_varint(&mut bytes)?;
                    let inner = take_bytes(&mut bytes, length)?;
                    self.add_field(inner, &field, depth)?;
                }
                _ => return Err(UsageError::Malformed),
            }
        }
        Ok(())
    }

    /// Adds a length-delimited field.
    fn add_field(&mut self, bytes: &[u8], field: &Field, depth: u64) -> Result<(), UsageError> {
        match field {
            Field::Of(message) => self.add_message(bytes, *message, depth + 1),
            Field::Text => self.add_memory(size_of::<bytes::Bytes>() as u64),
            Field::Varints(width) => {
                let numbers = bytes.iter().filter(|byte| **byte < 0x80).count() as u64;
                let held = numbers.saturating_mul(*width);
                self.add_memory(held.saturating_sub(bytes.len() as u64))
            }
            Field::Plain => Ok(()),
        }
    }

    fn add_memory(&mut self, memory: u64) -> Result<(), UsageError> {
        self.add(Self { nodes: 0, memory })
    }

    fn add(&mut self, other: Self) -> Result<(), UsageError> {
        *self = self
            .with(other)
            .check_limits()
            .map_err(UsageError::ExceededLimit)?;
        Ok(())
    }
}

/// Splits off the next `length` bytes.
fn take_bytes<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], UsageError> {
    let length = usize::try_from(length).map_err(|_| UsageError::Malformed)?;
    let (first, rest) = bytes
        .split_at_checked(length)
        .ok_or(UsageError::Malformed)?;
    *bytes = rest;
    Ok(first)
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64, UsageError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(UsageError::Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(UsageError::Malformed)
}

#[cfg(test)]
mod tests {
    use prost::encoding::encode_varint;

    use super::*;
    use crate::{AttributeProto, DecodeError, ModelProto, decode_model, encode_model};

    /// A field of a number that holds bytes.
    fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        let mut made = Vec::new();
        encode_varint(number << 3 | 2, &mut made);
        encode_varint(bytes.len() as u64, &mut made);
        made.extend(bytes);
        made
    }

    /// A model with a graph of these bytes.
    fn model(graph: &[u8]) -> bytes::Bytes {
        let version = [8, 8];
        [&version[..], &field(7, graph)].concat().into()
    }

    fn refusal(graph: &[u8]) -> ExceededLimit {
        match decode_model(model(graph)) {
            Err(DecodeError::ExceededLimit(beyond)) => beyond,
            other => panic!("{:?}", other.map(|_| ())),
        }
    }

    #[test]
    fn messages_of_nothing_are_refused_before_they_are_held() {
        let nodes = field(1, &[]).repeat(NODES_MAX as usize + 1);
        assert_eq!(refusal(&nodes), ExceededLimit::Nodes { limit: NODES_MAX });
        let limit = MEMORY_MAX;
        // Initialisers, values and entries, each two bytes of a file.
        for number in [5, 12, 16] {
            let graph = field(number, &[]).repeat(8_000_000);
            assert_eq!(refusal(&graph), ExceededLimit::Memory { limit }, "{number}");
        }
        // Names and attributes of one node.
        for number in [2, 5] {
            let node = field(number, &[]).repeat(16_000_000);
            assert_eq!(refusal(&field(1, &node)), ExceededLimit::Memory { limit });
        }
        // Numbers of a tensor, one byte each, that take eight.
        let numbers = field(5, &field(7, &vec![0; 40 << 20]));
        assert_eq!(refusal(&numbers), ExceededLimit::Memory { limit });
    }

    #[test]
    fn bodies_within_bodies_are_refused() {
        let mut graph = Vec::new();
        for _ in 0..DEPTH_MAX {
            graph = field(1, &field(5, &field(6, &graph)));
        }
        assert_eq!(refusal(&graph), ExceededLimit::Depth { limit: DEPTH_MAX });
    }

    #[test]
    fn a_model_of_tens_of_thousands_of_nodes_passes() {
        let node = NodeProto::for_operator("Conv", &["x", "w", "b"], "y")
            .with("pads", vec![1i64; 4])
            .with("strides", vec![1i64; 2])
            .with("group", 1i64);
        let graph = GraphProto {
            node: vec![node; 60_000],
            ..GraphProto::default()
        };
        let whole = ModelProto {
            ir_version: Some(8),
            graph: Some(graph),
            ..ModelProto::default()
        };
        let bytes = encode_model(&whole);
        let counted = count_model(&bytes).unwrap();
        assert_eq!(counted.nodes, 60_000);
        assert!(counted.memory > 60_000 * size_of::<AttributeProto>() as u64 * 3);
        assert_eq!(decode_model(bytes), Ok(whole));
    }

    #[test]
    fn what_is_counted_is_at_least_what_is_held() {
        let body = GraphProto {
            node: vec![NodeProto::for_operator("Neg", &["a"], "b"); 3],
            ..GraphProto::default()
        };
        let attribute = AttributeProto {
            g: Some(body),
            ints: vec![1; 50],
            ..AttributeProto::default()
        };
        let node = NodeProto {
            attribute: vec![attribute],
            ..NodeProto::for_operator("If", &["c"], "y")
        };
        let function = FunctionProto {
            node: vec![node],
            ..FunctionProto::default()
        };
        let counted = Usage::of_function(&function).unwrap();
        let held = 4 * size_of::<NodeProto>() + size_of::<AttributeProto>() + 50 * 8;
        assert_eq!(counted.nodes, 4);
        assert!(counted.memory >= held as u64, "{counted:?}");
    }
}
