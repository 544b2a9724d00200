//! Tests operators of classical machine learning and of ONNX Runtime on the CPU with the cases in
//! `exports.txt`.
//!
//! A case has the operator with its attributes, its inputs (`-` for an omitted one, `=` before a
//! weight), and after `>` the outputs of ONNX Runtime 1.32.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    ValueInfoProto, encode_model, subgraph, tensor_to_proto,
};
use souk_scheduler::graph::{Bindings, Graph, cut};
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;

/// The largest error of a float, relative to the largest value of its output.
const TOLERANCE: f64 = 1e-5;

/// A value with its name.
struct Value {
    name: String,
    is_weight: bool,
    tensor: Tensor,
}

struct Case {
    node: NodeProto,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

fn tensor(text: &str) -> Tensor {
    let (head, values) = text
        .split_once(':')
        .expect("a file of cases is well formed");
    let [dtype, dims] = head
        .split_whitespace()
        .collect::<Vec<_>>()
        .try_into()
        .expect("a file of cases is well formed");
    let dims: Vec<usize> = match dims {
        "-" => Vec::new(),
        dims => dims
            .split(',')
            .map(|it| it.parse().expect("a file of cases is well formed"))
            .collect(),
    };
    let values: Vec<f64> = values
        .split_whitespace()
        .map(|it| it.parse().expect("a file of cases is well formed"))
        .collect();
    let made = match dtype.parse().expect("a file of cases is well formed") {
        DType::F32 => {
            Tensor::from_vec(dims, values.iter().map(|&it| it as f32).collect::<Vec<_>>())
        }
        DType::I64 => {
            Tensor::from_vec(dims, values.iter().map(|&it| it as i64).collect::<Vec<_>>())
        }
        DType::I32 => {
            Tensor::from_vec(dims, values.iter().map(|&it| it as i32).collect::<Vec<_>>())
        }
        DType::U8 => Tensor::from_vec(dims, values.iter().map(|&it| it as u8).collect::<Vec<_>>()),
        dtype => panic!("no case has {dtype}"),
    };
    made.expect("a file of cases is well formed")
}

fn value(line: &str) -> Option<Value> {
    let (is_weight, line) = match line.strip_prefix("= ") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (name, rest) = line.split_once(' ')?;
    Some(Value {
        name: name.to_owned(),
        is_weight,
        tensor: tensor(rest),
    })
}

fn attribute(text: &str) -> AttributeProto {
    let (name, value) = text
        .split_once('=')
        .expect("a file of cases is well formed");
    let (kind, value) = value
        .split_once(':')
        .expect("a file of cases is well formed");
    let list = || value.split(',');
    match kind {
        "i" => AttributeProto::from_value(
            name,
            value
                .parse::<i64>()
                .expect("a file of cases is well formed"),
        ),
        "f" => AttributeProto::from_value(
            name,
            value
                .parse::<f32>()
                .expect("a file of cases is well formed"),
        ),
        "s" => AttributeProto::from_value(name, value),
        "is" => AttributeProto::from_value(
            name,
            list()
                .map(|it| it.parse().expect("a file of cases is well formed"))
                .collect::<Vec<i64>>(),
        ),
        "fs" => AttributeProto::from_value(
            name,
            list()
                .map(|it| it.parse().expect("a file of cases is well formed"))
                .collect::<Vec<f32>>(),
        ),
        _ => {
            let texts = list().map(|it| it.to_owned().into());
            AttributeProto::from_value(name, texts.collect::<Vec<bytes::Bytes>>())
        }
    }
}

fn case(text: &str) -> Case {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut words = lines
        .next()
        .expect("a file of cases is well formed")
        .split(' ');
    let operator = words.next().expect("a file of cases is well formed");
    let (domain, operator) = operator.rsplit_once('.').unwrap_or(("", operator));
    let mut node = NodeProto {
        domain: Some(domain.to_owned()),
        attribute: words.map(attribute).collect(),
        ..NodeProto::for_operator(operator, &[], "")
    };
    node.output.clear();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for line in lines {
        let (values, names, line) = match line.strip_prefix("> ") {
            Some(line) => (&mut outputs, &mut node.output, line),
            None => (&mut inputs, &mut node.input, line),
        };
        let value = value(line);
        names.push(
            value
                .as_ref()
                .map_or_else(String::new, |it| it.name.clone()),
        );
        values.extend(value);
    }
    Case {
        node,
        inputs,
        outputs,
    }
}

impl Case {
    fn model(&self) -> ModelProto {
        let declared = |it: &Value, rank: usize| {
            let dims = vec![Dimension::new_fixed(-1); rank];
            ValueInfoProto::new_tensor(it.name.as_str(), it.tensor.dtype().onnx_code(), Some(dims))
        };
        let given = self.inputs.iter().filter(|it| !it.is_weight);
        let weights = self.inputs.iter().filter(|it| it.is_weight);
        ModelProto {
            ir_version: Some(10),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(21),
            }],
            graph: Some(GraphProto {
                node: vec![self.node.clone()],
                input: given
                    .map(|it| declared(it, it.tensor.dims().len()))
                    .collect(),
                output: self
                    .outputs
                    .iter()
                    .map(|it| declared(it, it.tensor.dims().len()))
                    .collect(),
                initializer: weights
                    .map(|it| tensor_to_proto(it.name.as_str(), &it.tensor))
                    .collect(),
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    /// Returns the outputs of the case, cut into this many parts.
    fn run(&self, parts: usize) -> BTreeMap<String, Tensor> {
        let given = || self.inputs.iter().filter(|it| !it.is_weight);
        let bindings = given().fold(Bindings::new(), |bindings, it| {
            bindings.with_input(it.name.as_str(), it.tensor.dtype(), it.tensor.dims())
        });
        let graph = Graph::import(encode_model(&self.model()), &bindings)
            .expect("a file of cases is well formed");
        let count = graph.nodes().len();
        let assignment: Vec<usize> = (0..count).map(|node| node * parts / count).collect();
        let weights: BTreeMap<_, _> = cut::weight_bytes(&graph).collect();
        let profile = catalogue::find_processor("amd-epyc-9654")
            .expect("a file of cases is well formed")
            .clone();
        let cpu = Cpu::new(profile, NonZeroUsize::MIN);
        let held = given().map(|it| (it.name.clone(), it.tensor.clone()));
        let mut values: BTreeMap<String, Tensor> = held.collect();
        for part in cut::cut_graph(&graph, &assignment).expect("a file of cases is well formed") {
            let program = cpu.compile(&subgraph::Subgraph {
                model: part.model,
                weights: weights.clone(),
            });
            let program =
                program.unwrap_or_else(|error| panic!("{}: {error}", self.node.op_type()));
            let mut inputs = values.clone();
            inputs.retain(|name, _| program.inputs().iter().any(|port| port.name == *name));
            values.extend(
                program
                    .run(&inputs)
                    .expect("a file of cases is well formed")
                    .outputs,
            );
        }
        values
    }

    fn check(&self, found: &BTreeMap<String, Tensor>) {
        for expected in &self.outputs {
            let found = &found[&expected.name];
            let about = format!("{} {}", self.node.op_type(), expected.name);
            assert_eq!(found.dtype(), expected.tensor.dtype(), "{about}");
            assert_eq!(found.dims(), expected.tensor.dims(), "{about}");
            let [found, expected] = [found, &expected.tensor].map(numbers);
            let largest = expected
                .iter()
                .fold(1e-30, |most: f64, it| most.max(it.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let off = (found - expected).abs();
                assert!(
                    off <= TOLERANCE * largest,
                    "{about}: {found}, not {expected}"
                );
            }
        }
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.to_f64s().expect("a file of cases is well formed"),
        DType::I64 => tensor
            .to_vec::<i64>()
            .expect("a file of cases is well formed")
            .into_iter()
            .map(|it| it as f64)
            .collect(),
        DType::I32 => tensor
            .to_vec::<i32>()
            .expect("a file of cases is well formed")
            .into_iter()
            .map(f64::from)
            .collect(),
        _ => tensor.bytes().iter().copied().map(f64::from).collect(),
    }
}

#[test]
fn operators_of_others_give_what_onnx_runtime_gives_whole_and_cut() {
    let cases: Vec<Case> = include_str!("exports.txt")
        .trim()
        .split("\n\n")
        .map(case)
        .collect();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    for case in &cases {
        case.check(&case.run(1));
        case.check(&case.run(2));
    }
}
