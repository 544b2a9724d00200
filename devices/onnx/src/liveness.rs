//! Computes the lifetime of each value of a run: from the step that makes it to the last step that
//! reads it.
//!
//! Engines free values by these lifetimes, and the planner computes a run's peak of memory from
//! them, so that the provider checks the same figure that a run has.

use std::collections::BTreeMap;

use crate::NodeProto;
use crate::graph::values_read;

/// The values that a step of a run reads and makes.
#[derive(Clone, Debug)]
pub struct StepValues<V> {
    /// Values that it reads. [`Liveness::new`] ignores those that neither a step nor the caller
    /// makes, such as weights.
    pub reads: Vec<V>,
    /// Values that it makes.
    pub makes: Vec<V>,
}

/// The values of a run, and the steps that need each.
#[derive(Clone, Debug)]
pub struct Liveness<V> {
    lives: BTreeMap<V, LiveRange>,
    steps: usize,
}

/// The first and last steps that need a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LiveRange {
    first: usize,
    last: usize,
    /// Whether it outlives the last step.
    is_kept: bool,
}

impl<'a> StepValues<&'a str> {
    /// Returns the values of a step that runs these nodes.
    #[must_use]
    pub fn of_nodes(nodes: &'a [NodeProto]) -> Self {
        let made = nodes.iter().flat_map(|node| &node.output);
        Self {
            reads: nodes.iter().flat_map(values_read).collect(),
            makes: made
                .map(String::as_str)
                .filter(|name| !name.is_empty())
                .collect(),
        }
    }
}

impl<V: Ord + Clone> Liveness<V> {
    /// Computes the lifetimes of a run's values: those in `given` exist before its first step, and
    /// those in `kept` must outlive its last. The steps must be in the order in which they run.
    pub fn new(
        given: impl IntoIterator<Item = V>,
        steps: impl IntoIterator<Item = StepValues<V>>,
        kept: impl IntoIterator<Item = V>,
    ) -> Self {
        let mut lives = BTreeMap::new();
        let born_at = |first| LiveRange {
            first,
            last: first,
            is_kept: false,
        };
        for value in given {
            lives.insert(value, born_at(0));
        }
        let mut count = 0;
        for (index, step) in steps.into_iter().enumerate() {
            for value in step.makes {
                lives.entry(value).or_insert_with(|| born_at(index));
            }
            for value in step.reads {
                if let Some(life) = lives.get_mut(&value) {
                    life.last = life.last.max(index);
                }
            }
            count = index + 1;
        }
        for value in kept {
            if let Some(life) = lives.get_mut(&value) {
                life.is_kept = true;
            }
        }
        Self {
            lives,
            steps: count,
        }
    }

    /// Returns for each step the values that an engine can free after it.
    #[must_use]
    pub fn freed_after_steps(&self) -> Vec<Vec<V>> {
        let mut freed = vec![Vec::new(); self.steps];
        for (value, life) in self.lives.iter().filter(|(_, life)| !life.is_kept) {
            if let Some(freed) = freed.get_mut(life.last) {
                freed.push(value.clone());
            }
        }
        freed
    }

    /// Returns for each step the bytes of the values that exist while it runs.
    #[must_use]
    pub fn bytes_by_step(&self, bytes: impl Fn(&V) -> u64) -> Vec<u64> {
        let mut changes = vec![0i128; self.steps + 1];
        for (value, life) in &self.lives {
            let end = match life.is_kept {
                true => self.steps,
                false => life.last + 1,
            };
            let bytes = i128::from(bytes(value));
            changes[life.first.min(self.steps)] += bytes;
            changes[end.min(self.steps)] -= bytes;
        }
        let mut alive = 0;
        let alive_at = changes.iter().take(self.steps).map(|change| {
            alive += change;
            u64::try_from(alive).unwrap_or(u64::MAX)
        });
        alive_at.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn step(reads: &[u8], makes: &[u8]) -> StepValues<u8> {
        StepValues {
            reads: reads.to_vec(),
            makes: makes.to_vec(),
        }
    }

    #[test]
    fn a_value_is_freed_after_its_last_reader() {
        // 0 is given; 1 is read twice, 2 by nobody, 3 is an output; 9 is a weight.
        let steps = [step(&[0, 9], &[1]), step(&[1], &[2, 3]), step(&[1, 3], &[])];
        let liveness = Liveness::new([0], steps, [3]);
        assert_eq!(
            liveness.freed_after_steps(),
            [vec![0], vec![2], vec![1]],
            "3 outlives the run"
        );
        assert_eq!(liveness.bytes_by_step(|value| 1 << value), [3, 14, 10]);
    }

    #[test]
    fn a_run_without_steps_needs_nothing() {
        let liveness = Liveness::new([0], [], [0]);
        assert!(liveness.freed_after_steps().is_empty());
        assert!(liveness.bytes_by_step(|_| 1).is_empty());
    }

    proptest! {
        /// Played step by step: each value that is read is there, and what is there is counted.
        #[test]
        fn no_value_is_freed_before_a_step_that_reads_it(
            reads in prop::collection::vec(prop::collection::vec(any::<Index>(), 0..4), 1..20),
            outputs in prop::collection::vec(any::<Index>(), 1..3),
        ) {
            let reads_of = |(index, reads): (usize, &Vec<Index>)| -> Vec<usize> {
                reads.iter().map(|at| at.index(index + 1)).collect()
            };
            let steps: Vec<StepValues<usize>> = (reads.iter().enumerate())
                .map(|it| StepValues { reads: reads_of(it), makes: vec![it.0 + 1] })
                .collect();
            let kept: Vec<usize> = outputs.iter().map(|at| at.index(steps.len() + 1)).collect();
            let liveness = Liveness::new([0], steps.clone(), kept.clone());
            let (freed, bytes) = (liveness.freed_after_steps(), liveness.bytes_by_step(|_| 1));
            let mut alive = std::collections::BTreeSet::from([0]);
            for (index, step) in steps.iter().enumerate() {
                alive.extend(&step.makes);
                prop_assert!(step.reads.iter().all(|value| alive.contains(value)));
                prop_assert_eq!(bytes[index], alive.len() as u64);
                for value in &freed[index] {
                    prop_assert!(alive.remove(value), "freed twice");
                }
            }
            prop_assert_eq!(alive, kept.into_iter().collect());
        }
    }
}
