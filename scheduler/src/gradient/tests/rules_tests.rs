//! Tests each rule of differentiation against finite differences.

use super::*;

fn node(operator: &str, inputs: &[&str]) -> NodeProto {
    NodeProto::for_operator(operator, inputs, "y")
}

#[test]
fn products_of_matrices() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[3, 4], &[4, 2]),
        (&[2, 3, 4], &[4, 2]),
        (&[2, 3, 4], &[2, 4, 2]),
        (&[3, 4], &[2, 4, 2]),
        (&[2, 1, 3, 4], &[3, 4, 2]),
        (&[4], &[4, 2]),
        (&[3, 4], &[4]),
        (&[2, 3, 4], &[4]),
        (&[4], &[4]),
    ];
    for (left, right) in shapes {
        let inputs = vec![("a", doubles(left, 1)), ("b", doubles(right, 2))];
        Case::of_operator(node("MatMul", &["a", "b"]), inputs).check();
    }
}

#[test]
fn products_of_matrices_with_a_sum() {
    for (left, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for bias in [&[2][..], &[3, 2], &[1, 2], &[3, 1], &[]] {
            let a: &[usize] = if left == 0 { &[3, 4] } else { &[4, 3] };
            let b: &[usize] = if right == 0 { &[4, 2] } else { &[2, 4] };
            let gemm = node("Gemm", &["a", "b", "c"])
                .with("transA", i64::from(left))
                .with("transB", i64::from(right))
                .with("alpha", 0.5_f32)
                .with("beta", 2.0_f32);
            let inputs = vec![
                ("a", doubles(a, 1)),
                ("b", doubles(b, 2)),
                ("c", doubles(bias, 3)),
            ];
            Case::of_operator(gemm, inputs).check();
        }
    }
}

#[test]
fn arithmetic_sums_over_the_axes_of_a_broadcast() {
    let shapes: &[(&[usize], &[usize])] = &[
        (&[2, 3], &[2, 3]),
        (&[2, 3], &[3]),
        (&[1, 3], &[2, 1]),
        (&[], &[2, 3]),
        (&[2, 1, 3], &[4, 1]),
    ];
    for operator in ["Add", "Sub", "Mul", "Div"] {
        for (left, right) in shapes {
            let inputs = vec![("a", doubles(left, 1)), ("b", positive(right, 2))];
            Case::of_operator(node(operator, &["a", "b"]), inputs).check();
        }
    }
}

#[test]
fn functions_of_one_value() {
    for operator in [
        "Neg",
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Erf",
        "Abs",
        "Identity",
    ] {
        let inputs = vec![("x", doubles(&[3, 5], 4))];
        Case::of_operator(node(operator, &["x"]), inputs).check();
    }
    for operator in ["Log", "Sqrt", "Reciprocal"] {
        let inputs = vec![("x", positive(&[3, 5], 4))];
        Case::of_operator(node(operator, &["x"]), inputs).check();
    }
    for exponent in [2.0, 3.0, 0.5, -1.5] {
        let inputs = vec![("x", positive(&[7], 4))];
        let exponent = Tensor::scalar(exponent);
        Case::of_operator(node("Pow", &["x", "e"]), inputs)
            .with_constant("e", exponent)
            .check();
    }
}

#[test]
fn shares_of_a_whole() {
    for operator in ["Softmax", "LogSoftmax"] {
        for axis in [-1, 0, 1] {
            let softmax = node(operator, &["x"]).with("axis", axis);
            Case::of_operator(softmax, vec![("x", doubles(&[2, 3, 4], 5))]).check();
        }
    }
}

#[test]
fn sums_and_means_over_axes() {
    for keep in [0, 1] {
        let by_input = node("ReduceSum", &["x", "axes"]).with("keepdims", keep);
        let inputs = || vec![("x", doubles(&[2, 3, 4], 6))];
        let case = Case::of_operator(by_input, inputs());
        case.with_constant("axes", ints(&[0, -1])).check();
        let by_attribute = node("ReduceMean", &["x"]).with("keepdims", keep);
        Case::of_operator(by_attribute.clone(), inputs()).check();
        Case::of_operator(by_attribute.with("axes", vec![1]), inputs()).check();
        let newer = node("ReduceMean", &["x", "axes"]).with("keepdims", keep);
        let case = Case::of_operator(newer, inputs()).with_opset(18);
        case.with_constant("axes", ints(&[1, 2])).check();
    }
}

