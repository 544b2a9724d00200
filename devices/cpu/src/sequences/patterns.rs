//! Recognises the nodes of a graph that the sequence engine can run, and reads their attributes:
//! the few operators that networks over sequences use. Some patterns are several nodes fused:
//! attention, and activations written out.

pub(super) mod heads;

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::ranks::Ranks;

use heads::Attention;

/// From this version on a softmax is along one axis, by default the last.
const SOFTMAX_AXIS_OPSET: i64 = 13;

/// A function of each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    None,
    Relu,
    /// By the error function.
    Gelu,
}

/// An operator of the engine, found as one node or several together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SequencePattern {
    /// Rows times weights of this name, by default with a row of them for each feature given.
    Product {
        weights: String,
        transposed: bool,
        bias: Option<Vec<f32>>,
    },
    /// A summand for each feature.
    Shift(Vec<f32>),
    /// The sum of two.
    Sum,
    /// Each row to a mean of zero and a variance of one, then a factor and a summand for each
    /// feature.
    Normalise {
        scale: Vec<f32>,
        shift: Vec<f32>,
        epsilon: f32,
    },
    Activate(Activation),
    /// Of queries, keys, values and, if there is one, a mask.
    Attend(Attention),
}

/// A pattern found in a graph, the values that it reads, and its nodes.
#[derive(Clone, Debug)]
pub(super) struct PatternMatch {
    pub pattern: SequencePattern,
    pub inputs: Vec<String>,
    /// In the order of the graph.
    pub nodes: Vec<usize>,
}

/// Reads the nodes of one graph.
pub(super) struct SequenceMatcher<'a> {
    pub graph: &'a Graph,
    ranks: Ranks,
    makers: BTreeMap<&'a str, usize>,
    /// How often each value is read, being an output of the graph included.
    reads: BTreeMap<&'a str, usize>,
}

