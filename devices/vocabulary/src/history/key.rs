//! Defines the keys under which the history stores measured times: the class, element type and size
//! of works that are alike enough to share a correction.
//!
//! The speed of an operator relative to its arithmetic depends on more than its name. For example,
//! a convolution reads each pixel as often as its window has taps, and a product by one of the
//! model's matrices finds the matrix packed. So a class is the operator with those of its node's
//! attributes that matter for speed. A size is three amounts, because two works with the same
//! number of operations can differ a hundredfold in the bytes they read and write.

use serde::{Deserialize, Serialize};
use souk_memory::DType;
use souk_onnx::NodeProto;
use souk_onnx::work::{Extent, Work};

/// Number of steps in which an amount doubles: two sizes of one step differ by at most a part in
/// twenty.
const STEPS_EACH_DOUBLING: f64 = 16.0;
/// Maximum distance of a size from the line between two others, as a part of their distance, if
/// they are to enclose it.
const OFF_MAX: f64 = 0.35;
/// Weight of the distance between two sizes (in doublings), relative to the distance from the line
/// between them, in the search for the best two.
const LENGTH_WEIGHT: f64 = 0.1;

/// The operator in a key of a whole model.
const MODEL: &str = "a whole model";

/// The identity of works that are alike enough to share a correction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Operator, such as `Conv`.
    pub operator: String,
    /// Other properties of the node that its speed depends on, such as the window `3x3` of a
    /// convolution.
    pub class: String,
    /// Element type, if the work has one.
    pub dtype: Option<DType>,
    /// Size: operations, bytes read and bytes written, each by its logarithm in sixteenths of
    /// a doubling.
    pub size: [u16; 3],
}

impl Key {
    /// Returns the key of some work of an operator and class.
    #[must_use]
    pub fn for_work(operator: &str, class: &str, work: &Work) -> Self {
        let step = |amount: u64| ((amount.max(1) as f64).log2() * STEPS_EACH_DOUBLING).round();
        let amounts = [work.operations, work.bytes_read, work.bytes_written];
        Self {
            operator: operator.to_owned(),
            class: class.to_owned(),
            dtype: work.dtype,
            size: amounts.map(|amount| step(amount) as u16),
        }
    }

    /// Returns the key of a whole model by its content id. Use it for models whose operators cannot
    /// state their work beforehand: a loop with a trip count computed in the run can take a
    /// thousand times as long as its operators say, and its time says nothing about another model.
    #[must_use]
    pub fn of_model(id: &str, work: &Work) -> Self {
        let work = Work {
            dtype: None,
            ..*work
        };
        Self::for_work(MODEL, id, &work)
    }

    /// Returns whether this is the key of a whole model.
    #[must_use]
    pub fn is_model(&self) -> bool {
        self.operator == MODEL
    }

    /// Returns whether both keys have the same operator and type, in any class.
    pub(super) fn has_same_operator(&self, other: &Self) -> bool {
        self.operator == other.operator && self.dtype == other.dtype
    }

    /// Returns how alike two keys are apart from their size, more for more alike; `None` if they
    /// must not share a correction: their element types differ, or one is of another whole model.
    pub(super) fn similarity(&self, other: &Self) -> Option<u8> {
        let is_apart = self.is_model() || other.is_model();
        if self.dtype != other.dtype || (is_apart && self.class != other.class) {
            return None;
        }
        Some(match self.has_same_operator(other) {
            true if self.class == other.class => 2,
            true => 1,
            false => 0,
        })
    }

    /// Returns the square of the distance between two sizes; the distance is in doublings.
    pub(super) fn squared_distance(&self, other: &Self) -> f64 {
        self.doublings_above(other)
            .iter()
            .map(|part| part * part)
            .sum()
    }

    /// Returns how much larger each amount is than the other key's, in doublings.
    fn doublings_above(&self, other: &Self) -> [f64; 3] {
        let apart = |axis: usize| f64::from(self.size[axis]) - f64::from(other.size[axis]);
        [0, 1, 2].map(|axis| apart(axis) / STEPS_EACH_DOUBLING)
    }
}

/// The position of a size between two others.
pub(super) struct Span {
    /// From 0 at the first to 1 at the second.
    pub part: f64,
    /// Distance from the line between them, in doublings.
    off: f64,
    /// Distance between the two, in doublings.
    length: f64,
}

