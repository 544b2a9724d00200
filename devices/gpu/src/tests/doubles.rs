//! Tests 64-bit numbers on an adapter that has them: integers must have the CPU's bits, floats may
//! differ by a few roundings. Also tests the 8-bit powers of two, which the CPU does not compute.

use proptest::collection::vec;

use super::quantised::{devices, made};
use super::scatters::with_text;
use super::wholes::{pairs, spread, whole};
use super::*;
use crate::numbers::doubles::DoubleSupport;

const LONG: [DType; 2] = [DType::I64, DType::U64];

/// Relative to the largest element of inputs and result: sums of a few dozen terms, and series that
/// end within a rounding or two.
const TOLERANCE_DOUBLE: f64 = 1e-14;
/// The same for powers, whose exponents multiply a rounding.
const TOLERANCE_POWER: f64 = 1e-13;

/// The adapter, if it has all numbers of 64 bits.
fn device() -> Option<&'static Gpu> {
    let gpu = gpu()?;
    let has = gpu.context.double_support() == DoubleSupport::ALL;
    // Mesa's is the one of which it is known.
    assert!(has || !gpu.profile().model.contains("llvmpipe"));
    if !has {
        eprintln!("SKIPPED: this adapter has no numbers of 64 bits");
    }
    has.then_some(gpu)
}

/// A GPU of its own that has these numbers of 64 bits alone.
fn having(doubles: DoubleSupport) -> Option<Gpu> {
    let gpu = open(GpuConfig::default())?;
    gpu.context.keep_doubles(doubles);
    Some(gpu)
}

fn agree(node: &NodeProto, inputs: &[Tensor], outputs: &[DType]) {
    let Some(device) = device() else { return };
    let found = made(device, node, inputs, outputs);
    let expected = made(&cpu(), node, inputs, outputs);
    let operator = node.op_type();
    assert_eq!(found, expected, "{operator} of {}", inputs[0].dtype());
}

fn doubles(dims: &[usize], values: &[f64]) -> Tensor {
    let count = dims.iter().product();
    let values: Vec<f64> = values.iter().copied().cycle().take(count).collect();
    Tensor::from_vec(dims, values).unwrap()
}

/// The device agrees with the CPU in 64 bits, within a part of the largest element.
fn near(node: &NodeProto, inputs: &[Tensor], tolerance: f64) -> Result<(), TestCaseError> {
    let Some(device) = device() else {
        return Ok(());
    };
    let found = made(device, node, inputs, &[DType::F64]).remove(0);
    let expected = made(&cpu(), node, inputs, &[DType::F64]).remove(0);
    prop_assert_eq!(found.dims(), expected.dims());
    let floats = |tensor: &Tensor| tensor.to_f64s().unwrap();
    let (found, expected) = (floats(&found), floats(&expected));
    let operands = inputs.iter().filter(|it| it.dtype() == DType::F64);
    let operands = operands.flat_map(floats);
    let finite = expected.iter().copied().chain(operands);
    let finite = finite.filter(|value| value.is_finite());
    let largest = finite.fold(1e-300, |largest: f64, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        let near = (found - expected).abs() <= tolerance * largest;
        let operator = node.op_type();
        prop_assert!(same || near, "{operator} {inputs:?}: {found} {expected}");
    }
    Ok(())
}

#[test]
fn long_integers_are_computed_with_as_the_cpu_does() {
    let two = [
        "Add",
        "Sub",
        "Mul",
        "Max",
        "Min",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
    ];
    let tests = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];
    check(pairs(), |(rows, columns, left, right)| {
        for dtype in LONG {
            let a = whole(dtype, &[rows, columns], &left);
            let b = whole(dtype, &[columns], &right);
            let both = [a.clone(), b.clone()];
            for name in two {
                agree(&node(name, &["a", "b"], &["y"]), &both, &[dtype]);
            }
            for name in tests {
                agree(&node(name, &["a", "b"], &["y"]), &both, &[DType::Bool]);
            }
            for name in ["BitwiseNot", "Abs", "Sign"] {
                let node = node(name, &["a"], &["y"]);
                agree(&node, std::slice::from_ref(&a), &[dtype]);
            }
            let clip = node("Clip", &["a", "low", "high"], &["y"]);
            let ends = [whole(dtype, &[], &right), whole(dtype, &[], &left)];
            agree(
                &clip,
                &[a.clone(), ends[0].clone(), ends[1].clone()],
                &[dtype],
            );
            let truths: Vec<bool> = left.iter().map(|bits| bits & 1 == 1).collect();
            let truths = truths.into_iter().cycle().take(rows * columns);
            let truths = Tensor::from_bools([rows, columns], &truths.collect::<Vec<_>>()).unwrap();
            let choice = node("Where", &["c", "a", "b"], &["y"]);
            agree(&choice, &[truths, a, b], &[dtype]);
        }
        let a = whole(DType::I64, &[rows, columns], &left);
        agree(&node("Neg", &["a"], &["y"]), &[a], &[DType::I64]);
        Ok(())
    });
}

