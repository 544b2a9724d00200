//! Tests chains of nodes that are fused into one kernel, against the same chains in 64-bit floats.

use super::*;

/// Sizes, and values in their order.
type Values = (Vec<usize>, Vec<f64>);

/// A chain from `x`, its weights named `w` and `b`, in all types and on all devices.
fn agree(nodes: &[NodeProto], x: Values, weights: &[(&str, Values)]) {
    let devices = [
        gpu(),
        #[cfg(feature = "cuda")]
        on_paper(),
    ];
    for (dtype, tolerance) in [
        (DType::F32, TOLERANCE),
        (DType::F16, 1.0 / 1024.0),
        (DType::Bf16, 1.0 / 128.0),
    ] {
        let made = |device: &dyn Processor, made_in: DType| {
            let of = |(dims, values): &Values| tensor(made_in, dims, &rounded(dtype, values));
            let weights: Vec<(&str, Tensor)> =
                weights.iter().map(|(name, it)| (*name, of(it))).collect();
            let (x_port, y_port) = (("x", made_in), ("y", made_in));
            let graph = subgraph(&model(nodes.to_vec(), &[x_port], &[y_port], &weights));
            let program = device.compile(&graph).unwrap();
            let given = BTreeMap::from([("x".to_owned(), of(&x))]);
            let mut outcome = program.run(&given).unwrap();
            outcome.outputs.remove("y").unwrap()
        };
        let expected = made(&cpu(), DType::F64);
        let values = expected.to_f64s().unwrap();
        let largest = values.iter().fold(1.0, |most: f64, it| most.max(it.abs()));
        for device in devices.into_iter().flatten() {
            let found = made(device, dtype);
            assert_eq!(found.dims(), expected.dims());
            for (found, expected) in found.to_f64s().unwrap().iter().zip(&values) {
                let near = (found - expected).abs() <= tolerance * largest;
                assert!(near, "{dtype}: {found} {expected}");
            }
        }
    }
}

fn some(dims: &[usize], seed: f64) -> Values {
    let count: usize = dims.iter().product();
    let value = |at: usize| (at as f64 * 0.37 + seed).sin();
    (dims.to_vec(), (0..count).map(value).collect())
}

#[test]
fn what_follows_a_product_is_done_with_it() {
    let product = || node("MatMul", &["x", "w"], &["p"]);
    let added = || node("Add", &["p", "b"], &["q"]);
    let weights = [
        ("w", some(&[18, 70], 1.0)),
        ("b", some(&[70], 2.0)),
        ("most", (vec![], vec![0.25])),
    ];
    let clip = node("Clip", &["q", "", "most"], &["y"]);
    let gelu = with(node("Gelu", &["q"], &["y"]), "approximate", |attribute| {
        attribute.s = Some("tanh".into());
    });
    let leaky = with(node("LeakyRelu", &["q"], &["y"]), "alpha", |attribute| {
        attribute.f = Some(0.3);
    });
    for last in [node("Relu", &["q"], &["y"]), gelu, clip, leaky] {
        agree(
            &[product(), added(), last],
            some(&[2, 33, 18], 0.0),
            &weights,
        );
    }
    // A function that two nodes away reads what was fused.
    let tail = [
        product(),
        added(),
        node("Tanh", &["q"], &["r"]),
        node("Neg", &["r"], &["y"]),
    ];
    agree(&tail, some(&[5, 18], 0.0), &weights);
}

#[test]
fn what_follows_a_convolution_is_done_with_it() {
    for (channels, filters, groups) in [(3, 12, 1), (4, 4, 4)] {
        let conv = with_int(node("Conv", &["x", "w", "b"], &["p"]), "group", groups);
        let weights = [
            ("w", some(&[filters, channels / groups as usize, 3, 3], 1.0)),
            ("b", some(&[filters], 2.0)),
        ];
        let relu = node("Relu", &["p"], &["y"]);
        agree(&[conv, relu], some(&[2, channels, 9, 8], 0.0), &weights);
    }
    let spread = node("ConvTranspose", &["x", "w", "b"], &["p"]);
    let weights = [("w", some(&[3, 5, 2, 2], 1.0)), ("b", some(&[5], 2.0))];
    let sigmoid = node("Sigmoid", &["p"], &["y"]);
    agree(&[spread, sigmoid], some(&[1, 3, 4, 6], 0.0), &weights);
}
