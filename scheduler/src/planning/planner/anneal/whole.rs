//! Scores a candidate of the annealing planner as a whole, for objectives such as price, which do
//! not depend on the longest path through the graph.

use super::super::state::{GapPolicy, PartialSchedule};
use crate::planning::objective::{Objective, Score};
use crate::planning::problem::{Problem, ProblemError};
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Weight of the makespan against the objective's value: enough to choose among equals.
const MAKESPAN_SHARE: f64 = 0.01;

/// Weight of the time beyond the deadline, as a part of the deadline, against the value, as a part
/// of the first one.
const LATE_WEIGHT: f64 = 8.0;

/// Computes the times of a candidate from order and assignment, and reuses its memory between
/// candidates.
pub(super) struct WholeDecoder<'a> {
    problem: &'a Problem,
    finish: Vec<Time>,
    /// The end and the last task of each device.
    lines: Vec<(Time, u32)>,
    /// The task that each task waited for last: one that it reads from, or one ahead on its device.
    cause: Vec<u32>,
    first: Score,
}

/// Stands for no task.
const NONE: u32 = u32::MAX;

impl<'a> WholeDecoder<'a> {
    pub(super) fn new(problem: &'a Problem, first: Score) -> Self {
        Self {
            problem,
            finish: vec![0; problem.task_count()],
            lines: vec![(0, NONE); problem.device_count()],
            cause: vec![NONE; problem.task_count()],
            first,
        }
    }

    /// Returns the score of a candidate, whose `order` must be topological.
    pub(super) fn score(&mut self, order: &[u32], device: &[u32]) -> Score {
        self.decode_candidate(order, device);
        let figures = self
            .problem
            .plan_figures(|task| device[task] as usize, |task| self.finish[task]);
        self.problem.score_figures(&figures)
    }

    /// Returns a single number for annealing: the value as a part of the first one, plus makespan
    /// and lateness with their weights.
    pub(super) fn energy(&self, score: &Score) -> f64 {
        let share = |now: f64, first: f64| now / first.max(1.0);
        let makespan = share(score.makespan as f64, self.first.makespan as f64);
        let latest = self.problem.deadline().unwrap_or(0) as f64;
        share(score.value as f64, self.first.value as f64)
            + MAKESPAN_SHARE * makespan
            + LATE_WEIGHT * share(score.late as f64, latest)
    }

    /// Fills `critical` with the tasks whose change can improve the last decoded candidate: those
    /// that the makespan waited for, or all tasks if time does not count.
    pub(super) fn collect_critical(&self, score: &Score, critical: &mut Vec<u32>) {
        critical.clear();
        let tasks = 0..self.problem.task_count();
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

    fn decode_candidate(&mut self, order: &[u32], device: &[u32]) {
        self.lines.fill((0, NONE));
        for &task in order {
            let index = task as usize;
            let own = device[index] as usize;
            let exec = self.problem.exec_time(index, own);
            let (mut start, mut cause) = self.ready_time(index, device);
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

    /// Returns the arrival of a task's data, and the task that they waited for.
    fn ready_time(&self, task: usize, device: &[u32]) -> (Time, u32) {
        let own = device[task] as usize;
        let mut ready = (0, NONE);
        for (before, bytes) in self.problem.inputs_of(task) {
            let from = device[before] as usize;
            let arrival = self.finish[before] + self.problem.transfer_time(from, own, bytes);
            if arrival > ready.0 {
                ready = (arrival, before as u32);
            }
        }
        ready
    }
}

/// Returns the plan of a candidate: tasks one after the other, or with filled gaps, whichever is
/// better.
pub(super) fn build_schedule(
    problem: &Problem,
    order: &[u32],
    device: &[u32],
) -> Result<Schedule, ProblemError> {
    let with = |placing: GapPolicy| -> Result<Schedule, ProblemError> {
        let mut state = PartialSchedule::new(problem, placing);
        for &task in order {
            let (task, device) = (task as usize, device[task as usize] as usize);
            let slot = state
                .earliest_slot(task, device)
                .ok_or_else(|| state.full_error(task))?;
            state.place_task(task, device, slot);
        }
        Ok(state.into_schedule())
    };
    let (appended, filled) = (with(GapPolicy::Append)?, with(GapPolicy::Insert)?);
    Ok(if filled.score(problem) < appended.score(problem) {
        filled
    } else {
        appended
    })
}
