//! Products of rows with some of several matrices, which a router chooses for each row.
//!
//! Mixtures of experts multiply each row by a few of many matrices, and ONNX has no operator that
//! skips the other matrices. So souk defines `RoutedMatMul` in the domain `ai.souk`. Its inputs are
//! `x`, `[.., rows, depth]` or, if each choice has a row of its own, `[.., rows, choices, depth]`;
//! the matrices, `[experts, columns, depth]`; and the experts of each row, `[.., rows, choices]`,
//! which must be integers from 0 to below the number of experts. Its output is `[.., rows, choices,
//! columns]`: for each row and choice the product with that expert's matrix, whose rows are the
//! result's columns.

use crate::NodeProto;
use crate::custom::DOMAIN;

/// Name of the operator.
pub const OPERATOR: &str = "RoutedMatMul";

/// Returns whether a node is a `RoutedMatMul`.
#[must_use]
pub fn is_routed(node: &NodeProto) -> bool {
    (node.operator_domain(), node.op_type()) == (DOMAIN, OPERATOR)
}
