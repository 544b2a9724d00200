//! Tests that exact programs give the same bits with all vector instructions of this machine, on
//! one thread and on two, and that operators which are not exact are refused by name.

use std::num::NonZeroUsize;
use std::sync::Arc;

use proptest::prelude::*;
use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_memory::npy;
use souk_onnx::subgraph::Subgraph;
use souk_testing::{
    cpu_profile, model, named_tensors, node, noise_tensor, subgraph, subgraph_with_dims, with_int,
    with_ints,
};
use souk_vocabulary::processor::Processor;

use super::*;
use crate::Cpu;
use crate::segments::Segments;

/// The ids of the results of the bundled model of digits, by the number of images.
const DIGITS: [(usize, &str); 3] = [
    (
        1,
        "48fe7ffbf6a8cb3cca2bedac8193f7035239eccf42d35e4076ff6e67dc78c952",
    ),
    (
        7,
        "ae542fe25c9b92a87bb4cdbf741ec23114f1ff9cd45c0e73e0563bc2c4390711",
    ),
    (
        360,
        "bbd38bc5cc68455ea351f995ea0364f66e057df54f1ff5f4e3ff1918723093a7",
    ),
];

type Outputs = BTreeMap<String, Tensor>;

fn run_exact(subgraph: &Subgraph, inputs: &Outputs, isa: Isa, threads: usize) -> Outputs {
    let graph = Graph::from_subgraph(subgraph).unwrap();
    check_exact(&graph).unwrap();
    let threads = Arc::new(ThreadPool::with_num_threads(threads));
    let segments = Segments::compile_exact(graph, &threads, isa).unwrap();
    let mut outputs = segments.run(inputs).unwrap();
    canonicalise_outputs(&mut outputs);
    outputs
}

/// The outputs, once all instructions and numbers of threads have given the same bits.
fn run_on_all(subgraph: &Subgraph, inputs: &Outputs) -> Outputs {
    let mut found: Option<Outputs> = None;
    for isa in Isa::all_supported() {
        for threads in [1, 2] {
            let outputs = run_exact(subgraph, inputs, isa, threads);
            let first = found.get_or_insert_with(|| outputs.clone());
            for (name, tensor) in &outputs {
                let (id, first) = (tensor.id(), first[name].id());
                assert_eq!(id, first, "{name} with {isa:?} on {threads} threads");
            }
        }
    }
    found.unwrap()
}

fn digits() -> (Subgraph, Tensor) {
    let folder = std::path::Path::new("../../testnet/models/digits");
    let model = std::fs::read(folder.join("digits.onnx")).unwrap().into();
    let images = npy::read(&std::fs::read(folder.join("images.npy")).unwrap().into()).unwrap();
    let whole = Subgraph {
        model,
        ..Subgraph::default()
    };
    (whole, images)
}

#[test]
fn the_digits_model_gives_the_bits_of_the_table_everywhere() {
    let (whole, images) = digits();
    let values = images.to_vec::<f32>().unwrap();
    let opened = Cpu::new_exact(cpu_profile(), NonZeroUsize::MIN);
    let program = opened.compile(&whole).unwrap();
    let found = DIGITS.map(|(count, _)| {
        let floats = values[..count * 64].to_vec();
        let some = Tensor::from_vec([count, 1, 8, 8], floats).unwrap();
        let inputs = named_tensors(&[("images", some)]);
        let id = run_on_all(&whole, &inputs)["logits"].id();
        assert_eq!(program.run(&inputs).unwrap().outputs["logits"].id(), id);
        (count, id.to_string())
    });
    assert_eq!(found, DIGITS.map(|(count, id)| (count, id.to_owned())));
}

