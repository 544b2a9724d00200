//! Cuts a graph into subgraphs, each an ONNX model of its own.
//!
//! The inputs and outputs of a subgraph keep their names from the whole graph, so you can join the
//! parts by name. Large weights are named by content id, so a provider that already has them needs
//! no second copy. Equal cuts give equal bytes, so a subgraph's id identifies its meaning.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use souk_memory::{ContentId, DType};
use souk_onnx::{
    DataLocation, Dimension, GraphProto, ModelProto, StringStringEntryProto, TensorProto,
    ValueInfoProto, encode_model, external_location,
};
use thiserror::Error;

use super::{CONTENT_SCHEME, Graph, NodeId, Source, Value, ValueId, Weight};

/// One part of a cut graph.
#[derive(Clone, Debug)]
pub struct Subgraph {
    /// Number of the part in the assignment.
    pub part: usize,
    /// BLAKE3 of `model`: equal for equal cuts.
    pub id: ContentId,
    /// The encoded model, with large weights by content id.
    pub model: Bytes,
    /// Its nodes of the whole graph, ascending.
    pub nodes: Vec<NodeId>,
    /// Values that it reads and that are not constant: inputs of the job, or outputs of earlier
    /// parts.
    pub inputs: Vec<Boundary>,
    /// Values that it produces for later parts or the job.
    pub outputs: Vec<Boundary>,
    /// Weights that it names by content id, each once, in order of first use.
    pub weights: Vec<WeightRef>,
    /// Parts that must run before it, ascending.
    pub after: Vec<usize>,
}

/// A value that crosses the edge of a subgraph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Id of the value in the whole graph.
    pub value: ValueId,
    /// Its name, the same in every part.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents; `None` if they are known only at run time.
    pub dims: Option<Vec<Option<u64>>>,
    /// Part that produces it; `None` for an input of the job.
    pub from: Option<usize>,
    /// Parts that read it, ascending.
    pub to: Vec<usize>,
    /// Whether it is an output of the job.
    pub job_output: bool,
}

/// A weight that a part names by content id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRef {
    /// BLAKE3 of its little-endian bytes.
    pub id: ContentId,
    /// Name in the graph.
    pub name: String,
    /// Length in bytes.
    pub byte_length: u64,
}

/// The reason why a graph cannot be cut along an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CutError {
    /// The assignment does not have one part for each node.
    #[error("the assignment has {found} entries for {expected} nodes")]
    Length {
        /// Number of nodes in the graph.
        expected: usize,
        /// Number of entries in the assignment.
        found: usize,
    },
    /// Two parts would wait for each other.
    #[error("parts {first} and {second} need each other's results, as by value {value:?}")]
    Cyclic {
        /// A part on the circle.
        first: usize,
        /// A part that depends on the first, directly or not, and that the first depends on.
        second: usize,
        /// A value that goes from the first to the second.
        value: String,
    },
    /// A value cannot be sent, because it is not a tensor or has an unknown element type.
    #[error("value {value:?} of node {node:?} cannot be sent to another part")]
    NotPortable {
        /// Name of the value.
        value: String,
        /// Node that produces it.
        node: String,
    },
}

/// Cuts `graph` into parts: node `n` goes to part `assignment[n]`. Returns the parts in running
/// order, without parts that have no nodes.
///
/// # Errors
/// [`CutError`] if parts form a circle, or a value between parts cannot be sent.
pub fn cut_graph(graph: &Graph, assignment: &[usize]) -> Result<Vec<Subgraph>, CutError> {
    if assignment.len() != graph.nodes().len() {
        return Err(CutError::Length {
            expected: graph.nodes().len(),
            found: assignment.len(),
        });
    }
    let fixed = graph.constant_only_nodes();
    let crossings = crossing_values(graph, assignment, &fixed)?;
    let order = order_parts(graph, assignment, &crossings)?;
    let stays = graph.single_part_nodes(&fixed);
    let kinds = (&fixed[..], &stays[..]);
    let build =
        |part: usize| Builder::new(graph, assignment, kinds, part).build_subgraph(&crossings);
    Ok(order.into_iter().map(build).collect())
}

