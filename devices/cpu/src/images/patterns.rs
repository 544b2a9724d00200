//! Recognises the nodes of a graph that the image engine can run, and reads their attributes: the
//! few operators that networks over images use. Another engine must run any other node.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::graph::{Graph, values_read};
use souk_onnx::ranks::Ranks;

/// Dimensions of a batch of images.
pub(super) const RANK: usize = 4;
/// From this version on, operators broadcast as NumPy does, and batch normalisation and dropout
/// differ from their training forms.
const OPSET_MIN: i64 = 7;
/// From this version on a clip has its bounds as inputs.
const CLIP_INPUTS_OPSET: i64 = 11;

/// The bounds that an activation keeps results in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub low: f32,
    pub high: f32,
}

impl Bounds {
    /// No activation.
    pub const NONE: Self = Self {
        low: f32::NEG_INFINITY,
        high: f32::INFINITY,
    };
    const RELU: Self = Self {
        low: 0.0,
        high: f32::INFINITY,
    };
}

/// How a window's values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Largest,
    /// The mean without padding.
    Mean,
    /// The mean over the whole window.
    MeanPadded,
}

/// An operator of the engine, found as one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ImagePattern {
    /// A convolution; the fields name its weights and bias.
    Convolve {
        weights: String,
        bias: Option<String>,
        groups: usize,
    },
    /// A factor and a summand for each channel.
    Scale {
        factor: Vec<f64>,
        shift: Vec<f64>,
    },
    /// The sum of its inputs.
    Sum,
    Bound(Bounds),
    Pool(Pooling),
    /// A pool over all places.
    PoolAll(Pooling),
    /// Concatenates channels.
    Concat,
    /// Nothing.
    Same,
    /// Each value by the squares of its neighbours among the channels.
    Neighbours {
        size: usize,
        alpha: f32,
        beta: f32,
        bias: f32,
    },
}

/// Channels dealt out among groups, for images of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shuffle {
    pub groups: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
}

/// Reads the nodes of one graph.
pub(super) struct ImageMatcher<'a> {
    graph: &'a Graph,
    ranks: Ranks,
}

