//! Tests models with functions in bodies and of other versions, lists, and sparse constants. Each
//! model is imported, cut as one part and run on the CPU; the expected values are those of ONNX
//! Runtime 1.31.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::Tensor;
use souk_onnx::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    SparseTensorProto, TypeProto, ValueInfoProto, encode_model, subgraph, tensor_to_proto,
    type_proto,
};
use souk_scheduler::graph::{Bindings, Graph, ImportError, cut};
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i32 = 9;

fn declared(name: &str, code: i32) -> ValueInfoProto {
    ValueInfoProto::new_tensor(name, code, None)
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
    }
}

fn model(version: i64, graph: GraphProto) -> ModelProto {
    let sets = [
        opset("", version),
        opset("my", 1),
        opset("com.microsoft", 1),
    ];
    ModelProto {
        ir_version: Some(10),
        opset_import: sets.to_vec(),
        graph: Some(graph),
        ..ModelProto::default()
    }
}

fn graph(node: Vec<NodeProto>, input: &[(&str, i32)], output: &[(&str, i32)]) -> GraphProto {
    let of = |values: &[(&str, i32)]| -> Vec<ValueInfoProto> {
        let each = values.iter().map(|(name, code)| declared(name, *code));
        each.collect()
    };
    GraphProto {
        node,
        input: of(input),
        output: of(output),
        ..GraphProto::default()
    }
}

fn with_bodies(mut node: NodeProto, bodies: Vec<(&str, GraphProto)>) -> NodeProto {
    let bodies = bodies.into_iter().map(|(name, body)| AttributeProto {
        name: Some(name.to_owned()),
        g: Some(body),
        ..AttributeProto::default()
    });
    node.attribute.extend(bodies);
    node
}

fn floats(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_vec(dims, values.to_vec()).expect("the model of a test runs")
}

fn x() -> Tensor {
    floats(&[2, 3], &[1.0, -2.0, 3.0, 4.0, 5.0, -6.0])
}

fn imported(model: &ModelProto, inputs: &[(&str, Tensor)]) -> Result<Graph, ImportError> {
    let bindings = inputs.iter().fold(Bindings::new(), |bindings, (name, it)| {
        bindings.with_input(*name, it.dtype(), it.dims())
    });
    Graph::import(encode_model(model), &bindings)
}

/// Runs a model on the CPU and returns its outputs.
fn run(model: &ModelProto, inputs: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    let graph = imported(model, inputs).expect("the model of a test runs");
    let weights: BTreeMap<_, _> = cut::weight_bytes(&graph).collect();
    let parts =
        cut::cut_graph(&graph, &vec![0; graph.nodes().len()]).expect("the model of a test runs");
    let profile = catalogue::find_processor("amd-epyc-9654")
        .expect("the model of a test runs")
        .clone();
    let cpu = Cpu::new(profile, NonZeroUsize::MIN);
    let program = cpu
        .compile(&subgraph::Subgraph {
            model: parts[0].model.clone(),
            weights,
        })
        .expect("the model of a test runs");
    let given = inputs
        .iter()
        .map(|(name, it)| ((*name).to_owned(), it.clone()));
    let mut given: BTreeMap<String, Tensor> = given.collect();
    given.retain(|name, _| program.inputs().iter().any(|port| port.name == *name));
    program
        .run(&given)
        .expect("the model of a test runs")
        .outputs
}

fn is_near(found: &Tensor, expected: &[f32], tolerance: f64) {
    let found = found.to_f64s().expect("the model of a test runs");
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let off = (found - f64::from(*expected)).abs();
        assert!(off <= tolerance, "{found}, not {expected}");
    }
}

/// Returns a function that halves its input, in this version of the standard operator set.
fn half(version: i64) -> FunctionProto {
    FunctionProto {
        name: Some("Half".to_owned()),
        domain: Some("my".to_owned()),
        input: vec!["x".to_owned()],
        output: vec!["y".to_owned()],
        node: vec![
            NodeProto::for_operator("Constant", &[], "c").with("value_float", 0.5f32),
            NodeProto::for_operator("Mul", &["x", "c"], "y"),
        ],
        opset_import: vec![opset("", version)],
        ..FunctionProto::default()
    }
}

