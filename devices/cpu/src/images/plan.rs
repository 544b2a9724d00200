//! What is done to images, in order: nodes read as words, and words drawn together where one pass
//! over the data does for several.
//!
//! Factors and summands for each channel go into the weights of the convolution before them;
//! activations and sums of two values into what makes the later of the two.

use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;

pub(super) use super::super::values::Value;
use super::super::values::Values;
use super::words::{Bounds, Pooling, Reader, Shuffle, Word};

/// A graph as steps over numbered values.
#[derive(Debug)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// Images given in a run, by name.
    pub inputs: Vec<(String, Value)>,
    /// Images wanted of a run, by name.
    pub outputs: Vec<(String, Value)>,
    pub values: usize,
    pub opset: i64,
}

/// One pass over images.
#[derive(Debug)]
pub(super) struct Step {
    pub action: Action,
    pub inputs: Vec<Value>,
    pub output: Value,
    /// The node it comes from first, whose attributes say how windows move.
    pub node: NodeProto,
}

/// What a step does.
#[derive(Debug)]
pub(super) enum Action {
    /// Its second input, if there is one, is added to the result.
    Convolve(Convolution),
    Scale {
        factor: Vec<f32>,
        shift: Vec<f32>,
        bounds: Bounds,
    },
    Sum(Bounds),
    Bound(Bounds),
    Pool(Pooling),
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

/// A convolution and what was drawn into it.
#[derive(Debug)]
pub(super) struct Convolution {
    pub groups: usize,
    pub weights: Weights,
    pub bounds: Bounds,
}

/// Where a convolution's weights are.
#[derive(Debug)]
pub(super) enum Weights {
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

impl Plan {
    /// The plan of a graph of which every node has a word; `None` where one has not.
    pub fn new(graph: &Graph) -> Option<Self> {
        let mut drafter = Drafter::new(graph);
        let reader = Reader::new(graph);
        let shuffles = reader.shuffles();
        let mut nodes = graph.nodes().iter().enumerate();
        while let Some((index, node)) = nodes.next() {
            if let Some(shuffle) = shuffles.get(&index) {
                let join = &graph.nodes()[index + 2];
                let inputs = vec![drafter.values.named(node.input_name(0)?)];
                drafter.push(Action::Shuffle(*shuffle), inputs, join);
                nodes.nth(1);
                continue;
            }
            let (word, images) = reader.word(node)?;
            drafter.add(word, &images, node)?;
        }
        drafter.finish()
    }
}

impl Plan {
    /// The convolutions among the steps.
    pub fn convolutions(&self) -> impl Iterator<Item = &Convolution> {
        self.steps.iter().filter_map(|step| match &step.action {
            Action::Convolve(convolution) => Some(convolution),
            _ => None,
        })
    }
}

struct Drafter<'a> {
    graph: &'a Graph,
    steps: Vec<Step>,
    values: Values<'a>,
}

impl<'a> Drafter<'a> {
    fn new(graph: &'a Graph) -> Self {
        let read = graph.nodes().iter().flat_map(|node| &node.input);
        Self {
            graph,
            steps: Vec::new(),
            values: Values::new(graph, read),
        }
    }

    /// Another name for a value, which one node read to give it.
    fn rename(&mut self, value: Value, node: &NodeProto) {
        let name = node.output.first().map_or("", String::as_str);
        self.values.rename(value, name);
    }

    fn push(&mut self, action: Action, inputs: Vec<Value>, node: &NodeProto) {
        let name = node.output.first().cloned().unwrap_or_default();
        let output = self.values.made(&name, Some(self.steps.len()));
        self.steps.push(Step {
            action,
            inputs,
            output,
            node: node.clone(),
        });
    }

