//! How much work an operator is: arithmetic, bytes and launches, from its shapes.
//!
//! A multiplication and an addition are two operations. Functions such as `exp` are counted with a
//! fixed price each, so that a softmax weighs more than a copy. Bytes are what must move at least:
//! each input read once, each output written once.

use std::iter::Sum;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::DType;

use crate::custom::Custom;
use crate::onnx::NodeProto;
use crate::processor::Estimate;
use crate::profile::Profile;

/// Operations an elementary function (`exp`, `tanh`, `erf`, ...) is counted as.
const FUNCTION_OPERATIONS: u64 = 8;

/// An amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Arithmetic operations.
    pub operations: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Operators launched.
    pub launches: u64,
    /// The element type most of it is in; `None` for no work.
    pub dtype: Option<DType>,
}

/// A value as the cost model sees it.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub dims: &'a [usize],
}

impl Extent<'_> {
    /// Elements; saturating.
    #[must_use]
    pub fn count(&self) -> u64 {
        product(self.dims)
    }

    /// Bytes; saturating.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.count()
            .saturating_mul(self.dtype.bits() as u64)
            .div_ceil(8)
    }
}

impl Work {
    /// The work of one node, given its inputs (in order, absent ones `None`) and outputs.
    #[must_use]
    pub fn of(node: &NodeProto, inputs: &[Option<Extent<'_>>], outputs: &[Extent<'_>]) -> Self {
        if moves_nothing(node.op_type()) {
            return Self::default();
        }
        // The kernel of a buyer's own operator is its first input, and not what it computes with.
        let kernels = usize::from(Custom::of(node).is_some());
        let dtype = inputs
            .iter()
            .skip(kernels)
            .flatten()
            .chain(outputs)
            .map(|extent| extent.dtype)
            .next();
        Self {
            operations: operations(node, inputs, outputs),
            bytes_read: bytes_read(node, inputs, outputs),
            bytes_written: outputs.iter().map(Extent::bytes).sum(),
            launches: 1,
            dtype,
        }
    }

    /// Time and energy on a device: launches, and the slower of arithmetic and memory. Arithmetic
    /// in a type the device does not compute in takes for ever.
    #[must_use]
    pub fn estimate(&self, profile: &Profile) -> Estimate {
        let rate = self
            .dtype
            .and_then(|dtype| profile.operations_per_second(dtype));
        let arithmetic = match (self.operations, rate) {
            (0, _) => 0.0,
            (operations, Some(rate)) => operations as f64 / rate,
            (_, None) => f64::INFINITY,
        };
        let bytes = self.bytes_read.saturating_add(self.bytes_written);
        let memory = bytes as f64 / profile.memory.bytes_per_second;
        let launch = profile.launch.as_secs_f64() * self.launches as f64;
        let seconds = launch + arithmetic.max(memory);
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let joules = profile
            .power
            .map(|power| power.busy_watts * time.as_secs_f64());
        Estimate { time, joules }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let heavier = if other.operations > self.operations {
            other
        } else {
            self
        };
        Self {
            operations: self.operations.saturating_add(other.operations),
            bytes_read: self.bytes_read.saturating_add(other.bytes_read),
            bytes_written: self.bytes_written.saturating_add(other.bytes_written),
            launches: self.launches.saturating_add(other.launches),
            dtype: heavier.dtype.or(self.dtype).or(other.dtype),
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), Self::add)
    }
}

/// Whether an operator computes, rather than only moving what is there.
pub(crate) fn computes(operator: &str) -> bool {
    !moves_nothing(operator) && !is_move(operator)
}

/// Whether an operator only renames what is there.
fn moves_nothing(operator: &str) -> bool {
    const FREE: [&str; 9] = [
        "Constant",
        "Dropout",
        "Flatten",
        "Identity",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "Unsqueeze",
    ];
    FREE.contains(&operator)
}

/// Bytes an operator reads: a gather touches only what it takes.
fn bytes_read(node: &NodeProto, inputs: &[Option<Extent<'_>>], outputs: &[Extent<'_>]) -> u64 {
    let read = |extents: &[Option<Extent<'_>>]| -> u64 {
        extents
            .iter()
            .flatten()
            .map(Extent::bytes)
            .fold(0, u64::saturating_add)
    };
    match node.op_type() {
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Split" => {
            let taken: u64 = outputs.iter().map(Extent::bytes).sum();
            taken.saturating_add(read(inputs.get(1..).unwrap_or(&[])))
        }
        _ => read(inputs),
    }
}

