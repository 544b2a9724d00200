//! Plans a run in which several devices share some operators: one device leads and runs the rest of
//! the graph.
//!
//! Devices read their rows in place. If the leader has produced them in a memory of its own,
//! fragments on the leader cut the rows there and join the parts that it reads; otherwise this
//! happens in host memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use souk_onnx::subgraph::Subgraph;

use super::execution_plan::{self, ExecutionPlan, Join};
use super::fragment::{Fragment, FragmentInput, FragmentOutput, Role, Rows};
use super::fragments::{self, kind_of_most};
use super::group_problem::GroupSetting;
use super::shared_operators::assembly::{Assembly, AssemblyPort};
use super::shared_operators::pricing::{self, kind_of_segment, of_segment};
use super::shared_operators::{SharedGraph, SharedOperator};
use crate::execution::error::{GroupPlanError, TaskError};
use crate::graph::cost::OperatorClass;
use crate::graph::{Graph, NodeId, ValueId, Weight, cut};
use crate::learning::estimates::OperatorShare;
use crate::learning::{Speeds, kind_of_class};
use crate::planning::problem::Edge;
use crate::planning::schedule::Schedule;
use crate::planning::split::{self, Cut, Part, PricedSegment, Segment, Shares};
use crate::planning::time::{Time, time_of};

/// A plan under construction.
struct PlanBuilder<'a> {
    setting: &'a GroupSetting<'a>,
    shared_graph: &'a SharedGraph,
    speeds: &'a Speeds,
    works: Vec<Vec<OperatorShare>>,
    fragments: Vec<Fragment>,
    kinds: Vec<u16>,
    device: Vec<usize>,
    start: Vec<Time>,
    exec: Vec<Time>,
    edges: Vec<Edge>,
    joins: Vec<Join>,
    /// The fragments that produce a value.
    makers: BTreeMap<ValueId, Vec<usize>>,
    now: f64,
}

/// Plans the fragments of the shared operators and of the nodes between them.
pub(super) fn plan_shared(
    name: &str,
    shared_graph: SharedGraph,
    setting: &GroupSetting<'_>,
    speeds: Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let graph = &shared_graph.group.graph;
    let parts =
        cut::cut_graph(graph, &assign_parts(&shared_graph)).map_err(GroupPlanError::from)?;
    let known: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let devices = shared_graph.group.stated.len();
    let mut draft = PlanBuilder::new(setting, &shared_graph, &speeds);
    for (at, part) in parts.iter().enumerate() {
        let weights = fragments::load_weights(part, &known, setting.store)?;
        let fragment = fragments::build_fragment(
            name,
            graph,
            part,
            at,
            parts.len(),
            weights,
            setting.program_cache,
        );
        if part.part % 2 == 0 {
            draft.add_whole(part, fragment);
        } else {
            draft.add_shared(part, fragment, &shared_graph.segments[part.part / 2])?;
        }
    }
    let problem =
        fragments::build_problem(devices, draft.exec, draft.edges, &shared_graph.group.links)?;
    let schedule = Schedule {
        device: draft.device,
        start: draft.start,
        makespan: time_of(draft.now),
    };
    let mut plan = ExecutionPlan {
        energy: execution_plan::Energy::default(),
        name: name.to_owned(),
        fragments: draft.fragments,
        joins: draft.joins,
        readers: Arc::default(),
        problem: Arc::new(problem),
        schedule,
        kinds: draft.kinds.into(),
        works: draft.works,
        expected: Duration::ZERO,
        known: None,
        links: shared_graph.group.links.clone(),
        planned_speeds: speeds,
        outputs: fragments::output_names(graph),
        single: None,
        lacks: shared_graph.group.lacks.to_vec(),
        without: setting.lost,
        has_requirements: false,
        shared_graph: Some(shared_graph),
        alternatives: Vec::new(),
        trial: None,
        contention: None,
    };
    plan.schedule.makespan = plan.believed_end();
    plan.expected = execution_plan::to_duration(plan.schedule.makespan);
    Ok(plan)
}

