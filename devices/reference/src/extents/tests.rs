//! Compares the sizes that this module computes in advance with those of the reference kernels'
//! results, for every operator that rten may run.

use std::collections::BTreeSet;

use proptest::prelude::*;
use souk_onnx::schema::{Extents, OperatorSchema};
use souk_testing::{node, noise_tensor, with_int, with_ints};

use super::*;

/// An operator's node and what it is given.
struct Case {
    node: NodeProto,
    inputs: Scope,
}

fn whole(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

fn floats(dims: &[usize]) -> Tensor {
    noise_tensor(dims, 1)
}

fn case(operator: &str, inputs: &[(&'static str, Tensor)]) -> Case {
    let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
    let given = inputs.iter().filter(|(name, _)| !name.is_empty());
    Case {
        node: node(operator, &names, &["y"]),
        inputs: given
            .map(|(name, it)| ((*name).to_owned(), it.clone()))
            .collect(),
    }
}

impl Case {
    fn int(self, name: &str, value: i64) -> Self {
        Self {
            node: with_int(self.node, name, value),
            ..self
        }
    }

    fn ints(self, name: &str, values: &[i64]) -> Self {
        Self {
            node: with_ints(self.node, name, values),
            ..self
        }
    }

    /// What is told is what the reference kernels make.
    fn holds(&self) {
        let (node, none) = (std::slice::from_ref(&self.node), Scope::new());
        let mut made = self.inputs.clone();
        run_nodes(node, &mut made, 21).unwrap();
        let types = made.iter().map(|(name, it)| (name.clone(), it.dtype()));
        let types: Types = types.collect();
        let told = infer_shapes(node, &types, 21, &self.inputs, &none).unwrap();
        for (name, tensor) in &made {
            assert_eq!(told[name], tensor.dims(), "{} {name}", self.node.op_type());
        }
    }
}

/// Operators that move or make elements.
fn moves() -> Vec<Case> {
    let x = || ("x", floats(&[2, 3, 4]));
    let of = |values: &[i64]| ("s", whole(values));
    let mut split = case("Split", &[x(), of(&[1, 3])]).int("axis", -1);
    split.node.output.push("z".to_owned());
    let mut even = case("Split", &[x()]).int("axis", 1).int("num_outputs", 2);
    even.node.output.push("z".to_owned());
    let (a, t) = (("a", whole(&[1, -1])), ("t", whole(&[1, -2])));
    vec![
        case("Concat", &[x(), ("z", floats(&[2, 5, 4]))]).int("axis", -2),
        case("ConstantOfShape", &[of(&[2, 0, 3])]),
        case("Expand", &[x(), of(&[5, 1, 1, 4])]),
        case("Flatten", &[x()]).int("axis", 2),
        case("Flatten", &[x()]).int("axis", -3),
        case(
            "Gather",
            &[
                x(),
                ("s", Tensor::from_vec([1, 2], vec![0i64, -1]).unwrap()),
            ],
        )
        .int("axis", 1),
        case("Reshape", &[x(), of(&[0, -1, 2])]),
        case("Reshape", &[("x", floats(&[0, 3])), of(&[3, 0, -1])]).int("allowzero", 0),
        case("Shape", &[x()]).int("start", -2),
        case("Shape", &[x()]).int("end", -1),
        case("Size", &[x()]),
        case(
            "Slice",
            &[x(), of(&[1, 9]), ("e", whole(&[i64::MAX, i64::MIN])), a, t],
        ),
        split,
        even,
        case("Squeeze", &[("x", floats(&[1, 2, 1])), of(&[-1])]),
        case("Squeeze", &[("x", floats(&[1, 2, 1]))]),
        case("Tile", &[x(), of(&[2, 0, 3])]),
        case("Transpose", &[x()]),
        case("Transpose", &[x()]).ints("perm", &[1, 2, 0]),
        case("Unsqueeze", &[x(), of(&[0, -1])]),
        case(
            "Where",
            &[
                ("c", Tensor::from_bools([4], &[true; 4]).unwrap()),
                x(),
                ("z", floats(&[3, 1])),
            ],
        ),
        case("Cast", &[x()]).int("to", DType::I64.onnx_code().into()),
    ]
}

/// Operators with windows, products and normalisations.
fn products() -> Vec<Case> {
    let image = || ("x", floats(&[2, 4, 7, 6]));
    let pool = |operator| case(operator, &[image()]).ints("kernel_shape", &[3, 2]);
    let of = |name, count| (name, floats(&[count]));
    let batch = [
        image(),
        of("s", 4),
        of("b", 4),
        of("m", 4),
        ("v", floats(&[4])),
    ];
    vec![
        case("Conv", &[image(), ("w", floats(&[6, 2, 3, 3]))])
            .int("group", 2)
            .ints("pads", &[1, 0, 2, 1])
            .ints("strides", &[2, 1]),
        case("ConvTranspose", &[image(), ("w", floats(&[4, 3, 3, 2]))])
            .int("group", 2)
            .ints("strides", &[2, 3])
            .ints("output_padding", &[1, 2]),
        pool("MaxPool").ints("strides", &[2, 2]).int("ceil_mode", 1),
        pool("AveragePool").ints("pads", &[1, 1, 0, 0]),
        case("GlobalAveragePool", &[image()]),
        case("GlobalMaxPool", &[image()]),
        case(
            "MatMul",
            &[("x", floats(&[5, 1, 2, 3])), ("z", floats(&[4, 3, 6]))],
        ),
        case(
            "Gemm",
            &[("x", floats(&[3, 2])), ("z", floats(&[4, 3])), of("c", 4)],
        )
        .int("transA", 1)
        .int("transB", 1),
        case("BatchNormalization", &batch),
        case("InstanceNormalization", &batch[..3]),
        case("LayerNormalization", &[image(), of("s", 6), of("b", 6)]),
        case("RMSNormalization", &[image(), of("s", 6)]),
    ]
}

/// Operators that rten is trusted with, whose sizes follow so.
fn trusted(extents: Extents) -> impl Iterator<Item = &'static str> {
    OperatorSchema::operator_names().filter(move |name| {
        let schema = OperatorSchema::for_operator(name);
        schema.extents == extents && schema.rten.is_some()
    })
}

fn cases() -> Vec<Case> {
    let x = || ("x", floats(&[2, 1, 4]));
    let one = trusted(Extents::OfFirst).map(|operator| case(operator, &[x()]));
    let takes_one = |case: &Case| {
        let operator = case.node.op_type();
        operator != "Cast" && !operator.ends_with("Normalization")
    };
    let mut cases: Vec<Case> = one.filter(takes_one).collect();
    let two = trusted(Extents::Broadcast).filter(|operator| *operator != "Where");
    cases.extend(two.map(|operator| case(operator, &[x(), ("z", floats(&[3, 1]))])));
    let reductions = [
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    ];
    for operator in reductions {
        let some = [x(), ("s", whole(&[-1, 0]))];
        cases.push(case(operator, &some));
        cases.push(case(operator, &some).int("keepdims", 0));
        cases.push(case(operator, &[x()]));
        cases.push(case(operator, &[x()]).int("noop_with_empty_axes", 1));
    }
    cases.extend(moves());
    cases.extend(products());
    cases
}

#[test]
fn sizes_are_told_of_every_operator_that_rten_is_trusted_with() {
    let cases = cases();
    cases.iter().for_each(Case::holds);
    let told: BTreeSet<&str> = cases.iter().map(|case| case.node.op_type()).collect();
    let trusted = OperatorSchema::operator_names()
        .filter(|name| OperatorSchema::for_operator(name).rten.is_some());
    // A constant is bound as a weight when a graph is.
    let left: Vec<&str> = trusted
        .filter(|it| !told.contains(it) && *it != "Constant")
        .collect();
    assert!(left.is_empty(), "no sizes are told of {left:?}");
}

proptest! {
    #[test]
    fn a_slice_is_as_long_as_it_is_told(
        size in 0usize..6, start in -8i64..8, end in -8i64..8, step in -3i64..4,
    ) {
        prop_assume!(step != 0);
        let bounds = [("s", start), ("e", end), ("a", 0), ("t", step)];
        let mut inputs = vec![("x", floats(&[size]))];
        inputs.extend(bounds.map(|(name, value)| (name, whole(&[value]))));
        case("Slice", &inputs).holds();
    }
}

#[test]
fn integers_that_leave_32_bits_are_in_doubt() {
    let sum = |value: i64| {
        let node = [node("Add", &["a", "b"], &["y"])];
        let given = [("a", whole(&[value])), ("b", whole(&[1]))];
        let given = given.map(|(name, it)| (name.to_owned(), it));
        let types = ["a", "b", "y"].map(|name| (name.to_owned(), DType::I64));
        infer_shapes(&node, &types.into(), 21, &given.into(), &Scope::new()).is_ok()
    };
    let most = i64::from(i32::MAX);
    assert!(sum(most - 1));
    assert!(!sum(most));
}