#[test]
fn long_integers_are_divided_shifted_and_raised_as_the_cpu_does() {
    check(pairs(), |(rows, columns, left, right)| {
        // Odd, so that none is zero.
        let right: Vec<u8> = right.iter().map(|byte| byte | 1).collect();
        let places: Vec<u8> = right.iter().map(|byte| byte % 80).collect();
        for dtype in LONG {
            let a = whole(dtype, &[rows, columns], &left);
            let b = whole(dtype, &[columns], &right);
            let divide = node("Div", &["a", "b"], &["y"]);
            let modulo = node("Mod", &["a", "b"], &["y"]);
            let remainder = with_int(modulo.clone(), "fmod", 1);
            for node in [divide, modulo, remainder] {
                agree(&node, &[a.clone(), b.clone()], &[dtype]);
            }
            let by = whole(dtype, &[columns], &spread(dtype, &places));
            for direction in ["LEFT", "RIGHT"] {
                let shift = node("BitShift", &["a", "b"], &["y"]);
                let shift = with_text(shift, "direction", direction);
                agree(&shift, &[a.clone(), by.clone()], &[dtype]);
                agree(&shift, &[a.clone(), b.clone()], &[dtype]);
            }
            let power = node("Pow", &["a", "b"], &["y"]);
            agree(&power, &[a.clone(), by], &[dtype]);
            for other in [DType::U8, DType::I32, DType::I64, DType::U64] {
                let by = whole(other, &[columns], &spread(other, &places));
                agree(&power, &[a.clone(), by.clone()], &[dtype]);
                let narrow = whole(other, &[rows, columns], &left);
                let by = whole(dtype, &[columns], &spread(dtype, &places));
                agree(&power, &[narrow, by], &[other]);
            }
        }
        Ok(())
    });
}

#[test]
fn a_power_of_an_integer_by_a_float_is_cut_off_as_the_cpu_does() {
    let inputs = (vec(-60i32..60, 1..30), vec(0u8..30, 1..30));
    check(inputs, |(bases, exponents)| {
        let count = bases.len();
        // Thirds and halves among them, so that most powers are no whole numbers.
        let by = exponents.iter().cycle().take(count);
        let by: Vec<f32> = by.map(|&it| f32::from(it) / 6.0).collect();
        let sized: Vec<i32> = bases
            .iter()
            .zip(&by)
            .map(|(&base, &by)| match by.fract() {
                0.0 => base,
                // What is no number has no integer that is right.
                _ => base.abs() + 1,
            })
            .collect();
        let power = node("Pow", &["a", "b"], &["y"]);
        let floats = Tensor::from_vec([count], by.clone()).unwrap();
        let wide = doubles(
            &[count],
            &by.iter().map(|&it| f64::from(it)).collect::<Vec<_>>(),
        );
        let narrow = Tensor::from_vec([count], sized.clone()).unwrap();
        let long: Vec<i64> = sized.iter().map(|&it| i64::from(it)).collect();
        let long = Tensor::from_vec([count], long).unwrap();
        for exponent in [floats, wide] {
            agree(&power, &[narrow.clone(), exponent.clone()], &[DType::I32]);
            agree(&power, &[long.clone(), exponent], &[DType::I64]);
        }
        Ok(())
    });
    // More than the digits of a float of 32 bits.
    let power = node("Pow", &["a", "b"], &["y"]);
    let base = Tensor::from_vec([3], vec![49i32, 36, 49]).unwrap();
    let by = Tensor::from_vec([3], vec![4.5f32, 5.5, 5.5]).unwrap();
    agree(&power, &[base, by], &[DType::I32]);
    let roots = Tensor::from_vec([4], vec![0.5f32, 0.25, 3.0, 0.5]).unwrap();
    for dtype in [DType::U8, DType::I32, DType::U64] {
        let cast = with_int(node("Cast", &["a"], &["b"]), "to", dtype.onnx_code().into());
        let power = node("Pow", &["b", "e"], &["y"]);
        let from = Tensor::from_vec([4], vec![49i16, 81, 5, 50]).unwrap();
        let ports = [("a", DType::I16), ("e", DType::F32)];
        let graph = model(vec![cast, power], &ports, &[("y", dtype)], &[]);
        let graph = subgraph(&graph);
        let Some(device) = device() else { return };
        let given = BTreeMap::from([("a".to_owned(), from), ("e".to_owned(), roots.clone())]);
        let run = |device: &dyn Processor| device.compile(&graph).unwrap().run(&given).unwrap();
        assert_eq!(
            run(device).outputs["y"],
            run(&cpu()).outputs["y"],
            "{dtype}"
        );
        let expected = whole(dtype, &[4], &spread(dtype, &[7, 3, 125, 7]));
        assert_eq!(run(device).outputs["y"], expected);
    }
}

