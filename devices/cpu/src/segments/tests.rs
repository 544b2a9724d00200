//! Tests random graphs that are cut into segments for several engines: every reader must find the
//! right value.
//!
//! All operators here round at most once, and the matrices of products only move elements, so all
//! engines must give the same bits. A graph that amplifies rounding errors can therefore neither
//! fail without a bug nor hide one.

use proptest::prelude::*;
use proptest::sample::Index;
use souk_memory::{DType, Tensor};
use souk_onnx::{GraphProto, ValueInfoProto};
use souk_testing::{assert_near, model, node, noise_tensor, subgraph_with_dims, with_graph};

use super::*;

const DIMS: [usize; 2] = [3, 8];

/// A node of a random graph: what it does, and which earlier values it reads.
#[derive(Clone, Debug)]
enum Draft {
    Product(Index, bool),
    Function(usize, Index),
    Pair(usize, Index, Index),
    /// Reads two values in its branches; they make others on the way.
    Branch(Index, Index),
    /// Reads a value in each round, and carries another.
    Loop(Index, Index),
}

fn draft() -> impl Strategy<Value = Draft> {
    let index = any::<Index>;
    prop_oneof![
        3 => (index(), any::<bool>()).prop_map(|(at, second)| Draft::Product(at, second)),
        3 => (0usize..4, index()).prop_map(|(which, at)| Draft::Function(which, at)),
        3 => (0usize..2, index(), index()).prop_map(|(which, a, b)| Draft::Pair(which, a, b)),
        1 => (index(), index()).prop_map(|(a, b)| Draft::Branch(a, b)),
        1 => (index(), index()).prop_map(|(a, b)| Draft::Loop(a, b)),
    ]
}

fn value(name: &str, dtype: DType, dims: &[usize]) -> ValueInfoProto {
    let dims = dims.iter().map(|&size| Dimension::new_fixed(size as i64));
    ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
}

fn body(
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
) -> GraphProto {
    GraphProto {
        node: nodes,
        name: Some("body".to_owned()),
        input: inputs,
        output: outputs,
        ..GraphProto::default()
    }
}

impl Draft {
    /// The node that makes the value of a number.
    fn node(&self, number: usize) -> NodeProto {
        let read = |at: &Index| format!("v{}", at.index(number));
        let made = format!("v{number}");
        let inner = |what: &str| format!("{what}_{number}");
        match self {
            Self::Product(at, second) => {
                let weight = if *second { "w1" } else { "w0" };
                node("MatMul", &[&read(at), weight], &[&made])
            }
            Self::Function(which, at) => {
                let operator = ["Abs", "Relu", "Neg", "ThresholdedRelu"][*which];
                node(operator, &[&read(at)], &[&made])
            }
            Self::Pair(which, left, right) => {
                let operator = ["Add", "Max"][*which];
                node(operator, &[&read(left), &read(right)], &[&made])
            }
            Self::Branch(left, right) => {
                let (half, end) = (inner("half"), inner("end"));
                let nodes = vec![
                    node("Neg", &[&read(left)], &[&half]),
                    node("Add", &[&half, &read(right)], &[&end]),
                ];
                let taken = body(nodes, Vec::new(), vec![value(&end, DType::F32, &DIMS)]);
                let bare = read(right);
                let other = body(
                    Vec::new(),
                    Vec::new(),
                    vec![value(&bare, DType::F32, &DIMS)],
                );
                let choice = node("If", &["yes"], &[&made]);
                let choice = with_graph(choice, "then_branch", taken);
                with_graph(choice, "else_branch", other)
            }
            Self::Loop(captured, carried) => {
                let [round, go_on, state, still, half, next] =
                    ["round", "go_on", "state", "still", "half", "next"].map(inner);
                let nodes = vec![
                    node("Identity", &[&go_on], &[&still]),
                    node("Sub", &[&state, &read(captured)], &[&half]),
                    node("Abs", &[&half], &[&next]),
                ];
                let inputs = vec![
                    value(&round, DType::I64, &[]),
                    value(&go_on, DType::Bool, &[]),
                    value(&state, DType::F32, &DIMS),
                ];
                let outputs = vec![
                    value(&still, DType::Bool, &[]),
                    value(&next, DType::F32, &DIMS),
                ];
                let repeat = node("Loop", &["rounds", "yes", &read(carried)], &[&made]);
                with_graph(repeat, "body", body(nodes, inputs, outputs))
            }
        }
    }
}

/// A matrix that moves element `i` of a row to `i * step % 8`, and changes the sign of every third.
fn signed_permutation(step: usize) -> Tensor {
    let mut values = vec![0f32; 64];
    for from in 0..8 {
        values[from * 8 + from * step % 8] = if from % 3 == 0 { -1.0 } else { 1.0 };
    }
    Tensor::from_vec([8, 8], values).unwrap()
}

fn expected(graph: &Graph, inputs: &Scope) -> Scope {
    let mut scope = inputs.clone();
    scope.extend(graph.weights.clone());
    reference::run_nodes(graph.nodes(), &mut scope, graph.opset).unwrap();
    let wanted = graph.outputs.iter().map(|port| port.name.clone());
    wanted
        .map(|name| (name.clone(), scope[&name].clone()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_value_is_there_for_all_its_readers(
        drafts in prop::collection::vec(draft(), 1..24),
        outputs in prop::collection::vec(any::<Index>(), 1..4),
    ) {
        let nodes = drafts.iter().enumerate().map(|(at, draft)| draft.node(at + 1));
        let wanted: BTreeSet<String> =
            outputs.iter().map(|at| format!("v{}", at.index(drafts.len()) + 1)).collect();
        let wanted: Vec<(&str, DType)> =
            wanted.iter().map(|name| (name.as_str(), DType::F32)).collect();
        let weights = [
            ("w0", signed_permutation(3)),
            ("w1", signed_permutation(5)),
            ("yes", Tensor::from_bools([], &[true]).unwrap()),
            ("rounds", Tensor::scalar(3i64)),
        ];
        let proto = model(nodes.collect(), &[("v0", DType::F32)], &wanted, &weights);
        let graph = Graph::from_subgraph(&subgraph_with_dims(proto, &[("v0", &DIMS)])).unwrap();
        let inputs = Scope::from([("v0".to_owned(), noise_tensor(&DIMS, 3))]);
        let expected = expected(&graph, &inputs);
        let threads = Arc::new(ThreadPool::with_num_threads(1));
        let segments = Segments::compile(graph, &threads, KeptValues::Outputs).unwrap();
        for run in ["first", "second"] {
            let found = segments.run(&inputs).unwrap();
            prop_assert_eq!(found.len(), expected.len());
            assert_near(&found, &expected, 0.0, run);
        }
    }
}