#[test]
fn normalisations() {
    for (axis, dims) in [(-1, &[4][..]), (1, &[3, 4])] {
        let layer = node("LayerNormalization", &["x", "s", "b"]).with("axis", axis);
        let inputs = vec![
            ("x", doubles(&[2, 3, 4], 7)),
            ("s", positive(dims, 8)),
            ("b", doubles(dims, 9)),
        ];
        Case::of_operator(layer, inputs).check();
    }
    let batch = node("BatchNormalization", &["x", "s", "b", "m", "v"]);
    let inputs = vec![
        ("x", doubles(&[2, 3, 2, 2], 7)),
        ("s", positive(&[3], 8)),
        ("b", doubles(&[3], 9)),
    ];
    Case::of_operator(batch, inputs)
        .with_constant("m", doubles(&[3], 10))
        .with_constant("v", positive(&[3], 11))
        .check();
}

#[test]
fn pieces_of_decoders() {
    for (axis, dims) in [(-1, &[4][..]), (1, &[3, 4])] {
        let norm = node("RMSNormalization", &["x", "s"]).with("axis", axis);
        let inputs = vec![("x", doubles(&[2, 3, 4], 7)), ("s", positive(dims, 8))];
        Case::of_operator(norm, inputs).with_opset(24).check();
    }
    for alpha in [1.0_f32, 1.5] {
        let swish = node("Swish", &["x"]).with("alpha", alpha);
        let x = vec![("x", doubles(&[2, 3], 9))];
        Case::of_operator(swish, x).with_opset(24).check();
    }
    // All numbers of a head rotate, or the first four; pairs are half the width apart, or next to
    // each other.
    for (part, interleaved) in [(0, 0), (4, 0), (4, 1)] {
        let rotation = node("RotaryEmbedding", &["x", "c", "s", "p"])
            .with("rotary_embedding_dim", part)
            .with("interleaved", interleaved);
        let half = if part == 0 { 3 } else { 2 };
        Case::of_operator(rotation, vec![("x", doubles(&[2, 2, 3, 6], 12))])
            .with_constant("c", doubles(&[5, half], 13))
            .with_constant("s", doubles(&[5, half], 14))
            .with_constant(
                "p",
                Tensor::from_vec([2, 3], vec![0_i64, 1, 2, 4, 3, 1]).unwrap(),
            )
            .with_opset(24)
            .check();
    }
}

#[test]
fn moves_of_elements() {
    let x = || vec![("x", doubles(&[2, 3, 4], 12))];
    let reshape = Case::of_operator(node("Reshape", &["x", "to"]), x());
    reshape.with_constant("to", ints(&[4, -1])).check();
    Case::of_operator(node("Flatten", &["x"]).with("axis", 2), x()).check();
    Case::of_operator(node("Transpose", &["x"]), x()).check();
    Case::of_operator(node("Transpose", &["x"]).with("perm", vec![1, 2, 0]), x()).check();
    let unsqueeze = Case::of_operator(node("Unsqueeze", &["x", "axes"]), x());
    unsqueeze.with_constant("axes", ints(&[1])).check();
    let one = vec![("x", doubles(&[2, 1, 4], 12))];
    let squeeze = Case::of_operator(node("Squeeze", &["x", "axes"]), one.clone());
    squeeze.with_constant("axes", ints(&[1])).check();
    let expand = Case::of_operator(node("Expand", &["x", "to"]), one);
    expand.with_constant("to", ints(&[3, 2, 5, 4])).check();
    let inputs = vec![("a", doubles(&[2, 3], 1)), ("b", doubles(&[2, 1], 2))];
    Case::of_operator(node("Concat", &["a", "b"]).with("axis", -1), inputs).check();
}

#[test]
fn rows_that_are_chosen_several_times() {
    let gather = node("Gather", &["x", "i"]);
    let indices = Tensor::from_vec([2, 3], vec![0_i64, 3, 0, -1, 2, 0]).unwrap();
    let inputs = vec![("x", doubles(&[4, 3], 13)), ("i", indices)];
    Case::of_operator(gather, inputs).check();
}

