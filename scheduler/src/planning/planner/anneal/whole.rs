//! Candidates judged whole: for objectives that no path through the graph decides.

use super::super::state::{PartialSchedule, Placing};
use crate::planning::objective::{Objective, Score};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// How much the makespan counts beside the objective's value: enough to choose among equals.
const MAKESPAN_SHARE: f64 = 0.01;

/// How much a time beyond the deadline, as a share of it, counts against the value as a share of
/// the first one.
const LATE_WEIGHT: f64 = 8.0;

/// Times of a candidate from order and assignment, with room kept between candidates.
pub(super) struct WholeDecoder<'a> {
    problem: &'a Problem,
    finish: Vec<Time>,
    /// The end and the last task of each device.
    lines: Vec<(Time, u32)>,
    /// What each task waited for last: one it reads from, or one ahead on its device.
    cause: Vec<u32>,
    first: Score,
}

/// No task.
const NONE: u32 = u32::MAX;

impl<'a> WholeDecoder<'a> {
    pub(super) fn new(problem: &'a Problem, first: Score) -> Self {
        Self {
            problem,
            finish: vec![0; problem.tasks()],
            lines: vec![(0, NONE); problem.devices()],
            cause: vec![NONE; problem.tasks()],
            first,
        }
    }

    /// How good a candidate is.
    pub(super) fn score(&mut self, order: &[u32], device: &[u32]) -> Score {
        self.decode(order, device);
        let figures = self
            .problem
            .figures(|task| device[task] as usize, |task| self.finish[task]);
        self.problem.score(&figures)
    }

    /// One number for annealing: the value as a share of the first one, and what else counts.
    pub(super) fn energy(&self, score: &Score) -> f64 {
        let share = |now: f64, first: f64| now / first.max(1.0);
        let makespan = share(score.makespan as f64, self.first.makespan as f64);
        let latest = self.problem.deadline().unwrap_or(0) as f64;
        share(score.value as f64, self.first.value as f64)
            + MAKESPAN_SHARE * makespan
            + LATE_WEIGHT * share(score.late as f64, latest)
    }

    /// Tasks whose change may make the candidate decoded last a better one, into `critical`: those
    /// that the makespan waited for, or all where time is not what counts.
    pub(super) fn critical(&self, score: &Score, critical: &mut Vec<u32>) {
        critical.clear();
        let tasks = 0..self.problem.tasks();
        let end = match self.problem.objective() {
            Objective::Cheapest | Objective::Greenest if score.late == 0 => None,
            _ => tasks.clone().max_by_key(|task| self.finish[*task]),
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
        for &task in order {
            let index = task as usize;
            let own = device[index] as usize;
            let exec = self.problem.exec(index, own);
            let (mut start, mut cause) = self.ready(index, device);
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
        let mut ready = (0, NONE);
        for (before, bytes) in self.problem.before(task) {
            let from = device[before] as usize;
            let arrival = self.finish[before] + self.problem.transfer(from, own, bytes);
            if arrival > ready.0 {
                ready = (arrival, before as u32);
            }
        }
        ready
    }
}

/// The plan of a candidate: tasks behind each other, or gaps filled, whichever is better.
pub(super) fn schedule(
    problem: &Problem,
    order: &[u32],
    device: &[u32],
) -> Result<Schedule, ProblemError> {
    let with = |placing: Placing| -> Result<Schedule, ProblemError> {
        let mut state = PartialSchedule::new(problem, placing);
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
