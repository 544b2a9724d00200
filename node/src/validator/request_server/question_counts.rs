//! Counts the questions that peers asked a validator, for its metrics page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_network::protocols::market::Request;

/// The number of questions of each kind since the start. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(in crate::validator) struct QuestionCounts(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl QuestionCounts {
    /// Counts a question.
    pub(super) fn count_question(&self, request: &Request) {
        *self.lock_counts().entry(request.kind()).or_default() += 1;
    }

    /// Returns the kinds that were asked, each with its count.
    pub(in crate::validator) fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let counts = self.lock_counts();
        counts.iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    fn lock_counts(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        // No code under this lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
