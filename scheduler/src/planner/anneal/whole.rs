//! Candidates judged whole: for goals that no path through the graph decides, and for links that
//! carry one transfer at a time, where any transfer may delay any other.

use crate::goal::{Figures, Goal, Score};
use crate::problem::{Problem, ProblemError, Time};
use crate::schedule::Schedule;

use super::super::state::{Placing, State};

/// How much the makespan counts beside the goal's value: enough to choose among equals.
const MAKESPAN_SHARE: f64 = 0.01;

/// How much a time beyond the deadline, as a share of it, counts against the value as a share of
/// the first one.
const LATE_WEIGHT: f64 = 8.0;

/// Times of a candidate from order and assignment, with room kept between candidates.
pub(super) struct Whole<'a> {
    problem: &'a Problem,
    finish: Vec<Time>,
    /// The end and the last task of each device.
    lines: Vec<(Time, u32)>,
    /// When each link is free again, and for which task it was last used.
    links: Vec<(Time, u32)>,
    /// What each task waited for last: one it reads from, one ahead on its device, or one whose
    /// data held up the link.
    cause: Vec<u32>,
    sources: Vec<(Time, usize, u64)>,
    first: Score,
}

/// No task.
const NONE: u32 = u32::MAX;

impl<'a> Whole<'a> {
    pub(super) fn new(problem: &'a Problem, first: Score) -> Self {
        let devices = problem.devices();
        let links = if problem.is_contended() {
            devices * devices
        } else {
            0
        };
        Self {
            problem,
            finish: vec![0; problem.tasks()],
            lines: vec![(0, NONE); devices],
            links: vec![(0, NONE); links],
            cause: vec![NONE; problem.tasks()],
            sources: Vec::new(),
            first,
        }
    }

    /// How good a candidate is.
    pub(super) fn score(&mut self, order: &[u32], device: &[u32]) -> Score {
        self.decode(order, device);
        let figures = Figures::of(
            self.problem,
            |task| device[task] as usize,
            |task| self.finish[task],
        );
        self.problem.goal().score(&figures)
    }

    /// One number for annealing: the value as a share of the first one, and what else counts.
    pub(super) fn energy(&self, score: &Score) -> f64 {
        let share = |now: f64, first: f64| now / first.max(1.0);
        let makespan = share(score.makespan as f64, self.first.makespan as f64);
        let latest = self.problem.goal().deadline().unwrap_or(0) as f64;
        share(score.value as f64, self.first.value as f64)
            + MAKESPAN_SHARE * makespan
            + LATE_WEIGHT * share(score.late as f64, latest)
    }

    /// Tasks whose change may make the candidate decoded last a better one, into `critical`: those
    /// that the makespan or the first output waited for, or all where time is not what counts.
    pub(super) fn critical(&self, score: &Score, critical: &mut Vec<u32>) {
        critical.clear();
        let finish = |task: &usize| self.finish[*task];
        let tasks = 0..self.problem.tasks();
        let end = match self.problem.goal() {
            Goal::Price { .. } | Goal::Energy { .. } if score.late == 0 => None,
            Goal::FirstOutput => self.problem.outputs().iter().copied().min_by_key(finish),
            _ => tasks.clone().max_by_key(finish),
        };
        let mut next = end.map_or(NONE, |task| task as u32);
        while next != NONE {
            critical.push(next);
            next = self.cause[next as usize];
        }
        if critical.is_empty() {
            critical.extend(tasks.map(|task| task as u32));
        }
    }

    fn decode(&mut self, order: &[u32], device: &[u32]) {
        self.lines.fill((0, NONE));
        self.links.fill((0, NONE));
        for &task in order {
            let index = task as usize;
            let own = device[index] as usize;
            let exec = self.problem.exec(index, own);
            let (mut start, mut cause) = if self.problem.is_contended() {
                self.contended_ready(index, device)
            } else {
                self.ready(index, device)
            };
            let (free, last) = self.lines[own];
            if exec > 0 {
                if free > start {
                    (start, cause) = (free, last);
                }
                self.lines[own] = (start + exec, task);
            }
            self.finish[index] = start + exec;
            self.cause[index] = cause;
        }
    }

    /// When the data of a task are there, and what they waited for.
    fn ready(&self, task: usize, device: &[u32]) -> (Time, u32) {
        let own = device[task] as usize;
        let mut ready = (self.problem.release(task), NONE);
        for (before, bytes) in self.problem.before(task) {
            let from = device[before] as usize;
            let arrival = self.finish[before] + self.problem.transfer(from, own, bytes);
            if arrival > ready.0 {
                ready = (arrival, before as u32);
            }
        }
        ready
    }

    /// Each transfer behind those that its link carries already, as `State` has it.
    fn contended_ready(&mut self, task: usize, device: &[u32]) -> (Time, u32) {
        let own = device[task] as usize;
        self.sources.clear();
        let before = self.problem.before(task);
        let ends = before.map(|(before, bytes)| (self.finish[before], before, bytes));
        self.sources.extend(ends);
        self.sources.sort_unstable();
        let mut ready = (self.problem.release(task), NONE);
        for &(finish, before, bytes) in &self.sources {
            let from = device[before] as usize;
            let (mut arrival, mut cause) = (finish, before as u32);
            if from != own {
                let link = &mut self.links[from * self.problem.devices() + own];
                // Behind another task's data it is that task which had better be elsewhere.
                if link.0 > finish && link.1 != task as u32 {
                    cause = link.1;
                }
                arrival = finish.max(link.0) + self.problem.transfer(from, own, bytes);
                *link = (arrival, task as u32);
            }
            if arrival > ready.0 {
                ready = (arrival, cause);
            }
        }
        ready
    }
}

/// Whether candidates of `problem` must be judged whole.
pub(super) fn is_needed(problem: &Problem) -> bool {
    problem.is_contended() || problem.goal() != Goal::Makespan
}

/// The plan of a candidate: tasks behind each other, or gaps filled, whichever is better.
pub(super) fn schedule(
    problem: &Problem,
    order: &[u32],
    device: &[u32],
) -> Result<Schedule, ProblemError> {
    let with = |placing: Placing| -> Result<Schedule, ProblemError> {
        let mut state = State::new(problem, placing);
        for &task in order {
            let (task, device) = (task as usize, device[task as usize] as usize);
            let spot = state.spot(task, device).ok_or_else(|| state.full(task))?;
            state.place(task, device, spot);
        }
        Ok(state.into_schedule())
    };
    let (appended, filled) = (with(Placing::Append)?, with(Placing::Insert)?);
    Ok(if filled.score(problem) < appended.score(problem) {
        filled
    } else {
        appended
    })
}
