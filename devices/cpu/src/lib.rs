//! Runs ONNX subgraphs on the CPU of this machine. [`Cpu`] gives each part of a graph to the engine
//! that runs it best: kernels of our own for decoders, images, sequences and trees, rten (an ONNX
//! runtime) where it is exact, and the reference kernels elsewhere.
//!
//! The compiler refuses a subgraph if any of its nodes could give another result than ONNX defines,
//! so every result is right.
//!
//! A subgraph is any ONNX model:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::num::NonZeroUsize;
//!
//! use souk_cpu::Cpu;
//! use souk_memory::{Tensor, npy};
//! use souk_onnx::subgraph::Subgraph;
//! use souk_vocabulary::catalogue;
//! use souk_vocabulary::processor::Processor;
//!
//! let digits = std::path::Path::new("../../testnet/models/digits");
//! let model = std::fs::read(digits.join("digits.onnx"))?.into();
//! let images = npy::read(&std::fs::read(digits.join("images.npy"))?.into())?;
//!
//! // The profile is what it is said to be; how it was measured is souk-registry's.
//! let profile = catalogue::find_processor("amd-epyc-9654").ok_or("it is catalogued")?;
//! let cpu = Cpu::new(profile.clone(), NonZeroUsize::MIN);
//! let program = cpu.compile(&Subgraph { model, ..Subgraph::default() })?;
//! let outcome = program.run(&BTreeMap::from([("images".to_owned(), images)]))?;
//! assert_eq!(outcome.outputs["logits"].dims(), [360, 10]);
//!
//! let wrong = Tensor::from_vec([1], vec![1i64])?;
//! assert!(program.run(&BTreeMap::from([("images".to_owned(), wrong)])).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bodies;
mod decoder;
pub mod exact;
mod fold_and_merge;
mod images;
pub mod rten_engine;
mod rten_fit;
mod rten_part;
mod rten_rewrite;
mod segments;
mod sequences;
mod sizes;
mod tiled;
mod trees;
mod wasm_nodes;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_host::power::Meter;
use souk_host::system;
use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported, UnsupportedReason};
use souk_onnx::work::{Extent, Work, has_bodies};
use souk_vocabulary::history::node_class;
use souk_vocabulary::processor::session::{HeldSession, SequenceStep, Session, State};
use souk_vocabulary::processor::{
    Energy, Engine, Estimate, Outcome, Processor, Program, RunError, WorkError, check_inputs,
};
use souk_vocabulary::profile::{Power, Profile};

use decoder::{DecoderModel, DecoderSession, StepResult};
use segments::{KeptValues, Segments};
use wasm_nodes::WasmNodes;

/// The CPU, or those of its cores that are used.
pub struct Cpu {
    profile: Profile,
    threads: Arc<ThreadPool>,
    cores: NonZeroUsize,
    load: system::Load,
    meter: Option<Arc<Meter>>,
    engines: EngineChoice,
}

/// The engines that programs can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineChoice {
    /// Each part of a graph on the engine that runs it best.
    Best,
    /// Only those whose results are the same bits on every machine.
    Exact,
}

impl Cpu {
    /// The CPU described by `profile`, run with `threads` threads.
    #[must_use]
    pub fn new(profile: Profile, threads: NonZeroUsize) -> Self {
        Self {
            profile,
            threads: Arc::new(ThreadPool::with_num_threads(threads.get())),
            cores: threads,
            load: system::Load::default(),
            meter: Meter::for_machine().map(Arc::new),
            engines: EngineChoice::Best,
        }
    }

    /// The CPU described by `profile`, whose results are the same bits as those of every other CPU
    /// that is opened so. It refuses operators that are none of [`exact::EXACT_OPERATORS`].
    #[must_use]
    pub fn new_exact(profile: Profile, threads: NonZeroUsize) -> Self {
        Self {
            engines: EngineChoice::Exact,
            ..Self::new(profile, threads)
        }
    }

    /// Compiles a graph into a program that runs on the engines of this crate.
    fn compile_program(&self, graph: Graph) -> Result<Box<CpuProgram>, CompileError> {
        Ok(Box::new(CpuProgram {
            operators: graph.nodes().len() as u64,
            inputs: graph.inputs.clone(),
            outputs: graph.outputs.clone(),
            body: Body::compile(graph, &self.threads, self.engines)?,
            engines: self.engines,
            power: self.profile.power,
            meter: self.meter.clone(),
        }))
    }

