//! Tests that integers of 32 bits and fewer have the same bits on the GPU as on the CPU.

use proptest::collection::vec;

use super::quantised::{devices, made};
use super::*;

const TYPES: [DType; 6] = [
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::U32,
];

/// Integers of a type, whatever their bits.
pub(super) fn whole(dtype: DType, dims: &[usize], bits: &[u8]) -> Tensor {
    let bytes = dims.iter().product::<usize>() * dtype.bit_width() / 8;
    let bits: Vec<u8> = bits.iter().copied().cycle().take(bytes).collect();
    Tensor::new(dtype, Shape::new(dims.to_vec()).unwrap(), bits.into()).unwrap()
}

/// The same of a type of fewer than 8 bits; bits that no element has are zero.
fn narrow(dtype: DType, dims: &[usize], bits: &[u8]) -> Tensor {
    let shape = Shape::new(dims.to_vec()).unwrap();
    let count = shape.element_count() * dtype.bit_width();
    let mut bits: Vec<u8> = bits
        .iter()
        .copied()
        .cycle()
        .take(count.div_ceil(8))
        .collect();
    if let Some(last) = bits.last_mut().filter(|_| !count.is_multiple_of(8)) {
        *last &= (1u8 << (count % 8)) - 1;
    }
    Tensor::new(dtype, shape, bits.into()).unwrap()
}

fn agree(node: &NodeProto, inputs: &[Tensor], output: DType) {
    let expected = made(&cpu(), node, inputs, &[output]);
    for device in devices() {
        let found = made(device, node, inputs, &[output]);
        let operator = node.op_type();
        assert_eq!(found, expected, "{operator} of {}", inputs[0].dtype());
    }
}

/// Sides of two shapes that broadcast, and the bits of their elements; none is zero but here and
/// there, for comparisons.
pub(super) fn pairs() -> impl Strategy<Value = (usize, usize, Vec<u8>, Vec<u8>)> {
    let bits = || vec(prop_oneof![4 => any::<u8>(), 1 => Just(1u8)], 4..200);
    (1usize..5, 1usize..9, bits(), bits())
}

#[test]
fn integers_are_computed_with_as_the_cpu_does() {
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
    check(pairs(), |(rows, columns, left, right)| {
        for dtype in TYPES {
            let a = whole(dtype, &[rows, columns], &left);
            let b = whole(dtype, &[columns], &right);
            for name in two {
                agree(
                    &node(name, &["a", "b"], &["y"]),
                    &[a.clone(), b.clone()],
                    dtype,
                );
            }
            agree(
                &node("BitwiseNot", &["a"], &["y"]),
                std::slice::from_ref(&a),
                dtype,
            );
            if matches!(dtype, DType::I8 | DType::I16 | DType::I32) {
                for name in ["Abs", "Neg", "Sign"] {
                    agree(&node(name, &["a"], &["y"]), std::slice::from_ref(&a), dtype);
                }
            }
        }
        Ok(())
    });
}

/// Small numbers as the bytes of a type.
pub(super) fn spread(dtype: DType, values: &[u8]) -> Vec<u8> {
    let word = |&value: &u8| u64::from(value).to_le_bytes();
    let bytes = dtype.bit_width() / 8;
    let words = values
        .iter()
        .flat_map(|value| word(value).into_iter().take(bytes));
    words.collect()
}

#[test]
fn integers_are_divided_and_shifted_as_the_cpu_does() {
    check(pairs(), |(rows, columns, left, right)| {
        // Odd, so that none is zero.
        let right: Vec<u8> = right.iter().map(|byte| byte | 1).collect();
        for dtype in TYPES {
            let a = whole(dtype, &[rows, columns], &left);
            let b = whole(dtype, &[columns], &right);
            let (div, modulo) = (
                node("Div", &["a", "b"], &["y"]),
                node("Mod", &["a", "b"], &["y"]),
            );
            let remainder = with_int(modulo.clone(), "fmod", 1);
            for node in [div, modulo, remainder] {
                agree(&node, &[a.clone(), b.clone()], dtype);
            }
        }
        let places: Vec<u8> = right.iter().map(|byte| byte % 40).collect();
        for dtype in TYPES {
            let a = whole(dtype, &[rows, columns], &left);
            let by = whole(dtype, &[columns], &spread(dtype, &places));
            for direction in ["LEFT", "RIGHT"] {
                let shift = with(
                    node("BitShift", &["a", "b"], &["y"]),
                    "direction",
                    |attribute| {
                        attribute.s = Some(direction.into());
                    },
                );
                agree(&shift, &[a.clone(), by.clone()], dtype);
                // By fewer than none, too, where there is a sign.
                agree(
                    &shift,
                    &[a.clone(), whole(dtype, &[columns], &right)],
                    dtype,
                );
            }
            let power = node("Pow", &["a", "b"], &["y"]);
            agree(&power, &[a.clone(), by], dtype);
            for exponent in [DType::I8, DType::U16, DType::I32] {
                let by = whole(exponent, &[columns], &right);
                agree(&power, &[a.clone(), by], dtype);
            }
        }
        Ok(())
    });
}