/// Returns the part of each node: 2 s + 1 for segment s, and an even number for the nodes between
/// segments, which read only from earlier segments.
fn assign_parts(shared_graph: &SharedGraph) -> Vec<usize> {
    let last = |shared: &SharedOperator| *shared.segment.nodes.last().expect("it has a node");
    let assembly: Vec<NodeId> = shared_graph.segments.iter().map(last).collect();
    let count = shared_graph.group.graph.nodes().len();
    let mut part: Vec<usize> = (0..count)
        .map(|node| 2 * assembly.partition_point(|end| end.0 < node))
        .collect();
    for (index, shared) in shared_graph.segments.iter().enumerate() {
        let nodes = &shared.segment.nodes;
        nodes.iter().for_each(|node| part[node.0] = 2 * index + 1);
    }
    part
}

impl<'a> PlanBuilder<'a> {
    fn new(
        setting: &'a GroupSetting<'a>,
        shared_graph: &'a SharedGraph,
        speeds: &'a Speeds,
    ) -> Self {
        Self {
            setting,
            shared_graph,
            speeds,
            works: Vec::new(),
            fragments: Vec::new(),
            kinds: Vec::new(),
            device: Vec::new(),
            start: Vec::new(),
            exec: Vec::new(),
            edges: Vec::new(),
            joins: Vec::new(),
            makers: BTreeMap::new(),
            now: 0.0,
        }
    }

    /// Adds the leader's fragment between two shared operators.
    fn add_whole(&mut self, part: &cut::Subgraph, fragment: Fragment) {
        let group = &self.shared_graph.group;
        let kind = kind_of_most(&group.graph, &part.nodes, &group.stated);
        let known = &group.known;
        let seconds = |device: usize| {
            known.sum(device, &part.nodes) * known.alone_fraction(device, &part.nodes)
        };
        let exec = (0..group.stated.len())
            .map(|device| time_of(seconds(device) / self.speeds.factor(kind, device)));
        let exec: Vec<Time> = exec.collect();
        self.works.push(group.known.operator_shares(&part.nodes));
        let task = self.push(fragment, self.shared_graph.leader, kind, exec);
        self.read(part, task, |bytes| bytes);
        for output in &part.outputs {
            self.makers.insert(output.value, vec![task]);
        }
        self.now += seconds(self.shared_graph.leader);
    }

    /// Adds a fragment for each part of a shared operator, and the join of the parts.
    fn add_shared(
        &mut self,
        part: &cut::Subgraph,
        whole: Fragment,
        shared: &SharedOperator,
    ) -> Result<(), TaskError> {
        let (segment, shares) = (&shared.segment, &shared.shares);
        let group = &self.shared_graph.group;
        let graph = &group.graph;
        let stated = group.price_segment(&group.stated, self.shared_graph.leader, segment);
        let measured = of_segment(group, segment, |_| 1.0);
        let priced = group.price_segment(&measured, self.shared_graph.leader, segment);
        let priced = priced.with(shared.overhead.clone());
        let value = graph.value(segment.output);
        let cut = self.add_cut(part, &whole.name, segment, shares)?;
        let mut makers = Vec::new();
        for own in &shares.parts {
            let subgraph = part_subgraph(graph, segment, part, &whole, own)?;
            let fragment = Fragment {
                name: format!("{}, {} of {} units", whole.name, own.units, segment.units),
                reads: vec![read(graph, segment, own, cut.is_some())],
                makes: vec![FragmentOutput {
                    name: value.name.clone(),
                    held: part_of(&value.name, own),
                }],
                at_host: pricing::at_host(graph, segment, priced.moved_bytes(own.units)),
                subgraph,
                nodes: Vec::new(),
                operators: Vec::new(),
                role: Role::Computes,
                programs: self.setting.program_cache.new_slots(),
            };
            let devices = 0..group.stated.len();
            let kind = kind_of_segment(graph, segment);
            let exec = devices.clone().map(|device| {
                let seconds = priced.compute_seconds(device, own.units);
                time_of(seconds / self.speeds.factor(kind, device))
            });
            let exec = exec.collect();
            let modelled = devices.map(|device| stated.compute_seconds(device, own.units));
            let part_of = own.units as f64 / segment.units as f64;
            let known = &group.known;
            let nodes = &segment.nodes;
            let work = known.part_shares(graph, nodes, part_of, modelled.collect());
            self.works.push(work);
            let task = self.push(fragment, own.device, kind, exec);
            match cut {
                Some(from) => self.add_edge(from, task, priced.moved_bytes(own.units).0),
                None => self.read(part, task, |_| priced.moved_bytes(own.units).0),
            }
            makers.push(task);
        }
        self.now += shares.seconds - priced.seconds_before() - priced.seconds_after();
        if !self.add_join(&makers, &whole.name, &priced, segment, shares)? {
            self.join_on_host(makers, &priced, segment, shares);
        }
        Ok(())
    }

