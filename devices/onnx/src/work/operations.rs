//! Counts an operator's arithmetic operations from its shapes, with one rule for each kind.
//!
//! If values determine the count instead of shapes (for example, how many boxes overlap, or how far
//! a search goes), the count covers only the operations that every run does. An operator without a
//! rule counts as one operation per element.

use super::{Extent, FUNCTION_OPERATIONS, is_move, saturating_product};
use crate::NodeProto;

/// Operations of a linear interpolation between two values.
const BLEND_OPERATIONS: u64 = 2;
/// Operations of the overlap of two boxes: eight corners compared, two areas, one quotient.
const OVERLAP_OPERATIONS: u64 = 12;
/// Samples along each axis of a bin of `RoiAlign`, if the node lets the box determine them.
const BIN_SAMPLES: u64 = 2;

/// A node with the shapes of its values.
pub(super) struct Shapes<'a> {
    pub node: &'a NodeProto,
    pub inputs: &'a [Option<Extent<'a>>],
    pub outputs: &'a [Extent<'a>],
}

impl<'a> Shapes<'a> {
    /// Returns the operations of the node.
    pub fn count_operations(&self) -> u64 {
        let rules = [
            Self::count_products,
            Self::count_convolutions,
            Self::count_sequences,
            Self::count_windows,
            Self::count_interpolation,
            Self::count_sorting,
            Self::count_transforms,
            Self::count_normalisation,
            Self::count_reduction,
            Self::count_generation,
            Self::count_trees,
        ];
        let found = rules.iter().find_map(|rule| rule(self));
        found.unwrap_or_else(|| self.element_wise())
    }

