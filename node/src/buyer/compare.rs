//! Decides whether two results of the same work are equal, as far as arithmetic can tell. The shell
//! of a job calls it when a job runs each part on two providers.
//!
//! Devices add in different orders and fuse different operations, so equal work gives equal results
//! only up to rounding. The tolerance depends on the operators that computed a value: sums over
//! many products can differ by more than a copy, and on the scale of the element's neighbours.
//! Integers and truth values must be equal to the bit, and NaN must be at the same places.

use souk_memory::{DType, Tensor};
use souk_scheduler::graph::Graph;
use souk_scheduler::graph::cost::OperatorClass;
use souk_scheduler::graph::cut::Subgraph;

/// The largest difference of two elements, relative to the scale of their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Tolerance(pub(super) f64);

/// Returns the tolerance of a part's outputs: that of its least exact operator, in single
/// precision.
pub(super) fn part_tolerance(graph: &Graph, part: &Subgraph) -> Tolerance {
    let nodes = part.nodes.iter().map(|node| graph.node(*node).cost.class);
    let worst = nodes.map(class_tolerance).fold(0.0, f64::max);
    Tolerance(worst)
}

/// Returns the bound of an operator for 32-bit floats, whose rounding is 6e-8: for a chain of some
/// tens of such operators, each of which adds some hundreds of products in any order.
fn class_tolerance(class: OperatorClass) -> f64 {
    match class {
        OperatorClass::Movement | OperatorClass::View => 0.0,
        OperatorClass::Elementwise => 1e-5,
        OperatorClass::Reduction | OperatorClass::Normalisation => 1e-4,
        OperatorClass::Matmul | OperatorClass::Convolution | OperatorClass::Attention => 1e-3,
        OperatorClass::Recurrent | OperatorClass::Other => 1e-3,
    }
}

/// Returns whether two tensors are equal within a tolerance.
pub(super) fn is_within_tolerance(a: &Tensor, b: &Tensor, tolerance: Tolerance) -> bool {
    if a.dtype() != b.dtype() || a.dims() != b.dims() {
        return false;
    }
    if a.bytes() == b.bytes() {
        return true;
    }
    if !a.dtype().is_float() {
        return false;
    }
    let (Ok(a_values), Ok(b_values)) = (a.to_f64s(), b.to_f64s()) else {
        return false;
    };
    // Half precision rounds 2^13 times as coarsely as single, double far less.
    let coarse = if a.dtype().bit_width() < 32 {
        16.0
    } else {
        1.0
    };
    let tolerance = tolerance.0 * coarse;
    let rounding = match tolerance > 0.0 {
        true => ROUNDINGS * unit_rounding(a.dtype()),
        false => 0.0,
    };
    let scales = Scales::new(a.dims(), &a_values, &b_values);
    let pairs = a_values.iter().zip(&b_values).enumerate();
    let mut unequal = pairs.filter(|(_, (a, b))| a != b && !(a.is_nan() && b.is_nan()));
    unequal.all(|(place, (a, b))| {
        // A difference with what is no number is no number either, and within nothing.
        let own = a.abs().max(b.abs());
        let noise = match own < MASK_MIN {
            true => rounding * scales.whole,
            false => 0.0,
        };
        (a - b).abs() <= noise.max(tolerance * scales.scale_at(place, own))
    })
}

/// Returns the largest relative error of rounding a number to a type of floats.
fn unit_rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON / 2.0,
        DType::F32 => f64::from(f32::EPSILON) / 2.0,
        DType::F16 => 0.5_f64.powi(11),
        DType::Bf16 => 0.5_f64.powi(8),
        // With `ROUNDINGS`, this is one rounding of a float of 8 bits.
        _ => 0.5_f64.powi(6),
    }
}

/// The scales of two tensors of one shape: by the scale of its neighbours, and not by the greatest
/// element of all, an element is large or small. A detector returns boxes in pixels beside scores
/// from 0 to 1.
struct Scales {
    /// The greatest element of both tensors.
    whole: f64,
    /// For each axis whose slices have enough elements, the greatest element of each slice.
    axes: Vec<Axis>,
}

