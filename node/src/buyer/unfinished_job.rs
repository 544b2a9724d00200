//! A job that ended otherwise than its caller wanted.

use souk_market::JobId;
use souk_roles::job::{End, Reason, Spending};

use super::JobResult;

/// A job that was not done.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.why())]
pub struct UnfinishedJob {
    /// How it ended.
    pub how: End,
    /// What had failed before and was done without, in order.
    pub before: Vec<Reason>,
    /// What it has cost, if the market could be asked.
    pub spending: Option<Spending>,
    /// How many leases were ended before their time.
    pub leases_ended: u32,
    /// What was done and paid for all the same.
    pub done: JobResult,
}

impl UnfinishedJob {
    /// Why, for people.
    #[must_use]
    pub fn why(&self) -> String {
        match &self.how {
            End::Failed(reason) => reason.to_string(),
            End::Done | End::Cancelled => "it was stopped".to_owned(),
        }
    }

    /// Why, as a word that never changes its meaning.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.how {
            End::Failed(reason) => reason.code(),
            End::Done | End::Cancelled => "interrupted",
        }
    }

    /// A job that ended before anything was bought.
    pub(super) fn at_once(job: JobId, reason: Reason) -> Box<UnfinishedJob> {
        Box::new(UnfinishedJob {
            how: End::Failed(reason),
            before: Vec::new(),
            spending: None,
            leases_ended: 0,
            done: JobResult::new(job),
        })
    }
}
