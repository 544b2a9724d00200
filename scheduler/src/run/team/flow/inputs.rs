//! What a piece reads, brought to the device that runs it.

use std::collections::BTreeMap;

use souk_devices::held::Held;
use souk_memory::transfers::{SMALL_BYTES, Urgency};

use super::super::laid::{Piece, Read};
use super::super::memories::{self, Kept, MemoryError};
use super::{Flow, lock, rows, source};

impl Flow {
    /// A piece's inputs, brought to a device and kept there.
    pub(super) fn bring(
        &self,
        piece: &Piece,
        device: usize,
    ) -> Result<BTreeMap<String, Held>, MemoryError> {
        self.bring_small(piece, device);
        let mut inputs = BTreeMap::new();
        for (brought, read) in piece.reads.iter().enumerate() {
            match self.bring_one(read, device) {
                Ok(held) => drop(inputs.insert(read.name.clone(), held)),
                Err(error) => {
                    let unpinned = self.let_be(&piece.reads[..brought], device);
                    unpinned.map_err(MemoryError::Space)?;
                    return Err(error);
                }
            }
        }
        Ok(inputs)
    }

    /// Brings what is small of a piece's inputs to a memory of its device's own, as one.
    fn bring_small(&self, piece: &Piece, device: usize) {
        let to = memories::place(device);
        if self.memories.own(device).is_none() {
            return;
        }
        let small: Vec<Kept> = {
            let state = lock(&self.state);
            let there = piece.reads.iter().filter(|read| source(read, to) == to);
            let held = there.filter_map(|read| state.values.get(&read.value));
            let small = held.filter(|kept| kept.bytes() <= SMALL_BYTES);
            small.cloned().collect()
        };
        if small.len() > 1 {
            let wanted = small.iter().map(|kept| (kept, Some(&*self.log)));
            self.memories.bring_together(wanted, to, Urgency::Awaited);
        }
    }

    fn bring_one(&self, read: &Read, device: usize) -> Result<Held, MemoryError> {
        let known = lock(&self.state).values.get(&read.value).cloned();
        let kept = match (known, self.inputs.get(&read.value)) {
            (Some(kept), _) => kept,
            // A piece that is run again reads what was let go since.
            (None, Some(input)) => {
                self.hold_input(&read.value, input)?;
                let known = lock(&self.state).values.get(&read.value).cloned();
                known.expect("an input that is read is held")
            }
            (None, None) => return Err(MemoryError::Gone),
        };
        let place = source(read, memories::place(device));
        let held = self.memories.pinned(&kept, place, Some(&self.log))?;
        Ok(match held {
            Held::Host(tensor) => Held::Host(rows(tensor, read)),
            there => there,
        })
    }
}
