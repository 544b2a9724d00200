//! Runs a model that ONNX Runtime has loaded: converts the inputs to the library's tensors, and its
//! outputs back. Only one run of a program can proceed at a time, because a run changes the
//! library's session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynTensor, DynValue};
use souk_host::busy::Busy;
use souk_host::power::Meter;
use souk_memory::{Shape, Tensor};
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::Port;
use souk_vocabulary::processor::{Energy, Engine, Outcome, Program, RunError, check_inputs};
use souk_vocabulary::profile::Power;

use super::ENGINE;
use super::elements::{self, to_element};
use super::loaded_model::OpenSession;

/// A model that is loaded in a session of ONNX Runtime and can run.
pub(super) struct RuntimeProgram {
    // A run changes the session, so only one run of a program can proceed at a time.
    opened: Mutex<OpenSession>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    operators: u64,
    power: Option<Power>,
    watch: RunMeters,
}

/// Measures the runs: adds to the processor's busy time, and reads its energy meter.
pub(super) struct RunMeters {
    pub busy: Arc<Busy>,
    /// The meter of the processor, if it has one.
    pub meter: Option<Arc<Meter>>,
}

impl RuntimeProgram {
    pub fn new(opened: OpenSession, graph: Graph, power: Option<Power>, watch: RunMeters) -> Self {
        Self {
            opened: Mutex::new(opened),
            operators: graph.nodes().len() as u64,
            inputs: graph.inputs,
            outputs: graph.outputs,
            power,
            watch,
        }
    }
}

impl Program for RuntimeProgram {
    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        check_inputs(&self.inputs, inputs)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let session = &mut opened.session;
        let meter = || {
            self.watch
                .meter
                .as_ref()
                .and_then(|meter| meter.energy_joules())
        };
        let (start, before) = (Instant::now(), meter());
        let given = |port: &Port| {
            let value = value(session, &inputs[&port.name])?;
            Ok((port.name.clone(), value.into_dyn().into()))
        };
        let given: Result<Vec<(String, SessionInputValue<'_>)>, RunError> =
            self.inputs.iter().map(given).collect();
        let mut made = session.run(given?).map_err(|error| engine_error(&error))?;
        let output = |port: &Port| {
            let value = made.remove(&port.name);
            let missing = || engine_error(&format!("output {:?} was not made", port.name));
            Ok((port.name.clone(), copy_tensor(value.ok_or_else(missing)?)?))
        };
        let outputs = self.outputs.iter().map(output).collect::<Result<_, _>>()?;
        let busy = start.elapsed();
        self.watch.busy.record_busy(busy);
        Ok(Outcome {
            outputs,
            busy,
            energy: Energy::of_run(before.zip(meter()), self.power, busy),
            operators: self.operators,
            engine: Engine::OnnxRuntime,
        })
    }
}

fn engine_error(reason: &impl ToString) -> RunError {
    RunError::Engine {
        engine: ENGINE,
        reason: reason.to_string(),
    }
}

/// Copies a tensor into the library's memory.
#[expect(unsafe_code, reason = "tensors of any type are filled as bytes")]
fn value(session: &Session, tensor: &Tensor) -> Result<DynTensor, RunError> {
    let Some(element) = to_element(tensor.dtype()) else {
        return Err(engine_error(&format!(
            "it has no element type {}",
            tensor.dtype()
        )));
    };
    let dims: Vec<i64> = tensor.dims().iter().map(|&size| size as i64).collect();
    let made = DynTensor::new(session.allocator(), element, dims);
    let mut made = made.map_err(|error| engine_error(&error))?;
    let bytes = tensor.bytes();
    if !bytes.is_empty() {
        // SAFETY: the library allocated elements of this type for this shape, which take exactly as
        // many bytes as the tensor has; nothing else refers to the new tensor yet.
        unsafe {
            let place = made.data_ptr_mut().cast::<u8>();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
    }
    Ok(made)
}

/// Copies a tensor from the library's memory.
#[expect(unsafe_code, reason = "tensors of any type are read as bytes")]
fn copy_tensor(value: DynValue) -> Result<Tensor, RunError> {
    let found: Result<DynTensor, _> = value.downcast();
    let found = found.map_err(|error| engine_error(&error))?;
    let element = *found.data_type();
    let Some(dtype) = elements::to_dtype(element) else {
        return Err(engine_error(&format!("an output is of {element:?}")));
    };
    let shape = Shape::from_i64(found.shape()).map_err(|error| engine_error(&error))?;
    let length = shape.byte_length(dtype);
    let bytes = if length == 0 {
        Bytes::new()
    } else {
        // SAFETY: the tensor has its elements contiguously in the CPU's memory, with as many bytes
        // as its type and shape state, and lives as long as the outputs of the run.
        let slice = unsafe { std::slice::from_raw_parts(found.data_ptr().cast::<u8>(), length) };
        Bytes::copy_from_slice(slice)
    };
    Tensor::new(dtype, shape, bytes).map_err(|error| engine_error(&error))
}
