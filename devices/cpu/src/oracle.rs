//! Tests that compare the CPU's engines in 32 bits with the same graphs computed in 64 bits, on
//! random shapes and values.

use std::collections::BTreeMap;

use proptest::prelude::*;
use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_testing::literals::{odd_activations, odd_pools};
use souk_testing::{model, node, subgraph, subgraph_with_dims, with_int, with_ints};
use souk_vocabulary::processor::Processor;

use super::tests::cpu;

/// Relative to the largest element of inputs and result: what 32-bit sums of a few hundred terms,
/// and functions that cancel, may lose.
const TOLERANCE: f64 = 2e-5;

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
fn assert_agreement(
    node: &NodeProto,
    inputs: &[(Vec<usize>, Vec<f64>)],
) -> Result<(), TestCaseError> {
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
        assert_agreement(&product, &[(vec![batch, rows, depth], left), (vec![depth, columns], right)])?;
    }

    #[test]
    fn convolutions(
        (channels, filters, size, kernel) in (1usize..4, 1usize..5, 3usize..9, 1usize..4),
        (stride, pad) in (1i64..3, 0i64..2),
        (input, weights) in (values(), values()),
    ) {
        let conv = node("Conv", &["x", "w"], &["y"]);
        let conv = with_ints(with_ints(conv, "strides", &[stride; 2]), "pads", &[pad; 4]);
        let shape = vec![2, channels, size, size];
        assert_agreement(&conv, &[(shape, input), (vec![filters, channels, kernel, kernel], weights)])?;
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
        assert_agreement(&node(operator, &["a", "b"], &["y"]), &[(dims, left), (other, right)])?;
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
        assert_agreement(&node(operator, &["x"], &["y"]), &[(dims, input)])?;
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
        assert_agreement(&softmax, &[(dims, input)])?;
    }

    #[test]
    fn layer_normalisation(
        (rows, length) in (1usize..5, 2usize..40),
        (input, scale, bias) in (values(), values(), values()),
    ) {
        prop_assume!(input.iter().any(|value| (value - input[0]).abs() > 0.1));
        let norm = node("LayerNormalization", &["x", "s", "b"], &["y"]);
        let inputs = [(vec![rows, length], input), (vec![length], scale), (vec![length], bias)];
        assert_agreement(&norm, &inputs)?;
    }

    #[test]
    fn infinities_and_nan_go_on(
        operator in prop::sample::select(vec!["Add", "Max", "Min", "Mul", "Sub"]),
        special in prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
        right in values(),
    ) {
        let left = vec![1.0, special, 0.0];
        assert_agreement(&node(operator, &["a", "b"], &["y"]), &[(vec![3], left), (vec![3], right)])?;
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
        (count, place) in (1usize..100).prop_flat_map(|count| (Just(count), 0..count)),
    ) {
        let mut input: Vec<f64> = (0..count).map(|at| 0.25 * (at % 12) as f64).collect();
        input[place] = special;
        assert_agreement(&node(operator, &["x"], &["y"]), &[(vec![count], input)])?;
    }
}

#[test]
fn what_is_no_number_goes_through_pools_and_activations() {
    for literal in odd_pools().iter().chain(&odd_activations()) {
        literal.holds_on(&cpu(), &literal.build_subgraph());
    }
}

#[test]
fn what_is_no_number_goes_through_pools_after_a_convolution() {
    let one = Tensor::from_vec([1, 1, 1, 1], vec![1f32]).unwrap();
    for literal in odd_pools().iter().filter(|it| it.dims == [1, 1, 3, 3]) {
        let copied = node("Conv", &["image", "one"], &["x"]);
        let model = literal.build_model(Some(copied), &[("one", one.clone())]);
        literal.holds_on(
            &cpu(),
            &subgraph_with_dims(model, &[("image", &literal.dims)]),
        );
    }
}

#[test]
fn a_comparison_does_not_take_zero_for_no_number() {
    // rten's `Relu` of minus infinity is no number, which is less than nothing.
    let (x, y) = (("x", DType::F32), ("y", DType::Bool));
    let nodes = vec![
        node("Relu", &["x"], &["a"]),
        node("Less", &["a", "one"], &["y"]),
    ];
    let one = Tensor::scalar(1f32);
    let graph = subgraph(&model(nodes, &[x], &[y], &[("one", one)]));
    let given = Tensor::from_vec([3], vec![f32::NEG_INFINITY, 0.5, 2.0]).unwrap();
    let program = cpu().compile(&graph).unwrap();
    let outcome = program
        .run(&BTreeMap::from([("x".to_owned(), given)]))
        .unwrap();
    assert_eq!(outcome.outputs["y"].bytes()[..], [1, 1, 0]);
}
