//! Turns a graph over sequences into the list of steps that the sequence engine runs. It fuses
//! patterns where one pass over the data computes several: summands, activations and sums of two
//! become part of the product before them.

use std::sync::Arc;

use souk_host::isa::Isa;
use souk_memory::Tensor;
use souk_onnx::graph::Graph;

use super::patterns::heads::Attention;
use super::patterns::{Activation, PatternMatch, SequenceMatcher, SequencePattern};
use crate::tiled::packed_weights::{PackLayout, PackedWeights};
use crate::tiled::panels::{PackedMatrix, Panel, by_column, split_panels};
use crate::tiled::plan::{Drafter, Plan, Step};
use crate::tiled::values::Value;

/// A graph over sequences as steps.
pub(super) type SequencePlan = Plan<SequenceAction>;

/// The operation of a step.
#[derive(Debug)]
pub(super) enum SequenceAction {
    /// A product, which adds its second input, if any, to the result.
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

/// A product and the operations fused into it.
#[derive(Debug)]
pub(super) struct Product {
    pub weights: ProductWeights,
    pub transposed: bool,
    pub bias: Vec<f32>,
    pub activation: Activation,
}

/// The weights of a product: in the model, or only their name once they are packed.
#[derive(Debug)]
pub(super) enum ProductWeights {
    Held { name: String, tensor: Tensor },
    Packed { name: String },
}

/// The weights of a product as its tiles read them.
#[derive(Debug)]
pub(super) struct PackedProduct {
    /// Shared by all products with these weights.
    pub matrix: Arc<PackedMatrix>,
    pub columns: usize,
    /// One for each column of every panel.
    pub bias: Vec<f32>,
    /// Ones, as many as the widest panel has columns.
    pub ones: Vec<f32>,
}

impl PackedProduct {
    /// Packs a matrix of `depth` rows, or, `transposed`, of as many columns; where `packs` has it,
    /// it is shared.
    pub fn new(isa: Isa, product: &Product, packs: &mut PackedWeights) -> Option<Self> {
        let ProductWeights::Held { name, tensor } = &product.weights else {
            return None;
        };
        let &[rows, columns] = tensor.dims() else {
            return None;
        };
        let ([depth, columns], layout) = match product.transposed {
            true => ([columns, rows], PackLayout::Transposed),
            false => ([rows, columns], PackLayout::Matrix),
        };
        let values = tensor.elements::<f32>().ok()?;
        let fill = |panel: &Panel, row: usize, to: &mut [f32]| {
            if product.transposed {
                for (column, to) in to.iter_mut().enumerate() {
                    *to = values[(panel.start + column) * depth + row];
                }
            } else {
                let from = row * columns + panel.start;
                to.copy_from_slice(&values[from..from + to.len()]);
            }
        };
        let pack = || PackedMatrix::new(isa, split_panels(isa, columns), depth, fill);
        let matrix = packs.for_weight(name).get_or_pack(layout, pack);
        Some(Self {
            bias: by_column(isa, &matrix.panels, |column| product.bias[column]),
            matrix,
            columns,
            ones: vec![1.0; isa.tile_vectors_max() * isa.vector_width()],
        })
    }

    /// Returns the matrix in the layout of the model.
    pub fn unpack_matrix(&self, isa: Isa, transposed: bool) -> Vec<f32> {
        let (depth, columns) = (self.matrix.depth, self.columns);
        let mut values = vec![0.0; depth * columns];
        self.matrix.for_each_weight(isa, |row, column, weight| {
            let place = match transposed {
                true => column * depth + row,
                false => row * columns + column,
            };
            values[place] = weight;
        });
        values
    }
}

impl SequencePlan {
    /// The plan of a graph of which every node is part of a pattern; `None` where one has not.
    pub fn new(graph: &Graph) -> Option<Self> {
        let matches = SequenceMatcher::new(graph).find_matches(|_| true);
        let read: usize = matches.iter().map(|it| it.nodes.len()).sum();
        if read != graph.nodes().len() {
            return None;
        }
        let names = matches.iter().flat_map(|it| &it.inputs);
        let mut drafter = Drafter::new(graph, names);
        for found in &matches {
            drafter.add(found)?;
        }
        drafter.into_plan()
    }

    /// The products among the steps.
    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.steps.iter().filter_map(|step| match &step.action {
            SequenceAction::Product(product) => Some(product),
            _ => None,
        })
    }
}

impl Drafter<'_, SequenceAction> {
    fn add(&mut self, found: &PatternMatch) -> Option<()> {
        let named = found
            .inputs
            .iter()
            .map(|name| self.values.value_by_name(name));
        let values: Vec<Value> = named.collect();
        let last = self.graph.nodes().get(*found.nodes.last()?)?;
        let name = last.output.first()?;
        let first = *values.first()?;
        let drawn = match &found.pattern {
            SequencePattern::Shift(shift) => self.fuse_shift(first, shift).then_some(first),
            SequencePattern::Activate(activation) => {
                self.fuse_activation(first, *activation).then_some(first)
            }
            SequencePattern::Sum => self.sum(&values),
            _ => None,
        };
        if let Some(value) = drawn {
            self.values.rename_value(value, name);
            return Some(());
        }
        let action = self.build_action(&found.pattern)?;
        self.push(action, values, name);
        Some(())
    }

    fn build_action(&self, pattern: &SequencePattern) -> Option<SequenceAction> {
        Some(match pattern.clone() {
            SequencePattern::Product {
                weights,
                transposed,
                bias,
            } => {
                let tensor = self.graph.weights.get(&weights)?.clone();
                let columns = tensor.dims()[usize::from(!transposed)];
                SequenceAction::Product(Product {
                    weights: ProductWeights::Held {
                        name: weights,
                        tensor,
                    },
                    transposed,
                    bias: bias.unwrap_or_else(|| vec![0.0; columns]),
                    activation: Activation::None,
                })
            }
            SequencePattern::Shift(shift) => SequenceAction::Shift(shift),
            SequencePattern::Sum => SequenceAction::Sum,
            SequencePattern::Normalise {
                scale,
                shift,
                epsilon,
            } => SequenceAction::Normalise {
                scale,
                shift,
                epsilon,
            },
            SequencePattern::Activate(activation) => SequenceAction::Activate(activation),
            SequencePattern::Attend(attention) => SequenceAction::Attend(attention),
        })
    }

    /// Returns the product that makes a value, if only the current pattern reads the value and
    /// nothing follows the product yet.
    fn open_product(&mut self, value: Value) -> Option<(&mut Product, &mut Vec<Value>)> {
        let Step { action, inputs, .. } = self.maker_for_one(value)?;
        match action {
            SequenceAction::Product(product) if product.activation == Activation::None => {
                Some((product, inputs))
            }
            _ => None,
        }
    }

    fn fuse_shift(&mut self, value: Value, shift: &[f32]) -> bool {
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

    /// Fuses an activation into a product. A product has one activation, and sums nothing before
    /// it.
    fn fuse_activation(&mut self, value: Value, activation: Activation) -> bool {
        let Some((product, inputs)) = self.open_product(value) else {
            return false;
        };
        let fits = inputs.len() == 1;
        if fits {
            product.activation = activation;
        }
        fits
    }

    /// Fuses a sum into the later of two products; returns that product's value.
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
}
