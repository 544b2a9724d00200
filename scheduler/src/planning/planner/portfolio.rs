//! Plans a problem by many list rules and returns the best plan: several ranks, several ways to
//! choose the device, forward and backward in time, each tightened, and the best single device.
//!
//! No rule is best everywhere, but together they lose little (docs/performance.md has the figures).

use super::rank::{ExecSummary, exec_summary, optimistic_costs, ready_by_rank, upward_rank};
use super::state::{GapPolicy, PartialSchedule};
use super::{
    Pace, by_cost, dls, heft, in_time, lookahead, min_min, pack, peft, single, sufferage, tighten,
};
use crate::planning::objective::Objective;
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

/// Maximum number of tasks for the rules that look at every ready task.
const SLOW_TASKS_MAX: usize = 5_000;

pub(super) fn plan(problem: &Problem, pace: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    let (plans, _) = collect_plans(problem, pace)?;
    in_time(problem, plans.best)
}

/// Returns the better of HEFT and the best single device, without delay. If memory is so short that
/// neither works, packs tasks by size.
pub(super) fn quick_plan(problem: &Problem) -> Result<Schedule, ProblemError> {
    let heft = heft::plan(problem, &mut super::step_pace(0));
    let heft = heft.or_else(|full| pack::plan(problem).ok_or(full));
    match (heft, single::best_single_device(problem)) {
        (Ok(heft), Some(single)) if single.score(problem) < heft.score(problem) => Ok(single),
        (Ok(heft), _) => Ok(heft),
        (Err(_), Some(single)) => Ok(single),
        (Err(error), None) => Err(error),
    }
}

/// The best plan so far by the problem's objective, and others worth improving.
pub(super) struct Plans {
    pub(super) best: Schedule,
    pub(super) others: Vec<Schedule>,
}

/// Maximum number of other plans.
const OTHERS_MAX: usize = 8;

impl Plans {
    /// Creates plans from HEFT and the best single device only.
    pub(super) fn from_quick_plan(problem: &Problem) -> Result<Self, ProblemError> {
        let best = quick_plan(problem)?;
        let others = Vec::new();
        Ok(Self { best, others })
    }

    /// Creates plans from a single one.
    pub(super) fn from_single(best: Schedule) -> Self {
        let others = Vec::new();
        Self { best, others }
    }

    fn add(&mut self, problem: &Problem, plan: Schedule) {
        let score = plan.score(problem);
        if score < self.best.score(problem) {
            let old = std::mem::replace(&mut self.best, plan);
            self.others.insert(0, old);
        } else {
            let place = self
                .others
                .partition_point(|other| other.score(problem) <= score);
            self.others.insert(place, plan);
        }
        self.others.truncate(OTHERS_MAX);
    }

    /// Adds a tightened plan, and also the plan itself if a shorter plan can be worse by the
    /// objective.
    fn add_tightened(&mut self, problem: &Problem, plan: Schedule) {
        let tightened = tighten::plan(problem, &plan);
        if problem.objective() != Objective::Fastest {
            self.add(problem, plan);
        }
        self.add(problem, tightened);
    }
}

/// Tries rule after rule until all are tried or the effort is used up, and skips rules that would
/// exceed the remaining effort. Returns the plans and the number of steps. A step is the work to
/// place one task on the device where it ends first.
pub(super) fn collect_plans(
    problem: &Problem,
    pace: &mut Pace<'_>,
) -> Result<(Plans, u64), ProblemError> {
    let mut plans = Plans::from_quick_plan(problem)?;
    let first = plans.best.clone();
    plans.add_tightened(problem, first);
    for plan in by_cost::cost_plans(problem) {
        plans.add_tightened(problem, plan);
    }
    let tasks = problem.task_count() as u64;
    let mut steps = QUICK_STEPS_EACH * tasks;
    let mut backward = None;
    for rule in rules_by_gain(problem) {
        let used = pace(steps);
        let cost = rule.steps_each(problem) * tasks;
        // Predicts the effort of the rule from the steps so far.
        if used >= 1.0 || used + used * cost as f64 / steps.max(1) as f64 > 1.0 {
            continue;
        }
        steps += cost;
        if let Ok(plan) = rule.apply(problem) {
            plans.add_tightened(problem, plan);
        }
        if !rule.works_backward() {
            continue;
        }
        let backward = &*backward.get_or_insert_with(|| problem.to_reversed());
        if let Ok(plan) = rule.apply(backward)
            && let Some(plan) = tighten::from_reversed_plan(problem, &plan)
        {
            plans.add_tightened(problem, plan);
        }
    }
    Ok((plans, steps))
}

/// Steps for each task: HEFT, every single device and a tightening.
const QUICK_STEPS_EACH: u64 = 4;

/// A list rule.
#[derive(Clone, Copy)]
enum Rule {
    Lookahead,
    Dls,
    Peft,
    MinMin,
    Sufferage,
    Listed(Rank, DeviceRule),
}

