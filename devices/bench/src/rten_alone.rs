//! Runs a model file on rten alone, without souk, as the baseline for souk's time and memory.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rten::{DataType, Dimension, Model, NodeId, RunOptions, ThreadPool, ValueType};
use souk_cpu::rten_engine::{self, ENGINE, InputValue};
use souk_host::system;
use souk_memory::DType;
use souk_onnx::subgraph::Port;
use souk_vocabulary::processor::RunError;

use crate::models::{self, ModelError, ModelTime};

/// Times `runs` runs of the model in a file as [`models::time_model`] does, but on rten alone.
///
/// # Errors
/// [`ModelError`]; a model with an operator that rten lacks will fail when it is loaded.
pub fn time_alone(
    path: &Path,
    sizes: &[usize],
    threads: NonZeroUsize,
    runs: usize,
) -> Result<ModelTime, ModelError> {
    let failed = |reason: String| ModelError::Run {
        path: path.to_owned(),
        cause: RunError::Engine {
            engine: ENGINE,
            reason,
        },
    };
    system::memory_peak_restart();
    let memory_before_bytes = system::memory_peak_bytes();
    let start = Instant::now();
    let model = Model::load_file(path).map_err(|error| failed(error.to_string()))?;
    let compile_seconds = start.elapsed().as_secs_f64();
    let ports = |ids: &[NodeId]| {
        ids.iter()
            .map(|&id| describe_port(&model, id))
            .collect::<Vec<Port>>()
    };
    let (given, wanted) = (ports(model.input_ids()), ports(model.output_ids()));
    let inputs = models::generate_inputs(path, &given, sizes)?;
    let pool = Arc::new(ThreadPool::with_num_threads(threads.get()));
    let once = || {
        let ids = model.input_ids().iter().zip(&given);
        let given = ids.map(|(&id, port)| InputValue::new(id, port, &inputs[&port.name]));
        let given: Vec<InputValue<'_>> = given.collect::<Result<_, _>>().map_err(|cause| {
            let path = path.to_owned();
            ModelError::Run { path, cause }
        })?;
        let options = RunOptions::default().with_thread_pool(Some(pool.clone()));
        let views = given.iter().map(InputValue::to_rten_view).collect();
        let made = model.run(views, model.output_ids(), Some(options));
        made.map_err(|error| failed(error.to_string()))
    };
    let mut last = once()?;
    let mut seconds = Vec::with_capacity(runs);
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        last = once()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let named = wanted.iter().zip(last).map(|(port, value)| {
        let tensor =
            rten_engine::tensor_from_rten(port, value).map_err(|cause| ModelError::Run {
                path: path.to_owned(),
                cause,
            })?;
        Ok((port.name.clone(), tensor))
    });
    let outputs = named.collect::<Result<BTreeMap<_, _>, ModelError>>()?;
    Ok(ModelTime {
        compile_seconds,
        memory_before_bytes,
        ..ModelTime::from_runs(path, seconds, &outputs)
    })
}

/// Returns the port for an input or output, as far as rten describes it.
fn describe_port(model: &Model, id: NodeId) -> Port {
    let info = model.node_info(id);
    let dtype = match info.as_ref().and_then(|info| info.dtype()) {
        Some(ValueType::Tensor(DataType::Int32)) => DType::I32,
        Some(ValueType::Tensor(DataType::Int8)) => DType::I8,
        Some(ValueType::Tensor(DataType::UInt8)) => DType::U8,
        _ => DType::F32,
    };
    let size = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => Some(*size),
        Dimension::Symbolic(_) => None,
    };
    let shape = info.as_ref().and_then(|info| info.shape());
    Port {
        name: info
            .and_then(|info| info.name())
            .unwrap_or_default()
            .to_owned(),
        dtype,
        dims: shape.map(|shape| shape.iter().map(size).collect()),
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::Tensor;
    use souk_onnx::encode_model;
    use souk_testing::{model, node};

    use super::*;

    #[test]
    fn rten_by_itself_runs_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        let weight = Tensor::from_vec([1, 8], vec![2f32; 8]).unwrap();
        let ports = |name| [(name, DType::F32)];
        let nodes = vec![node("Add", &["x", "w"], &["y"])];
        let proto = model(nodes, &ports("x"), &ports("y"), &[("w", weight)]);
        std::fs::write(&path, encode_model(&proto)).unwrap();
        let timed = time_alone(&path, &[], NonZeroUsize::MIN, 3).unwrap();
        assert_eq!((timed.runs, timed.outputs["y"][0]), (3, 2.0), "{timed:?}");
        std::fs::write(&path, "no model").unwrap();
        let error = time_alone(&path, &[], NonZeroUsize::MIN, 3).unwrap_err();
        assert!(error.to_string().contains("m.onnx"), "{error}");
    }
}
