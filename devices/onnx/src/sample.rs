//! Builds a small model with the operators of an image classifier, and inputs for it. A device runs
//! it once before its first job, because the first run in a process is slower than later ones.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};

use crate::subgraph::Subgraph;
use crate::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};

/// Images of one channel, in the number and size of a small job.
const IMAGES: [usize; 4] = [64, 1, 16, 16];
/// Filters of the convolution and their sizes.
const FILTERS: [usize; 4] = [32, 1, 3, 3];
/// Values per image after the convolution, and columns of the product with them.
const FEATURES: [usize; 2] = [32 * 14 * 14, 16];

/// Returns the model's inputs: a batch of 64 small images.
#[must_use]
pub fn model_inputs() -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_owned(), filled_tensor(&IMAGES))])
}

/// Returns the model: a convolution, the operators between, a product and a softmax.
#[must_use]
pub fn model_subgraph() -> Subgraph {
    let port = |name: &str, dims: &[usize]| {
        let dims = dims.iter().map(|&size| Dimension::new_fixed(size as i64));
        ValueInfoProto::new_tensor(name, DType::F32.onnx_code(), Some(dims.collect()))
    };
    let weight = |name: &'static str, dims: &[usize]| tensor_to_proto(name, &filled_tensor(dims));
    let graph = GraphProto {
        name: Some("warm".to_owned()),
        node: vec![
            NodeProto::for_operator("Conv", &["x", "filters"], "maps"),
            NodeProto::for_operator("Relu", &["maps"], "lit"),
            NodeProto::for_operator("Flatten", &["lit"], "rows"),
            NodeProto::for_operator("MatMul", &["rows", "matrix"], "scores"),
            NodeProto::for_operator("Softmax", &["scores"], "y"),
        ],
        input: vec![port("x", &IMAGES)],
        output: vec![port("y", &[IMAGES[0], FEATURES[1]])],
        initializer: vec![weight("filters", &FILTERS), weight("matrix", &FEATURES)],
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(graph),
        ..ModelProto::default()
    };
    Subgraph {
        model: encode_model(&model),
        weights: BTreeMap::new(),
    }
}

fn filled_tensor(dims: &[usize]) -> Tensor {
    let values = vec![0.5_f32; dims.iter().product()];
    Tensor::from_vec(dims.to_vec(), values).expect("as many values as its sizes say")
}