    fn input_dims(&self, index: usize) -> &'a [usize] {
        let extent = self.inputs.get(index).copied().flatten();
        extent.map_or(&[][..], |extent| extent.dims)
    }

    /// Returns the elements of an input; 0 if it is absent.
    fn input_count(&self, index: usize) -> u64 {
        let extent = self.inputs.get(index).copied().flatten();
        extent.map_or(0, |extent| extent.element_count())
    }

    /// Returns the elements of the first output.
    fn output_count(&self) -> u64 {
        self.outputs.first().map_or(0, Extent::element_count)
    }

    /// Returns the elements of all outputs.
    fn all_made(&self) -> u64 {
        let counts = self.outputs.iter().map(Extent::element_count);
        counts.fold(0, u64::saturating_add)
    }

    /// Returns a size of an input, counted from the last axis; 1 if it has no such axis.
    fn last_size(&self, index: usize, back: usize) -> u64 {
        size_from_end(self.input_dims(index), back)
    }

    /// Returns the rows of `length` complex numbers in the first output.
    fn rows_of(&self, length: u64) -> u64 {
        let rows = self.output_count() / 2 / length.max(1);
        rows.max(u64::from(self.output_count() > 0))
    }

    fn is_set(&self, attribute: &str) -> bool {
        self.node.int(attribute).unwrap_or(0) != 0
    }

    fn count_products(&self) -> Option<u64> {
        let depth = match self.node.op_type() {
            "MatMul" | "MatMulInteger" | "QLinearMatMul" | "RoutedMatMul" => self.last_size(0, 0),
            "Gemm" => self
                .last_size(0, usize::from(self.is_set("transA")))
                .saturating_add(u64::from(self.input_count(2) > 0)),
            "Einsum" => return Some(self.count_einsum()),
            // An elimination: each column from all rows below it.
            "Det" => return Some(self.cube_operations(2) / 3),
            "Inverse" => return Some(self.cube_operations(2)),
            _ => return None,
        };
        Some(saturating_multiply(&[2, self.output_count(), depth]))
    }

    /// Returns `factor` times the cube of the side of each matrix in the first input.
    fn cube_operations(&self, factor: u64) -> u64 {
        saturating_multiply(&[factor, self.input_count(0), self.last_size(0, 0)])
    }

    /// Returns twice the product of all sizes in the equation, including those of an ellipsis.
    fn count_einsum(&self) -> u64 {
        let equation = self.node.string("equation").unwrap_or("");
        let equation: String = equation.chars().filter(|it| !it.is_whitespace()).collect();
        let terms = equation.split("->").next().unwrap_or("");
        let mut named = std::collections::BTreeMap::new();
        let mut rest: Vec<usize> = Vec::new();
        for (index, term) in terms.split(',').enumerate() {
            let dims = self.input_dims(index);
            let (front, back) = term.split_once("...").unwrap_or((term, ""));
            let (first, last) = (front.chars().count(), back.chars().count());
            let Some(middle) = dims.len().checked_sub(first + last) else {
                continue;
            };
            let between = &dims[first..first + middle];
            let ends = dims[..first].iter().chain(&dims[first + middle..]);
            for (letter, &size) in front.chars().chain(back.chars()).zip(ends) {
                let known = named.entry(letter).or_insert(size);
                *known = size.max(*known);
            }
            rest.resize(rest.len().max(middle), 1);
            for (known, &size) in rest.iter_mut().rev().zip(between.iter().rev()) {
                *known = size.max(*known);
            }
        }
        let sizes = named.into_values().chain(rest);
        sizes.fold(2, |count: u64, size| count.saturating_mul(size as u64))
    }

    fn count_convolutions(&self) -> Option<u64> {
        let taps =
            |index: usize| saturating_product(self.input_dims(index).get(1..).unwrap_or(&[]));
        Some(match self.node.op_type() {
            "Conv" | "ConvInteger" | "CausalConvWithState" => {
                saturating_multiply(&[2, self.output_count(), taps(1)])
            }
            "QLinearConv" => saturating_multiply(&[2, self.output_count(), taps(3)]),
            "ConvTranspose" => saturating_multiply(&[2, self.input_count(0), taps(1)]),
            "DeformConv" => {
                // Each sampled position has two offsets, which the channels of a group share.
                let groups = self
                    .node
                    .int("offset_group")
                    .unwrap_or(1)
                    .max(1)
                    .unsigned_abs();
                let channels = self.input_dims(0).get(1).copied().unwrap_or(1) as u64;
                let sampled = saturating_multiply(&[self.input_count(2) / 2 / groups, channels]);
                let sampling = saturating_multiply(&[sampled, BLEND_OPERATIONS << 2]);
                saturating_multiply(&[2, self.output_count(), taps(1)]).saturating_add(sampling)
            }
            _ => return None,
        })
    }

    fn count_sequences(&self) -> Option<u64> {
        Some(match self.node.op_type() {
            "Attention" | "FlexAttention" => self.count_attention(self.past_keys(4)),
            "LinearAttention" => self.linear_attention(),
            "LSTM" | "GRU" | "RNN" => {
                // Each step and sample is multiplied by the input weights and the recurrent
                // weights.
                let steps = saturating_product(self.input_dims(0).get(..2).unwrap_or(&[]));
                let parameters = self.input_count(1).saturating_add(self.input_count(2));
                saturating_multiply(&[2, steps, parameters])
            }
            "RotaryEmbedding" => saturating_multiply(&[3, self.output_count()]),
            _ => return None,
        })
    }

    /// Returns the number of past keys: `[batch, heads, keys, width]`.
    fn past_keys(&self, index: usize) -> u64 {
        self.input_dims(index).get(2).copied().unwrap_or(0) as u64
    }

    /// Counts queries times keys, weights times values, and a softmax of each score.
    fn count_attention(&self, past: u64) -> u64 {
        let own = match self.input_dims(1) {
            [] => self.last_size(0, 1),
            _ => self.last_size(1, 1),
        };
        let keys = own.saturating_add(past);
        let heads = self.node.int("q_num_heads").or(self.node.int("num_heads"));
        let rows = match self.input_dims(0) {
            [batch, heads, length, _] => saturating_product(&[*batch, *heads, *length]),
            dims => saturating_multiply(&[
                saturating_product(dims.get(..2).unwrap_or(&[])),
                heads.unwrap_or(1).unsigned_abs(),
            ]),
        };
        let products = saturating_multiply(&[
            2,
            keys,
            self.input_count(0).saturating_add(self.output_count()),
        ]);
        products.saturating_add(saturating_multiply(&[rows, keys, FUNCTION_OPERATIONS + 3]))
    }

    /// Counts linear attention. For each step and head, the query reads a matrix of key width by
    /// value width, and an outer product updates it; a delta rule first reads it by the key.
    fn linear_attention(&self) -> u64 {
        let heads = |name| self.node.int(name).unwrap_or(1).max(1).unsigned_abs();
        let (query, own) = (heads("q_num_heads"), heads("kv_num_heads"));
        let steps = saturating_product(self.input_dims(0).get(..2).unwrap_or(&[]));
        let state = saturating_multiply(&[self.last_size(1, 0) / own, self.last_size(2, 0) / own]);
        let rule = self.node.string("update_rule").unwrap_or("gated_delta");
        let update = match rule {
            "linear" => 2,
            "gated" => 3,
            "delta" => 4,
            _ => 5,
        };
        let reads = own
            .saturating_mul(update)
            .saturating_add(query.saturating_mul(2));
        saturating_multiply(&[steps, state, reads])
    }

    fn count_windows(&self) -> Option<u64> {
        Some(match self.node.op_type() {
            "AveragePool" | "MaxPool" | "LpPool" => {
                let sizes = self.node.ints("kernel_shape").unwrap_or(&[]).iter();
                let taps = |taps: u64, &size: &i64| taps.saturating_mul(size.max(1) as u64);
                saturating_multiply(&[self.output_count(), sizes.fold(1, taps)])
            }
            "LRN" => {
                let window = self.node.int("size").unwrap_or(1).max(1).unsigned_abs();
                let each = window.saturating_mul(2).saturating_add(FUNCTION_OPERATIONS);
                saturating_multiply(&[self.output_count(), each])
            }
            // It adds overlapping columns.
            "Col2Im" => self.input_count(0),
            _ => return None,
        })
    }

    /// Counts operators that interpolate between the pixels of an image.
    fn count_interpolation(&self) -> Option<u64> {
        let mode = self.node.string("mode");
        let taps = |axes: u32| match mode.unwrap_or("linear") {
            "nearest" => 0,
            "cubic" | "bicubic" => 4_u64.saturating_pow(axes),
            _ => 2_u64.saturating_pow(axes),
        };
        Some(match self.node.op_type() {
            "GridSample" => {
                let axes = self.input_dims(0).len().saturating_sub(2) as u32;
                let places = self.input_count(1);
                saturating_multiply(&[self.output_count(), BLEND_OPERATIONS, taps(axes)])
                    .saturating_add(saturating_multiply(&[2, places]))
            }
            "Resize" | "Upsample" => {
                let made = self.outputs.first().map_or(&[][..], |extent| extent.dims);
                let resized = self
                    .input_dims(0)
                    .iter()
                    .zip(made)
                    .filter(|(from, to)| from != to);
                let axes = resized.count() as u32;
                match mode {
                    None | Some("nearest") => 0,
                    Some(_) => {
                        saturating_multiply(&[self.output_count(), BLEND_OPERATIONS, taps(axes)])
                    }
                }
            }
            "RoiAlign" => {
                let stated = self.node.int("sampling_ratio").unwrap_or(0).max(0) as u64;
                let samples = if stated == 0 { BIN_SAMPLES } else { stated };
                saturating_multiply(&[self.output_count(), samples, samples, BLEND_OPERATIONS << 2])
            }
            "AffineGrid" => saturating_multiply(&[2, self.output_count(), self.last_size(0, 0)]),
            _ => return None,
        })
    }

    /// Counts operators that compare and sort: n log n.
    fn count_sorting(&self) -> Option<u64> {
        Some(match self.node.op_type() {
            "TopK" => {
                let axis = self.node.int("axis").unwrap_or(-1);
                saturating_multiply(&[
                    self.input_count(0),
                    ceil_log2(axis_size(self.input_dims(0), axis)),
                ])
            }
            // It draws from the likeliest in order.
            "Sample" => {
                saturating_multiply(&[self.input_count(0), ceil_log2(self.last_size(0, 0))])
            }
            "Unique" => {
                let sorted = match self.node.int("axis") {
                    Some(axis) => axis_size(self.input_dims(0), axis),
                    None => self.input_count(0),
                };
                saturating_multiply(&[self.input_count(0), ceil_log2(sorted)])
            }
            "NonMaxSuppression" => {
                let boxes = self.last_size(1, 0);
                let sorting = saturating_multiply(&[self.input_count(1), ceil_log2(boxes)]);
                let kept = self.output_count() / 3;
                sorting.saturating_add(saturating_multiply(&[kept, boxes, OVERLAP_OPERATIONS]))
            }
            "Multinomial" => {
                let classes = self.last_size(0, 0);
                let picked = saturating_multiply(&[self.output_count(), ceil_log2(classes)]);
                saturating_multiply(&[self.input_count(0), FUNCTION_OPERATIONS])
                    .saturating_add(picked)
            }
            _ => return None,
        })
    }

    /// Counts fast Fourier transforms: 5 n log n for n complex numbers.
    fn count_transforms(&self) -> Option<u64> {
        let made = self.outputs.first().map_or(&[][..], |extent| extent.dims);
        Some(match self.node.op_type() {
            "DFT" => {
                let stated = self.node.int("axis");
                let axis = stated.unwrap_or(if self.inputs.len() > 2 { 1 } else { -2 });
                let length = axis_size(self.input_dims(0), axis).max(axis_size(made, axis));
                let transforms = self.rows_of(axis_size(made, axis));
                saturating_multiply(&[5, transforms, length, ceil_log2(length)])
            }
            "STFT" => {
                let bins = size_from_end(made, 1);
                let length = match self.input_dims(2) {
                    [length] => *length as u64,
                    _ if self.node.int("onesided") == Some(0) => bins,
                    _ => saturating_multiply(&[2, bins.saturating_sub(1)]),
                };
                let frames = self.rows_of(bins);
                let windowed = saturating_multiply(&[frames, length]);
                windowed.saturating_add(saturating_multiply(&[
                    5,
                    frames,
                    length,
                    ceil_log2(length),
                ]))
            }
            _ => return None,
        })
    }

    fn count_normalisation(&self) -> Option<u64> {
        let each = match self.node.op_type() {
            "Softmax" | "LogSoftmax" => FUNCTION_OPERATIONS + 3,
            "SoftmaxCrossEntropyLoss" => FUNCTION_OPERATIONS + 4,
            "BatchNormalization" if self.is_set("training_mode") => 7,
            "BatchNormalization" | "Hardmax" => 2,
            "GroupNormalization"
            | "InstanceNormalization"
            | "LayerNormalization"
            | "RMSNormalization"
            | "LpNormalization"
            | "MeanVarianceNormalization" => 8,
            _ => return None,
        };
        Some(saturating_multiply(&[each, self.input_count(0)]))
    }

    fn count_reduction(&self) -> Option<u64> {
        let each = match self.node.op_type() {
            "ReduceL1" | "ReduceL2" | "ReduceSumSquare" => 2,
            "ReduceLogSumExp" => FUNCTION_OPERATIONS + 3,
            "GlobalLpPool" => 1 + FUNCTION_OPERATIONS,
            // It finds the least and greatest, then scales, rounds and clamps.
            "DynamicQuantizeLinear" => 6,
            "NonZero" | "Compress" | "MaxRoiPool" => 1,
            "NegativeLogLikelihoodLoss" => {
                return Some(saturating_multiply(&[2, self.input_count(1)]));
            }
            name if name.starts_with("Reduce")
                || name.starts_with("Arg")
                || name.starts_with("Global") =>
            {
                1
            }
            _ => return None,
        };
        Some(saturating_multiply(&[each, self.input_count(0)]))
    }

    /// Counts trees: a comparison and a load per level, with the depth of a balanced tree of the
    /// same number of leaves.
    fn count_trees(&self) -> Option<u64> {
        let length = |name: &str| self.node.ints(name).map_or(0, <[i64]>::len) as u64;
        let (roots, leaves) = match self.node.op_type() {
            "TreeEnsemble" => (length("tree_roots"), length("leaf_targetids")),
            "TreeEnsembleRegressor" => {
                let trees = self.node.ints("nodes_treeids").unwrap_or_default();
                let changes = trees.windows(2).filter(|pair| pair[0] != pair[1]).count();
                (changes as u64 + 1, length("target_ids"))
            }
            _ => return None,
        };
        let depth = ceil_log2(leaves / roots.max(1));
        Some(saturating_multiply(&[
            2,
            self.last_size(0, 1),
            roots,
            depth,
        ]))
    }

    /// Counts operators that generate values.
    fn count_generation(&self) -> Option<u64> {
        let each = match self.node.op_type() {
            "RandomNormal" | "RandomNormalLike" | "HannWindow" | "HammingWindow" => {
                FUNCTION_OPERATIONS + 2
            }
            "BlackmanWindow" => 2 * FUNCTION_OPERATIONS + 4,
            "RandomUniform" | "RandomUniformLike" | "Bernoulli" | "Dropout" => 4,
            "MelWeightMatrix" => 4,
            _ => return None,
        };
        Some(saturating_multiply(&[each, self.output_count()]))
    }

    fn element_wise(&self) -> u64 {
        let name = self.node.op_type();
        let named = self.inputs.iter().flatten().count() as u64;
        let each = match name {
            name if is_move(name) => return 0,
            name if is_function(name) => FUNCTION_OPERATIONS,
            "SwiGLU" => FUNCTION_OPERATIONS + 2,
            "Sum" | "Max" | "Min" => named.saturating_sub(1).max(1),
            "Mean" => named.max(1),
            "Clip" | "DequantizeLinear" | "LeakyRelu" | "PRelu" | "Shrink" | "ThresholdedRelu" => 2,
            "HardSigmoid" | "QuantizeLinear" | "Softsign" => 3,
            "HardSwish" => 5,
            _ => return self.all_made().max(self.input_count(0)),
        };
        saturating_multiply(&[each, self.output_count()])
    }
}

fn is_function(operator: &str) -> bool {
    const FUNCTIONS: [&str; 25] = [
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf",
        "Exp", "Gelu", "Log", "Mish", "Pow", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Sqrt",
        "Swish", "Tan", "Tanh",
    ];
    FUNCTIONS.contains(&operator)
}

/// Multiplies; saturates at the largest number.
fn saturating_multiply(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |count: u64, &factor| count.saturating_mul(factor))
}

/// Returns the steps of a binary search among `count`, at least 1.
fn ceil_log2(count: u64) -> u64 {
    u64::from(u64::BITS - (count.max(2) - 1).leading_zeros())
}

/// Returns the size along an axis, which can be counted from the last; 1 if there is none.
fn axis_size(dims: &[usize], axis: i64) -> u64 {
    let rank = dims.len() as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    let size = usize::try_from(axis).ok().and_then(|axis| dims.get(axis));
    size.map_or(1, |&size| size as u64)
}

fn size_from_end(dims: &[usize], back: usize) -> u64 {
    dims.iter().rev().nth(back).map_or(1, |&size| size as u64)
}
