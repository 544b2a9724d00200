//! What is done to sequences, in order: words drawn together where one pass over the data does for
//! several. Summands, activations and sums of two go into the product before them.

use souk_memory::Tensor;
use souk_onnx::graph::Graph;

pub(super) use super::super::values::Value;
use super::super::values::Values;
use super::heads::Attention;
use super::words::{Activation, Reader, Said, Word};

/// A graph as steps over numbered values.
#[derive(Debug)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// Values given in a run, by name.
    pub inputs: Vec<(String, Value)>,
    /// Values wanted of a run, by name.
    pub outputs: Vec<(String, Value)>,
    pub values: usize,
}

/// One pass over sequences.
#[derive(Debug)]
pub(super) struct Step {
    pub action: Action,
    pub inputs: Vec<Value>,
    pub output: Value,
}

/// What a step does.
#[derive(Debug)]
pub(super) enum Action {
    /// Its second input, if there is one, is added to the result.
    Product(Product),
    Shift(Vec<f32>),
    Sum,
    Normalise {
        scale: Vec<f32>,
        shift: Vec<f32>,
        epsilon: f32,
    },
    Activate(Activation),
    Attend(Attention),
}

/// A product and what was drawn into it.
#[derive(Debug)]
pub(super) struct Product {
    pub weights: Weights,
    pub transposed: bool,
    pub bias: Vec<f32>,
    pub activation: Activation,
}

/// Where a product's weights are: in the model, or, as they are packed now, named only.
#[derive(Debug)]
pub(super) enum Weights {
    Held { name: String, tensor: Tensor },
    Packed { name: String },
}

impl Plan {
    /// The plan of a graph of which every node has a word; `None` where one has not.
    pub fn new(graph: &Graph) -> Option<Self> {
        let reader = Reader::new(graph);
        let said = reader.said(|_| true);
        let read: usize = said.iter().map(|it| it.nodes.len()).sum();
        if read != graph.nodes().len() {
            return None;
        }
        let mut drafter = Drafter::new(graph, &said);
        for said in &said {
            drafter.add(said)?;
        }
        drafter.finish()
    }

    /// The products among the steps.
    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.steps.iter().filter_map(|step| match &step.action {
            Action::Product(product) => Some(product),
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
    fn new(graph: &'a Graph, said: &'a [Said]) -> Self {
        let read = said.iter().flat_map(|it| &it.inputs);
        Self {
            graph,
            steps: Vec::new(),
            values: Values::new(graph, read),
        }
    }

    fn add(&mut self, said: &Said) -> Option<()> {
        let named = said.inputs.iter().map(|name| self.values.named(name));
        let values: Vec<Value> = named.collect();
        let last = self.graph.nodes().get(*said.nodes.last()?)?;
        let name = last.output.first()?;
        let first = *values.first()?;
        let drawn = match &said.word {
            Word::Shift(shift) => self.shift(first, shift).then_some(first),
            Word::Activate(activation) => self.activate(first, *activation).then_some(first),
            Word::Sum => self.sum(&values),
            _ => None,
        };
        if let Some(value) = drawn {
            self.values.rename(value, name);
            return Some(());
        }
        let action = self.action(&said.word)?;
        let output = self.values.made(name, Some(self.steps.len()));
        self.steps.push(Step {
            action,
            inputs: values,
            output,
        });
        Some(())
    }

    fn action(&self, word: &Word) -> Option<Action> {
        Some(match word.clone() {
            Word::Product {
                weights,
                transposed,
                bias,
            } => {
                let tensor = self.graph.weights.get(&weights)?.clone();
                let columns = tensor.dims()[usize::from(!transposed)];
                Action::Product(Product {
                    weights: Weights::Held {
                        name: weights,
                        tensor,
                    },
                    transposed,
                    bias: bias.unwrap_or_else(|| vec![0.0; columns]),
                    activation: Activation::None,
                })
            }
            Word::Shift(shift) => Action::Shift(shift),
            Word::Sum => Action::Sum,
            Word::Normalise {
                scale,
                shift,
                epsilon,
            } => Action::Normalise {
                scale,
                shift,
                epsilon,
            },
            Word::Activate(activation) => Action::Activate(activation),
            Word::Attend(attention) => Action::Attend(attention),
        })
    }

    /// The product that makes a value nobody but the word at hand reads, if nothing comes after it.
    fn open_product(&mut self, value: Value) -> Option<(&mut Product, &mut Vec<Value>)> {
        let maker = self.values.maker_for_one(value)?;
        let Step { action, inputs, .. } = &mut self.steps[maker];
        match action {
            Action::Product(product) if product.activation == Activation::None => {
                Some((product, inputs))
            }
            _ => None,
        }
    }

    fn shift(&mut self, value: Value, shift: &[f32]) -> bool {
        let Some((product, _)) = self.open_product(value) else {
            return false;
        };
        let fits = product.bias.len() == shift.len();
        if fits {
            let pairs = product.bias.iter_mut().zip(shift);
            pairs.for_each(|(bias, shift)| *bias += shift);
        }
        fits
    }

    /// A product has one activation, and sums nothing before it.
    fn activate(&mut self, value: Value, activation: Activation) -> bool {
        let Some((product, inputs)) = self.open_product(value) else {
            return false;
        };
        let fits = inputs.len() == 1;
        if fits {
            product.activation = activation;
        }
        fits
    }

    /// Draws a sum into the later of two products; gives that one's value.
    fn sum(&mut self, values: &[Value]) -> Option<Value> {
        let &[left, right] = values else { return None };
        let (first, last) = self.values.in_order(left, right);
        let (_, inputs) = self.open_product(last)?;
        if inputs.len() > 1 || left == right {
            return None;
        }
        inputs.push(first);
        Some(last)
    }

    fn finish(self) -> Option<Plan> {
        Some(Plan {
            outputs: self.values.outputs(self.graph)?,
            steps: self.steps,
            values: self.values.count(),
            inputs: self.values.inputs,
        })
    }
}