#[test]
fn operators_that_are_not_exact_are_refused_by_name() {
    let opened = Cpu::new_exact(cpu_profile(), NonZeroUsize::MIN);
    for operator in ["Exp", "Softmax", "Div", "LRN"] {
        let nodes = vec![node(operator, &["x"], &["y"])];
        let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &[]);
        let refused = opened.compile(&subgraph(&model)).err().unwrap().to_string();
        assert!(
            refused.contains(operator) && refused.contains("exact-1"),
            "{refused}"
        );
    }
    let nodes = vec![node("Relu", &["x"], &["y"])];
    let halves = model(nodes, &[("x", DType::F16)], &[("y", DType::F16)], &[]);
    let refused = opened
        .compile(&subgraph(&halves))
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("Relu"), "{refused}");
}

#[test]
fn each_nan_and_each_zero_has_one_form() {
    let bits = [
        0x7fc0_1234,
        0xffc0_0000,
        0x8000_0000,
        0,
        0x3f80_0000,
        0x7f80_0001,
    ];
    let values: Vec<f32> = bits.map(f32::from_bits).to_vec();
    let mut outputs = named_tensors(&[("y", Tensor::from_vec([6], values).unwrap())]);
    canonicalise_outputs(&mut outputs);
    let found = outputs["y"].to_vec::<f32>().unwrap();
    let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
    let nan = CANONICAL_NAN;
    assert_eq!(found, [nan, nan, 0, 0, 0x3f80_0000, nan]);
}

/// Values that tell fused products and orders apart, with NaN, infinities and zeros among them.
fn odd_tensor(dims: &[usize], seed: u64) -> Tensor {
    let mut values = noise_tensor(dims, seed).to_vec::<f32>().unwrap();
    let odd = [
        f32::NAN,
        -0.0,
        f32::INFINITY,
        f32::from_bits(0xffc0_0123),
        1e-42,
    ];
    for (place, value) in values.iter_mut().enumerate().skip(seed as usize % 5) {
        if place % 97 == 3 {
            *value = odd[(place + seed as usize) % odd.len()];
        }
    }
    Tensor::from_vec(dims, values).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn networks_over_images_give_the_same_bits_everywhere(
        (groups, depth, filters, size) in (1_usize..4, 1_usize..9, 1_usize..40, 4_usize..9),
        (kernel, stride, pad) in (1_usize..4, 1_i64..3, 0_i64..2),
        depthwise in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (groups, depth, filters) = match depthwise {
            true => (filters, 1, filters),
            false => (groups, depth, groups * filters),
        };
        let channels = groups * depth;
        let convolution = with_int(node("Conv", &["x", "w", "b"], &["c"]), "group", groups as i64);
        let convolution = with_ints(convolution, "strides", &[stride, stride]);
        let convolution = with_ints(convolution, "pads", &[pad; 4]);
        let pool = with_ints(node("MaxPool", &["r"], &["p"]), "kernel_shape", &[2, 2]);
        let pool = with_ints(pool, "pads", &[1; 4]);
        let mean = with_ints(node("AveragePool", &["p"], &["a"]), "kernel_shape", &[2, 2]);
        let mean = with_ints(mean, "pads", &[1; 4]);
        let nodes = vec![
            convolution,
            node("Relu", &["c"], &["r"]),
            pool,
            mean,
            node("GlobalAveragePool", &["a"], &["g"]),
            with_int(node("Flatten", &["g"], &["f"]), "axis", 1),
            node("MatMul", &["f", "m"], &["y"]),
        ];
        let weights = [
            ("w", odd_tensor(&[filters, depth, kernel, kernel], seed ^ 1)),
            ("b", noise_tensor(&[filters], seed ^ 2)),
            ("m", noise_tensor(&[filters, 5], seed ^ 3)),
        ];
        let outputs = [("y", DType::F32), ("r", DType::F32), ("a", DType::F32)];
        let model = model(nodes, &[("x", DType::F32)], &outputs, &weights);
        let whole = subgraph_with_dims(model, &[("x", &[2, channels, size, size])]);
        let inputs = named_tensors(&[("x", odd_tensor(&[2, channels, size, size], seed))]);
        let made = run_on_all(&whole, &inputs);
        prop_assert_eq!(made.len(), 3);
    }
}
