//! Tests the image engine against the reference kernels: random networks of random sizes, at every
//! vector width that this machine has.

use proptest::prelude::*;
use souk_host::isa::Isa;
use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::subgraph::Subgraph;
use souk_reference as reference;
use souk_testing::{
    assert_near, model, named_tensors as scope, node, noise_tensor, subgraph, subgraph_with_dims,
    with_int, with_ints,
};
use souk_vocabulary::processor::Processor;

use super::super::tests::cpu;
use super::*;

/// How far a result may be off, relative to the largest: sums of a few hundred products in 32 bits.
const TOLERANCE: f32 = 2e-5;

/// What the model gives here, with every width of vectors, and on the reference kernels.
fn both(subgraph: &Subgraph, inputs: &Scope) -> (Vec<Scope>, Scope) {
    let graph =
        super::super::fold_and_merge::fold_constants(&Graph::from_subgraph(subgraph).unwrap());
    let threads = Arc::new(ThreadPool::with_num_threads(2));
    let run = |isa| {
        let mut model = ImageModel::new(&graph, &threads, &Arc::default())
            .expect("every node has an operator here");
        model.isa = isa;
        model.pack_weights(&mut PackedWeights::default());
        for (name, held) in &graph.weights {
            if let Some(unpacked) = model.unpack_weight(name) {
                assert_eq!(
                    unpacked, *held,
                    "{isa:?} {name}: packing only moves weights"
                );
            }
        }
        let first = model.run(inputs).expect("the sizes fit");
        assert_eq!(
            first,
            model.run(inputs).unwrap(),
            "a second run gives the same"
        );
        first
    };
    let found = Isa::all_supported().into_iter().map(run).collect();
    let mut scope = inputs.clone();
    scope.extend(graph.weights.clone());
    reference::run_nodes(graph.nodes(), &mut scope, graph.opset).unwrap();
    let wanted = graph.outputs.iter().map(|port| &port.name);
    let expected = wanted.map(|name| (name.clone(), scope[name].clone()));
    (found, expected.collect())
}

fn assert_close(subgraph: &Subgraph, inputs: &Scope) {
    let (found, expected) = both(subgraph, inputs);
    for (isa, found) in Isa::all_supported().into_iter().zip(found) {
        assert_near(&found, &expected, TOLERANCE, &format!("{isa:?}"));
    }
}

/// A convolution of random make.
#[derive(Clone, Debug)]
struct Make {
    samples: usize,
    groups: usize,
    depth: usize,
    filters_each: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    strides: [i64; 2],
    dilations: [i64; 2],
    pads: [i64; 4],
    held: bool,
    seed: u64,
}

fn make() -> impl Strategy<Value = Make> {
    let channels = (1usize..3, 1usize..4, 1usize..20, 1usize..70);
    let sizes = ([1usize..4, 1..4], [4usize..11, 4..11]);
    let moves = (
        [1i64..3, 1..3],
        [1i64..3, 1..3],
        [0i64..2, 0..2, 0..2, 0..2],
    );
    (channels, sizes, moves, any::<bool>(), any::<u64>()).prop_map(
        |((samples, groups, depth, filters), (kernel, size), moves, held, seed)| Make {
            samples,
            groups,
            depth,
            filters_each: filters,
            size,
            kernel,
            strides: moves.0,
            dilations: moves.1,
            pads: moves.2,
            held,
            seed,
        },
    )
}