    /// Computes the exact work of each node on inputs of these shapes: runs the subgraph once and
    /// looks at every value. Use [`Self::work_from`] if you can tell all sizes beforehand.
    ///
    /// # Errors
    /// Returns the errors of compiling and running.
    pub fn work_of(
        &self,
        subgraph: &Subgraph,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<Work>, WorkError> {
        let observed = self.observe_nodes(subgraph, inputs)?;
        Ok(observed.into_iter().map(|node| node.work).collect())
    }

    /// Computes the work from the type and sizes of every value, and runs nothing. Returns `None`
    /// if `extents` lacks a value, as it always does for values within a body.
    ///
    /// # Errors
    /// Returns the errors of compiling.
    pub fn work_from(
        subgraph: &Subgraph,
        extents: &Extents,
    ) -> Result<Option<Vec<Work>>, CompileError> {
        let graph = Graph::from_subgraph(subgraph)?;
        let extent = |name: &String| match graph.weights.get(name) {
            Some(weight) => Some(Extent {
                dtype: weight.dtype(),
                dims: weight.dims(),
            }),
            None => extents.get(name).map(|(dtype, dims)| Extent {
                dtype: *dtype,
                dims,
            }),
        };
        let work = |node: &NodeProto| {
            let is_named = |name: &&String| !name.is_empty();
            let known = |name: &String| name.is_empty() || extent(name).is_some();
            if has_bodies(node) || !node.input.iter().chain(&node.output).all(known) {
                return None;
            }
            let given: Vec<_> = node.input.iter().map(extent).collect();
            let made = node.output.iter().filter(is_named).filter_map(extent);
            Some(Work::for_node(node, &given, &made.collect::<Vec<_>>()))
        };
        Ok(graph.nodes().iter().map(work).collect())
    }

    /// Runs a subgraph, and returns every node with its inputs and its work.
    ///
    /// # Errors
    /// Returns the errors of compiling and running.
    pub fn observe_nodes(
        &self,
        subgraph: &Subgraph,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<Observation>, WorkError> {
        let graph = Graph::from_subgraph(subgraph)?;
        let segments = Segments::compile(graph.clone(), &self.threads, KeptValues::Everything)?;
        check_inputs(&graph.inputs, inputs)?;
        let values = segments.run_all(inputs)?;
        Ok(graph
            .nodes()
            .iter()
            .map(|node| Observation::new(node, &graph, &values))
            .collect())
    }
}

/// Types and sizes of the values of a subgraph, by name.
pub type Extents = BTreeMap<String, (DType, Vec<usize>)>;

/// A node and its inputs in a run.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The node as the graph contains it.
    pub node: NodeProto,
    /// Version of the standard operator set it is written in.
    pub opset: i64,
    /// Its inputs that are weights, by name.
    pub weights: BTreeMap<String, Tensor>,
    /// The inputs of the node that are not weights, by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// Types of its outputs, in order.
    pub outputs: Vec<DType>,
    /// The work of the node.
    pub work: Work,
    /// Its class, as history tells operators apart.
    pub class: String,
}

impl Observation {
    fn new(node: &NodeProto, graph: &Graph, values: &BTreeMap<String, Tensor>) -> Self {
        let extent = |name: &String| {
            let tensor = values.get(name).or_else(|| graph.weights.get(name))?;
            Some(Extent {
                dtype: tensor.dtype(),
                dims: tensor.dims(),
            })
        };
        let given: Vec<_> = node.input.iter().map(extent).collect();
        let made: Vec<_> = node.output.iter().filter_map(extent).collect();
        let of = |map: &BTreeMap<String, Tensor>| {
            let held = node
                .input
                .iter()
                .filter_map(|name| Some((name.clone(), map.get(name)?.clone())));
            held.collect::<BTreeMap<String, Tensor>>()
        };
        let weights = of(&graph.weights);
        let mut inputs = of(values);
        inputs.retain(|name, _| !weights.contains_key(name));
        let is_held = |name: &String| graph.weights.contains_key(name);
        let placed = node.input.iter().zip(&given);
        let placed: Vec<_> = placed
            .map(|(name, extent)| extent.map(|extent| (extent, is_held(name))))
            .collect();
        Self {
            node: node.clone(),
            opset: graph.opset,
            outputs: made.iter().map(|extent| extent.dtype).collect(),
            work: Work::for_node(node, &given, &made) + bodies::body_work(node, graph, values),
            class: node_class(node, &placed),
            weights,
            inputs,
        }
    }
}

/// Returns whether the CPU runs the operator of this name for some types.
#[must_use]
pub fn has_operator(node: &NodeProto) -> bool {
    souk_reference::is_known(node)
}

impl Processor for Cpu {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        if self.engines == EngineChoice::Exact && !exact::is_exact_operator(node) {
            return Err(Unsupported::new(node, UnsupportedReason::Inexact));
        }
        if has_operator(node) || WasmNodes::supports_node(node) {
            return Ok(());
        }
        Err(Unsupported::new(node, UnsupportedReason::Operator))
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::for_work(work, &self.profile)
    }

    fn host_cores(&self) -> usize {
        self.cores.get()
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        Ok(self.compile_program(Graph::from_subgraph(subgraph)?)?)
    }

