//! Operators that several devices share: one device leads and runs the rest.
//!
//! Rows are read where they lie. Where the leader made them in a memory of its own, it cuts them
//! there and puts together there what it reads of the parts, by pieces of their own; else that is
//! done in host memory.

mod deciding;
mod ends;
mod pricing;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use souk_devices::processor::Subgraph;

use super::costs::{Known, Share};
use super::laid::{self, Join, Laid, Made, Offered, Piece, Read, Role, Rows, Setting};
use super::offers::kind;
use super::{LayError, TaskError};
use crate::cost::OperatorClass;
use crate::cut;
use crate::executor::Speeds;
use crate::graph::{Graph, NodeId, ValueId, Weight};
use crate::problem::{Edge, Time};
use crate::schedule::Schedule;
use crate::split::{self, Around, Cut, Part, Priced, Segment, Shares};
use crate::tasks::time_of;
pub(super) use deciding::{Led, divide};
use ends::End;
use pricing::{kind_of, of_segment};

/// A graph some of whose operators are shared.
pub(in crate::run) struct Divided {
    offered: Offered,
    leader: usize,
    /// In the order of their last nodes.
    segments: Vec<Shared>,
}

/// An operator that is shared.
#[derive(Clone)]
struct Shared {
    segment: Segment,
    shares: Shares,
    /// What sharing it takes besides its parts.
    around: Around,
}

impl Divided {
    /// A graph of which that is shared.
    pub fn new(offered: Offered, led: Led) -> Self {
        Self {
            offered,
            leader: led.leader,
            segments: led.segments,
        }
    }

    /// What was known of its operators when it was made.
    pub fn known(&self) -> &Known {
        &self.offered.known
    }

    /// How many times as long the shares take as the best ones would, by what is known now and was
    /// believed when they were made.
    pub fn delay(&self, speeds: &Speeds, believed: &Speeds) -> f64 {
        let each = self.segments.iter().map(|shared| {
            let (segment, shares) = (&shared.segment, &shared.shares);
            let kind = kind_of(&self.offered.graph, segment);
            let since = |device| speeds.factor(kind, device) / believed.factor(kind, device);
            let offers = of_segment(&self.offered, segment, since);
            let priced = self.offered.priced(&offers, self.leader, segment);
            let priced = priced.with(shared.around.clone());
            let best = priced.best().map_or(f64::INFINITY, |best| best.seconds);
            priced.seconds_of(shares) / best
        });
        each.fold(1.0, f64::max)
    }
}

/// A layout being made.
struct Draft<'a> {
    setting: &'a Setting<'a>,
    divided: &'a Divided,
    speeds: &'a Speeds,
    works: Vec<Vec<Share>>,
    pieces: Vec<Piece>,
    kinds: Vec<u16>,
    device: Vec<usize>,
    start: Vec<Time>,
    exec: Vec<Time>,
    edges: Vec<Edge>,
    joins: Vec<Join>,
    /// The pieces that make a value.
    makers: BTreeMap<ValueId, Vec<usize>>,
    now: f64,
}

/// Pieces of the shared operators and of what lies between them.
pub(super) fn lay(
    name: &str,
    divided: Divided,
    setting: &Setting<'_>,
    speeds: Speeds,
) -> Result<Laid, TaskError> {
    let graph = &divided.offered.graph;
    let parts = cut::cut(graph, &assignment(&divided)).map_err(LayError::from)?;
    let known: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let devices = divided.offered.stated.len();
    let mut draft = Draft::new(setting, &divided, &speeds);
    for part in &parts {
        let weights = laid::weights(part, &known, setting.store)?;
        let piece = laid::piece(name, graph, part, parts.len(), weights, setting.loaded);
        if part.part % 2 == 0 {
            draft.add_whole(part, piece);
        } else {
            draft.add_shared(part, piece, &divided.segments[part.part / 2])?;
        }
    }
    let problem = laid::problem(devices, draft.exec, draft.edges, &divided.offered.links)?;
    let schedule = Schedule {
        device: draft.device,
        start: draft.start,
        makespan: time_of(draft.now),
        transfers: Vec::new(),
    };
    let mut laid = Laid {
        energy: laid::Energy::default(),
        name: name.to_owned(),
        pieces: draft.pieces,
        joins: draft.joins,
        readers: Arc::default(),
        problem: Arc::new(problem),
        schedule,
        kinds: draft.kinds.into(),
        works: draft.works,
        expected: Duration::ZERO,
        known: None,
        links: divided.offered.links.clone(),
        believed: speeds,
        outputs: laid::outputs(graph),
        single: None,
        lacks: divided.offered.lacks.to_vec(),
        without: setting.lost,
        wished: false,
        divided: Some(divided),
        rivals: Vec::new(),
        trial: None,
        contended: None,
    };
    laid.schedule.makespan = laid.believed_end();
    laid.expected = laid::duration(laid.schedule.makespan);
    Ok(laid)
}

