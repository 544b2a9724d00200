//! Products with some of several matrices: those that each row is routed to.
//!
//! Mixtures of experts multiply each row by a few of many matrices, and ONNX has no operator that
//! leaves the others alone. So souk has one, `RoutedMatMul` of the domain `ai.souk`. Its inputs are
//! `x`, `[.., rows, depth]` or, where each choice has a row of its own, `[.., rows, choices,
//! depth]`; the matrices, `[experts, columns, depth]`; and the experts of each row,
//! `[.., rows, choices]`, whole numbers from 0 to below the experts. Its output is
//! `[.., rows, choices, columns]`: for each row and choice the product with that expert's matrix,
//! whose rows are the result's columns.

use crate::NodeProto;
use crate::custom::DOMAIN;

/// The operator.
pub const OPERATOR: &str = "RoutedMatMul";

/// Whether a node multiplies rows by matrices that they are routed to.
#[must_use]
pub fn is_routed(node: &NodeProto) -> bool {
    (node.operator_domain(), node.op_type()) == (DOMAIN, OPERATOR)
}
