//! Cuts a graph into the fragments of its plan, the parts that one device runs as a whole, and
//! creates the problem by which the worker pool dispatches them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_memory::{ContentId, Store};
use souk_onnx::subgraph::Subgraph;

use super::core_contention::CoreContention;
use super::execution_plan::{Energy, ExecutionPlan, to_duration};
use super::fragment::{Fragment, FragmentInput, FragmentOutput, Role};
use super::group_problem::{self, GroupProblem, GroupSetting};
use super::program_cache::ProgramCache;
use crate::execution::error::{GroupPlanError, TaskError};
use crate::graph::cut::{self, Boundary};
use crate::graph::{Graph, NodeId};
use crate::learning::{KINDS, Speeds, kind_of_class};
use crate::planning::offer::{Link, Links, Offer, node_seconds};
use crate::planning::plan::TimedDivision;
use crate::planning::problem::{Edge, Problem, ProblemParts};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time, time_of};

/// Returns the plan of placed nodes.
pub(super) fn build_execution_plan(
    name: &str,
    group: &GroupProblem,
    placed: &TimedDivision,
    setting: &GroupSetting<'_>,
    speeds: Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let graph = &group.graph;
    let parts = cut_parts(graph, placed.parts.len(), &placed.assignment)?;
    let fragments = build_fragments(name, graph, &parts, setting.store, setting.program_cache)?;
    let kinds = parts
        .iter()
        .map(|part| kind_of_most(graph, &part.nodes, &group.stated));
    let kinds: Arc<[u16]> = kinds.collect();
    let works = parts
        .iter()
        .map(|part| group.known.operator_shares(&part.nodes));
    let works = works.collect();
    let (problem, schedule) = build_schedule(group, placed, &parts, &kinds, &speeds)?;
    let alone =
        |(part, device): (&cut::Subgraph, &usize)| group.known.alone_fraction(*device, &part.nodes);
    let alone = parts.iter().zip(&schedule.device).map(alone);
    let contention = CoreContention {
        cores: group.cores.clone(),
        alone: alone.collect(),
    };
    let work = parts.iter().zip(&schedule.device);
    let work = work.map(|(part, &device)| (device, group.known.sum(device, &part.nodes)));
    let mut plan = ExecutionPlan {
        name: name.to_owned(),
        energy: Energy {
            joules: group_problem::sum_joules(work, &group.device_watts()),
            watts: group.device_watts(),
            mode: None,
        },
        kinds,
        works,
        known: None,
        fragments,
        joins: Vec::new(),
        readers: Arc::default(),
        problem,
        expected: Duration::ZERO,
        schedule,
        links: group.links.clone(),
        planned_speeds: speeds,
        outputs: output_names(graph),
        single: None,
        shared_graph: None,
        lacks: group.lacks.to_vec(),
        has_requirements: group.has_requirements,
        without: setting.lost,
        alternatives: Vec::new(),
        trial: None,
        contention: group.known.is_contended().then_some(contention),
    };
    plan.schedule.makespan = plan.believed_end();
    plan.expected = to_duration(plan.schedule.makespan);
    Ok(plan)
}

/// Returns the names of the values that the job wants.
pub(super) fn output_names(graph: &Graph) -> Vec<String> {
    let values = graph.outputs().iter();
    values.map(|&id| graph.value(id).name.clone()).collect()
}

/// Returns the kind of work with the most time of some nodes.
pub(super) fn kind_of_most(graph: &Graph, nodes: &[NodeId], stated: &[Offer]) -> u16 {
    let mut seconds = [0.0; KINDS];
    for &id in nodes {
        let node = graph.node(id);
        let times = stated.iter().map(|offer| node_seconds(node, offer));
        let least = times.fold(f64::INFINITY, f64::min);
        seconds[usize::from(kind_of_class(node.cost.class))] += least;
    }
    let most = (0..KINDS).max_by(|&one, &other| seconds[one].total_cmp(&seconds[other]));
    most.expect("there are kinds") as u16
}

/// Cuts the graph into `count` parts.
pub(super) fn cut_parts(
    graph: &Graph,
    count: usize,
    of_node: &[usize],
) -> Result<Vec<cut::Subgraph>, GroupPlanError> {
    match count {
        1 => Ok(vec![cut::whole_graph(graph)?]),
        _ => Ok(cut::cut_graph(graph, of_node)?),
    }
}

/// Returns the parts with their weights, for compilation on any device.
pub(super) fn build_fragments(
    name: &str,
    graph: &Graph,
    parts: &[cut::Subgraph],
    store: &Store,
    program_cache: &Arc<ProgramCache>,
) -> Result<Vec<Fragment>, TaskError> {
    let known: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let mut fragments = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let weights = load_weights(part, &known, store)?;
        let at = (at, parts.len());
        fragments.push(build_fragment(
            name,
            graph,
            part,
            at.0,
            at.1,
            weights,
            program_cache,
        ));
    }
    Ok(fragments)
}

