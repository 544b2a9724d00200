//! Reads the tensor that a `Constant` node states in one of its attributes. `graph.rs` treats such
//! a node as a weight, and the expansion learns sizes and indices from it.

use souk_memory::Tensor;

use crate::{NodeProto, tensor_from_proto};

/// Returns the value of a `Constant`, if it is a tensor of a known element type. Another operator
/// has none, whatever its attributes: `ConstantOfShape` has a `value` too.
#[must_use]
pub fn constant_value(node: &NodeProto) -> Option<Tensor> {
    if node.op_type() != "Constant" {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::AttributeProto;

    #[test]
    fn only_a_constant_has_a_value() {
        let mut node = NodeProto {
            op_type: Some("Constant".to_owned()),
            attribute: vec![AttributeProto {
                name: Some("value_int".to_owned()),
                i: Some(5),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        };
        assert_eq!(constant_value(&node), Some(Tensor::scalar(5i64)));
        node.op_type = Some("ConstantOfShape".to_owned());
        assert_eq!(constant_value(&node), None);
    }
}
