//! Tests scatters with a reduction, and several smaller things: remainders of floats, `ArgMax`, the
//! scores of attention, the statistics of a batch, and 64-bit inputs on a 32-bit device.

use super::quantised::{devices, made};
use super::*;

fn list(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

pub(super) fn with_text(node: NodeProto, name: &str, value: &'static str) -> NodeProto {
    with(node, name, |attribute| attribute.s = Some(value.into()))
}

fn singles(values: &[f32]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

#[test]
fn updates_of_one_place_are_combined() {
    let places = prop::collection::vec(-3i64..3, 1..7);
    check(
        (places, 1usize..4, values(), values()),
        |(places, w, x, u)| {
            let count = places.len();
            let at = |dims: [usize; 2], values: Vec<i64>| Tensor::from_vec(dims, values).unwrap();
            let rows = at([count, 1], places.clone());
            let each = places.iter().flat_map(|&place| vec![place; w]).collect();
            let elements = at([count, w], each);
            let inputs = [(vec![3, w], x), (vec![count, w], u)];
            for reduction in ["add", "mul", "max", "min", "none"] {
                for (name, at) in [("ScatterND", &rows), ("ScatterElements", &elements)] {
                    let scatter = node(name, &["x", "at", "u"], &["y"]);
                    let scatter = with_text(scatter, "reduction", reduction);
                    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::I32, DType::U8] {
                        scatters(&scatter, &inputs, at, dtype)?;
                    }
                }
            }
            Ok(())
        },
    );
}

/// A scatter into values of a type agrees with the CPU's: integers exactly.
fn scatters(
    scatter: &NodeProto,
    inputs: &[(Vec<usize>, Vec<f64>)],
    at: &Tensor,
    dtype: DType,
) -> Result<(), TestCaseError> {
    let of = |(dims, values): &(Vec<usize>, Vec<f64>)| {
        let count = dims.iter().product::<usize>();
        let whole = values.iter().cycle().take(count);
        match dtype {
            DType::I32 => {
                let whole = whole.map(|&it| (it * 9.0) as i32);
                Tensor::from_vec(dims.clone(), whole.collect::<Vec<i32>>()).unwrap()
            }
            DType::U8 => {
                let whole = whole.map(|&it| (it * 30.0).abs() as u8);
                Tensor::from_vec(dims.clone(), whole.collect::<Vec<u8>>()).unwrap()
            }
            _ => tensor(dtype, dims, values),
        }
    };
    let names = ["x", "u"].map(str::to_owned).into_iter();
    let given: BTreeMap<String, Tensor> = names.zip(inputs.iter().map(of)).collect();
    let ports = [("x", dtype), ("u", dtype)];
    let weights = [("at", at.clone())];
    let graph = subgraph(&model(
        vec![scatter.clone()],
        &ports,
        &[("y", dtype)],
        &weights,
    ));
    let run = |device: &dyn Processor| {
        let mut outcome = device.compile(&graph).unwrap().run(&given).unwrap();
        outcome.outputs.remove("y").unwrap()
    };
    let expected = run(&cpu());
    for device in devices() {
        let found = run(device);
        prop_assert_eq!(found.dims(), expected.dims());
        if !dtype.is_float() {
            prop_assert_eq!(
                found,
                expected.clone(),
                "{} of {}",
                scatter.op_type(),
                dtype
            );
            continue;
        }
        let tolerance = match dtype {
            DType::F32 => TOLERANCE,
            DType::F16 => TOLERANCE + 1.0 / 1024.0,
            _ => TOLERANCE + 1.0 / 128.0,
        };
        let pairs = found.to_f64s().unwrap().into_iter();
        for (found, expected) in pairs.zip(expected.to_f64s().unwrap()) {
            let near = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            prop_assert!(near, "{} of {dtype}: {found} {expected}", scatter.op_type());
        }
    }
    Ok(())
}

#[test]
fn rests_of_floats_are_exact() {
    let odd = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-45,
        -3e-39,
        f32::MAX,
    ];
    let any_float = || prop_oneof![4 => any::<f32>(), 1 => prop::sample::select(odd.to_vec())];
    let floats = || prop::collection::vec(any_float(), 8..9);
    check((floats(), floats()), |(left, right)| {
        let near: Vec<f32> = left.iter().map(|value| value * 0.013).collect();
        for right in [right, near] {
            for fmod in [0, 1] {
                let rest = with_int(node("Mod", &["a", "b"], &["y"]), "fmod", fmod);
                let inputs = [singles(&left), singles(&right)];
                let expected = made(&cpu(), &rest, &inputs, &[DType::F32]);
                let expected = expected[0].to_vec::<f32>().unwrap();
                for device in devices() {
                    let found = made(device, &rest, &inputs, &[DType::F32]);
                    let found = found[0].to_vec::<f32>().unwrap();
                    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let (a, b) = (left[at], right[at]);
                        let same = found == expected || (found.is_nan() && expected.is_nan());
                        // A device may have no numbers this small, or take them for nothing.
                        let same = same
                            || (a.is_subnormal() && (*found == 0.0 || *found == a))
                            || (b.is_subnormal() && found.is_nan())
                            || (expected.is_subnormal() && *found == 0.0);
                        prop_assert!(same, "{a} % {b}, fmod {fmod}: {found} {expected}");
                    }
                }
            }
        }
        Ok(())
    });
}

