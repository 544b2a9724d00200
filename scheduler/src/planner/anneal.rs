//! Simulated annealing on order and assignment, from the best list plan.
//!
//! A candidate is an order of all tasks and a device for each; decoding it places each task behind
//! the last one of its device. Two things make a candidate cheap: the acceptance threshold is drawn
//! first, so that a change is refused where its effect shows, without decoding the rest; and most
//! changes are tried where they matter, on the critical path.

mod decode;
mod moves;
mod random;

use super::Pace;
use super::portfolio::Plans;
use super::state::{Placing, State};
use crate::problem::{Problem, ProblemError, Time};
use crate::schedule::Schedule;

pub(super) use decode::least_tails;
use decode::{Change, Decoder};
use moves::propose;
pub(crate) use random::Random;

/// Temperatures as shares of the first makespan.
/// Temperatures as shares of the first makespan: the hottest grows with the steps there are for
/// each task, `HOTTEST_UNIT` x steps ^ `HOTTEST_POWER`, within bounds; the coldest follows it.
const HOTTEST_UNIT: f64 = 0.0012;
const HOTTEST_POWER: f64 = 0.37;
const HOTTEST_MIN: f64 = 0.002;
const HOTTEST_MAX: f64 = 0.05;
const COLDEST_SHARE: f64 = 0.05;
const COLDEST_MIN: f64 = 0.0005;

/// Steps for each task that make a cycle of cooling worth beginning again, and most cycles.
const CYCLE_STEPS_EACH: f64 = 6000.0;
const CYCLES_MAX: f64 = 6.0;

/// Where the random numbers begin; any number would do.
const SEED: u64 = 1;

/// Steps after which the pace tells how many there will be.
const CALIBRATION: u64 = 64;

/// Steps between two questions how far the effort is used up.
const STEPS_BETWEEN: u64 = 32;

pub(super) fn plan(problem: &Problem, pace: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let plans = Plans::quick(problem)?;
    improve(problem, plans, pace)
}

/// Improves the best of `plans`; never returns anything worse.
pub(super) fn improve(
    problem: &Problem,
    plans: Plans,
    pace: &mut Pace<'_>,
) -> Result<Schedule, ProblemError> {
    let first = plans.best;
    if problem.tasks() < 2 || problem.is_contended() || pace(0) >= 1.0 {
        return Ok(first);
    }
    let mut random = Random::new(SEED);
    let mut decoder = Decoder::new(problem, &first);
    let mut best = decoder.snapshot();
    let mut change = Change::default();
    let mut cooling = Cooling::new(problem.tasks(), best.makespan);
    let mut step = 0u64;
    loop {
        if step.is_multiple_of(STEPS_BETWEEN) {
            let used = pace(step);
            if used >= 1.0 {
                break;
            }
            if cooling.advance(step, used) {
                decoder = match plans.others.len() {
                    others if others > 0 && random.unit() < 0.5 => {
                        Decoder::new(problem, &plans.others[random.below(others)])
                    }
                    _ => Decoder::restore(problem, &best),
                };
            }
        }
        step += 1;
        if !propose(&mut decoder, &mut random, &mut change) {
            continue;
        }
        let threshold = decoder.makespan() as f64 + cooling.temperature * random.exponential();
        if decoder.attempt(&mut change, threshold as u64) && decoder.makespan() < best.makespan {
            best = decoder.snapshot();
        }
    }
    let found = rebuild(problem, &best.order, &best.device)?;
    assert!(
        found.makespan <= best.makespan,
        "filling gaps never delays a task"
    );
    Ok(if found.makespan < first.makespan {
        found
    } else {
        first
    })
}

/// The temperature over the effort: it falls geometrically, in one cycle or, where there are many
/// steps for each task, in several.
#[derive(Debug)]
struct Cooling {
    tasks: f64,
    scale: f64,
    begun: Option<f64>,
    hottest: f64,
    coldest: f64,
    cycles: f64,
    cycle: f64,
    temperature: f64,
}

impl Cooling {
    fn new(tasks: usize, makespan: Time) -> Self {
        Self {
            tasks: tasks as f64,
            scale: makespan as f64,
            begun: None,
            hottest: 2.0 * HOTTEST_MIN,
            coldest: COLDEST_MIN,
            cycles: 1.0,
            cycle: 0.0,
            temperature: 0.0,
        }
    }

    /// Sets the temperature after `step` steps and `used` of the effort; whether a cycle begins.
    fn advance(&mut self, step: u64, used: f64) -> bool {
        let begun = *self.begun.get_or_insert(used);
        if step == CALIBRATION {
            let total = step as f64 * (1.0 - begun) / (used - begun).max(1e-9);
            self.calibrate(total / self.tasks);
        }
        let share = (used - begun) / (1.0 - begun).max(1e-9) * self.cycles;
        let begins = share.floor() > self.cycle;
        self.cycle = share.floor();
        let cooled = (self.coldest / self.hottest).powf(share - self.cycle);
        self.temperature = self.scale * self.hottest * cooled;
        begins
    }

    fn calibrate(&mut self, steps_each: f64) {
        self.cycles = (steps_each / CYCLE_STEPS_EACH)
            .floor()
            .clamp(1.0, CYCLES_MAX);
        let hottest = HOTTEST_UNIT * (steps_each / self.cycles).powf(HOTTEST_POWER);
        self.hottest = hottest.clamp(HOTTEST_MIN, HOTTEST_MAX);
        self.coldest = (self.hottest * COLDEST_SHARE).max(COLDEST_MIN);
    }
}

/// Places tasks in the given order on the given devices, filling gaps.
pub(super) fn rebuild(
    problem: &Problem,
    order: &[u32],
    device: &[u32],
) -> Result<Schedule, ProblemError> {
    let mut state = State::new(problem, Placing::Insert);
    for &task in order {
        let (task, device) = (task as usize, device[task as usize] as usize);
        let spot = state.spot(task, device).ok_or_else(|| state.full(task))?;
        state.place(task, device, spot);
    }
    Ok(state.into_schedule())
}