/// Returns the values of a part's weights.
pub(super) fn load_weights(
    part: &cut::Subgraph,
    known: &BTreeMap<ContentId, Bytes>,
    store: &Store,
) -> Result<BTreeMap<ContentId, Bytes>, TaskError> {
    let mut weights = BTreeMap::new();
    for weight in &part.weights {
        let values = match known.get(&weight.id) {
            Some(values) => Some(values.clone()),
            None => store.get(&weight.id)?,
        };
        let (name, id) = (weight.name.clone(), weight.id);
        weights.insert(id, values.ok_or(TaskError::WeightMissing { name, id })?);
    }
    Ok(weights)
}

pub(super) fn build_fragment(
    task: &str,
    graph: &Graph,
    part: &cut::Subgraph,
    at: usize,
    parts: usize,
    weights: BTreeMap<ContentId, Bytes>,
    program_cache: &Arc<ProgramCache>,
) -> Fragment {
    let name = match parts {
        1 => task.to_owned(),
        _ => format!("{task}, fragment {} of {parts}", at + 1),
    };
    let read = |value: &Boundary| FragmentInput {
        name: value.name.clone(),
        value: value.name.clone(),
        rows: None,
    };
    let made = |value: &Boundary| FragmentOutput {
        name: value.name.clone(),
        held: value.name.clone(),
    };
    let bytes = |value: &Boundary| graph.value(value.value).fact.byte_length().unwrap_or(0);
    let given = part.inputs.iter().filter(|input| input.from.is_none());
    let wanted = part.outputs.iter().filter(|output| output.job_output);
    Fragment {
        name,
        at_host: [given.map(bytes).sum(), wanted.map(bytes).sum()],
        reads: part.inputs.iter().map(read).collect(),
        makes: part.outputs.iter().map(made).collect(),
        subgraph: Subgraph {
            model: part.model.clone(),
            weights,
        },
        nodes: part.nodes.clone(),
        operators: part
            .nodes
            .iter()
            .map(|&node| graph.node(node).operator_name())
            .collect(),
        role: Role::Computes,
        programs: program_cache.new_slots(),
    }
}

/// Returns the fragments as tasks, with their time on every device that can run them.
fn build_schedule(
    group: &GroupProblem,
    placed: &TimedDivision,
    parts: &[cut::Subgraph],
    kinds: &[u16],
    speeds: &Speeds,
) -> Result<(Arc<Problem>, Schedule), GroupPlanError> {
    let (graph, devices) = (&group.graph, group.stated.len());
    let index: BTreeMap<usize, usize> = parts
        .iter()
        .enumerate()
        .map(|(index, part)| (part.part, index))
        .collect();
    let mut exec = Vec::with_capacity(parts.len() * devices);
    for (part, &kind) in parts.iter().zip(kinds) {
        // These times omit the measured correction of the kind, because the executor applies it.
        for device in 0..devices {
            let seconds = group.known.sum(device, &part.nodes);
            exec.push(time_of(seconds / speeds.factor(kind, device)));
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
    let problem = build_problem(devices, exec, edges, &group.links)?;
    let of_part = |part: &cut::Subgraph| placed.parts[part.part.min(placed.parts.len() - 1)];
    let schedule = Schedule {
        device: parts.iter().map(|part| of_part(part).0).collect(),
        start: parts.iter().map(|part| time_of(of_part(part).1)).collect(),
        makespan: time_of(placed.makespan_seconds),
    };
    Ok((Arc::new(problem), schedule))
}

/// Returns the problem of these tasks and devices with the links between them. Each task must have
/// a device that can run it.
pub(super) fn build_problem(
    devices: usize,
    exec: Vec<Time>,
    edges: Vec<Edge>,
    links: &Links,
) -> Result<Problem, GroupPlanError> {
    let between = |field: fn(&Link) -> f64| {
        let links = links.between.iter().flatten();
        links.map(move |link| time_of(field(link)))
    };
    assert!(
        exec.chunks(devices)
            .all(|row| row.iter().any(|time| *time != NEVER)),
        "each fragment was placed somewhere"
    );
    Ok(Problem::new(ProblemParts {
        devices,
        exec,
        edges,
        latency: between(|link| link.latency_seconds).collect(),
        time_per_byte: between(|link| 1.0 / link.bytes_per_second).collect(),
        ..ProblemParts::default()
    })?)
}

/// Returns the problem in which each task runs only on its planned device. Otherwise an idle device
/// could load another's weights, or draw more power.
pub(super) fn pinned_problem(plan: &ExecutionPlan) -> Result<Problem, GroupPlanError> {
    let mut parts = plan.problem.parts().clone();
    let devices = parts.devices;
    for (task, &own) in plan.schedule.device.iter().enumerate() {
        let row: &mut [Time] = &mut parts.exec[task * devices..][..devices];
        let others = row.iter_mut().enumerate();
        others
            .filter(|(device, _)| *device != own)
            .for_each(|(_, time)| *time = NEVER);
    }
    Ok(Problem::new(parts)?)
}
