//! A first run before the first job's: what only a process's first run pays is paid here.
//!
//! A fresh process has code that was never executed, threads that never ran and memory that was
//! never touched. A small model through each kind of engine takes that out of the first job.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};

use crate::cpu::WorkError;
use crate::measure::node;
use crate::onnx::{
    Dimension, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto, encode, tensor_to_proto,
};
use crate::processor::{Processor, Subgraph};

/// Images of one channel, as many and as large as a small job's.
const IMAGES: [usize; 4] = [64, 1, 16, 16];
/// Filters of the convolution, and their sides.
const FILTERS: [usize; 4] = [32, 1, 3, 3];
/// Values of an image behind the convolution, and of the product with them.
const FEATURES: [usize; 2] = [32 * 14 * 14, 16];

/// Compiles a small model on a device and runs it once.
///
/// # Errors
/// If the device fails an operator it should have; it is no less fit for jobs without.
pub fn warm(device: &dyn Processor) -> Result<(), WorkError> {
    let program = device.compile(&subgraph())?;
    program.run(&BTreeMap::from([("x".to_owned(), filled(&IMAGES))]))?;
    Ok(())
}

fn filled(dims: &[usize]) -> Tensor {
    let values = vec![0.5_f32; dims.iter().product()];
    Tensor::from_vec(dims.to_vec(), values).expect("as many values as its sizes say")
}

/// A convolution, what lies between, a product and a softmax.
pub(crate) fn subgraph() -> Subgraph {
    let port = |name: &str, dims: &[usize]| {
        let dims = dims.iter().map(|&size| Dimension::fixed(size as i64));
        ValueInfoProto::tensor(name, DType::F32.onnx_code(), Some(dims.collect()))
    };
    let weight = |name: &'static str, dims: &[usize]| tensor_to_proto(name, &filled(dims));
    let graph = GraphProto {
        name: Some("warm".to_owned()),
        node: vec![
            node("Conv", &["x", "filters"], "maps"),
            node("Relu", &["maps"], "lit"),
            node("Flatten", &["lit"], "rows"),
            node("MatMul", &["rows", "matrix"], "scores"),
            node("Softmax", &["scores"], "y"),
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use super::*;
    use crate::cpu::Cpu;
    use crate::emulated::{Emulated, EmulatedConfig};

    #[test]
    fn a_cpu_and_what_is_emulated_on_it_are_warmed() {
        let profile = crate::catalogue::find("amd-epyc-9654").unwrap().clone();
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        warm(&*cpu).unwrap();
        warm(&Emulated::new(profile, cpu, EmulatedConfig::default()).unwrap()).unwrap();
    }
}