#[test]
fn convolutions() {
    let windows: &[(&[i64], &[i64], &[i64])] = &[
        (&[1, 1], &[1, 1], &[0, 0, 0, 0]),
        (&[1, 1], &[1, 1], &[1, 1, 1, 1]),
        (&[2, 1], &[1, 1], &[1, 0, 0, 2]),
        (&[2, 3], &[1, 2], &[1, 1, 1, 1]),
        (&[1, 1], &[2, 1], &[0, 0, 0, 0]),
    ];
    for (strides, dilations, pads) in windows {
        let conv = node("Conv", &["x", "w", "b"])
            .with("strides", strides.to_vec())
            .with("dilations", dilations.to_vec())
            .with("pads", pads.to_vec());
        let inputs = vec![
            ("x", doubles(&[2, 2, 6, 7], 14)),
            ("w", doubles(&[3, 2, 3, 2], 15)),
            ("b", doubles(&[3], 16)),
        ];
        Case::of_operator(conv, inputs).check();
    }
    let same = node("Conv", &["x", "w"]).with("auto_pad", "SAME_UPPER");
    let inputs = vec![
        ("x", doubles(&[1, 2, 5, 5], 14)),
        ("w", doubles(&[2, 2, 2, 3], 15)),
    ];
    Case::of_operator(same, inputs).check();
}

#[test]
fn poolings() {
    let windows: &[(&[i64], &[i64], &[i64])] = &[
        (&[2, 2], &[2, 2], &[0, 0, 0, 0]),
        (&[3, 3], &[1, 1], &[1, 1, 1, 1]),
        (&[3, 2], &[2, 1], &[1, 0, 0, 1]),
    ];
    for (kernel, strides, pads) in windows {
        for operator in ["MaxPool", "AveragePool"] {
            let pool = node(operator, &["x"])
                .with("kernel_shape", kernel.to_vec())
                .with("strides", strides.to_vec())
                .with("pads", pads.to_vec());
            let pool = match operator {
                "MaxPool" => pool,
                _ => pool.with("count_include_pad", 1),
            };
            Case::of_operator(pool, vec![("x", doubles(&[2, 2, 6, 7], 17))]).check();
        }
    }
    let x = vec![("x", doubles(&[2, 3, 4, 5], 18))];
    Case::of_operator(node("GlobalAveragePool", &["x"]), x).check();
}

#[test]
fn a_value_that_several_nodes_read_gets_the_sum() {
    let nodes = vec![
        NodeProto::for_operator("Tanh", &["x"], "t"),
        NodeProto::for_operator("Mul", &["t", "x"], "p"),
        NodeProto::for_operator("MatMul", &["p", "t"], "q"),
        NodeProto::for_operator("Add", &["q", "x"], "y"),
    ];
    Case::new(nodes, vec![("x", doubles(&[3, 3], 19))]).check();
}

#[test]
fn of_equal_elements_the_first_gets_the_gradient_of_a_pool() {
    let pool = node("MaxPool", &["x"]).with("kernel_shape", vec![2, 2]);
    let x = Tensor::from_vec([1, 1, 2, 2], vec![1.0, 2.0, 2.0, 2.0]).unwrap();
    let case = Case::of_operator(pool, vec![("x", x)]);
    let weights = Tensor::from_vec([1, 1, 1, 1], vec![3.0]).unwrap();
    let gradients = case.gradients(&weights).unwrap();
    assert_eq!(
        gradients["x"].to_vec::<f64>().unwrap(),
        [0.0, 3.0, 0.0, 0.0]
    );
}

/// Returns the loss of an output, and the gradient of it.
fn loss_of(loss: Loss, output: &Tensor, target: &Tensor) -> (f64, Vec<f64>) {
    let value = |name: &str, it: &Tensor| LossValue {
        name: name.to_owned(),
        dtype: it.dtype(),
        dims: it.dims().to_vec(),
    };
    let mut writer = Writer::new(17, DType::F64);
    let written = loss.write(&value("x", output), &value("t", target), &mut writer);
    let inputs = vec![
        declare("x", DType::F64, output.dims()),
        declare("t", target.dtype(), target.dims()),
    ];
    let outputs = [written.loss.as_str(), written.gradient.as_str()];
    let model = model(writer.nodes, inputs, &outputs, writer.constants, 17);
    let given = [
        ("x".to_owned(), output.clone()),
        ("t".to_owned(), target.clone()),
    ];
    let made = run(&model, &given.into());
    let loss = made[&written.loss].to_vec::<f64>().unwrap()[0];
    (loss, made[&written.gradient].to_vec::<f64>().unwrap())
}