impl<'a> ImageMatcher<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let ranks = Ranks::from_graph(graph);
        Self { graph, ranks }
    }

    /// The pattern that a node is, and those of its inputs that are images.
    pub fn match_pattern<'n>(&self, node: &'n NodeProto) -> Option<(ImagePattern, Vec<&'n str>)> {
        let others = node.output.iter().skip(1);
        let is_plain = node.operator_domain().is_empty() && self.graph.opset >= OPSET_MIN;
        if !is_plain || others.into_iter().any(|name| self.read_count(name) > 0) {
            return None;
        }
        if !self.is_image(node.input_name(0)?) {
            return Some((self.match_left_scale(node)?, vec![node.input_name(1)?]));
        }
        let first = node.input_name(0)?;
        let one = |pattern| Some((pattern, vec![first]));
        match node.op_type() {
            "Conv" => one(self.match_convolution(node)?),
            "BatchNormalization" => one(self.match_normalisation(node)?),
            "Relu" => one(ImagePattern::Bound(Bounds::RELU)),
            "Clip" => one(ImagePattern::Bound(self.clip_bounds(node)?)),
            "Dropout" if !self.is_training(node) => one(ImagePattern::Same),
            "Identity" => one(ImagePattern::Same),
            "MaxPool" => one(ImagePattern::Pool(Pooling::Largest)),
            "AveragePool" => one(ImagePattern::Pool(mean_pooling(node)?)),
            "GlobalAveragePool" => one(ImagePattern::PoolAll(Pooling::Mean)),
            "GlobalMaxPool" => one(ImagePattern::PoolAll(Pooling::Largest)),
            "LRN" => one(match_neighbours(node)?),
            "Concat" if matches!(node.int("axis"), Some(1 | -3)) => {
                Some((ImagePattern::Concat, self.all_images(node)?))
            }
            "Add" | "Sum" if node.input.len() > 1 && self.all_images(node).is_some() => {
                Some((ImagePattern::Sum, self.all_images(node)?))
            }
            "Add" | "Sub" | "Mul" | "Div" => one(self.match_scale(node)?),
            _ => None,
        }
    }

    /// Whether a value is a batch of images in 32-bit floats, and an input or a result of the run.
    fn is_image(&self, name: &str) -> bool {
        self.ranks.rank(name) == Some(RANK)
            && self.graph.dtypes.get(name) == Some(&DType::F32)
            && !self.graph.weights.contains_key(name)
    }

    fn all_images<'n>(&self, node: &'n NodeProto) -> Option<Vec<&'n str>> {
        let image = |name: &'n String| self.is_image(name).then_some(name.as_str());
        node.input.iter().map(image).collect()
    }

    fn match_convolution(&self, node: &NodeProto) -> Option<ImagePattern> {
        let weights = node.input_name(1)?;
        let is_filter = self.ranks.rank(weights) == Some(RANK)
            && self.graph.dtypes.get(weights) == Some(&DType::F32);
        let groups = usize::try_from(node.int("group").unwrap_or(1)).ok()?;
        (is_filter && groups > 0).then(|| ImagePattern::Convolve {
            weights: weights.to_owned(),
            bias: node.input_name(2).map(str::to_owned),
            groups,
        })
    }

    fn match_normalisation(&self, node: &NodeProto) -> Option<ImagePattern> {
        let trains = node.int("training_mode").unwrap_or(0) != 0;
        if trains || node.int("spatial").unwrap_or(1) == 0 {
            return None;
        }
        let list = |index| self.float_constant(node, index)?.to_f64s().ok();
        let (scale, bias, mean, variance) = (list(1)?, list(2)?, list(3)?, list(4)?);
        let epsilon = f64::from(node.float("epsilon").unwrap_or(1e-5));
        let pairs = scale.iter().zip(&variance);
        let factor: Vec<f64> = pairs.map(|(s, v)| s / (v + epsilon).sqrt()).collect();
        let shifts = bias.iter().zip(&mean).zip(&factor);
        let shift: Vec<f64> = shifts
            .map(|((bias, mean), factor)| bias - mean * factor)
            .collect();
        let same = [bias.len(), mean.len(), variance.len()] == [scale.len(); 3];
        same.then_some(ImagePattern::Scale { factor, shift })
    }

    fn clip_bounds(&self, node: &NodeProto) -> Option<Bounds> {
        if self.graph.opset < CLIP_INPUTS_OPSET {
            let (low, high) = (node.float("min"), node.float("max"));
            return Some(Bounds {
                low: low.unwrap_or(f32::MIN),
                high: high.unwrap_or(f32::MAX),
            });
        }
        let bound = |index, default| match node.input_name(index) {
            None => Some(default),
            Some(_) => match self.float_constant(node, index)?.to_vec::<f32>().ok()?[..] {
                [bound] => Some(bound),
                _ => None,
            },
        };
        let low = bound(1, Bounds::NONE.low)?;
        let high = bound(2, Bounds::NONE.high)?;
        Some(Bounds { low, high })
    }

    fn is_training(&self, node: &NodeProto) -> bool {
        node.input_name(2).is_some_and(|name| {
            let weight = self.graph.weights.get(name);
            weight.is_none_or(|flag| flag.bytes().iter().any(|&byte| byte != 0))
        })
    }

    /// Arithmetic with a constant for each channel, the constant on the right.
    fn match_scale(&self, node: &NodeProto) -> Option<ImagePattern> {
        let list = channel_list(self.float_constant(node, 1)?)?;
        let (ones, zeros) = (vec![1.0; list.len()], vec![0.0; list.len()]);
        let (factor, shift) = match node.op_type() {
            "Add" => (ones, list),
            "Sub" => (ones, list.iter().map(|it| -it).collect()),
            "Mul" => (list, zeros),
            _ => (list.iter().map(|it| 1.0 / it).collect(), zeros),
        };
        Some(ImagePattern::Scale { factor, shift })
    }

    /// Matches arithmetic with the constant on the left, where the order does not matter.
    fn match_left_scale(&self, node: &NodeProto) -> Option<ImagePattern> {
        let commutes = matches!(node.op_type(), "Add" | "Mul") && node.input.len() == 2;
        if !commutes || !self.is_image(node.input_name(1)?) {
            return None;
        }
        let list = channel_list(self.float_constant(node, 0)?)?;
        let (ones, zeros) = (vec![1.0; list.len()], vec![0.0; list.len()]);
        Some(match node.op_type() {
            "Add" => ImagePattern::Scale {
                factor: ones,
                shift: list,
            },
            _ => ImagePattern::Scale {
                factor: list,
                shift: zeros,
            },
        })
    }

    fn float_constant(&self, node: &NodeProto, index: usize) -> Option<&Tensor> {
        let tensor = self.graph.weights.get(node.input_name(index)?)?;
        (tensor.dtype() == DType::F32).then_some(tensor)
    }

    /// Reshapes and transposes that deal channels out among groups, by the index of the first of
    /// the three nodes.
    pub fn find_shuffles(&self) -> BTreeMap<usize, Shuffle> {
        let nodes = self.graph.nodes();
        let found = nodes.windows(3).enumerate();
        found
            .filter_map(|(index, three)| Some((index, self.match_shuffle(three)?)))
            .collect()
    }

    fn match_shuffle(&self, nodes: &[NodeProto]) -> Option<Shuffle> {
        let [split, turn, join] = nodes else {
            return None;
        };
        let follows = |first: &NodeProto, next: &NodeProto| {
            let made = first.output.first()?;
            (next.input_name(0) == Some(made) && self.read_count(made) == 1).then_some(())
        };
        follows(split, turn)?;
        follows(turn, join)?;
        let kinds = [split.op_type(), turn.op_type(), join.op_type()];
        if kinds != ["Reshape", "Transpose", "Reshape"] || !self.is_image(split.input_name(0)?) {
            return None;
        }
        let dims = |node: &NodeProto| -> Option<Vec<i64>> {
            let weight = self.graph.weights.get(node.input_name(1)?)?;
            weight.to_vec().ok()
        };
        let (wide, narrow) = (dims(split)?, dims(join)?);
        let size = |size: i64| usize::try_from(size).ok().filter(|&size| size > 0);
        let &[samples, groups, each, height, width] = &wide[..] else {
            return None;
        };
        let shuffle = Shuffle {
            groups: size(groups)?,
            channels: size(groups.checked_mul(each)?)?,
            height: size(height)?,
            width: size(width)?,
        };
        let turned = turn.ints("perm")? == [0, 2, 1, 3, 4];
        let joined = narrow == [samples, groups * each, height, width];
        (turned && joined && each > 0).then_some(shuffle)
    }

    /// How often a value is read, by nodes and as an output.
    fn read_count(&self, name: &str) -> usize {
        if name.is_empty() {
            return 0;
        }
        let nodes = self.graph.nodes().iter().flat_map(values_read);
        let outputs = self.graph.outputs.iter().map(|port| port.name.as_str());
        nodes.chain(outputs).filter(|read| *read == name).count()
    }
}

/// One float for each channel of an image, from a constant that is repeated over the places.
fn channel_list(tensor: &Tensor) -> Option<Vec<f64>> {
    let is_list = matches!(tensor.dims(), [_, 1, 1] | [1, _, 1, 1]);
    is_list.then(|| tensor.to_f64s().ok())?
}

fn mean_pooling(node: &NodeProto) -> Option<Pooling> {
    match (
        node.int("count_include_pad").unwrap_or(0),
        node.int("ceil_mode").unwrap_or(0),
    ) {
        (0, _) => Some(Pooling::Mean),
        (_, 0) => Some(Pooling::MeanPadded),
        // A window rounded up counts only a part of its padding.
        _ => None,
    }
}

fn match_neighbours(node: &NodeProto) -> Option<ImagePattern> {
    Some(ImagePattern::Neighbours {
        size: usize::try_from(node.int("size")?)
            .ok()
            .filter(|&size| size > 0)?,
        alpha: node.float("alpha").unwrap_or(1e-4),
        beta: node.float("beta").unwrap_or(0.75),
        bias: node.float("bias").unwrap_or(1.0),
    })
}