fn call(input: &str, output: &str) -> NodeProto {
    NodeProto {
        domain: Some("my".to_owned()),
        ..NodeProto::for_operator("Half", &[input], output)
    }
}

#[test]
fn functions_run_in_branches_in_loops_and_of_other_versions() {
    let halves = |times: i32| -> Vec<f32> {
        let values = x().to_vec::<f32>().unwrap();
        values
            .iter()
            .map(|value| value / 2f32.powi(times))
            .collect()
    };
    for version in [17, 18, 21] {
        let mut whole = model(
            18,
            graph(vec![call("x", "y")], &[("x", FLOAT)], &[("y", FLOAT)]),
        );
        whole.functions = vec![half(version)];
        is_near(&run(&whole, &[("x", x())])["y"], &halves(1), 0.0);
    }

    let then = graph(vec![call("x", "a")], &[], &[("a", FLOAT)]);
    let otherwise = graph(
        vec![NodeProto::for_operator("Neg", &["x"], "b")],
        &[],
        &[("b", FLOAT)],
    );
    let bodies = vec![("then_branch", then), ("else_branch", otherwise)];
    let choice = with_bodies(NodeProto::for_operator("If", &["p"], "y"), bodies);
    let inputs = [("x", FLOAT), ("p", BOOL)];
    let mut whole = model(18, graph(vec![choice], &inputs, &[("y", FLOAT)]));
    whole.functions = vec![half(18)];
    let yes = Tensor::from_bools(Vec::new(), &[true]).unwrap();
    is_near(
        &run(&whole, &[("x", x()), ("p", yes)])["y"],
        &halves(1),
        0.0,
    );

    let nodes = vec![
        call("v", "v2"),
        NodeProto::for_operator("Identity", &["c"], "c2"),
    ];
    let inputs = [("i", INT64), ("c", BOOL), ("v", FLOAT)];
    let body = graph(nodes, &inputs, &[("c2", BOOL), ("v2", FLOAT)]);
    let repeated = NodeProto::for_operator("Loop", &["m", "", "x"], "y");
    let repeated = with_bodies(repeated, vec![("body", body)]);
    let inputs = [("x", FLOAT), ("m", INT64)];
    let mut whole = model(18, graph(vec![repeated], &inputs, &[("y", FLOAT)]));
    whole.functions = vec![half(18)];
    let three = Tensor::scalar(3i64);
    is_near(
        &run(&whole, &[("x", x()), ("m", three)])["y"],
        &halves(3),
        0.0,
    );
}

#[test]
fn lists_of_a_known_length_are_no_lists_to_whoever_runs_them() {
    let sizes = Tensor::from_vec([2], vec![1i64, 1]).unwrap();
    let nodes = vec![
        NodeProto::for_operator("SplitToSequence", &["x", "s"], "q").with("axis", 0i64),
        NodeProto::for_operator("SequenceAt", &["q", "k"], "y"),
        NodeProto::for_operator("SequenceErase", &["q"], "first"),
        NodeProto::for_operator("SequenceInsert", &["first", "y"], "both"),
        NodeProto::for_operator("SequenceLength", &["both"], "n"),
        NodeProto::for_operator("ConcatFromSequence", &["both"], "z").with("axis", 0i64),
    ];
    let outputs = [("y", FLOAT), ("n", INT64), ("z", FLOAT)];
    let mut whole = graph(nodes, &[("x", FLOAT)], &outputs);
    whole.initializer = vec![
        tensor_to_proto("s", &sizes),
        tensor_to_proto("k", &Tensor::scalar(1i64)),
    ];
    for version in [11, 13, 18] {
        let whole = model(version, whole.clone());
        let inputs = [("x", x())];
        let graph = imported(&whole, &inputs).unwrap();
        let operators = graph.summary().operators;
        let listed = |(name, _): &(String, usize)| name.contains("Sequence");
        assert!(!operators.iter().any(listed), "{operators:?}");
        let found = run(&whole, &inputs);
        is_near(&found["y"], &[4.0, 5.0, -6.0], 0.0);
        is_near(&found["z"], &x().to_vec::<f32>().unwrap(), 0.0);
        // Its length is a constant, which no device makes.
        let length = graph.value(graph.find_value("n").unwrap()).weight();
        let length = length.and_then(|it| it.to_tensor()).unwrap();
        assert_eq!(length.to_vec::<i64>().unwrap(), [2]);
    }
}

