//! Plays the faults that a provider's file can request, such as wrong outputs or refused tensors,
//! so that tests show what buyers survive. Only a provider of emulated devices can play faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use souk_folder::config::Fault;
use souk_memory::Tensor;

/// The fault that a provider plays, and the first run in which it plays the fault.
pub(super) struct FaultInjector {
    fault: Option<Fault>,
    /// Runs that still succeed.
    well: AtomicU32,
    /// The outputs of the last run, for [`Fault::Skip`].
    last: Mutex<Option<BTreeMap<String, Tensor>>>,
    /// Whether another provider has offered a tensor.
    was_offered: AtomicBool,
}

impl FaultInjector {
    pub(super) fn new(fault: Option<Fault>, well: u32) -> FaultInjector {
        let well = AtomicU32::new(well);
        FaultInjector {
            fault,
            well,
            last: Mutex::default(),
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

    /// Falsifies the outputs of a part if the provider must lie.
    pub(super) fn after_run(&self, fault: Option<Fault>, outputs: &mut BTreeMap<String, Tensor>) {
        match fault {
            Some(Fault::Lie) => outputs.values_mut().for_each(|it| *it = other_than(it)),
            Some(Fault::Skip) => self.repeat_outputs(outputs),
            Some(Fault::LieOnce) => {
                if let Some(tensor) = outputs.values_mut().next() {
                    *tensor = with_one_changed(tensor);
                }
            }
            _ => {}
        }
    }

    /// Gives the outputs of the run before, if that was not the same already.
    fn repeat_outputs(&self, outputs: &mut BTreeMap<String, Tensor>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let has_form = |before: &BTreeMap<String, Tensor>| {
            let form =
                |(name, it): (&String, &Tensor)| (name.clone(), it.dtype(), it.dims().to_vec());
            before.iter().map(form).eq(outputs.iter().map(form))
        };
        match last.take().filter(has_form) {
            Some(before) => *outputs = before,
            None => *last = Some(outputs.clone()),
        }
    }
}

/// Plays a fault before a part runs.
pub(super) async fn before_run(fault: Option<Fault>) {
    match fault {
        // This ends like a power cut: nothing is closed and no peer is notified.
        Some(Fault::Die) => std::process::abort(),
        // The job's process, if it has one, plays the others.
        Some(Fault::Lie | Fault::Skip | Fault::LieOnce) => {}
        Some(Fault::Stall | Fault::Crash | Fault::Hoard) => {}
        Some(Fault::Choke | Fault::Deaf | Fault::Shut) | None => {}
    }
}

/// Returns a copy of a tensor in which the lowest bit of the first element is changed.
fn with_one_changed(tensor: &Tensor) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    if let Some(byte) = bytes.first_mut() {
        *byte ^= 1;
    }
    let other = Tensor::new(tensor.dtype(), tensor.shape().clone(), Bytes::from(bytes));
    other.unwrap_or_else(|_| tensor.clone())
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
    fn every_second_run_is_left_out() {
        let lazy = FaultInjector::new(Some(Fault::Skip), 0);
        let made = |number: f32| {
            let tensor = Tensor::from_vec([1], vec![number]).unwrap();
            let mut outputs: BTreeMap<_, _> = [("y".to_owned(), tensor)].into();
            lazy.after_run(lazy.next(), &mut outputs);
            outputs["y"].to_vec::<f32>().unwrap()[0]
        };
        assert_eq!([1.0, 2.0, 3.0, 4.0].map(made), [1.0, 1.0, 3.0, 3.0]);
    }

    #[test]
    fn a_lie_is_another_tensor_of_the_same_shape() {
        let right = Tensor::from_vec([2], vec![1.0_f32, -3.0]).unwrap();
        let mut outputs: BTreeMap<_, _> = [("y".to_owned(), right.clone())].into();
        let liar = FaultInjector::new(Some(Fault::Lie), 0);
        liar.after_run(None, &mut outputs);
        assert_eq!(outputs["y"], right);
        liar.after_run(liar.next(), &mut outputs);
        assert_eq!(outputs["y"].dims(), right.dims());
        assert_ne!(outputs["y"], right);
        let mut once: BTreeMap<_, _> = [("y".to_owned(), right.clone())].into();
        liar.after_run(Some(Fault::LieOnce), &mut once);
        let found = once["y"].to_vec::<f32>().unwrap();
        assert_eq!(found[1].to_bits(), (-3.0_f32).to_bits());
        assert_eq!(found[0].to_bits(), 1.0_f32.to_bits() ^ 1);
        let token = Tensor::from_vec([1], vec![6_i64]).unwrap();
        assert_eq!(other_than(&token).to_vec::<i64>().unwrap(), [7]);
    }
}
