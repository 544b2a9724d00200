//! Infers the outputs of a buyer's own operators (kernels that the model contains) from the
//! declarations in their nodes.

use souk_onnx::custom::{Size, output_shapes, output_types};

use super::{Dims, Fact, Operation, data_type};

/// Returns the facts of the outputs as far as the node declares them; the compiler refuses wrong
/// declarations.
pub(super) fn infer_custom(operation: &Operation<'_>) -> Vec<Fact> {
    let node = operation.node;
    let types = output_types(node).unwrap_or_default();
    let shapes = output_shapes(node).ok().flatten().unwrap_or_default();
    let known = |size: Size| match size {
        Size::Fixed(size) => Some(size),
        // The first input of the node is the kernel itself, not one of its tensors.
        Size::Of { tensor, axis } => {
            let dims = operation.input_dims(tensor.checked_add(1)?);
            dims.and_then(|dims| dims.get(axis).copied().flatten())
        }
    };
    let fact = |index: usize| Fact {
        elem: types
            .get(index)
            .and_then(|dtype| data_type(dtype.onnx_code())),
        dims: shapes
            .get(index)
            .map(|sizes| sizes.iter().map(|&size| known(size)).collect::<Dims>()),
        ..Fact::default()
    };
    (0..node.output.len()).map(fact).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_onnx::custom::DOMAIN;
    use souk_onnx::{AttributeProto, DataType, NodeProto};

    use super::*;

    #[test]
    fn shapes_follow_from_what_the_node_says_of_its_tensors() {
        let node = NodeProto {
            op_type: Some("Wasm".to_owned()),
            domain: Some(DOMAIN.to_owned()),
            input: vec!["kernel".to_owned(), "x".to_owned()],
            output: vec!["y".to_owned()],
            attribute: vec![
                AttributeProto {
                    name: Some("output_types".to_owned()),
                    ints: vec![1],
                    ..AttributeProto::default()
                },
                AttributeProto {
                    name: Some("output_shapes".to_owned()),
                    strings: vec![Bytes::from_static(b"i0.1,5,i0.0,i7.0")],
                    ..AttributeProto::default()
                },
            ],
            ..NodeProto::default()
        };
        let kernel = Fact::new_tensor(Some(DataType::Uint8), vec![Some(99)]);
        let given = Fact::new_tensor(Some(DataType::Float), vec![Some(2), None]);
        let inputs = [Some(&kernel), Some(&given)];
        let facts = infer_custom(&Operation::new(&node, 21, &inputs));
        let dims = vec![None, Some(5), Some(2), None];
        assert_eq!(facts, [Fact::new_tensor(Some(DataType::Float), dims)]);
    }
}
