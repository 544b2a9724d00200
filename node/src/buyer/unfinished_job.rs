//! Defines the error that a buyer returns for a job that did not end as its caller wanted. It
//! contains how the job ended, what it cost, and the results that were computed and paid for.

use souk_market::JobId;
use souk_roles::job::{End, Reason, Spending};

use super::JobResult;

/// A job that ended early.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.reason_text())]
pub struct UnfinishedJob {
    /// How it ended.
    pub how: End,
    /// Earlier failures from which the job recovered, in order.
    pub before: Vec<Reason>,
    /// The cost of the job, if a validator answered.
    pub spending: Option<Spending>,
    /// How many leases the buyer ended early.
    pub leases_ended: u32,
    /// The results that were computed and paid for.
    pub done: JobResult,
}

impl UnfinishedJob {
    /// Returns the reason as a sentence.
    #[must_use]
    pub fn reason_text(&self) -> String {
        match &self.how {
            End::Failed(reason) => reason.to_string(),
            End::Done | End::Cancelled => "it was stopped".to_owned(),
        }
    }

    /// Returns the reason as a code whose meaning will never change.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.how {
            End::Failed(reason) => reason.code(),
            End::Done | End::Cancelled => "interrupted",
        }
    }

    /// Returns a job that ended before any purchase.
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