/// Functions of one 64-bit float.
const FUNCTIONS: [&str; 34] = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
];

#[test]
fn functions_of_a_long_float_are_those_of_onnx() {
    let inputs = vec(
        prop_oneof![3 => -4.0..4.0f64, 1 => -40.0..40.0f64, 1 => -1e-3..1e-3f64],
        1..60,
    );
    check(inputs, |values| {
        for name in FUNCTIONS {
            let values: Vec<f64> = match name {
                "Acos" | "Asin" | "Atanh" => values.iter().map(|it| it / 41.0).collect(),
                "Acosh" => values.iter().map(|it| 1.0 + it.abs()).collect(),
                "Log" | "Sqrt" => values.iter().map(|it| it.abs()).collect(),
                _ => values.clone(),
            };
            let node = node(name, &["x"], &["y"]);
            near(
                &node,
                &[doubles(&[values.len()], &values)],
                TOLERANCE_DOUBLE,
            )?;
        }
        let x = doubles(&[values.len()], &values);
        let gelu = with_text(node("Gelu", &["x"], &["y"]), "approximate", "tanh");
        near(&gelu, std::slice::from_ref(&x), TOLERANCE_DOUBLE)?;
        let clip = node("Clip", &["x", "low", "high"], &["y"]);
        let ends = [doubles(&[], &[-1.5]), doubles(&[], &[2.0])];
        near(&clip, &[x, ends[0].clone(), ends[1].clone()], 0.0)
    });
}

/// What is no number, infinite, zero of either sign, the least and the greatest.
const ODD: [f64; 12] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::MAX,
    f64::MIN_POSITIVE,
    -745.5,
    800.0,
    0.5,
];

#[test]
fn what_is_no_number_or_infinite_passes_through_long_floats() {
    let names = [
        "Abs",
        "Atan",
        "Ceil",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "LeakyRelu",
        "Log",
        "Neg",
        "Relu",
        "Round",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Tanh",
    ];
    for name in names {
        near(&node(name, &["x"], &["y"]), &[doubles(&[12], &ODD)], 1e-15).unwrap();
    }
    // Beyond the digits of a float of 32 bits too, where drivers round by those.
    let halves = [
        0.5,
        1.5,
        2.5,
        40353606.5,
        40353607.5,
        1e12 + 0.5,
        4503599627370495.5,
        4e18,
    ];
    let halves = halves.map(|half| [half, -half, half - 0.25, half + 0.25]);
    let round = node("Round", &["x"], &["y"]);
    agree(&round, &[doubles(&[32], &halves.concat())], &[DType::F64]);
    for name in ["IsNaN", "IsInf"] {
        agree(
            &node(name, &["x"], &["y"]),
            &[doubles(&[12], &ODD)],
            &[DType::Bool],
        );
    }
    let (columns, rows) = (doubles(&[12], &ODD), doubles(&[12, 1], &ODD));
    for name in ["Add", "Sub", "Mul", "Div", "Pow", "Mod"] {
        let mut node = node(name, &["a", "b"], &["y"]);
        if name == "Mod" {
            node = with_int(node, "fmod", 1);
        }
        near(&node, &[columns.clone(), rows.clone()], 1e-15).unwrap();
    }
    for name in ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"] {
        let node = node(name, &["a", "b"], &["y"]);
        agree(&node, &[columns.clone(), rows.clone()], &[DType::Bool]);
    }
    for name in ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp"] {
        let node = node(name, &["x"], &["y"]);
        near(&node, &[doubles(&[3], &[1.0, f64::NAN, 2.0])], 0.0).unwrap();
        near(&node, &[doubles(&[2], &[f64::INFINITY, 2.0])], 0.0).unwrap();
    }
}

