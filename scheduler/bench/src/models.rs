//! Builds and runs the small models that the measurements use as workloads: single operators, and
//! branches of products.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_memory::{DType, Store, Tensor};
use souk_onnx::subgraph::{Port, Subgraph};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
    tensor_to_proto,
};
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Cancel, Clock, GroupConfig, GroupDevice, GroupError, Moment, Precedence, Retrials, RunResult,
    Runner, Sharing, Task, TaskError,
};
use souk_vocabulary::processor::Processor;

/// Maximum bytes of a benchmark's tensors between devices.
const TENSOR_BYTES_MAX: u64 = 4 << 30;
/// Maximum bytes of a benchmark's models and weights.
const STORE_BYTES_MAX: u64 = 2 << 30;

/// A model and its inputs.
#[derive(Clone)]
pub struct Workload {
    /// Name in reports.
    pub name: String,
    /// The encoded ONNX model.
    pub model: Bytes,
    /// The model's inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
}

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The devices cannot form a device group.
    #[error(transparent)]
    Team(#[from] GroupError),
    /// A run failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The model does not fit the store.
    #[error(transparent)]
    Store(#[from] souk_memory::StoreError),
    /// A device refused to compile a program.
    #[error(transparent)]
    Compile(#[from] souk_onnx::subgraph::CompileError),
    /// A program failed.
    #[error(transparent)]
    Run(#[from] souk_vocabulary::processor::RunError),
    /// The result of several devices differs from the result of one.
    #[error("{output} of {workload} is {found} in element {element}, and {expected} on one device")]
    Differs {
        /// Name of the workload.
        workload: String,
        /// Name of the output.
        output: String,
        /// Index of the first element that differs.
        element: usize,
        /// Value from several devices.
        found: f64,
        /// Value from one device.
        expected: f64,
    },
}

/// The reason why a model cannot be a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// The CPU cannot compile the model.
    #[error(transparent)]
    Compile(#[from] souk_onnx::subgraph::CompileError),
    /// An input has open sizes, and the caller passed none for them.
    #[error("input {name:?} of {dtype} has the shape {shape}, and no sizes for it were given")]
    Input {
        /// Name of the input.
        name: String,
        /// Element type of the input.
        dtype: DType,
        /// Shape of the input.
        shape: String,
    },
}

impl Workload {
    /// Creates a workload from a model. `sizes` must fill all open sizes, input by input. The
    /// inputs must be 32-bit floats or 64-bit integers. Integer inputs hold ones, which are valid
    /// as ids and as masks.
    ///
    /// # Errors
    /// [`WorkloadError`] if the CPU refuses the model or an input lacks a size.
    pub fn of_model(
        name: String,
        model: Bytes,
        cpu: &dyn Processor,
        sizes: &[usize],
    ) -> Result<Self, WorkloadError> {
        let program = cpu.compile(&Subgraph {
            model: model.clone(),
            ..Subgraph::default()
        })?;
        let mut sizes = sizes.iter().copied();
        let mut inputs = BTreeMap::new();
        for port in program.inputs() {
            let tensor = sample_input(port, &mut sizes).ok_or_else(|| WorkloadError::Input {
                name: port.name.clone(),
                dtype: port.dtype,
                shape: port.shape_text(),
            })?;
            inputs.insert(port.name.clone(), tensor);
        }
        Ok(Self {
            name,
            model,
            inputs,
        })
    }
}

fn sample_input(port: &Port, sizes: &mut impl Iterator<Item = usize>) -> Option<Tensor> {
    let dims = port.dims.as_ref()?.iter();
    let dims: Option<Vec<usize>> = dims.map(|dim| dim.or_else(|| sizes.next())).collect();
    let dims = dims?;
    match port.dtype {
        DType::I64 => {
            let count = dims.iter().product::<usize>();
            Tensor::from_vec(dims, vec![1i64; count]).ok()
        }
        DType::F32 => Some(sample_tensor(&dims)),
        _ => None,
    }
}

/// Returns a tensor of values from -0.5 to 0.5 that repeat after a prime number of elements.
pub(super) fn sample_tensor(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let value = |index: usize| (index % 97) as f32 / 97.0 - 0.5;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_vec(dims.to_vec(), values).expect("there is a value for each place")
}

/// Returns a node whose name is the name of its output.
pub(super) fn build_node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// Returns a model of floats with one input `x`, the nodes (operator, inputs, output) and the
/// weights. Its output is the last node's.
pub(super) fn build_workload(
    name: &str,
    nodes: &[(&str, &[&str], &str)],
    input: &[usize],
    weights: &[(&str, &[usize])],
) -> Workload {
    let nodes = nodes
        .iter()
        .map(|(operator, inputs, output)| build_node(operator, inputs, output));
    let weights = weights
        .iter()
        .map(|(name, dims)| ((*name).to_owned(), sample_tensor(dims)));
    let (nodes, weights) = (nodes.collect(), weights.collect());
    workload_of(name, nodes, DType::F32, sample_tensor(input), weights)
}

/// Does the same as [`build_workload`] with any element types of the output, the input and the
/// weights.
pub(super) fn workload_of(
    name: &str,
    nodes: Vec<NodeProto>,
    made: DType,
    input: Tensor,
    weights: Vec<(String, Tensor)>,
) -> Workload {
    let extents = input.dims().iter();
    let extents = extents
        .map(|&size| Dimension::new_fixed(size as i64))
        .collect();
    let output = nodes.last().map_or("x", NodeProto::name).to_owned();
    let read = ValueInfoProto::new_tensor("x", input.dtype().onnx_code(), Some(extents));
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            name: Some(name.to_owned()),
            node: nodes,
            input: vec![read],
            output: vec![ValueInfoProto::new_tensor(&output, made.onnx_code(), None)],
            initializer: weights
                .iter()
                .map(|(name, weight)| tensor_to_proto(name.clone(), weight))
                .collect(),
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    Workload {
        name: name.to_owned(),
        model: encode_model(&model),
        inputs: BTreeMap::from([("x".to_owned(), input)]),
    }
}

/// Returns a clock that starts at zero now, for timelines that remain separate.
pub(super) fn new_clock() -> Arc<Clock> {
    let began = Moment::now();
    Arc::new(move || {
        let micros = Moment::now().duration_since(began).as_micros();
        UnixMicros(u64::try_from(micros).unwrap_or(u64::MAX))
    })
}

/// A workload with a runner of devices, to run it several times.
pub(super) struct Trial {
    runner: Runner,
    task: Task,
}

impl Trial {
    pub fn new(
        members: &[GroupDevice],
        workload: &Workload,
        sharing: Sharing,
    ) -> Result<Self, MeasureError> {
        let store = Arc::new(Store::in_memory(STORE_BYTES_MAX));
        let task = Task {
            name: workload.name.clone(),
            model: store.put(workload.model.clone())?,
            sequence: 0,
            inputs: workload.inputs.clone(),
        };
        let config = GroupConfig {
            host_bytes_max: TENSOR_BYTES_MAX,
            spill: None,
            sharing,
            retrials: Retrials::new(souk_registry::check::recheck_device),
            objective: Default::default(),
        };
        let runner = Runner::new_group("group", members.to_vec(), store, new_clock(), config)?;
        Ok(Self { runner, task })
    }

    pub fn run(&self) -> Result<RunResult, MeasureError> {
        Ok(self.runner.run(&self.task)?)
    }

    /// Runs the workload, which another thread can cancel.
    pub fn run_until(&self, cancel: &Cancel) -> Result<RunResult, MeasureError> {
        let precedence = Precedence::default();
        Ok(self.runner.run_until(&self.task, precedence, cancel)?)
    }

    /// Returns the shortest time of this many runs.
    pub fn best_of(&self, runs: usize) -> Result<Duration, MeasureError> {
        let mut best = Duration::MAX;
        for _ in 0..runs {
            best = best.min(self.run()?.makespan);
        }
        Ok(best)
    }
}

/// Compares two runs of a workload. Returns their largest difference, relative to the largest value
/// of each output.
pub(super) fn max_relative_difference(
    workload: &Workload,
    found: &RunResult,
    expected: &RunResult,
) -> Result<f64, MeasureError> {
    let mut furthest = 0.0f64;
    for (output, tensor) in &expected.outputs {
        let own = found.outputs.get(output).map(Tensor::to_f64s);
        let own = own.and_then(Result::ok).unwrap_or_default();
        let values = tensor.to_f64s().unwrap_or_default();
        let largest = values
            .iter()
            .fold(1e-6f64, |most, value| most.max(value.abs()));
        for (element, &expected) in values.iter().enumerate() {
            let found = own.get(element).copied().unwrap_or(f64::NAN);
            let apart = (found - expected).abs() / largest;
            if apart.is_nan() || apart > TOLERANCE {
                return Err(MeasureError::Differs {
                    workload: workload.name.clone(),
                    output: output.clone(),
                    element,
                    found,
                    expected,
                });
            }
            furthest = furthest.max(apart);
        }
    }
    Ok(furthest)
}

/// Maximum difference between floats of unlike devices, relative to an output's largest value.
const TOLERANCE: f64 = 1e-3;
