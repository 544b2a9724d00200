//! Replaces nodes whose values are known before the run (`Constant` nodes and chains of shape
//! arithmetic) by constants during the import of a model.

use bytes::Bytes;
use souk_onnx::{DataType, NodeProto, TensorProto};

use super::shape::data_type_width;
use super::{Value, Weight};

/// Returns the tensor of a `Constant` node under the name of its output.
pub(super) fn constant_node(proto: &NodeProto) -> Option<TensorProto> {
    if proto.op_type() != "Constant" || !proto.operator_domain().is_empty() {
        return None;
    }
    let attribute = proto.attribute.first()?;
    let mut tensor = TensorProto::default();
    let count = |length: usize| vec![i64::try_from(length).expect("a list in memory")];
    match attribute.name() {
        "value" => tensor = attribute.t.clone()?,
        "value_float" => {
            tensor.data_type = Some(DataType::Float as i32);
            tensor.float_data = vec![attribute.f()];
        }
        "value_floats" => {
            tensor.data_type = Some(DataType::Float as i32);
            tensor.dims = count(attribute.floats.len());
            tensor.float_data.clone_from(&attribute.floats);
        }
        "value_int" => {
            tensor.data_type = Some(DataType::Int64 as i32);
            tensor.int64_data = vec![attribute.i()];
        }
        "value_ints" => {
            tensor.data_type = Some(DataType::Int64 as i32);
            tensor.dims = count(attribute.ints.len());
            tensor.int64_data.clone_from(&attribute.ints);
        }
        // Strings and sparse tensors stay nodes.
        _ => return None,
    }
    tensor.name = proto.output.first().cloned();
    Some(tensor)
}

/// Returns a value as a constant, if its contents are known integers.
pub(super) fn known_constant(value: &Value) -> Option<Weight> {
    let elem = value.fact.elem?;
    let ints = value.fact.ints.as_ref()?;
    let width = match elem {
        DataType::Int64 | DataType::Int32 | DataType::Bool => data_type_width(elem)?,
        _ => return None,
    };
    let dims: Option<Vec<i64>> = value
        .fact
        .dims
        .as_ref()?
        .iter()
        .map(|dim| i64::try_from((*dim)?).ok())
        .collect();
    let raw: Vec<u8> = ints
        .iter()
        .flat_map(|int| int.to_le_bytes().into_iter().take(width))
        .collect();
    let proto = TensorProto {
        dims: dims?,
        data_type: Some(elem as i32),
        name: Some(value.name.clone()),
        ..TensorProto::default()
    };
    // Known contents are at most Fact::CONTENTS_MAX integers, which always travel in the graph.
    let byte_length = raw.len() as u64;
    Some(Weight {
        proto,
        id: None,
        bytes: Some(Bytes::from(raw)),
        file: None,
        byte_length,
    })
}