    /// Joins the parts in host memory.
    fn join_on_host(
        &mut self,
        makers: Vec<usize>,
        priced: &PricedSegment<'_>,
        segment: &Segment,
        shares: &Shares,
    ) {
        let value = self.shared_graph.group.graph.value(segment.output);
        let extents = value.dims().expect("a segment's are known");
        let dims: Vec<usize> = extents.into_iter().map(|extent| extent as usize).collect();
        let parts = shares.parts.iter();
        let leader = self.shared_graph.leader;
        let has_own = self.setting.members[leader]
            .processor
            .device_memory()
            .is_some();
        let join = Join {
            value: value.name.clone(),
            parts: parts.clone().map(|own| part_of(&value.name, own)).collect(),
            bytes: parts.map(|own| priced.moved_bytes(own.units).1).collect(),
            pieces: match segment.cut {
                Cut::Rows { .. } => 1,
                Cut::Channels => dims[..segment.axis].iter().product(),
            },
            dims,
            at: (!value.readers.is_empty() && !has_own).then_some(leader),
            time: Duration::from_secs_f64(priced.join_seconds()),
        };
        self.joins.push(join);
        self.makers.insert(segment.output, makers);
        self.now += priced.join_seconds();
    }

    /// Adds the fragment that cuts the rows for the parts, if the leader has produced them in a
    /// memory of its own. Returns none if the parts need no such cut.
    fn add_cut(
        &mut self,
        part: &cut::Subgraph,
        name: &str,
        segment: &Segment,
        shares: &Shares,
    ) -> Result<Option<usize>, TaskError> {
        let (graph, leader) = (&self.shared_graph.group.graph, self.shared_graph.leader);
        let makers = self.makers.get(&segment.input).map(Vec::as_slice);
        let on_leader = matches!(makers, Some([only]) if self.device[*only] == leader);
        if !on_leader || segment.cut == Cut::Channels {
            return Ok(None);
        }
        let value = &graph.value(segment.input).name;
        let held = |own: &Part| rows_of(value, own);
        let end = Assembly::for_cutting(graph, segment, &shares.parts, held);
        let name = format!("{name}, cut");
        let task = self.add_end(name, &end, Role::Computes, [0, 0])?;
        if let Some(task) = task {
            self.read(part, task, |bytes| bytes);
        }
        Ok(task)
    }

    /// Adds the fragment that joins parts for the leader in a memory of its own. Returns false if
    /// the host must join them.
    fn add_join(
        &mut self,
        makers: &[usize],
        name: &str,
        priced: &PricedSegment<'_>,
        segment: &Segment,
        shares: &Shares,
    ) -> Result<bool, TaskError> {
        let graph = &self.shared_graph.group.graph;
        let value = graph.value(segment.output);
        if value.readers.is_empty() {
            return Ok(false);
        }
        let held = |own: &Part| part_of(&value.name, own);
        let end = Assembly::for_joining(graph, segment, &shares.parts, held);
        let bytes = value.fact.byte_length().unwrap_or(0);
        let wanted = graph.outputs().contains(&segment.output);
        let at_host = [0, if wanted { bytes } else { 0 }];
        let name = format!("{name}, joined");
        let task = self.add_end(name, &end, Role::Joins, at_host)?;
        if let Some(to) = task {
            for (&from, own) in makers.iter().zip(&shares.parts) {
                self.add_edge(from, to, priced.moved_bytes(own.units).1);
            }
            self.makers.insert(segment.output, vec![to]);
        }
        Ok(task.is_some())
    }

