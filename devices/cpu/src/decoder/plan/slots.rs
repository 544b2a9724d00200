//! Assigns the values of a decoder's plan to slots (buffers that values share one after another),
//! and divides its steps into stages, whose steps can run at once. The planner calls it last, when
//! all steps are known.

use std::ops::Range;

use super::{Action, DecoderStep, RowsId};

/// Rows in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct RowSlot {
    pub slot: usize,
    /// Floats of a row.
    pub width: usize,
}

/// Assigns a slot to each value, and returns the places and the width of each slot. A slot can be
/// reused once no later step reads its value.
pub(super) fn assign_slots(
    steps: &[DecoderStep],
    widths: &[usize],
    result: RowsId,
) -> (Vec<RowSlot>, Vec<usize>) {
    let mut last = vec![0; widths.len()];
    for (at, step) in steps.iter().enumerate() {
        for value in step.reads.iter().chain(&step.makes) {
            last[*value] = at;
        }
    }
    last[result] = steps.len();
    let mut places = vec![RowSlot::default(); widths.len()];
    let mut slots: Vec<usize> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if let Some(made) = step.makes {
            let width = widths[made];
            let fits = free.iter().position(|slot| slots[*slot] == width);
            let slot = match fits {
                Some(fit) => free.swap_remove(fit),
                None => {
                    slots.push(width);
                    slots.len() - 1
                }
            };
            places[made] = RowSlot { slot, width };
        }
        let mut done: Vec<RowsId> = step.reads.iter().chain(&step.makes).copied().collect();
        done.sort_unstable();
        done.dedup();
        let done = done.into_iter().filter(|value| last[*value] == at);
        free.extend(done.map(|value| places[value].slot));
    }
    (places, slots)
}

/// Returns the slots and states that a step reads and writes; states are numbered after slots.
fn step_accesses(
    step: &DecoderStep,
    places: &[RowSlot],
    slots: usize,
) -> (Vec<usize>, Option<usize>) {
    let mut reads: Vec<usize> = step.reads.iter().map(|value| places[*value].slot).collect();
    let mut writes = step.makes.map(|value| places[value].slot);
    match step.action {
        Action::Keep { state } => writes = Some(slots + state),
        Action::Attend { keys, values, .. } => reads.extend([slots + keys, slots + values]),
        _ => {}
    }
    (reads, writes)
}

/// Divides the steps, in order, into stages. A step must not need a result of its own stage, or
/// write where another step of it reads or writes.
pub(super) fn divide_stages(steps: &[DecoderStep], places: &[RowSlot]) -> Vec<Range<usize>> {
    let slots = places.iter().map(|place| place.slot + 1).max().unwrap_or(0);
    let mut stages = Vec::new();
    let mut start = 0;
    let (mut read, mut written): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        let (reads, write) = step_accesses(step, places, slots);
        let waits = reads.iter().any(|slot| written.contains(slot))
            || write.is_some_and(|slot| read.contains(&slot) || written.contains(&slot));
        if waits {
            stages.push(start..at);
            start = at;
            (read, written) = (Vec::new(), Vec::new());
        }
        read.extend(reads);
        written.extend(write);
    }
    stages.push(start..steps.len());
    stages
}
