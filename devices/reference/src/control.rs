//! Computes the operators that run a graph of their own: `If`, `Loop` and `Scan`. `SequenceMap`
//! runs its body through this module too. A run of a body drops each value after its last use.

use std::collections::BTreeSet;

use souk_memory::Tensor;
use souk_onnx::liveness::{Liveness, StepValues};
use souk_onnx::{GraphProto, TensorProto, ValueInfoProto, tensor_from_proto};

use super::call::{Call, KernelError, Results, resolve_axis};
use super::layout::{concat_along, slice_along};
use super::value::{from_bytes, from_truths, to_truths};
use super::{Scope, run_freeing};

/// A loop can have at most this many rounds; a longer one counts as infinite.
const ITERATIONS_MAX: i64 = 1 << 24;

/// A nested graph, ready for any number of runs.
pub(super) struct Body<'a> {
    pub graph: &'a GraphProto,
    initializers: Vec<(&'a str, Tensor)>,
    /// For each of its nodes, the values that no later node needs.
    freed: Vec<Vec<String>>,
    /// Its outputs that its nodes or inputs supply.
    made: Vec<&'a str>,
}

impl<'a> Body<'a> {
    /// Returns the graph in an attribute of the node.
    pub fn from_attribute(call: &Call<'a>, attribute: &'static str) -> Result<Self, KernelError> {
        let found = call.node.attribute(attribute);
        let graph = found.and_then(|it| it.g.as_ref());
        Self::new(graph.ok_or(KernelError::Attribute(attribute))?)
    }

    fn new(graph: &'a GraphProto) -> Result<Self, KernelError> {
        let initializer = |it: &'a TensorProto| {
            let tensor = tensor_from_proto(it).map_err(|_| KernelError::Attribute("body"))?;
            Ok((it.name(), tensor))
        };
        let given = || graph.input.iter().map(ValueInfoProto::name);
        let outputs = || graph.output.iter().map(ValueInfoProto::name);
        let steps = graph.node.chunks(1).map(StepValues::of_nodes);
        let freed = Liveness::new(given(), steps, outputs()).freed_after_steps();
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let named: BTreeSet<&str> = StepValues::of_nodes(&graph.node)
            .makes
            .into_iter()
            .chain(given())
            .collect();
        Ok(Self {
            graph,
            initializers: graph
                .initializer
                .iter()
                .map(initializer)
                .collect::<Result<_, KernelError>>()?,
            freed: freed.into_iter().map(owned).collect(),
            made: outputs().filter(|name| named.contains(name)).collect(),
        })
    }

    /// Runs once on the values in scope and `inputs`, and returns the outputs. Removes the values
    /// that the run made from the scope at the end. A run that fails can leave some of them there.
    pub fn run(
        &self,
        call: &Call<'_>,
        scope: &mut Scope,
        inputs: Vec<Tensor>,
    ) -> Result<Vec<Tensor>, KernelError> {
        self.run_in_scope(call, scope, inputs, &self.freed)?;
        let output = |value: &ValueInfoProto| {
            scope
                .get(value.name())
                .cloned()
                .ok_or(KernelError::Attribute("body"))
        };
        let outputs = self.graph.output.iter().map(output).collect();
        for name in &self.made {
            scope.remove(*name);
        }
        outputs
    }

    /// Runs once, and leaves its values in scope except those in `freed`.
    fn run_in_scope(
        &self,
        call: &Call<'_>,
        scope: &mut Scope,
        inputs: Vec<Tensor>,
        freed: &[Vec<String>],
    ) -> Result<(), KernelError> {
        for (value, tensor) in self.graph.input.iter().zip(inputs) {
            scope.insert(value.name().to_owned(), tensor);
        }
        for (name, tensor) in &self.initializers {
            scope.insert((*name).to_owned(), tensor.clone());
        }
        run_freeing(&self.graph.node, freed, scope, call.opset)
            .map_err(|error| KernelError::Inner(Box::new(error)))
    }
}

