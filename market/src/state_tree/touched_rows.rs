//! Records the numbers of the rows (accounts, leases, orders or requests) that commands touched
//! since the last state root, so that the next root hashes only these.

use std::collections::BTreeSet;

/// The most numbers noted: a second of the busiest market, two megabytes. Beyond it, the next root
/// hashes all rows again.
const NOTED_MAX: usize = 1 << 18;

/// The numbers of touched rows. They follow from the state and the last root, so they are no part
/// of the state.
#[derive(Clone, Debug)]
pub(crate) struct TouchedRows {
    numbers: Vec<u64>,
    /// Whether any row can differ from the tree, so that numbers would say nothing more.
    is_all: bool,
}

impl Default for TouchedRows {
    fn default() -> Self {
        Self {
            numbers: Vec::new(),
            is_all: true,
        }
    }
}

impl PartialEq for TouchedRows {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TouchedRows {}

impl TouchedRows {
    /// Notes a row. This costs nothing in a market of which nobody asks a root.
    #[inline]
    pub(crate) fn note(&mut self, number: u64) {
        if self.is_all || self.numbers.last() == Some(&number) {
            return;
        }
        self.numbers.push(number);
        if self.numbers.len() >= NOTED_MAX {
            self.make_room();
        }
    }

    #[cold]
    fn make_room(&mut self) {
        self.numbers.sort_unstable();
        self.numbers.dedup();
        if self.numbers.len() > NOTED_MAX / 2 {
            *self = Self::default();
        }
        assert!(self.numbers.len() < NOTED_MAX, "notes are bounded");
    }

    /// Returns whether the next root hashes all rows.
    pub(crate) fn is_all(&self) -> bool {
        self.is_all
    }

    /// Returns how many different rows are noted; none if all rows must be hashed again.
    pub(crate) fn count_distinct(&self) -> Option<usize> {
        let numbers: BTreeSet<&u64> = self.numbers.iter().collect();
        (!self.is_all).then_some(numbers.len())
    }

    /// Takes the noted numbers, each once and in order; none if all rows must be hashed again.
    pub(crate) fn take(&mut self) -> Option<Vec<u64>> {
        if std::mem::replace(&mut self.is_all, false) {
            return None;
        }
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.sort_unstable();
        numbers.dedup();
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_told_once_after_the_first_root() {
        let mut touched = TouchedRows::default();
        touched.note(3);
        assert_eq!(touched.count_distinct(), None);
        assert_eq!(touched.take(), None, "everything is new");
        for number in [5, 5, 2, 5] {
            touched.note(number);
        }
        assert_eq!(touched.count_distinct(), Some(2));
        assert_eq!(touched.take(), Some(vec![2, 5]));
        assert_eq!(touched.take(), Some(vec![]));
    }

    #[test]
    fn too_many_numbers_become_all_and_many_notes_of_few_do_not() {
        let mut touched = TouchedRows::default();
        touched.take();
        for number in 0..3 * NOTED_MAX as u64 {
            touched.note(number % 1_000);
        }
        assert_eq!(touched.take().map(|all| all.len()), Some(1_000));
        (0..NOTED_MAX as u64).for_each(|number| touched.note(number));
        assert!(touched.numbers.is_empty() && touched.take().is_none());
    }
}
