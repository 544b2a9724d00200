//! Decides whether two results of the same work are equal, as far as arithmetic can tell. The shell
//! of a job calls it when a job runs each part on two providers.
//!
//! Devices add in different orders and fuse different operations, so equal work gives equal results
//! only up to rounding. The tolerance depends on the operators that computed a value: sums over
//! many products can differ by more than a copy. Integers and truth values must be equal to the
//! bit, and NaN must be at the same places.

use souk_memory::Tensor;
use souk_scheduler::graph::Graph;
use souk_scheduler::graph::cost::OperatorClass;
use souk_scheduler::graph::cut::Subgraph;

/// The largest difference of two elements, relative to the greatest element of both tensors.
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
    let finite = a_values
        .iter()
        .chain(&b_values)
        .filter(|value| value.is_finite());
    let scale = finite.fold(0.0_f64, |most, value| most.max(value.abs()));
    let most = tolerance.0 * coarse * scale;
    let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= most;
    a_values.iter().zip(&b_values).all(same)
}

#[cfg(test)]
mod tests {
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
}