/// Declares a value that is a list of floats.
fn listed(name: &str) -> ValueInfoProto {
    let element = declared("", FLOAT).r#type.map(Box::new);
    let list = type_proto::Sequence { elem_type: element };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::SequenceType(Box::new(list))),
            denotation: None,
        }),
        ..ValueInfoProto::default()
    }
}

/// Returns a model that inserts `x` into a list `m` times; the nodes in `rest` read that list,
/// `qf`.
fn growing(rest: Vec<NodeProto>, output: ValueInfoProto) -> ModelProto {
    let nodes = vec![
        NodeProto::for_operator("SequenceInsert", &["q", "x"], "q2"),
        NodeProto::for_operator("Identity", &["c"], "c2"),
    ];
    let mut body = graph(nodes, &[("i", INT64), ("c", BOOL)], &[("c2", BOOL)]);
    body.input.push(listed("q"));
    body.output.push(listed("q2"));
    let repeated = NodeProto::for_operator("Loop", &["m", "", "q0"], "qf");
    let repeated = with_bodies(repeated, vec![("body", body)]);
    let nodes = [
        vec![
            NodeProto::for_operator("SequenceEmpty", &[], "q0"),
            repeated,
        ],
        rest,
    ]
    .concat();
    let mut whole = graph(nodes, &[("x", FLOAT), ("m", INT64)], &[]);
    whole.output.push(output);
    model(16, whole)
}

#[test]
fn a_loop_carries_a_list() {
    let joined = NodeProto::for_operator("ConcatFromSequence", &["qf"], "y").with("axis", 0i64);
    let whole = growing(vec![joined], declared("y", FLOAT));
    let found = run(&whole, &[("x", x()), ("m", Tensor::scalar(3i64))]);
    assert_eq!(found["y"].dims(), [6, 3]);
    let once = x().to_vec::<f32>().unwrap();
    is_near(&found["y"], &once.repeat(3), 0.0);
}

#[test]
fn a_body_runs_for_each_tensor_of_a_list() {
    let doubled = graph(
        vec![NodeProto::for_operator("Add", &["one", "one"], "two")],
        &[("one", FLOAT)],
        &[("two", FLOAT)],
    );
    let map = NodeProto::for_operator("SequenceMap", &["qf"], "all");
    let map = with_bodies(map, vec![("body", doubled)]);
    let joined = NodeProto::for_operator("ConcatFromSequence", &["all"], "y").with("axis", 0i64);
    let whole = growing(vec![map, joined], declared("y", FLOAT));
    let found = run(&whole, &[("x", x()), ("m", Tensor::scalar(2i64))]);
    let doubled: Vec<f32> = x()
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .map(|it| it * 2.0)
        .collect();
    is_near(&found["y"], &doubled.repeat(2), 0.0);
}

#[test]
fn an_output_that_is_a_list_is_an_output_for_each_of_its_tensors() {
    let nodes = vec![
        NodeProto::for_operator("Neg", &["x"], "n"),
        NodeProto::for_operator("SequenceConstruct", &["x", "n"], "probabilities"),
    ];
    let mut whole = graph(nodes, &[("x", FLOAT)], &[]);
    whole.output.push(listed("probabilities"));
    let found = run(&model(18, whole), &[("x", x())]);
    let once = x().to_vec::<f32>().unwrap();
    is_near(&found["probabilities.0"], &once, 0.0);
    let negated: Vec<f32> = once.iter().map(|it| -it).collect();
    is_near(&found["probabilities.1"], &negated, 0.0);

    let open = growing(Vec::new(), listed("qf"));
    let refused = imported(&open, &[("x", x()), ("m", Tensor::scalar(2i64))]).unwrap_err();
    assert!(
        refused.to_string().contains("output \"qf\" is a list"),
        "{refused}"
    );
}