#[test]
fn integers_are_compared_and_chosen_as_the_cpu_does() {
    let tests = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"];
    check(pairs(), |(rows, columns, left, right)| {
        for dtype in TYPES {
            let a = whole(dtype, &[rows, columns], &left);
            let b = whole(dtype, &[columns], &right);
            for name in tests {
                agree(
                    &node(name, &["a", "b"], &["y"]),
                    &[a.clone(), b.clone()],
                    DType::Bool,
                );
            }
            let count = rows * columns;
            let truths: Vec<bool> = left
                .iter()
                .map(|bits| bits & 1 == 1)
                .cycle()
                .take(count)
                .collect();
            let truths = Tensor::from_bools([rows, columns], &truths).unwrap();
            let choice = node("Where", &["c", "a", "b"], &["y"]);
            agree(&choice, &[truths.clone(), a.clone(), b.clone()], dtype);
            for name in ["And", "Or", "Xor", "Equal"] {
                let both = [truths.clone(), truths.clone()];
                agree(&node(name, &["a", "b"], &["y"]), &both, DType::Bool);
            }
        }
        Ok(())
    });
}

#[test]
fn integers_become_other_integers_and_truths_as_on_the_cpu() {
    check(pairs(), |(rows, columns, left, _)| {
        for from in TYPES {
            let x = whole(from, &[rows, columns], &left);
            for to in TYPES.into_iter().chain([DType::Bool, DType::F32]) {
                let cast = with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
                agree(&cast, std::slice::from_ref(&x), to);
            }
        }
        Ok(())
    });
}

#[test]
fn integers_are_padded_with_integers_and_a_mask_of_what_is_kept_is_true() {
    let pads = ("pads", Tensor::from_vec([2], vec![1i64, 2]).unwrap());
    for dtype in TYPES {
        let x = whole(dtype, &[5], &[200, 3, 255, 17]);
        let fill = ("fill", whole(dtype, &[], &[255]));
        for device in devices() {
            let pad = node("Pad", &["x", "pads", "fill"], &["y"]);
            let (inputs, outputs) = ([("x", dtype)], [("y", dtype)]);
            let graph = subgraph(&model(
                vec![pad],
                &inputs,
                &outputs,
                &[pads.clone(), fill.clone()],
            ));
            let given = BTreeMap::from([("x".to_owned(), x.clone())]);
            let made =
                |device: &dyn Processor| device.compile(&graph).unwrap().run(&given).unwrap();
            assert_eq!(made(device).outputs, made(&cpu()).outputs, "{dtype}");
        }
    }
    let x = tensor(DType::F32, &[2, 3], &[1.0, 2.0]);
    let dropout = node("Dropout", &["x"], &["y", "mask"]);
    for device in devices() {
        let found = made(
            device,
            &dropout,
            std::slice::from_ref(&x),
            &[DType::F32, DType::Bool],
        );
        assert_eq!(
            found,
            [x.clone(), Tensor::from_bools([2, 3], &[true; 6]).unwrap()]
        );
    }
}

#[test]
fn integers_of_few_bits_are_unpacked_and_packed_as_the_cpu_does() {
    check(pairs(), |(rows, columns, left, _)| {
        for from in [DType::I4, DType::U4, DType::I2, DType::U2] {
            let x = narrow(from, &[rows, columns], &left);
            for to in [DType::I8, DType::U8, DType::F32, DType::F16, from] {
                let cast = with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
                agree(&cast, std::slice::from_ref(&x), to);
            }
            let wide = whole(DType::I8, &[rows, columns], &left);
            let cast = with_int(node("Cast", &["x"], &["y"]), "to", from.onnx_code().into());
            agree(&cast, &[wide], from);
            let scale = Tensor::from_vec([columns], vec![0.5f32; columns]).unwrap();
            let zero = narrow(from, &[columns], &left);
            let back = node("DequantizeLinear", &["x", "s", "z"], &["y"]);
            agree(&back, &[x, scale.clone(), zero.clone()], DType::F32);
            let floats = left
                .iter()
                .map(|&byte| f32::from(byte) * 0.25 - 30.0)
                .cycle();
            let floats: Vec<f32> = floats.take(rows * columns).collect();
            let floats = Tensor::from_vec([rows, columns], floats).unwrap();
            let quantise = node("QuantizeLinear", &["x", "s", "z"], &["y"]);
            agree(&quantise, &[floats, scale, zero], from);
        }
        Ok(())
    });
}

#[test]
fn a_zero_among_divisors_is_an_error_and_no_number() {
    let divide = node("Div", &["a", "b"], &["y"]);
    let ports = [("a", DType::I32), ("b", DType::I32)];
    let graph = subgraph(&model(vec![divide], &ports, &[("y", DType::I32)], &[]));
    let given = ["a", "b"].map(|name| {
        let values = [i32::from(name == "a"), 2];
        (
            name.to_owned(),
            Tensor::from_vec([2], values.to_vec()).unwrap(),
        )
    });
    for device in devices() {
        let program = device.compile(&graph).unwrap();
        let error = program.run(&BTreeMap::from(given.clone())).unwrap_err();
        assert!(error.to_string().contains("zero"), "{error}");
    }
}
