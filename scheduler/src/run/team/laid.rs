//! A subgraph laid out over devices: its pieces, where each should run, and their programs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use souk_devices::processor::{CompileError, Processor, Program, Subgraph};
use souk_devices::profile::Profile;
use souk_memory::{ContentId, DType, Store, Tensor};

use super::place::{Placed, place};
use super::{LayError, Member, Task, TaskError};
use crate::cut::{self, Boundary};
use crate::executor::Speeds;
use crate::graph::{Bindings, Graph};
use crate::plan::{self, Link, Links, Offer, Operators, Throughput};
use crate::problem::{Edge, Problem, ProblemParts};
use crate::schedule::Schedule;
use crate::tasks::time_of;

/// Handing a tensor to another device's thread: what waking it takes.
const HAND_OVER_SECONDS: f64 = 20e-6;
/// Element types whose speed an offer states.
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::Bf16,
    DType::I8,
    DType::I4,
];

/// A plan with its pieces.
pub(in crate::run) struct Laid {
    pub pieces: Vec<Piece>,
    pub problem: Arc<Problem>,
    pub schedule: Schedule,
    /// What was known of the devices when it was made.
    pub believed: Speeds,
    /// Values the job wants, by name.
    pub outputs: Vec<String>,
}

/// A part of the subgraph that one device runs.
pub(in crate::run) struct Piece {
    pub name: String,
    pub inputs: Vec<String>,
    /// What it makes, and how often that is read: by other pieces, and by the job.
    pub outputs: Vec<(String, usize)>,
    subgraph: Subgraph,
    programs: Vec<OnceLock<Result<Arc<dyn Program>, CompileError>>>,
}

impl Piece {
    /// The program of the piece on a device, compiled when it is first wanted there.
    pub fn program(
        &self,
        device: usize,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        let compile = || processor.compile(&self.subgraph).map(Arc::from);
        self.programs[device].get_or_init(compile).clone()
    }

    /// Bytes of its weights and its model.
    pub fn bytes(&self) -> u64 {
        let weights = self
            .subgraph
            .weights
            .values()
            .map(|values| values.len() as u64);
        self.subgraph.model.len() as u64 + weights.sum::<u64>()
    }
}

/// A model read for the inputs of a task, and what the members offer for it.
pub(super) struct Offered {
    pub graph: Graph,
    pub offers: Vec<Offer>,
    pub links: Links,
}

/// Reads a task's model; the members' figures are corrected by what was measured.
pub(super) fn read(
    model: ContentId,
    inputs: &BTreeMap<String, Tensor>,
    members: &[Member],
    store: &Store,
    speeds: &Speeds,
) -> Result<Offered, TaskError> {
    let bytes = store.get(&model)?;
    let bytes = bytes.ok_or(TaskError::ModelMissing { id: model })?;
    let mut bindings = Bindings::new();
    for (name, tensor) in inputs {
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    let graph = Graph::import(bytes, &bindings).map_err(LayError::from)?;
    let numbered = members.iter().enumerate();
    let offers = numbered
        .map(|(index, member)| offer(member, &graph, speeds.factor(0, index)))
        .collect();
    Ok(Offered {
        graph,
        offers,
        links: links(members),
    })
}

/// Plans a task's model over the members and compiles each piece where it is planned.
pub(super) fn lay(
    task: &Task,
    members: &[Member],
    store: &Store,
    speeds: Speeds,
) -> Result<Laid, TaskError> {
    let offered = read(task.model, &task.inputs, members, store, &speeds)?;
    let Offered {
        graph,
        offers,
        links,
    } = &offered;
    let placed = place(graph, offers, links).map_err(LayError::from)?;
    let parts = parts(graph, placed.pieces.len(), &placed.of_node)?;
    let pieces = pieces(&task.name, graph, &parts, store, members.len())?;
    let (problem, schedule) = schedule(graph, &placed, &parts, offers, links, &speeds)?;
    for (piece, &device) in pieces.iter().zip(&schedule.device) {
        piece.program(device, &*members[device].processor)?;
    }
    let outputs = graph
        .outputs()
        .iter()
        .map(|&id| graph.value(id).name.clone());
    Ok(Laid {
        outputs: outputs.collect(),
        pieces,
        problem,
        schedule,
        believed: speeds,
    })
}

/// The graph as so many parts.
pub(super) fn parts(
    graph: &Graph,
    count: usize,
    of_node: &[usize],
) -> Result<Vec<cut::Subgraph>, LayError> {
    match count {
        1 => Ok(vec![cut::whole(graph)?]),
        _ => Ok(cut::cut(graph, of_node)?),
    }
}

/// The parts with their weights, to be compiled on any of so many devices.
pub(super) fn pieces(
    name: &str,
    graph: &Graph,
    parts: &[cut::Subgraph],
    store: &Store,
    devices: usize,
) -> Result<Vec<Piece>, TaskError> {
    let known: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        let mut weights = BTreeMap::new();
        for weight in &part.weights {
            let values = match known.get(&weight.id) {
                Some(values) => Some(values.clone()),
                None => store.get(&weight.id)?,
            };
            let (name, id) = (weight.name.clone(), weight.id);
            weights.insert(id, values.ok_or(TaskError::WeightMissing { name, id })?);
        }
        pieces.push(piece(name, part, parts.len(), weights, devices));
    }
    Ok(pieces)
}