#[test]
fn functions_of_two_long_floats_broadcast() {
    let shapes = (0usize..4, 1usize..5, 1usize..5);
    check((shapes, values(), values()), |((n, c, w), a, b)| {
        let b: Vec<f64> = b.iter().map(|it| it + 0.5 * it.signum()).collect();
        let (wide, column) = (doubles(&[n, c, w], &a), doubles(&[c, 1], &b));
        for name in [
            "Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Mean", "Sum",
        ] {
            let node = node(name, &["a", "b"], &["y"]);
            near(&node, &[wide.clone(), column.clone()], 1e-15)?;
            near(&node, &[wide.clone(), doubles(&[], &b)], 1e-15)?;
        }
        for name in ["Equal", "Less"] {
            let node = node(name, &["a", "b"], &["y"]);
            agree(&node, &[wide.clone(), column.clone()], &[DType::Bool]);
        }
        let modulo = node("Mod", &["a", "b"], &["y"]);
        near(&modulo, &[wide.clone(), column.clone()], 0.0)?;
        near(&with_int(modulo, "fmod", 1), &[wide, column.clone()], 0.0)?;
        let sizes: Vec<f64> = a.iter().map(|it| it.abs() * 9.0).collect();
        let bases = doubles(&[n, c, w], &sizes);
        let power = node("Pow", &["a", "b"], &["y"]);
        near(&power, &[bases.clone(), column], TOLERANCE_POWER)?;
        let whole = Tensor::from_vec([w], vec![3i64; w]).unwrap();
        near(&power, &[bases, whole], TOLERANCE_POWER)
    });
}

#[test]
fn long_numbers_are_reduced_and_ordered() {
    let sizes = (1usize..4, 1usize..200, 1usize..4);
    let names = [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    ];
    check((sizes, -3i64..3, values()), |((n, c, w), axis, x)| {
        let floats = doubles(&[n, c, w], &x);
        let axes = Tensor::from_vec([1], vec![axis]).unwrap();
        for name in names {
            let node = node(name, &["x", "axes"], &["y"]);
            near(&node, &[floats.clone(), axes.clone()], TOLERANCE_POWER)?;
        }
        for name in ["Softmax", "LogSoftmax"] {
            let soft = with_int(node(name, &["x"], &["y"]), "axis", axis);
            near(&soft, std::slice::from_ref(&floats), TOLERANCE_POWER)?;
        }
        let bits: Vec<u8> = x.iter().flat_map(|it| it.to_le_bytes()).collect();
        let numbers = [DType::I64, DType::U64].map(|dtype| whole(dtype, &[n, c, w], &bits));
        let count = c.min(3) as i64;
        let wanted = Tensor::from_vec([1], vec![count]).unwrap();
        for x in numbers.into_iter().chain([floats]) {
            for largest in [0, 1] {
                let top = with_int(node("TopK", &["x", "k"], &["y", "at"]), "axis", 1);
                let top = with_int(top, "largest", largest);
                agree(&top, &[x.clone(), wanted.clone()], &[x.dtype(), DType::I64]);
            }
            for name in ["ArgMax", "ArgMin"] {
                let extreme = with_int(node(name, &["x"], &["y"]), "axis", axis);
                agree(&extreme, std::slice::from_ref(&x), &[DType::I64]);
            }
        }
        Ok(())
    });
}

