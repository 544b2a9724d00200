//! Computes the work of an operator, in arithmetic operations, bytes and launches, from its shapes.
//! The planner and the devices estimate times and energy from it. A multiplication and an addition
//! are two operations. Functions such as `exp` count as a fixed number of operations each, because
//! a softmax should weigh more than a copy. Bytes are the least that must move: each input read
//! once, each output written once. The work of a node with bodies is that of its bodies, times
//! their runs.

mod operations;

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};
use souk_memory::DType;

use crate::NodeProto;
use crate::custom::Custom;
use operations::Shapes;

/// The operations that an elementary function (`exp`, `tanh`, `erf`, ...) counts as.
const FUNCTION_OPERATIONS: u64 = 8;
/// From this number on, the stated rounds of a loop are only an upper bound that the model does not
/// intend to reach.
const ROUNDS_MAX: u64 = 1 << 24;

/// An amount of work: arithmetic operations, bytes to move, and operators to launch (start).
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
    /// The element type of most of the work; `None` for no work.
    pub dtype: Option<DType>,
}

/// The properties of a value on which the cost model depends: its element type and its shape.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// Element type.
    pub dtype: DType,
    /// Size of each axis.
    pub dims: &'a [usize],
}

impl Extent<'_> {
    /// Returns the number of elements; saturates.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        saturating_product(self.dims)
    }

    /// Returns the number of bytes; saturates.
    #[must_use]
    pub fn byte_count(&self) -> u64 {
        self.element_count()
            .saturating_mul(self.dtype.bit_width() as u64)
            .div_ceil(8)
    }
}

