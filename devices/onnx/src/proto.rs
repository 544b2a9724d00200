//! The ONNX protobuf messages, with the field numbers of the ONNX project's `onnx.proto`.
//!
//! They are written by hand for prost's derive, so that no build needs `protoc`. They include every
//! field of the schema, so a model that you decode and encode loses nothing. The messages of
//! multi-device models are in `placement.rs`. Scalars whose presence the ONNX checker tests are
//! `Option`; `raw_data` is [`Bytes`], so if you decode from
//! [`Bytes`], the weights share the file's memory. Repeated numbers that the schema does not pack
//! stay unpacked, as the reference implementation writes them.

use bytes::Bytes;

pub use super::placement::*;

/// A whole model: a graph, its operator sets and its functions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// Version of the ONNX intermediate representation.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// Operator sets of the graph, one per domain.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Tool that wrote the model.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// Version of that tool.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// Reverse-DNS namespace of the model.
    #[prost(string, optional, tag = "4")]
    pub domain: Option<String>,
    /// Version of the model itself.
    #[prost(int64, optional, tag = "5")]
    pub model_version: Option<i64>,
    /// Free text for people.
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    /// The main graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Named strings about the model.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Training graphs.
    #[prost(message, repeated, tag = "20")]
    pub training_info: Vec<TrainingInfoProto>,
    /// Functions local to the model.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
    /// Device configurations of multi-device models.
    #[prost(message, repeated, tag = "26")]
    pub configuration: Vec<DeviceConfigurationProto>,
}

/// A graph: nodes in topological order, constants, inputs, outputs and known types.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphProto {
    /// Nodes, each of which must follow those that it depends on.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name of the graph.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Named constant tensors.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Named constant tensors in sparse form.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    /// Free text for people.
    #[prost(string, optional, tag = "10")]
    pub doc_string: Option<String>,
    /// Inputs; before IR version 4 they must include the initializers.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs of the graph.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types of values between nodes.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    /// Quantisation parameters of values.
    #[prost(message, repeated, tag = "14")]
    pub quantization_annotation: Vec<TensorAnnotation>,
    /// Named strings about the graph.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// One application of an operator or function.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeProto {
    /// Names of the values that it reads; empty for an optional input that it leaves out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the values that it makes; empty for an optional output that it leaves out.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the node; can be empty.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// Operator or function that the node applies.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// Domain of the operator set; empty for the standard one.
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    /// Overload of the function.
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
    /// Constants of the operator.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// Free text for people.
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    /// Named strings about the node.
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Placement of the node in multi-device models.
    #[prost(message, repeated, tag = "10")]
    pub device_configurations: Vec<NodeDeviceConfigurationProto>,
}

/// A named constant of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeProto {
    /// Name of the attribute.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// In a function body: the function's attribute whose value this one takes.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// Free text for people.
    #[prost(string, optional, tag = "13")]
    pub doc_string: Option<String>,
    /// The field below that holds the value: see [`AttributeType`].
    #[prost(enumeration = "AttributeType", optional, tag = "20")]
    pub r#type: Option<i32>,
    /// A float.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A string as UTF-8, or any bytes.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A graph.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// A sparse tensor.
    #[prost(message, optional, boxed, tag = "22")]
    pub sparse_tensor: Option<Box<SparseTensorProto>>,
    /// A type.
    #[prost(message, optional, tag = "14")]
    pub tp: Option<TypeProto>,
    /// Floats.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// Tensors.
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    /// Graphs.
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    /// Sparse tensors.
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
    /// Types.
    #[prost(message, repeated, tag = "15")]
    pub type_protos: Vec<TypeProto>,
}

/// The kind of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    /// Not stated.
    Undefined = 0,
    /// The value is in `f`.
    Float = 1,
    /// The value is in `i`.
    Int = 2,
    /// The value is in `s`.
    String = 3,
    /// The value is in `t`.
    Tensor = 4,
    /// The value is in `g`.
    Graph = 5,
    /// The values are in `floats`.
    Floats = 6,
    /// The values are in `ints`.
    Ints = 7,
    /// The values are in `strings`.
    Strings = 8,
    /// The values are in `tensors`.
    Tensors = 9,
    /// The values are in `graphs`.
    Graphs = 10,
    /// The value is in `sparse_tensor`.
    SparseTensor = 11,
    /// The values are in `sparse_tensors`.
    SparseTensors = 12,
    /// The value is in `tp`.
    TypeProto = 13,
    /// The values are in `type_protos`.
    TypeProtos = 14,
}

/// A tensor with its values or their location.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorProto {
    /// Extents; empty for a scalar.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Element type: see [`DataType`].
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    /// The range of elements that this message has, if a tensor is stored in pieces; current tools
    /// never write it.
    #[prost(message, optional, tag = "3")]
    pub segment: Option<Segment>,
    /// Values of `Float` and `Complex64`.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Values of `Int32`, of the integers below 32 bits, of `Bool`, and of the floats below 32 bits
    /// (as bits). `Uint32` is in `uint64_data`.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Values of `String`.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Values of `Int64`.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Name of the tensor.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// Free text for people.
    #[prost(string, optional, tag = "12")]
    pub doc_string: Option<String>,
    /// Values as little-endian bytes in row-major order.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Location of values outside the model: `location`, `offset`, `length`, `checksum`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// Whether the values are in the model or outside: see [`DataLocation`].
    #[prost(enumeration = "DataLocation", optional, tag = "14")]
    pub data_location: Option<i32>,
    /// Values of `Double` and `Complex128`.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Values of `Uint32` and `Uint64`.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// Named strings about the tensor.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// The range of a tensor stored in pieces.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Segment {
    /// First element.
    #[prost(int64, optional, tag = "1")]
    pub begin: Option<i64>,
    /// One past the last element.
    #[prost(int64, optional, tag = "2")]
    pub end: Option<i64>,
}