/// The slices of a tensor across one axis: each has all elements of one index on it.
struct Axis {
    /// How many elements lie between two indices.
    stride: usize,
    greatest: Vec<f64>,
}

/// A value beyond this is a mask, such as -1e9 among logits: it sets no scale but its own.
const MASK_MIN: f64 = 1e8;

/// Values beyond this stand for an infinity: they are equal or not.
const INFINITE_MIN: f64 = 1e30;

/// The fewest elements that show the scale of a slice.
const SLICE_ELEMENTS_MIN: usize = 64;

/// How many roundings of the greatest element are granted to each element that is not moved only:
/// where large terms cancel, their rounding is left.
const ROUNDINGS: f64 = 4.0;

/// A slice counts as no smaller than the whole tensor divided by this: sums of large terms that
/// cancel err more than a sum of small ones.
const SLICE_SHARE: f64 = 100.0;

impl Scales {
    fn new(dims: &[usize], a: &[f64], b: &[f64]) -> Scales {
        let count = a.len();
        let mut stride = count;
        let mut axes = Vec::new();
        for dim in dims {
            stride /= (*dim).max(1);
            if *dim > 1 && count / dim >= SLICE_ELEMENTS_MIN {
                let greatest = vec![0.0; *dim];
                axes.push(Axis { stride, greatest });
            }
        }
        let mut whole = 0.0_f64;
        for (place, (a, b)) in a.iter().zip(b).enumerate() {
            let in_scale = |value: &f64| Some(value.abs()).filter(|value| *value < MASK_MIN);
            let greatest = in_scale(a)
                .into_iter()
                .chain(in_scale(b))
                .fold(0.0, f64::max);
            whole = whole.max(greatest);
            for axis in &mut axes {
                let slice = axis.slice_of(place);
                axis.greatest[slice] = axis.greatest[slice].max(greatest);
            }
        }
        Scales { whole, axes }
    }

    /// Returns the scale of the element at a place, whose absolute value is `own`: the least of its
    /// slices.
    fn scale_at(&self, place: usize, own: f64) -> f64 {
        if own >= INFINITE_MIN {
            return 0.0;
        }
        if own >= MASK_MIN {
            return own;
        }
        let slices = self.axes.iter();
        let slices = slices.map(|axis| axis.greatest[axis.slice_of(place)]);
        let least = slices.fold(self.whole, f64::min);
        least.max(self.whole / SLICE_SHARE)
    }
}

