//! Why a schedule is as it is: what each task waited for, what its next best device would have
//! cost, the longest chain of waits, and how busy the devices are.
//!
//! The next best is asked for task by task, since each answer runs the whole schedule again with
//! one task elsewhere and all else in its order.

use crate::problem::{NEVER, Problem, Time};
use crate::schedule::Schedule;

/// A schedule that answers questions.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    problem: &'a Problem,
    schedule: &'a Schedule,
    /// Tasks by their start.
    order: Vec<usize>,
    waits: Vec<Wait>,
}

/// What a task waited for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: it starts at once.
    Nothing,
    /// Its release.
    Release,
    /// Data of another task.
    Data(usize),
    /// The task ahead on its device.
    Device(usize),
    /// Nothing that shows: it could have started earlier.
    Idle,
}

/// Why a task is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWhy {
    /// Its device.
    pub device: usize,
    /// What it waited for.
    pub wait: Wait,
    /// The best other device for it, if another one runs it.
    pub next_best: Option<NextBest>,
}

/// Another device for a task, all else unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextBest {
    /// The device.
    pub device: usize,
    /// When the task itself would end.
    pub finish: Time,
    /// When everything would end.
    pub makespan: Time,
}

impl<'a> Explanation<'a> {
    /// Looks at a schedule of `problem`.
    #[must_use]
    pub fn new(problem: &'a Problem, schedule: &'a Schedule) -> Self {
        let mut place = vec![0; problem.tasks()];
        for (index, &task) in problem.order().iter().enumerate() {
            place[task] = index;
        }
        let mut order: Vec<usize> = (0..problem.tasks()).collect();
        order.sort_by_key(|&task| (schedule.start[task], place[task]));
        let mut waits = vec![Wait::Idle; problem.tasks()];
        let mut ahead: Vec<Option<usize>> = vec![None; problem.devices()];
        for &task in &order {
            waits[task] = wait(problem, schedule, task, ahead[schedule.device[task]]);
            if problem.exec(task, schedule.device[task]) > 0 {
                ahead[schedule.device[task]] = Some(task);
            }
        }
        Self {
            problem,
            schedule,
            order,
            waits,
        }
    }

    /// Why `task` is where it is.
    ///
    /// # Panics
    /// If there is no such task.
    #[must_use]
    pub fn task(&self, task: usize) -> TaskWhy {
        let own = self.schedule.device[task];
        let runs = |device: &usize| *device != own && self.problem.exec(task, *device) != NEVER;
        let others = (0..self.problem.devices()).filter(runs).map(|device| {
            let (finish, makespan) = self.with(task, device);
            NextBest {
                device,
                finish,
                makespan,
            }
        });
        TaskWhy {
            device: own,
            wait: self.waits[task],
            next_best: others.min_by_key(|next| (next.makespan, next.finish, next.device)),
        }
    }

    /// What `task` waited for last.
    ///
    /// # Panics
    /// If there is no such task.
    #[must_use]
    pub fn wait(&self, task: usize) -> Wait {
        self.waits[task]
    }

    /// Tasks of the longest chain of waits, first to last: none of them can be shortened or started
    /// earlier without help from the others.
    #[must_use]
    pub fn critical_path(&self) -> Vec<usize> {
        let finish = |task: &usize| self.schedule.finish(self.problem, *task);
        let mut path = Vec::new();
        let mut next = (0..self.problem.tasks()).max_by_key(finish);
        while let Some(task) = next {
            path.push(task);
            next = match self.waits[task] {
                Wait::Data(before) | Wait::Device(before) => Some(before),
                Wait::Nothing | Wait::Release | Wait::Idle => None,
            };
        }
        path.reverse();
        path
    }

    /// Share of the makespan in which each device computes.
    #[must_use]
    pub fn utilisation(&self) -> Vec<f64> {
        let makespan = self.schedule.makespan.max(1) as f64;
        let busy = self.schedule.busy(self.problem).into_iter();
        busy.map(|busy| busy as f64 / makespan).collect()
    }

    /// Time of everything on the best single device over that of the schedule; `None` if no device
    /// can run and hold all.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        let alone = crate::planner::single(&self.problem.with_goal(crate::goal::Goal::Makespan))?;
        Some(alone.makespan as f64 / self.schedule.makespan.max(1) as f64)
    }

    /// End of `task` and of everything with `task` on `device` and all else in its order.
    fn with(&self, task: usize, device: usize) -> (Time, Time) {
        let of = |other: usize| {
            if other == task {
                device
            } else {
                self.schedule.device[other]
            }
        };
        let mut finish = vec![0; self.problem.tasks()];
        let mut free = vec![0; self.problem.devices()];
        for &other in &self.order {
            let own = of(other);
            let arrivals = self.problem.before(other).map(|(before, bytes)| {
                finish[before] + self.problem.transfer(of(before), own, bytes)
            });
            let ready = arrivals.max().unwrap_or(0).max(self.problem.release(other));
            let exec = self.problem.exec(other, own);
            finish[other] = ready;
            if exec > 0 {
                finish[other] = ready.max(free[own]) + exec;
                free[own] = finish[other];
            }
        }
        (finish[task], finish.iter().copied().max().unwrap_or(0))
    }
}

fn wait(problem: &Problem, schedule: &Schedule, task: usize, ahead: Option<usize>) -> Wait {
    let start = schedule.start[task];
    if start == 0 {
        return Wait::Nothing;
    }
    let own = schedule.device[task];
    let mut carried = schedule.transfers.iter();
    if let Some(used) = carried.find(|used| used.to == task && used.finish == start) {
        return Wait::Data(used.from);
    }
    let arrival = |before: usize, bytes: u64| {
        let transfer = problem.transfer(schedule.device[before], own, bytes);
        schedule.finish(problem, before) + transfer
    };
    let mut sources = problem.before(task);
    if let Some((before, _)) = sources.find(|&(before, bytes)| arrival(before, bytes) == start) {
        return Wait::Data(before);
    }
    match ahead {
        Some(ahead) if schedule.finish(problem, ahead) == start => Wait::Device(ahead),
        _ if problem.release(task) == start => Wait::Release,
        _ => Wait::Idle,
    }
}