#[test]
fn sparse_constants_are_what_they_stand_for() {
    let values = tensor_to_proto("w", &floats(&[2], &[7.0, -1.0]));
    let places = [(vec![2], vec![1i64, 5]), (vec![2, 2], vec![0i64, 1, 1, 2])];
    for (dims, places) in places {
        let indices = tensor_to_proto("", &Tensor::from_vec(dims, places).unwrap());
        let sparse = SparseTensorProto {
            values: Some(values.clone()),
            indices: Some(indices),
            dims: vec![2, 3],
        };
        let expected = [1.0, 5.0, 3.0, 4.0, 5.0, -7.0];
        let add = NodeProto::for_operator("Add", &["x", "w"], "y");
        let mut whole = graph(vec![add.clone()], &[("x", FLOAT)], &[("y", FLOAT)]);
        whole.sparse_initializer = vec![sparse.clone()];
        let found = run(&model(18, whole), &[("x", x())]);
        is_near(&found["y"], &expected, 0.0);

        let mut constant = NodeProto::for_operator("Constant", &[], "w");
        constant.attribute.push(AttributeProto {
            name: Some("sparse_value".to_owned()),
            sparse_tensor: Some(Box::new(sparse)),
            ..AttributeProto::default()
        });
        let whole = graph(vec![constant, add], &[("x", FLOAT)], &[("y", FLOAT)]);
        is_near(&run(&model(18, whole), &[("x", x())])["y"], &expected, 0.0);
    }
}

#[test]
fn a_long_memory_of_quantised_weights_is_within_a_step_of_onnx_runtime() {
    let whole_numbers = |text: &str| -> Vec<i8> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    };
    let weights = whole_numbers(
        "0 -103 82 32 21 63 125 49 1 -12 -61 42 8 -18 102 -34 -20 -56 -59 7 33 -75 0 35 \
         -33 -127 37 55 -63 19 43 29 63 -54 31 18 -97 53 -68 39 -46 -63 79 10 80 -96 -76 -29",
    );
    let recurrence = whole_numbers(
        "25 5 9 93 96 62 37 -41 -18 21 -20 -10 20 -47 -56 89 19 127 -56 46 102 78 -72 13 \
         78 -27 -6 48 -23 40 118 -89 -47 62 23 15",
    );
    let biases = [
        1.1206206,
        -0.5316734,
        1.4034005,
        -1.3049314,
        -2.0508962,
        0.39682937,
        -0.08682137,
        -0.007756002,
        -0.7479343,
        -0.9017238,
        0.052173957,
        0.4114218,
        1.2220081,
        -0.94380355,
        0.95410085,
        1.5788662,
        0.29667664,
        0.7339452,
        -0.024820365,
        -1.4331399,
        -0.90376216,
        1.1842593,
        -0.11596152,
        0.782082,
    ];
    let given = [
        -0.8778167, 0.6685324, 1.3609178, -0.7567159, 0.43057495, -1.1884023, -1.094642,
        -1.4334949, 0.39237747, 0.05321477, -0.1826354, 0.77891016, -0.5017888, -1.1443357,
        0.3715495, 1.0234561,
    ];
    let expected = [
        -0.194901,
        0.0008570267,
        0.5027949,
        0.2344505,
        0.1548625,
        0.6006438,
        -0.4427663,
        -0.01154,
        0.5070922,
        0.8618993,
        -0.01544379,
        0.1719735,
    ];
    let inputs = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"];
    let node = NodeProto {
        domain: Some("com.microsoft".to_owned()),
        ..NodeProto::for_operator("DynamicQuantizeLSTM", &inputs, "y")
    };
    let mut whole = graph(
        vec![node.with("hidden_size", 3i64)],
        &[("x", FLOAT)],
        &[("y", FLOAT)],
    );
    let zero = Tensor::from_vec([1], vec![0i8]).unwrap();
    let held = [
        ("w", Tensor::from_vec([1, 4, 12], weights).unwrap()),
        ("r", Tensor::from_vec([1, 3, 12], recurrence).unwrap()),
        ("b", floats(&[1, 24], &biases)),
        ("ws", floats(&[1], &[0.0173201])),
        ("wz", zero.clone()),
        ("rs", floats(&[1], &[0.019402985])),
        ("rz", zero),
    ];
    let held = held.iter().map(|(name, it)| tensor_to_proto(*name, it));
    whole.initializer = held.collect();
    let found = run(&model(14, whole), &[("x", floats(&[2, 2, 4], &given))]);
    assert_eq!(found["y"].dims(), [2, 1, 2, 3]);
    is_near(&found["y"], &expected, 4e-3);
}
