//! The CPU backend in 32 bits against the same graphs computed in 64: random shapes and values.

use std::collections::BTreeMap;

use proptest::prelude::*;
use souk_memory::{DType, Tensor};

use super::tests::{cpu, model, node, subgraph};
use crate::onnx::{AttributeProto, NodeProto};
use crate::processor::Processor;

/// Relative to the largest element of inputs and result: what 32-bit sums of a few hundred terms,
/// and functions that cancel, may lose.
const TOLERANCE: f64 = 2e-5;

fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        i: Some(value),
        ..AttributeProto::default()
    });
    node
}

fn tensor(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let values = values.iter().cycle().take(count);
    match dtype {
        DType::F32 => Tensor::from_vec(dims, values.map(|&it| it as f32).collect::<Vec<_>>()),
        _ => Tensor::from_vec(
            dims,
            values.map(|&it| f64::from(it as f32)).collect::<Vec<_>>(),
        ),
    }
    .unwrap()
}

/// Runs one node on inputs of one type.
fn run(node: &NodeProto, dtype: DType, inputs: &[(Vec<usize>, Vec<f64>)]) -> Tensor {
    let named = node.input.iter().zip(inputs);
    let given: BTreeMap<String, Tensor> = named
        .map(|(name, (dims, values))| (name.clone(), tensor(dtype, dims, values)))
        .collect();
    let ports: Vec<(&str, DType)> = node
        .input
        .iter()
        .map(|name| (name.as_str(), dtype))
        .collect();
    let proto = model(vec![node.clone()], &ports, &[("y", dtype)], &[]);
    let program = cpu().compile(&subgraph(&proto)).unwrap();
    program.run(&given).unwrap().outputs.remove("y").unwrap()
}

/// Both widths agree, element by element, infinities and NaN included.
fn agrees(node: &NodeProto, inputs: &[(Vec<usize>, Vec<f64>)]) -> Result<(), TestCaseError> {
    let found = run(node, DType::F32, inputs);
    let expected = run(node, DType::F64, inputs);
    prop_assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (found.to_f64s().unwrap(), expected.to_f64s().unwrap());
    let operands = inputs.iter().flat_map(|(_, values)| values);
    let finite = expected
        .iter()
        .chain(operands)
        .copied()
        .filter(|value| value.is_finite());
    let largest = finite.fold(1e-30, |largest: f64, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        let near = (found - expected).abs() <= TOLERANCE * largest;
        prop_assert!(
            same || near,
            "{} {:?}: {found} {expected}",
            node.op_type(),
            inputs
        );
    }
    Ok(())
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-4.0..4.0, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn products_of_matrices(
        (rows, depth, columns, batch) in (1usize..9, 1usize..33, 1usize..9, 1usize..4),
        (left, right) in (values(), values()),
    ) {
        let product = node("MatMul", &["a", "b"], &["y"]);
        agrees(&product, &[(vec![batch, rows, depth], left), (vec![depth, columns], right)])?;
    }

    #[test]
    fn convolutions(
        (channels, filters, size, kernel) in (1usize..4, 1usize..5, 3usize..9, 1usize..4),
        (stride, pad) in (1i64..3, 0i64..2),
        (input, weights) in (values(), values()),
    ) {
        let mut conv = node("Conv", &["x", "w"], &["y"]);
        for (name, ints) in [("strides", vec![stride; 2]), ("pads", vec![pad; 4])] {
            let name = Some(name.to_owned());
            conv.attribute.push(AttributeProto { name, ints, ..AttributeProto::default() });
        }
        let shape = vec![2, channels, size, size];
        agrees(&conv, &[(shape, input), (vec![filters, channels, kernel, kernel], weights)])?;
    }

    #[test]
    fn pairs_with_broadcasting(
        operator in prop::sample::select(vec!["Add", "Sub", "Mul", "Div", "Max", "Min"]),
        dims in prop::collection::vec(1usize..5, 1..4),
        keep in prop::collection::vec(any::<bool>(), 3),
        (left, mut right) in (values(), values()),
    ) {
        // Quotients by almost nothing say nothing about the division.
        right.iter_mut().for_each(|value| *value += if *value < 0.0 { -0.5 } else { 0.5 });
        let other = dims.iter().zip(&keep).map(|(&size, &keep)| if keep { size } else { 1 });
        let other: Vec<usize> = other.collect();
        agrees(&node(operator, &["a", "b"], &["y"]), &[(dims, left), (other, right)])?;
    }

    #[test]
    fn functions_of_one_element(
        operator in prop::sample::select(vec![
            "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Gelu", "HardSwish", "Neg", "Relu",
            "Round", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh",
        ]),
        dims in prop::collection::vec(0usize..5, 0..4),
        input in values(),
    ) {
        agrees(&node(operator, &["x"], &["y"]), &[(dims, input)])?;
    }

    #[test]
    fn softmax_over_any_axis(
        dims in prop::collection::vec(1usize..6, 1..4),
        axis in -3i64..3,
        input in values(),
    ) {
        let rank = dims.len() as i64;
        prop_assume!(-rank <= axis && axis < rank);
        let softmax = with_int(node("Softmax", &["x"], &["y"]), "axis", axis);
        agrees(&softmax, &[(dims, input)])?;
    }

    #[test]
    fn layer_normalisation(
        (rows, length) in (1usize..5, 2usize..40),
        (input, scale, bias) in (values(), values(), values()),
    ) {
        prop_assume!(input.iter().any(|value| (value - input[0]).abs() > 0.1));
        let norm = node("LayerNormalization", &["x", "s", "b"], &["y"]);
        let inputs = [(vec![rows, length], input), (vec![length], scale), (vec![length], bias)];
        agrees(&norm, &inputs)?;
    }

    #[test]
    fn infinities_and_nan_go_on(
        operator in prop::sample::select(vec!["Add", "Max", "Min", "Mul", "Sub"]),
        special in prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
        right in values(),
    ) {
        let left = vec![1.0, special, 0.0];
        agrees(&node(operator, &["a", "b"], &["y"]), &[(vec![3], left), (vec![3], right)])?;
    }

    #[test]
    fn functions_and_reductions_pass_nan_and_infinities_on(
        operator in prop::sample::select(vec![
            "Abs", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
            "HardSwish", "LeakyRelu", "LogSoftmax", "Neg", "ReduceMax", "ReduceMean", "ReduceMin",
            "ReduceSum", "Relu", "Round", "Sigmoid", "Softmax", "Softplus", "Softsign", "Sqrt",
            "Swish", "Tanh",
        ]),
        special in prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
        place in 0usize..5,
    ) {
        let mut input = vec![1.0, 0.5, 2.0, 0.25, 3.0];
        input[place] = special;
        agrees(&node(operator, &["x"], &["y"]), &[(vec![5], input)])?;
    }

    #[test]
    fn pools_pass_nan_and_infinities_on(
        operator in prop::sample::select(vec![
            "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool",
        ]),
        special in prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
        place in 0usize..9,
    ) {
        let mut pool = node(operator, &["x"], &["y"]);
        if !operator.starts_with("Global") {
            let (name, ints) = (Some("kernel_shape".to_owned()), vec![2, 2]);
            pool.attribute.push(AttributeProto { name, ints, ..AttributeProto::default() });
        }
        let mut input: Vec<f64> = (0..9).map(f64::from).collect();
        input[place] = special;
        agrees(&pool, &[(vec![1, 1, 3, 3], input)])?;
    }
}