#[test]
fn losses() {
    let labels = Tensor::from_vec([3], vec![1_i64, 0, 3]).unwrap();
    let cases = [
        (Loss::CrossEntropy, labels),
        (Loss::CountedCrossEntropy, ints(&[1, -100, 3])),
        (Loss::MeanSquaredError, doubles(&[3, 4], 20)),
    ];
    for (loss, target) in cases {
        let x = doubles(&[3, 4], 21);
        let (_, found) = loss_of(loss, &x, &target);
        let values = x.to_vec::<f64>().unwrap();
        for (place, found) in found.iter().enumerate() {
            let moved = |change: f64| {
                let mut moved = values.clone();
                moved[place] += change;
                loss_of(loss, &Tensor::from_vec([3, 4], moved).unwrap(), &target).0
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            assert!(
                (found - expected).abs() <= TOLERANCE,
                "{loss:?}: {found} {expected}"
            );
        }
    }
}

#[test]
fn labels_that_do_not_count_change_neither_loss_nor_gradient() {
    let logits = doubles(&[3, 4], 22);
    let whole = logits.to_vec::<f64>().unwrap();
    let some = Tensor::from_vec([2, 4], [&whole[..4], &whole[8..]].concat()).unwrap();
    let counted = Loss::CountedCrossEntropy;
    let (loss, gradient) = loss_of(counted, &logits, &ints(&[1, -1, 3]));
    let (expected, rows) = loss_of(Loss::CrossEntropy, &some, &ints(&[1, 3]));
    assert!((loss - expected).abs() < 1e-12, "{loss} {expected}");
    assert_eq!(gradient[4..8], [0.0; 4]);
    for (found, expected) in [&gradient[..4], &gradient[8..]].concat().iter().zip(rows) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    let (loss, gradient) = loss_of(counted, &logits, &ints(&[-1, -1, -1]));
    assert_eq!((loss, gradient), (0.0, vec![0.0; 12]));
}

#[test]
fn a_masked_class_leaves_the_loss_a_number() {
    let logits = Tensor::from_vec([1, 3], vec![1.0_f64, f64::NEG_INFINITY, 2.0]).unwrap();
    let label = Tensor::from_vec([1], vec![2_i64]).unwrap();
    let (loss, gradient) = loss_of(Loss::CrossEntropy, &logits, &label);
    assert!(
        (loss - (1.0 + (-1.0_f64).exp()).ln()).abs() < 1e-12,
        "{loss}"
    );
    assert!(gradient.iter().all(|element| element.is_finite()) && gradient[1] == 0.0);
}

#[test]
fn a_power_of_zero_has_no_gradient() {
    let zero = Tensor::from_vec([2], vec![0.0_f64, 3.0]).unwrap();
    let exponent = Tensor::from_vec([1], vec![0.0_f64]).unwrap();
    let case = Case::of_operator(node("Pow", &["a", "e"]), vec![("a", zero)]);
    let found = case
        .with_constant("e", exponent)
        .gradients(&doubles(&[2], 1));
    let found = found.unwrap();
    let all = found.values().flat_map(|it| it.to_vec::<f64>().unwrap());
    assert!(all.into_iter().all(|element| element == 0.0), "{found:?}");
}

#[test]
fn windows_beyond_the_padding_are_refused() {
    let pool = node("AveragePool", &["a"])
        .with("kernel_shape", vec![2i64, 2])
        .with("strides", vec![2i64, 2])
        .with("ceil_mode", 1)
        .with("count_include_pad", 1);
    let case = Case::of_operator(pool, vec![("a", doubles(&[1, 1, 5, 5], 1))]);
    let found = case.gradients(&doubles(&[1, 1, 3, 3], 2));
    assert!(matches!(found, Err(GradientError::Unsupported { .. })));
}

#[test]
fn an_operator_without_a_rule_is_refused_by_name() {
    let case = Case::of_operator(
        node("CumSum", &["x", "axis"]),
        vec![("x", doubles(&[3], 1))],
    )
    .with_constant("axis", Tensor::scalar(0_i64));
    let refused = case.gradients(&doubles(&[3], 2)).unwrap_err();
    assert!(
        matches!(&refused, GradientError::Operator { operator, .. } if operator == "CumSum"),
        "{refused}"
    );
}