fn convolution(make: &Make, inputs: &[&str], output: &str) -> NodeProto {
    let node = with_int(node("Conv", inputs, &[output]), "group", make.groups as i64);
    let node = with_ints(node, "strides", &make.strides);
    let node = with_ints(node, "dilations", &make.dilations);
    with_ints(node, "pads", &make.pads)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn convolutions_are_those_of_the_reference(make in make()) {
        let filters = make.groups * make.filters_each;
        let x = [make.samples, make.groups * make.depth, make.size[0] + 2, make.size[1] + 2];
        let w = [filters, make.depth, make.kernel[0], make.kernel[1]];
        let nodes = vec![convolution(&make, &["x", "w", "b"], "c"), node("Relu", &["c"], &["y"])];
        let (weights, bias) = (noise_tensor(&w, make.seed ^ 1), noise_tensor(&[filters], make.seed ^ 2));
        let image = noise_tensor(&x, make.seed);
        if make.held {
            let weights = [("w", weights), ("b", bias)];
            let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
            assert_close(&subgraph_with_dims(model, &[("x", &x)]), &scope(&[("x", image)]));
        } else {
            let ports = [("x", DType::F32), ("w", DType::F32), ("b", DType::F32)];
            let model = model(nodes, &ports, &[("y", DType::F32)], &[]);
            let given = scope(&[("x", image), ("w", weights), ("b", bias)]);
            assert_close(&subgraph_with_dims(model, &[("x", &x), ("w", &w)]), &given);
        }
    }

    #[test]
    fn depthwise_convolutions_are_those_of_the_reference(
        mut make in make(), channels in 2usize..40
    ) {
        (make.groups, make.depth, make.filters_each) = (channels, 1, 1);
        let x = [make.samples, channels, make.size[0] + 2, make.size[1] + 2];
        let w = [channels, 1, make.kernel[0], make.kernel[1]];
        let nodes = vec![convolution(&make, &["x", "w"], "y")];
        let weights = [("w", noise_tensor(&w, make.seed))];
        let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
        assert_close(&subgraph_with_dims(model, &[("x", &x)]), &scope(&[("x", noise_tensor(&x, 7))]));
    }

    #[test]
    fn pools_are_those_of_the_reference(
        kind in 0usize..3, kernel in [1i64..4, 1..4], strides in [1i64..3, 1..3],
        pads in [0i64..2, 0..2, 0..2, 0..2], size in [3usize..9, 3..9], channels in 1usize..40,
        ceil in any::<bool>(),
    ) {
        // A window that sees only padding has no largest value.
        let pads = pads.map(|pad| pad.min(kernel[0] - 1).min(kernel[1] - 1));
        let operator = ["MaxPool", "AveragePool", "AveragePool"][kind];
        let mut pool = with_ints(node(operator, &["c"], &["y"]), "kernel_shape", &kernel);
        pool = with_ints(with_ints(pool, "strides", &strides), "pads", &pads);
        if kind == 2 {
            pool = with_int(pool, "count_include_pad", 1);
        } else if ceil {
            pool = with_int(pool, "ceil_mode", 1);
        }
        let x = [2, channels, size[0], size[1]];
        let nodes = vec![node("Conv", &["x", "w"], &["c"]), pool];
        let weights = [("w", noise_tensor(&[channels, channels, 1, 1], 3))];
        let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
        assert_close(&subgraph_with_dims(model, &[("x", &x)]), &scope(&[("x", noise_tensor(&x, 5))]));
    }
}

/// A block with everything: normalisation before and after, a residual, a concatenation of
/// concatenations, a shuffle, pools, neighbours.
fn block() -> (Subgraph, Scope) {
    let norm = |from: &str, to: &str| {
        node(
            "BatchNormalization",
            &[from, "scale", "shift", "mean", "variance"],
            &[to],
        )
    };
    let padded = |node: NodeProto| with_ints(node, "pads", &[1, 1, 1, 1]);
    let concat = |from: &[&str], to: &str| with_int(node("Concat", from, &[to]), "axis", 1);
    let turn = with_ints(
        node("Transpose", &["s1"], &["s2"]),
        "perm",
        &[0, 2, 1, 3, 4],
    );
    let nodes = vec![
        padded(node("Conv", &["x", "w0"], &["a0"])),
        norm("a0", "a1"),
        node("Mul", &["a1", "factor"], &["a2"]),
        node("Add", &["a2", "summand"], &["a3"]),
        node("Relu", &["a3"], &["a"]),
        padded(node("Conv", &["a", "w1"], &["b0"])),
        norm("b0", "b1"),
        node("Add", &["a", "b1"], &["b2"]),
        node("Relu", &["b2"], &["b"]),
        concat(&["a", "b"], "c"),
        node("Dropout", &["c"], &["c1"]),
        node("Conv", &["c1", "w2"], &["d"]),
        concat(&["c", "d"], "e"),
        node("Reshape", &["e", "wide"], &["s1"]),
        turn,
        node("Reshape", &["s2", "narrow"], &["s"]),
        node("Relu", &["s"], &["s3"]),
        with_int(node("LRN", &["s3"], &["l"]), "size", 5),
        node("Sum", &["l", "s", "e"], &["sum"]),
        node("GlobalAveragePool", &["sum"], &["y"]),
        node("Clip", &["sum", "low", "high"], &["z"]),
    ];
    let list = |values: Vec<i64>| Tensor::from_vec([values.len()], values).unwrap();
    let positive = Tensor::from_vec([6], vec![0.5f32, 1.0, 2.0, 0.25, 0.75, 1.5]).unwrap();
    let weights = [
        ("w0", noise_tensor(&[6, 3, 3, 3], 1)),
        ("w1", noise_tensor(&[6, 6, 3, 3], 2)),
        ("w2", noise_tensor(&[8, 12, 1, 1], 3)),
        ("scale", noise_tensor(&[6], 4)),
        ("shift", noise_tensor(&[6], 5)),
        ("mean", noise_tensor(&[6], 6)),
        ("variance", positive),
        ("factor", noise_tensor(&[6, 1, 1], 8)),
        ("summand", noise_tensor(&[1, 6, 1, 1], 9)),
        ("wide", list(vec![2, 4, 5, 7, 6])),
        ("narrow", list(vec![2, 20, 7, 6])),
        ("low", Tensor::scalar(-0.5f32)),
        ("high", Tensor::scalar(0.75f32)),
    ];
    let outputs = [("y", DType::F32), ("z", DType::F32), ("b", DType::F32)];
    let model = model(nodes, &[("x", DType::F32)], &outputs, &weights);
    let dims = [2, 3, 7, 6];
    (
        subgraph_with_dims(model, &[("x", &dims)]),
        scope(&[("x", noise_tensor(&dims, 11))]),
    )
}

