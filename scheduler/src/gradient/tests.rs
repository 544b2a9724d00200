//! Tests each rule of differentiation against finite differences in 64 bits, and whole training
//! steps against those of PyTorch.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    encode_model, tensor_to_proto,
};
use souk_vocabulary::processor::Processor;

use super::adamw::AdamW;
use super::rules::loss::LossValue;
use super::sgd::Sgd;
use super::tape::Tape;
use super::writer::Writer;
use super::*;
use crate::graph::{Bindings, Graph, ValueId};

mod rules_tests;
mod step_tests;

/// The distance between two points of a finite difference.
const STEP: f64 = 1e-5;

/// The most that a gradient may differ from a finite difference, relative to the largest of both.
const TOLERANCE: f64 = 1e-6;

/// A graph with one output, to differentiate with respect to its float inputs.
struct Case {
    nodes: Vec<NodeProto>,
    inputs: Vec<(&'static str, Tensor)>,
    constants: Vec<(&'static str, Tensor)>,
    output: &'static str,
    opset: i64,
}

fn cpu() -> Cpu {
    let profile = souk_vocabulary::catalogue::find_processor("amd-epyc-9654");
    Cpu::new(profile.unwrap().clone(), NonZeroUsize::MIN)
}

/// Numbers without a pattern between −1 and 1.
fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn doubles(dims: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(dims, noise(dims.iter().product(), seed)).unwrap()
}

/// The same between 0.5 and 1.5.
fn positive(dims: &[usize], seed: u64) -> Tensor {
    let values = noise(dims.iter().product(), seed);
    Tensor::from_vec(
        dims,
        values.iter().map(|it| 1.0 + it / 2.0).collect::<Vec<_>>(),
    )
    .unwrap()
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

fn declare(name: &str, dtype: DType, dims: &[usize]) -> ValueInfoProto {
    let dims = dims.iter().map(|dim| Dimension::new_fixed(*dim as i64));
    ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
}

fn model(
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: &[&str],
    constants: Vec<TensorProto>,
    opset: i64,
) -> ModelProto {
    let output = |name: &&str| ValueInfoProto::new_tensor(*name, DType::F64.onnx_code(), None);
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(opset),
        }],
        graph: Some(GraphProto {
            node: nodes,
            name: Some("case".to_owned()),
            input: inputs,
            output: outputs.iter().map(output).collect(),
            initializer: constants,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn run(model: &ModelProto, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let subgraph = Subgraph {
        model: encode_model(model),
        weights: BTreeMap::new(),
    };
    let program = cpu().compile(&subgraph).unwrap();
    program.run(inputs).unwrap().outputs
}

impl Case {
    fn new(nodes: Vec<NodeProto>, inputs: Vec<(&'static str, Tensor)>) -> Case {
        Case {
            nodes,
            inputs,
            constants: Vec::new(),
            output: "y",
            opset: 17,
        }
    }

    /// One operator whose inputs are those of the case.
    fn of_operator(node: NodeProto, inputs: Vec<(&'static str, Tensor)>) -> Case {
        Case::new(vec![node], inputs)
    }

    fn with_constant(mut self, name: &'static str, value: Tensor) -> Case {
        self.constants.push((name, value));
        self
    }

    fn with_opset(mut self, opset: i64) -> Case {
        self.opset = opset;
        self
    }

    fn given(&self) -> BTreeMap<String, Tensor> {
        let named = self.inputs.iter();
        named
            .map(|(name, it)| ((*name).to_owned(), it.clone()))
            .collect()
    }

    fn forward(&self) -> ModelProto {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|(name, it)| declare(name, it.dtype(), it.dims()));
        let constants = self.constants.iter();
        let constants = constants.map(|(name, it)| tensor_to_proto(*name, it));
        let outputs = &[self.output];
        model(
            self.nodes.clone(),
            inputs.collect(),
            outputs,
            constants.collect(),
            self.opset,
        )
    }

    fn import(&self) -> Graph {
        let bind = |bindings: Bindings, (name, it): &(&str, Tensor)| {
            bindings.with_input(*name, it.dtype(), it.dims())
        };
        let bindings = self.inputs.iter().fold(Bindings::new(), bind);
        Graph::import(encode_model(&self.forward()), &bindings).unwrap()
    }

    fn float_inputs(&self, graph: &Graph) -> BTreeSet<ValueId> {
        let inputs = graph.inputs().iter().copied();
        let is_float = |id: &ValueId| graph.value(*id).dtype() == Some(DType::F64);
        inputs.filter(is_float).collect()
    }

    /// Returns the gradients of the sum of the output's elements, each times a weight.
    fn gradients(&self, weights: &Tensor) -> Result<BTreeMap<String, Tensor>, GradientError> {
        let graph = self.import();
        let output = graph.find_value(self.output).unwrap();
        let mut writer = Writer::new(self.opset, DType::F64);
        let tape = Tape::new(&graph, &self.float_inputs(&graph));
        let found = tape.differentiate(output, "weights".to_owned(), &mut writer)?;
        let mut forward = self.forward();
        let proto = forward.graph.as_mut().unwrap();
        proto
            .input
            .push(declare("weights", DType::F64, weights.dims()));
        // Two inputs may have the same gradient, and an output has one name.
        let named = found.iter().map(|(id, name)| {
            let output = format!("gradient of {}", graph.value(*id).name);
            (
                NodeProto::for_operator("Identity", &[name], &output),
                output,
            )
        });
        let (nodes, outputs): (Vec<_>, Vec<_>) = named.unzip();
        proto.node.append(&mut writer.nodes);
        proto.node.extend(nodes);
        proto.initializer.append(&mut writer.constants);
        let declared = outputs.iter();
        let declared =
            declared.map(|name| ValueInfoProto::new_tensor(name, DType::F64.onnx_code(), None));
        proto.output = declared.collect();
        let mut given = self.given();
        given.insert("weights".to_owned(), weights.clone());
        let made = run(&forward, &given);
        let names = found.keys().map(|id| graph.value(*id).name.clone());
        Ok(names
            .map(|name| (name.clone(), made[&format!("gradient of {name}")].clone()))
            .collect())
    }

    fn weighted_sum(&self, given: &BTreeMap<String, Tensor>, weights: &[f64]) -> f64 {
        let made = run(&self.forward(), given);
        let made = made[self.output].to_vec::<f64>().unwrap();
        made.iter()
            .zip(weights)
            .map(|(value, weight)| value * weight)
            .sum()
    }

    /// Checks all gradients by finite differences.
    fn check(&self) {
        let made = run(&self.forward(), &self.given());
        let weights = doubles(made[self.output].dims(), 99);
        let gradients = self.gradients(&weights).unwrap();
        let weights = weights.to_vec::<f64>().unwrap();
        let floats = self
            .inputs
            .iter()
            .filter(|(_, it)| it.dtype() == DType::F64);
        for (name, value) in floats {
            let found = gradients[*name].to_vec::<f64>().unwrap();
            assert_eq!(gradients[*name].dims(), value.dims(), "{name}");
            let values = value.to_vec::<f64>().unwrap();
            for (place, found) in found.iter().enumerate() {
                let at = |change: f64| {
                    let mut moved = values.clone();
                    moved[place] += change;
                    let mut given = self.given();
                    let moved = Tensor::from_vec(value.dims(), moved).unwrap();
                    given.insert((*name).to_owned(), moved);
                    self.weighted_sum(&given, &weights)
                };
                let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let largest = expected.abs().max(found.abs()).max(1.0);
                let operators: Vec<&str> = self.nodes.iter().map(|it| it.op_type()).collect();
                assert!(
                    (found - expected).abs() <= TOLERANCE * largest,
                    "{operators:?}: the gradient of {name}[{place}] is {found}, \
                     the difference {expected}"
                );
            }
        }
    }
}
