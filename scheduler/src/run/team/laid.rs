//! A subgraph laid out over devices: its pieces, where each should run, and their programs.

mod promise;
mod ways;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use souk_devices::processor::{CompileError, Processor, Program, Subgraph};
use souk_memory::{ContentId, Store, Tensor};

use super::cores::{Contended, Cores, Standing};
use super::costs::{Known, Ledger, Share};
use super::divide::Divided;
use super::fallbacks::{self, Lack};
use super::flow::values::Readers;
use super::frugal::{self, TeamGoal};
use super::loaded::{Loaded, Slots};
use super::offers::{self, KINDS, kind};
use super::place::Placed;
use super::{LayError, Member, Sharing, TaskError};
use crate::cut::{self, Boundary};
use crate::executor::Speeds;
use crate::graph::{Bindings, Graph, NodeId};
use crate::plan::{self, Link, Links, Offer};
use crate::problem::{Edge, NEVER, Problem, ProblemParts, Time};
use crate::schedule::Schedule;
use crate::tasks::time_of;
pub(in crate::run) use ways::Join;

/// Pieces ahead whose inputs are brought back from disk: what one piece's time is enough for.
const FORESIGHT: usize = 2;

/// A plan with its pieces.
pub(in crate::run) struct Laid {
    /// What the run was called that it was made for; its pieces' names begin with it.
    pub name: String,
    pub pieces: Vec<Piece>,
    /// Values that are put together from parts that several pieces make.
    pub joins: Vec<Join>,
    /// Who reads each value: pieces, joins and the job.
    pub readers: Arc<Readers>,
    pub problem: Arc<Problem>,
    pub schedule: Schedule,
    /// What kind of work each piece is.
    pub kinds: Arc<[u16]>,
    /// The operators of each piece, as history tells them apart.
    pub works: Vec<Vec<Share>>,
    /// What was known of the graph's operators when it was made; a shared graph keeps it itself.
    pub known: Option<Known>,
    /// The same of the ways to take part that it was preferred to.
    pub rivals: Vec<Known>,
    /// How many pieces had told what they took, if it is to tell what its device takes alone.
    pub trial: Option<u64>,
    /// Where its pieces slow each other.
    pub contended: Option<Contended>,
    pub links: Arc<Links>,
    /// What was known of the devices when it was made.
    pub believed: Speeds,
    /// Values the job wants, by name.
    pub outputs: Vec<String>,
    /// When the plan expects the end.
    pub expected: Duration,
    /// What it expects to draw.
    pub energy: Energy,
    /// The device that would end it soonest alone, and when; none can if its memory is too small.
    pub single: Option<(usize, Duration)>,
    pub divided: Option<Divided>,
    /// What members do not take of its graph.
    pub lacks: Vec<Lack>,
    /// Whether nodes are barred from devices that they do not ask for.
    pub wished: bool,
    /// Devices that were lost when it was made, one bit each.
    pub without: u64,
}

/// A value that a piece reads, or the rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct Read {
    /// As its model calls it.
    pub name: String,
    /// As the run calls it.
    pub value: String,
    pub rows: Option<Rows>,
}

/// Some rows of a value, and the extents they are given to a program with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct Rows {
    pub first: usize,
    pub units: usize,
    pub of: usize,
    pub dims: Vec<usize>,
}

/// A value that a piece makes.
pub(in crate::run) struct Made {
    /// As its model calls it.
    pub name: String,
    /// As the run calls it.
    pub held: String,
}

/// A part of the subgraph that one device runs.
pub(in crate::run) struct Piece {
    pub name: String,
    pub reads: Vec<Read>,
    pub makes: Vec<Made>,
    /// Bytes of the job's inputs that it reads, and of the job's outputs that it makes.
    pub at_host: [u64; 2],
    pub subgraph: Subgraph,
    /// Its nodes in the graph; none of it is what is shared.
    pub nodes: Vec<NodeId>,
    /// Their operators.
    pub operators: Vec<String>,
    pub role: Role,
    pub programs: Slots,
}

/// What a piece does for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Role {
    /// What the graph says.
    Computes,
    /// It puts parts together that several devices made.
    Joins,
}

