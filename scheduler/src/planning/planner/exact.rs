//! Finds the best plan of a problem, with a proof if the effort suffices, by branch and bound over
//! the next task and its device.
//!
//! Every plan without needless idle time can be built by placing the tasks in the order of their
//! starts, each after the last task of its device. So the search branches over ready tasks and
//! devices, and never starts a task before the last placed one. It cuts a branch as soon as a lower
//! bound reaches the best known plan: the fastest path from any placed task to the end, or all
//! remaining work spread perfectly over the devices.

use super::free_memory::FreeMemory;
use super::portfolio::{self, Plans};
use super::{Pace, anneal, in_time};
use crate::planning::objective::{Figures, Objective, Score};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::{NEVER, Time};

/// Maximum number of tasks for which `auto` tries a proof.
pub(super) const AUTO_TASKS_MAX: usize = 12;

/// Part of the effort for finding a good plan first, because bounds cut nothing without one.
const SEARCH_SHARE: f64 = 0.3;

/// Branches between two checks of the effort.
const BRANCHES_BETWEEN: u64 = 256;

/// The result of branch and bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenSchedule {
    /// The best plan.
    pub schedule: Schedule,
    /// No plan is shorter than this.
    pub lower_bound: Time,
    /// Whether the search proved that the plan is the best by the problem's objective.
    pub proved: bool,
    /// Number of examined branches.
    pub branches: u64,
}

pub(super) fn plan(problem: &Problem, pace: &mut Pace<'_>) -> Result<Schedule, ProblemError> {
    prove_optimal(problem, pace).map(|found| found.schedule)
}

/// Searches the best plan by the problem's objective and a proof that none is better. The effort
/// can run out before the proof, so you should check [`ProvenSchedule::proved`].
///
/// # Errors
/// [`ProblemError`] if no plan exists at all, or none within the deadline.
pub fn prove_optimal(
    problem: &Problem,
    pace: &mut Pace<'_>,
) -> Result<ProvenSchedule, ProblemError> {
    let (plans, taken) =
        portfolio::collect_plans(problem, &mut |steps| pace(steps) / SEARCH_SHARE)?;
    let lower_bound = lower_bound(problem);
    let is_fastest = problem.objective() == Objective::Fastest;
    let done = |schedule: &Schedule| is_fastest && schedule.makespan <= lower_bound;
    let ended = |schedule, proved, branches| ProvenSchedule {
        schedule,
        lower_bound,
        proved,
        branches,
    };
    if done(&plans.best) {
        return Ok(ended(plans.best, true, 0));
    }
    let mut used = 0;
    let late = plans.best.clone();
    let first = anneal::improve_plans(problem, Plans::from_single(plans.best), &mut |steps| {
        used = taken + steps;
        pace(used) / SEARCH_SHARE
    });
    // The search can still meet a deadline that annealing misses.
    let first = first.unwrap_or(late);
    let mut search = Search::new(problem, &first, pace, used);
    let whole = search.examine_branches(0);
    let branches = search.branches;
    let schedule = match search.best {
        Some(candidate) => anneal::rebuild_schedule(problem, &candidate.0, &candidate.1)?,
        None => first,
    };
    let proved = whole || done(&schedule);
    let mut found = ended(in_time(problem, schedule)?, proved, branches);
    if proved && is_fastest {
        found.lower_bound = found.schedule.makespan;
    }
    Ok(found)
}

/// Returns the longer of the longest path through the graph on the fastest devices and all work
/// spread perfectly.
fn lower_bound(problem: &Problem) -> Time {
    let least = |task: usize| problem.exec_row(task).iter().copied().min().unwrap_or(0);
    let tail = anneal::least_tails(problem);
    let path = (0..problem.task_count()).map(|task| least(task) + tail[task]);
    let work: Time = (0..problem.task_count()).map(least).sum();
    path.max()
        .unwrap_or(0)
        .max(work.div_ceil(problem.device_count() as Time))
}

