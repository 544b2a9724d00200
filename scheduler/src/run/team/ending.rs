//! How a run of a team ended.

use super::TeamRunError;
use crate::executor::{Ended, Execution, Stranded};

/// Why an execution did not end with all that it was to do, if so; pieces by name. What a device
/// that was lost before said is among the `losses`.
pub(super) fn ended_well(
    execution: &Execution,
    name: impl Fn(usize) -> String,
    losses: impl FnOnce() -> Vec<(usize, String)>,
) -> Result<(), TeamRunError> {
    match &execution.ended {
        Ended::Done => Ok(()),
        Ended::Cancelled => Err(TeamRunError::Cancelled),
        Ended::Deadline => Err(TeamRunError::Deadline),
        Ended::Failed { task, cause } => {
            let (piece, cause) = (name(*task), cause.clone());
            Err(TeamRunError::Piece { piece, cause })
        }
        Ended::Stranded(stranded) => {
            let devices = execution.devices.iter();
            let mut said: Vec<String> = devices.filter_map(|used| used.failed.clone()).collect();
            if said.is_empty() {
                said.extend(losses().into_iter().map(|(_, cause)| cause));
            }
            let faults = said.join("; ");
            let piece = match stranded {
                Stranded::Task { task } => name(*task),
                Stranded::Problem(_) => stranded.to_string(),
            };
            Err(TeamRunError::NoDevice { piece, faults })
        }
    }
}
