//! Floats of 16 bits of the device's own beside those that lie two to a word: the same bits, and
//! half the memory of floats of 32.

use super::*;
use crate::gpu::packed::Halves;

/// A GPU of its own whose kernels have halves in one way; `None` where they cannot.
fn having(halves: Halves) -> Option<Gpu> {
    let adapters = adapters();
    let gpu = Gpu::unmeasured(adapters.first()?, GpuConfig::default()).unwrap();
    match halves {
        Halves::Words => gpu.context.keep_words(),
        Halves::Own => gpu.context.try_halves(),
    }
    if gpu.context.halves() != halves {
        eprintln!("skipped: this adapter has no right halves of its own");
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
    gpu.context.try_halves();
    let has = gpu.context.driver().has_halves();
    eprintln!(
        "it has halves of its own: {has}; used: {:?}",
        gpu.context.halves()
    );
    if !has {
        assert_eq!(gpu.context.halves(), Halves::Words);
    }
    // Mesa's is the one of which it is known.
    if gpu.profile().model.contains("llvmpipe") && has {
        assert_eq!(gpu.context.halves(), Halves::Own);
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