    /// Adds the fragment of a cut or a join, if the leader has a memory of its own and can run it.
    fn add_end(
        &mut self,
        name: String,
        end: &Assembly,
        role: Role,
        at_host: [u64; 2],
    ) -> Result<Option<usize>, TaskError> {
        let (setting, leader) = (self.setting, self.shared_graph.leader);
        let processor = &*setting.members[leader].processor;
        if processor.device_memory().is_none() {
            return Ok(None);
        }
        let model = end.encode_model();
        let seconds = pricing::assembly_seconds(setting.members, end, &model)?;
        let read = |port: &AssemblyPort| FragmentInput {
            name: port.name.clone(),
            value: port.held.clone(),
            rows: None,
        };
        let made = |port: &AssemblyPort| FragmentOutput {
            name: port.name.clone(),
            held: port.held.clone(),
        };
        let fragment = Fragment {
            name,
            reads: end.inputs.iter().map(read).collect(),
            makes: end.outputs.iter().map(made).collect(),
            at_host,
            subgraph: Subgraph {
                model,
                weights: BTreeMap::new(),
            },
            nodes: Vec::new(),
            operators: Vec::new(),
            role,
            programs: setting.program_cache.new_slots(),
        };
        if !seconds[leader].is_finite() || fragment.get_or_compile(leader, processor).is_err() {
            return Ok(None);
        }
        self.works.push(Vec::new());
        let exec = seconds.iter().map(|&seconds| time_of(seconds)).collect();
        let task = self.push(
            fragment,
            leader,
            kind_of_class(OperatorClass::Movement),
            exec,
        );
        self.now += seconds[leader];
        Ok(Some(task))
    }

    fn add_edge(&mut self, from: usize, to: usize, bytes: u64) {
        self.edges.push(Edge { from, to, bytes });
    }

    fn push(&mut self, fragment: Fragment, device: usize, kind: u16, exec: Vec<Time>) -> usize {
        self.fragments.push(fragment);
        self.kinds.push(kind);
        self.device.push(device);
        self.start.push(time_of(self.now));
        self.exec.extend(exec);
        self.fragments.len() - 1
    }

    /// Adds the edges from the producers of a part's inputs.
    fn read(&mut self, part: &cut::Subgraph, to: usize, taken: impl Fn(u64) -> u64) {
        for input in &part.inputs {
            let bytes = self
                .shared_graph
                .group
                .graph
                .value(input.value)
                .fact
                .byte_length();
            let makers = self.makers.get(&input.value).map_or(&[][..], Vec::as_slice);
            let each = taken(bytes.unwrap_or(0)) / makers.len().max(1) as u64;
            self.edges.extend(makers.iter().map(|&from| Edge {
                from,
                to,
                bytes: each,
            }));
        }
    }
}

/// Returns the run's name for a device's part of a value.
fn part_of(value: &str, own: &Part) -> String {
    format!("{value}\0{}", own.device)
}

/// Returns the run's name for a device's rows of a value, whose own parts can differ.
fn rows_of(value: &str, own: &Part) -> String {
    format!("{value}\0rows {}", own.device)
}

/// Returns the input of a part: its rows, from a cut or without a copy, or the whole value.
fn read(graph: &Graph, segment: &Segment, own: &Part, is_cut: bool) -> FragmentInput {
    let value = graph.value(segment.input);
    if is_cut {
        return FragmentInput {
            name: value.name.clone(),
            value: rows_of(&value.name, own),
            rows: None,
        };
    }
    let extents = value.dims().expect("a segment's are known");
    let dims: Vec<usize> = extents.into_iter().map(|extent| extent as usize).collect();
    let rows = match segment.cut {
        Cut::Channels => None,
        Cut::Rows { .. } => Some(Rows {
            first: own.first,
            units: own.units,
            of: segment.units,
            dims: segment.part_dims(&dims, own.units),
        }),
    };
    FragmentInput {
        name: value.name.clone(),
        value: value.name.clone(),
        rows,
    }
}

/// Returns the model of a part and its weights, which parts share if they are cut by rows.
fn part_subgraph(
    graph: &Graph,
    segment: &Segment,
    part: &cut::Subgraph,
    whole: &Fragment,
    own: &Part,
) -> Result<Subgraph, TaskError> {
    let weights = &whole.subgraph.weights;
    if matches!(segment.cut, Cut::Rows { .. }) {
        return Ok(Subgraph {
            model: split::rows_model(graph, segment, part),
            weights: weights.clone(),
        });
    }
    let values = |weight: &Weight| match weight.id {
        Some(id) => weights.get(&id).cloned(),
        None => weight.bytes.clone(),
    };
    let range: Range<usize> = own.first..own.first + own.units;
    let model = split::channels_model(graph, segment, part, range, &values);
    let (model, weights) = model.map_err(GroupPlanError::from)?;
    Ok(Subgraph { model, weights })
}