/// The urgency of a task.
#[derive(Clone, Copy)]
enum Rank {
    Mean,
    Least,
    Greatest,
    Median,
    NoTransfer,
    HalfTransfer,
    Optimistic,
}

/// The choice of a device.
#[derive(Clone, Copy)]
enum DeviceRule {
    Finish,
    Optimistic,
    Lookahead,
}

/// Returns the rules in the order of their gain for their time.
fn rules_by_gain(problem: &Problem) -> Vec<Rule> {
    let mut rules = vec![Rule::Lookahead, Rule::Peft];
    if problem.task_count() <= SLOW_TASKS_MAX {
        rules.push(Rule::Dls);
    }
    let ranks = [
        Rank::Least,
        Rank::NoTransfer,
        Rank::Greatest,
        Rank::Median,
        Rank::HalfTransfer,
        Rank::Optimistic,
        Rank::Mean,
    ];
    for choice in [
        DeviceRule::Finish,
        DeviceRule::Optimistic,
        DeviceRule::Lookahead,
    ] {
        rules.extend(ranks.map(|rank| Rule::Listed(rank, choice)));
    }
    if problem.task_count() <= SLOW_TASKS_MAX {
        rules.extend([Rule::MinMin, Rule::Sufferage]);
    }
    rules
}

impl Rule {
    fn works_backward(self) -> bool {
        !matches!(self, Self::MinMin | Self::Sufferage)
    }

    /// Returns the steps for each task, forward and backward with their tightening.
    fn steps_each(self, problem: &Problem) -> u64 {
        match self {
            Self::Lookahead | Self::Listed(_, DeviceRule::Lookahead) => lookahead_steps(problem),
            Self::Dls | Self::MinMin | Self::Sufferage => 8 + problem.task_count() as u64 / 16,
            Self::Peft | Self::Listed(..) => 6,
        }
    }

    fn apply(self, problem: &Problem) -> Result<Schedule, ProblemError> {
        let pace = &mut super::step_pace(0);
        match self {
            Self::Lookahead => lookahead::plan(problem, pace),
            Self::Dls => dls::plan(problem, pace),
            Self::Peft => peft::plan(problem, pace),
            Self::MinMin => min_min::plan(problem, pace),
            Self::Sufferage => sufferage::plan(problem, pace),
            Self::Listed(rank, choice) => list_plan(problem, rank, choice),
        }
    }
}

/// Returns the steps of a lookahead for each task. A look at a child takes a step on each device;
/// many children of one task take the square of their number, because each avoids the others'
/// places.
fn lookahead_steps(problem: &Problem) -> u64 {
    let children = |task: usize| {
        let looks = problem
            .readers_of(task)
            .map(|(after, _)| problem.inputs_of(after).len() as u64);
        let own = problem.readers_of(task).len() as u64;
        looks.sum::<u64>() + own * own / 4
    };
    let looks: u64 = (0..problem.task_count()).map(children).sum();
    let edges = problem.parts().edges.len().max(1) as u64;
    2 + 2 * problem.device_count() as u64 * looks / edges
}

fn list_plan(problem: &Problem, rank: Rank, choice: DeviceRule) -> Result<Schedule, ProblemError> {
    let up = |summary, share| upward_rank(problem, &exec_summary(problem, summary), share);
    let devices = problem.device_count();
    let rank = match rank {
        Rank::Mean => up(ExecSummary::Mean, 1.0),
        Rank::Least => up(ExecSummary::Least, 1.0),
        Rank::Greatest => up(ExecSummary::Greatest, 1.0),
        Rank::Median => up(ExecSummary::Median, 1.0),
        Rank::NoTransfer => up(ExecSummary::Mean, 0.0),
        Rank::HalfTransfer => up(ExecSummary::Mean, 0.5),
        Rank::Optimistic => {
            let table = optimistic_costs(problem);
            table
                .chunks(devices)
                .map(|row| row.iter().sum::<f64>() / devices as f64)
                .collect()
        }
    };
    let order = ready_by_rank(problem, &rank);
    match choice {
        DeviceRule::Lookahead => lookahead::by_order(problem, &order),
        DeviceRule::Finish => place_tasks(problem, &order, |_, finish| finish as f64),
        DeviceRule::Optimistic => {
            let table = optimistic_costs(problem);
            place_tasks(problem, &order, |at, finish| finish as f64 + table[at])
        }
    }
}

/// Places tasks in order, which must be topological, each on the device with the least `key` of its
/// table index and end.
fn place_tasks(
    problem: &Problem,
    order: &[usize],
    key: impl Fn(usize, Time) -> f64,
) -> Result<Schedule, ProblemError> {
    let devices = problem.device_count();
    let mut state = PartialSchedule::new(problem, GapPolicy::Insert);
    for &task in order {
        let (device, slot) = state.best_by(task, |device, slot| {
            debug_assert!(problem.exec_time(task, device) != NEVER);
            key(task * devices + device, slot.finish)
        })?;
        state.place_task(task, device, slot);
    }
    Ok(state.into_schedule())
}
