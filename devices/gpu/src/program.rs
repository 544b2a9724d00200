//! A subgraph compiled for a GPU, and its runs. Compilation assigns each node to the host or the
//! device and uploads the weights. A run records all nodes (collects their kernels) for the shapes
//! of its inputs and submits them together. Only if the host must read a value in between, the run
//! submits them in several parts.

pub(crate) mod custom;
mod fusion;
mod matrices;
pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Port, Unsupported, UnsupportedReason};
use souk_reference as reference;
use souk_reference::Scope;
use souk_reference::call::{Call, KernelError};
use souk_vocabulary::processor::{Energy, Engine, Outcome, Program, RunError, check_held};
use souk_vocabulary::residency::TensorHandle;

use crate::context::Context;
use crate::error::GpuError;
use crate::memory::GpuResident;
use crate::numbers::doubles::DoubleSupport;
use crate::numbers::packed::is_stored_natively;
use crate::recording::{
    Array, Matrix, Step, Stream, Value, narrow_array, tensor_from_words, upload_tensor,
};
use crate::{memory, operators};
use fusion::{Fusion, FusionRole};
use matrices::Source;
use table::{Judge, Side, Takeover};

/// A subgraph compiled for a GPU.
pub(crate) struct GpuProgram {
    context: Arc<Context>,
    graph: Graph,
    sides: Vec<Side>,
    roles: Vec<FusionRole>,
    weights: BTreeMap<String, Value>,
    /// Weights that kernels read in their stored form (16-bit, or blocks of integers with scales),
    /// by the name of the widened or transposed value, which no kernel then computes.
    matrices: BTreeMap<String, Matrix>,
    /// Values that recording needs in the host's memory: shapes, axes, indices, integer divisors,
    /// and the inputs of nodes that run on the host.
    host_reads: BTreeSet<String>,
    /// For each node, the values that no later node reads, so that a run frees them after it.
    last_uses: Vec<Vec<String>>,
    scope: Scope,
    /// The fusion of a node that is fused with no other.
    no_fusion: Fusion,
}

impl GpuProgram {
    /// Assigns each node to the host or the device, plans fusion, and uploads the weights that the
    /// device reads.
    pub fn compile_graph(context: Arc<Context>, graph: Graph) -> Result<Self, CompileError> {
        let sides = assign_sides(&graph, context.double_support())?;
        for node in graph.nodes().iter().filter(|node| custom::is_kernel(node)) {
            let checked = custom::check_kernel(&context, &graph, node);
            checked.map_err(|reason| Unsupported::new(node, reason))?;
        }
        let sources = match context.driver().reads_blocks() {
            true => matrices::plan_matrices(&graph, &sides),
            false => BTreeMap::new(),
        };
        let weights = upload_weights(&context, &graph, &sides, &sources)?;
        let matrices = matrices::upload_matrices(&context, &graph, &sources, &weights);
        let matrices =
            matrices.map_err(|(name, error)| error.into_compile_error(&context.name, &name))?;
        let mut roles = fusion::plan_fusion(&graph, &sides, context.driver().multiplies_quarters());
        matrices::skip_unread(&graph, &sources, &mut roles);
        let nodes = graph.nodes().iter().zip(&sides);
        let doubles = context.double_support();
        let host_reads =
            nodes.flat_map(|(node, side)| table::read_by_host(node, *side, &graph.dtypes, doubles));
        Ok(Self {
            host_reads: host_reads.map(str::to_owned).collect(),
            last_uses: find_last_uses(&graph, &roles),
            roles,
            context,
            sides,
            weights,
            matrices,
            graph,
            scope: Scope::new(),
            no_fusion: Fusion::default(),
        })
    }