    fn compile_owned(&self, subgraph: Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let graph = Graph::from_subgraph(&subgraph)?;
        drop(subgraph);
        Ok(self.compile_program(graph)?)
    }

    fn memory_free_bytes(&self) -> u64 {
        // A process that may open no file cannot read the free memory; its limit was fixed before.
        system::memory_free_bytes().unwrap_or(self.profile.memory.bytes)
    }

    fn utilisation(&self) -> f64 {
        self.load.utilisation()
    }

    fn meter_joules(&self) -> Option<f64> {
        self.meter.as_ref().and_then(|meter| meter.energy_joules())
    }
}

/// A subgraph ready to run on the CPU.
struct CpuProgram {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    operators: u64,
    body: Body,
    engines: EngineChoice,
    power: Option<Power>,
    meter: Option<Arc<Meter>>,
}

/// The engine of a program.
enum Body {
    /// A decoder, whole.
    Decoder(Box<DecoderModel>),
    /// Anything else, in parts.
    Segments(Segments),
}

impl Body {
    fn compile(
        graph: Graph,
        threads: &Arc<ThreadPool>,
        engines: EngineChoice,
    ) -> Result<Self, CompileError> {
        if engines == EngineChoice::Exact {
            exact::check_exact(&graph)?;
            return Segments::compile_exact(graph, threads, Isa::detect_widest())
                .map(Self::Segments);
        }
        match DecoderModel::new(graph, threads) {
            Ok(decoder) => Ok(Self::Decoder(Box::new(decoder))),
            Err(graph) => {
                Segments::compile(*graph, threads, KeptValues::Outputs).map(Self::Segments)
            }
        }
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outputs, RunError> {
        match self {
            Self::Decoder(decoder) => decoder.run(inputs),
            Self::Segments(segments) => segments.run(inputs),
        }
    }
}

/// The outputs of a run by name.
type Outputs = BTreeMap<String, Tensor>;

/// The time and energy of some work.
#[derive(Clone, Copy)]
struct TimeAndEnergy {
    busy: Duration,
    energy: Option<Energy>,
}

impl TimeAndEnergy {
    /// Returns its part for some of the rows.
    fn scale_to_part(self, part: f64) -> Self {
        let energy = self.energy.map(|energy| Energy {
            joules: energy.joules * part,
            ..energy
        });
        Self {
            busy: self.busy.mul_f64(part),
            energy,
        }
    }
}

impl CpuProgram {
    /// Runs `work` and returns its result with the time and energy that it took.
    fn measure_effort<T>(&self, work: impl FnOnce() -> T) -> (T, TimeAndEnergy) {
        let before = self.meter.as_ref().and_then(|meter| meter.energy_joules());
        let start = Instant::now();
        let made = work();
        let busy = start.elapsed();
        let after = self.meter.as_ref().and_then(|meter| meter.energy_joules());
        let energy = Energy::of_run(before.zip(after), self.power, busy);
        (made, TimeAndEnergy { busy, energy })
    }

    fn build_outcome(&self, outputs: Outputs, effort: TimeAndEnergy) -> Outcome {
        Outcome {
            outputs,
            busy: effort.busy,
            energy: effort.energy,
            operators: self.operators,
            engine: Engine::Own,
        }
    }
}

impl Program for CpuProgram {
    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        check_inputs(&self.inputs, inputs)?;
        let (outputs, effort) = self.measure_effort(|| self.body.run(inputs));
        let mut outputs = outputs?;
        if self.engines == EngineChoice::Exact {
            exact::canonicalise_outputs(&mut outputs);
        }
        Ok(self.build_outcome(outputs, effort))
    }

    fn open_session(&self, states: Vec<State>) -> Result<Box<dyn Session + '_>, RunError> {
        match &self.body {
            Body::Decoder(decoder) => Ok(Box::new(CpuSession {
                program: self,
                session: decoder.open_session(states)?,
            })),
            Body::Segments(_) => Ok(Box::new(HeldSession::new(self, states))),
        }
    }
}

/// A session of a decoder.
struct CpuSession<'a> {
    program: &'a CpuProgram,
    session: DecoderSession<'a>,
}

impl Session for CpuSession<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        let (made, effort) = self
            .program
            .measure_effort(|| self.session.run_steps(steps));
        let rows = |stepped: &StepResult| stepped.1.max(1) as f64;
        let all: f64 = made.iter().flatten().map(rows).sum();
        let outcome = |stepped: Result<StepResult, RunError>| {
            let stepped = stepped?;
            let own = effort.scale_to_part(rows(&stepped) / all);
            Ok(self.program.build_outcome(stepped.0, own))
        };
        made.into_iter().map(outcome).collect()
    }

    fn export_states(&self, sequence: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Ok(self.session.export_states(sequence))
    }
}

#[cfg(test)]
pub(crate) mod oracle;
#[cfg(test)]
pub(crate) mod tests;
