//! Plans the remaining tasks of a job again if devices are faster or slower than the plan assumed,
//! or if a device is lost.

use super::planned_queues::PlannedQueues;
use super::{
    DRIFT_MAX, DRIFT_SHARE, Dispatch, DispatchMode, REPLAN_COST, REPLAN_WORTH, ResultQuestion,
    Results, StrandedCause, TaskState,
};
use crate::planning::planner::find_planner;
use crate::planning::problem::{Problem, ProblemParts};
use crate::planning::time::{NEVER, Time};

/// The planner of the remaining tasks: quick, and good enough, because further repairs can follow.
const REPLANNER: &str = "heft";

impl Dispatch {
    /// Builds the lists or queues of the waiting tasks.
    pub(super) fn build_queues(&mut self) {
        match self.mode {
            DispatchMode::Planned(_) => self.sum_planned_loads(),
            DispatchMode::Dynamic(_) => self.rebuild_dynamic_queues(0),
        }
    }

    /// Removes a lost device. Other devices will get the tasks that it took but did not finish. If
    /// its results are lost with it and another task still needs them, the dispatch runs their
    /// tasks again.
    ///
    /// # Errors
    /// [`StrandedCause`] if no remaining device can run one of these tasks.
    pub fn remove_lost_device(
        &mut self,
        device: usize,
        results: &Results,
        now: Time,
    ) -> Result<(), StrandedCause> {
        self.lost_devices |= 1 << device;
        let there = |task: usize| usize::from(self.device_by_task[task]) == device;
        let taken: Vec<usize> = (0..self.state.len())
            .filter(|&task| self.state[task] == TaskState::Taken && there(task))
            .collect();
        taken
            .into_iter()
            .for_each(|task| self.state[task] = TaskState::Waiting);
        match results {
            Results::Survive => {}
            Results::Lost => self.rerun_lost_tasks(|place, _| place == device),
            Results::Kept(keeper) => {
                keeper(ResultQuestion::Lost { device });
                // Asks for each reader separately, because the keeper then holds surviving results
                // for it.
                self.rerun_lost_tasks(|_, asks| asks.filter(|ask| !keeper(*ask)).count() > 0);
            }
        }
        self.replan_remaining(now)
    }

    /// Puts tasks back into the queues if their results are gone and still needed. `gone` decides
    /// by the device of the results and the readers that need them.
    fn rerun_lost_tasks(
        &mut self,
        gone: impl Fn(usize, &mut dyn Iterator<Item = ResultQuestion>) -> bool,
    ) {
        let problem = self.problem.clone();
        // Visits readers first, so that a task which runs again gets its inputs computed again as
        // well.
        for &task in problem.topological_order().iter().rev() {
            if self.state[task] != TaskState::Done {
                continue;
            }
            let after = problem.readers_of(task).map(|(after, _)| after);
            let left = after.filter(|&after| self.state[after] != TaskState::Done);
            let mut asks = left
                .map(|reader| ResultQuestion::Kept { by: task, reader })
                .peekable();
            let place = usize::from(self.device_by_task[task]);
            let again = asks.peek().is_some() && gone(place, &mut asks);
            if again {
                self.state[task] = TaskState::Waiting;
                self.tasks_left += 1;
                self.counts.redone += 1;
            }
        }
    }

    /// Plans the remaining tasks again if a device deviates far enough from the plan. Returns
    /// whether it did.
    pub(super) fn replan_if_deviating(&mut self, now: Time) -> bool {
        if matches!(self.mode, DispatchMode::Dynamic(_)) || self.tasks_left == 0 {
            return false;
        }
        let off = |drift: &super::Drift| {
            let ratio = drift.measured / drift.estimated;
            let telling = drift.estimated > DRIFT_SHARE * drift.planned;
            telling && !(1.0 / DRIFT_MAX..=DRIFT_MAX).contains(&ratio)
        };
        if !self.drift.iter().any(off) {
            return false;
        }
        let cost = REPLAN_COST * (self.tasks_left * self.load.len()) as Time;
        if self.time_left() < cost.saturating_mul(REPLAN_WORTH) {
            return false;
        }
        // The new plan uses the corrections as of now, so drift counts from here.
        self.replan_remaining(now).is_ok()
    }

    /// Builds lists or queues of the remaining tasks on the remaining devices.
    pub(super) fn replan_remaining(&mut self, now: Time) -> Result<(), StrandedCause> {
        self.check_places()?;
        if matches!(self.mode, DispatchMode::Dynamic(_)) {
            self.rebuild_dynamic_queues(now);
            return Ok(());
        }
        let rest = Problem::new(self.remaining_problem(now))?;
        let plan = find_planner(REPLANNER).expect("the planner is among those there are");
        let schedule = plan(&rest, &mut crate::planning::planner::step_pace(0))?;
        let planned = PlannedQueues::new(
            &self.problem,
            &schedule.device,
            &schedule.start,
            &self.state,
        );
        self.mode = DispatchMode::Planned(planned);
        self.counts.replanned += 1;
        self.sum_planned_loads();
        Ok(())
    }

    fn check_places(&self) -> Result<(), StrandedCause> {
        let runs = |task: usize, device: usize| {
            self.problem.exec_time(task, device) != NEVER && !self.is_lost(device)
        };
        let stranded = (0..self.state.len()).find(|&task| {
            self.state[task] == TaskState::Waiting
                && !(0..self.load.len()).any(|device| runs(task, device))
        });
        stranded.map_or(Ok(()), |task| Err(StrandedCause::Task { task }))
    }

    /// Returns the problem of the remaining tasks. Completed tasks take no time on the device of
    /// their results, running tasks take their remaining time, and waiting ones their present
    /// estimate.
    fn remaining_problem(&self, now: Time) -> ProblemParts {
        let mut parts = self.problem.parts().clone();
        for task in 0..self.state.len() {
            let own = usize::from(self.device_by_task[task]);
            for device in 0..parts.devices {
                let here = device == own || (self.is_lost(own) && !self.is_lost(device));
                parts.exec[task * parts.devices + device] = match self.state[task] {
                    TaskState::Done if here => 0,
                    TaskState::Taken if here => self.busy_until[own].saturating_sub(now),
                    TaskState::Done | TaskState::Taken => NEVER,
                    TaskState::Waiting if self.is_lost(device) => NEVER,
                    TaskState::Waiting => {
                        let time = self.estimate_time(task, device);
                        time.saturating_add(self.host_transfer(task, device))
                    }
                };
            }
        }
        let state = &self.state;
        parts
            .edges
            .retain(|edge| state[edge.to] == TaskState::Waiting);
        parts.pinned.clear();
        parts
    }
}