#[test]
fn a_block_of_everything_is_that_of_the_reference() {
    let (subgraph, inputs) = block();
    assert_close(&subgraph, &inputs);
}

#[test]
fn what_is_between_convolutions_is_drawn_into_them() {
    let (subgraph, _) = block();
    let graph =
        super::super::fold_and_merge::fold_constants(&Graph::from_subgraph(&subgraph).unwrap());
    let plan = ImagePlan::new(&graph).unwrap();
    let convolutions = plan.steps.iter();
    let convolutions = convolutions.filter(|it| matches!(it.action, ImageAction::Convolve(_)));
    assert_eq!(convolutions.count(), 3);
    assert_eq!(plan.steps.len(), 11, "of 21 nodes: {:#?}", plan.steps);
}

#[test]
fn what_is_put_together_where_it_lies_is_no_task_and_dropped_nothing_parts_no_run() {
    let split = |output: &str, weights: &str| node("Conv", &["x", weights], &[output]);
    let nodes = vec![
        split("left", "v"),
        split("right", "w"),
        with_int(node("Concat", &["left", "right"], &["both"]), "axis", 1),
        node("Dropout", &["both"], &["kept", "mask"]),
        node("Conv", &["kept", "u"], &["y"]),
    ];
    let weights = [
        ("u", noise_tensor(&[3, 4, 1, 1], 1)),
        ("v", noise_tensor(&[2, 2, 3, 3], 2)),
        ("w", noise_tensor(&[2, 2, 3, 3], 3)),
    ];
    let x = [1, 2, 40, 40];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
    let (subgraph, given) = (
        subgraph_with_dims(model, &[("x", &x)]),
        scope(&[("x", noise_tensor(&x, 4))]),
    );
    assert_close(&subgraph, &given);

    let graph = Graph::from_subgraph(&subgraph).unwrap();
    assert!(
        classify_nodes(&graph).iter().all(Option::is_some),
        "one run of nodes"
    );
    let threads = Arc::new(ThreadPool::with_num_threads(2));
    let mut images = ImageModel::new(&graph, &threads, &Arc::default()).unwrap();
    images.pack_weights(&mut PackedWeights::default());
    images.run(&given).unwrap();
    let laid = images.last.lock().unwrap().clone().unwrap();
    let concat = |it: &Step<ImageAction>| matches!(it.action, ImageAction::Concat);
    let step = images.plan.steps.iter().position(concat).unwrap();
    let (_, split) = laid.stages[images.plan.inputs.len() + step];
    assert_eq!(split.tasks, 0);
}