    /// Records all nodes. `states` names the inputs, such as KV caches, that their last reader may
    /// overwrite.
    fn record_nodes<'a>(
        &'a self,
        stream: &mut Stream<'a>,
        values: &mut BTreeMap<String, Value>,
        states: &BTreeSet<String>,
    ) -> Result<(), RunError> {
        let nodes = self.graph.nodes().iter().zip(&self.roles);
        let sides = self.sides.iter().zip(&self.last_uses);
        for ((node, role), (side, last_uses)) in nodes.zip(sides) {
            let fused = match role {
                FusionRole::Head(fused) => fused,
                _ => &self.no_fusion,
            };
            let state = node.input_name(0).filter(|name| states.contains(*name));
            let overwrites = state.is_some_and(|name| last_uses.iter().any(|last| last == name));
            let outputs = match (side, role) {
                (_, FusionRole::Absorbed) => Ok(Vec::new()),
                (Side::Host, _) => self.run_on_host(node, stream, values),
                (Side::Device, _) => self.record_on_device(node, overwrites, fused, stream, values),
            };
            let outputs =
                outputs.map_err(|error| error.into_run_error(&self.context.name, Some(node)))?;
            let names = match role {
                FusionRole::Head(fused) => std::slice::from_ref(&fused.output),
                _ => &node.output,
            };
            for (name, value) in names.iter().zip(outputs) {
                if !name.is_empty() {
                    values.insert(name.clone(), value);
                }
            }
            for name in last_uses {
                values.remove(name);
            }
        }
        Ok(())
    }

    fn find_value<'v>(
        &'v self,
        values: &'v BTreeMap<String, Value>,
        name: &str,
    ) -> Option<&'v Value> {
        values.get(name).or_else(|| self.weights.get(name))
    }

    fn require_value<'v>(
        &'v self,
        values: &'v BTreeMap<String, Value>,
        name: &str,
    ) -> Result<&'v Value, GpuError> {
        let value = self.find_value(values, name);
        value.ok_or_else(|| GpuError::NoValue(name.to_owned()))
    }

    /// Records the kernels of a node, with the nodes that it absorbs. `overwrites` lets it write
    /// its output over its first input.
    fn record_on_device<'a>(
        &'a self,
        node: &'a NodeProto,
        overwrites: bool,
        fused: &'a Fusion,
        stream: &mut Stream<'a>,
        values: &BTreeMap<String, Value>,
    ) -> Result<Vec<Value>, GpuError> {
        let names = fused.input_names(node).into_iter();
        let input_values: Vec<Option<&Value>> =
            names.map(|name| self.find_value(values, name)).collect();
        let inputs = input_values
            .iter()
            .map(|value| value.and_then(|value| value.host.clone()))
            .collect();
        let call = Call {
            node,
            inputs,
            scope: &self.scope,
            opset: self.graph.opset,
        };
        let dtype = |name: &String| self.graph.dtypes.get(name).copied();
        let names = match fused.output.is_empty() {
            true => &node.output,
            false => std::slice::from_ref(&fused.output),
        };
        let mut step = Step {
            stream,
            call,
            values: input_values,
            epilogue: &fused.epilogue,
            wanted: names.first().and_then(dtype),
            overwrites,
            matrix: node.input.iter().find_map(|name| self.matrices.get(name)),
        };
        if custom::is_kernel(node) {
            let arrays = custom::record_kernel(&mut step, &self.graph)?;
            return Ok(arrays.into_iter().map(Value::of_device).collect());
        }
        let arrays = operators::record_node(&mut step)?;
        let outputs = arrays.into_iter().enumerate();
        outputs
            .map(|(index, array)| {
                let wanted = names.get(index).and_then(dtype);
                let wanted = wanted.unwrap_or(array.dtype);
                Ok(Value::of_device(narrow_array(stream, array, wanted)?))
            })
            .collect()
    }

    /// Computes a node on the host.
    fn run_on_host<'a>(
        &'a self,
        node: &NodeProto,
        stream: &mut Stream<'a>,
        values: &BTreeMap<String, Value>,
    ) -> Result<Vec<Value>, GpuError> {
        if matches!(node.op_type(), "Shape" | "Size") {
            return self.evaluate_sizes(node, values);
        }
        let mut scope = Scope::new();
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            let value = self.require_value(values, name)?;
            let tensor = self.fetch_to_host(stream, name, value)?;
            scope.insert(name.clone(), tensor);
        }
        let run = reference::run_nodes(std::slice::from_ref(node), &mut scope, self.graph.opset);
        run.map_err(|error| KernelError::Inner(Box::new(error)))?;
        let take_output = |name: &String| {
            let tensor = scope.remove(name);
            let tensor = tensor.ok_or_else(|| GpuError::NoValue(name.clone()))?;
            Ok(Value::of_host(tensor))
        };
        let names = node.output.iter().filter(|name| !name.is_empty());
        names.map(take_output).collect()
    }

    /// Returns a value in host memory. If only the device has it (such as logits to sample from),
    /// first completes all work recorded so far.
    fn fetch_to_host<'a>(
        &'a self,
        stream: &mut Stream<'a>,
        name: &str,
        value: &Value,
    ) -> Result<Tensor, GpuError> {
        if let Some(tensor) = &value.host {
            return Ok(tensor.clone());
        }
        let missing = || GpuError::NoValue(name.to_owned());
        let array = value.on_device().ok_or_else(missing)?;
        std::mem::replace(stream, Stream::new(&self.context)).submit()?;
        let mut read = self.context.read(&[(array.buffer.get(), array.bytes())])?;
        tensor_from_words(array, read.pop().ok_or_else(missing)?)
    }

    /// Computes `Shape` or `Size` on the host, without the elements of their input.
    fn evaluate_sizes(
        &self,
        node: &NodeProto,
        values: &BTreeMap<String, Value>,
    ) -> Result<Vec<Value>, GpuError> {
        let name = node.input_name(0).unwrap_or_default();
        let value = self.require_value(values, name)?;
        let dims: Vec<i64> = value.dims().iter().map(|&size| size as i64).collect();
        let tensor = if node.op_type() == "Size" {
            Tensor::scalar(dims.iter().product::<i64>())
        } else {
            let rank = dims.len() as i64;
            let bound = |name, default| {
                let axis = node.int(name).unwrap_or(default);
                (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize
            };
            let (start, end) = (bound("start", 0), bound("end", rank));
            let chosen = dims[start..end.max(start)].to_vec();
            Tensor::from_vec([chosen.len()], chosen).map_err(KernelError::from)?
        };
        Ok(vec![Value::of_host(tensor)])
    }

    /// Converts inputs to values of a run. A tensor on this device stays there; if the host reads
    /// it, the host gets a copy. A tensor on another device is copied over the link between the two
    /// devices, or through the host. A copy locks the other device, so you must call this function
    /// before you lock this one: no run must hold two locks.
    fn import_inputs(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
    ) -> Result<BTreeMap<String, Value>, RunError> {
        let import = |(name, handle): (&String, &TensorHandle)| {
            let mut value = match handle {
                TensorHandle::Host(tensor) => Value::of_host(tensor.clone()),
                TensorHandle::Device(resident) => {
                    match memory::import_resident(&self.context, &**resident)? {
                        Some(value) => value,
                        None => Value::of_host(resident.to_host()?),
                    }
                }
            };
            if value.host.is_none() && self.host_reads.contains(name) {
                value.host = Some(handle.to_host()?);
            }
            Ok((name.clone(), value))
        };
        inputs.iter().map(import).collect()
    }

    /// Submits, waits, and reads back the outputs that do not stay on the device.
    fn finish_run(
        &self,
        stream: Stream<'_>,
        values: &BTreeMap<String, Value>,
        kept: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, TensorHandle>, GpuError> {
        stream.submit()?;
        let mut outputs = BTreeMap::new();
        let mut arrays: Vec<(&Port, &Array)> = Vec::new();
        for port in &self.graph.outputs {
            let value = self.require_value(values, &port.name)?;
            match (&value.host, value.on_device()) {
                (_, Some(_)) if kept.contains(&port.name) => {
                    let resident = GpuResident::new(&self.context, value.clone())?;
                    outputs.insert(port.name.clone(), TensorHandle::Device(Arc::new(resident)));
                }
                (Some(tensor), _) => {
                    outputs.insert(port.name.clone(), TensorHandle::Host(tensor.clone()));
                }
                (None, Some(array)) => arrays.push((port, array)),
                (None, None) => return Err(GpuError::NoValue(port.name.clone())),
            }
        }
        let buffers: Vec<_> = arrays
            .iter()
            .map(|(_, array)| (array.buffer.get(), array.bytes()))
            .collect();
        let read = self.context.read(&buffers)?;
        for ((port, array), words) in arrays.into_iter().zip(read) {
            outputs.insert(
                port.name.clone(),
                TensorHandle::Host(tensor_from_words(array, words)?),
            );
        }
        Ok(outputs)
    }
}

impl Program for GpuProgram {
    fn inputs(&self) -> &[Port] {
        &self.graph.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.graph.outputs
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let to_handle =
            |(name, tensor): (&String, &Tensor)| (name.clone(), TensorHandle::Host(tensor.clone()));
        let inputs = inputs.iter().map(to_handle).collect();
        let outcome = self.run_held(&inputs, &BTreeSet::new())?;
        outcome.try_map(|handle| handle.to_host())
    }

    fn run_held(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        self.run_in_place(inputs, kept, &BTreeSet::new())
    }

    fn run_in_place(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
        states: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        check_held(&self.graph.inputs, inputs)?;
        let mut values = self.import_inputs(inputs)?;
        let lock = self.context.run_lock.lock();
        let _lock = lock.unwrap_or_else(PoisonError::into_inner);
        let before = self.context.joules();
        let (start, compiled_before) = (Instant::now(), self.context.compiled_for());
        let alive = self.context.ensure_not_lost();
        alive.map_err(|error| error.into_run_error(&self.context.name, None))?;
        let mut stream = Stream::new(&self.context);
        self.record_nodes(&mut stream, &mut values, states)?;
        let outputs = self.finish_run(stream, &values, kept);
        let outputs = outputs.map_err(|error| error.into_run_error(&self.context.name, None))?;
        let compiled = self.context.compiled_for() - compiled_before;
        let busy = start.elapsed().saturating_sub(compiled);
        self.context.note_busy(busy);
        Ok(Outcome {
            outputs,
            busy,
            energy: before.zip(self.context.joules()).map(energy_between),
            operators: self.graph.nodes().len() as u64,
            engine: Engine::Own,
        })
    }
}

/// Returns the energy of a run, from the device's counter in joules before and after it.
fn energy_between((before, after): (f64, f64)) -> Energy {
    Energy {
        joules: after - before,
        measured: true,
    }
}

/// Assigns each node to the host or the device. By default, integer nodes run on the host, because
/// they usually compute shapes and masks; if nothing is then left for the device, it gets the
/// narrow integers, or all. Refuses the graph if a node can run nowhere, or none on the device.
fn assign_sides(graph: &Graph, doubles: DoubleSupport) -> Result<Vec<Side>, Unsupported> {
    let has_device_work = |sides: &Vec<Side>| sides.contains(&Side::Device);
    let sides = find_sides(graph, Takeover::Nothing, doubles)?;
    let Some(first) = graph.nodes().first().filter(|_| !has_device_work(&sides)) else {
        return Ok(sides);
    };
    for takeover in [Takeover::Narrow, Takeover::All] {
        if let Ok(sides) = find_sides(graph, takeover, doubles)
            && has_device_work(&sides)
        {
            return Ok(sides);
        }
    }
    let judge = create_judge(graph, Takeover::All, doubles);
    let unsupported = |node| Some((node, judge.unsupported_reason(node)?));
    let reason = "the graph has no work for this device but sizes and masks of integers";
    let (node, reason) = match graph.nodes().iter().find_map(unsupported) {
        Some(unsupported) => unsupported,
        None => (first, UnsupportedReason::Engine(reason.to_owned())),
    };
    Err(Unsupported::new(node, reason))
}

fn find_sides(
    graph: &Graph,
    takeover: Takeover,
    doubles: DoubleSupport,
) -> Result<Vec<Side>, Unsupported> {
    let mut judge = create_judge(graph, takeover, doubles);
    let side = |node| {
        let side = judge.judge_node(node);
        side.map_err(|reason| Unsupported::new(node, reason))
    };
    graph.nodes().iter().map(side).collect()
}

fn create_judge(graph: &Graph, takeover: Takeover, doubles: DoubleSupport) -> Judge<'_> {
    let inputs = graph.inputs.iter().map(|port| port.name.as_str());
    let weights = graph.weights.keys().map(String::as_str);
    Judge {
        takeover,
        types: &graph.dtypes,
        weights: &graph.weights,
        doubles,
        opset: graph.opset,
        on_host: inputs.chain(weights).collect(),
    }
}

