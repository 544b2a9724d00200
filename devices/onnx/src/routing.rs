//! Defines `RoutedMatMul`, an operator of souk's own (domain `ai.souk`) for mixtures of experts: it
//! multiplies each row by only some of several matrices, which a router chooses for that row.
//!
//! ONNX has no operator that skips the other matrices. The inputs are `x`, `[.., rows, depth]` or,
//! if each choice has a row of its own, `[.., rows, choices, depth]`; the matrices, `[experts,
//! columns, depth]`; and the experts of each row, `[.., rows, choices]`, which must be integers
//! from 0 to below the number of experts. The output is `[.., rows, choices, columns]`: for each
//! row and choice the product with that expert's matrix, whose rows are the result's columns.

use crate::NodeProto;
use crate::custom::DOMAIN;

/// Name of the operator.
pub const OPERATOR: &str = "RoutedMatMul";

/// Returns whether a node is a `RoutedMatMul`.
#[must_use]
pub fn is_routed(node: &NodeProto) -> bool {
    (node.operator_domain(), node.op_type()) == (DOMAIN, OPERATOR)
}
