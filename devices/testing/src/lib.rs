//! Fixtures for the tests of several crates: nodes, models, values, profiles, and results worked
//! out by hand.

pub mod card;
pub mod counting;
pub mod host;
pub mod literals;

use std::collections::BTreeMap;
use std::time::Duration;

use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{
    AttributeProto, AttributeType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, ValueInfoProto, encode_model, tensor_to_proto,
};
use souk_vocabulary::profile::{Memory, Profile};
use souk_vocabulary::taxonomy::{CpuIsa, MemoryKind, ProcessorKind};

/// Returns the profile of an unknown CPU.
#[must_use]
pub fn cpu_profile() -> Profile {
    Profile {
        name: "test-cpu".to_owned(),
        vendor: String::new(),
        model: String::new(),
        kind: ProcessorKind::Cpu { isa: CpuIsa::Other },
        emulated: false,
        memory: Memory {
            kind: MemoryKind::Unknown,
            bytes: 1 << 30,
            bytes_per_second: 1e10,
        },
        throughput: BTreeMap::new(),
        launch: Duration::ZERO,
        power: None,
        traits: Vec::new(),
        source: "a test".to_owned(),
    }
}

/// Returns a node without attributes, named after its operator.
#[must_use]
pub fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(format!("{operator}_node")),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: outputs.iter().map(ToString::to_string).collect(),
        ..NodeProto::default()
    }
}

/// Returns a model of nodes between inputs and outputs of open ranks, with weights.
#[must_use]
pub fn model(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, DType)],
    outputs: &[(&str, DType)],
    weights: &[(&str, Tensor)],
) -> ModelProto {
    let value =
        |(name, dtype): &(&str, DType)| ValueInfoProto::new_tensor(*name, dtype.onnx_code(), None);
    let initializer = weights
        .iter()
        .map(|(name, tensor)| tensor_to_proto(*name, tensor))
        .collect();
    ModelProto {
        ir_version: Some(10),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(21),
        }],
        graph: Some(GraphProto {
            node: nodes,
            name: Some("test".to_owned()),
            input: inputs.iter().map(value).collect(),
            output: outputs.iter().map(value).collect(),
            initializer,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// Returns a model as a subgraph, with its weights inside.
#[must_use]
pub fn subgraph(model: &ModelProto) -> Subgraph {
    Subgraph {
        model: encode_model(model),
        weights: BTreeMap::new(),
    }
}

/// Adds a list of integers to a node as an attribute.
#[must_use]
pub fn with_ints(mut node: NodeProto, name: &str, ints: &[i64]) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        ints: ints.to_vec(),
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    });
    node
}

/// Adds an integer to a node as an attribute.
#[must_use]
pub fn with_int(mut node: NodeProto, name: &str, int: i64) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        i: Some(int),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    });
    node
}

/// Adds a graph to a node as an attribute.
#[must_use]
pub fn with_graph(mut node: NodeProto, name: &str, graph: GraphProto) -> NodeProto {
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        g: Some(graph),
        r#type: Some(AttributeType::Graph as i32),
        ..AttributeProto::default()
    });
    node
}

/// Returns values between -1 and 1 that depend on `seed`.
pub fn noise_tensor(dims: &[usize], seed: u64) -> Tensor {
    let count = dims.iter().product();
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..count).map(|_| next()).collect();
    Tensor::from_vec(dims, values).expect("a test is built from what holds")
}

/// Returns a model as a subgraph, with inputs of these shapes in place of open ones.
pub fn subgraph_with_dims(mut model: ModelProto, inputs: &[(&str, &[usize])]) -> Subgraph {
    let graph = model
        .graph
        .as_mut()
        .expect("a test is built from what holds");
    for (name, dims) in inputs {
        let dims = dims.iter().map(|&size| Dimension::new_fixed(size as i64));
        let value = graph
            .input
            .iter_mut()
            .find(|it| it.name() == *name)
            .expect("a test is built from what holds");
        let code = DType::F32.onnx_code();
        *value = ValueInfoProto::new_tensor(*name, code, Some(dims.collect()));
    }
    subgraph(&model)
}

/// Panics if a result differs by more than `tolerance`, relative to the largest element.
pub fn assert_near(
    found: &BTreeMap<String, Tensor>,
    expected: &BTreeMap<String, Tensor>,
    tolerance: f32,
    what: &str,
) {
    for (name, expected) in expected {
        assert_eq!(found[name].dims(), expected.dims(), "{what} {name}");
        let expected = expected
            .to_vec::<f32>()
            .expect("a test is built from what holds");
        let found = found[name]
            .to_vec::<f32>()
            .expect("a test is built from what holds");
        let largest = expected
            .iter()
            .fold(1e-3f32, |it, value| it.max(value.abs()));
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (found - expected).abs() / largest;
            assert!(
                off <= tolerance,
                "{what} {name}[{at}]: {found}, not {expected}"
            );
        }
    }
}

/// Returns tensors by their names.
#[must_use]
pub fn named_tensors(tensors: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    tensors
        .iter()
        .map(|(name, tensor)| ((*name).to_owned(), tensor.clone()))
        .collect()
}

/// Returns a product of `x` with a matrix.
pub fn matmul_model() -> ModelProto {
    let weight = Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0])
        .expect("a test is built from what holds");
    let nodes = vec![node("MatMul", &["x", "w"], &["y"])];
    model(
        nodes,
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("w", weight)],
    )
}

/// Returns a product of `x` with a matrix as a subgraph.
#[must_use]
pub fn matmul_subgraph() -> Subgraph {
    subgraph(&matmul_model())
}

/// Returns the inputs of [`matmul_subgraph`].
#[must_use]
pub fn product_inputs() -> BTreeMap<String, Tensor> {
    named_tensors(&[(
        "x",
        Tensor::from_vec([1, 2], vec![10f32, 1.0]).expect("a test is built from what holds"),
    )])
}

/// Returns a node with its own kernel, the weight `kernel`.
pub fn custom_node(operator: &str, inputs: &[&str], outputs: &[&str], types: &[i64]) -> NodeProto {
    let mut node = node(operator, inputs, outputs);
    node.domain = Some(souk_onnx::custom::DOMAIN.to_owned());
    node.attribute.push(AttributeProto {
        name: Some("output_types".to_owned()),
        ints: types.to_vec(),
        ..AttributeProto::default()
    });
    node
}

/// Returns the example of a WebAssembly kernel, as its build line makes it.
#[must_use]
pub fn median_kernel() -> Vec<u8> {
    wat::parse_str(include_str!("../../kernels/median.wat")).expect("the example is well formed")
}
