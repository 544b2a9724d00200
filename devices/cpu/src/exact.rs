//! Implements `exact-1`, a provider's promise that results have the same bits on every machine:
//! checks that a graph has only exact operators, and gives the results one form of NaN and zero.
//!
//! Buyers can accuse a provider that promises `exact-1` of a single wrong element, because every
//! validator computes the same bits (decision 0050).
//! An exact program runs convolutions and the operators around them on the kernels for images,
//! which add up each element by fused multiply-adds in ascending depth at every width of vectors.
//! It runs all other operators on the reference kernels, whose order is fixed too. rten, ONNX
//! Runtime and the C library's functions have no part in it.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{Unsupported, UnsupportedReason};

/// The operators of `exact-1`, all of ONNX's own domain. A division would tell the two zeros
/// apart; exponentials and powers are the C library's.
pub const EXACT_OPERATORS: [&str; 22] = [
    "Add",
    "AveragePool",
    "BatchNormalization",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "Flatten",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "MatMul",
    "MaxPool",
    "Mul",
    "Relu",
    "Reshape",
    "Squeeze",
    "Sub",
    "Sum",
    "Transpose",
    "Unsqueeze",
];

/// The element types in which they are exact.
const EXACT_DTYPES: [DType; 3] = [DType::F32, DType::I32, DType::I64];

/// The bits of the only NaN in an exact result.
const CANONICAL_NAN: u32 = 0x7fc0_0000;

/// Returns whether a node is one of `exact-1` by its name, in types that are exact.
#[must_use]
pub fn is_exact_operator(node: &NodeProto) -> bool {
    node.operator_domain().is_empty() && EXACT_OPERATORS.contains(&node.op_type())
}

/// Checks that all nodes of a graph are exact.
///
/// # Errors
/// The first node that is none of `exact-1`, or has values of a type in which it is not exact.
pub(super) fn check_exact(graph: &Graph) -> Result<(), Unsupported> {
    for node in graph.nodes() {
        if !is_exact_operator(node) {
            return Err(Unsupported::new(node, UnsupportedReason::Inexact));
        }
        let names = node.input.iter().chain(&node.output);
        let dtypes = names.filter_map(|name| graph.dtypes.get(name));
        if let Some(dtype) = dtypes.into_iter().find(|it| !EXACT_DTYPES.contains(it)) {
            let reason = UnsupportedReason::DType(*dtype);
            return Err(Unsupported::new(node, reason));
        }
    }
    Ok(())
}

/// Gives every NaN among the outputs the same bits, and every zero the same sign: processors differ
/// in which NaN and which zero they return.
pub(super) fn canonicalise_outputs(outputs: &mut BTreeMap<String, Tensor>) {
    for tensor in outputs.values_mut() {
        let Ok(values) = tensor.elements::<f32>() else {
            continue;
        };
        if values.iter().all(|value| is_canonical(*value)) {
            continue;
        }
        let values: Vec<f32> = values.iter().map(|value| to_canonical(*value)).collect();
        let canonical = Tensor::from_vec(tensor.dims(), values);
        *tensor = canonical.expect("it has as many elements as before");
    }
}

fn to_canonical(value: f32) -> f32 {
    match value {
        value if value.is_nan() => f32::from_bits(CANONICAL_NAN),
        0.0 => 0.0,
        value => value,
    }
}

fn is_canonical(value: f32) -> bool {
    to_canonical(value).to_bits() == value.to_bits()
}

#[cfg(test)]
mod tests;
