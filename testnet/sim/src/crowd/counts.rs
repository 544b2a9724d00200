//! Counts what happens in a crowd, and computes what an omniscient scheduler would do with the same
//! demand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use souk_market::{Acceptance, Refusal};
use souk_roles::job::End;

/// A piece of demanded work.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub arrived_us: u64,
    pub model: usize,
    pub length_us: u64,
}

/// What was sent and computed until a moment.
pub struct Traffic {
    /// Questions of providers to validators, and the bytes of both ways.
    pub questions: u64,
    pub bytes: u64,
    /// Those among them of providers whose device was not sold.
    pub idle_questions: u64,
    pub idle_bytes: u64,
    /// The processor time of the busiest validator.
    pub validator_us: u64,
    pub log_bytes: u64,
    pub commands: u64,
    pub lease_messages: u64,
    pub asks: u64,
    /// Questions of all by kind, with the bytes of both ways.
    pub by_kind: BTreeMap<&'static str, (u64, u64)>,
}

/// The counts of a run.
#[derive(Default)]
pub struct CrowdCounts {
    pub events: u64,
    pub provider_steps: u64,
    pub job_steps: u64,
    pub demands: Vec<Demand>,
    /// From each job's arrival to its first lease, and to the first run.
    pub placed_us: Vec<u64>,
    pub started_us: Vec<u64>,
    /// The device time of finished work, as far as it was within the run.
    pub worked_us: u64,
    pub sessions: u64,
    pub plans: u64,
    /// Plans for which no ask suited.
    pub plans_without: u64,
    /// Bids that the market did not sell.
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
    /// Jobs that failed, closed leases and refused commands, each by reason.
    pub failures: BTreeMap<String, u64>,
    pub closed: BTreeMap<String, u64>,
    pub refusals: BTreeMap<String, u64>,
}

impl CrowdCounts {
    /// Counts the end of a job.
    pub fn count_outcome(&mut self, how: &End) {
        match how {
            End::Done => self.jobs_done += 1,
            End::Cancelled => *self.failures.entry("cancelled".to_owned()).or_default() += 1,
            End::Failed(reason) => {
                *self.failures.entry(reason.code().to_owned()).or_default() += 1;
            }
        }
    }

    /// Counts refused commands by the name of the refusal.
    pub fn count_refusals(&mut self, results: &[Result<Acceptance, Refusal>]) {
        for refusal in results.iter().filter_map(|result| result.as_ref().err()) {
            let text = format!("{refusal:?}");
            let end = text.find([' ', '{', '(']).unwrap_or(text.len());
            *self.refusals.entry(text[..end].to_owned()).or_default() += 1;
        }
    }
}

/// Returns the value that this many in a thousand of all do not exceed, which must be 1,000 at
/// most.
pub fn permille_of(values: &mut [u64], permille: usize) -> u64 {
    values.sort_unstable();
    let place = values.len() * permille / 1_000;
    values
        .get(place.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0)
}

/// Returns the device time that a scheduler would fill within the run if it knew every device, saw
/// each demand at once, and started work without delay: first come, first served, by model. Demand
/// that waits longer than `wait_us` leaves.
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
        // The third would wait for 30; the fourth starts at 50, and the run ends at 70.
        assert_eq!(ideal_work_us(&demands, &[2, 0], 10, 70), 50 + 50 + 20);
    }

    #[test]
    fn a_share_of_values_does_not_exceed_their_permille() {
        let mut values: Vec<u64> = (1..=1_000).rev().collect();
        assert_eq!(permille_of(&mut values, 990), 991);
        assert_eq!(permille_of(&mut [], 500), 0);
    }
}
