//! Tests that a device's own 16-bit floats give the same bits as those packed two to a word, and
//! that models of them take half the memory of 32-bit floats.

use super::*;
use crate::numbers::packed::Halves;

/// A GPU of its own whose kernels have halves in one way; `None` where they cannot.
fn having(halves: Halves) -> Option<Gpu> {
    let gpu = open(GpuConfig::default())?;
    match halves {
        Halves::Words => gpu.context.keep_words(),
        Halves::Own => gpu.context.try_halves(probe::probe_halves),
    }
    if gpu.context.half_support() != halves {
        eprintln!("SKIPPED: this adapter has no right halves of its own");
        return None;
    }
    Some(gpu)
}

fn halves(dims: &[usize], values: &[f64]) -> Tensor {
    tensor(DType::F16, dims, values)
}

#[test]
fn an_adapter_whose_own_halves_are_right_has_them_used() {
    let Some(gpu) = gpu() else { return };
    gpu.context.try_halves(probe::probe_halves);
    let has = gpu.context.driver().has_halves();
    eprintln!(
        "it has halves of its own: {has}; used: {:?}",
        gpu.context.half_support()
    );
    if !has {
        assert_eq!(gpu.context.half_support(), Halves::Words);
    }
    // Mesa's is the one of which it is known.
    if gpu.profile().model.contains("llvmpipe") && has {
        assert_eq!(gpu.context.half_support(), Halves::Own);
    }
}

#[test]
fn a_devices_own_halves_give_the_bits_that_words_give() {
    let (Some(own), Some(words)) = (having(Halves::Own), having(Halves::Words)) else {
        return;
    };
    let layers = |last: &str| {
        vec![
            node("MatMul", &["x", "w"], &["p"]),
            node("Add", &["p", "b"], &["q"]),
            node(last, &["q"], &["r"]),
            node("Mul", &["r", "x0"], &["t"]),
            node("Clip", &["t", "low", "high"], &["u"]),
            node("Softmax", &["u"], &["v"]),
            node("Sum", &["v", "u", "x0"], &["y"]),
        ]
    };
    let convolved = |groups: i64| {
        let conv = node("Conv", &["i", "k", "c"], &["p"]);
        let conv = with_ints(with_int(conv, "group", groups), "pads", &[1; 4]);
        vec![conv, node("Sigmoid", &["p"], &["y"])]
    };
    let sides = (1usize..4, 1usize..70, 1usize..40, 1usize..70);
    check((sides, values(), values()), |((z, m, k, n), a, b)| {
        let weights = [
            ("w", halves(&[k, n], &b)),
            ("b", halves(&[n], &a)),
            ("x0", halves(&[1], &b)),
            ("low", halves(&[], &[-3.0])),
            ("high", halves(&[], &[3.5])),
        ];
        let x = halves(&[z, m, k], &a);
        for last in ["Relu", "Gelu"] {
            same(&[&own, &words], layers(last), ("x", &x), &weights)?;
        }
        let (c, side) = (z, m % 9 + 3);
        let image = halves(&[1, c, side, side + 1], &a);
        let dense = [("k", halves(&[n, c, 3, 3], &b)), ("c", halves(&[n], &b))];
        same(&[&own, &words], convolved(1), ("i", &image), &dense)?;
        let thin = [("k", halves(&[c, 1, 3, 3], &b)), ("c", halves(&[c], &b))];
        same(&[&own, &words], convolved(c as i64), ("i", &image), &thin)
    });
}

/// All devices make the same bytes of a graph.
fn same(
    devices: &[&Gpu],
    nodes: Vec<NodeProto>,
    (name, input): (&str, &Tensor),
    weights: &[(&str, Tensor)],
) -> Result<(), TestCaseError> {
    let (from, to) = ([(name, DType::F16)], [("y", DType::F16)]);
    let graph = subgraph(&model(nodes, &from, &to, weights));
    let given = BTreeMap::from([(name.to_owned(), input.clone())]);
    let run = |device: &&Gpu| device.compile(&graph).unwrap().run(&given).unwrap().outputs;
    let made: Vec<_> = devices.iter().map(run).collect();
    for other in &made[1..] {
        prop_assert_eq!(&made[0], other);
    }
    Ok(())
}