impl Piece {
    /// The program of the piece on a device, compiled when it is first wanted there.
    pub fn program(
        &self,
        device: usize,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        self.programs.program(device, &self.subgraph, processor)
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

impl Laid {
    /// Bytes of the pieces that are planned on each device.
    pub fn loaded(&self) -> Vec<u64> {
        let mut loaded = vec![0; self.problem.devices()];
        for (piece, &device) in self.pieces.iter().zip(&self.schedule.device) {
            loaded[device] += piece.bytes();
        }
        loaded
    }

    /// The pieces planned behind one on its device, as far as it pays to look.
    pub fn next(&self, piece: usize, device: usize) -> Vec<usize> {
        let own = |&next: &usize| {
            let later = self.schedule.start[next] >= self.schedule.start[piece];
            self.schedule.device[next] == device && later && next != piece
        };
        let mut next: Vec<usize> = (0..self.pieces.len()).filter(own).collect();
        next.sort_by_key(|&next| self.schedule.start[next]);
        next.truncate(FORESIGHT);
        next
    }
}

/// What a plan expects to draw; nothing is known of what single operators draw that are shared.
#[derive(Clone, Debug, Default)]
pub(in crate::run) struct Energy {
    /// Joules; none where those of a device are not known.
    pub joules: Option<f64>,
    /// What that goes by: watts of each member.
    pub watts: Vec<Option<f64>>,
    /// How it was made, if joules were to be few.
    pub frugal: Option<Frugal>,
}

/// How a plan was made where joules are to be few.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) enum Frugal {
    /// It draws the least.
    Least,
    /// It draws the least of those that end in time: the least of all would end then.
    Hurried(Duration),
    /// Nothing ends in time: it ends soonest.
    Soonest,
}

/// What a team lays out over, and how.
#[derive(Clone)]
pub(super) struct Setting<'a> {
    pub members: &'a [Member],
    pub store: &'a Store,
    pub loaded: &'a Arc<Loaded>,
    /// What lies between the members.
    pub links: Arc<Links>,
    pub sharing: &'a Sharing,
    /// Which members compute on the same cores.
    pub cores: &'a Cores,
    /// Members that were given up, one bit each.
    pub lost: u64,
    pub costs: &'a Mutex<Ledger>,
    pub goal: TeamGoal,
    /// How long the run has, if it has a deadline.
    pub left: Option<Duration>,
    /// The plan that this one takes the place of.
    pub before: Option<Before<'a>>,
}

/// A plan that goes when another one is made.
#[derive(Clone)]
pub(super) struct Before<'a> {
    /// Bytes that each member has loaded for it.
    pub loaded: Vec<u64>,
    /// Lets go of it at once.
    pub drop: &'a dyn Fn(),
}

/// A model read for the inputs of a task, and what the members offer for it.
pub(super) struct Offered {
    pub graph: Arc<Graph>,
    /// By their profiles alone.
    pub stated: Vec<Offer>,
    /// As measured.
    pub known: Known,
    pub links: Arc<Links>,
    pub cores: Cores,
    /// What each draws for it.
    pub watts: Vec<Option<f64>>,
    /// What members do not take of it.
    pub lacks: Arc<[Lack]>,
    /// Whether nodes have the device that they ask for.
    pub wished: bool,
}

