//! Improves a plan by simulated annealing on the order and the assignment of its tasks, from the
//! best plan of the list rules.
//!
//! A candidate is an order of all tasks and a device for each; decoding it places each task after
//! the last one of its device. Two things make a candidate cheap. First, annealing draws the
//! acceptance threshold in advance, so that it can refuse a change at the place of its effect,
//! without decoding the rest. Second, it tries most changes where they matter, on the critical
//! path.

mod decode;
mod moves;
mod random;
mod whole;

use super::portfolio::Plans;
use super::state::{GapPolicy, PartialSchedule};
use super::{Pace, in_time};
use crate::planning::objective::Objective;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use decode::{Change, Decoder};
use moves::propose_change;
use whole::WholeDecoder;

pub(super) use decode::least_tails;
pub use random::Random;

/// Temperatures as parts of the first makespan. The hottest grows with the number of steps for each
/// task, `HOTTEST_UNIT` x steps ^ `HOTTEST_POWER`, within bounds; the coldest follows it.
const HOTTEST_UNIT: f64 = 0.0012;
const HOTTEST_POWER: f64 = 0.37;
const HOTTEST_MIN: f64 = 0.002;
const HOTTEST_MAX: f64 = 0.05;
const COLDEST_SHARE: f64 = 0.05;
const COLDEST_MIN: f64 = 0.0005;

/// The hottest temperature for whole candidates: a part of one task's share of the whole, within
/// bounds. The coldest follows it.
const WHOLE_UNIT: f64 = 1.0;
const WHOLE_MIN: f64 = 0.004;
const WHOLE_MAX: f64 = 0.1;

/// Steps for each task that make another cooling cycle worthwhile, and maximum number of cycles.
const CYCLE_STEPS_EACH: f64 = 6000.0;
const CYCLES_MAX: f64 = 6.0;

/// Seed of the random numbers; any number would do.
const SEED: u64 = 1;

/// Part of the effort for finding any plan within the deadline.
const DEADLINE_SHARE: f64 = 0.5;

/// Steps after which the pace predicts the total number of steps.
const CALIBRATION: u64 = 64;

/// Steps between two checks of the effort.
const STEPS_BETWEEN: u64 = 32;

pub(super) fn plan(problem: &Problem, pace: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let plans = Plans::from_quick_plan(problem)?;
    improve_plans(problem, plans, pace)
}

/// Improves the best of `plans`; never returns anything worse.
pub(super) fn improve_plans(
    problem: &Problem,
    plans: Plans,
    pace: &mut Pace<'_>,
) -> Result<Schedule, ProblemError> {
    let (plans, taken) = meet_deadline(problem, plans, pace)?;
    let pace = &mut |steps| pace(taken + steps);
    if problem.task_count() < 2 || pace(0) >= 1.0 {
        return Ok(plans.best);
    }
    if problem.objective() != Objective::Fastest {
        improve_whole(problem, plans, pace)
    } else {
        improve_paths(problem, plans, pace)
    }
}

/// If none of `plans` meets the deadline, spends a part of the effort on the shortest plan, which
/// becomes the best. Returns the plans and the number of steps. The objective's own search
/// continues from there.
fn meet_deadline(
    problem: &Problem,
    mut plans: Plans,
    pace: &mut Pace<'_>,
) -> Result<(Plans, u64), ProblemError> {
    if plans.best.score(problem).late == 0 {
        return Ok((plans, 0));
    }
    let short = problem.with_objective(Objective::Fastest, None);
    let mut taken = 0;
    let found = improve_plans(
        &short,
        Plans::from_single(plans.best.clone()),
        &mut |steps| {
            taken = steps;
            pace(steps) / DEADLINE_SHARE
        },
    )?;
    plans.best = in_time(problem, found)?;
    Ok((plans, taken))
}

/// Anneals candidates by their total score.
fn improve_whole(
    problem: &Problem,
    plans: Plans,
    pace: &mut Pace<'_>,
) -> Result<Schedule, ProblemError> {
    let first = plans.best;
    let mut random = Random::new(SEED);
    let mut whole = WholeDecoder::new(problem, first.score(problem));
    let mut decoder = Decoder::new(problem, &first);
    let mut now = whole.score(&decoder.order, &decoder.device);
    decoder.name_critical(|critical| whole.collect_critical(&now, critical));
    let (mut best, mut best_score) = (decoder.snapshot(), now);
    let mut change = Change::default();
    // In parts of the first value, like the energy of the whole.
    let mut cooling = CoolingSchedule::new(problem.task_count(), 1.0);
    let hottest = (WHOLE_UNIT / problem.task_count() as f64).clamp(WHOLE_MIN, WHOLE_MAX);
    cooling.always = Some(hottest);
    for step in 0u64.. {
        if step.is_multiple_of(STEPS_BETWEEN) {
            let used = pace(step);
            if used >= 1.0 {
                break;
            }
            if cooling.advance_to(step, used) {
                decoder = Decoder::from_snapshot(problem, &best);
                now = whole.score(&decoder.order, &decoder.device);
                decoder.name_critical(|critical| whole.collect_critical(&now, critical));
            }
        }
        if !propose_change(&mut decoder, &mut random, &mut change) {
            continue;
        }
        let threshold = whole.energy(&now) + cooling.temperature * random.next_exponential();
        let made = decoder.attempt_by(&mut change, |order, device| {
            let score = whole.score(order, device);
            let accepted = whole.energy(&score) <= threshold;
            now = if accepted { score } else { now };
            accepted
        });
        if made {
            decoder.name_critical(|critical| whole.collect_critical(&now, critical));
        }
        if made && now < best_score {
            (best, best_score) = (decoder.snapshot(), now);
        }
    }
    let found = whole::build_schedule(problem, &best.order, &best.device)?;
    Ok(if found.score(problem) < first.score(problem) {
        found
    } else {
        first
    })
}

