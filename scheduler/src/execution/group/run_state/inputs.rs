//! Brings a fragment's inputs to the device that runs it.

use std::collections::BTreeMap;

use souk_memory::transfers::{SMALL_BYTES, Urgency};
use souk_vocabulary::residency::TensorHandle;

use super::{RunState, select_rows, source};
use crate::execution::group::fragment::{Fragment, FragmentInput};
use crate::execution::group::held_tensor::HeldTensor;
use crate::execution::group::links::device_place;
use crate::execution::group::memories::MemoryError;
use crate::execution::lock::lock;

impl RunState {
    /// Brings a fragment's inputs to a device, which holds them until the run unpins them.
    pub(super) fn bring_inputs(
        &self,
        fragment: &Fragment,
        device: usize,
    ) -> Result<BTreeMap<String, TensorHandle>, MemoryError> {
        self.bring_small(fragment, device);
        let mut inputs = BTreeMap::new();
        for (brought, read) in fragment.reads.iter().enumerate() {
            match self.bring_one(read, device) {
                Ok(held) => drop(inputs.insert(read.name.clone(), held)),
                Err(error) => {
                    let unpinned = self.let_be(&fragment.reads[..brought], device);
                    unpinned.map_err(MemoryError::Space)?;
                    return Err(error);
                }
            }
        }
        Ok(inputs)
    }

    /// Brings a fragment's small inputs to its device's own memory in one transfer.
    fn bring_small(&self, fragment: &Fragment, device: usize) {
        let to = device_place(device);
        if self.memories.own_memory(device).is_none() {
            return;
        }
        let small: Vec<HeldTensor> = {
            let state = lock(&self.state);
            let there = fragment.reads.iter().filter(|read| source(read, to) == to);
            let held = there.filter_map(|read| state.values.get(&read.value));
            let small = held.filter(|kept| kept.byte_size() <= SMALL_BYTES);
            small.cloned().collect()
        };
        if small.len() > 1 {
            let wanted = small.iter().map(|kept| (kept, Some(&*self.log)));
            self.memories.bring_together(wanted, to, Urgency::Awaited);
        }
    }

    fn bring_one(&self, read: &FragmentInput, device: usize) -> Result<TensorHandle, MemoryError> {
        let known = lock(&self.state).values.get(&read.value).cloned();
        let kept = match (known, self.inputs.get(&read.value)) {
            (Some(kept), _) => kept,
            // A fragment that runs again reads an input that the run has released since.
            (None, Some(input)) => {
                self.hold_input(&read.value, input)?;
                let known = lock(&self.state).values.get(&read.value).cloned();
                known.expect("an input that is read is held")
            }
            (None, None) => return Err(MemoryError::Gone),
        };
        let place = source(read, device_place(device));
        let held = self.memories.move_and_pin(&kept, place, Some(&self.log))?;
        Ok(match held {
            TensorHandle::Host(tensor) => TensorHandle::Host(select_rows(tensor, read)),
            there => there,
        })
    }
}