#[test]
fn long_numbers_are_moved_with_all_their_bits() {
    let list = |values: &[i64]| Tensor::from_vec([values.len()], values.to_vec()).unwrap();
    check(
        (1usize..4, 1usize..5, vec(any::<u8>(), 8..120)),
        |(rows, columns, bits)| {
            for dtype in [DType::I64, DType::U64, DType::F64] {
                let x = whole(dtype, &[rows, columns], &bits);
                let one = std::slice::from_ref(&x);
                agree(&node("Transpose", &["x"], &["y"]), one, &[dtype]);
                agree(&node("Concat", &["x", "x"], &["y"]), one, &[dtype]);
                let with = |name: &str, other: Tensor| {
                    agree(
                        &node(name, &["x", "o"], &["y"]),
                        &[x.clone(), other],
                        &[dtype],
                    );
                };
                with("Tile", list(&[2, 3]));
                with("Expand", list(&[2, 1, 1]));
                with("Gather", list(&[0, -1, 0]));
                with("Reshape", list(&[-1]));
                let pad = node("Pad", &["x", "o", "v"], &["y"]);
                let fill = whole(dtype, &[], &bits[3..]);
                agree(&pad, &[x.clone(), list(&[1, 0, -1, 2]), fill], &[dtype]);
                with("Pad", list(&[0, 1, 0, 0]));
                let slice = node("Slice", &["x", "s", "e", "a", "t"], &["y"]);
                let bounds = [list(&[-1]), list(&[-9]), list(&[1]), list(&[-1])];
                let sliced: Vec<Tensor> = one.iter().cloned().chain(bounds).collect();
                agree(&slice, &sliced, &[dtype]);
                let scatter = node("ScatterND", &["x", "at", "u"], &["y"]);
                let at = Tensor::from_vec([1, 1], vec![rows as i64 - 1]).unwrap();
                let update = whole(dtype, &[1, columns], &bits[1..]);
                agree(&scatter, &[x.clone(), at.clone(), update.clone()], &[dtype]);
                if dtype != DType::F64 {
                    let added = with_text(scatter, "reduction", "add");
                    agree(&added, &[x.clone(), at, update], &[dtype]);
                }
            }
            Ok(())
        },
    );
    for dtype in [DType::I64, DType::F64] {
        let nothing = whole(dtype, &[0, 3], &[0]);
        agree(
            &node("Abs", &["x"], &["y"]),
            std::slice::from_ref(&nothing),
            &[dtype],
        );
        agree(&node("Transpose", &["x"], &["y"]), &[nothing], &[dtype]);
    }
}

#[test]
fn long_numbers_become_others_and_others_become_them() {
    let types = [
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::Bool,
        DType::F64,
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::F8E4M3Fn,
    ];
    let cast = |to: DType| with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
    check(vec(any::<u8>(), 16..200), |bits| {
        for from in LONG {
            let x = whole(from, &[bits.len() / 8], &bits);
            for to in types {
                agree(&cast(to), std::slice::from_ref(&x), &[to]);
            }
        }
        for from in [DType::I8, DType::U16, DType::I32, DType::U32] {
            let x = whole(from, &[bits.len() / 8], &bits);
            for to in [DType::I64, DType::U64, DType::F64] {
                agree(&cast(to), std::slice::from_ref(&x), &[to]);
            }
        }
        // Floats within the range of what they become.
        let small: Vec<f64> = bits.iter().map(|&it| f64::from(it) * 0.499).collect();
        let x = doubles(&[small.len()], &small);
        let (halves, singles) = (
            tensor(DType::F16, &[9], &small),
            tensor(DType::F32, &[9], &small),
        );
        for to in types {
            agree(&cast(to), std::slice::from_ref(&x), &[to]);
        }
        for to in [DType::I64, DType::U64, DType::F64] {
            agree(&cast(to), std::slice::from_ref(&halves), &[to]);
            agree(&cast(to), std::slice::from_ref(&singles), &[to]);
        }
        // Any float that a wider one could be: rounded once, though there are two steps.
        let spread = bits.chunks_exact(8).map(|it| {
            let fraction = u64::from_le_bytes(it.try_into().unwrap()) >> 12;
            f64::from_bits((1023 + u64::from(it[0] % 8)) << 52 | fraction)
        });
        let spread: Vec<f64> = spread.collect();
        let x = doubles(&[spread.len()], &spread);
        for to in [DType::F32, DType::F16, DType::Bf16, DType::F8E4M3Fn] {
            agree(&cast(to), std::slice::from_ref(&x), &[to]);
        }
        Ok(())
    });
    let halfway = doubles(
        &[2],
        &[1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-11)],
    );
    agree(&cast(DType::F16), &[halfway], &[DType::F16]);
}