#[test]
fn floats_are_raised_to_integers() {
    let bases = tensor(DType::F32, &[6], &[1.5, -2.0, 0.0, 3.0, -1.0, 0.25]);
    let exponents = [3i64, -1, 0, 2, 5, -2];
    let power = node("Pow", &["a", "b"], &["y"]);
    let narrow: Vec<i32> = exponents.iter().map(|&it| it as i32).collect();
    for by in [list(&exponents), Tensor::from_vec([6], narrow).unwrap()] {
        let inputs = [bases.clone(), by];
        let expected = made(&cpu(), &power, &inputs, &[DType::F32]);
        for device in devices() {
            let found = made(device, &power, &inputs, &[DType::F32]);
            let (found, expected) = (found[0].to_f64s().unwrap(), expected[0].to_f64s().unwrap());
            for (found, expected) in found.into_iter().zip(expected) {
                let same = found == expected || (found - expected).abs() <= TOLERANCE * 125.0;
                assert!(same, "{found} {expected}");
            }
        }
    }
}

#[test]
fn a_largest_element_is_told_with_its_place() {
    let bits = prop::collection::vec(any::<u8>(), 1..60);
    check(
        (bits, 1usize..3, 4usize..7, 0i64..2),
        |(bits, c, side, order)| {
            let count = 2 * c * side * (side + 1);
            let bytes: Vec<u8> = bits.into_iter().cycle().take(count).collect();
            let dims = [2, c, side, side + 1];
            let floats: Vec<f32> = bytes.iter().map(|&it| f32::from(it) - 128.0).collect();
            let pool = with_ints(
                node("MaxPool", &["x"], &["y", "i"]),
                "kernel_shape",
                &[3, 2],
            );
            let pool = with_ints(with_ints(pool, "pads", &[1, 0, 1, 1]), "strides", &[2, 1]);
            let pool = with_int(pool, "storage_order", order);
            let x = Tensor::from_vec(dims, floats).unwrap();
            let types = [DType::F32, DType::I64];
            let expected = made(&cpu(), &pool, std::slice::from_ref(&x), &types);
            for device in devices() {
                prop_assert_eq!(
                    &made(device, &pool, std::slice::from_ref(&x), &types),
                    &expected
                );
            }
            let mut plain = pool;
            plain.output.truncate(1);
            let signed: Vec<i8> = bytes.iter().map(|&it| it.cast_signed()).collect();
            let of_bytes = [
                Tensor::from_vec(dims, bytes).unwrap(),
                Tensor::from_vec(dims, signed).unwrap(),
            ];
            for x in of_bytes {
                let dtype = x.dtype();
                let expected = made(&cpu(), &plain, std::slice::from_ref(&x), &[dtype]);
                for device in devices() {
                    let found = made(device, &plain, std::slice::from_ref(&x), &[dtype]);
                    prop_assert_eq!(&found, &expected);
                }
            }
            Ok(())
        },
    );
}

#[test]
fn attention_tells_its_scores_at_each_stage() {
    let sizes = (1usize..3, 1usize..3, 1usize..4, 1usize..90, 1usize..9);
    check(
        (sizes, 0i64..4, values()),
        |((n, heads, q, k, d), stage, x)| {
            let attention = node("Attention", &["q", "k", "v", "m"], &["o", "", "", "y"]);
            let attention = with_int(attention, "qk_matmul_output_mode", stage);
            let attention = with_int(attention, "is_causal", stage % 2);
            let attention = with(attention, "softcap", |attribute| attribute.f = Some(2.5));
            // Some queries may look nowhere.
            let mask: Vec<bool> = (0..q * k).map(|at| at / k != 1 && at % 3 != 2).collect();
            let mask = Tensor::from_bools([q, k], &mask).unwrap();
            let input = |length: usize, from: usize| {
                let values: Vec<f64> = x.iter().skip(from % x.len()).copied().collect();
                tensor(DType::F32, &[n, heads, length, d], &values)
            };
            let given = [("q", input(q, 0)), ("k", input(k, 1)), ("v", input(k, 2))];
            let given = given.into_iter().chain([("m", mask)]);
            let given: BTreeMap<String, Tensor> = given
                .map(|(name, tensor)| (name.to_owned(), tensor))
                .collect();
            let (float, truth) = (DType::F32, DType::Bool);
            let ports = [("q", float), ("k", float), ("v", float), ("m", truth)];
            let outputs = [("o", float), ("y", float)];
            let graph = subgraph(&model(vec![attention], &ports, &outputs, &[]));
            let run = |device: &dyn Processor| {
                let made = device.compile(&graph).unwrap().run(&given).unwrap();
                made.outputs["y"].to_f64s().unwrap()
            };
            let expected = run(&cpu());
            for device in devices() {
                let found = run(device);
                prop_assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    let size = expected.abs().max(16.0);
                    let near =
                        found == expected || (found - expected).abs() <= TOLERANCE_LOOSE * size;
                    prop_assert!(near, "stage {stage}: {found} {expected}");
                }
            }
            Ok(())
        },
    );
}

