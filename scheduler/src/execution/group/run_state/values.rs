//! Holds the values of a run by name, and tracks which fragments have yet to read them.

use std::collections::BTreeMap;

use crate::execution::group::execution_plan::{ExecutionPlan, Reader, Readers};
use crate::execution::group::held_tensor::HeldTensor;

/// The values that the run holds, and the fragments that have run.
#[derive(Default)]
pub(super) struct Values {
    readers: std::sync::Arc<Readers>,
    done: Vec<bool>,
    tensors: BTreeMap<String, HeldTensor>,
}

impl Values {
    pub fn new(plan: &ExecutionPlan) -> Self {
        Self {
            readers: plan.readers.clone(),
            done: vec![false; plan.fragments.len()],
            tensors: BTreeMap::new(),
        }
    }

    /// Returns whether a value has remaining readers.
    pub fn is_wanted(&self, name: &str) -> bool {
        let mut readers = self.readers.get(name).into_iter().flatten();
        readers.any(|reader| match *reader {
            Reader::Fragment(fragment) => !self.done[fragment],
            Reader::Join | Reader::Job => true,
        })
    }

    /// Returns the fragments that have yet to read a value.
    pub fn fragments_for(&self, name: &str) -> impl Iterator<Item = usize> + '_ {
        let readers = self.readers.get(name).into_iter().flatten();
        readers.filter_map(|reader| match *reader {
            Reader::Fragment(fragment) if !self.done[fragment] => Some(fragment),
            _ => None,
        })
    }

    pub fn get(&self, name: &str) -> Option<&HeldTensor> {
        self.tensors.get(name)
    }

    /// Holds a value; returns the previous value of that name.
    pub fn insert_value(&mut self, kept: HeldTensor) -> Option<HeldTensor> {
        self.tensors.insert(kept.name.to_string(), kept)
    }

    /// Records that a fragment has run. Returns the values that it read and that have no remaining
    /// readers.
    pub fn read_by<'a>(
        &mut self,
        fragment: usize,
        names: impl Iterator<Item = &'a String>,
    ) -> Vec<HeldTensor> {
        self.done[fragment] = true;
        let over = names.filter(|name| !self.is_wanted(name));
        let over: Vec<&String> = over.collect();
        let held = over
            .into_iter()
            .filter_map(|name| self.tensors.remove(name));
        held.collect()
    }

    /// Records that a fragment is about to run, maybe again.
    pub fn mark_not_done(&mut self, fragment: usize) {
        self.done[fragment] = false;
    }

    /// Removes and returns all of these values, if all are held.
    pub fn take_all(&mut self, names: &[String]) -> Option<Vec<HeldTensor>> {
        let all = names.iter().all(|name| self.tensors.contains_key(name));
        let take = |name| self.tensors.remove(name);
        all.then(|| names.iter().filter_map(take).collect())
    }

    /// Removes and returns every value.
    pub fn take_values(&mut self) -> Vec<HeldTensor> {
        std::mem::take(&mut self.tensors).into_values().collect()
    }
}
