//! Who reads each value of a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::ExecutionPlan;

/// Who reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::execution::group) enum Reader {
    /// A fragment.
    Fragment(usize),
    /// Whoever puts it together with other parts.
    Join,
    /// The job.
    Job,
}

/// Who reads each value, by its name.
pub(in crate::execution::group) type Readers = BTreeMap<String, BTreeSet<Reader>>;

/// Who reads each value of a plan.
pub(in crate::execution::group) fn readers(plan: &ExecutionPlan) -> Readers {
    let mut readers = Readers::new();
    let mut add = |name: &String, reader| {
        readers.entry(name.clone()).or_default().insert(reader);
    };
    for (index, fragment) in plan.fragments.iter().enumerate() {
        for read in &fragment.reads {
            add(&read.value, Reader::Fragment(index));
        }
    }
    for part in plan.joins.iter().flat_map(|join| &join.parts) {
        add(part, Reader::Join);
    }
    for output in &plan.outputs {
        add(output, Reader::Job);
    }
    readers
}
