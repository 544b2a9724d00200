//! Makes the ids of a buyer's jobs, and remembers the last ids under which it bought leases.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use souk_folder::clock::unix_us;
use souk_market::{AccountKey, JobId};
use souk_memory::ContentId;

/// How many ids this process has drawn.
static DRAWN: AtomicU32 = AtomicU32::new(0);

/// The most ids that are remembered. A market forgets closed leases too.
const REMEMBERED_MAX: usize = 4_096;

/// The last ids under which leases were bought.
#[derive(Debug, Default)]
pub(super) struct LastJobs(VecDeque<JobId>);

impl LastJobs {
    /// Remembers an id, and forgets the oldest if there are too many.
    pub(super) fn push(&mut self, job: JobId) {
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(job);
    }

    /// Returns the ids, the oldest first.
    pub(super) fn list(&self) -> Vec<JobId> {
        self.0.iter().copied().collect()
    }
}

/// Returns a new job id of an account. The time, the process id and a counter make it unique.
#[must_use]
pub fn draw_job(account: AccountKey) -> JobId {
    let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
    let mut words = account.0.to_vec();
    words.extend_from_slice(&unix_us().to_le_bytes());
    words.extend_from_slice(&std::process::id().to_le_bytes());
    words.extend_from_slice(&drawn.to_le_bytes());
    JobId(*ContentId::for_content(&words).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_that_runs_for_months_remembers_the_last_purchases() {
        let mut jobs = LastJobs::default();
        let drawn: Vec<JobId> = (0..REMEMBERED_MAX + 3)
            .map(|_| draw_job(AccountKey([1; 32])))
            .collect();
        drawn.iter().for_each(|job| jobs.push(*job));
        assert_eq!(jobs.list(), drawn[3..]);
    }
}