struct Search<'a, 'p> {
    problem: &'a Problem,
    pace: &'a mut Pace<'p>,
    steps_before: u64,
    branches: u64,
    stopped: bool,
    limit: Score,
    costs: CostBound,
    best: Option<(Vec<u32>, Vec<u32>)>,
    order: Vec<u32>,
    device: Vec<u32>,
    finish: Vec<Time>,
    waiting: Vec<usize>,
    free: Vec<Time>,
    free_memory: FreeMemory,
    tail: Vec<Time>,
    least: Vec<Time>,
    work_left: Time,
}

impl<'a, 'p> Search<'a, 'p> {
    fn new(problem: &'a Problem, first: &Schedule, pace: &'a mut Pace<'p>, steps: u64) -> Self {
        let least = |task: usize| problem.exec_row(task).iter().copied().min().unwrap_or(0);
        let least: Vec<Time> = (0..problem.task_count()).map(least).collect();
        Self {
            problem,
            pace,
            steps_before: steps,
            branches: 0,
            stopped: false,
            limit: first.score(problem),
            costs: CostBound::new(problem),
            best: None,
            order: Vec::with_capacity(problem.task_count()),
            device: vec![0; problem.task_count()],
            finish: vec![0; problem.task_count()],
            waiting: (0..problem.task_count())
                .map(|task| problem.inputs_of(task).len())
                .collect(),
            free: vec![0; problem.device_count()],
            free_memory: FreeMemory::new(problem),
            tail: anneal::least_tails(problem),
            work_left: least.iter().sum(),
            least,
        }
    }

    /// Examines every continuation; returns false if the effort ran out. `last` is the start of the
    /// last placed task.
    fn examine_branches(&mut self, last: Time) -> bool {
        if self.order.len() == self.problem.task_count() {
            let device = |task: usize| self.device[task] as usize;
            let figures = self.problem.plan_figures(device, |task| self.finish[task]);
            let score = self.problem.score_figures(&figures);
            if score < self.limit {
                self.limit = score;
                self.best = Some((self.order.clone(), self.device.clone()));
            }
            return true;
        }
        for (_, start, task, device) in self.promising_choices(last) {
            self.branches += 1;
            if self.branches.is_multiple_of(BRANCHES_BETWEEN) {
                self.stopped |= (self.pace)(self.steps_before + self.branches) >= 1.0;
            }
            if self.stopped {
                return false;
            }
            self.explore_placement(task, device, start);
        }
        !self.stopped
    }

    /// Returns ready tasks with their devices and starts that can still beat the best, most
    /// promising first.
    fn promising_choices(&self, last: Time) -> Vec<(Time, Time, usize, usize)> {
        let mut choices = Vec::new();
        let placed = |task: usize| self.waiting[task] == usize::MAX;
        for task in (0..self.problem.task_count()).filter(|&task| self.waiting[task] == 0) {
            debug_assert!(!placed(task));
            for device in 0..self.problem.device_count() {
                let exec = self.problem.exec_time(task, device);
                if exec == NEVER || !self.free_memory.has_room(self.problem, task, device) {
                    continue;
                }
                let start = self.earliest_start(task, device, exec);
                let bound = start + exec + self.tail[task];
                if start >= last && self.may_reach(bound) {
                    choices.push((bound, start, task, device));
                }
            }
        }
        choices.sort_unstable();
        choices
    }

    fn earliest_start(&self, task: usize, device: usize, exec: Time) -> Time {
        let arrivals = self.problem.inputs_of(task).map(|(before, bytes)| {
            let from = self.device[before] as usize;
            self.finish[before] + self.problem.transfer_time(from, device, bytes)
        });
        let ready = arrivals.max().unwrap_or(0);
        if exec == 0 {
            ready
        } else {
            ready.max(self.free[device])
        }
    }

