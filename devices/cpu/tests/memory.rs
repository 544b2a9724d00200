//! Tests the peak memory of a run, which must depend on the width of its graph and not on its
//! depth, and that weights are in memory only once. The allocator counts all bytes.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx::liveness::{Liveness, StepValues};
use souk_onnx::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use souk_testing::counting::CountingAllocator;
use souk_testing::{
    cpu_profile, model, named_tensors, node, noise_tensor, subgraph, subgraph_with_dims, with_graph,
};
use souk_vocabulary::processor::{Processor, Program};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const ROWS: usize = 1024;
const COLUMNS: usize = 64;
/// Bytes of a value in 32-bit floats.
const VALUE_BYTES: usize = ROWS * COLUMNS * 4;

fn cpu() -> Cpu {
    Cpu::new(cpu_profile(), NonZeroUsize::MIN)
}

fn weight(seed: u64) -> Tensor {
    noise_tensor(&[COLUMNS, COLUMNS], seed)
}

/// `depth` times a product and a function, each by another engine.
fn products(depth: usize) -> Vec<NodeProto> {
    let mut nodes = Vec::new();
    for layer in 0..depth {
        let name = |what: &str| format!("{what}{layer}");
        let (product, gate, next) = (name("a"), name("s"), format!("x{}", layer + 1));
        nodes.push(node("MatMul", &[&name("x"), "w"], &[&product]));
        nodes.push(node("Sigmoid", &[&product], &[&gate]));
        nodes.push(node("Mul", &[&product, &gate], &[&next]));
    }
    nodes
}

/// Functions one after the other, all for the same engine.
fn functions(depth: usize) -> Vec<NodeProto> {
    let of = |layer: usize| {
        let operator = ["Sin", "Abs", "Sigmoid"][layer % 3];
        let (from, to) = (format!("x{layer}"), format!("x{}", layer + 1));
        node(operator, &[&from], &[&to])
    };
    (0..depth).map(of).collect()
}

/// The most bytes that a run of `nodes` from `x0` to `output` holds beyond its input.
fn peak(nodes: Vec<NodeProto>, output: &str, input: &Tensor) -> usize {
    let dtype = input.dtype();
    let weight = match dtype {
        DType::F64 => {
            let wide = weight(1)
                .to_f64s()
                .expect("a test is built from what holds");
            Tensor::from_vec([COLUMNS, COLUMNS], wide).expect("a test is built from what holds")
        }
        _ => weight(1),
    };
    let proto = model(
        nodes,
        &[("x0", dtype)],
        &[(output, dtype)],
        &[("w", weight)],
    );
    let subgraph = match dtype {
        DType::F32 => subgraph_with_dims(proto, &[("x0", &[ROWS, COLUMNS])]),
        _ => subgraph(&proto),
    };
    let program = cpu()
        .compile_owned(subgraph)
        .expect("a test is built from what holds");
    let inputs = named_tensors(&[("x0", input.clone())]);
    let (outcome, counted) = ALLOCATOR.count_bytes(|| program.run(&inputs));
    assert_eq!(
        outcome.expect("a test is built from what holds").outputs[output].dims(),
        [ROWS, COLUMNS]
    );
    counted.peak
}

fn narrow() -> Tensor {
    noise_tensor(&[ROWS, COLUMNS], 7)
}

fn wide() -> Tensor {
    Tensor::from_vec(
        [ROWS, COLUMNS],
        narrow().to_f64s().expect("a test is built from what holds"),
    )
    .expect("a test is built from what holds")
}

/// Fails if a graph of many layers takes more than half a value beyond one of a few.
fn assert_flat(
    nodes: impl Fn(usize) -> Vec<NodeProto>,
    output: impl Fn(usize) -> String,
    input: &Tensor,
) {
    let of = |depth: usize| peak(nodes(depth), &output(depth), input);
    let (few, many) = (of(6), of(30));
    let value = input.bytes().len();
    assert!(
        many <= few + value / 2,
        "{few} bytes, then {many} of values of {value}"
    );
    assert!(few <= 6 * value, "{few} bytes of values of {value}");
}

#[test]
fn a_deep_graph_over_two_engines_holds_what_a_shallow_one_does() {
    let _alone = ALLOCATOR.wait_alone();
    assert_flat(products, |depth| format!("x{depth}"), &narrow());
}

#[test]
fn a_deep_graph_of_one_engine_holds_what_a_shallow_one_does() {
    let _alone = ALLOCATOR.wait_alone();
    assert_flat(functions, |depth| format!("x{depth}"), &narrow());
}

#[test]
fn a_deep_graph_of_reference_kernels_holds_what_a_shallow_one_does() {
    let _alone = ALLOCATOR.wait_alone();
    assert_flat(products, |depth| format!("x{depth}"), &wide());
}

#[test]
fn the_body_of_a_branch_frees_its_values() {
    let _alone = ALLOCATOR.wait_alone();
    let branch = |depth: usize| {
        let float = DType::F64.onnx_code();
        let body = GraphProto {
            node: products(depth),
            name: Some("body".to_owned()),
            output: vec![ValueInfoProto::new_tensor(format!("x{depth}"), float, None)],
            ..GraphProto::default()
        };
        let choice = node("If", &["yes"], &["y"]);
        let choice = with_graph(choice, "then_branch", body.clone());
        let size = node("Size", &["x0"], &["size"]);
        let is_some = node("Equal", &["size", "size"], &["yes"]);
        vec![size, is_some, with_graph(choice, "else_branch", body)]
    };
    assert_flat(branch, |_| "y".to_owned(), &wide());
}