fn piece(
    task: &str,
    part: &cut::Subgraph,
    parts: usize,
    weights: BTreeMap<ContentId, Bytes>,
    devices: usize,
) -> Piece {
    let name = match parts {
        1 => task.to_owned(),
        _ => format!("{task}, piece {} of {parts}", part.part + 1),
    };
    let readers = |value: &Boundary| value.to.len() + usize::from(value.job_output);
    let outputs = part.outputs.iter();
    Piece {
        name,
        inputs: part.inputs.iter().map(|value| value.name.clone()).collect(),
        outputs: outputs
            .map(|value| (value.name.clone(), readers(value)))
            .collect(),
        subgraph: Subgraph {
            model: part.model.clone(),
            weights,
        },
        programs: (0..devices).map(|_| OnceLock::new()).collect(),
    }
}

/// What a device offers for a graph, its figures corrected by what was measured.
fn offer(member: &Member, graph: &Graph, factor: f64) -> Offer {
    let profile: &Profile = member.processor.profile();
    let rate = |&dtype: &DType| {
        let operations = profile.operations_per_second(dtype)?;
        Some(Throughput {
            class: None,
            dtype: Some(dtype),
            flops_per_second: operations / factor,
        })
    };
    let runs = graph
        .nodes()
        .iter()
        .filter(|node| member.processor.supports(&node.proto).is_ok());
    let operators: BTreeSet<String> = runs.map(crate::graph::Node::operator).collect();
    Offer {
        label: member.label.clone(),
        throughput: DTYPES.iter().filter_map(rate).collect(),
        bytes_per_second: profile.memory.bytes_per_second / factor,
        memory_bytes: member.processor.memory_free_bytes(),
        launch_seconds: profile.launch.as_secs_f64() * factor,
        cost_per_second: 0.0,
        operators: Operators::Only(operators),
    }
}

/// Between devices that take tensors in host memory nothing moves but the word that they are there;
/// between others the slower memory is read or written once.
fn links(members: &[Member]) -> Links {
    let rate = |member: &Member| member.processor.profile().memory.bytes_per_second;
    let slowest = members.iter().map(rate).fold(f64::INFINITY, f64::min);
    let link = Link {
        latency_seconds: HAND_OVER_SECONDS,
        bytes_per_second: slowest,
    };
    Links::uniform(members.len(), link)
}

/// The pieces as tasks, with what they take on every device that could run them.
fn schedule(
    graph: &Graph,
    placed: &Placed,
    parts: &[cut::Subgraph],
    offers: &[Offer],
    links: &Links,
    speeds: &Speeds,
) -> Result<(Arc<Problem>, Schedule), LayError> {
    let devices = offers.len();
    let index: BTreeMap<usize, usize> = parts
        .iter()
        .enumerate()
        .map(|(index, part)| (part.part, index))
        .collect();
    let mut exec = Vec::with_capacity(parts.len() * devices);
    for part in parts {
        for (device, offer) in offers.iter().enumerate() {
            let nodes = part
                .nodes
                .iter()
                .map(|&id| plan::node_seconds(graph.node(id), offer));
            // The executor corrects by the same factor: its estimates are those of the profile.
            exec.push(time_of(nodes.sum::<f64>() / speeds.factor(0, device)));
        }
    }
    let mut edges = Vec::new();
    for (to, part) in parts.iter().enumerate() {
        for input in &part.inputs {
            let Some(from) = input.from.map(|from| index[&from]) else {
                continue;
            };
            let bytes = graph.value(input.value).fact.byte_length().unwrap_or(0);
            edges.push(Edge { from, to, bytes });
        }
    }
    let between = |field: fn(&Link) -> f64| {
        links
            .between
            .iter()
            .flatten()
            .map(move |link| time_of(field(link)))
    };
    let problem = Problem::new(ProblemParts {
        devices,
        exec,
        edges,
        latency: between(|link| link.latency_seconds).collect(),
        time_per_byte: between(|link| 1.0 / link.bytes_per_second).collect(),
        ..ProblemParts::default()
    })?;
    let of_part = |part: &cut::Subgraph| placed.pieces[part.part.min(placed.pieces.len() - 1)];
    let schedule = Schedule {
        device: parts.iter().map(|part| of_part(part).0).collect(),
        start: parts.iter().map(|part| of_part(part).1).collect(),
        makespan: placed.makespan,
        transfers: Vec::new(),
    };
    Ok((Arc::new(problem), schedule))
}
