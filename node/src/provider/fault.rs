//! Faults that an emulated device plays, so that tests see what buyers survive.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::Tensor;

use crate::config::Fault;

/// Before a part runs.
pub(super) async fn before_run(fault: Option<Fault>) {
    match fault {
        // As a power cut would end it: nothing is closed, nobody is told.
        Some(Fault::Die) => std::process::abort(),
        // The job's process plays the others, if it has one.
        Some(Fault::Lie | Fault::Stall | Fault::Crash | Fault::Hoard) | None => {}
    }
}

/// What the provider says a part gave.
pub(super) fn after_run(fault: Option<Fault>, outputs: &mut BTreeMap<String, Tensor>) {
    if fault == Some(Fault::Lie) {
        for tensor in outputs.values_mut() {
            *tensor = other_than(tensor);
        }
    }
}

/// A tensor of the same shape whose first byte of every element's end is another.
fn other_than(tensor: &Tensor) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    let step = tensor.dtype().bytes().unwrap_or(1);
    for last in bytes.iter_mut().skip(step - 1).step_by(step) {
        *last ^= 1;
    }
    let other = Tensor::new(tensor.dtype(), tensor.shape().clone(), Bytes::from(bytes));
    // Element types whose every pattern is not a value stay as they are.
    other.unwrap_or_else(|_| tensor.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lie_is_another_tensor_of_the_same_shape() {
        let right = Tensor::from_vec([2], vec![1.0_f32, -3.0]).unwrap();
        let mut outputs: BTreeMap<_, _> = [("y".to_owned(), right.clone())].into();
        after_run(None, &mut outputs);
        assert_eq!(outputs["y"], right);
        after_run(Some(Fault::Lie), &mut outputs);
        assert_eq!(outputs["y"].dims(), right.dims());
        assert_ne!(outputs["y"], right);
    }
}