#[test]
fn places_that_are_counted_in_32_bits_are_numbers_of_64() {
    let Some(device) = device() else { return };
    let places = with_int(node("ArgMax", &["x"], &["p"]), "axis", 1);
    let nodes = vec![
        with_int(places, "keepdims", 0),
        node("Add", &["p", "big"], &["q"]),
        node("Concat", &["q", "p"], &["r"]),
        node("Mul", &["r", "r"], &["y"]),
    ];
    let big = ("big", Tensor::from_vec([1], vec![1i64 << 33]).unwrap());
    let (from, to) = ([("x", DType::F32)], [("y", DType::I64)]);
    let graph = subgraph(&model(nodes, &from, &to, &[big]));
    let x = tensor(DType::F32, &[2, 3], &[1.0, 5.0, 2.0, 9.0, 3.0, 4.0]);
    let given = BTreeMap::from([("x".to_owned(), x)]);
    let run = |device: &dyn Processor| device.compile(&graph).unwrap().run(&given).unwrap();
    assert_eq!(run(device).outputs, run(&cpu()).outputs);
}

#[test]
fn an_adapter_without_numbers_of_64_bits_refuses_by_what_it_lacks() {
    let refused = |gpu: &Gpu, node: NodeProto, dtype: DType| {
        let ports: Vec<(&str, DType)> = node.input.iter().map(|it| (it.as_str(), dtype)).collect();
        let graph = subgraph(&model(vec![node.clone()], &ports, &[("y", dtype)], &[]));
        gpu.compile(&graph).err().unwrap().to_string()
    };
    let none = DoubleSupport::default();
    let (Some(bare), Some(whole)) = (
        having(none),
        having(DoubleSupport {
            integers: true,
            ..none
        }),
    ) else {
        return;
    };
    let add = || node("Add", &["a", "b"], &["y"]);
    for (gpu, dtype, feature) in [
        (&bare, DType::U64, "SHADER_INT64"),
        (&bare, DType::F64, "SHADER_F64"),
        (&whole, DType::F64, "SHADER_F64"),
    ] {
        let said = refused(gpu, add(), dtype);
        for part in ["Add", &dtype.to_string(), feature] {
            assert!(said.contains(part), "{said}");
        }
    }
    let power = node("Pow", &["a", "b"], &["y"]);
    let ports = [("a", DType::I32), ("b", DType::F32)];
    let graph = subgraph(&model(vec![power], &ports, &[("y", DType::I32)], &[]));
    let said = bare.compile(&graph).err().unwrap().to_string();
    assert!(
        said.contains("Pow") && said.contains("SHADER_F64"),
        "{said}"
    );
    // What WGSL has of 32 bits alone is refused by its type wherever it is.
    let Some(device) = device() else { return };
    let said = refused(device, node("Sin", &["a"], &["y"]), DType::F64);
    assert!(said.contains("Sin") && said.contains("f64"), "{said}");
}

#[test]
fn a_dropout_that_drops_nothing_for_sure_is_taken() {
    let node = node("Dropout", &["x", "r", "t"], &["y", "mask"]);
    let (from, to) = (
        [("x", DType::F32)],
        [("y", DType::F32), ("mask", DType::Bool)],
    );
    let ratio = |value: f32| ("r", Tensor::scalar(value));
    let trains = |value: bool| {
        (
            "t",
            Tensor::from_bools(Vec::<usize>::new(), &[value]).unwrap(),
        )
    };
    let x = tensor(DType::F32, &[2, 3], &[1.0, 2.0]);
    for gpu in devices() {
        let compiled = |weights: &[(&str, Tensor)]| {
            gpu.compile(&subgraph(&model(vec![node.clone()], &from, &to, weights)))
        };
        for weights in [[ratio(0.0), trains(true)], [ratio(0.5), trains(false)]] {
            let given = BTreeMap::from([("x".to_owned(), x.clone())]);
            let made = compiled(&weights).unwrap().run(&given).unwrap().outputs;
            assert_eq!(made["y"], x);
            assert_eq!(
                made["mask"],
                Tensor::from_bools([2, 3], &[true; 6]).unwrap()
            );
        }
        let said = compiled(&[ratio(0.5), trains(true)])
            .err()
            .unwrap()
            .to_string();
        assert!(
            said.contains("Dropout") && said.contains("at random"),
            "{said}"
        );
    }
}