/// Reads a task's model, and tells what the members offer for it, corrected by what was measured:
/// once for each way in which those who share cores can take part.
pub(super) fn offers(
    setting: &Setting<'_>,
    model: ContentId,
    inputs: &BTreeMap<String, Tensor>,
    speeds: &Speeds,
) -> Result<Vec<Offered>, TaskError> {
    let (members, store) = (setting.members, setting.store);
    let bytes = store.get(&model)?;
    let bytes = bytes.ok_or(TaskError::ModelMissing { id: model })?;
    let mut bindings = Bindings::new();
    for (name, tensor) in inputs {
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    let graph = Arc::new(Graph::import(bytes, &bindings).map_err(LayError::from)?);
    let lacks: Arc<[Lack]> = fallbacks::lacks(members, &graph).into();
    let mut stated = offers::offers(members, &graph);
    let loaded = setting.before.iter().flat_map(|before| &before.loaded);
    for (offer, loaded) in stated.iter_mut().zip(loaded) {
        offer.memory_bytes = offer.memory_bytes.saturating_add(*loaded);
    }
    let mut ways = setting.cores.ways();
    if matches!(setting.sharing, Sharing::Given(_)) {
        // Parts are given to all.
        ways.drain(..ways.len() - 1);
    }
    let gone = gone(&graph, &stated, setting.lost);
    let ledger = lock(setting.costs);
    let offered = |standing: Vec<Standing>| {
        let taking = stated.iter().zip(&standing);
        let stated: Vec<Offer> = taking
            .map(|(offer, it)| offers::taking(offer, *it))
            .collect();
        let mut known = Known::new(&graph, (&stated, standing), &ledger, speeds);
        for &(device, node) in &gone {
            known.bar(device, node);
        }
        Offered {
            graph: graph.clone(),
            watts: watts(members, &known, &ledger),
            known,
            stated,
            links: setting.links.clone(),
            cores: setting.cores.clone(),
            lacks: lacks.clone(),
            wished: false,
        }
    };
    Ok(ways.into_iter().map(offered).collect())
}

/// What lost members do not run: each node that another one runs.
fn gone(graph: &Graph, stated: &[Offer], lost: u64) -> Vec<(usize, NodeId)> {
    let (gone, left): (Vec<usize>, Vec<usize>) =
        (0..stated.len()).partition(|device| lost >> device & 1 == 1);
    let takes = |node: &&NodeId| {
        let node = graph.node(**node);
        let seconds = |&device: &usize| plan::node_seconds(node, &stated[device]);
        left.iter().any(|device| seconds(device).is_finite())
    };
    let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
    let taken = nodes.iter().filter(takes);
    taken
        .flat_map(|&node| gone.iter().map(move |&device| (device, node)))
        .collect()
}

/// What each member draws for a graph.
pub(super) fn watts(members: &[Member], known: &Known, ledger: &Ledger) -> Vec<Option<f64>> {
    let numbered = members.iter().enumerate();
    let each = numbered.map(|(device, member)| {
        let power = member.processor.profile().power;
        known.watts(device, ledger, power.map(|power| power.busy_watts))
    });
    each.collect()
}

/// The layout of placed nodes.
pub(super) fn pieced(
    name: &str,
    offered: &Offered,
    placed: &Placed,
    setting: &Setting<'_>,
    speeds: Speeds,
) -> Result<Laid, TaskError> {
    let graph = &offered.graph;
    let parts = parts(graph, placed.pieces.len(), &placed.of_node)?;
    let pieces = pieces(name, graph, &parts, (setting.store, setting.loaded))?;
    let kinds = parts
        .iter()
        .map(|part| kind_of(graph, &part.nodes, &offered.stated));
    let kinds: Arc<[u16]> = kinds.collect();
    let works = parts.iter().map(|part| offered.known.shares(&part.nodes));
    let works = works.collect();
    let (problem, schedule) = schedule(offered, placed, &parts, (&kinds, &speeds))?;
    let alone =
        |(part, device): (&cut::Subgraph, &usize)| offered.known.alone(*device, &part.nodes);
    let alone = parts.iter().zip(&schedule.device).map(alone);
    let contended = Contended {
        cores: offered.cores.clone(),
        alone: alone.collect(),
    };
    let work = parts.iter().zip(&schedule.device);
    let work = work.map(|(part, &device)| (device, offered.known.sum(device, &part.nodes)));
    let mut laid = Laid {
        name: name.to_owned(),
        energy: Energy {
            joules: frugal::joules(work, &offered.watts),
            watts: offered.watts.clone(),
            frugal: None,
        },
        kinds,
        works,
        known: None,
        pieces,
        joins: Vec::new(),
        readers: Arc::default(),
        problem,
        expected: Duration::ZERO,
        schedule,
        links: offered.links.clone(),
        believed: speeds,
        outputs: outputs(graph),
        single: None,
        divided: None,
        lacks: offered.lacks.to_vec(),
        wished: offered.wished,
        without: setting.lost,
        rivals: Vec::new(),
        trial: None,
        contended: offered.known.is_contended().then_some(contended),
    };
    laid.schedule.makespan = laid.believed_end();
    laid.expected = duration(laid.schedule.makespan);
    Ok(laid)
}

/// Names of what the job wants.
pub(super) fn outputs(graph: &Graph) -> Vec<String> {
    let values = graph.outputs().iter();
    values.map(|&id| graph.value(id).name.clone()).collect()
}

/// A problem's time as a duration.
pub(super) fn duration(time: Time) -> Duration {
    Duration::from_nanos(time / 1000)
}

/// The kind of work that most of some nodes' time is.
pub(super) fn kind_of(graph: &Graph, nodes: &[NodeId], stated: &[Offer]) -> u16 {
    let mut seconds = [0.0; KINDS];
    for &id in nodes {
        let node = graph.node(id);
        let times = stated.iter().map(|offer| plan::node_seconds(node, offer));
        let least = times.fold(f64::INFINITY, f64::min);
        seconds[usize::from(kind(node.cost.class))] += least;
    }
    let most = (0..KINDS).max_by(|&one, &other| seconds[one].total_cmp(&seconds[other]));
    most.expect("there are kinds") as u16
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

/// The parts with their weights, to be compiled on any device.
pub(super) fn pieces(
    name: &str,
    graph: &Graph,
    parts: &[cut::Subgraph],
    (store, loaded): (&Store, &Arc<Loaded>),
) -> Result<Vec<Piece>, TaskError> {
    let known: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        let weights = weights(part, &known, store)?;
        pieces.push(piece(name, graph, part, parts.len(), weights, loaded));
    }
    Ok(pieces)
}

/// The values of a part's weights.
pub(super) fn weights(
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

pub(super) fn piece(
    task: &str,
    graph: &Graph,
    part: &cut::Subgraph,
    parts: usize,
    weights: BTreeMap<ContentId, Bytes>,
    loaded: &Arc<Loaded>,
) -> Piece {
    let name = match parts {
        1 => task.to_owned(),
        _ => format!("{task}, piece {} of {parts}", part.part + 1),
    };
    let read = |value: &Boundary| Read {
        name: value.name.clone(),
        value: value.name.clone(),
        rows: None,
    };
    let made = |value: &Boundary| Made {
        name: value.name.clone(),
        held: value.name.clone(),
    };
    let bytes = |value: &Boundary| graph.value(value.value).fact.byte_length().unwrap_or(0);
    let given = part.inputs.iter().filter(|input| input.from.is_none());
    let wanted = part.outputs.iter().filter(|output| output.job_output);
    Piece {
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
            .map(|&node| graph.node(node).operator())
            .collect(),
        role: Role::Computes,
        programs: loaded.slots(),
    }
}

/// The pieces as tasks, with what they take on every device that could run them.
fn schedule(
    offered: &Offered,
    placed: &Placed,
    parts: &[cut::Subgraph],
    (kinds, speeds): (&[u16], &Speeds),
) -> Result<(Arc<Problem>, Schedule), LayError> {
    let (graph, devices) = (&offered.graph, offered.stated.len());
    let index: BTreeMap<usize, usize> = parts
        .iter()
        .enumerate()
        .map(|(index, part)| (part.part, index))
        .collect();
    let mut exec = Vec::with_capacity(parts.len() * devices);
    for (part, &kind) in parts.iter().zip(kinds) {
        // The executor corrects by what was measured of the kind: these are without that.
        for device in 0..devices {
            let seconds = offered.known.sum(device, &part.nodes);
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
    let problem = problem(devices, exec, edges, &offered.links)?;
    let of_part = |part: &cut::Subgraph| placed.pieces[part.part.min(placed.pieces.len() - 1)];
    let schedule = Schedule {
        device: parts.iter().map(|part| of_part(part).0).collect(),
        start: parts.iter().map(|part| of_part(part).1).collect(),
        makespan: placed.makespan,
        transfers: Vec::new(),
    };
    Ok((Arc::new(problem), schedule))
}

/// Tasks of so many devices with the links between them.
pub(super) fn problem(
    devices: usize,
    exec: Vec<Time>,
    edges: Vec<Edge>,
    links: &Links,
) -> Result<Problem, LayError> {
    let between = |field: fn(&Link) -> f64| {
        let links = links.between.iter().flatten();
        links.map(move |link| time_of(field(link)))
    };
    assert!(
        exec.chunks(devices)
            .all(|row| row.iter().any(|time| *time != NEVER)),
        "each piece was placed somewhere"
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

/// The problem whose tasks run where they are planned and nowhere else: a device that waits is not
/// to load what another one has, or would draw more.
pub(super) fn pinned(laid: &Laid) -> Result<Problem, LayError> {
    let mut parts = laid.problem.parts().clone();
    let devices = parts.devices;
    for (task, &own) in laid.schedule.device.iter().enumerate() {
        let row: &mut [Time] = &mut parts.exec[task * devices..][..devices];
        let others = row.iter_mut().enumerate();
        others
            .filter(|(device, _)| *device != own)
            .for_each(|(_, time)| *time = NEVER);
    }
    Ok(Problem::new(parts)?)
}

/// The members' histories.
pub(super) fn lock(costs: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    // Each change is whole before anything can panic.
    costs.lock().unwrap_or_else(PoisonError::into_inner)
}
