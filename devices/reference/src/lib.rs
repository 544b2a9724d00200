//! Computes ONNX operators exactly, each in its own element types, in plain Rust. The functions are
//! called reference kernels.
//!
//! The CPU device runs the operators here that its engine, rten, lacks or whose results rten would
//! change. The kernels compute floats in 64 bits and round once, to the type of the result; they
//! compute integers in 128 bits and wrap them to their type; and they move other elements as bytes.
//! Speed is secondary here, because rten runs every operator that it can.
//!
//! ```
//! use souk_memory::Tensor;
//! use souk_onnx::NodeProto;
//!
//! let node = NodeProto {
//!     op_type: Some("Add".to_owned()),
//!     input: vec!["a".to_owned(), "b".to_owned()],
//!     output: vec!["sum".to_owned()],
//!     ..NodeProto::default()
//! };
//! let a = Tensor::from_vec([2], vec![i8::MAX, 1])?;
//! let b = Tensor::from_vec([2], vec![1i8, 1])?;
//! let mut scope = [("a".to_owned(), a), ("b".to_owned(), b)].into();
//! souk_reference::run_nodes(&[node], &mut scope, 17)?;
//! // Integers wrap to their type, as ONNX has them.
//! assert_eq!(scope["sum"].to_vec::<i8>()?, [i8::MIN, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
pub mod call;
pub mod control;
pub mod conv;
mod deform;
mod elementwise;
mod encoder;
mod error;
pub mod extents;
mod functions;
mod gather;
mod generate;
mod layout;
mod linear;
mod lists;
mod loss;
mod narrow;
mod norm;
mod pool;
mod products;
mod quantize;
pub mod random;
mod random_operators;
mod recurrent;
mod reduce;
mod resize;
mod routed_matmul;
pub mod shape;
mod signal;
mod sort;
mod svm;
mod table;
pub mod trees;
mod value;
mod vision;

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::subgraph::{Unsupported, UnsupportedReason, node_name};
use souk_vocabulary::processor::RunError;

use call::{Call, Results};
use table::kernel_entry;

/// Returns the elements of a tensor as 64-bit floats.
///
/// # Errors
/// [`call::KernelError`] if the elements are not numbers.
pub fn to_floats(tensor: &Tensor) -> Result<Vec<f64>, call::KernelError> {
    value::to_floats(tensor)
}

/// Values in scope, by name.
pub type Scope = BTreeMap<String, Tensor>;

/// Returns whether an operator with this name has a kernel.
pub fn is_known(node: &NodeProto) -> bool {
    kernel_entry(node).is_some()
}

/// Checks that a node can run with inputs and outputs of these types.
fn check_node(node: &NodeProto, types: &BTreeMap<String, DType>) -> Result<(), UnsupportedReason> {
    let entry = kernel_entry(node).ok_or(UnsupportedReason::Operator)?;
    let names = node
        .input
        .iter()
        .chain(&node.output)
        .filter(|name| !name.is_empty());
    for dtype in names.filter_map(|name| types.get(name)) {
        if !entry.classes.contains(*dtype) {
            return Err(UnsupportedReason::DType(*dtype));
        }
    }
    (entry.check)(node)
}

/// Checks that a node, and every node of the graphs within it, can run.
pub fn check_deep(node: &NodeProto, types: &BTreeMap<String, DType>) -> Result<(), Unsupported> {
    check_node(node, types).map_err(|reason| Unsupported::new(node, reason))?;
    for body in node.subgraphs() {
        let inner = souk_onnx::types::body_types(node, body, types)
            .map_err(|_| Unsupported::new(node, UnsupportedReason::UnknownDType))?;
        body.node
            .iter()
            .try_for_each(|node| check_deep(node, &inner))?;
    }
    Ok(())
}

/// Runs nodes in order, and adds their outputs to the scope, which must already contain all other
/// values that they read.
///
/// # Errors
/// [`RunError`] of the first node that fails.
pub fn run_nodes(nodes: &[NodeProto], scope: &mut Scope, opset: i64) -> Result<(), RunError> {
    run_freeing(nodes, &[], scope, opset)
}

/// Runs nodes in order, adds their outputs to the scope, and removes after each node the values
/// that `freed` lists for it. A later node must not read such a value, because it would take the
/// value for an absent input.
///
/// # Errors
/// [`RunError`] of the first node that fails.
pub fn run_freeing(
    nodes: &[NodeProto],
    freed: &[Vec<String>],
    scope: &mut Scope,
    opset: i64,
) -> Result<(), RunError> {
    for (index, node) in nodes.iter().enumerate() {
        let outputs = run_node(node, scope, opset)?;
        for (name, tensor) in node.output.iter().zip(outputs) {
            if !name.is_empty() {
                scope.insert(name.clone(), tensor);
            }
        }
        for name in freed.get(index).into_iter().flatten() {
            scope.remove(name);
        }
    }
    Ok(())
}

fn run_node(node: &NodeProto, scope: &Scope, opset: i64) -> Result<Vec<Tensor>, RunError> {
    let failed = |reason: String| RunError::Operator {
        operator: node.op_type().to_owned(),
        node: node_name(node),
        reason,
    };
    let entry = kernel_entry(node).ok_or_else(|| failed("no such kernel".to_owned()))?;
    let inputs = node
        .input
        .iter()
        .map(|name| scope.get(name).cloned())
        .collect();
    let call = Call {
        node,
        inputs,
        scope,
        opset,
    };
    let outputs: Results = (entry.run)(&call);
    outputs.map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests;