/// Returns the whole graph as one subgraph, for a single provider.
///
/// # Errors
/// [`CutError::NotPortable`] if an input or output is not a tensor.
pub fn whole_graph(graph: &Graph) -> Result<Subgraph, CutError> {
    let mut parts = cut_graph(graph, &vec![0; graph.nodes().len()])?;
    match parts.pop() {
        Some(part) => Ok(part),
        // A graph without nodes still passes its constants and inputs on.
        None => Ok(
            Builder::new(graph, &[], (&[], &[]), 0).build_subgraph(&crossing_values(
                graph,
                &[],
                &[],
            )?),
        ),
    }
}

/// Returns every value that crosses the edge of a part. Values from constants alone never cross,
/// because each part computes its own.
fn crossing_values(
    graph: &Graph,
    assignment: &[usize],
    fixed: &[bool],
) -> Result<BTreeMap<ValueId, Boundary>, CutError> {
    let mut crossings = BTreeMap::new();
    for (index, value) in graph.values().iter().enumerate() {
        let id = ValueId(index);
        let from = value.producer().map(|node| assignment[node.0]);
        let readers: BTreeSet<usize> = value
            .readers
            .iter()
            .map(|node| assignment[node.0])
            .collect();
        let to: Vec<usize> = readers
            .into_iter()
            .filter(|part| Some(*part) != from && !value.is_known(fixed))
            .collect();
        let job_output = graph.outputs().contains(&id);
        let job_input = matches!(value.source, Source::Input);
        if value.is_constant() || (to.is_empty() && !job_output && !job_input) {
            continue;
        }
        let boundary = Boundary {
            value: id,
            name: value.name.clone(),
            dtype: portable_type(graph, value)?,
            dims: value.fact.dims.clone(),
            from,
            to,
            job_output,
        };
        crossings.insert(id, boundary);
    }
    Ok(crossings)
}

/// Returns the nodes together with the nodes that compute their constants, ascending.
fn with_constants(graph: &Graph, mut nodes: BTreeSet<NodeId>, fixed: &[bool]) -> Vec<NodeId> {
    let mut open: Vec<NodeId> = nodes.iter().copied().collect();
    while let Some(node) = open.pop() {
        for value in graph.node(node).input_values() {
            let maker = graph.value(value).producer().filter(|it| fixed[it.0]);
            open.extend(maker.filter(|it| nodes.insert(*it)));
        }
    }
    nodes.into_iter().collect()
}

fn portable_type(graph: &Graph, value: &Value) -> Result<DType, CutError> {
    let dtype = value.dtype().filter(|_| value.is_portable());
    dtype.ok_or_else(|| CutError::NotPortable {
        value: value.name.clone(),
        node: value
            .producer()
            .map_or_else(String::new, |node| graph.node(node).name().to_owned()),
    })
}

/// Returns the parts in an order in which each follows those it reads from.
fn order_parts(
    graph: &Graph,
    assignment: &[usize],
    crossings: &BTreeMap<ValueId, Boundary>,
) -> Result<Vec<usize>, CutError> {
    let parts: Vec<usize> = assignment
        .iter()
        .copied()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let place = |part: usize| parts.binary_search(&part).expect("every part is listed");
    let mut successors = vec![Vec::new(); parts.len()];
    for boundary in crossings.values() {
        if let Some(from) = boundary.from {
            successors[place(from)].extend(boundary.to.iter().map(|&to| place(to)));
        }
    }
    let order = crate::graph::topological_order(&successors);
    let order = order.map_err(|stuck| cycle_error(graph, crossings, &parts, &successors, stuck))?;
    Ok(order.into_iter().map(|index| parts[index]).collect())
}

/// Names two parts on the circle that `stuck` is on or depends on.
fn cycle_error(
    graph: &Graph,
    crossings: &BTreeMap<ValueId, Boundary>,
    parts: &[usize],
    successors: &[Vec<usize>],
    stuck: usize,
) -> CutError {
    let reaches = |from: usize, to: usize| {
        let mut seen = vec![false; successors.len()];
        let mut open = successors[from].clone();
        while let Some(next) = open.pop() {
            if !std::mem::replace(&mut seen[next], true) {
                open.extend(&successors[next]);
            }
        }
        seen[to]
    };
    let place = |part: usize| parts.binary_search(&part).expect("every part is listed");
    let circular = crossings.values().find_map(|boundary| {
        let from = boundary.from?;
        let to = boundary
            .to
            .iter()
            .find(|&&to| reaches(place(to), place(from)))?;
        Some((from, *to, boundary.value))
    });
    let fallback = (parts[stuck], parts[stuck], ValueId(0));
    let (first, second, value) = circular.unwrap_or(fallback);
    let value = graph.value(value).name.clone();
    CutError::Cyclic {
        first,
        second,
        value,
    }
}

