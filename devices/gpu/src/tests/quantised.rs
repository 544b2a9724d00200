//! Tests bytes and 8-bit floats on the GPU: moves and products must be exact, and quantised
//! quotients may be off by one step.

use super::*;

const FLOATS: [DType; 4] = [
    DType::F8E4M3Fn,
    DType::F8E4M3FnUz,
    DType::F8E5M2,
    DType::F8E5M2FnUz,
];

pub(super) fn devices() -> impl Iterator<Item = &'static Gpu> {
    [
        gpu(),
        #[cfg(feature = "cuda")]
        on_paper(),
    ]
    .into_iter()
    .flatten()
}

fn bytes_of(dtype: DType, dims: &[usize], values: &[u8]) -> Tensor {
    let count = dims.iter().product::<usize>() * dtype.bit_width() / 8;
    let values: Vec<u8> = values.iter().copied().cycle().take(count).collect();
    Tensor::new(dtype, Shape::new(dims.to_vec()).unwrap(), values.into()).unwrap()
}

fn singles(dims: &[usize], values: &[f32]) -> Tensor {
    let count = dims.iter().product();
    let values: Vec<f32> = values.iter().copied().cycle().take(count).collect();
    Tensor::from_vec(dims, values).unwrap()
}

/// The elements of a tensor of any type here.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::I8 => tensor
            .to_vec::<i8>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect(),
        DType::U8 => tensor
            .to_vec::<u8>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect(),
        DType::I16 => tensor
            .to_vec::<i16>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect(),
        DType::U16 => tensor
            .to_vec::<u16>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect(),
        DType::I32 => tensor
            .to_vec::<i32>()
            .unwrap()
            .into_iter()
            .map(f64::from)
            .collect(),
        dtype if FLOATS.contains(&dtype) => {
            let to = DType::F32;
            let cast = with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
            let wide = made(&cpu(), &cast, std::slice::from_ref(tensor), &[to]);
            wide[0].to_f64s().unwrap()
        }
        _ => tensor.to_f64s().unwrap(),
    }
}

/// What a node makes of inputs, the types of its outputs given.
pub(super) fn made(
    device: &dyn Processor,
    node: &NodeProto,
    inputs: &[Tensor],
    outputs: &[DType],
) -> Vec<Tensor> {
    let names = node.input.iter().filter(|name| !name.is_empty());
    let given: Vec<(&String, &Tensor)> = names.zip(inputs).collect();
    let ports: Vec<(&str, DType)> = given
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.dtype()))
        .collect();
    let results: Vec<(&str, DType)> = node
        .output
        .iter()
        .map(String::as_str)
        .zip(outputs.iter().copied())
        .collect();
    let graph = subgraph(&model(vec![node.clone()], &ports, &results, &[]));
    let given = given.into_iter();
    let given = given.map(|(name, tensor)| (name.clone(), tensor.clone()));
    let program = device.compile(&graph).unwrap();
    let mut outcome = program.run(&given.collect()).unwrap();
    let take = |name: &String| outcome.outputs.remove(name).unwrap();
    node.output.iter().map(take).collect()
}

/// All devices agree with the CPU within a step of each output: of integers so many, of floats
/// that part of the value.
fn agree_within(node: &NodeProto, inputs: &[Tensor], outputs: &[DType], steps: &[f64]) {
    let expected = made(&cpu(), node, inputs, outputs);
    for device in devices() {
        let found = made(device, node, inputs, outputs);
        for ((found, expected), step) in found.iter().zip(&expected).zip(steps) {
            assert_eq!(found.dtype(), expected.dtype());
            assert_eq!(found.dims(), expected.dims());
            let is_whole = !expected.dtype().is_float();
            let pairs = numbers(found).into_iter().zip(numbers(expected));
            for (at, (found, expected)) in pairs.enumerate() {
                let same = found == expected || (found.is_nan() && expected.is_nan());
                let size = if is_whole {
                    1.0
                } else {
                    expected.abs().max(1.0)
                };
                let near = (found - expected).abs() <= step * size;
                let operator = node.op_type();
                assert!(same || near, "{operator}, element {at}: {found} {expected}");
            }
        }
    }
}

#[test]
fn every_8_bit_float_is_widened_as_the_cpu_does() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for dtype in FLOATS {
        let x = bytes_of(dtype, &[256], &all);
        for to in [DType::F32, DType::F16] {
            let cast = with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
            agree_within(&cast, std::slice::from_ref(&x), &[to], &[0.0]);
        }
    }
}