impl Span {
    /// Returns the position of `key` between `low` and `high`; `None` if they do not enclose it.
    pub fn from_keys(low: &Key, high: &Key, key: &Key) -> Option<Self> {
        let (way, here) = (high.doublings_above(low), key.doublings_above(low));
        let square = high.squared_distance(low);
        let part = way
            .iter()
            .zip(here)
            .map(|(one, other)| one * other)
            .sum::<f64>()
            / square;
        if !(0.0..=1.0).contains(&part) {
            return None;
        }
        let off = way
            .iter()
            .zip(here)
            .map(|(one, other)| (other - part * one).powi(2));
        let (off, length) = (off.sum::<f64>().sqrt(), square.sqrt());
        (off <= OFF_MAX * length).then_some(Self { part, off, length })
    }

    /// Returns the cost of this pair; the best pair has the least.
    pub fn cost(&self) -> f64 {
        self.off + LENGTH_WEIGHT * self.length
    }
}

/// Returns the class of a node. `inputs` must be its inputs in order, `None` for an absent one,
/// each with whether it is a weight of the model.
#[must_use]
pub fn node_class(node: &NodeProto, inputs: &[Option<(Extent<'_>, bool)>]) -> String {
    let input = |index: usize| inputs.get(index).copied().flatten();
    match node.op_type() {
        "Conv" | "ConvTranspose" => {
            let window = input(1).map_or(&[][..], |(weights, _)| weights.dims);
            let taps = join_sizes(window.get(2..).unwrap_or(&[]));
            let strides = node.ints("strides").unwrap_or(&[]);
            let step = strides.iter().copied().max().unwrap_or(1);
            let groups = match node.int("group").unwrap_or(1) {
                1 => "",
                _ if window.get(1) == Some(&1) => " by channel",
                _ => " in groups",
            };
            format!("{taps}/{step}{groups}")
        }
        "AveragePool" | "MaxPool" | "LpPool" => {
            join_sizes(node.ints("kernel_shape").unwrap_or(&[]))
        }
        "MatMul" | "Gemm" if input(1).is_some_and(|(_, held)| held) => "held".to_owned(),
        "Transpose" => join_sizes(node.ints("perm").unwrap_or(&[])),
        _ => String::new(),
    }
}

fn join_sizes<T: ToString>(sizes: &[T]) -> String {
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    sizes.join("x")
}

#[cfg(test)]
mod tests {
    use souk_testing::{node, with_ints};

    use super::*;

    fn floats(dims: &[usize]) -> Option<(Extent<'_>, bool)> {
        let dtype = DType::F32;
        Some((Extent { dtype, dims }, true))
    }

    #[test]
    fn convolutions_are_told_apart_by_window_step_and_groups() {
        let image = floats(&[1, 64, 56, 56]);
        let conv = node("Conv", &["x", "w"], &["y"]);
        assert_eq!(
            node_class(&conv, &[image, floats(&[64, 64, 3, 3])]),
            "3x3/1"
        );
        let strided = with_ints(conv.clone(), "strides", &[2, 2]);
        assert_eq!(
            node_class(&strided, &[image, floats(&[64, 64, 1, 1])]),
            "1x1/2"
        );
        let mut each = conv;
        each.attribute.push(souk_onnx::AttributeProto {
            name: Some("group".to_owned()),
            i: Some(64),
            ..Default::default()
        });
        assert_eq!(
            node_class(&each, &[image, floats(&[64, 1, 3, 3])]),
            "3x3/1 by channel"
        );
    }

    fn sized(operations: u64, bytes_read: u64, bytes_written: u64) -> Key {
        let work = Work {
            operations,
            bytes_read,
            bytes_written,
            ..Work::default()
        };
        Key::for_work("MatMul", "", &work)
    }

    #[test]
    fn sizes_a_fiftieth_apart_are_as_good_as_one_and_a_tenth_is_not() {
        let key = |operations| sized(operations, 1, 1);
        assert_eq!(key(1 << 20), key((1 << 20) + (1 << 14)));
        assert_ne!(key(1 << 20), key((1 << 20) + (1 << 17)));
        assert!((key(1 << 20).squared_distance(&key(1 << 22)) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_size_lies_between_two_if_it_is_near_the_line_between_them() {
        let (low, high) = (
            sized(1 << 10, 1 << 10, 1 << 10),
            sized(1 << 14, 1 << 14, 1 << 14),
        );
        let part = |key: &Key| Span::from_keys(&low, &high, key).map(|span| span.part);
        assert_eq!(part(&sized(1 << 11, 1 << 11, 1 << 11)), Some(0.25));
        assert_eq!(part(&low), Some(0.0));
        assert_eq!(part(&sized(1 << 15, 1 << 15, 1 << 15)), None, "beyond");
        assert_eq!(
            part(&sized(1 << 20, 1 << 12, 1 << 4)),
            None,
            "far off the line"
        );
        assert!(
            Span::from_keys(&low, &low, &low).is_none(),
            "two that are one"
        );
    }
}
