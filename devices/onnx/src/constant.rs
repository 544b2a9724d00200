//! `Constant` nodes, which serve as weights.

use souk_memory::Tensor;

use crate::{NodeProto, tensor_from_proto};

/// Returns the value of a `Constant`, if it is a tensor of a known element type. The caller must
/// check the operator first, because other operators can have attributes of the same names.
#[must_use]
pub fn constant_value(node: &NodeProto) -> Option<Tensor> {
    if let Some(value) = node.tensor("value") {
        return tensor_from_proto(value).ok();
    }
    if let Some(value) = node.float("value_float") {
        return Some(Tensor::scalar(value));
    }
    if let Some(value) = node.int("value_int") {
        return Some(Tensor::scalar(value));
    }
    if let Some(values) = node.floats("value_floats").filter(|it| !it.is_empty()) {
        return Tensor::from_vec([values.len()], values.to_vec()).ok();
    }
    let values = node.ints("value_ints")?;
    Tensor::from_vec([values.len()], values.to_vec()).ok()
}