#[test]
fn floats_become_the_nearest_of_8_bits() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for dtype in FLOATS {
        let widen = with_int(
            node("Cast", &["x"], &["y"]),
            "to",
            DType::F32.onnx_code().into(),
        );
        let exact = bytes_of(dtype, &[256], &all);
        let exact = made(&cpu(), &widen, &[exact], &[DType::F32]).remove(0);
        let mut sorted: Vec<f32> = exact.to_vec::<f32>().unwrap();
        sorted.retain(|value| value.is_finite());
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        let largest = *sorted.last().unwrap();
        let between = |pair: &[f32]| {
            let middle = (pair[0] + pair[1]) / 2.0;
            [pair[0], middle.next_down(), middle, middle.next_up()]
        };
        let mut values: Vec<f32> = sorted.windows(2).flat_map(between).collect();
        values.extend([largest, f32::NAN, f32::MIN_POSITIVE, 0.0, -0.0]);
        let narrow = with_int(node("Cast", &["x"], &["y"]), "to", dtype.onnx_code().into());
        let x = singles(&[values.len()], &values);
        agree_within(&narrow, &[x], &[dtype], &[0.0]);
        let beyond = [1e9, f32::INFINITY, -1e9, f32::NEG_INFINITY];
        let x = singles(&[4], &beyond);
        agree_within(&narrow, std::slice::from_ref(&x), &[dtype], &[0.0]);
        let open = with_int(narrow, "saturate", 0);
        for device in devices() {
            let found = made(device, &open, std::slice::from_ref(&x), &[dtype]);
            let found = numbers(&found[0]);
            assert!(
                found.iter().all(|value| !value.is_finite()),
                "{dtype}: {found:?}"
            );
        }
    }
}

#[test]
fn bytes_are_moved_as_they_are() {
    let all: Vec<u8> = (0..=u8::MAX).rev().collect();
    for dtype in [DType::I8, DType::U8, DType::F8E5M2] {
        // Bytes that the host was given it turns itself: these come of a node on the device.
        let scale = singles(&[], &[1.0]);
        let quantise = node("QuantizeLinear", &["x", "s", "z"], &["q"]);
        let turn = with_ints(node("Transpose", &["q"], &["y"]), "perm", &[1, 0]);
        let (x, y) = (("x", DType::F32), ("y", dtype));
        let weights = [("s", scale), ("z", bytes_of(dtype, &[], &[0]))];
        let graph = subgraph(&model(vec![quantise, turn], &[x], &[y], &weights));
        let values: Vec<f32> = all.iter().map(|&it| f32::from(it) - 100.0).collect();
        let given = BTreeMap::from([("x".to_owned(), singles(&[7, 9], &values))]);
        let run = |device: &dyn Processor| {
            let mut outcome = device.compile(&graph).unwrap().run(&given).unwrap();
            outcome.outputs.remove("y").unwrap()
        };
        let expected = run(&cpu());
        for device in devices() {
            let found = run(device);
            assert_eq!(found.dims(), [9, 7]);
            assert_eq!(numbers(&found), numbers(&expected));
        }
    }
}

#[test]
fn products_of_bytes_are_exact() {
    let sides = (1usize..3, 1usize..80, 0usize..150, 1usize..80);
    let bytes = || prop::collection::vec(any::<u8>(), 1..60);
    let kinds = (any::<bool>(), any::<bool>(), 0usize..3);
    check(
        (sides, kinds, bytes(), bytes()),
        |((z, m, k, n), (left, right, zeros), a, b)| {
            let kind = |signed| if signed { DType::I8 } else { DType::U8 };
            let (left, right) = (kind(left), kind(right));
            let mut inputs = vec![bytes_of(left, &[z, m, k], &a), bytes_of(right, &[k, n], &b)];
            let names: &[&str] = match zeros {
                0 => &["a", "b"],
                _ => &["a", "b", "c", "d"],
            };
            if zeros > 0 {
                let dims = |each| if zeros == 2 { vec![each] } else { vec![] };
                inputs.push(bytes_of(left, &dims(m), &b));
                inputs.push(bytes_of(right, &dims(n), &a));
            }
            let product = node("MatMulInteger", names, &["y"]);
            agree_within(&product, &inputs, &[DType::I32], &[0.0]);
            Ok(())
        },
    );
}

#[test]
fn floats_are_quantised_within_a_step() {
    check((values(), 1usize..5, 0usize..4), |(x, c, which)| {
        let x: Vec<f32> = x.iter().map(|&it| it as f32 * 3.1).collect();
        let dtype = [DType::I8, DType::U8, DType::I16, DType::U16][which];
        let input = singles(&[2, c, 3], &x);
        for dims in [vec![], vec![c]] {
            let scale = singles(&dims, &[0.07, 0.11, 0.013]);
            let zero = bytes_of(dtype, &dims, &[3, 120, 7]);
            let quantise = node("QuantizeLinear", &["x", "s", "z"], &["y"]);
            let inputs = [input.clone(), scale.clone(), zero.clone()];
            agree_within(&quantise, &inputs, &[dtype], &[1.0]);
            let back = node("DequantizeLinear", &["x", "s", "z"], &["y"]);
            let inputs = [bytes_of(dtype, &[2, c, 3], &[0, 255, 17, 128]), scale, zero];
            agree_within(&back, &inputs, &[DType::F32], &[1e-6]);
        }
        let fitted = node("DynamicQuantizeLinear", &["x"], &["y", "s", "z"]);
        let types = [DType::U8, DType::F32, DType::U8];
        agree_within(&fitted, &[input], &types, &[1.0, 1e-6, 1.0]);
        Ok(())
    });
}

