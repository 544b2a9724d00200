//! Infers the outputs of `RoutedMatMul`, souk's own operator for mixtures of experts. It multiplies
//! each row by a few matrices of a stack; another input names these matrices for each row.

use super::{Fact, Operation};

/// Infers `RoutedMatMul`: a row of products for each choice of each row.
pub(super) fn infer_routed(operation: &Operation<'_>) -> Vec<Fact> {
    let columns = operation
        .input_dims(1)
        .and_then(|dims| dims.get(1).copied());
    let dims = operation
        .input_dims(2)
        .zip(columns)
        .map(|(choices, columns)| {
            let mut dims = choices.clone();
            dims.push(columns);
            dims
        });
    vec![Fact {
        elem: operation.result_elem(),
        dims,
        ..Fact::default()
    }]
}

#[cfg(test)]
mod tests {
    use souk_onnx::custom::DOMAIN;
    use souk_onnx::routing::OPERATOR;
    use souk_onnx::{DataType, NodeProto};

    use super::super::{Scope, infer_outputs};
    use super::*;

    #[test]
    fn each_choice_has_the_columns_of_an_expert() {
        let node = NodeProto {
            domain: Some(DOMAIN.to_owned()),
            ..NodeProto::for_operator(OPERATOR, &["x", "experts", "choices"], "y")
        };
        let float = |dims: &[u64]| {
            let dims = dims.iter().map(|&size| Some(size)).collect();
            Fact::new_tensor(Some(DataType::Float), dims)
        };
        let rows = float(&[1, 5, 8]);
        let experts = float(&[6, 16, 8]);
        let choices = Fact::new_tensor(Some(DataType::Int64), vec![Some(1), None, Some(2)]);
        let inputs = [Some(&rows), Some(&experts), Some(&choices)];
        let made = infer_outputs(&node, 24, &inputs, &Scope::default()).unwrap();
        let dims = vec![Some(1), None, Some(2), Some(16)];
        assert_eq!(made, [Fact::new_tensor(Some(DataType::Float), dims)]);
        let unknown = infer_outputs(
            &node,
            24,
            &[Some(&rows), None, Some(&choices)],
            &Scope::default(),
        );
        assert_eq!(unknown.unwrap()[0].dims, None);
    }
}