#[test]
fn the_largest_of_a_window_is_no_number_where_one_is() {
    let x = [1, 33, 2, 2];
    let nodes = vec![
        with_int(node("Conv", &["x", "w"], &["c"]), "group", 33),
        with_ints(node("MaxPool", &["c"], &["y"]), "kernel_shape", &[2, 2]),
    ];
    let weights = [(
        "w",
        Tensor::from_vec([33, 1, 1, 1], vec![1f32; 33]).unwrap(),
    )];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
    let subgraph = subgraph_with_dims(model, &[("x", &x)]);
    for at in 0..4 {
        let value = |place: usize| match place % 4 == at {
            true => f32::NAN,
            false => place as f32,
        };
        let values: Vec<f32> = (0..33 * 4).map(value).collect();
        let given = scope(&[("x", Tensor::from_vec(x, values).unwrap())]);
        for found in both(&subgraph, &given).0 {
            let found = found["y"].to_vec::<f32>().unwrap();
            assert!(found.iter().all(|it| it.is_nan()), "{at}: {found:?}");
        }
    }
}

#[test]
fn what_is_no_number_and_what_is_infinite_pass() {
    let x = [1, 1, 2, 2];
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        node("Relu", &["c"], &["y"]),
    ];
    let one = Tensor::from_vec([1, 1, 1, 1], vec![1f32]).unwrap();
    let model = model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("w", one)],
    );
    let values = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0];
    let given = scope(&[("x", Tensor::from_vec(x, values).unwrap())]);
    let subgraph = subgraph_with_dims(model, &[("x", &x)]);
    for found in both(&subgraph, &given).0 {
        let found = found["y"].to_vec::<f32>().unwrap();
        assert!(found[0].is_nan());
        assert_eq!(found[1..], [f32::INFINITY, 0.0, 0.0]);
    }
}

#[test]
fn sizes_that_do_not_fit_are_an_error_of_the_node() {
    let nodes = vec![node("Conv", &["x", "w"], &["y"])];
    let weights = [("w", noise_tensor(&[2, 3, 1, 1], 1))];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
    let mut open = model.clone();
    let dims = vec![souk_onnx::Dimension::new_symbol("n"); 4];
    let code = DType::F32.onnx_code();
    open.graph.as_mut().unwrap().input[0] =
        souk_onnx::ValueInfoProto::new_tensor("x", code, Some(dims));
    let program = cpu().compile(&subgraph(&open)).unwrap();
    let given = scope(&[("x", noise_tensor(&[1, 5, 4, 4], 1))]);
    let error = program.run(&given).unwrap_err().to_string();
    assert!(error.contains("Conv"), "{error}");
    let right = scope(&[("x", noise_tensor(&[1, 3, 4, 4], 1))]);
    assert_eq!(
        program.run(&right).unwrap().outputs["y"].dims(),
        [1, 2, 4, 4]
    );
}

#[test]
fn sizes_without_a_layout_run_on_weights_that_were_packed() {
    // A window further across than any picture's.
    let far = with_ints(node("Conv", &["x", "w"], &["c"]), "dilations", &[1025, 1]);
    let nodes = vec![
        far,
        node(
            "BatchNormalization",
            &["c", "two", "no", "no", "one"],
            &["y"],
        ),
    ];
    let list = |value: f32| Tensor::from_vec([1], vec![value]).unwrap();
    let weights = [
        (
            "w",
            Tensor::from_vec([1, 1, 2, 1], vec![3f32, 5.0]).unwrap(),
        ),
        ("two", list(2.0)),
        ("no", list(0.0)),
        ("one", list(1.0)),
    ];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
    let dims = [1, 1, 1026, 1];
    let program = cpu()
        .compile(&subgraph_with_dims(model, &[("x", &dims)]))
        .unwrap();
    let mut values = vec![0f32; 1026];
    (values[0], values[1025]) = (1.0, 10.0);
    let given = scope(&[("x", Tensor::from_vec(dims, values).unwrap())]);
    let made = program.run(&given).unwrap().outputs["y"]
        .to_vec::<f32>()
        .unwrap();
    assert!((made[0] - 106.0).abs() < 1e-2, "{made:?}");
}

#[test]
fn a_panic_of_a_task_ends_every_thread() {
    let pool = ThreadPool::with_num_threads(2);
    let run = || {
        worker_pool::run(&pool, &[4, 4], |stage, task| {
            assert!(stage == 0 || task != 2)
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
}