/// Uploads the weights that nodes on the device read in their stored type. The host keeps all.
fn upload_weights(
    context: &Context,
    graph: &Graph,
    sides: &[Side],
    sources: &BTreeMap<String, Source>,
) -> Result<BTreeMap<String, Value>, CompileError> {
    let nodes = graph.nodes().iter().zip(sides);
    let device_nodes = nodes.filter(|(_, side)| **side == Side::Device);
    let mut read: BTreeSet<&str> = device_nodes
        .flat_map(|(node, _)| &node.input)
        .map(String::as_str)
        .collect();
    // The kernels that read blocks get the scales with the blocks. Any other reader uploads the
    // scales itself when it needs them.
    for (name, _) in sources.values().filter_map(|source| source.scales.as_ref()) {
        read.remove(name.as_str());
    }
    let stream = Stream::new(context);
    let mut weights = BTreeMap::new();
    for (name, tensor) in &graph.weights {
        let is_read_natively = read.contains(name.as_str()) && is_stored_natively(tensor.dtype());
        let value = if is_read_natively {
            let array = upload_tensor(&stream, tensor)
                .map_err(|error| error.into_compile_error(&context.name, name))?;
            Value::of_both(tensor.clone(), array)
        } else {
            Value::of_host(tensor.clone())
        };
        weights.insert(name.clone(), value);
    }
    Ok(weights)
}

/// Returns for each node the values that no later node uses: those that it reads last, and those
/// that it computes and nobody reads.
fn find_last_uses(graph: &Graph, roles: &[FusionRole]) -> Vec<Vec<String>> {
    let outputs: BTreeSet<&str> = graph
        .outputs
        .iter()
        .map(|port| port.name.as_str())
        .collect();
    let mut used_later: BTreeSet<&str> = outputs.clone();
    let mut last_uses = Vec::with_capacity(graph.nodes().len());
    for (node, role) in graph.nodes().iter().zip(roles).rev() {
        let names = node.input.iter().chain(&node.output).map(String::as_str);
        let fused_names = match role {
            FusionRole::Head(fused) => fused.input_names(node),
            _ => Vec::new(),
        };
        let names = names.chain(fused_names).filter(|name| !name.is_empty());
        let names = names.filter(|name| used_later.insert(name));
        last_uses.push(names.map(str::to_owned).collect());
    }
    last_uses.reverse();
    last_uses
}
