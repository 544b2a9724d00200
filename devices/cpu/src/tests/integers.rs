//! Tests operators on 64-bit integers that neither a 64-bit float nor a 32-bit integer can hold
//! exactly.

use super::*;

/// The least integer of which a float of 64 bits does not have the next.
const EDGE: i64 = 1 << 53;

/// An operator, what it is given, and what it gives.
type Case<'a> = (&'a str, &'a [&'a [i64]], &'a [i64]);

/// What a node of one output gives.
fn made(node: NodeProto, dtype: DType, inputs: &[(&str, Tensor)]) -> Tensor {
    let ports: Vec<(&str, DType)> = inputs
        .iter()
        .map(|(name, it)| (*name, it.dtype()))
        .collect();
    let program = cpu().compile(&subgraph(&model(vec![node], &ports, &[("y", dtype)], &[])));
    let inputs = inputs
        .iter()
        .map(|(name, it)| ((*name).to_owned(), it.clone()));
    let outcome = program.unwrap().run(&inputs.collect());
    outcome.unwrap().outputs.remove("y").unwrap()
}

fn list(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

#[test]
fn places_of_extremes_are_exact() {
    let x = || [("x", list(&[EDGE, EDGE + 1, EDGE - 1]))];
    let place = |operator: &str| {
        let node = with_int(node(operator, &["x"], &["y"]), "keepdims", 0);
        made(node, DType::I64, &x()).to_vec::<i64>().unwrap()
    };
    assert_eq!(place("ArgMax"), [1]);
    assert_eq!(place("ArgMin"), [2]);
    let equal = [("x", list(&[EDGE + 1, EDGE, EDGE + 1]))];
    let last = with_int(node("ArgMax", &["x"], &["y"]), "select_last_index", 1);
    assert_eq!(made(last, DType::I64, &equal).to_vec::<i64>().unwrap(), [2]);
}

#[test]
fn operators_of_integers_are_exact() {
    let (high, low) = (EDGE + 1, -EDGE - 1);
    let cases: &[Case<'_>] = &[
        ("Abs", &[&[low, high]], &[high, high]),
        ("Add", &[&[EDGE], &[1]], &[high]),
        (
            "Clip",
            &[&[i64::MAX, i64::MIN, 0], &[low], &[high]],
            &[high, low, 0],
        ),
        ("CumSum", &[&[EDGE, 1, 1], &[0]], &[EDGE, high, EDGE + 2]),
        ("Div", &[&[high, low], &[1]], &[high, low]),
        ("Max", &[&[EDGE], &[high]], &[high]),
        ("Mean", &[&[high], &[high]], &[high]),
        ("Min", &[&[-EDGE], &[low]], &[low]),
        ("Mod", &[&[high, low], &[EDGE]], &[1, EDGE - 1]),
        ("Mul", &[&[high], &[3]], &[3 * high]),
        ("Neg", &[&[high]], &[low]),
        (
            "Pow",
            &[&[3, high, -1, -1], &[33, 1, 1 << 40, i64::MAX]],
            &[3i64.pow(33), high, 1, -1],
        ),
        (
            "Pow",
            &[&[-1, -1, 1, 2], &[-3, -2, i64::MIN, -1]],
            &[-1, 1, 1, 0],
        ),
        ("ReduceL1", &[&[low, 0]], &[high]),
        ("ReduceL2", &[&[low, 0]], &[high]),
        ("ReduceMax", &[&[EDGE, high]], &[high]),
        ("ReduceMean", &[&[high, high]], &[high]),
        ("ReduceMin", &[&[-EDGE, low]], &[low]),
        ("ReduceProd", &[&[high, 3]], &[3 * high]),
        ("ReduceSum", &[&[EDGE, 1]], &[high]),
        ("ReduceSumSquare", &[&[3 << 30, 1]], &[(9 << 60) + 1]),
        ("Relu", &[&[low, high]], &[0, high]),
        ("Sign", &[&[low, high]], &[-1, 1]),
        ("Sub", &[&[high], &[EDGE]], &[1]),
        ("Sum", &[&[EDGE], &[1]], &[high]),
        ("Unique", &[&[high, EDGE, high]], &[EDGE, high]),
    ];
    for (operator, given, expected) in cases {
        let names = &["a", "b", "c"][..given.len()];
        let inputs = names.iter().copied().zip(given.iter().map(|it| list(it)));
        let inputs: Vec<(&str, Tensor)> = inputs.collect();
        let found = made(node(operator, names, &["y"]), DType::I64, &inputs);
        assert_eq!(
            &found.to_vec::<i64>().unwrap(),
            expected,
            "{operator} {given:?}"
        );
    }
    for (operator, expected) in [("Greater", 1), ("Less", 0), ("Equal", 0)] {
        let inputs = [("a", list(&[high])), ("b", list(&[EDGE]))];
        let found = made(node(operator, &["a", "b"], &["y"]), DType::Bool, &inputs);
        assert_eq!(found.bytes()[..], [expected], "{operator}");
    }
    let top = node("TopK", &["a", "k"], &["y"]);
    let inputs = [("a", list(&[EDGE, high, 0])), ("k", list(&[2]))];
    let found = made(top, DType::I64, &inputs);
    assert_eq!(found.to_vec::<i64>().unwrap(), [high, EDGE]);
}

#[test]
fn a_power_of_a_whole_exponent_in_floats_is_exact() {
    let exponents = Tensor::from_vec([2], vec![1f32, 2.0]).unwrap();
    let inputs = [("a", list(&[EDGE + 1, -(1 << 31) - 1])), ("b", exponents)];
    let found = made(node("Pow", &["a", "b"], &["y"]), DType::I64, &inputs);
    let square = ((1i64 << 31) + 1).pow(2);
    assert_eq!(found.to_vec::<i64>().unwrap(), [EDGE + 1, square]);
}

#[test]
fn integers_become_the_nearest_float() {
    // Above the middle between two floats of 32 bits by less than a float of 64 tells.
    let above = (1i64 << 60) + (1 << 36) + 1;
    let cast = |dtype: DType| {
        let node = with_int(node("Cast", &["x"], &["y"]), "to", dtype.onnx_code().into());
        made(node, dtype, &[("x", list(&[above, -above]))])
    };
    let next = (1u64 << 60) as f32 + (1u64 << 37) as f32;
    assert_eq!(cast(DType::F32).to_vec::<f32>().unwrap(), [next, -next]);
    let above = (1i64 << 60) + (1 << 52) + 1;
    let node = with_int(
        node("Cast", &["x"], &["y"]),
        "to",
        DType::Bf16.onnx_code().into(),
    );
    let found = made(node, DType::Bf16, &[("x", list(&[above]))]);
    let next = (1u64 << 60) as f64 + (1u64 << 53) as f64;
    assert_eq!(found.to_f64s().unwrap(), [next]);
}

#[test]
fn arithmetic_with_sizes_that_leaves_32_bits_is_exact() {
    let x = Tensor::from_bools([1 << 15], &vec![false; 1 << 15]).unwrap();
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Mul", &["s", "w"], &["p"]),
        node("Add", &["p", "w"], &["y"]),
    ];
    let weights = [("w", list(&[1 << 16]))];
    let graph = model(nodes, &[("x", DType::Bool)], &[("y", DType::I64)], &weights);
    let program = cpu().compile(&subgraph(&graph)).unwrap();
    for _ in 0..2 {
        let outcome = program
            .run(&BTreeMap::from([("x".to_owned(), x.clone())]))
            .unwrap();
        let found = outcome.outputs["y"].to_vec::<i64>().unwrap();
        assert_eq!(found, [(1 << 31) + (1 << 16)]);
    }
}

#[test]
fn orders_know_no_sign_of_zero_and_of_no_number() {
    let floats = |values: &[f32]| Tensor::from_vec([values.len()], values.to_vec()).unwrap();
    let x = floats(&[-0.0, 0.0, -f32::NAN, 1.0, f32::NAN]);
    let top = node("TopK", &["x", "k"], &["v", "y"]);
    let found = made(top, DType::I64, &[("x", x.clone()), ("k", list(&[5]))]);
    assert_eq!(found.to_vec::<i64>().unwrap(), [2, 4, 3, 0, 1]);
    let counted = made(
        node("Unique", &["x"], &["v", "", "", "y"]),
        DType::I64,
        &[("x", x)],
    );
    assert_eq!(counted.to_vec::<i64>().unwrap(), [2, 1, 2]);
}