#[test]
fn a_value_that_is_read_late_and_an_output_made_early_are_there() {
    let _alone = ALLOCATOR.wait_alone();
    let mut nodes = products(8);
    nodes.push(node("Add", &["x1", "x8"], &["late"]));
    let outputs = [("late", DType::F32), ("x2", DType::F32)];
    let proto = model(nodes, &[("x0", DType::F32)], &outputs, &[("w", weight(1))]);
    let program = cpu()
        .compile(&subgraph_with_dims(proto, &[("x0", &[ROWS, COLUMNS])]))
        .unwrap();
    let inputs = named_tensors(&[("x0", narrow())]);
    let (outcome, counted) = ALLOCATOR.count_bytes(|| program.run(&inputs).unwrap());
    assert_eq!(outcome.outputs.len(), 2);
    assert!(counted.peak <= 7 * VALUE_BYTES, "{counted:?}");
    assert!(
        counted.left <= 3 * VALUE_BYTES,
        "the outputs alone are left: {counted:?}"
    );
}

/// Layers of which the second half reads values of the first, as far apart as they can be.
fn ways_around(depth: usize) -> Vec<NodeProto> {
    let mut nodes = Vec::new();
    for layer in 0..depth {
        let mut value = format!("x{layer}");
        if layer > depth / 2 {
            let (before, joined) = (format!("x{}", depth - layer), format!("j{layer}"));
            nodes.push(node("Add", &[&value, &before], &[&joined]));
            value = joined;
        }
        let product = format!("a{layer}");
        nodes.push(node("MatMul", &[&value, "w"], &[&product]));
        nodes.push(node("Sin", &[&product], &[&format!("x{}", layer + 1)]));
    }
    nodes
}

#[test]
fn the_peak_that_planners_state_is_the_peak_of_a_run() {
    let _alone = ALLOCATOR.wait_alone();
    for depth in [2, 12, 40] {
        let (nodes, output) = (ways_around(depth), format!("x{depth}"));
        let steps = nodes.chunks(1).map(StepValues::of_nodes);
        let liveness = Liveness::new(["x0"], steps, ["x0", &output]);
        let stated = liveness.bytes_by_step(|_| VALUE_BYTES as u64);
        let stated = stated.into_iter().max().unwrap() as f64;
        let measured = (peak(nodes.clone(), &output, &narrow()) + VALUE_BYTES) as f64;
        let ratio = measured / stated;
        assert!(
            (0.8..1.3).contains(&ratio),
            "{depth}: {measured} bytes, stated {stated}"
        );
    }
}

/// `count` products that each read a weight, one name or another of equal content.
fn sharing(count: usize) -> ModelProto {
    let mut nodes = Vec::new();
    for layer in 0..count {
        let weight = ["w", "v"][layer % 2];
        let (from, product) = (format!("x{layer}"), format!("a{layer}"));
        nodes.push(node("MatMul", &[&from, weight], &[&product]));
        nodes.push(node("Sin", &[&product], &[&format!("x{}", layer + 1)]));
    }
    let output = format!("x{count}");
    let weight = noise_tensor(&[512, 512], 3);
    let weights = [("w", weight.clone()), ("v", weight)];
    let outputs = [(&output[..], DType::F32)];
    model(nodes, &[("x0", DType::F32)], &outputs, &weights)
}

#[test]
fn weights_that_several_nodes_read_are_packed_once() {
    let _alone = ALLOCATOR.wait_alone();
    let left = |count: usize| {
        let subgraph = subgraph_with_dims(sharing(count), &[("x0", &[4, 512])]);
        let compile = || cpu().compile_owned(subgraph).unwrap();
        let (program, counted): (Box<dyn Program>, _) = ALLOCATOR.count_bytes(compile);
        let input = named_tensors(&[("x0", noise_tensor(&[4, 512], 1))]);
        let outputs: BTreeMap<_, _> = program.run(&input).unwrap().outputs;
        assert_eq!(outputs[&format!("x{count}")].dims(), [4, 512]);
        counted.left
    };
    let (two, many) = (left(2), left(40));
    // A weight has a mebibyte; a node with all that belongs to it some kibibytes.
    assert!(many < two + (1 << 19), "{two} bytes, then {many}");
    assert!(two < (3 << 19), "{two} bytes");
}

#[test]
fn a_program_grows_with_its_nodes_and_no_faster() {
    let _alone = ALLOCATOR.wait_alone();
    let left = |depth: usize| {
        let output = format!("x{depth}");
        let ports = ([("x0", DType::F32)], [(&output[..], DType::F32)]);
        let proto = model(products(depth), &ports.0, &ports.1, &[("w", weight(1))]);
        let subgraph = subgraph_with_dims(proto, &[("x0", &[ROWS, COLUMNS])]);
        let (program, counted) = ALLOCATOR.count_bytes(|| cpu().compile_owned(subgraph).unwrap());
        drop(program);
        counted.left
    };
    let (some, twice, four_times) = (left(40), left(80), left(160));
    let (first, second) = (twice - some, four_times - twice);
    assert!(
        second <= 5 * first / 2,
        "{first} bytes for 40 layers, then {second} for 80"
    );
}
