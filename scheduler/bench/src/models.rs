//! Small models that measurements run: single operators, and branches of products.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_memory::{DType, Store, Tensor};
use souk_onnx::subgraph::{Port, Subgraph};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode,
    tensor_to_proto,
};
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Cancel, Clock, GroupConfig, GroupDevice, GroupError, Moment, Precedence, Retrials, RunResult,
    Runner, Sharing, Task, TaskError,
};
use souk_vocabulary::processor::Processor;

/// Bytes of a benchmark's tensors between devices.
const TENSOR_BYTES_MAX: u64 = 4 << 30;
/// Bytes of models and weights of a benchmark.
const STORE_BYTES_MAX: u64 = 2 << 30;

/// A model, and what it is run on.
#[derive(Clone)]
pub struct Workload {
    /// What it is called in reports.
    pub name: String,
    /// The model.
    pub model: Bytes,
    /// Its inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The devices do not make a device_group.
    #[error(transparent)]
    Team(#[from] GroupError),
    /// A run failed.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The model is too large.
    #[error(transparent)]
    Store(#[from] souk_memory::StoreError),
    /// A program did not compile.
    #[error(transparent)]
    Compile(#[from] souk_onnx::subgraph::CompileError),
    /// A program failed.
    #[error(transparent)]
    Run(#[from] souk_vocabulary::processor::RunError),
    /// Two ways to run a model differ.
    #[error("{output} of {workload} is {found} in element {element}, and {expected} on one device")]
    Differs {
        /// The workload.
        workload: String,
        /// The output.
        output: String,
        /// Which element.
        element: usize,
        /// What several devices gave.
        found: f64,
        /// What one gave.
        expected: f64,
    },
}

/// Why a model is no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// It does not compile on the CPU.
    #[error(transparent)]
    Compile(#[from] souk_onnx::subgraph::CompileError),
    /// The sizes of an input are open and were not given.
    #[error("input {name:?} of {dtype} has the shape {shape}, and no sizes for it were given")]
    Input {
        /// Its name.
        name: String,
        /// Its element type.
        dtype: DType,
        /// Its shape.
        shape: String,
    },
}

impl Workload {
    /// A model, and inputs of the sizes given for what it leaves open, input by input: ones for
    /// integers, as ids and masks want them.
    ///
    /// # Errors
    /// [`WorkloadError`].
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
            let tensor = input(port, &mut sizes).ok_or_else(|| WorkloadError::Input {
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

fn input(port: &Port, sizes: &mut impl Iterator<Item = usize>) -> Option<Tensor> {
    let dims = port.dims.as_ref()?.iter();
    let dims: Option<Vec<usize>> = dims.map(|dim| dim.or_else(|| sizes.next())).collect();
    let dims = dims?;
    match port.dtype {
        DType::I64 => {
            let count = dims.iter().product::<usize>();
            Tensor::from_vec(dims, vec![1i64; count]).ok()
        }
        DType::F32 => Some(tensor(&dims)),
        _ => None,
    }
}

/// Values between -0.5 and 0.5 that repeat after a prime number of elements.
pub(super) fn tensor(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let value = |index: usize| (index % 97) as f32 / 97.0 - 0.5;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_vec(dims.to_vec(), values).expect("there is a value for each place")
}

/// A node: its output is its name.
pub(super) fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// A model of one input `x`, of nodes (operator, inputs, output) and weights, all in floats; its
/// last node's output is wanted.
pub(super) fn workload(
    name: &str,
    nodes: &[(&str, &[&str], &str)],
    input: &[usize],
    weights: &[(&str, &[usize])],
) -> Workload {
    let nodes = nodes
        .iter()
        .map(|(operator, inputs, output)| node(operator, inputs, output));
    let weights = weights
        .iter()
        .map(|(name, dims)| ((*name).to_owned(), tensor(dims)));
    let (nodes, weights) = (nodes.collect(), weights.collect());
    workload_of(name, nodes, DType::F32, tensor(input), weights)
}

/// The same in any types: of its output, of its input and of its weights.
pub(super) fn workload_of(
    name: &str,
    nodes: Vec<NodeProto>,
    made: DType,
    input: Tensor,
    weights: Vec<(String, Tensor)>,
) -> Workload {
    let extents = input.dims().iter();
    let extents = extents.map(|&size| Dimension::fixed(size as i64)).collect();
    let output = nodes.last().map_or("x", NodeProto::name).to_owned();
    let read = ValueInfoProto::tensor("x", input.dtype().onnx_code(), Some(extents));
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
            output: vec![ValueInfoProto::tensor(&output, made.onnx_code(), None)],
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
        model: encode(&model),
        inputs: BTreeMap::from([("x".to_owned(), input)]),
    }
}

/// The time since this was made, for timelines that nobody merges.
pub(super) fn clock() -> Arc<Clock> {
    let began = Moment::now();
    Arc::new(move || {
        let micros = Moment::now().since(began).as_micros();
        UnixMicros(u64::try_from(micros).unwrap_or(u64::MAX))
    })
}

/// A device_group with one workload.
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
            retrials: Retrials::new(souk_registry::check::trial),
            objective: Default::default(),
        };
        let runner = Runner::group("group", members.to_vec(), store, clock(), config)?;
        Ok(Self { runner, task })
    }

    pub fn run(&self) -> Result<RunResult, MeasureError> {
        Ok(self.runner.run(&self.task)?)
    }

    /// Runs until somebody cancels it.
    pub fn run_until(&self, cancel: &Cancel) -> Result<RunResult, MeasureError> {
        let precedence = Precedence::default();
        Ok(self.runner.run_until(&self.task, precedence, cancel)?)
    }

    /// The shortest of so many runs.
    pub fn best_of(&self, runs: usize) -> Result<Duration, MeasureError> {
        let mut best = Duration::MAX;
        for _ in 0..runs {
            best = best.min(self.run()?.makespan);
        }
        Ok(best)
    }
}

/// Holds two runs of a workload to each other: how far they are apart, beside the largest value.
pub(super) fn compare(
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

/// How far floats of unlike devices may lie apart, beside the largest of an output.
const TOLERANCE: f64 = 1e-3;
