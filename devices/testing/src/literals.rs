//! Nodes with inputs that contain infinite values or NaN, and with the outputs that ONNX defines
//! for them, worked out by hand. The tests of the CPU and GPU backends run them.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{ModelProto, NodeProto};
use souk_vocabulary::processor::Processor;

use crate::{model, node, subgraph, with_int, with_ints};

/// A node with its input and its expected output by ONNX's definition, not by any engine.
pub struct Literal {
    /// The node to test.
    pub node: NodeProto,
    /// Shape of the input.
    pub dims: Vec<usize>,
    /// Values of the input.
    pub given: Vec<f32>,
    /// Expected values of the output.
    pub expected: Vec<f32>,
}

impl Literal {
    fn new(node: NodeProto, dims: &[usize], given: &[f32], expected: &[f32]) -> Self {
        Self {
            node,
            dims: dims.to_vec(),
            given: given.to_vec(),
            expected: expected.to_vec(),
        }
    }

    /// Returns the node in a model, after another node if there is one.
    #[must_use]
    pub fn build_model(&self, before: Option<NodeProto>, weights: &[(&str, Tensor)]) -> ModelProto {
        let dtype = DType::F32;
        let nodes = before.into_iter().chain([self.node.clone()]).collect();
        let given = if weights.is_empty() { "x" } else { "image" };
        model(nodes, &[(given, dtype)], &[("y", dtype)], weights)
    }

    /// Returns the node as a subgraph.
    pub fn build_subgraph(&self) -> Subgraph {
        subgraph(&self.build_model(None, &[]))
    }

    /// Asserts that a device computes the expected values.
    pub fn holds_on(&self, device: &dyn Processor, graph: &Subgraph) {
        let program = device
            .compile(graph)
            .expect("a test is built from what holds");
        let name = program.inputs()[0].name.clone();
        let given = Tensor::from_vec(&self.dims[..], self.given.clone())
            .expect("a test is built from what holds");
        let outcome = program
            .run(&BTreeMap::from([(name, given)]))
            .expect("a test is built from what holds");
        let found = outcome.outputs["y"]
            .to_vec::<f32>()
            .expect("a test is built from what holds");
        let (operator, expected) = (self.node.op_type(), &self.expected);
        let alike = |(found, expected): (&f32, &f32)| {
            let near = (found - expected).abs() <= 1e-5 * expected.abs();
            found == expected || near || (found.is_nan() && expected.is_nan())
        };
        let same = found.len() == expected.len() && found.iter().zip(expected).all(alike);
        assert!(
            same,
            "{operator} {:?}: {found:?}, not {expected:?}",
            self.given
        );
    }
}

const NO: f32 = f32::NAN;

const UP: f32 = f32::INFINITY;

const DOWN: f32 = f32::NEG_INFINITY;

/// Returns pools and maxima of infinite values and NaN.
pub fn odd_pools() -> Vec<Literal> {
    let pool = |operator| {
        let pool = with_ints(node(operator, &["x"], &["y"]), "kernel_shape", &[2, 2]);
        with_ints(pool, "strides", &[1, 1])
    };
    let (largest, mean) = (pool("MaxPool"), pool("AveragePool"));
    let side = [1, 1, 3, 3];
    let first = [NO, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let middle = [8.0, 7.0, 6.0, 5.0, NO, 3.0, 2.0, 1.0, 0.0];
    let last = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, NO];
    let low = [DOWN, DOWN, 2.0, DOWN, DOWN, UP, 6.0, DOWN, 8.0];
    let many: Vec<f32> = (0..200)
        .map(|at| if at == 3 { NO } else { at as f32 })
        .collect();
    let all = with_int(node("ReduceMax", &["x"], &["y"]), "keepdims", 0);
    let least = with_int(node("ReduceMin", &["x"], &["y"]), "keepdims", 0);
    vec![
        Literal::new(largest.clone(), &side, &first, &[NO, 5.0, 7.0, 8.0]),
        Literal::new(largest.clone(), &side, &middle, &[NO; 4]),
        Literal::new(largest.clone(), &side, &last, &[4.0, 5.0, 7.0, NO]),
        Literal::new(largest, &side, &low, &[DOWN, UP, 6.0, UP]),
        Literal::new(mean.clone(), &side, &first, &[NO, 3.0, 5.0, 6.0]),
        Literal::new(mean, &side, &low, &[DOWN, NO, DOWN, NO]),
        Literal::new(
            node("GlobalMaxPool", &["x"], &["y"]),
            &[1, 2, 10, 10],
            &many,
            &[NO, 199.0],
        ),
        Literal::new(node("GlobalMaxPool", &["x"], &["y"]), &side, &first, &[NO]),
        Literal::new(
            node("GlobalAveragePool", &["x"], &["y"]),
            &side,
            &last,
            &[NO],
        ),
        Literal::new(all, &[2, 100], &many, &[NO]),
        Literal::new(least, &[200], &many, &[NO]),
    ]
}

/// Returns activations of infinite values and NaN. A comparison with NaN is false, so a
/// `ThresholdedRelu` and a `Shrink` return zero.
pub fn odd_activations() -> Vec<Literal> {
    let given = [NO, UP, DOWN, -1.0, 0.5, 2.0];
    let literal = |operator, expected: [f32; 6]| {
        Literal::new(node(operator, &["x"], &["y"]), &[6], &given, &expected)
    };
    let below = (-1f32).exp_m1();
    let (alpha, gamma) = (1.673_263_2, 1.050_701);
    let shrunk = [0.0, UP, DOWN, -1.0, 0.0, 2.0];
    let selu = [
        NO,
        UP,
        -alpha * gamma,
        alpha * gamma * below,
        0.5 * gamma,
        2.0 * gamma,
    ];
    vec![
        literal("Celu", [NO, UP, -1.0, below, 0.5, 2.0]),
        literal("Elu", [NO, UP, -1.0, below, 0.5, 2.0]),
        literal("Mish", [NO, UP, NO, -0.303_401_5, 0.375_245_2, 1.943_959]),
        literal("Relu", [NO, UP, 0.0, 0.0, 0.5, 2.0]),
        literal("Selu", selu),
        literal("Shrink", shrunk),
        literal("ThresholdedRelu", [0.0, UP, 0.0, 0.0, 0.0, 2.0]),
    ]
}
