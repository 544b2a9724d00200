//! A model made ready for an engine: weights bound, ports known, the type of every value inferred.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Shape, Tensor};

use crate as onnx;
use crate::subgraph::{CompileError, Port, Subgraph, weight_id};
use crate::types::{self, Types};
use crate::{DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

/// The standard operator set assumed when a model states none: the first.
const OPSET_DEFAULT: i64 = 1;

/// A model whose weights are at hand.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The model without the values of its initializers.
    pub model: ModelProto,
    /// Version of the standard operator set.
    pub opset: i64,
    /// Initializers by name.
    pub weights: BTreeMap<String, Tensor>,
    /// Inputs that are no initializers.
    pub inputs: Vec<Port>,
    /// Outputs, of the types inferred.
    pub outputs: Vec<Port>,
    /// Element type of every value.
    pub dtypes: BTreeMap<String, DType>,
}

impl Graph {
    /// Decodes a model and binds its weights.
    ///
    /// # Errors
    /// [`CompileError`]: what is malformed or missing, by name.
    pub fn bind(subgraph: &Subgraph) -> Result<Self, CompileError> {
        let mut model = subgraph.decoded()?;
        let opset = model.opset("").unwrap_or(OPSET_DEFAULT);
        let graph = model.graph.get_or_insert_default();
        let mut weights = BTreeMap::new();
        for initializer in std::mem::take(&mut graph.initializer) {
            let tensor = weight(&initializer, &subgraph.weights)?;
            weights.insert(initializer.name().to_owned(), tensor);
        }
        // Constants among the nodes are weights by another name.
        for node in std::mem::take(&mut graph.node) {
            match constant(&node) {
                Some((name, tensor)) => {
                    weights.insert(name, tensor);
                }
                None => graph.node.push(node),
            }
        }
        let is_input = |value: &&ValueInfoProto| !weights.contains_key(value.name());
        let inputs: Result<Vec<_>, _> = graph.input.iter().filter(is_input).map(port).collect();
        let mut bound = Self {
            opset,
            weights,
            inputs: inputs?,
            outputs: Vec::new(),
            dtypes: BTreeMap::new(),
            model,
        };
        bound.dtypes = bound.types()?;
        bound.outputs = bound.output_ports()?;
        Ok(bound)
    }

    /// The graph itself.
    #[must_use]
    pub fn graph(&self) -> &GraphProto {
        self.model
            .graph
            .as_ref()
            .expect("decode refuses a model without a graph")
    }

    /// Its nodes, in an order in which they may run.
    #[must_use]
    pub fn nodes(&self) -> &[NodeProto] {
        &self.graph().node
    }

    /// The type of every value.
    fn types(&self) -> Result<Types, CompileError> {
        let inputs = self.inputs.iter().map(|port| (&port.name, port.dtype));
        let weights = self.weights.iter();
        let weights = weights.map(|(name, weight)| (name, weight.dtype()));
        let known = inputs.chain(weights);
        let mut types = known.map(|(name, dtype)| (name.clone(), dtype)).collect();
        types::infer_nodes(self.graph(), &mut types)?;
        Ok(types)
    }

    /// Outputs, of the type inferred: a declared one may be missing or wrong.
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
                dims: dims(value),
            })
        };
        self.graph().output.iter().map(output).collect()
    }
}

/// The name and value of a constant that is a tensor of a known element type.
fn constant(node: &NodeProto) -> Option<(String, Tensor)> {
    if node.op_type() != "Constant" || !node.operator_domain().is_empty() {
        return None;
    }
    let name = node.output.first()?.clone();
    Some((name, detached(&crate::constant::constant(node)?)))
}

/// The values of an initializer, in the model or among the weights given.
fn weight(
    initializer: &TensorProto,
    weights: &BTreeMap<ContentId, Bytes>,
) -> Result<Tensor, CompileError> {
    let name = || initializer.name().to_owned();
    let Some(location) = onnx::location(initializer) else {
        return Ok(detached(&onnx::tensor_from_proto(initializer)?));
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

/// The tensor in memory of its own: aligned for every element type, which a file's contents are
/// not, and letting go of the file, which one weight within it would keep in memory whole.
fn detached(tensor: &Tensor) -> Tensor {
    let bytes = Bytes::copy_from_slice(tensor.bytes());
    let moved = Tensor::new(tensor.dtype(), tensor.shape().clone(), bytes);
    moved.expect("the same bytes in another place")
}

/// The port a model declares.
fn port(value: &ValueInfoProto) -> Result<Port, CompileError> {
    let name = value.name().to_owned();
    let declared = value.tensor_type().map(|tensor| tensor.elem_type());
    match declared.map(DType::from_onnx_code) {
        Some(Ok(dtype)) => Ok(Port {
            name,
            dtype,
            dims: dims(value),
        }),
        _ => Err(CompileError::Port { name }),
    }
}

/// The sizes a model declares; `None` when it does not state how many there are.
fn dims(value: &ValueInfoProto) -> Option<Vec<Option<usize>>> {
    let shape = value.tensor_type()?.shape.as_ref()?;
    let size = |dim: &onnx::Dimension| match &dim.value {
        // Exporters write 0 for a size that is left open, as they do -1.
        Some(DimensionValue::DimValue(size)) => usize::try_from(*size).ok().filter(|&it| it > 0),
        _ => None,
    };
    Some(shape.dim.iter().map(size).collect())
}

/// Names of values a node reads, those its inner graphs read included.
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