/// Builds one part.
struct Builder<'a> {
    graph: &'a Graph,
    part: usize,
    nodes: Vec<NodeId>,
    read: BTreeSet<ValueId>,
}

impl<'a> Builder<'a> {
    fn new(
        graph: &'a Graph,
        assignment: &[usize],
        (fixed, stays): (&[bool], &[bool]),
        part: usize,
    ) -> Self {
        let own = assignment
            .iter()
            .enumerate()
            .filter(|(_, assigned)| **assigned == part);
        let given: Vec<NodeId> = own.map(|(index, _)| NodeId(index)).collect();
        let own: BTreeSet<NodeId> = given.iter().copied().filter(|it| stays[it.0]).collect();
        let nodes = match own.is_empty() {
            true => given,
            false => with_constants(graph, own, fixed),
        };
        let mut read: BTreeSet<ValueId> = nodes
            .iter()
            .flat_map(|&node| graph.node(node).input_values())
            .collect();
        if nodes.is_empty() {
            read.extend(graph.outputs());
        }
        Self {
            graph,
            part,
            nodes,
            read,
        }
    }

    fn build_subgraph(self, crossings: &BTreeMap<ValueId, Boundary>) -> Subgraph {
        let inputs = self.boundary_inputs(crossings);
        let outputs = self.boundary_outputs(crossings);
        let after: BTreeSet<usize> = inputs.iter().filter_map(|input| input.from).collect();
        let (proto, weights) = self.build_model(&inputs, &outputs);
        let model = encode_model(&proto);
        Subgraph {
            part: self.part,
            id: ContentId::for_content(&model),
            model,
            nodes: self.nodes,
            inputs,
            outputs,
            weights,
            after: after.into_iter().collect(),
        }
    }

    /// Returns the inputs in the order of the job or the graph.
    fn boundary_inputs(&self, crossings: &BTreeMap<ValueId, Boundary>) -> Vec<Boundary> {
        let wanted = |boundary: &&Boundary| {
            self.read.contains(&boundary.value)
                && boundary.from.is_none_or(|part| part != self.part)
        };
        crossings.values().filter(wanted).cloned().collect()
    }

    fn boundary_outputs(&self, crossings: &BTreeMap<ValueId, Boundary>) -> Vec<Boundary> {
        let own = |boundary: &&Boundary| boundary.from == Some(self.part);
        let mut outputs: Vec<Boundary> = crossings
            .values()
            .filter(own)
            .filter(|boundary| boundary.job_output || !boundary.to.is_empty())
            .cloned()
            .collect();
        // The job's outputs stay in the model's order.
        let rank = |id: ValueId| self.graph.outputs().iter().position(|output| *output == id);
        outputs.sort_by_key(|output| (rank(output.value).unwrap_or(usize::MAX), output.value));
        outputs
    }

    fn build_model(
        &self,
        inputs: &[Boundary],
        outputs: &[Boundary],
    ) -> (ModelProto, Vec<WeightRef>) {
        let graph = self.graph;
        let mut weights = Vec::new();
        let mut proto = GraphProto {
            name: Some(graph.name().to_owned()),
            node: self
                .nodes
                .iter()
                .map(|&node| graph.node(node).proto.clone())
                .collect(),
            input: inputs
                .iter()
                .map(|input| value_info(graph, input.value))
                .collect(),
            output: outputs
                .iter()
                .map(|output| value_info(graph, output.value))
                .collect(),
            ..GraphProto::default()
        };
        for &id in &self.read {
            match &graph.value(id).source {
                Source::Constant(weight) => {
                    proto
                        .initializer
                        .push(build_initialiser(weight, &mut weights));
                }
                Source::Input | Source::Node(_) => {}
            }
        }
        let model = ModelProto {
            // External data, and initialisers that are not inputs, need IR version 4 at least.
            ir_version: Some(graph.ir_version.max(4)),
            opset_import: graph.opsets.clone(),
            graph: Some(proto),
            ..ModelProto::default()
        };
        (model, weights)
    }
}

