//! Turns a graph over images into the list of steps that the image engine runs. It fuses nodes
//! where one pass over the data computes several.
//!
//! Factors and summands for each channel go into the weights of the convolution before them.
//! Activations and sums of two values go into the step that makes the later of the two.

use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;

use super::patterns::{Bounds, ImageMatcher, ImagePattern, Pooling, Shuffle};
use crate::tiled::plan::{Drafter, Plan};
use crate::tiled::values::Value;

/// A graph over images as steps.
pub(super) type ImagePlan = Plan<ImageAction>;

/// The operation of a step.
#[derive(Debug)]
pub(super) enum ImageAction {
    /// A convolution, which adds its second input, if any, to the result.
    Convolve(Convolution),
    Scale {
        factor: Vec<f32>,
        shift: Vec<f32>,
        bounds: Bounds,
    },
    Sum(Bounds),
    Bound(Bounds),
    Pool(Pooling, SlidingWindow),
    PoolAll(Pooling),
    Concat,
    Shuffle(Shuffle),
    Neighbours {
        size: usize,
        alpha: f32,
        beta: f32,
        bias: f32,
    },
}

/// The node whose attributes say how a window moves.
#[derive(Clone, Debug)]
pub(super) struct SlidingWindow {
    pub node: NodeProto,
    /// Version of the operator set that it is written in.
    pub opset: i64,
}

/// A convolution and the operations fused into it.
#[derive(Debug)]
pub(super) struct Convolution {
    pub window: SlidingWindow,
    pub groups: usize,
    pub weights: FilterWeights,
    pub bounds: Bounds,
}

/// Where a convolution's weights are.
#[derive(Debug)]
pub(super) enum FilterWeights {
    /// In the model, with a factor and a summand for each filter.
    Held {
        name: String,
        tensor: Tensor,
        factor: Vec<f64>,
        shift: Vec<f64>,
    },
    /// They were in the model by this name, and are packed now.
    Packed { name: String },
    /// Given in a run; the bias, if there is one, there or in the model.
    Given {
        weights: String,
        bias: Option<String>,
        bias_held: Option<Tensor>,
    },
}

impl ImagePlan {
    /// The plan of a graph of which every node is a pattern; `None` where one has not.
    pub fn new(graph: &Graph) -> Option<Self> {
        let read = graph.nodes().iter().flat_map(|node| &node.input);
        let mut drafter = Drafter::new(graph, read);
        let reader = ImageMatcher::new(graph);
        let shuffles = reader.find_shuffles();
        let mut nodes = graph.nodes().iter().enumerate();
        while let Some((index, node)) = nodes.next() {
            if let Some(shuffle) = shuffles.get(&index) {
                let join = &graph.nodes()[index + 2];
                let inputs = vec![drafter.values.value_by_name(node.input_name(0)?)];
                drafter.push_step(ImageAction::Shuffle(*shuffle), inputs, join);
                nodes.nth(1);
                continue;
            }
            let (pattern, images) = reader.match_pattern(node)?;
            drafter.add(pattern, &images, node)?;
        }
        drafter.into_plan()
    }

    /// The convolutions among the steps.
    pub fn convolutions(&self) -> impl Iterator<Item = &Convolution> {
        self.steps.iter().filter_map(|step| match &step.action {
            ImageAction::Convolve(convolution) => Some(convolution),
            _ => None,
        })
    }
}