/// Returns each body of a node with all values that its first round reads and makes; runs branches
/// that are not taken too. Leaves out a body that cannot run alone.
pub fn first_rounds<'a>(call: &Call<'a>) -> Vec<(&'a GraphProto, Scope)> {
    let given = || match call.node.op_type() {
        "If" => Ok(Vec::new()),
        "Loop" => {
            let carried = (2..call.inputs.len()).map(|index| call.input(index).cloned());
            let counter = [Ok(Tensor::scalar(0_i64)), from_truths(&[], vec![true])];
            counter.into_iter().chain(carried).collect()
        }
        _ if call.opset < 9 => Err(KernelError::Attribute("body")),
        _ => first_elements(call),
    };
    let round = |graph: &'a GraphProto| {
        let mut scope = call.scope.clone();
        let body = Body::new(graph).ok()?;
        body.run_in_scope(call, &mut scope, given().ok()?, &[])
            .ok()?;
        Some((graph, scope))
    };
    call.node.subgraphs().filter_map(round).collect()
}

/// Returns the inputs of the first round of a scan: the states, and the first element of each
/// sequence.
fn first_elements(call: &Call<'_>) -> Results {
    let sequences = call.int_attribute("num_scan_inputs", 0).max(0) as usize;
    let states = call.inputs.len().saturating_sub(sequences);
    let given = (0..call.inputs.len()).map(|index| {
        let input = call.input(index)?;
        let Some(index) = index.checked_sub(states) else {
            return Ok(input.clone());
        };
        let along = scanned_axis(call, index, input)?;
        scan_element(input, along, 0)
    });
    given.collect()
}

/// Returns the axis along which a scan iterates over a sequence.
fn scanned_axis(call: &Call<'_>, index: usize, source: &Tensor) -> Result<usize, KernelError> {
    let axes = call.node.ints("scan_input_axes").unwrap_or(&[]);
    resolve_axis(axes.get(index).copied().unwrap_or(0), source.dims().len())
}

/// Returns one element of a sequence along an axis.
fn scan_element(source: &Tensor, along: usize, at: usize) -> Result<Tensor, KernelError> {
    let mut dims = source.dims().to_vec();
    dims.remove(along);
    Ok(slice_along(source, along, at, 1)?.to_shape(dims)?)
}

fn read_condition(tensor: &Tensor) -> Result<bool, KernelError> {
    to_truths(tensor)?
        .first()
        .copied()
        .ok_or(KernelError::Range(0))
}

pub(super) fn run_if(call: &Call<'_>) -> Results {
    let name = if read_condition(call.input(0)?)? {
        "then_branch"
    } else {
        "else_branch"
    };
    Body::from_attribute(call, name)?.run(call, &mut call.scope.clone(), Vec::new())
}

pub(super) fn run_loop(call: &Call<'_>) -> Results {
    let body = Body::from_attribute(call, "body")?;
    let limit = call.optional_scalar_int(0)?.unwrap_or(i64::MAX);
    let mut go_on = call
        .optional_input(1)
        .map(read_condition)
        .transpose()?
        .unwrap_or(true);
    let mut carried = (2..call.inputs.len()).map(|index| call.input(index).cloned());
    let mut carried: Vec<Tensor> = carried.by_ref().collect::<Result<_, _>>()?;
    let count = carried.len();
    let mut scanned: Vec<Vec<Tensor>> = vec![Vec::new(); body.graph.output.len() - 1 - count];
    let mut scope = call.scope.clone();
    let mut iteration = 0;
    while go_on && iteration < limit {
        if iteration == ITERATIONS_MAX {
            return Err(KernelError::TooLarge(ITERATIONS_MAX as u128));
        }
        let counter = [Tensor::scalar(iteration), from_truths(&[], vec![true])?];
        let inputs = counter.into_iter().chain(carried).collect();
        let mut outputs = body.run(call, &mut scope, inputs)?.into_iter();
        go_on = read_condition(&outputs.next().ok_or(KernelError::Attribute("body"))?)?;
        carried = outputs.by_ref().take(count).collect();
        scanned
            .iter_mut()
            .zip(outputs)
            .for_each(|(list, tensor)| list.push(tensor));
        iteration += 1;
    }
    let stacks = scanned.iter().map(|list| stack_tensors(list, 0));
    carried.into_iter().map(Ok).chain(stacks).collect()
}

