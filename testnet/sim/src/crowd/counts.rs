//! Counts what happens in a crowd for its report, and computes, for comparison, how much of the
//! same demand an omniscient scheduler would serve.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use souk_market::{Acceptance, Refusal};
use souk_roles::job::End;

/// The work of one job: when it arrives, which model of device it needs, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub arrived_us: u64,
    /// The index of the model of device among those of the configuration.
    pub model: usize,
    pub length_us: u64,
}

/// The messages and the validators' work from the beginning of a run to a moment; the report takes
/// it at the end of demand.
pub struct Traffic {
    /// Questions of providers to validators, and the bytes of questions and answers.
    pub questions: u64,
    pub bytes: u64,
    /// The part of these from providers whose device was not sold at that time.
    pub idle_questions: u64,
    pub idle_bytes: u64,
    /// The processor time of the busiest validator, in microseconds.
    pub validator_us: u64,
    /// The bytes of all batches in the log.
    pub log_bytes: u64,
    /// The number of commands in these batches.
    pub commands: u64,
    /// Messages on the streams between buyers and providers.
    pub lease_messages: u64,
    /// Asks in the book at that moment.
    pub asks: u64,
    /// By kind, the questions of all machines, and the bytes of questions and answers.
    pub by_kind: BTreeMap<&'static str, (u64, u64)>,
}

/// The counts of a run.
#[derive(Default)]
pub struct CrowdCounts {
    /// Events of the simulator.
    pub events: u64,
    /// Events that providers' cores handled.
    pub provider_steps: u64,
    /// Events that jobs' cores handled.
    pub job_steps: u64,
    /// The demand of every job, in the order of arrival.
    pub demands: Vec<Demand>,
    /// For each job, the time from its arrival to its first lease, and to its first run; a job
    /// without a lease or a run has no entry.
    pub placed_us: Vec<u64>,
    pub started_us: Vec<u64>,
    /// The device time of jobs that ended done, without the part after the end of demand.
    pub worked_us: u64,
    /// How often a provider's process started.
    pub sessions: u64,
    /// How often a job asked for a plan.
    pub plans: u64,
    /// Plans that failed because no ask was eligible.
    pub plans_without: u64,
    /// Purchases that the market refused, mostly because another buyer was faster.
    pub taken_by_another: u64,
    pub ghosts_met: u64,
    pub retries: u64,
    pub refused: u64,
    pub overbilled: u64,
    pub noted_beyond_work: u64,
    pub liars_paid_by_notes: u64,
    pub lease_messages: u64,
    pub questions_stopped: u64,
    pub busy: u64,
    pub jobs_done: u64,
    /// By reason: jobs that failed or were cancelled, leases that closed, and commands that the
    /// exchange refused.
    pub failures: BTreeMap<String, u64>,
    pub closed: BTreeMap<String, u64>,
    pub refusals: BTreeMap<String, u64>,
}

impl CrowdCounts {
    /// Counts a job as done, or as failed for a reason.
    pub fn count_outcome(&mut self, how: &End) {
        match how {
            End::Done => self.jobs_done += 1,
            End::Cancelled => *self.failures.entry("cancelled".to_owned()).or_default() += 1,
            End::Failed(reason) => {
                *self.failures.entry(reason.code().to_owned()).or_default() += 1;
            }
        }
    }

    /// Counts the refused commands of a batch by the name of the [`Refusal`]'s variant.
    pub fn count_refusals(&mut self, results: &[Result<Acceptance, Refusal>]) {
        for refusal in results.iter().filter_map(|result| result.as_ref().err()) {
            let text = format!("{refusal:?}");
            let end = text.find([' ', '{', '(']).unwrap_or(text.len());
            *self.refusals.entry(text[..end].to_owned()).or_default() += 1;
        }
    }
}

/// Sorts the values, and returns the one at this permille: 500 gives the median. Returns 0 if there
/// are no values.
pub fn permille_of(values: &mut [u64], permille: usize) -> u64 {
    values.sort_unstable();
    let place = values.len() * permille / 1_000;
    values
        .get(place.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0)
}

/// Returns the device time before `end_us` that an omniscient scheduler would fill, in
/// microseconds. It knows every device, sees each demand at once and starts work without delay:
/// first come, first served, on a device of the demanded model. A demand that would wait longer
/// than `wait_us` leaves. `demands` must be in the order of arrival; `devices` has the number of
/// devices of each model.
pub fn ideal_work_us(demands: &[Demand], devices: &[u64], wait_us: u64, end_us: u64) -> u64 {
    let pool = |count: &u64| (0..*count).map(|_| Reverse(0)).collect();
    let mut pools: Vec<BinaryHeap<Reverse<u64>>> = devices.iter().map(pool).collect();
    let mut worked = 0;
    for demand in demands {
        let pool = &mut pools[demand.model];
        let Some(Reverse(free_at)) = pool.peek().copied() else {
            continue;
        };
        let start = free_at.max(demand.arrived_us);
        if start > demand.arrived_us + wait_us {
            continue;
        }
        pool.pop();
        pool.push(Reverse(start + demand.length_us));
        worked += demand.length_us.min(end_us.saturating_sub(start));
    }
    worked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_fills_free_devices_and_turns_impatient_demand_away() {
        let demand = |arrived_us, model, length_us| Demand {
            arrived_us,
            model,
            length_us,
        };
        let demands = [
            demand(0, 0, 50),
            demand(10, 0, 50),
            demand(20, 0, 5),
            demand(48, 0, 30),
            demand(0, 1, 9),
        ];
        // The third demand would wait for 30, which is too long. The fourth starts at 50, and the
        // run ends at 70. The fifth has no device.
        assert_eq!(ideal_work_us(&demands, &[2, 0], 10, 70), 50 + 50 + 20);
    }

    #[test]
    fn a_share_of_values_does_not_exceed_their_permille() {
        let mut values: Vec<u64> = (1..=1_000).rev().collect();
        assert_eq!(permille_of(&mut values, 990), 991);
        assert_eq!(permille_of(&mut [], 500), 0);
    }
}