/// Part of each node: 2 s + 1 for segment s, and an even number between segments for the rest,
/// which reads only of segments before.
fn assignment(divided: &Divided) -> Vec<usize> {
    let last = |shared: &Shared| *shared.segment.nodes.last().expect("it has a node");
    let ends: Vec<NodeId> = divided.segments.iter().map(last).collect();
    let count = divided.offered.graph.nodes().len();
    let mut part: Vec<usize> = (0..count)
        .map(|node| 2 * ends.partition_point(|end| end.0 < node))
        .collect();
    for (index, shared) in divided.segments.iter().enumerate() {
        let nodes = &shared.segment.nodes;
        nodes.iter().for_each(|node| part[node.0] = 2 * index + 1);
    }
    part
}

impl<'a> Draft<'a> {
    fn new(setting: &'a Setting<'a>, divided: &'a Divided, speeds: &'a Speeds) -> Self {
        Self {
            setting,
            divided,
            speeds,
            works: Vec::new(),
            pieces: Vec::new(),
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

    /// What the leader runs between two shared operators.
    fn add_whole(&mut self, part: &cut::Subgraph, piece: Piece) {
        let offered = &self.divided.offered;
        let kind = laid::kind_of(&offered.graph, &part.nodes, &offered.stated);
        let known = &offered.known;
        let seconds =
            |device: usize| known.sum(device, &part.nodes) * known.alone(device, &part.nodes);
        let exec = (0..offered.stated.len())
            .map(|device| time_of(seconds(device) / self.speeds.factor(kind, device)));
        let exec: Vec<Time> = exec.collect();
        self.works.push(offered.known.shares(&part.nodes));
        let task = self.push(piece, self.divided.leader, kind, exec);
        self.read(part, task, |bytes| bytes);
        for output in &part.outputs {
            self.makers.insert(output.value, vec![task]);
        }
        self.now += seconds(self.divided.leader);
    }

    /// A piece for each part of a shared operator, and how they are joined.
    fn add_shared(
        &mut self,
        part: &cut::Subgraph,
        whole: Piece,
        shared: &Shared,
    ) -> Result<(), TaskError> {
        let (segment, shares) = (&shared.segment, &shared.shares);
        let offered = &self.divided.offered;
        let graph = &offered.graph;
        let stated = offered.priced(&offered.stated, self.divided.leader, segment);
        let measured = of_segment(offered, segment, |_| 1.0);
        let priced = offered.priced(&measured, self.divided.leader, segment);
        let priced = priced.with(shared.around.clone());
        let value = graph.value(segment.output);
        let cut = self.add_cut(part, &whole.name, segment, shares)?;
        let mut makers = Vec::new();
        for own in &shares.parts {
            let subgraph = subgraph(graph, segment, part, &whole, own)?;
            let piece = Piece {
                name: format!("{}, {} of {} units", whole.name, own.units, segment.units),
                reads: vec![read(graph, segment, own, cut.is_some())],
                makes: vec![Made {
                    name: value.name.clone(),
                    held: part_of(&value.name, own),
                }],
                at_host: pricing::at_host(graph, segment, priced.moved(own.units)),
                subgraph,
                nodes: Vec::new(),
                operators: Vec::new(),
                role: Role::Computes,
                programs: self.setting.loaded.slots(),
            };
            let devices = 0..offered.stated.len();
            let kind = kind_of(graph, segment);
            let exec = devices.clone().map(|device| {
                let seconds = priced.compute_seconds(device, own.units);
                time_of(seconds / self.speeds.factor(kind, device))
            });
            let exec = exec.collect();
            let modelled = devices.map(|device| stated.compute_seconds(device, own.units));
            let part_of = own.units as f64 / segment.units as f64;
            let known = &offered.known;
            let nodes = &segment.nodes;
            let work = known.part(graph, nodes, part_of, modelled.collect());
            self.works.push(work);
            let task = self.push(piece, own.device, kind, exec);
            match cut {
                Some(from) => self.edge(from, task, priced.moved(own.units).0),
                None => self.read(part, task, |_| priced.moved(own.units).0),
            }
            makers.push(task);
        }
        self.now += shares.seconds - priced.before() - priced.after();
        if !self.add_join(&makers, (&whole.name, &priced), segment, shares)? {
            self.join_on_host(makers, &priced, segment, shares);
        }
        Ok(())
    }

    /// Parts are put together in host memory.
    fn join_on_host(
        &mut self,
        makers: Vec<usize>,
        priced: &Priced<'_>,
        segment: &Segment,
        shares: &Shares,
    ) {
        let value = self.divided.offered.graph.value(segment.output);
        let extents = value.dims().expect("a segment's are known");
        let dims: Vec<usize> = extents.into_iter().map(|extent| extent as usize).collect();
        let parts = shares.parts.iter();
        let leader = self.divided.leader;
        let has_own = self.setting.members[leader].processor.memory().is_some();
        let join = Join {
            value: value.name.clone(),
            parts: parts.clone().map(|own| part_of(&value.name, own)).collect(),
            bytes: parts.map(|own| priced.moved(own.units).1).collect(),
            stretches: match segment.cut {
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

    /// What cuts the rows that parts read where the leader made them in a memory of its own; none
    /// where they lie in the host's.
    fn add_cut(
        &mut self,
        part: &cut::Subgraph,
        name: &str,
        segment: &Segment,
        shares: &Shares,
    ) -> Result<Option<usize>, TaskError> {
        let (graph, leader) = (&self.divided.offered.graph, self.divided.leader);
        let makers = self.makers.get(&segment.input).map(Vec::as_slice);
        let on_leader = matches!(makers, Some([only]) if self.device[*only] == leader);
        if !on_leader || segment.cut == Cut::Channels {
            return Ok(None);
        }
        let value = &graph.value(segment.input).name;
        let held = |own: &Part| rows_of(value, own);
        let end = End::cutting(graph, segment, &shares.parts, held);
        let name = format!("{name}, cut");
        let task = self.add_end(name, &end, Role::Computes, [0, 0])?;
        if let Some(task) = task {
            self.read(part, task, |bytes| bytes);
        }
        Ok(task)
    }

    /// What puts parts together that the leader reads in a memory of its own; none where they are
    /// read on the host.
    fn add_join(
        &mut self,
        makers: &[usize],
        (name, priced): (&str, &Priced<'_>),
        segment: &Segment,
        shares: &Shares,
    ) -> Result<bool, TaskError> {
        let graph = &self.divided.offered.graph;
        let value = graph.value(segment.output);
        if value.readers.is_empty() {
            return Ok(false);
        }
        let held = |own: &Part| part_of(&value.name, own);
        let end = End::joining(graph, segment, &shares.parts, held);
        let bytes = value.fact.byte_length().unwrap_or(0);
        let wanted = graph.outputs().contains(&segment.output);
        let at_host = [0, if wanted { bytes } else { 0 }];
        let name = format!("{name}, joined");
        let task = self.add_end(name, &end, Role::Joins, at_host)?;
        if let Some(to) = task {
            for (&from, own) in makers.iter().zip(&shares.parts) {
                self.edge(from, to, priced.moved(own.units).1);
            }
            self.makers.insert(segment.output, vec![to]);
        }
        Ok(task.is_some())
    }

    /// The piece of an end, on a leader that has a memory of its own and runs it.
    fn add_end(
        &mut self,
        name: String,
        end: &End,
        role: Role,
        at_host: [u64; 2],
    ) -> Result<Option<usize>, TaskError> {
        let (setting, leader) = (self.setting, self.divided.leader);
        let processor = &*setting.members[leader].processor;
        if processor.memory().is_none() {
            return Ok(None);
        }
        let model = end.model();
        let seconds = pricing::end_seconds(setting.members, end, &model)?;
        let read = |port: &ends::Port| Read {
            name: port.name.clone(),
            value: port.held.clone(),
            rows: None,
        };
        let made = |port: &ends::Port| Made {
            name: port.name.clone(),
            held: port.held.clone(),
        };
        let piece = Piece {
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
            programs: setting.loaded.slots(),
        };
        if !seconds[leader].is_finite() || piece.program(leader, processor).is_err() {
            return Ok(None);
        }
        self.works.push(Vec::new());
        let exec = seconds.iter().map(|&seconds| time_of(seconds)).collect();
        let task = self.push(piece, leader, kind(OperatorClass::Movement), exec);
        self.now += seconds[leader];
        Ok(Some(task))
    }

    fn edge(&mut self, from: usize, to: usize, bytes: u64) {
        self.edges.push(Edge { from, to, bytes });
    }

    fn push(&mut self, piece: Piece, device: usize, kind: u16, exec: Vec<Time>) -> usize {
        self.pieces.push(piece);
        self.kinds.push(kind);
        self.device.push(device);
        self.start.push(time_of(self.now));
        self.exec.extend(exec);
        self.pieces.len() - 1
    }

    /// The edges from whoever makes what a part reads.
    fn read(&mut self, part: &cut::Subgraph, to: usize, taken: impl Fn(u64) -> u64) {
        for input in &part.inputs {
            let bytes = self
                .divided
                .offered
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

/// What the run calls the part of a value that a device makes.
fn part_of(value: &str, own: &Part) -> String {
    format!("{value}\0{}", own.device)
}

/// What it calls the rows that a device reads of a value, which may be made in other parts.
fn rows_of(value: &str, own: &Part) -> String {
    format!("{value}\0rows {}", own.device)
}

/// What a part reads: its rows, cut before or by reference, or everything.
fn read(graph: &Graph, segment: &Segment, own: &Part, is_cut: bool) -> Read {
    let value = graph.value(segment.input);
    if is_cut {
        return Read {
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
    Read {
        name: value.name.clone(),
        value: value.name.clone(),
        rows,
    }
}

/// The model of a part, and its weights: shared if it is cut by rows.
fn subgraph(
    graph: &Graph,
    segment: &Segment,
    part: &cut::Subgraph,
    whole: &Piece,
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
    let (model, weights) = model.map_err(LayError::from)?;
    Ok(Subgraph { model, weights })
}