/// Stacks tensors of one shape along a new axis.
pub(super) fn stack_tensors(list: &[Tensor], along: usize) -> Result<Tensor, KernelError> {
    let Some(first) = list.first() else {
        return from_bytes(souk_memory::DType::F32, &[0], Vec::new());
    };
    let mut dims = first.dims().to_vec();
    dims.insert(along, 1);
    let list: Result<Vec<Tensor>, _> = list.iter().map(|it| it.to_shape(dims.clone())).collect();
    concat_along(&list?.iter().collect::<Vec<_>>(), along)
}

pub(super) fn run_scan(call: &Call<'_>) -> Results {
    if call.opset < 9 {
        return scan_batched(call);
    }
    let inputs: Result<Vec<Tensor>, _> = (0..call.inputs.len())
        .map(|index| call.input(index).cloned())
        .collect();
    scan_once(call, inputs?)
}

/// Runs a scan of version 8, whose first input gives lengths, and whose other inputs begin with a
/// batch axis.
fn scan_batched(call: &Call<'_>) -> Results {
    let first = call.input(1)?;
    let batch = *first.dims().first().ok_or(KernelError::Range(1))?;
    let mut outputs: Vec<Vec<Tensor>> = Vec::new();
    for sample in 0..batch {
        let own = |index: usize| {
            let tensor = slice_along(call.input(index)?, 0, sample, 1)?;
            let dims = tensor.dims()[1..].to_vec();
            Ok::<_, KernelError>(tensor.to_shape(dims)?)
        };
        let inputs: Result<Vec<Tensor>, _> = (1..call.inputs.len()).map(own).collect();
        for (index, output) in scan_once(call, inputs?)?.into_iter().enumerate() {
            match outputs.get_mut(index) {
                Some(list) => list.push(output),
                None => outputs.push(vec![output]),
            }
        }
    }
    outputs.iter().map(|list| stack_tensors(list, 0)).collect()
}

fn scan_once(call: &Call<'_>, inputs: Vec<Tensor>) -> Results {
    let body = Body::from_attribute(call, "body")?;
    let scanned_in = call.int_attribute("num_scan_inputs", 0).max(0) as usize;
    let states = inputs.len().checked_sub(scanned_in);
    let states = states.ok_or(KernelError::Attribute("num_scan_inputs"))?;
    let item = |list: Option<&[i64]>, index: usize| {
        list.and_then(|list| list.get(index)).copied().unwrap_or(0)
    };
    let mut carried = inputs[..states].to_vec();
    let sources = &inputs[states..];
    let axes_in: Vec<usize> = sources
        .iter()
        .enumerate()
        .map(|(index, it)| scanned_axis(call, index, it))
        .collect::<Result<_, _>>()?;
    let length = sources
        .first()
        .map_or(0, |source| source.dims()[axes_in[0]]);
    let mut results: Vec<Vec<Tensor>> = vec![Vec::new(); body.graph.output.len() - states];
    let mut scope = call.scope.clone();
    for step in 0..length {
        let mut given = carried;
        for (index, source) in sources.iter().enumerate() {
            let back = item(call.node.ints("scan_input_directions"), index) == 1;
            let at = if back { length - 1 - step } else { step };
            given.push(scan_element(source, axes_in[index], at)?);
        }
        let mut outputs = body.run(call, &mut scope, given)?.into_iter();
        carried = outputs.by_ref().take(states).collect();
        results
            .iter_mut()
            .zip(outputs)
            .for_each(|(list, tensor)| list.push(tensor));
    }
    for (index, list) in results.iter_mut().enumerate() {
        if item(call.node.ints("scan_output_directions"), index) == 1 {
            list.reverse();
        }
    }
    let stacks = results.iter().enumerate().map(|(index, list)| {
        let rank = list.first().map_or(0, |tensor| tensor.dims().len()) + 1;
        stack_tensors(
            list,
            resolve_axis(item(call.node.ints("scan_output_axes"), index), rank)?,
        )
    });
    carried.into_iter().map(Ok).chain(stacks).collect()
}