    fn explore_placement(&mut self, task: usize, device: usize, start: Time) {
        let problem = self.problem;
        let exec = problem.exec_time(task, device);
        let free = self.free[device];
        self.device[task] = device as u32;
        self.finish[task] = start + exec;
        if exec > 0 {
            self.free[device] = start + exec;
        }
        self.work_left -= self.least[task];
        self.costs.add_task(problem, task, device);
        if self.may_win(start) {
            self.order.push(task as u32);
            self.waiting[task] = usize::MAX;
            self.free_memory.take_bytes(problem, task, device);
            problem
                .readers_of(task)
                .for_each(|(after, _)| self.waiting[after] -= 1);
            self.examine_branches(start);
            problem
                .readers_of(task)
                .for_each(|(after, _)| self.waiting[after] += 1);
            self.free_memory.return_bytes(problem, task, device);
            self.waiting[task] = 0;
            self.order.pop();
        }
        self.costs.take_back(problem, task, device);
        self.work_left += self.least[task];
        self.free[device] = free;
        self.finish[task] = 0;
    }

    /// Returns whether the remaining work, spread perfectly from `now` on, can end before the best.
    fn may_win(&self, now: Time) -> bool {
        let taken: Time = self.free.iter().map(|&free| free.max(now)).sum();
        let even = (taken + self.work_left).div_ceil(self.problem.device_count() as Time);
        if self.problem.objective() == Objective::Fastest {
            return self.work_left == 0 || even < self.limit.makespan;
        }
        // While work remains, the plan ends no earlier than that.
        let even = if self.work_left == 0 { 0 } else { even };
        let path = (0..self.problem.task_count()).filter(|&task| self.waiting[task] == usize::MAX);
        let path = path.map(|task| self.finish[task] + self.tail[task]).max();
        let figures = Figures {
            makespan: even.max(path.unwrap_or(0)),
            cost: self.costs.price,
            energy: self.costs.energy,
        };
        self.problem.score_figures(&figures) < self.limit
    }

    /// Returns whether a plan of at least this makespan can still be the best.
    fn may_reach(&self, makespan: Time) -> bool {
        if self.problem.objective() == Objective::Fastest {
            return makespan < self.limit.makespan;
        }
        let figures = Figures {
            makespan,
            cost: self.costs.price,
            energy: self.costs.energy,
        };
        self.problem.score_figures(&figures) < self.limit
    }
}

/// Lower bounds of price and energy for all continuations: those of the placed tasks, plus the
/// least of any device for the others.
struct CostBound {
    price: u128,
    energy: u128,
    least: Vec<(u128, u128)>,
}

impl CostBound {
    fn new(problem: &Problem) -> Self {
        let runs = |task: usize| {
            let row = problem.exec_row(task).iter().enumerate();
            row.filter(|(_, time)| **time != NEVER)
        };
        let least = |task: usize| {
            let all = runs(task).map(|(device, _)| task_cost(problem, task, device));
            all.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
                .unwrap_or((0, 0))
        };
        let least: Vec<(u128, u128)> = (0..problem.task_count()).map(least).collect();
        Self {
            price: least.iter().map(|cost| cost.0).sum(),
            energy: least.iter().map(|cost| cost.1).sum(),
            least,
        }
    }

    fn add_task(&mut self, problem: &Problem, task: usize, device: usize) {
        let (price, energy) = task_cost(problem, task, device);
        self.price += price - self.least[task].0;
        self.energy += energy - self.least[task].1;
    }

    fn take_back(&mut self, problem: &Problem, task: usize, device: usize) {
        let (price, energy) = task_cost(problem, task, device);
        self.price -= price - self.least[task].0;
        self.energy -= energy - self.least[task].1;
    }
}

/// Returns the price and energy of a task on a device.
fn task_cost(problem: &Problem, task: usize, device: usize) -> (u128, u128) {
    let time = u128::from(problem.exec_time(task, device));
    let rates = (problem.device_price(device), problem.device_power(device));
    (time * u128::from(rates.0), time * u128::from(rates.1))
}