fn operations(node: &NodeProto, inputs: &[Option<Extent<'_>>], outputs: &[Extent<'_>]) -> u64 {
    let elements: u64 = outputs
        .iter()
        .map(Extent::count)
        .fold(0, u64::saturating_add);
    let input = |index: usize| {
        inputs
            .get(index)
            .copied()
            .flatten()
            .map_or(&[][..], |it| it.dims)
    };
    let input_elements = inputs
        .first()
        .copied()
        .flatten()
        .map_or(0, |extent| extent.count());
    match node.op_type() {
        "MatMul" | "MatMulInteger" | "QLinearMatMul" => {
            let depth = input(0).last().copied().unwrap_or(1) as u64;
            elements.saturating_mul(2 * depth)
        }
        "Gemm" => {
            let axis = usize::from(node.int("transA").unwrap_or(0) == 0);
            let depth = input(0).get(axis).copied().unwrap_or(1) as u64;
            elements.saturating_mul(2 * depth + 2)
        }
        "Conv" | "ConvInteger" => elements.saturating_mul(2 * taps(input(1))),
        "QLinearConv" => elements.saturating_mul(2 * taps(input(3))),
        "ConvTranspose" => input_elements.saturating_mul(2 * taps(input(1))),
        "AveragePool" | "MaxPool" | "LpPool" => {
            let window = node.ints("kernel_shape").unwrap_or(&[]).iter();
            let window = window.fold(1, |taps: u64, &size| {
                taps.saturating_mul(size.max(1) as u64)
            });
            elements.saturating_mul(window)
        }
        "Attention" | "MultiHeadAttention" | "GroupQueryAttention" => {
            attention(input(0), input(1), elements)
        }
        "LSTM" | "GRU" | "RNN" => recurrent(input(0), input(1), input(2)),
        "Softmax" | "LogSoftmax" => elements.saturating_mul(FUNCTION_OPERATIONS + 3),
        "BatchNormalization" => elements.saturating_mul(2),
        "GroupNormalization"
        | "InstanceNormalization"
        | "LayerNormalization"
        | "RMSNormalization"
        | "LpNormalization" => input_elements.saturating_mul(8),
        name if is_function(name) => elements.saturating_mul(FUNCTION_OPERATIONS),
        name if is_move(name) => 0,
        name if name.starts_with("Reduce") || name.starts_with("Arg") || name.contains("Pool") => {
            input_elements
        }
        _ => elements.max(input_elements),
    }
}

/// Multiplications for each output element of a convolution: the weights of one output channel.
fn taps(weights: &[usize]) -> u64 {
    product(weights.get(1..).unwrap_or(&[]))
}

/// Scores and weighted values: two products of query length by key length by width each.
fn attention(query: &[usize], key: &[usize], elements: u64) -> u64 {
    let keys = key
        .iter()
        .rev()
        .nth(1)
        .or(query.iter().rev().nth(1))
        .copied()
        .unwrap_or(1) as u64;
    elements.saturating_mul(4).saturating_mul(keys)
}

/// Products with input weights and recurrent weights for each step and sample.
fn recurrent(input: &[usize], weights: &[usize], recurrent: &[usize]) -> u64 {
    let steps = product(input.get(..2).unwrap_or(&[]));
    let parameters = product(weights).saturating_add(product(recurrent));
    steps.saturating_mul(2).saturating_mul(parameters)
}

fn is_function(operator: &str) -> bool {
    const FUNCTIONS: [&str; 25] = [
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf",
        "Exp", "Gelu", "Log", "Mish", "Pow", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Sqrt",
        "Swish", "Tan", "Tanh",
    ];
    FUNCTIONS.contains(&operator)
}

fn is_move(operator: &str) -> bool {
    const MOVES: [&str; 18] = [
        "Cast",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Gather",
        "GatherElements",
        "GatherND",
        "Pad",
        "Range",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Tile",
        "Transpose",
        "Trilu",
        "Where",
    ];
    MOVES.contains(&operator)
}

fn product(dims: &[usize]) -> u64 {
    dims.iter()
        .fold(1, |count, &size| count.saturating_mul(size as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(operator: &str) -> NodeProto {
        NodeProto {
            op_type: Some(operator.to_owned()),
            ..NodeProto::default()
        }
    }

    fn floats(dims: &[usize]) -> Extent<'_> {
        Extent {
            dtype: DType::F32,
            dims,
        }
    }

    #[test]
    fn a_matrix_product_is_twice_its_three_sides() {
        let work = Work::of(
            &node("MatMul"),
            &[Some(floats(&[4, 8])), Some(floats(&[8, 16]))],
            &[floats(&[4, 16])],
        );
        assert_eq!(work.operations, 2 * 4 * 8 * 16);
        assert_eq!(work.bytes_read, 4 * (4 * 8 + 8 * 16));
        assert_eq!(work.bytes_written, 4 * 4 * 16);
    }

    #[test]
    fn a_convolution_is_its_taps_at_every_output() {
        let work = Work::of(
            &node("Conv"),
            &[Some(floats(&[1, 3, 8, 8])), Some(floats(&[16, 3, 3, 3]))],
            &[floats(&[1, 16, 6, 6])],
        );
        assert_eq!(work.operations, 2 * (16 * 6 * 6) * (3 * 3 * 3));
    }

    #[test]
    fn a_reshape_is_free_and_a_gather_reads_what_it_takes() {
        assert_eq!(
            Work::of(&node("Reshape"), &[Some(floats(&[9]))], &[floats(&[3, 3])]),
            Work::default()
        );
        let ids = Extent {
            dtype: DType::I64,
            dims: &[2],
        };
        let work = Work::of(
            &node("Gather"),
            &[Some(floats(&[30000, 4])), Some(ids)],
            &[floats(&[2, 4])],
        );
        assert_eq!(work.bytes_read, 2 * 4 * 4 + 2 * 8);
    }
}
