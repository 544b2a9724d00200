//! Plays the faults that a provider's file can request, such as wrong outputs or refused tensors,
//! so that tests show what buyers survive. Only a provider of emulated devices can play faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use souk_folder::config::Fault;
use souk_memory::Tensor;

/// The fault that a provider plays, and the run from which it does.
pub(super) struct FaultInjector {
    fault: Option<Fault>,
    /// Runs that still succeed.
    well: AtomicU32,
    /// Whether another provider has offered a tensor.
    was_offered: AtomicBool,
}

impl FaultInjector {
    pub(super) fn new(fault: Option<Fault>, well: u32) -> FaultInjector {
        let well = AtomicU32::new(well);
        FaultInjector {
            fault,
            well,
            was_offered: AtomicBool::new(false),
        }
    }

    /// Returns whether the provider accepts a tensor that is offered now.
    pub(super) fn can_accept_offer(&self) -> bool {
        match self.fault {
            Some(Fault::Deaf) => self.was_offered.swap(true, Ordering::Relaxed),
            Some(Fault::Shut) => false,
            _ => true,
        }
    }

    /// Returns the fault to play while a graph is read.
    pub(super) fn at_graph(&self) -> Option<Fault> {
        self.fault.filter(|fault| *fault == Fault::Choke)
    }

    /// Returns the fault to play in the next run.
    pub(super) fn next(&self) -> Option<Fault> {
        let fault = self.fault.filter(|fault| *fault != Fault::Choke)?;
        let fewer = |well: u32| well.checked_sub(1);
        let counted = self
            .well
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        counted.is_err().then_some(fault)
    }
}

/// Plays a fault before a part runs.
pub(super) async fn before_run(fault: Option<Fault>) {
    match fault {
        // This ends like a power cut: nothing is closed and no peer is notified.
        Some(Fault::Die) => std::process::abort(),
        // The job's process, if it has one, plays the others.
        Some(Fault::Lie | Fault::Stall | Fault::Crash | Fault::Hoard) => {}
        Some(Fault::Choke | Fault::Deaf | Fault::Shut) | None => {}
    }
}

/// Falsifies the outputs of a part if the provider must lie.
pub(super) fn after_run(fault: Option<Fault>, outputs: &mut BTreeMap<String, Tensor>) {
    if fault == Some(Fault::Lie) {
        for tensor in outputs.values_mut() {
            *tensor = other_than(tensor);
        }
    }
}

/// Returns a tensor of the same shape in which every element differs: whole numbers by one, so that
/// they can still be valid, and floats by a large amount.
fn other_than(tensor: &Tensor) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    let step = tensor.dtype().byte_width().unwrap_or(1);
    let at = if tensor.dtype().is_float() {
        step - 1
    } else {
        0
    };
    for byte in bytes.iter_mut().skip(at).step_by(step) {
        *byte ^= 1;
    }
    let other = Tensor::new(tensor.dtype(), tensor.shape().clone(), Bytes::from(bytes));
    // Element types with invalid bit patterns stay as they are.
    other.unwrap_or_else(|_| tensor.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_played_after_the_runs_that_go_well() {
        let faulty = FaultInjector::new(Some(Fault::Lie), 2);
        let played: Vec<bool> = (0..4).map(|_| faulty.next().is_some()).collect();
        assert_eq!(played, [false, false, true, true]);
        assert_eq!(FaultInjector::new(None, 0).next(), None);
    }

    #[test]
    fn a_lie_is_another_tensor_of_the_same_shape() {
        let right = Tensor::from_vec([2], vec![1.0_f32, -3.0]).unwrap();
        let mut outputs: BTreeMap<_, _> = [("y".to_owned(), right.clone())].into();
        after_run(None, &mut outputs);
        assert_eq!(outputs["y"], right);
        after_run(Some(Fault::Lie), &mut outputs);
        assert_eq!(outputs["y"].dims(), right.dims());
        assert_ne!(outputs["y"], right);
        let token = Tensor::from_vec([1], vec![6_i64]).unwrap();
        assert_eq!(other_than(&token).to_vec::<i64>().unwrap(), [7]);
    }
}