#[test]
fn what_a_seed_drops_is_the_same_on_every_device() {
    let seeded = |seed| {
        with_int(
            node("Dropout", &["x", "r", "t"], &["y", "mask"]),
            "seed",
            seed,
        )
    };
    let values: Vec<f64> = (0..2000).map(|at| f64::from(at) - 700.0).collect();
    let makes = |device: &dyn Processor, seed, dtype, ratio: f32, trains| {
        let ports = [("x", dtype), ("r", DType::F32), ("t", DType::Bool)];
        let outputs = [("y", dtype), ("mask", DType::Bool)];
        let model = model(vec![seeded(seed)], &ports, &outputs, &[]);
        let given = BTreeMap::from([
            ("x".to_owned(), tensor(dtype, &[40, 50], &values)),
            ("r".to_owned(), Tensor::scalar(ratio)),
            ("t".to_owned(), Tensor::from_bools([], &[trains]).unwrap()),
        ]);
        let program = device.compile(&subgraph(&model)).unwrap();
        program.run(&given).unwrap().outputs
    };
    let kept = |mask: &Tensor| mask.to_bools().unwrap().iter().filter(|&&it| it).count();
    for gpu in devices() {
        for dtype in [DType::F32, DType::F16] {
            for (ratio, trains) in [(0.75, true), (0.0, true), (0.75, false)] {
                let expected = makes(&cpu(), 7, dtype, ratio, trains);
                assert_eq!(
                    makes(gpu, 7, dtype, ratio, trains),
                    expected,
                    "{dtype} {ratio}"
                );
                let all = kept(&expected["mask"]);
                let drops = trains && ratio > 0.0;
                assert_eq!(all < 2000, drops, "{ratio}, {trains}: {all} are kept");
            }
        }
        let other = makes(gpu, 8, DType::F32, 0.75, true);
        assert_ne!(other["mask"], makes(gpu, 7, DType::F32, 0.75, true)["mask"]);
    }
}

#[test]
fn floats_become_powers_of_two_of_8_bits_and_are_made_of_them() {
    let cast = |to: DType| with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
    let all: Vec<u8> = (0..=255).collect();
    let scales = whole(DType::F8E8M0, &[256], &all);
    let value = |byte: u8| match byte {
        255 => f32::NAN,
        0 => f32::from_bits(0x0040_0000),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    };
    let given = [
        0.0f32,
        0.123,
        1.0,
        1.1,
        1.5,
        2.9,
        3.0,
        f32::MAX,
        f32::NAN,
        1e-40,
        7e-39,
    ];
    let expected: [(&str, i64, [u8; 11]); 4] = [
        ("up", 1, [0, 124, 127, 128, 128, 129, 129, 254, 255, 1, 1]),
        ("up", 0, [0, 124, 127, 128, 128, 129, 129, 255, 255, 1, 1]),
        ("down", 1, [0, 123, 127, 127, 127, 128, 128, 254, 255, 0, 0]),
        (
            "nearest",
            1,
            [0, 124, 127, 127, 128, 128, 129, 254, 255, 0, 1],
        ),
    ];
    for gpu in devices() {
        let found = made(
            gpu,
            &cast(DType::F32),
            std::slice::from_ref(&scales),
            &[DType::F32],
        );
        let found = found[0].elements::<f32>().unwrap();
        for (byte, found) in (0..=255).zip(found.iter()) {
            let expected = value(byte);
            assert!(found.to_bits() == expected.to_bits() || (byte == 255 && found.is_nan()));
        }
        for (mode, saturate, bytes) in expected {
            let to = with_text(cast(DType::F8E8M0), "round_mode", mode);
            let to = with_int(to, "saturate", saturate);
            let x = Tensor::from_vec([11], given.to_vec()).unwrap();
            let found = made(gpu, &to, &[x], &[DType::F8E8M0]);
            assert_eq!(found[0].bytes()[..], bytes, "{mode} {saturate}");
        }
    }
}
