//! Converts the end of a run on a group of devices into the group's error, for people: task numbers
//! become the names of fragments, and lost devices give their causes.

use crate::execution::dispatch::StrandedCause;
use crate::execution::error::GroupRunError;
use crate::execution::worker_pool::{Execution, JobEnd};

/// Checks that an execution completed.
///
/// `name` returns the name of a task's fragment. `losses` supplies the causes of devices that were
/// lost before this run; it is called only if no device of this run has a cause.
///
/// # Errors
/// Returns the reason why the execution did not complete.
pub(super) fn check_completion(
    execution: &Execution,
    name: impl Fn(usize) -> String,
    losses: impl FnOnce() -> Vec<(usize, String)>,
) -> Result<(), GroupRunError> {
    match &execution.ended {
        JobEnd::Done => Ok(()),
        JobEnd::Cancelled => Err(GroupRunError::Cancelled),
        JobEnd::Deadline => Err(GroupRunError::Deadline),
        JobEnd::Failed { task, cause } => {
            let (fragment, cause) = (name(*task), cause.clone());
            Err(GroupRunError::Fragment { fragment, cause })
        }
        JobEnd::Stranded(stranded) => {
            let devices = execution.devices.iter();
            let mut said: Vec<String> = devices.filter_map(|used| used.failed.clone()).collect();
            if said.is_empty() {
                said.extend(losses().into_iter().map(|(_, cause)| cause));
            }
            let faults = said.join("; ");
            let fragment = match stranded {
                StrandedCause::Task { task } => name(*task),
                StrandedCause::Problem(_) => stranded.to_string(),
            };
            Err(GroupRunError::NoDevice { fragment, faults })
        }
    }
}