/// Returns the declaration of a value: the inferred one, or the model's own for a value that is not
/// a tensor.
fn value_info(graph: &Graph, id: ValueId) -> ValueInfoProto {
    let value = graph.value(id);
    let Some(elem) = value.fact.elem else {
        return value.stated.clone().unwrap_or_default();
    };
    let dims = graph.open.get(&id).or(value.fact.dims.as_ref());
    let dims = dims.map(|dims| {
        let dimension = |dim: &Option<u64>| match dim.and_then(|extent| i64::try_from(extent).ok())
        {
            Some(extent) => Dimension::new_fixed(extent),
            None => Dimension::default(),
        };
        dims.iter().map(dimension).collect()
    });
    ValueInfoProto::new_tensor(value.name.clone(), elem as i32, dims)
}

fn build_initialiser(weight: &Weight, weights: &mut Vec<WeightRef>) -> TensorProto {
    let mut tensor = weight.proto.clone();
    let Some(id) = weight.id else {
        // A type without a fixed width has its values inside the declaration.
        tensor.raw_data = weight.bytes.clone();
        return tensor;
    };
    let reference = WeightRef {
        id,
        name: tensor.name().to_owned(),
        byte_length: weight.byte_length,
    };
    if weights.iter().all(|known: &WeightRef| known.id != id) {
        weights.push(reference);
    }
    tensor.data_location = Some(DataLocation::External as i32);
    tensor.external_data = vec![
        StringStringEntryProto::new("location", format!("{CONTENT_SCHEME}{id}")),
        StringStringEntryProto::new("length", weight.byte_length.to_string()),
    ];
    tensor
}

/// The reason why weights cannot be put back into a subgraph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InlineError {
    /// The lookup did not find a weight.
    #[error("weight {name:?} ({id}, {byte_length} bytes) is missing")]
    Missing {
        /// Content id.
        id: ContentId,
        /// Name in the graph.
        name: String,
        /// Expected length in bytes.
        byte_length: u64,
    },
    /// A location is not a content id.
    #[error("weight {name:?} is at {location:?}, which is not a content id")]
    Location {
        /// Name in the graph.
        name: String,
        /// Location that the model names.
        location: String,
    },
}

/// Puts weights that `model` names by content id back into it, without a copy of their bytes. You
/// can use it to run a subgraph with an engine that must have all weights inside.
///
/// # Errors
/// [`InlineError`] if `lookup` does not find a weight, or a location is not a content id.
pub fn inline_weights(
    model: &mut ModelProto,
    mut lookup: impl FnMut(&ContentId) -> Option<Bytes>,
) -> Result<(), InlineError> {
    let Some(graph) = &mut model.graph else {
        return Ok(());
    };
    for tensor in &mut graph.initializer {
        let Some(place) = external_location(tensor) else {
            continue;
        };
        let id = place
            .strip_prefix(CONTENT_SCHEME)
            .and_then(|hex| hex.parse().ok());
        let id: ContentId = id.ok_or_else(|| InlineError::Location {
            name: tensor.name().to_owned(),
            location: place.to_owned(),
        })?;
        let bytes = lookup(&id).ok_or_else(|| InlineError::Missing {
            id,
            name: tensor.name().to_owned(),
            byte_length: tensor
                .external_entry("length")
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
        })?;
        tensor.raw_data = Some(bytes);
        tensor.data_location = None;
        tensor.external_data.clear();
    }
    Ok(())
}

/// Returns the bytes of every weight of `graph` that has a content id, each once. You must send
/// these with the subgraphs, unless a provider already has them.
pub fn weight_bytes(graph: &Graph) -> impl Iterator<Item = (ContentId, Bytes)> + '_ {
    let mut seen = BTreeSet::new();
    let weights = graph.values().iter().filter_map(Value::weight);
    weights.filter_map(move |weight| {
        let id = weight.id.filter(|id| seen.insert(*id))?;
        Some((id, weight.read()?))
    })
}

/// Returns every weight of `graph` that has a content id.
pub fn content_weights(graph: &Graph) -> impl Iterator<Item = (ContentId, &Weight)> {
    let weights = graph.values().iter().filter_map(Value::weight);
    weights.filter_map(|weight| Some((weight.id?, weight)))
}