/// The location of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    /// In the message.
    Default = 0,
    /// Outside the model; `external_data` states the location.
    External = 1,
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[expect(
    missing_docs,
    reason = "each name says its type and width as the ONNX schema does"
)]
pub enum DataType {
    Undefined = 0,
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8e4m3fn = 17,
    Float8e4m3fnuz = 18,
    Float8e5m2 = 19,
    Float8e5m2fnuz = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4e2m1 = 23,
    Float8e8m0 = 24,
    Uint2 = 25,
    Int2 = 26,
}

/// A sparse tensor in coordinate form.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SparseTensorProto {
    /// Values that are not the default, one dimension.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// Indices of those values in the dense form.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// Extents of the dense form.
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// A named value and its type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueInfoProto {
    /// Name of the value.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Type of the value.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// Free text for people.
    #[prost(string, optional, tag = "3")]
    pub doc_string: Option<String>,
    /// Named strings about the value.
    #[prost(message, repeated, tag = "4")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// The type of a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeProto {
    /// The kind of type, with its details.
    #[prost(oneof = "type_proto::Value", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<type_proto::Value>,
    /// Meaning, from the ONNX list of denotations.
    #[prost(string, optional, tag = "6")]
    pub denotation: Option<String>,
}

/// The cases of [`TypeProto`].
pub mod type_proto {
    /// A kind of type, with its details.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        /// A dense tensor.
        #[prost(message, tag = "1")]
        TensorType(Tensor),
        /// A list of values of one type.
        #[prost(message, tag = "4")]
        SequenceType(Box<Sequence>),
        /// A map.
        #[prost(message, tag = "5")]
        MapType(Box<Map>),
        /// A type that only one tool knows.
        #[prost(message, tag = "7")]
        OpaqueType(Opaque),
        /// A sparse tensor.
        #[prost(message, tag = "8")]
        SparseTensorType(Tensor),
        /// A value that can be absent.
        #[prost(message, tag = "9")]
        OptionalType(Box<Sequence>),
    }

    /// A tensor's element type and extents.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tensor {
        /// Element type: see [`super::DataType`].
        #[prost(int32, optional, tag = "1")]
        pub elem_type: Option<i32>,
        /// Extents; absent if the rank is unknown.
        #[prost(message, optional, tag = "2")]
        pub shape: Option<super::TensorShapeProto>,
    }

    /// A sequence's or an optional's element.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sequence {
        /// Type of the element.
        #[prost(message, optional, boxed, tag = "1")]
        pub elem_type: Option<Box<super::TypeProto>>,
    }

    /// A map's key and value.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Map {
        /// Type of the key: see [`super::DataType`].
        #[prost(int32, optional, tag = "1")]
        pub key_type: Option<i32>,
        /// Type of the value.
        #[prost(message, optional, boxed, tag = "2")]
        pub value_type: Option<Box<super::TypeProto>>,
    }

    /// A type that is identified by name.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Opaque {
        /// Namespace of the type.
        #[prost(string, optional, tag = "1")]
        pub domain: Option<String>,
        /// Name of the type.
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
    }
}

/// Extents of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorShapeProto {
    /// One entry per dimension.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// One extent: a number, a symbol, or unknown.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dimension {
    /// The extent; absent if unknown.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
    /// Meaning, from the ONNX list of denotations.
    #[prost(string, optional, tag = "3")]
    pub denotation: Option<String>,
}

/// A known extent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DimensionValue {
    /// A number.
    #[prost(int64, tag = "1")]
    DimValue(i64),
    /// A symbol; equal symbols denote equal extents.
    #[prost(string, tag = "2")]
    DimParam(String),
}

/// An operator set and its version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OperatorSetIdProto {
    /// Domain; empty for the standard operators.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// Version of the operator set.
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StringStringEntryProto {
    /// Key of the entry.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// Value of the entry.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// Quantisation parameters of a value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorAnnotation {
    /// Name of the value.
    #[prost(string, optional, tag = "1")]
    pub tensor_name: Option<String>,
    /// Names of the tensors that hold scale and zero point.
    #[prost(message, repeated, tag = "2")]
    pub quant_parameter_tensor_names: Vec<StringStringEntryProto>,
}

/// The training of a model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrainingInfoProto {
    /// Graph that initializes the training.
    #[prost(message, optional, tag = "1")]
    pub initialization: Option<GraphProto>,
    /// Graph of one training step.
    #[prost(message, optional, tag = "2")]
    pub algorithm: Option<GraphProto>,
    /// Initializers that `initialization` sets.
    #[prost(message, repeated, tag = "3")]
    pub initialization_binding: Vec<StringStringEntryProto>,
    /// Initializers that `algorithm` changes.
    #[prost(message, repeated, tag = "4")]
    pub update_binding: Vec<StringStringEntryProto>,
}

/// A function: an operator defined by other nodes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FunctionProto {
    /// Name of the function.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Formal inputs.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Formal outputs.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Attributes without a default.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// Attributes with a default.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// Nodes of the body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// Free text for people.
    #[prost(string, optional, tag = "8")]
    pub doc_string: Option<String>,
    /// Operator sets that the body uses.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Domain of the function.
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Overload of the name.
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
    /// Types of values in the body.
    #[prost(message, repeated, tag = "12")]
    pub value_info: Vec<ValueInfoProto>,
    /// Named strings about the function.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}
