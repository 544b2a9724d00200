//! Infers the element type of every value in a graph from its inputs and operators.
//!
//! Engines that compute in fewer types than ONNX must know which values they would change. ONNX
//! models need not declare the types of values inside the graph, so this module infers them.

use std::collections::BTreeMap;

use souk_memory::DType;

use crate::custom::{self, Custom, CustomError};
use crate::schema::OperatorSchema;
use crate::subgraph::{CompileError, Unsupported, UnsupportedReason, node_name};
use crate::{GraphProto, NodeProto, tensor_from_proto};

/// Types of values by name.
pub type Types = BTreeMap<String, DType>;

/// Adds the types of a graph's node outputs to `types`, which must already contain those of its
/// inputs and weights.
///
/// # Errors
/// [`CompileError`] if a node reads a value that does not exist, or its types cannot be inferred.
pub fn infer_nodes(graph: &GraphProto, types: &mut Types) -> Result<(), CompileError> {
    for node in &graph.node {
        let used = node.input.iter().filter(|name| !name.is_empty());
        if let Some(missing) = used.into_iter().find(|name| !types.contains_key(*name)) {
            return Err(dangling_error(node, missing));
        }
        let outputs = output_types(node, types)?;
        for (name, dtype) in node.output.iter().zip(outputs) {
            if !name.is_empty() {
                types.insert(name.clone(), dtype);
            }
        }
    }
    Ok(())
}

/// Returns the types of all outputs of a node.
fn output_types(node: &NodeProto, types: &Types) -> Result<Vec<DType>, CompileError> {
    let count = node.output.len();
    if Custom::from_node(node).is_some() {
        let stated = custom::output_types(node);
        let refused = |error: CustomError| UnsupportedReason::Engine(error.to_string());
        return stated.map_err(|error| Unsupported::new(node, refused(error)).into());
    }
    if matches!(node.op_type(), "If" | "Loop" | "Scan" | "SequenceMap") {
        return control_flow(node, types);
    }
    let unknown = || Unsupported::new(node, UnsupportedReason::UnknownDType);
    let first = first_type(node, types).ok_or_else(unknown)?;
    let others = other_type(node, types, first);
    let outputs = (0..count).map(|index| {
        if index == 0 {
            first
        } else {
            others[index.min(3)]
        }
    });
    Ok(outputs.collect())
}

/// Returns the type of the first output.
pub(crate) fn first_type(node: &NodeProto, types: &Types) -> Option<DType> {
    let input = |index| types.get(node.input_name(index)?).copied();
    let known = |code| DType::from_onnx_code(code).ok();
    let result = OperatorSchema::for_operator(node.op_type()).result;
    result.output_type(node, input, known)
}

/// Returns the types of the outputs after the first, at their index; the last also applies to all
/// that follow.
fn other_type(node: &NodeProto, types: &Types, first: DType) -> [DType; 4] {
    let input = |index| {
        node.input_name(index)
            .and_then(|name| types.get(name))
            .copied()
    };
    match node.op_type() {
        "TopK" | "MaxPool" | "Unique" => [first, DType::I64, DType::I64, DType::I64],
        "Dropout" => [first, DType::Bool, DType::Bool, DType::Bool],
        "DynamicQuantizeLinear" => [first, DType::F32, DType::U8, DType::U8],
        "SVMClassifier" => [first, DType::F32, DType::F32, DType::F32],
        "LayerNormalization" => [first, DType::F32, DType::F32, DType::F32],
        "BatchNormalization" => {
            let statistics = input(3).unwrap_or(first);
            [first, statistics, statistics, statistics]
        }
        "Attention" => {
            let key = input(1).unwrap_or(first);
            [first, key, input(2).unwrap_or(first), first]
        }
        _ => [first; 4],
    }
}

/// Returns the output types of a node with bodies: those of its body's outputs.
fn control_flow(node: &NodeProto, types: &Types) -> Result<Vec<DType>, CompileError> {
    let unknown = || Unsupported::new(node, UnsupportedReason::UnknownDType);
    let body = node.subgraphs().next().ok_or_else(unknown)?;
    let inner = body_types(node, body, types)?;
    // The first output of a loop's body is its condition, which is not an output of the loop.
    let skip = usize::from(node.op_type() == "Loop");
    let outputs = body.output.iter().skip(skip).take(node.output.len());
    outputs
        .map(|output| {
            inner
                .get(output.name())
                .copied()
                .ok_or_else(|| unknown().into())
        })
        .collect()
}

/// Returns the types of all values that a node's body reads or makes.
pub fn body_types(
    node: &NodeProto,
    body: &GraphProto,
    types: &Types,
) -> Result<Types, CompileError> {
    let mut inner = types.clone();
    for initializer in &body.initializer {
        inner.insert(
            initializer.name().to_owned(),
            tensor_from_proto(initializer)?.dtype(),
        );
    }
    let given = node.input.iter().map(|name| types.get(name).copied());
    let given: Vec<Option<DType>> = match node.op_type() {
        "Loop" => [Some(DType::I64), Some(DType::Bool)]
            .into_iter()
            .chain(given.skip(2))
            .collect(),
        _ => given.collect(),
    };
    for (input, given) in body.input.iter().zip(given) {
        let declared = input.tensor_type().map(|tensor| tensor.elem_type());
        let declared = declared.and_then(|code| DType::from_onnx_code(code).ok());
        if let Some(dtype) = given.or(declared) {
            inner.insert(input.name().to_owned(), dtype);
        }
    }
    infer_nodes(body, &mut inner)?;
    Ok(inner)
}

/// Returns the error for a node that reads a value that does not exist.
fn dangling_error(node: &NodeProto, value: &str) -> CompileError {
    CompileError::Dangling {
        node: node_name(node),
        value: value.to_owned(),
    }
}
