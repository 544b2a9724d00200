//! Cuts a graph into segments, each a run of nodes for the engine that runs them best, and compiles
//! them: our own kernels for networks over images and over sequences, for trees and for WebAssembly
//! kernels, rten where it is exact, and the reference kernels elsewhere. Every graph that is not a
//! decoder runs as [`Segments`].
//!
//! rten can still refuse nodes that it claims to support (a shape, an attribute, an integer beyond
//! 32 bits). Then the same nodes run on the reference kernels, so an input decides only how fast a
//! subgraph runs, not whether.

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_onnx::graph::{Graph, values_read};
use souk_onnx::ranks::Ranks;
use souk_onnx::subgraph::{CompileError, Port, Unsupported};
use souk_onnx::{Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use souk_reference as reference;
use souk_reference::Scope;

use super::images::{self, ImageModel, NodeWeight};
use super::rten_fit::Fit;
use super::rten_part::RtenPart;
use super::sequences::{self, SequenceModel};
use super::tiled::buffer_pool::SpareBuffers;
use super::tiled::packed_weights::PackedWeights;
use super::trees::TreeNodes;
use super::wasm_nodes::WasmNodes;
use super::{fold_and_merge, sizes};

/// A graph ready to run.
pub(super) struct Segments {
    segments: Vec<Segment>,
    /// For each segment the values that no later segment needs.
    freed: Vec<Vec<String>>,
    /// Weights the reference kernels read.
    weights: Scope,
    opset: i64,
    outputs: Vec<String>,
}

/// Nodes that one engine runs.
struct Segment {
    nodes: Vec<NodeProto>,
    fast: SegmentEngine,
    /// Whether the reference kernels have all its nodes.
    has_reference: bool,
    /// For each node the values that no later node needs, for the reference kernels.
    freed: Vec<Vec<String>>,
}

/// The engine that runs a segment, unless it turns out not to be able to.
enum SegmentEngine {
    Images(Box<ImageModel>),
    Sequences(Box<SequenceModel>),
    Rten(Box<RtenPart>),
    Trees(TreeNodes),
    Wasm(WasmNodes),
    None,
}

/// The values that a run must keep besides its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptValues {
    /// Nothing: rten may fuse nodes.
    Outputs,
    /// Every value, so that its shape can be seen.
    Everything,
}

/// Which engines have a node.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Engines {
    rten: bool,
    reference: bool,
    trees: bool,
    wasm: bool,
}

/// The reference kernels alone.
const EXACT_ENGINES: Engines = Engines {
    rten: false,
    reference: true,
    trees: false,
    wasm: false,
};

impl Segments {
    /// Cuts and compiles a graph. If an engine holds weights in a form of its own and no one else
    /// needs them, frees the original, so that they are in memory once.
    pub fn compile(
        graph: Graph,
        threads: &Arc<ThreadPool>,
        keep: KeptValues,
    ) -> Result<Self, CompileError> {
        let graph = prepare_graph(graph, keep);
        let engines = assign_engines(&graph)?;
        let runs = own_runs(&graph, keep);
        let isa = Isa::detect_widest();
        Self::compile_runs(graph, threads, keep, &engines, OwnRuns { runs, isa })
    }

    /// Compiles a graph of exact operators for the engines whose results are the same bits on every
    /// machine: those over images, and the reference kernels. The sizes of the inputs alone decide
    /// which of the two runs a node.
    /// They compute with the instructions of `isa`, which this processor must have.
    pub fn compile_exact(
        graph: Graph,
        threads: &Arc<ThreadPool>,
        isa: Isa,
    ) -> Result<Self, CompileError> {
        let graph = prepare_graph(graph, KeptValues::Outputs);
        let judge = |node| reference::check_deep(node, &graph.dtypes).map(|()| EXACT_ENGINES);
        let engines: Vec<Engines> = graph.nodes().iter().map(judge).collect::<Result<_, _>>()?;
        let runs = image_runs(&graph);
        let keep = KeptValues::Outputs;
        Self::compile_runs(graph, threads, keep, &engines, OwnRuns { runs, isa })
    }