/// Anneals candidates by the paths that a change touches.
fn improve_paths(
    problem: &Problem,
    plans: Plans,
    pace: &mut Pace<'_>,
) -> Result<Schedule, ProblemError> {
    let first = plans.best;
    let mut random = Random::new(SEED);
    let mut decoder = Decoder::new(problem, &first);
    let mut best = decoder.snapshot();
    let mut change = Change::default();
    let mut cooling = CoolingSchedule::new(problem.task_count(), best.makespan as f64);
    let mut step = 0u64;
    loop {
        if step.is_multiple_of(STEPS_BETWEEN) {
            let used = pace(step);
            if used >= 1.0 {
                break;
            }
            if cooling.advance_to(step, used) {
                decoder = match plans.others.len() {
                    others if others > 0 && random.next_unit() < 0.5 => {
                        Decoder::new(problem, &plans.others[random.next_below(others)])
                    }
                    _ => Decoder::from_snapshot(problem, &best),
                };
            }
        }
        step += 1;
        if !propose_change(&mut decoder, &mut random, &mut change) {
            continue;
        }
        let threshold = decoder.makespan() as f64 + cooling.temperature * random.next_exponential();
        if decoder.attempt_change(&mut change, threshold as u64)
            && decoder.makespan() < best.makespan
        {
            best = decoder.snapshot();
        }
    }
    let found = rebuild_schedule(problem, &best.order, &best.device)?;
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

/// The temperature over the effort: it falls geometrically, in one cycle or, with many steps for
/// each task, in several.
#[derive(Debug)]
struct CoolingSchedule {
    tasks: f64,
    scale: f64,
    begun: Option<f64>,
    /// The hottest temperature, if the number of steps does not decide it.
    always: Option<f64>,
    hottest: f64,
    coldest: f64,
    cycles: f64,
    cycle: f64,
    temperature: f64,
}

impl CoolingSchedule {
    /// Creates the cooling of `tasks` tasks, with temperatures as parts of `scale`.
    fn new(tasks: usize, scale: f64) -> Self {
        Self {
            tasks: tasks as f64,
            scale,
            begun: None,
            always: None,
            hottest: 2.0 * HOTTEST_MIN,
            coldest: COLDEST_MIN,
            cycles: 1.0,
            cycle: 0.0,
            temperature: 0.0,
        }
    }

    /// Sets the temperature after `step` steps and `used` of the effort. Returns whether a cycle
    /// begins.
    fn advance_to(&mut self, step: u64, used: f64) -> bool {
        let begun = *self.begun.get_or_insert(used);
        if step == CALIBRATION {
            let total = step as f64 * (1.0 - begun) / (used - begun).max(1e-9);
            self.calibrate_cycles(total / self.tasks);
        }
        let share = (used - begun) / (1.0 - begun).max(1e-9) * self.cycles;
        let begins = share.floor() > self.cycle;
        self.cycle = share.floor();
        let cooled = (self.coldest / self.hottest).powf(share - self.cycle);
        self.temperature = self.scale * self.hottest * cooled;
        begins
    }

    fn calibrate_cycles(&mut self, steps_each: f64) {
        self.cycles = (steps_each / CYCLE_STEPS_EACH)
            .floor()
            .clamp(1.0, CYCLES_MAX);
        let hottest = HOTTEST_UNIT * (steps_each / self.cycles).powf(HOTTEST_POWER);
        self.hottest = self
            .always
            .unwrap_or(hottest.clamp(HOTTEST_MIN, HOTTEST_MAX));
        self.coldest = (self.hottest * COLDEST_SHARE).max(COLDEST_MIN);
    }
}

/// Places tasks in the given order on the given devices, and fills gaps.
pub(super) fn rebuild_schedule(
    problem: &Problem,
    order: &[u32],
    device: &[u32],
) -> Result<Schedule, ProblemError> {
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for &task in order {
        let (task, device) = (task as usize, device[task as usize] as usize);
        let slot = state
            .earliest_slot(task, device)
            .ok_or_else(|| state.full_error(task))?;
        state.place_task(task, device, slot);
    }
    Ok(state.into_schedule())
}
