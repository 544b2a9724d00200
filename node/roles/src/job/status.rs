//! Reports the state of a job to observers: its attempts, its leases at work, its requests, and how
//! it ends.

use serde::{Deserialize, Serialize};

use super::JobCore;
use super::facts::End;
use super::reason::Reason;
use super::state::Stage;

/// The state of a job, for observers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The number of attempts that bought leases.
    pub attempts: u32,
    /// The number of leases at work.
    pub working: u32,
    /// The number of requests that the caller has answers to.
    pub answered: u32,
    /// The number of requests that wait for answers.
    pub waiting: u32,
    /// The failures that the job recovered from.
    pub losses: Vec<Reason>,
    /// How it ends, once it does.
    pub ending: Option<End>,
    /// Whether no more actions follow.
    pub is_over: bool,
}

impl JobCore {
    /// Returns the state of the job.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        let legs = self.attempts.values().flat_map(|attempt| &attempt.legs);
        let working = legs.filter(|leg| leg.stage == Stage::Working).count();
        JobStatus {
            attempts: self.next_attempt,
            working: u32::try_from(working).unwrap_or(u32::MAX),
            answered: self.answered,
            waiting: u32::try_from(self.requests.len()).unwrap_or(u32::MAX),
            losses: self.losses.clone(),
            ending: self.ending.as_ref().map(|ending| ending.how.clone()),
            is_over: self.is_over(),
        }
    }
}