    fn add(&mut self, word: Word, images: &[&str], node: &NodeProto) -> Option<()> {
        let values: Vec<Value> = images.iter().map(|name| self.values.named(name)).collect();
        let first = *values.first()?;
        match word {
            Word::Same => self.rename(first, node),
            Word::Convolve {
                weights,
                bias,
                groups,
            } => {
                let convolution = self.convolution(weights, bias, groups)?;
                self.push(Action::Convolve(convolution), values, node);
            }
            Word::Scale { factor, shift } => self.scale(first, factor, shift, node),
            Word::Sum => self.sum(values, node),
            Word::Bound(bounds) => match self.bounds_before(first) {
                Some(before) => {
                    *before = bounds;
                    self.rename(first, node);
                }
                None => self.push(Action::Bound(bounds), values, node),
            },
            Word::Pool(pooling) => self.push(Action::Pool(pooling), values, node),
            Word::PoolAll(pooling) => self.push(Action::PoolAll(pooling), values, node),
            Word::Concat => self.push(Action::Concat, values, node),
            Word::Neighbours {
                size,
                alpha,
                beta,
                bias,
            } => {
                let action = Action::Neighbours {
                    size,
                    alpha,
                    beta,
                    bias,
                };
                self.push(action, values, node);
            }
        }
        Some(())
    }

    fn convolution(
        &self,
        weights: String,
        bias: Option<String>,
        groups: usize,
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
                Weights::Held {
                    name: weights,
                    tensor: tensor.clone(),
                    factor: vec![1.0; filters],
                    shift,
                }
            }
            (held, _) => {
                if held.is_some() {
                    // Weights in the model with a bias given in a run: no tool writes that.
                    return None;
                }
                Weights::Given {
                    weights,
                    bias_held: bias.as_ref().and_then(held_of).cloned(),
                    bias,
                }
            }
        };
        Some(Convolution {
            groups,
            weights,
            bounds: Bounds::NONE,
        })
    }

    /// The step that makes a value nobody but the node at hand reads.
    fn maker_for_one(&mut self, value: Value) -> Option<&mut Step> {
        let maker = self.values.maker_for_one(value)?;
        Some(&mut self.steps[maker])
    }

    /// The bounds of what makes a value, if they can still be set.
    fn bounds_before(&mut self, value: Value) -> Option<&mut Bounds> {
        let step = self.maker_for_one(value)?;
        let bounds = match &mut step.action {
            Action::Convolve(convolution) => &mut convolution.bounds,
            Action::Scale { bounds, .. } | Action::Sum(bounds) => bounds,
            _ => return None,
        };
        (*bounds == Bounds::NONE).then_some(bounds)
    }

    fn scale(&mut self, value: Value, factor: Vec<f64>, shift: Vec<f64>, node: &NodeProto) {
        let channels = factor.len();
        if let Some(step) = self.maker_for_one(value)
            && step.inputs.len() == 1
            && drawn_in(&mut step.action, &factor, &shift)
        {
            return self.rename(value, node);
        }
        debug_assert_eq!(shift.len(), channels, "both have one for each channel");
        let narrow = |list: Vec<f64>| list.into_iter().map(|it| it as f32).collect();
        let action = Action::Scale {
            factor: narrow(factor),
            shift: narrow(shift),
            bounds: Bounds::NONE,
        };
        self.push(action, vec![value], node);
    }

    /// A sum, drawn into the later of two convolutions where it can be.
    fn sum(&mut self, values: Vec<Value>, node: &NodeProto) {
        if let &[left, right] = &values[..]
            && left != right
        {
            let (first, last) = self.values.in_order(left, right);
            if let Some(step) = self.maker_for_one(last)
                && let Action::Convolve(convolution) = &step.action
                && convolution.bounds == Bounds::NONE
                && step.inputs.len() == 1
            {
                step.inputs.push(first);
                return self.rename(last, node);
            }
        }
        self.push(Action::Sum(Bounds::NONE), values, node);
    }

    fn finish(self) -> Option<Plan> {
        Some(Plan {
            outputs: self.values.outputs(self.graph)?,
            steps: self.steps,
            values: self.values.count(),
            inputs: self.values.inputs,
            opset: self.graph.opset,
        })
    }
}

/// Draws a factor and a summand for each channel into what makes the channels, if that can be.
fn drawn_in(action: &mut Action, by: &[f64], plus: &[f64]) -> bool {
    match action {
        Action::Convolve(Convolution {
            weights: Weights::Held { factor, shift, .. },
            bounds,
            ..
        }) if *bounds == Bounds::NONE && factor.len() == by.len() => {
            for (at, factor) in factor.iter_mut().enumerate() {
                *factor *= by[at];
                shift[at] = shift[at] * by[at] + plus[at];
            }
            true
        }
        Action::Scale {
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