#[test]
fn a_batch_that_trains_gives_its_own_statistics() {
    let sizes = (2usize..4, 1usize..4, 2usize..90);
    check((sizes, values()), |((n, c, w), x)| {
        let names = ["x", "s", "b", "m", "v"];
        let norm = node("BatchNormalization", &names, &["y", "mean", "variance"]);
        let norm = with_int(norm, "training_mode", 1);
        let each = |values: &[f64]| tensor(DType::F32, &[c], values);
        let inputs = [
            tensor(DType::F32, &[n, c, w], &x),
            each(&[1.5, -0.5, 2.0]),
            each(&[0.25, 1.0]),
            each(&[0.5, -1.0]),
            each(&[1.0, 2.0]),
        ];
        let types = [DType::F32; 3];
        let expected = made(&cpu(), &norm, &inputs, &types);
        let deviation = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            values
                .iter()
                .map(|value| (value - mean).powi(2))
                .sum::<f64>()
        };
        // A variance near 0 makes any rounding large.
        prop_assume!(x.len() > 3 && deviation(&x) > 0.1);
        for device in devices() {
            let found = made(device, &norm, &inputs, &types);
            for (found, expected) in found.iter().zip(&expected) {
                let pairs = found.to_f64s().unwrap().into_iter();
                for (found, expected) in pairs.zip(expected.to_f64s().unwrap()) {
                    let size = expected.abs().max(4.0);
                    let near = (found - expected).abs() <= TOLERANCE_LOOSE * size;
                    prop_assert!(near, "{found} {expected}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn what_has_64_bits_is_cast_on_its_way_there_and_widened_on_its_way_back() {
    let exact = [0.1f64, -1e300, 5e-324, f64::INFINITY, 3.0, 1.0 + 1e-12];
    let x = Tensor::from_vec([6], exact.to_vec()).unwrap();
    let cast = |to: DType| with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
    for to in [DType::F32, DType::F16, DType::Bf16, DType::Bool] {
        let expected = made(&cpu(), &cast(to), std::slice::from_ref(&x), &[to]);
        for device in devices() {
            let found = made(device, &cast(to), std::slice::from_ref(&x), &[to]);
            assert_eq!(found, expected, "{to}");
        }
    }
    for from in [DType::F32, DType::F16] {
        let x = tensor(from, &[3], &[0.1, -2.5, 1e30]);
        let expected = made(
            &cpu(),
            &cast(DType::F64),
            std::slice::from_ref(&x),
            &[DType::F64],
        );
        for device in devices() {
            let found = made(
                device,
                &cast(DType::F64),
                std::slice::from_ref(&x),
                &[DType::F64],
            );
            assert_eq!(found, expected, "{from}");
        }
    }
}

#[test]
fn the_largest_and_smallest_of_truths_and_bytes_are_found() {
    let truths = Tensor::from_bools([2, 3], &[true, false, true, false, false, false]).unwrap();
    let bytes = Tensor::from_vec([2, 3], vec![-128i8, 3, 7, 127, -1, 0]).unwrap();
    let nothing = Tensor::from_vec([2, 0], Vec::<u8>::new()).unwrap();
    let axes = ("a", list(&[1]));
    for x in [truths, bytes, nothing] {
        for name in ["ReduceMax", "ReduceMin"] {
            let reduce = node(name, &["x", "a"], &["y"]);
            let (from, to) = ([("x", x.dtype())], [("y", x.dtype())]);
            let graph = model(vec![reduce], &from, &to, std::slice::from_ref(&axes));
            let graph = subgraph(&graph);
            let given = BTreeMap::from([("x".to_owned(), x.clone())]);
            let run = |device: &dyn Processor| device.compile(&graph).unwrap().run(&given).unwrap();
            let expected = run(&cpu()).outputs;
            for device in devices() {
                assert_eq!(run(device).outputs, expected, "{name} of {}", x.dtype());
            }
        }
    }
}
