//! A small model of an image classifier's operators: what takes the first run out of the first job
//! has one model to run, whatever device it is on.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};

use crate::subgraph::Subgraph;
use crate::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode,
    tensor_to_proto,
};

/// Images of one channel, as many and as large as a small job's.
const IMAGES: [usize; 4] = [64, 1, 16, 16];
/// Filters of the convolution, and their sides.
const FILTERS: [usize; 4] = [32, 1, 3, 3];
/// Values of an image behind the convolution, and of the product with them.
const FEATURES: [usize; 2] = [32 * 14 * 14, 16];

/// What the model takes: images, as many and as large as a small job's.
#[must_use]
pub fn inputs() -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_owned(), filled(&IMAGES))])
}

/// A convolution, what lies between, a product and a softmax.
#[must_use]
pub fn subgraph() -> Subgraph {
    let port = |name: &str, dims: &[usize]| {
        let dims = dims.iter().map(|&size| Dimension::fixed(size as i64));
        ValueInfoProto::tensor(name, DType::F32.onnx_code(), Some(dims.collect()))
    };
    let weight = |name: &'static str, dims: &[usize]| tensor_to_proto(name, &filled(dims));
    let graph = GraphProto {
        name: Some("warm".to_owned()),
        node: vec![
            NodeProto::of("Conv", &["x", "filters"], "maps"),
            NodeProto::of("Relu", &["maps"], "lit"),
            NodeProto::of("Flatten", &["lit"], "rows"),
            NodeProto::of("MatMul", &["rows", "matrix"], "scores"),
            NodeProto::of("Softmax", &["scores"], "y"),
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
        model: encode(&model),
        weights: BTreeMap::new(),
    }
}

fn filled(dims: &[usize]) -> Tensor {
    let values = vec![0.5_f32; dims.iter().product()];
    Tensor::from_vec(dims.to_vec(), values).expect("as many values as its sizes say")
}