impl Drafter<'_, ImageAction> {
    /// Another name for a value, which one node read to give it.
    fn rename_output(&mut self, value: Value, node: &NodeProto) {
        let name = node.output.first().map_or("", String::as_str);
        self.values.rename_value(value, name);
    }

    /// Adds a step that makes the output of a node.
    fn push_step(&mut self, action: ImageAction, inputs: Vec<Value>, node: &NodeProto) {
        let name = node.output.first().map_or("", String::as_str);
        self.push(action, inputs, name);
    }

    fn add(&mut self, pattern: ImagePattern, images: &[&str], node: &NodeProto) -> Option<()> {
        let values: Vec<Value> = images
            .iter()
            .map(|name| self.values.value_by_name(name))
            .collect();
        let first = *values.first()?;
        match pattern {
            ImagePattern::Same => self.rename_output(first, node),
            ImagePattern::Convolve {
                weights,
                bias,
                groups,
            } => {
                let convolution = self.build_convolution(weights, bias, groups, node)?;
                self.push_step(ImageAction::Convolve(convolution), values, node);
            }
            ImagePattern::Scale { factor, shift } => self.add_scale(first, factor, shift, node),
            ImagePattern::Sum => self.sum(values, node),
            ImagePattern::Bound(bounds) => match self.bounds_before(first) {
                Some(before) => {
                    *before = bounds;
                    self.rename_output(first, node);
                }
                None => self.push_step(ImageAction::Bound(bounds), values, node),
            },
            ImagePattern::Pool(pooling) => {
                let window = self.sliding_window(node);
                self.push_step(ImageAction::Pool(pooling, window), values, node);
            }
            ImagePattern::PoolAll(pooling) => {
                self.push_step(ImageAction::PoolAll(pooling), values, node)
            }
            ImagePattern::Concat => self.push_step(ImageAction::Concat, values, node),
            ImagePattern::Neighbours {
                size,
                alpha,
                beta,
                bias,
            } => {
                let action = ImageAction::Neighbours {
                    size,
                    alpha,
                    beta,
                    bias,
                };
                self.push_step(action, values, node);
            }
        }
        Some(())
    }

    fn build_convolution(
        &self,
        weights: String,
        bias: Option<String>,
        groups: usize,
        node: &NodeProto,
    ) -> Option<Convolution> {
        let held_of = |name: &String| self.graph.weights.get(name);
        let held = held_of(&weights);
        let weights = match (held, &bias) {
            (Some(tensor), bias) if bias.as_ref().is_none_or(|it| held_of(it).is_some()) => {
                let filters = *tensor.dims().first()?;
                let shift = match bias.as_ref().and_then(held_of) {
                    Some(bias) => bias.to_f64s().ok()?,
                    None => vec![0.0; filters],
                };
                if shift.len() != filters {
                    return None;
                }
                FilterWeights::Held {
                    name: weights,
                    tensor: tensor.clone(),
                    factor: vec![1.0; filters],
                    shift,
                }
            }
            (held, _) => {
                if held.is_some() {
                    // FilterWeights in the model with a bias given in a run: no tool writes that.
                    return None;
                }
                FilterWeights::Given {
                    weights,
                    bias_held: bias.as_ref().and_then(held_of).cloned(),
                    bias,
                }
            }
        };
        Some(Convolution {
            window: self.sliding_window(node),
            groups,
            weights,
            bounds: Bounds::NONE,
        })
    }

    fn sliding_window(&self, node: &NodeProto) -> SlidingWindow {
        SlidingWindow {
            node: node.clone(),
            opset: self.graph.opset,
        }
    }

    /// Returns the bounds of the step that makes a value, if they can still be set.
    fn bounds_before(&mut self, value: Value) -> Option<&mut Bounds> {
        let step = self.maker_for_one(value)?;
        let bounds = match &mut step.action {
            ImageAction::Convolve(convolution) => &mut convolution.bounds,
            ImageAction::Scale { bounds, .. } | ImageAction::Sum(bounds) => bounds,
            _ => return None,
        };
        (*bounds == Bounds::NONE).then_some(bounds)
    }

    fn add_scale(&mut self, value: Value, factor: Vec<f64>, shift: Vec<f64>, node: &NodeProto) {
        let channels = factor.len();
        if let Some(step) = self.maker_for_one(value)
            && step.inputs.len() == 1
            && drawn_in(&mut step.action, &factor, &shift)
        {
            return self.rename_output(value, node);
        }
        debug_assert_eq!(shift.len(), channels, "both have one for each channel");
        let narrow = |list: Vec<f64>| list.into_iter().map(|it| it as f32).collect();
        let action = ImageAction::Scale {
            factor: narrow(factor),
            shift: narrow(shift),
            bounds: Bounds::NONE,
        };
        self.push_step(action, vec![value], node);
    }

    /// A sum, drawn into the later of two convolutions where it can be.
    fn sum(&mut self, values: Vec<Value>, node: &NodeProto) {
        if let &[left, right] = &values[..]
            && left != right
        {
            let (first, last) = self.values.in_order(left, right);
            if let Some(step) = self.maker_for_one(last)
                && let ImageAction::Convolve(convolution) = &step.action
                && convolution.bounds == Bounds::NONE
                && step.inputs.len() == 1
            {
                step.inputs.push(first);
                return self.rename_output(last, node);
            }
        }
        self.push_step(ImageAction::Sum(Bounds::NONE), values, node);
    }
}

/// Fuses a factor and a summand for each channel into the step that makes the channels, if it can.
fn drawn_in(action: &mut ImageAction, by: &[f64], plus: &[f64]) -> bool {
    match action {
        ImageAction::Convolve(Convolution {
            weights: FilterWeights::Held { factor, shift, .. },
            bounds,
            ..
        }) if *bounds == Bounds::NONE && factor.len() == by.len() => {
            for (at, factor) in factor.iter_mut().enumerate() {
                *factor *= by[at];
                shift[at] = shift[at] * by[at] + plus[at];
            }
            true
        }
        ImageAction::Scale {
            factor,
            shift,
            bounds,
        } if *bounds == Bounds::NONE && factor.len() == by.len() => {
            for (at, factor) in factor.iter_mut().enumerate() {
                *factor = (f64::from(*factor) * by[at]) as f32;
                shift[at] = (f64::from(shift[at]) * by[at] + plus[at]) as f32;
            }
            true
        }
        _ => false,
    }
}