#[test]
fn a_model_of_halves_holds_half_the_memory() {
    const SIDE: usize = 512;
    let Some(own) = having(Halves::Own) else {
        return;
    };
    let wave: Vec<f64> = (0..997).map(|at| f64::from(at).sin() * 0.05).collect();
    let held = |dtype: DType| {
        let weight = tensor(dtype, &[SIDE, SIDE], &wave);
        let weights = [("v", weight.clone()), ("w", weight)];
        let nodes = vec![
            node("MatMul", &["x", "v"], &["p"]),
            node("Gelu", &["p"], &["q"]),
            node("Add", &["q", "x"], &["r"]),
            node("MatMul", &["r", "w"], &["s"]),
            node("Tanh", &["s"], &["y"]),
        ];
        let graph = subgraph(&model(nodes, &[("x", dtype)], &[("y", dtype)], &weights));
        own.context.let_go();
        let before = own.context.used_bytes();
        let program = own.compile(&graph).unwrap();
        let given = BTreeMap::from([("x".to_owned(), tensor(dtype, &[SIDE, SIDE], &wave))]);
        let outcome = program.run(&given).unwrap();
        assert_eq!(outcome.outputs["y"].dtype(), dtype);
        let bytes = own.context.used_bytes() - before + own.context.resting_bytes();
        eprintln!("{dtype}: {bytes} bytes are held after a run");
        bytes
    };
    let (half, whole) = (held(DType::F16), held(DType::F32));
    assert!(half * 2 <= whole + (whole >> 4), "{half} of {whole} bytes");
}

/// Nodes over an input `x` of four dimensions, with their weights, that read and write halves as
/// they lie.
fn over_images(channels: usize, wave: &[f64]) -> Vec<(NodeProto, Vec<(&'static str, Tensor)>)> {
    let each = |name| (name, halves(&[channels], wave));
    let window = |name: &str| with_ints(node(name, &["x"], &["y"]), "kernel_shape", &[2, 3]);
    let scaled = |name: &str| node(name, &["x", "s", "b"], &["y"]);
    let grouped = with_int(scaled("GroupNormalization"), "num_groups", 1);
    let last = scaled("LayerNormalization");
    let first = with_int(scaled("RMSNormalization"), "axis", -1);
    let spread = halves(&[channels, 2, 3, 2], wave);
    let mut all = vec![
        (scaled("InstanceNormalization"), vec![each("s"), each("b")]),
        (grouped, vec![each("s"), each("b")]),
        (
            last,
            vec![("s", halves(&[1], wave)), ("b", halves(&[1], wave))],
        ),
        (
            first,
            vec![("s", halves(&[1], wave)), ("b", halves(&[1], wave))],
        ),
        (
            node("ConvTranspose", &["x", "w"], &["y"]),
            vec![("w", spread)],
        ),
        (with_int(node("LRN", &["x"], &["y"]), "size", 3), Vec::new()),
        (node("Attention", &["x", "x", "x"], &["y"]), Vec::new()),
        (
            with_ints(node("Transpose", &["x"], &["y"]), "perm", &[0, 2, 3, 1]),
            Vec::new(),
        ),
        (
            with_int(node("Concat", &["x", "x"], &["y"]), "axis", 1),
            Vec::new(),
        ),
        (window("MaxPool"), Vec::new()),
        (window("AveragePool"), Vec::new()),
        (window("LpPool"), Vec::new()),
    ];
    let plain = [
        "Softmax",
        "LogSoftmax",
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceL2",
        "ReduceLogSumExp",
        "GlobalAveragePool",
        "GlobalMaxPool",
    ];
    all.extend(plain.map(|name| (node(name, &["x"], &["y"]), Vec::new())));
    for (node, _) in &mut all {
        if node.op_type() == "RMSNormalization" {
            node.input.truncate(2);
        }
    }
    all
}

#[test]
fn what_brings_halves_together_gives_the_bits_that_words_give() {
    let (Some(own), Some(words)) = (having(Halves::Own), having(Halves::Words)) else {
        return;
    };
    let sides = (1usize..3, 1usize..4, 3usize..12, 3usize..40);
    check((sides, values()), |((n, c, h, w), wave)| {
        let x = halves(&[n, c, h, w], &wave);
        for (node, weights) in over_images(c, &wave) {
            same(&[&own, &words], vec![node], ("x", &x), &weights)?;
        }
        Ok(())
    });
}

#[test]
fn no_widened_copy_of_a_tensor_of_halves_is_written() {
    let Some(own) = having(Halves::Own) else {
        return;
    };
    let wave: Vec<f64> = (0..997).map(|at| f64::from(at).sin()).collect();
    let (x, count) = (halves(&[1, 4, 512, 512], &wave), 4 * 512 * 512);
    for (node, weights) in over_images(4, &wave) {
        // Its matrix of scores would take longer than all others.
        if node.op_type() == "Attention" {
            continue;
        }
        let (from, to) = ([("x", DType::F16)], [("y", DType::F16)]);
        let graph = subgraph(&model(vec![node.clone()], &from, &to, &weights));
        own.context.let_go();
        let program = own.compile(&graph).unwrap();
        let given = BTreeMap::from([("x".to_owned(), x.clone())]);
        let made = program.run(&given).unwrap().outputs["y"]
            .shape()
            .element_count();
        // What it made, in halves, and small change; a widened copy has four bytes an element.
        let held = own.context.resting_bytes();
        let most = 2 * made as u64 + (1 << 19);
        let operator = node.op_type();
        assert!(
            held <= most,
            "{operator} of {count}: {held} bytes, {most} expected"
        );
    }
}
