//! Collects the outputs that no provider computes: inputs that are outputs too, and constants of
//! the model. The shell of a job must add them to each answer itself.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_scheduler::graph::{Graph, Source};

/// The outputs that the buyer adds to answers.
#[derive(Default)]
pub(super) struct OwnOutputs {
    constants: BTreeMap<String, Tensor>,
    /// The names of inputs that are outputs.
    inputs: BTreeSet<String>,
    /// The tensors of these inputs, for each request without an answer.
    request_inputs: BTreeMap<u32, BTreeMap<String, Tensor>>,
}

impl OwnOutputs {
    /// Finds the outputs of a graph that no node computes. Omits a constant whose file has changed.
    pub(super) fn from_graph(graph: &Graph) -> Self {
        let mut own = Self::default();
        for &id in graph.outputs() {
            let value = graph.value(id);
            match &value.source {
                Source::Input => drop(own.inputs.insert(value.name.clone())),
                Source::Constant(weight) => {
                    if let Some(tensor) = weight.to_tensor() {
                        own.constants.insert(value.name.clone(), tensor);
                    }
                }
                Source::Node(_) => {}
            }
        }
        own
    }

    /// Stores the inputs of a request that are outputs.
    pub(super) fn note_request(&mut self, number: u32, inputs: &BTreeMap<String, Tensor>) {
        if self.inputs.is_empty() {
            return;
        }
        let wanted = inputs
            .iter()
            .filter(|(name, _)| self.inputs.contains(*name));
        let wanted = wanted.map(|(name, tensor)| (name.clone(), tensor.clone()));
        self.request_inputs.insert(number, wanted.collect());
    }

    /// Removes and returns the outputs that the buyer adds to the answer of a request.
    pub(super) fn take_outputs(&mut self, number: u32) -> BTreeMap<String, Tensor> {
        let mut own = self.request_inputs.remove(&number).unwrap_or_default();
        let constants = self.constants.iter();
        own.extend(constants.map(|(name, tensor)| (name.clone(), tensor.clone())));
        own
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::{self as onnx, NodeProto, ValueInfoProto};
    use souk_scheduler::graph::Bindings;

    use super::*;

    #[test]
    fn inputs_and_constants_among_the_outputs_are_in_each_answer() {
        let declared = |name: &str| {
            let dims = vec![onnx::Dimension::new_fixed(2)];
            ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims))
        };
        let constant =
            NodeProto::for_operator("Constant", &[], "k").with("value_ints", vec![3i64, 4]);
        let weight = Tensor::from_vec([2], vec![0.5f32, 1.5]).unwrap();
        let model = onnx::ModelProto {
            ir_version: Some(10),
            opset_import: vec![onnx::OperatorSetIdProto {
                domain: None,
                version: Some(18),
            }],
            graph: Some(onnx::GraphProto {
                node: vec![constant, NodeProto::for_operator("Relu", &["x"], "y")],
                initializer: vec![onnx::tensor_to_proto("w", &weight)],
                input: vec![declared("x")],
                output: ["y", "k", "w", "x"].map(declared).to_vec(),
                ..onnx::GraphProto::default()
            }),
            ..onnx::ModelProto::default()
        };
        let bindings = Bindings::new().with_input("x", DType::F32, &[2]);
        let graph = Graph::import(onnx::encode_model(&model), &bindings).unwrap();
        let mut own = OwnOutputs::from_graph(&graph);
        for number in 0..2 {
            let x = Tensor::from_vec([2], vec![number as f32, 7.0]).unwrap();
            let inputs = BTreeMap::from([("x".to_owned(), x.clone())]);
            own.note_request(number, &inputs);
            let answer = own.take_outputs(number);
            assert_eq!(answer["x"], x);
            assert_eq!(answer["w"], weight);
            assert_eq!(answer["k"].to_vec::<i64>().unwrap(), [3, 4]);
            assert_eq!(answer.len(), 3);
        }
    }
}
