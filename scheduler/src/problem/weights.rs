//! Which tasks share their weights.

use std::collections::BTreeMap;

use super::{ProblemError, ProblemParts};

/// The sets of weights that tasks share, numbered from 0 in the order of their first task, and how
/// many they are; none if nothing is shared.
pub(super) fn sets(parts: &ProblemParts) -> Result<(Vec<u32>, usize), ProblemError> {
    let memory = |task: usize| parts.memory.get(task).copied().unwrap_or(0);
    let mut first: BTreeMap<usize, (u32, usize)> = BTreeMap::new();
    let mut sets = Vec::with_capacity(parts.weights.len());
    for (task, &weights) in parts.weights.iter().enumerate() {
        let next = u32::try_from(first.len()).expect("task numbers fit 32 bits");
        let &mut (set, owner) = first.entry(weights).or_insert((next, task));
        let (expected, found) = (memory(owner), memory(task));
        if expected != found {
            return Err(ProblemError::Weights {
                task,
                expected,
                found,
            });
        }
        sets.push(set);
    }
    let is_shared = first.len() < parts.weights.len();
    Ok(if is_shared {
        (sets, first.len())
    } else {
        (Vec::new(), 0)
    })
}