    /// Compiles a prepared graph: `own` for kernels of our own, the rest for `engines`.
    fn compile_runs(
        mut graph: Graph,
        threads: &Arc<ThreadPool>,
        keep: KeptValues,
        engines: &[Engines],
        own_runs: OwnRuns,
    ) -> Result<Self, CompileError> {
        let mut segments = Vec::new();
        let mut start = 0;
        let ranks = Ranks::from_graph(&graph);
        let mut reads = WeightReads::from_graph(&graph);
        let (mut packs, spares) = (PackedWeights::default(), Arc::default());
        for range in own_runs.runs {
            let mut part = extract_subgraph(&graph, range.clone(), keep);
            declare_ranks(&mut part, &ranks);
            let own = PlannedSegment::new(&part, threads, &spares);
            let own = own.map(|own| own.with_isa(own_runs.isa));
            drop(part);
            if let Some(own) = own {
                let before = start..range.start;
                segments.extend(compile_between(&graph, threads, keep, before, engines)?);
                let nodes = &graph.nodes()[range.clone()];
                for name in reads.unread_once_packed(&own.packable_weights(), nodes) {
                    graph.weights.remove(&name);
                }
                segments.push(Segment {
                    nodes: graph.nodes()[range.clone()].to_vec(),
                    fast: own.into_packed(&mut packs),
                    has_reference: engines[range.clone()].iter().all(|it| it.reference),
                    freed: Vec::new(),
                });
                start = range.end;
            }
        }
        let rest = start..engines.len();
        segments.extend(compile_between(&graph, threads, keep, rest, engines)?);
        let outputs = graph.outputs.iter().map(|port| port.name.clone()).collect();
        let mut made = Self {
            freed: vec![Vec::new(); segments.len()],
            segments,
            weights: graph.weights,
            opset: graph.opset,
            outputs,
        };
        if keep == KeptValues::Outputs {
            made.free_values(&graph.inputs);
        }
        Ok(made)
    }
}

/// The runs of nodes for kernels of our own, and the instructions that these compute with.
struct OwnRuns {
    runs: Vec<Range<usize>>,
    isa: Isa,
}

/// A part of a graph planned for kernels of our own, its weights not packed yet.
enum PlannedSegment {
    Images(ImageModel),
    Sequences(SequenceModel),
}

impl PlannedSegment {
    fn new(part: &Graph, threads: &Arc<ThreadPool>, spares: &Arc<SpareBuffers>) -> Option<Self> {
        let images = ImageModel::new(part, threads, spares).map(Self::Images);
        images.or_else(|| SequenceModel::new(part, threads, spares).map(Self::Sequences))
    }

    fn with_isa(self, isa: Isa) -> Self {
        match self {
            Self::Images(images) => Self::Images(images.with_isa(isa)),
            Self::Sequences(sequences) => Self::Sequences(sequences.with_isa(isa)),
        }
    }

    fn packable_weights(&self) -> BTreeSet<String> {
        match self {
            Self::Images(images) => images.packable_weights(),
            Self::Sequences(sequences) => sequences.packable_weights(),
        }
    }

    fn into_packed(self, packs: &mut PackedWeights) -> SegmentEngine {
        match self {
            Self::Images(mut images) => {
                images.pack_weights(packs);
                SegmentEngine::Images(Box::new(images))
            }
            Self::Sequences(mut sequences) => {
                sequences.pack_weights(packs);
                SegmentEngine::Sequences(Box::new(sequences))
            }
        }
    }
}

/// Folds constants unless the run must keep every value; merges weights of equal content, and drops
/// weights that no node reads.
fn prepare_graph(graph: Graph, keep: KeptValues) -> Graph {
    if keep == KeptValues::Everything {
        return graph;
    }
    let mut graph = fold_and_merge::merge_weights(sizes::fold_copied_sizes(
        fold_and_merge::fold_constants(&graph),
    ));
    let mut read: BTreeSet<String> = graph.outputs.iter().map(|it| it.name.clone()).collect();
    let names = graph.nodes().iter().flat_map(values_read);
    read.extend(names.map(str::to_owned));
    graph.weights.retain(|name, _| read.contains(name));
    graph
}

/// How often a graph reads each weight, but for the reads that a packed weight serves.
struct WeightReads(BTreeMap<String, usize>);

