//! A graph cut into runs of nodes, each for the engine that runs them best: convolutions and what
//! lies between them on kernels over images, the rest on rten where it is exact and on the
//! reference kernels elsewhere.
//!
//! rten can still refuse what it said it has (a shape, an attribute, an integer beyond 32 bits);
//! then the same nodes run on the reference kernels, so an input decides only how fast a subgraph
//! runs, not whether.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use rten::ThreadPool;
use souk_memory::Tensor;
use souk_onnx::graph::{Graph, values_read};
use souk_onnx::ranks::Ranks;
use souk_onnx::subgraph::{CompileError, Port, Unsupported};
use souk_onnx::{Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use souk_reference as reference;
use souk_reference::Scope;
use souk_vocabulary::processor::RunError;

use super::images::{self, ImageModel, Worth};
use super::rten_engine::caught;
use super::rten_fit::Fit;
use super::rten_part::RtenPart;
use super::sequences::{self, SequenceModel};
use super::trees::TreeNodes;
use super::wasm_nodes::WasmNodes;
use super::{passes, sizes};

/// A graph ready to run.
pub(super) struct Segments {
    segments: Vec<Segment>,
    /// Weights the reference kernels read.
    weights: Scope,
    opset: i64,
    outputs: Vec<String>,
}

/// Nodes that one engine runs.
struct Segment {
    nodes: Vec<NodeProto>,
    fast: Fast,
    /// Whether the reference kernels have all its nodes.
    has_reference: bool,
}

/// The engine that runs a segment, unless it turns out not to be able to.
enum Fast {
    Images(Box<ImageModel>),
    Sequences(Box<SequenceModel>),
    Rten(Box<RtenPart>),
    Trees(TreeNodes),
    Wasm(WasmNodes),
    None,
}

/// What is wanted of a run besides its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
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

impl Segments {
    /// Cuts and compiles a graph. Weights that an engine holds in a form of its own are let go of,
    /// so that those nobody else has are in memory once.
    pub fn compile(
        graph: Graph,
        threads: &Arc<ThreadPool>,
        keep: Keep,
    ) -> Result<Self, CompileError> {
        let mut graph = prepared(graph, keep);
        let engines = judge(&graph)?;
        let mut segments = Vec::new();
        let mut start = 0;
        let ranks = Ranks::infer(&graph);
        for range in own_runs(&graph, keep) {
            let mut part = part(&graph, range.clone(), keep);
            declare_ranks(&mut part, &ranks);
            let own = Own::new(&part, threads);
            drop(part);
            if let Some(own) = own {
                let before = start..range.start;
                segments.extend(between(&graph, threads, keep, before, &engines)?);
                for name in read_as_weights_alone(&graph, own.packable(), &range) {
                    graph.weights.remove(&name);
                }
                segments.push(Segment {
                    nodes: graph.nodes()[range.clone()].to_vec(),
                    fast: own.packed(),
                    has_reference: engines[range.clone()].iter().all(|it| it.reference),
                });
                start = range.end;
            }
        }
        let rest = start..engines.len();
        segments.extend(between(&graph, threads, keep, rest, &engines)?);
        let outputs = graph.outputs.iter().map(|port| port.name.clone()).collect();
        Ok(Self {
            segments,
            weights: graph.weights,
            opset: graph.opset,
            outputs,
        })
    }

    /// Runs once; `inputs` were checked against the ports.
    pub fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let mut scope = self.run_all(inputs)?;
        let output = |name: &String| {
            let held = scope
                .remove(name)
                .or_else(|| self.weights.get(name).cloned());
            held.map(|tensor| (name.clone(), tensor))
                .ok_or_else(|| RunError::Engine {
                    engine: "reference",
                    reason: format!("output {name:?} was not made"),
                })
        };
        self.outputs.iter().map(output).collect()
    }

    /// Runs once and gives every value that was made, and the inputs.
    pub fn run_all(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Scope, RunError> {
        let mut scope: Scope = inputs.clone();
        for segment in &self.segments {
            segment.run(&mut scope, &self.weights, self.opset)?;
        }
        Ok(scope)
    }
}

impl Segment {
    fn run(&self, scope: &mut Scope, weights: &Scope, opset: i64) -> Result<(), RunError> {
        match &self.fast {
            Fast::Images(images) => {
                if own(scope, "images", |scope| images.run(scope))? {
                    return Ok(());
                }
            }
            Fast::Sequences(sequences) => {
                if own(scope, "sequences", |scope| sequences.run(scope))? {
                    return Ok(());
                }
            }
            Fast::Rten(rten) => match rten.run(&self.nodes, scope, weights) {
                Ok(made) if !self.has_reference || !made.is_doubtful => {
                    scope.extend(made.outputs);
                    return Ok(());
                }
                Err(error) if !self.has_reference || is_final(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            },
            Fast::Trees(trees) => {
                if own(scope, "trees", |scope| trees.run(scope, weights))? {
                    return Ok(());
                }
            }
            Fast::Wasm(kernels) => return kernels.run(scope, weights),
            Fast::None => {}
        }
        let read = self.nodes.iter().flat_map(values_read);
        let weight = |name: &str| match &self.fast {
            Fast::Images(images) => weights.get(name).cloned().or_else(|| images.unpacked(name)),
            Fast::Sequences(sequences) => {
                let held = weights.get(name).cloned();
                held.or_else(|| sequences.unpacked(name))
            }
            _ => weights.get(name).cloned(),
        };
        let held = read.filter_map(|name| Some((name, weight(name)?)));
        let held: Vec<(&str, Tensor)> = held.collect();
        for (name, weight) in held {
            scope.insert(name.to_owned(), weight);
        }
        caught(|| reference::run_nodes(&self.nodes, scope, opset)).unwrap_or_else(|reason| {
            Err(RunError::Crashed {
                engine: "reference",
                reason,
            })
        })
    }
}

/// Whether no other engine would come to anything else: an operator makes too much.
fn is_final(error: &RunError) -> bool {
    matches!(error, RunError::Operator { .. })
}

/// Runs kernels of our own; whether they took these sizes.
fn own(
    scope: &mut Scope,
    engine: &'static str,
    run: impl FnOnce(&Scope) -> Option<Scope>,
) -> Result<bool, RunError> {
    let crashed = |reason| RunError::Crashed { engine, reason };
    let outputs = caught(|| run(scope)).map_err(crashed)?;
    let took = outputs.is_some();
    scope.extend(outputs.into_iter().flatten());
    Ok(took)
}

/// A part of a graph planned for kernels of our own, its weights not packed yet.
enum Own {
    Images(ImageModel),
    Sequences(SequenceModel),
}

impl Own {
    fn new(part: &Graph, threads: &Arc<ThreadPool>) -> Option<Self> {
        let images = ImageModel::new(part, threads).map(Self::Images);
        images.or_else(|| SequenceModel::new(part, threads).map(Self::Sequences))
    }

    fn packable(&self) -> BTreeSet<String> {
        match self {
            Self::Images(images) => images.packable(),
            Self::Sequences(sequences) => sequences.packable(),
        }
    }

    fn packed(self) -> Fast {
        match self {
            Self::Images(mut images) => {
                images.pack();
                Fast::Images(Box::new(images))
            }
            Self::Sequences(mut sequences) => {
                sequences.pack();
                Fast::Sequences(Box::new(sequences))
            }
        }
    }
}

/// The graph with what is constant computed, unless every value is wanted; without weights that
/// nothing reads.
fn prepared(graph: Graph, keep: Keep) -> Graph {
    if keep == Keep::Everything {
        return graph;
    }
    let mut graph = sizes::stated(passes::folded(&graph));
    let mut read: BTreeSet<String> = graph.outputs.iter().map(|it| it.name.clone()).collect();
    let names = graph.nodes().iter().flat_map(values_read);
    read.extend(names.map(str::to_owned));
    graph.weights.retain(|name, _| read.contains(name));
    graph
}

/// Those of the weights that are read only as weights of the convolutions and products of a range.
fn read_as_weights_alone(
    graph: &Graph,
    mut names: BTreeSet<String>,
    range: &Range<usize>,
) -> BTreeSet<String> {
    for (index, node) in graph.nodes().iter().enumerate() {
        let weighs = matches!(node.op_type(), "Conv" | "MatMul" | "Gemm");
        let weights = node
            .input_name(1)
            .filter(|_| weighs && range.contains(&index));
        let read = values_read(node);
        let times = |name: &str| read.iter().filter(|it| **it == name).count();
        names.retain(|name| times(name) == usize::from(weights == Some(name.as_str())));
    }
    for port in &graph.outputs {
        names.remove(&port.name);
    }
    names
}

/// Which engines have each node; an error if none has one.
fn judge(graph: &Graph) -> Result<Vec<Engines>, Unsupported> {
    let mut fit = Fit::new(graph);
    let judge = |node| {
        let wasm = WasmNodes::takes(node);
        if wasm {
            return Ok(Engines {
                rten: false,
                reference: false,
                trees: false,
                wasm,
            });
        }
        let rten = fit.check(node).is_ok();
        match reference::check_deep(node, &graph.dtypes) {
            Err(unsupported) if !rten => Err(unsupported),
            checked => Ok(Engines {
                rten,
                reference: checked.is_ok(),
                trees: TreeNodes::takes(node),
                wasm,
            }),
        }
    };
    graph.nodes().iter().map(judge).collect()
}

/// Runs of nodes for kernels of our own: those over images that have some convolution to make it
/// worth bringing images in, and those over sequences that have some product.
fn own_runs(graph: &Graph, keep: Keep) -> Vec<Range<usize>> {
    if keep == Keep::Everything {
        return Vec::new();
    }
    let worths = images::worths(graph);
    let mut runs = Vec::new();
    let mut start = 0;
    for run in worths.chunk_by(|left, right| left.is_some() == right.is_some()) {
        let range = start..start + run.len();
        start = range.end;
        if run.contains(&Some(Worth::Heavy)) {
            runs.push(range);
        }
    }
    runs.extend(sequences::runs(graph, &runs));
    runs.sort_by_key(|range| range.start);
    runs
}

/// Segments for nodes that are not for kernels of our own.
fn between(
    graph: &Graph,
    threads: &Arc<ThreadPool>,
    keep: Keep,
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
        segments.push(segment(graph, threads, keep, start..end, engines)?);
        start = end;
    }
    Ok(segments)
}

fn segment(
    graph: &Graph,
    threads: &Arc<ThreadPool>,
    keep: Keep,
    range: Range<usize>,
    engines: Engines,
) -> Result<Segment, CompileError> {
    let nodes = graph.nodes()[range.clone()].to_vec();
    let has_reference = engines.reference;
    if engines.wasm {
        let kernels = WasmNodes::compile(&nodes, graph)?;
        return Ok(Segment {
            nodes,
            fast: Fast::Wasm(kernels),
            has_reference,
        });
    }
    if !engines.rten {
        let trees = engines
            .trees
            .then(|| TreeNodes::compile(&nodes, &graph.dtypes, threads));
        return Ok(Segment {
            nodes,
            fast: trees.flatten().map_or(Fast::None, Fast::Trees),
            has_reference,
        });
    }
    let part = part(graph, range, keep);
    let loaded = RtenPart::load(part, threads.clone(), keep == Keep::Outputs);
    match loaded {
        Ok(rten) => Ok(Segment {
            nodes,
            fast: Fast::Rten(Box::new(rten)),
            has_reference,
        }),
        Err(_) if has_reference => Ok(Segment {
            nodes,
            fast: Fast::None,
            has_reference,
        }),
        Err(error) => Err(error),
    }
}

/// A range of nodes as a graph of its own.
fn part(graph: &Graph, range: Range<usize>, keep: Keep) -> Graph {
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
        .map(|name| port(graph, name))
        .collect();
    let is_output = |name: &&&str| keep == Keep::Everything || wanted.contains(**name);
    let named = made.iter().filter(|name| !name.is_empty());
    let outputs: Vec<Port> = named
        .filter(is_output)
        .map(|name| port(graph, name))
        .collect();
    let held = graph
        .weights
        .iter()
        .filter(|(name, _)| read.contains(name.as_str()));
    let proto = GraphProto {
        node: nodes.to_vec(),
        name: graph.graph().name.clone(),
        input: inputs.iter().map(|port| declared(graph, port)).collect(),
        output: outputs.iter().map(|port| declared(graph, port)).collect(),
        ..GraphProto::default()
    };
    Graph {
        model: ModelProto {
            graph: Some(proto),
            functions: Vec::new(),
            ..graph.model.clone()
        },
        opset: graph.opset,
        weights: held
            .map(|(name, weight)| (name.clone(), weight.clone()))
            .collect(),
        inputs,
        outputs,
        dtypes: graph.dtypes.clone(),
    }
}

fn port(graph: &Graph, name: &str) -> Port {
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
            *input = ValueInfoProto::tensor(input.name().to_owned(), code, Some(dims));
        }
    }
}

/// How the model declares a value: sizes known beforehand let rten fuse more.
fn declared(graph: &Graph, port: &Port) -> ValueInfoProto {
    let whole = graph.graph();
    let known = whole
        .input
        .iter()
        .chain(&whole.value_info)
        .chain(&whole.output);
    let found = known.into_iter().find(|value| value.name() == port.name);
    let bare = || ValueInfoProto::tensor(port.name.as_str(), port.dtype.onnx_code(), None);
    found.cloned().unwrap_or_else(bare)
}