impl Axis {
    fn slice_of(&self, place: usize) -> usize {
        place / self.stride % self.greatest.len()
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::Bf16;

    use super::*;

    fn floats(values: [f32; 3]) -> Tensor {
        Tensor::from_vec([3], values.to_vec()).unwrap()
    }

    #[test]
    fn rounding_is_granted_and_no_more() {
        let within = Tolerance(1e-4);
        assert!(is_within_tolerance(
            &floats([1.0, 2.0, 3.0]),
            &floats([1.0001, 2.0, 3.0]),
            within
        ));
        assert!(!is_within_tolerance(
            &floats([1.0, 2.0, 3.0]),
            &floats([1.001, 2.0, 3.0]),
            within
        ));
        assert!(!is_within_tolerance(
            &floats([1.0, 2.0, 3.0]),
            &floats([1.0001, 2.0, 3.0]),
            Tolerance(0.0)
        ));
    }

    #[test]
    fn what_is_no_number_must_be_in_the_same_place() {
        let within = Tolerance(1e-3);
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        assert!(is_within_tolerance(
            &floats([nan, infinite, 1.0]),
            &floats([nan, infinite, 1.0]),
            within
        ));
        assert!(!is_within_tolerance(
            &floats([nan, 1.0, 1.0]),
            &floats([1.0, 1.0, 1.0]),
            within
        ));
        assert!(!is_within_tolerance(
            &floats([infinite, 1.0, 1.0]),
            &floats([1.0, 1.0, 1.0]),
            within
        ));
    }

    #[test]
    fn whole_numbers_are_equal_or_not() {
        let ints = |values: [i64; 2]| Tensor::from_vec([2], values.to_vec()).unwrap();
        assert!(is_within_tolerance(
            &ints([1, 2]),
            &ints([1, 2]),
            Tolerance(1.0)
        ));
        assert!(!is_within_tolerance(
            &ints([1, 2]),
            &ints([1, 3]),
            Tolerance(1.0)
        ));
    }

    /// Boxes of up to 640 pixels and a score, for each of a hundred places.
    fn detections(score: f32) -> Tensor {
        let boxes = (0..400_i16).map(|pixel| f32::from(pixel) * 1.6);
        let scores = (0..200_u8).map(|place| if place == 7 { score } else { 0.05 });
        let elements: Vec<f32> = boxes.chain(scores).collect();
        Tensor::from_vec([1, 6, 100], elements).unwrap()
    }

    #[test]
    fn a_small_element_is_compared_on_the_scale_of_its_own_kind() {
        let within = Tolerance(1e-3);
        let alike = |score| is_within_tolerance(&detections(0.6), &detections(score), within);
        assert!(!alike(0.1), "the boxes are no measure of scores");
        assert!(alike(0.600_1), "rounding");
        // One row of logits has no other scale than that of the row.
        let row = |last: f32| {
            let mut logits = vec![12.0_f32; 100];
            logits[99] = last;
            Tensor::from_vec([1, 100], logits).unwrap()
        };
        assert!(is_within_tolerance(&row(0.001), &row(0.002), within));
        assert!(!is_within_tolerance(&row(0.001), &row(0.1), within));
    }

    #[test]
    fn noise_where_large_terms_cancel_is_granted() {
        let channels = |noise: f32| {
            let elements = (0..200_u8).map(|place| if place < 100 { 50.0 } else { noise });
            Tensor::from_vec([2, 100], elements.collect::<Vec<f32>>()).unwrap()
        };
        let within = Tolerance(1e-3);
        assert!(is_within_tolerance(
            &channels(1e-6),
            &channels(-3e-6),
            within
        ));
        assert!(!is_within_tolerance(
            &channels(1e-6),
            &channels(-3e-2),
            within
        ));
    }

    #[test]
    fn rounding_to_half_precision_is_granted_where_large_terms_cancel() {
        let channels = |noise: f32| {
            let value = |place| Bf16::from_f32(if place < 100 { 50.0 } else { noise });
            Tensor::from_vec([2, 100], (0..200_u8).map(value).collect::<Vec<Bf16>>()).unwrap()
        };
        let within = |noise, tolerance| {
            is_within_tolerance(&channels(0.0), &channels(noise), Tolerance(tolerance))
        };
        // One rounding of 50 to 8 bits is 0.2.
        assert!(within(0.25, 1e-5) && !within(1.0, 1e-5));
        assert!(!within(0.25, 0.0), "what is moved only does not round");
    }

    #[test]
    fn a_mask_is_no_measure_of_what_it_leaves() {
        for mask in [-1e9_f32, -3.4e38] {
            let logits = |mask: f32, logit: f32| {
                let mut logits = vec![1.0_f32; 100];
                (logits[3], logits[50]) = (mask, logit);
                Tensor::from_vec([100], logits).unwrap()
            };
            let alike = |a: &Tensor, b: &Tensor| is_within_tolerance(a, b, Tolerance(1e-3));
            assert!(alike(&logits(mask, 0.0), &logits(mask, 1e-4)), "{mask}");
            assert!(!alike(&logits(mask, 0.0), &logits(mask, 5.0)), "{mask}");
            // A liar that moves the mask gains no room.
            let moved = mask * 0.999_9;
            assert!(!alike(&logits(mask, 0.0), &logits(moved, 5.0)), "{mask}");
            let is_infinite = mask.abs() > 1e30;
            assert_eq!(alike(&logits(mask, 0.0), &logits(moved, 0.0)), !is_infinite);
        }
    }
}
