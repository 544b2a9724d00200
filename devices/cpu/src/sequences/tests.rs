//! Tests the sequence engine against the reference kernels: random transformer layers in the forms
//! that exporters write, at every vector width that this machine has.

use proptest::prelude::*;
use souk_memory::DType;
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{AttributeProto, AttributeType, ModelProto, NodeProto};
use souk_reference as reference;
use souk_testing::{
    assert_near, model, named_tensors, node, noise_tensor, subgraph_with_dims, with_int, with_ints,
};
use souk_vocabulary::processor::Processor;

use super::super::tests::cpu;
use super::*;

/// How far a result may be off, relative to the largest: sums of a few hundred products in 32 bits,
/// through a softmax and two normalisations.
const TOLERANCE: f32 = 4e-5;

fn with_float(mut node: NodeProto, name: &str, float: f32) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        f: Some(float),
        r#type: Some(AttributeType::Float as i32),
        ..AttributeProto::default()
    });
    node
}

fn turned(input: &str, output: &str, axes: &[i64]) -> NodeProto {
    with_ints(node("Transpose", &[input], &[output]), "perm", axes)
}

fn scalar(value: f32) -> Tensor {
    Tensor::from_vec([], vec![value]).unwrap()
}

fn integers(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

/// A layer of random make.
#[derive(Clone, Debug)]
struct Make {
    batch: usize,
    length: usize,
    heads: usize,
    each: usize,
    hidden: usize,
    /// Axes of the mask that are of full size; `None` is no mask.
    mask: Option<[bool; 4]>,
    /// Which of several forms of the same thing is written.
    forms: [bool; 6],
    seed: u64,
}

impl Make {
    fn features(&self) -> usize {
        self.heads * self.each
    }

    fn mask_dims(&self, full: [bool; 4]) -> Vec<usize> {
        let sizes = [self.batch, self.heads, self.length, self.length];
        let pairs = sizes.into_iter().zip(full);
        pairs
            .map(|(size, full)| if full { size } else { 1 })
            .collect()
    }

    fn nodes(&self) -> Vec<NodeProto> {
        let [
            one_turn,
            divides,
            scaled_first,
            mask_left,
            by_parts,
            counted,
        ] = self.forms;
        let mut nodes = Vec::new();
        for name in ["q", "k", "v"] {
            let at = |part: &str| format!("{name}_{part}");
            let weights = at("weights");
            nodes.push(node("MatMul", &["x", &weights], &[&at("product")]));
            nodes.push(node("Add", &[&at("product"), &at("bias")], &[&at("rows")]));
            let split = if counted { "split_counted" } else { "split" };
            nodes.push(node("Reshape", &[&at("rows"), split], &[&at("split")]));
            match (name, one_turn) {
                ("k", true) => nodes.push(turned("k_split", "k_heads", &[0, 2, 3, 1])),
                ("k", false) => {
                    nodes.push(turned("k_split", "k_turned", &[0, 2, 1, 3]));
                    nodes.push(turned("k_turned", "k_heads", &[0, 1, 3, 2]));
                }
                _ => nodes.push(turned(&at("split"), &at("heads"), &[0, 2, 1, 3])),
            }
        }
        let scale = |from: &str, to: &str| match divides {
            true => node("Div", &[from, "root"], &[to]),
            false => node("Mul", &["scale", from], &[to]),
        };
        if scaled_first {
            nodes.push(scale("q_heads", "q_scaled"));
            nodes.push(node("MatMul", &["q_scaled", "k_heads"], &["scores"]));
        } else {
            nodes.push(node("MatMul", &["q_heads", "k_heads"], &["raw"]));
            nodes.push(scale("raw", "scores"));
        }
        let scores = match (self.mask, mask_left) {
            (None, _) => "scores",
            (_, true) => {
                nodes.push(node("Add", &["mask", "scores"], &["masked"]));
                "masked"
            }
            _ => {
                nodes.push(node("Add", &["scores", "mask"], &["masked"]));
                "masked"
            }
        };
        nodes.push(with_int(
            node("Softmax", &[scores], &["shares"]),
            "axis",
            -1,
        ));
        nodes.push(node("MatMul", &["shares", "v_heads"], &["found"]));
        nodes.push(turned("found", "unturned", &[0, 2, 1, 3]));
        nodes.push(node("Reshape", &["unturned", "merge"], &["merged"]));
        nodes.push(node("MatMul", &["merged", "out_weights"], &["out"]));
        nodes.push(node("Add", &["out_bias", "out"], &["shifted"]));
        nodes.push(node("Add", &["x", "shifted"], &["summed"]));
        nodes.push(normalised("summed", "first"));
        nodes.push(node("MatMul", &["first", "up_weights"], &["up"]));
        nodes.push(node("Add", &["up", "up_bias"], &["wide"]));
        match by_parts {
            true => nodes.extend(gelu_by_parts("wide", "active")),
            false => nodes.push(node("Gelu", &["wide"], &["active"])),
        }
        nodes.push(node("MatMul", &["active", "down_weights"], &["down"]));
        nodes.push(node("Add", &["down", "first"], &["last"]));
        nodes.push(normalised("last", "y"));
        nodes
    }

    fn weights(&self) -> Vec<(&'static str, Tensor)> {
        let wide = self.features();
        let root = (self.each as f32).sqrt();
        let mut seed = self.seed;
        // So small that sums stay near one, however many they are of.
        let mut drawn = |dims: &[usize]| {
            seed = seed.wrapping_add(1);
            let factor = (dims[0] as f32).sqrt().recip();
            let values: Vec<f32> = noise_tensor(dims, seed).to_vec().unwrap();
            let values: Vec<f32> = values.iter().map(|value| value * factor).collect();
            Tensor::from_vec(dims, values).unwrap()
        };
        let [heads, each, all] = [self.heads, self.each, wide].map(|it| it as i64);
        vec![
            ("q_weights", drawn(&[wide, wide])),
            ("k_weights", drawn(&[wide, wide])),
            ("v_weights", drawn(&[wide, wide])),
            ("q_bias", drawn(&[wide])),
            ("k_bias", drawn(&[wide])),
            ("v_bias", drawn(&[wide])),
            ("out_weights", drawn(&[wide, wide])),
            ("out_bias", drawn(&[wide])),
            ("up_weights", drawn(&[wide, self.hidden])),
            ("up_bias", drawn(&[self.hidden])),
            ("down_weights", drawn(&[self.hidden, wide])),
            ("factors", drawn(&[wide])),
            ("summands", drawn(&[wide])),
            ("split", integers(&[0, 0, heads, each])),
            ("split_counted", integers(&[0, -1, heads, each])),
            ("merge", integers(&[0, 0, all])),
            ("root", scalar(root)),
            ("scale", scalar(root.recip())),
            ("two_root", scalar(std::f32::consts::SQRT_2)),
            ("one", scalar(1.0)),
            ("half", scalar(0.5)),
        ]
    }

    fn graph(&self) -> (Subgraph, Scope) {
        let x = [self.batch, self.length, self.features()];
        let mut ports = vec![("x", DType::F32)];
        let mut given = vec![("x", noise_tensor(&x, self.seed))];
        let mut sizes: Vec<(&str, Vec<usize>)> = vec![("x", x.to_vec())];
        if let Some(full) = self.mask {
            let dims = self.mask_dims(full);
            ports.push(("mask", DType::F32));
            given.push(("mask", noise_tensor(&dims, self.seed ^ 9)));
            sizes.push(("mask", dims));
        }
        let model = model(self.nodes(), &ports, &[("y", DType::F32)], &self.weights());
        let sizes: Vec<(&str, &[usize])> = sizes.iter().map(|(n, d)| (*n, &d[..])).collect();
        (subgraph_with_dims(model, &sizes), named_tensors(&given))
    }
}

fn normalised(input: &str, output: &str) -> NodeProto {
    let norm = node(
        "LayerNormalization",
        &[input, "factors", "summands"],
        &[output],
    );
    with_float(with_int(norm, "axis", -1), "epsilon", 0.5)
}

fn gelu_by_parts(input: &str, output: &str) -> Vec<NodeProto> {
    vec![
        node("Div", &[input, "two_root"], &["over"]),
        node("Erf", &["over"], &["error"]),
        node("Add", &["error", "one"], &["plus"]),
        node("Mul", &[input, "plus"], &["times"]),
        node("Mul", &["times", "half"], &[output]),
    ]
}

fn make() -> impl Strategy<Value = Make> {
    let sizes = (1usize..4, 1usize..80, 1usize..4, 1usize..70, 1usize..150);
    let forms = any::<[bool; 6]>();
    (sizes, any::<Option<[bool; 4]>>(), forms, any::<u64>()).prop_map(
        |((batch, length, heads, each, hidden), mask, forms, seed)| Make {
            batch,
            length,
            heads,
            each,
            hidden,
            mask,
            forms,
            seed,
        },
    )
}

fn expected(graph: &Graph, inputs: &Scope) -> Scope {
    let mut scope = inputs.clone();
    scope.extend(graph.weights.clone());
    reference::run_nodes(graph.nodes(), &mut scope, graph.opset).unwrap();
    let wanted = graph.outputs.iter().map(|port| &port.name);
    wanted
        .map(|name| (name.clone(), scope[name].clone()))
        .collect()
}

/// Compares every width of vectors and two numbers of threads with the reference kernels.
fn assert_close(subgraph: &Subgraph, inputs: &Scope) {
    let graph = Graph::from_subgraph(subgraph).unwrap();
    let expected = expected(&graph, inputs);
    for (isa, threads) in Isa::all_supported()
        .into_iter()
        .flat_map(|isa| [(isa, 1), (isa, 3)])
    {
        let threads = Arc::new(ThreadPool::with_num_threads(threads));
        let mut sequences = SequenceModel::new(&graph, &threads, &Arc::default())
            .expect("every node has an operator here");
        sequences.isa = isa;
        sequences.pack_weights(&mut PackedWeights::default());
        for name in graph.weights.keys() {
            if let Some(unpacked) = sequences.unpack_weight(name) {
                let what = format!("{isa:?} {name}: packing only moves weights");
                assert_eq!(unpacked, graph.weights[name], "{what}");
            }
        }
        let first = sequences.run(inputs).expect("the sizes fit");
        assert_near(&first, &expected, TOLERANCE, &format!("{isa:?}"));
        let again = sequences.run(inputs).unwrap();
        assert_eq!(first, again, "a second run gives the same");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn layers_are_those_of_the_reference(make in make()) {
        let (subgraph, inputs) = make.graph();
        assert_close(&subgraph, &inputs);
    }

    #[test]
    fn products_of_any_size_are_those_of_the_reference(
        (rows, depth, columns) in (1usize..60, 1usize..90, 1usize..150),
        (transposed, relu, seed) in (any::<bool>(), any::<bool>(), any::<u64>()),
    ) {
        let product = node("Gemm", &["x", "w", "b"], &["p"]);
        let product = with_int(product, "transB", i64::from(transposed));
        let last = if relu { "Relu" } else { "Gelu" };
        let dims = if transposed { [columns, depth] } else { [depth, columns] };
        let weights = [("w", noise_tensor(&dims, seed)), ("b", noise_tensor(&[columns], seed ^ 1))];
        let nodes = vec![product, node(last, &["p"], &["y"])];
        let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
        let given = named_tensors(&[("x", noise_tensor(&[rows, depth], seed ^ 2))]);
        assert_close(&subgraph_with_dims(model, &[("x", &[rows, depth])]), &given);
    }
}

fn small(forms: [bool; 6]) -> Make {
    Make {
        batch: 2,
        length: 5,
        heads: 2,
        each: 4,
        hidden: 9,
        mask: Some([true, false, false, true]),
        forms,
        seed: 3,
    }
}

/// The program of the whole backend on a model and the reference kernels on the same.
fn assert_backend(subgraph: &Subgraph, inputs: &Scope) {
    let graph = Graph::from_subgraph(subgraph).unwrap();
    let outcome = cpu().compile(subgraph).unwrap().run(inputs).unwrap();
    let expected = expected(&graph, inputs);
    assert_near(&outcome.outputs, &expected, TOLERANCE, "the backend");
}

#[test]
fn a_layer_is_one_run_of_nodes() {
    let (subgraph, inputs) = small([true; 6]).graph();
    let graph = Graph::from_subgraph(&subgraph).unwrap();
    let all = 0..graph.nodes().len();
    assert_eq!(find_runs(&graph, &[]), std::slice::from_ref(&all));
    assert!(find_runs(&graph, std::slice::from_ref(&all)).is_empty());
    assert_backend(&subgraph, &inputs);
}

#[test]
fn what_has_no_word_cuts_attention_and_products_stay() {
    let (subgraph, inputs) = small([false; 6]).graph();
    let mut model = souk_onnx::decode_model(subgraph.model).unwrap();
    rewire(&mut model, "found", "tanh", "Tanh");
    let subgraph = souk_testing::subgraph(&model);
    let graph = Graph::from_subgraph(&subgraph).unwrap();
    let found = find_runs(&graph, &[]);
    assert!(found.len() > 1, "{found:?}");
    let tanh = graph.nodes().iter().position(|it| it.op_type() == "Tanh");
    assert!(found.iter().all(|run| !run.contains(&tanh.unwrap())));
    assert_backend(&subgraph, &inputs);
}

/// Puts an operator behind what makes `value`, so that readers get its result.
fn rewire(model: &mut ModelProto, value: &str, made: &str, operator: &str) {
    let nodes = &mut model.graph.as_mut().unwrap().node;
    for node in nodes.iter_mut() {
        let read = node.input.iter_mut().filter(|name| *name == value);
        read.for_each(|name| *name = made.to_owned());
    }
    let maker = nodes
        .iter()
        .position(|it| it.output.iter().any(|name| name == value));
    nodes.insert(maker.unwrap() + 1, node(operator, &[value], &[made]));
}

#[test]
fn weights_that_others_read_too_stay() {
    let nodes = vec![
        node("MatMul", &["x", "w"], &["p"]),
        node("Gather", &["w", "places"], &["g"]),
        node("Tanh", &["p"], &["y"]),
    ];
    let places = Tensor::from_vec([1], vec![1i64]).unwrap();
    let weights = [("w", noise_tensor(&[4, 3], 1)), ("places", places)];
    let outputs = [("y", DType::F32), ("g", DType::F32)];
    let model = model(nodes, &[("x", DType::F32)], &outputs, &weights);
    let given = named_tensors(&[("x", noise_tensor(&[2, 4], 2))]);
    assert_backend(&subgraph_with_dims(model, &[("x", &[2, 4])]), &given);
}

#[test]
fn a_sum_that_repeats_rows_is_right() {
    let nodes = vec![
        node("MatMul", &["x", "w"], &["p"]),
        node("Add", &["p", "r"], &["y"]),
    ];
    let ports = [("x", DType::F32), ("r", DType::F32)];
    let model = model(
        nodes,
        &ports,
        &[("y", DType::F32)],
        &[("w", noise_tensor(&[4, 3], 1))],
    );
    let sizes: [(&str, &[usize]); 2] = [("x", &[2, 5, 4]), ("r", &[1, 5, 3])];
    let given = named_tensors(&[
        ("x", noise_tensor(&[2, 5, 4], 2)),
        ("r", noise_tensor(&[1, 5, 3], 3)),
    ]);
    assert_backend(&subgraph_with_dims(model, &sizes), &given);
}

#[test]
fn what_is_no_number_or_infinite_passes() {
    let nodes = vec![
        node("MatMul", &["x", "w"], &["p"]),
        node("Relu", &["p"], &["y"]),
    ];
    let weights = [("w", Tensor::from_vec([1, 1], vec![1f32]).unwrap())];
    let model = model(nodes, &[("x", DType::F32)], &[("y", DType::F32)], &weights);
    let subgraph = subgraph_with_dims(model, &[("x", &[4, 1])]);
    let x = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0];
    let given = named_tensors(&[("x", Tensor::from_vec([4, 1], x).unwrap())]);
    let outcome = cpu().compile(&subgraph).unwrap().run(&given).unwrap();
    let found = outcome.outputs["y"].to_vec::<f32>().unwrap();
    assert!(found[0].is_nan());
    assert_eq!(found[1..], [f32::INFINITY, 0.0, 0.0]);
}

#[test]
fn a_mask_of_minus_infinity_leaves_out_keys() {
    let mut make = small([true; 6]);
    make.batch = 1;
    let (subgraph, mut inputs) = make.graph();
    let mut mask = vec![0.0f32; 5];
    mask[3..].fill(f32::NEG_INFINITY);
    let mask = Tensor::from_vec([1, 1, 1, 5], mask).unwrap();
    inputs.insert("mask".to_owned(), mask);
    assert_backend(&subgraph, &inputs);
}