impl WeightReads {
    fn from_graph(graph: &Graph) -> Self {
        let outputs = graph.outputs.iter().map(|port| port.name.as_str());
        let mut reads = BTreeMap::new();
        for name in graph.nodes().iter().flat_map(values_read).chain(outputs) {
            if graph.weights.contains_key(name) {
                *reads.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
        Self(reads)
    }

    /// Returns the weights that no node reads any more once these nodes have packed them as weights
    /// of convolutions and products.
    fn unread_once_packed(
        &mut self,
        packable: &BTreeSet<String>,
        nodes: &[NodeProto],
    ) -> Vec<String> {
        let is_product = |node: &&NodeProto| matches!(node.op_type(), "Conv" | "MatMul" | "Gemm");
        let products = nodes.iter().filter(is_product);
        let weights = products.filter_map(|node| node.input_name(1));
        let mut unread = Vec::new();
        for name in weights.filter(|name| packable.contains(*name)) {
            let left = self.0.get_mut(name).expect("reads of weights were counted");
            *left -= 1;
            if *left == 0 {
                unread.push(name.to_owned());
            }
        }
        unread
    }
}

/// Which engines have each node; an error if none has one.
fn assign_engines(graph: &Graph) -> Result<Vec<Engines>, Unsupported> {
    let mut fit = Fit::new(graph);
    let judge = |node| {
        let wasm = WasmNodes::supports_node(node);
        if wasm {
            return Ok(Engines {
                rten: false,
                reference: false,
                trees: false,
                wasm,
            });
        }
        let rten = fit.check_node(node).is_ok();
        match reference::check_deep(node, &graph.dtypes) {
            Err(unsupported) if !rten => Err(unsupported),
            checked => Ok(Engines {
                rten,
                reference: checked.is_ok(),
                trees: TreeNodes::supports_node(node),
                wasm,
            }),
        }
    };
    graph.nodes().iter().map(judge).collect()
}

/// Finds the runs of nodes for kernels of our own: those over images with a convolution, which
/// makes it worth converting images, and those over sequences with a product.
fn own_runs(graph: &Graph, keep: KeptValues) -> Vec<Range<usize>> {
    if keep == KeptValues::Everything {
        return Vec::new();
    }
    let mut runs = image_runs(graph);
    runs.extend(sequences::find_runs(graph, &runs));
    runs.sort_by_key(|range| range.start);
    runs
}

/// Finds the runs of nodes over images with a convolution.
fn image_runs(graph: &Graph) -> Vec<Range<usize>> {
    let worths = images::classify_nodes(graph);
    let mut runs = Vec::new();
    let mut start = 0;
    for run in worths.chunk_by(|left, right| left.is_some() == right.is_some()) {
        let range = start..start + run.len();
        start = range.end;
        if run.contains(&Some(NodeWeight::Heavy)) {
            runs.push(range);
        }
    }
    runs
}

/// Segments for nodes that are not for kernels of our own.
fn compile_between(
    graph: &Graph,
    threads: &Arc<ThreadPool>,
    keep: KeptValues,
    range: Range<usize>,
    engines: &[Engines],
) -> Result<Vec<Segment>, CompileError> {
    let mut segments = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let first = engines[start];
        let same =
            |it: &&Engines| (it.rten, it.trees, it.wasm) == (first.rten, first.trees, first.wasm);
        let end = start + engines[start..range.end].iter().take_while(same).count();
        let engines = Engines {
            reference: engines[start..end].iter().all(|it| it.reference),
            ..first
        };
        segments.push(compile_segment(graph, threads, keep, start..end, engines)?);
        start = end;
    }
    Ok(segments)
}

fn compile_segment(
    graph: &Graph,
    threads: &Arc<ThreadPool>,
    keep: KeptValues,
    range: Range<usize>,
    engines: Engines,
) -> Result<Segment, CompileError> {
    let nodes = graph.nodes()[range.clone()].to_vec();
    let has_reference = engines.reference;
    if engines.wasm {
        let kernels = WasmNodes::compile(&nodes, graph)?;
        return Ok(Segment {
            nodes,
            fast: SegmentEngine::Wasm(kernels),
            has_reference,
            freed: Vec::new(),
        });
    }
    if !engines.rten {
        let trees = engines
            .trees
            .then(|| TreeNodes::compile(&nodes, &graph.dtypes, threads));
        return Ok(Segment {
            nodes,
            fast: trees
                .flatten()
                .map_or(SegmentEngine::None, SegmentEngine::Trees),
            has_reference,
            freed: Vec::new(),
        });
    }
    let part = extract_subgraph(graph, range, keep);
    let loaded = RtenPart::load_graph(part, threads.clone(), keep == KeptValues::Outputs);
    let fast = match loaded {
        Ok(rten) => SegmentEngine::Rten(Box::new(rten)),
        Err(_) if has_reference => SegmentEngine::None,
        Err(error) => return Err(error),
    };
    Ok(Segment {
        nodes,
        fast,
        has_reference,
        freed: Vec::new(),
    })
}

/// A range of nodes as a graph of its own.
fn extract_subgraph(graph: &Graph, range: Range<usize>, keep: KeptValues) -> Graph {
    let nodes = &graph.nodes()[range.clone()];
    let made: BTreeSet<&str> = nodes
        .iter()
        .flat_map(|node| &node.output)
        .map(String::as_str)
        .collect();
    let read: BTreeSet<&str> = nodes.iter().flat_map(values_read).collect();
    let later = graph.nodes()[range.end..].iter().flat_map(values_read);
    let graph_outputs = graph.outputs.iter().map(|port| port.name.as_str());
    let wanted: BTreeSet<&str> = later.chain(graph_outputs).collect();
    let is_input = |name: &&&str| !made.contains(**name) && !graph.weights.contains_key(**name);
    let inputs: Vec<Port> = read
        .iter()
        .filter(is_input)
        .map(|name| value_port(graph, name))
        .collect();
    let is_output = |name: &&&str| keep == KeptValues::Everything || wanted.contains(**name);
    let named = made.iter().filter(|name| !name.is_empty());
    let outputs: Vec<Port> = named
        .filter(is_output)
        .map(|name| value_port(graph, name))
        .collect();
    let held = graph
        .weights
        .iter()
        .filter(|(name, _)| read.contains(name.as_str()));
    // An engine keeps these for as long as it lives: those of the whole graph would be too many.
    let dtypes = read.union(&made).filter_map(|name| {
        let (name, dtype) = graph.dtypes.get_key_value(*name)?;
        Some((name.clone(), *dtype))
    });
    let proto = GraphProto {
        node: nodes.to_vec(),
        name: graph.graph_proto().name.clone(),
        input: inputs
            .iter()
            .map(|port| value_declaration(graph, port))
            .collect(),
        output: outputs
            .iter()
            .map(|port| value_declaration(graph, port))
            .collect(),
        ..GraphProto::default()
    };
    Graph {
        model: ModelProto {
            ir_version: graph.model.ir_version,
            opset_import: graph.model.opset_import.clone(),
            graph: Some(proto),
            ..ModelProto::default()
        },
        opset: graph.opset,
        weights: held
            .map(|(name, weight)| (name.clone(), weight.clone()))
            .collect(),
        inputs,
        outputs,
        dtypes: dtypes.collect(),
    }
}

fn value_port(graph: &Graph, name: &str) -> Port {
    let dtype = *graph
        .dtypes
        .get(name)
        .expect("the type of every value was inferred");
    Port {
        name: name.to_owned(),
        dtype,
        dims: None,
    }
}

/// States how many dimensions the inputs of a part have, where only the whole graph tells.
fn declare_ranks(part: &mut Graph, ranks: &Ranks) {
    let Some(proto) = &mut part.model.graph else {
        return;
    };
    for input in &mut proto.input {
        let is_open = input.tensor_type().is_some_and(|it| it.shape.is_none());
        if let (true, Some(rank)) = (is_open, ranks.rank(input.name())) {
            let code = input.tensor_type().map_or(0, |it| it.elem_type());
            let dims = vec![Dimension::default(); rank];
            *input = ValueInfoProto::new_tensor(input.name().to_owned(), code, Some(dims));
        }
    }
}

/// Returns the model's declaration of a value: known sizes let rten fuse more.
fn value_declaration(graph: &Graph, port: &Port) -> ValueInfoProto {
    let whole = graph.graph_proto();
    let known = whole
        .input
        .iter()
        .chain(&whole.value_info)
        .chain(&whole.output);
    let found = known.into_iter().find(|value| value.name() == port.name);
    let bare = || ValueInfoProto::new_tensor(port.name.as_str(), port.dtype.onnx_code(), None);
    found.cloned().unwrap_or_else(bare)
}

#[cfg(test)]
mod tests;