impl Work {
    /// Returns the work of one node, given its inputs (in order, absent ones `None`) and outputs.
    /// For a node with bodies this is only its launch: see [`Work::for_bodies`].
    #[must_use]
    pub fn for_node(
        node: &NodeProto,
        inputs: &[Option<Extent<'_>>],
        outputs: &[Extent<'_>],
    ) -> Self {
        if has_bodies(node) {
            return Self {
                launches: 1,
                ..Self::default()
            };
        }
        if moves_nothing(node) {
            return Self::default();
        }
        // The kernel of a buyer's own operator is its first input, not data that it computes with.
        let kernels = usize::from(Custom::from_node(node).is_some());
        let dtype = inputs
            .iter()
            .skip(kernels)
            .flatten()
            .chain(outputs)
            .map(|extent| extent.dtype)
            .next();
        Self {
            operations: Shapes {
                node,
                inputs,
                outputs,
            }
            .count_operations(),
            bytes_read: bytes_read(node, inputs, outputs),
            bytes_written: outputs.iter().map(Extent::byte_count).sum(),
            launches: 1,
            dtype,
        }
    }

    /// Returns the work within a node with bodies, given one run of each body: that of the costlier
    /// branch of an `If`; else that of the body times its runs. These are the length of a `Scan`,
    /// or `rounds` of a `Loop`, and 1 if unknown.
    #[must_use]
    pub fn for_bodies(
        node: &NodeProto,
        inputs: &[Option<Extent<'_>>],
        rounds: Option<u64>,
        bodies: &[Self],
    ) -> Self {
        let amount = |work: &&Self| {
            let bytes = work.bytes_read.saturating_add(work.bytes_written);
            (work.operations, bytes)
        };
        let body = bodies.iter().max_by_key(amount).copied();
        let times = Self::max_rounds(node, inputs, rounds).unwrap_or(1);
        body.unwrap_or_default().scale_by(times)
    }

    /// Returns the most runs of the body of a `Loop` with this many stated rounds, or of a `Scan`;
    /// 1 for any other node, and `None` if only a run determines the number.
    #[must_use]
    pub fn max_rounds(
        node: &NodeProto,
        inputs: &[Option<Extent<'_>>],
        stated: Option<u64>,
    ) -> Option<u64> {
        match node.op_type() {
            "Loop" => stated.filter(|&rounds| rounds < ROUNDS_MAX),
            "Scan" => scan_length(node, inputs),
            _ => Some(1),
        }
    }

    fn scale_by(self, count: u64) -> Self {
        Self {
            operations: self.operations.saturating_mul(count),
            bytes_read: self.bytes_read.saturating_mul(count),
            bytes_written: self.bytes_written.saturating_mul(count),
            launches: self.launches.saturating_mul(count),
            dtype: self.dtype,
        }
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

/// Returns whether an operator computes, rather than only moves elements.
#[must_use]
pub fn is_computation(operator: &str) -> bool {
    !is_view(operator) && !is_move(operator)
}

/// Returns whether a node runs graphs of its own.
#[must_use]
pub fn has_bodies(node: &NodeProto) -> bool {
    matches!(node.op_type(), "If" | "Loop" | "Scan") && node.operator_domain().is_empty()
}

/// Returns the elements that a `Scan` iterates over: those of its first sequence.
fn scan_length(node: &NodeProto, inputs: &[Option<Extent<'_>>]) -> Option<u64> {
    let sequences = usize::try_from(node.int("num_scan_inputs")?).ok()?;
    let first = (*inputs.get(inputs.len().checked_sub(sequences)?)?)?;
    let axes = node.ints("scan_input_axes").unwrap_or(&[]);
    let axis = axes.first().copied().unwrap_or(0);
    let rank = i64::try_from(first.dims.len()).ok()?;
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
    first.dims.get(axis).map(|&length| length as u64)
}

/// Returns whether a node only renames values; a dropout in training mode does not, because it
/// makes a mask.
fn moves_nothing(node: &NodeProto) -> bool {
    let trains = node.op_type() == "Dropout" && node.input_name(2).is_some();
    is_view(node.op_type()) && !trains
}

fn is_view(operator: &str) -> bool {
    const FREE: [&str; 10] = [
        "BitCast",
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
    const FREE_PREFIXES: [&str; 2] = ["Sequence", "Optional"];
    let mut prefixes = FREE_PREFIXES.iter();
    FREE.contains(&operator) || prefixes.any(|prefix| operator.starts_with(prefix))
}

/// Returns the bytes that an operator reads: a gather reads only the selected elements, and a
/// routed product only as many experts as choices.
fn bytes_read(node: &NodeProto, inputs: &[Option<Extent<'_>>], outputs: &[Extent<'_>]) -> u64 {
    let read = |extents: &[Option<Extent<'_>>]| -> u64 {
        extents
            .iter()
            .flatten()
            .map(Extent::byte_count)
            .fold(0, u64::saturating_add)
    };
    match node.op_type() {
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Split" | "CenterCropPad" => {
            let taken: u64 = outputs.iter().map(Extent::byte_count).sum();
            taken.saturating_add(read(inputs.get(1..).unwrap_or(&[])))
        }
        "RoutedMatMul" => {
            let [rows, Some(experts), Some(choices), ..] = inputs else {
                return read(inputs);
            };
            let all = experts
                .dims
                .first()
                .map_or(1, |&count| (count as u64).max(1));
            let each = experts.byte_count().div_ceil(all);
            let chosen = each.saturating_mul(choices.element_count().min(all));
            chosen.saturating_add(read(&[*rows, Some(*choices)]))
        }
        _ => read(inputs),
    }
}

fn is_move(operator: &str) -> bool {
    const MOVES: [&str; 29] = [
        "Cast",
        "CastLike",
        "CenterCropPad",
        "Concat",
        "ConcatFromSequence",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Gather",
        "GatherElements",
        "GatherND",
        "MaxUnpool",
        "OneHot",
        "Pad",
        "Range",
        "ReverseSequence",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "SplitToSequence",
        "TensorScatter",
        "Tile",
        "Transpose",
        "Trilu",
        "Where",
    ];
    MOVES.contains(&operator)
}

fn saturating_product(dims: &[usize]) -> u64 {
    dims.iter()
        .fold(1, |count, &size| count.saturating_mul(size as u64))
}

#[cfg(test)]
mod tests;