impl<'a> SequenceMatcher<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let mut makers = BTreeMap::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            makers.extend(node.output.iter().map(|name| (name.as_str(), index)));
        }
        let mut reads = BTreeMap::new();
        let nodes = graph.nodes().iter();
        let wanted = graph.outputs.iter().map(|port| port.name.as_str());
        for name in nodes.flat_map(souk_onnx::graph::values_read).chain(wanted) {
            *reads.entry(name).or_insert(0) += 1;
        }
        Self {
            ranks: Ranks::from_graph(graph),
            graph,
            makers,
            reads,
        }
    }

    /// Returns the patterns of the graph, in the order of the last node of each. A pattern of
    /// several nodes counts only if `whole` accepts its nodes.
    pub fn find_matches(&self, whole: impl Fn(&[usize]) -> bool) -> Vec<PatternMatch> {
        let nodes = 0..self.graph.nodes().len();
        let several =
            |last| heads::match_attention(self, last).or_else(|| self.gelu_by_parts(last));
        let several = nodes.clone().filter_map(several);
        let mut found: Vec<PatternMatch> = several.filter(|it| whole(&it.nodes)).collect();
        let taken: BTreeSet<usize> = found.iter().flat_map(|it| it.nodes.clone()).collect();
        let alone = nodes.filter(|index| !taken.contains(index));
        found.extend(alone.filter_map(|index| {
            let (pattern, inputs) = self.match_pattern(self.node(index))?;
            Some(PatternMatch {
                pattern,
                inputs,
                nodes: vec![index],
            })
        }));
        found.sort_by_key(|it| it.nodes.last().copied());
        found
    }

    pub fn node(&self, index: usize) -> &'a NodeProto {
        &self.graph.nodes()[index]
    }

    /// The node that makes a value which is 32-bit floats and is read by one node alone.
    pub fn maker_for_one(&self, name: &str, operator: &str) -> Option<usize> {
        let maker = *self.makers.get(name)?;
        let node = self.node(maker);
        let fits = self.reads.get(name) == Some(&1)
            && self.graph.dtypes.get(name) == Some(&DType::F32)
            && node.operator_domain().is_empty()
            && node.op_type() == operator;
        fits.then_some(maker)
    }

    /// Returns the value of an input, if it is a constant of one float.
    pub fn scalar_constant(&self, node: &NodeProto, index: usize) -> Option<f32> {
        let tensor = self.float_constant(node, index)?;
        match tensor.to_vec::<f32>().ok()?[..] {
            [value] if tensor.dims().len() <= 1 => Some(value),
            _ => None,
        }
    }

    /// Returns the sizes of a reshape if they are constant and zeros in them mean copies.
    pub fn reshape_sizes(&self, node: &NodeProto) -> Option<Vec<i64>> {
        let keeps_zeros = node.int("allowzero").unwrap_or(0) != 0;
        let weight = self.graph.weights.get(node.input_name(1)?)?;
        (!keeps_zeros).then(|| weight.to_vec().ok())?
    }

    /// Whether a softmax is along the last axis of a value of rank 4.
    pub fn is_along_last(&self, softmax: &NodeProto) -> bool {
        match softmax.int("axis") {
            Some(axis) => matches!(axis, -1 | 3),
            None => self.graph.opset >= SOFTMAX_AXIS_OPSET,
        }
    }

    /// Whether a value is 32-bit floats of this rank, and an input or a result of the run.
    pub fn is_floats(&self, name: &str, rank: usize) -> bool {
        self.ranks.rank(name) == Some(rank) && self.is_made(name)
    }

    fn is_made(&self, name: &str) -> bool {
        self.graph.dtypes.get(name) == Some(&DType::F32) && !self.graph.weights.contains_key(name)
    }

    fn is_rows(&self, name: &str) -> bool {
        self.ranks.rank(name).is_some_and(|rank| rank >= 2) && self.is_made(name)
    }

    fn float_constant(&self, node: &NodeProto, index: usize) -> Option<&'a Tensor> {
        let tensor = self.graph.weights.get(node.input_name(index)?)?;
        (tensor.dtype() == DType::F32).then_some(tensor)
    }

    /// A constant of one float for each feature.
    fn feature_constants(&self, node: &NodeProto, index: usize) -> Option<Vec<f32>> {
        let tensor = self.float_constant(node, index)?;
        (tensor.dims().len() == 1).then(|| tensor.to_vec().ok())?
    }

    fn match_pattern(&self, node: &NodeProto) -> Option<(SequencePattern, Vec<String>)> {
        let named = node.output.iter().filter(|name| !name.is_empty()).count();
        if !node.operator_domain().is_empty() || named != 1 {
            return None;
        }
        let first = node.input_name(0)?;
        let rows = |index| node.input_name(index).filter(|name| self.is_rows(name));
        let one = |pattern| Some((pattern, vec![rows(0)?.to_owned()]));
        match node.op_type() {
            "MatMul" => one(SequencePattern::Product {
                weights: self.matrix_weight(node)?,
                transposed: false,
                bias: None,
            }),
            "Gemm" => one(self.match_gemm(node)?),
            "LayerNormalization" => one(self.match_normalisation(node)?),
            "Relu" => one(SequencePattern::Activate(Activation::Relu)),
            "Gelu" if matches!(node.string("approximate"), None | Some("none")) => {
                one(SequencePattern::Activate(Activation::Gelu))
            }
            "Add" => match (rows(0), rows(1)) {
                (Some(left), Some(right)) => {
                    let same = self.ranks.rank(left) == self.ranks.rank(right) && left != right;
                    same.then(|| {
                        (
                            SequencePattern::Sum,
                            vec![left.to_owned(), right.to_owned()],
                        )
                    })
                }
                (Some(left), None) => {
                    let shift = self.feature_constants(node, 1)?;
                    Some((SequencePattern::Shift(shift), vec![left.to_owned()]))
                }
                (None, Some(right)) => {
                    let shift = self.feature_constants(node, 0).filter(|_| first != right)?;
                    Some((SequencePattern::Shift(shift), vec![right.to_owned()]))
                }
                (None, None) => None,
            },
            _ => None,
        }
    }

    /// Returns the second input, if it is a matrix in the model.
    fn matrix_weight(&self, node: &NodeProto) -> Option<String> {
        let tensor = self.float_constant(node, 1)?;
        let whole = tensor.dims().len() == 2 && tensor.dims().iter().all(|&size| size > 0);
        whole.then(|| node.input_name(1).map(str::to_owned))?
    }

    fn match_gemm(&self, node: &NodeProto) -> Option<SequencePattern> {
        let plain = |name| node.float(name).is_none_or(|factor| factor == 1.0);
        let is_plain = plain("alpha") && plain("beta") && node.int("transA").unwrap_or(0) == 0;
        let bias = match node.input_name(2) {
            Some(_) => Some(self.feature_constants(node, 2)?),
            None => None,
        };
        let transposed = node.int("transB").unwrap_or(0) != 0;
        let weights = self.matrix_weight(node)?;
        let columns = self.graph.weights[&weights].dims()[usize::from(!transposed)];
        let fits = bias.as_ref().is_none_or(|bias| bias.len() == columns);
        (is_plain && fits).then_some(SequencePattern::Product {
            weights,
            transposed,
            bias,
        })
    }

    fn match_normalisation(&self, node: &NodeProto) -> Option<SequencePattern> {
        let rank = self.ranks.rank(node.input_name(0)?)?;
        let last = i64::try_from(rank).ok()? - 1;
        let axis = node.int("axis").unwrap_or(-1);
        let scale = self.feature_constants(node, 1)?;
        let shift = match node.input_name(2) {
            Some(_) => self.feature_constants(node, 2)?,
            None => vec![0.0; scale.len()],
        };
        let fits = (axis == -1 || axis == last)
            && node.int("stash_type").unwrap_or(1) == 1
            && shift.len() == scale.len();
        fits.then(|| SequencePattern::Normalise {
            epsilon: node.float("epsilon").unwrap_or(1e-5),
            scale,
            shift,
        })
    }

    /// `x / sqrt(2)`, its error function, plus one, times x, times a half: in the order that
    /// exporters write, with the factors in any.
    fn gelu_by_parts(&self, last: usize) -> Option<PatternMatch> {
        let made = |index: usize, of: &str, operator| {
            let name = self.node(index).input_name(usize::from(of == "right"))?;
            Some((name, self.maker_for_one(name, operator)?))
        };
        let half = self.node(last);
        let is_half = |index| self.scalar_constant(half, index) == Some(0.5);
        let whole = (half.op_type() == "Mul" && is_half(1)).then_some(0)?;
        let times = self.maker_for_one(half.input_name(whole)?, "Mul")?;
        let (plus_at, plus) = match made(times, "right", "Add") {
            Some((_, plus)) => (1, plus),
            None => (0, made(times, "left", "Add")?.1),
        };
        let x = self.node(times).input_name(1 - plus_at)?;
        let (_, erf) = made(plus, "left", "Erf")?;
        let (_, over) = made(erf, "left", "Div")?;
        let root = self.scalar_constant(self.node(over), 1)?;
        let fits = self.scalar_constant(self.node(plus), 1) == Some(1.0)
            && (root - std::f32::consts::SQRT_2).abs() < 1e-6
            && self.node(over).input_name(0) == Some(x)
            && self.is_rows(x);
        fits.then(|| PatternMatch {
            pattern: SequencePattern::Activate(Activation::Gelu),
            inputs: vec![x.to_owned()],
            nodes: vec![over, erf, plus, times, last],
        })
    }
}
