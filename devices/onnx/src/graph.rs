//! Prepares a model for an engine: reads its weights and its inputs and outputs, and infers the
//! element type of every value. The CPU's engines and ONNX Runtime's backend start from a
//! [`Graph`].

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Shape, Tensor};

use crate as onnx;
use crate::subgraph::{CompileError, Port, Subgraph, weight_id};
use crate::types::{self, Types};
use crate::{DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

/// The standard operator set of a model that states none: the first.
const OPSET_DEFAULT: i64 = 1;

/// A model that is ready for an engine: its nodes, its weights, its inputs and outputs, and the
/// element type of each value.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The model without the values of its initializers.
    pub model: ModelProto,
    /// Version of the standard operator set.
    pub opset: i64,
    /// Initializers by name.
    pub weights: BTreeMap<String, Tensor>,
    /// Inputs that are not initializers.
    pub inputs: Vec<Port>,
    /// Outputs, with their inferred types.
    pub outputs: Vec<Port>,
    /// Element type of every value.
    pub dtypes: BTreeMap<String, DType>,
}

impl Graph {
    /// Decodes a model and binds its weights, which must include each external one that the model
    /// refers to.
    ///
    /// # Errors
    /// [`CompileError`], with the name of the malformed or missing part.
    pub fn from_subgraph(subgraph: &Subgraph) -> Result<Self, CompileError> {
        let mut model = subgraph.decode_model()?;
        let opset = model.opset("").unwrap_or(OPSET_DEFAULT);
        let graph = model.graph.get_or_insert_default();
        let mut weights = BTreeMap::new();
        for initializer in std::mem::take(&mut graph.initializer) {
            let tensor = load_weight(&initializer, &subgraph.weights)?;
            weights.insert(initializer.name().to_owned(), tensor);
        }
        // `Constant` nodes serve as weights.
        for node in std::mem::take(&mut graph.node) {
            match named_constant(&node) {
                Some((name, tensor)) => {
                    weights.insert(name, tensor);
                }
                None => graph.node.push(node),
            }
        }
        let is_input = |value: &&ValueInfoProto| !weights.contains_key(value.name());
        let inputs: Result<Vec<_>, _> = graph
            .input
            .iter()
            .filter(is_input)
            .map(declared_port)
            .collect();
        let mut bound = Self {
            opset,
            weights,
            inputs: inputs?,
            outputs: Vec::new(),
            dtypes: BTreeMap::new(),
            model,
        };
        bound.dtypes = bound.infer_types()?;
        bound.outputs = bound.output_ports()?;
        Ok(bound)
    }

    /// Returns the model's graph.
    #[must_use]
    pub fn graph_proto(&self) -> &GraphProto {
        self.model
            .graph
            .as_ref()
            .expect("decode refuses a model without a graph")
    }

    /// Returns its nodes, each after those it depends on.
    #[must_use]
    pub fn nodes(&self) -> &[NodeProto] {
        &self.graph_proto().node
    }

    /// Infers the type of every value.
    fn infer_types(&self) -> Result<Types, CompileError> {
        let inputs = self.inputs.iter().map(|port| (&port.name, port.dtype));
        let weights = self.weights.iter();
        let weights = weights.map(|(name, weight)| (name, weight.dtype()));
        let known = inputs.chain(weights);
        let mut types = known.map(|(name, dtype)| (name.clone(), dtype)).collect();
        types::infer_nodes(self.graph_proto(), &mut types)?;
        Ok(types)
    }

    /// Returns the outputs with their inferred types, because a declared type can be missing or
    /// wrong.
    fn output_ports(&self) -> Result<Vec<Port>, CompileError> {
        let output = |value: &ValueInfoProto| {
            let name = value.name().to_owned();
            let dtype = *self
                .dtypes
                .get(&name)
                .ok_or_else(|| CompileError::Dangling {
                    node: "(output)".to_owned(),
                    value: name.clone(),
                })?;
            Ok(Port {
                name,
                dtype,
                dims: declared_dims(value),
            })
        };
        self.graph_proto().output.iter().map(output).collect()
    }
}

/// Returns the name and value of a constant, if it is a tensor of a known element type.
fn named_constant(node: &NodeProto) -> Option<(String, Tensor)> {
    if node.op_type() != "Constant" || !node.operator_domain().is_empty() {
        return None;
    }
    let name = node.output.first()?.clone();
    Some((name, copy_tensor(&crate::constant::constant_value(node)?)))
}

/// Returns the values of an initializer, from the model or from `weights`.
fn load_weight(
    initializer: &TensorProto,
    weights: &BTreeMap<ContentId, Bytes>,
) -> Result<Tensor, CompileError> {
    let name = || initializer.name().to_owned();
    let Some(location) = onnx::external_location(initializer) else {
        return Ok(copy_tensor(&onnx::tensor_from_proto(initializer)?));
    };
    let place = || CompileError::WeightPlace {
        name: name(),
        location: location.to_owned(),
    };
    let id = weight_id(location).ok_or_else(place)?;
    let missing = || CompileError::WeightMissing { name: name(), id };
    let values = weights.get(&id).ok_or_else(missing)?;
    let mismatch = |cause: String| CompileError::WeightMismatch {
        name: name(),
        cause,
    };
    let dtype = DType::from_onnx_code(initializer.data_type());
    let dtype = dtype.map_err(|cause| mismatch(cause.to_string()))?;
    let shape = Shape::from_i64(&initializer.dims).map_err(|cause| mismatch(cause.to_string()))?;
    Tensor::new(dtype, shape, values.clone()).map_err(|cause| mismatch(cause.to_string()))
}

/// Copies the tensor into memory of its own. The copy is aligned for every element type, unlike a
/// file's contents, and does not keep the whole file in memory.
fn copy_tensor(tensor: &Tensor) -> Tensor {
    let bytes = Bytes::copy_from_slice(tensor.bytes());
    let moved = Tensor::new(tensor.dtype(), tensor.shape().clone(), bytes);
    moved.expect("the same bytes in another place")
}

/// Returns the port that a model declares.
fn declared_port(value: &ValueInfoProto) -> Result<Port, CompileError> {
    let name = value.name().to_owned();
    let declared = value.tensor_type().map(|tensor| tensor.elem_type());
    match declared.map(DType::from_onnx_code) {
        Some(Ok(dtype)) => Ok(Port {
            name,
            dtype,
            dims: declared_dims(value),
        }),
        _ => Err(CompileError::Port { name }),
    }
}

/// Returns the sizes that a model declares; `None` if it does not state their number.
fn declared_dims(value: &ValueInfoProto) -> Option<Vec<Option<usize>>> {
    let shape = value.tensor_type()?.shape.as_ref()?;
    let size = |dim: &onnx::Dimension| match &dim.value {
        // Exporters write 0 or -1 for an open size.
        Some(DimensionValue::DimValue(size)) => usize::try_from(*size).ok().filter(|&it| it > 0),
        _ => None,
    };
    Some(shape.dim.iter().map(size).collect())
}

/// Returns the names of the values that a node reads, including those that its inner graphs read.
#[must_use]
pub fn values_read(node: &NodeProto) -> Vec<&str> {
    let own = node
        .input
        .iter()
        .map(String::as_str)
        .filter(|name| !name.is_empty());
    let inner = node.subgraphs().flat_map(|graph| {
        let outputs = graph.output.iter().map(ValueInfoProto::name);
        graph.node.iter().flat_map(values_read).chain(outputs)
    });
    own.chain(inner).collect()
}
