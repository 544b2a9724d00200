//! Lists the readers of each value of a plan, so that a run can release a value after its last
//! reader.

use std::collections::{BTreeMap, BTreeSet};

use super::ExecutionPlan;

/// A reader of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::execution::group) enum Reader {
    /// The fragment with this index.
    Fragment(usize),
    /// The join of the value with other parts.
    Join,
    /// The job, as an output.
    Job,
}

/// The readers of each value, by its name.
pub(in crate::execution::group) type Readers = BTreeMap<String, BTreeSet<Reader>>;

/// Returns the readers of each value of a plan.
pub(in crate::execution::group) fn collect_readers(plan: &ExecutionPlan) -> Readers {
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