#[test]
fn a_quantised_product_is_right_within_a_step() {
    let bytes = || prop::collection::vec(any::<u8>(), 1..60);
    let sides = (1usize..40, 1usize..70, 1usize..40);
    check((sides, bytes(), bytes()), |((m, k, n), a, b)| {
        let names = ["a", "p", "q", "b", "r", "s", "t", "u"];
        let product = node("QLinearMatMul", &names, &["y"]);
        let inputs = [
            bytes_of(DType::U8, &[m, k], &a),
            singles(&[], &[0.01]),
            bytes_of(DType::U8, &[], &[113]),
            bytes_of(DType::I8, &[k, n], &b),
            singles(&[], &[0.02]),
            bytes_of(DType::I8, &[], &[4]),
            singles(&[], &[0.3]),
            bytes_of(DType::U8, &[], &[100]),
        ];
        agree_within(&product, &inputs, &[DType::U8], &[1.0]);
        Ok(())
    });
}

#[test]
fn floats_are_quantised_by_blocks_of_an_axis() {
    check((values(), 1usize..5, 1usize..4), |(x, c, block)| {
        let x: Vec<f32> = x.iter().map(|&it| it as f32 * 3.1).collect();
        let shared = [2, c.div_ceil(block), 3];
        let scale = singles(&shared, &[0.07, 0.11, 0.013, 0.2]);
        let zero = bytes_of(DType::I8, &shared, &[3, 120, 7, 250]);
        let by_block = |node| with_int(node, "block_size", block as i64);
        let quantise = by_block(node("QuantizeLinear", &["x", "s", "z"], &["y"]));
        let inputs = [singles(&[2, c, 3], &x), scale.clone(), zero.clone()];
        agree_within(&quantise, &inputs, &[DType::I8], &[1.0]);
        let back = by_block(node("DequantizeLinear", &["x", "s", "z"], &["y"]));
        let bytes = bytes_of(DType::I8, &[2, c, 3], &[0, 255, 17, 128]);
        agree_within(&back, &[bytes, scale, zero], &[DType::F32], &[1e-6]);
        Ok(())
    });
}

#[test]
fn floats_become_the_nearest_of_4_bits_and_are_widened_again() {
    let eighths = DType::F4E2M1;
    let cast = |to: DType| with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
    let sizes = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let between = |pair: &[f32]| {
        let middle = (pair[0] + pair[1]) / 2.0;
        [pair[0], middle.next_down(), middle, middle.next_up()]
    };
    let mut floats: Vec<f32> = sizes.windows(2).flat_map(between).collect();
    floats.extend([6.0, 7.5, f32::INFINITY, f32::MIN_POSITIVE, 0.0]);
    floats.extend(floats.clone().into_iter().map(|value| -value));
    floats.push(f32::NAN);
    let x = singles(&[floats.len()], &floats);
    let expected = made(&cpu(), &cast(eighths), std::slice::from_ref(&x), &[eighths]);
    let scale = singles(&[], &[0.5]);
    let quantise = with_int(
        node("QuantizeLinear", &["x", "s"], &["y"]),
        "output_dtype",
        eighths.onnx_code().into(),
    );
    for device in devices() {
        let found = made(device, &cast(eighths), std::slice::from_ref(&x), &[eighths]);
        assert_eq!(found, expected);
        let inputs = [x.clone(), scale.clone()];
        let halved = made(&cpu(), &quantise, &inputs, &[eighths]);
        assert_eq!(made(device, &quantise, &inputs, &[eighths]), halved);
    }
    for to in [DType::F32, DType::F16] {
        agree_within(&cast(to), &expected, &[to], &[0.0]);
    }
    let back = node("DequantizeLinear", &["x", "s"], &["y"]);
    let inputs = [expected[0].clone(), scale];
    agree_within(&back, &inputs, &[DType::F32], &[0.0]);
}

#[cfg(feature = "cuda")]
#[test]
fn what_brings_bytes_to_a_library_is_translated_and_compiled() {
    if !souk_testing::host::has_compiler() {
        return;
    }
    use crate::operators::{integers, products::library};
    for kernel in library::operand_kernels()
        .into_iter()
        .chain([integers::row_sums_kernel()])
    {
        paper::check(&kernel);
    }
}

#[test]
fn what_is_quantised_otherwise_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let quantise = with_int(
        node("QuantizeLinear", &["x", "s", "z"], &["y"]),
        "precision",
        DType::F16.onnx_code().into(),
    );
    let ports = [("x", DType::F32), ("s", DType::F32), ("z", DType::U8)];
    let graph = subgraph(&model(vec![quantise], &ports, &[("y", DType::U8)], &[]));
    let refused = gpu.compile(&graph).err().unwrap().to_string();
    assert!(refused.contains("precision"), "{refused}");
    let narrow = node("QuantizeLinear", &["x", "s", "z"], &["y"]);
    let ports = [("x", DType::F64), ("s", DType::F32), ("z", DType::U8)];
    let graph = subgraph(&model(vec![narrow], &ports, &[("y", DType::U8)], &[]));
    let refused = gpu.compile(&graph).err().unwrap().to_string();
    assert!(refused.contains("f64"), "{refused}");
}
