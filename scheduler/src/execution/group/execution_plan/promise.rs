//! Computes the expected end of a plan, and checks whether later knowledge makes the plan stale.
//! The next run of the task will replace a stale plan.

use std::sync::Arc;
use std::time::Duration;

use super::transfers::JoinTimes;
use super::{EnergyMode, ExecutionPlan, to_duration};
use crate::execution::group::shared_operators::SharedGraph;
use crate::execution::group::{GroupDevice, group_problem, links};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::{KINDS, Speeds};
use crate::planning::offer::Links;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::{Time, time_of};

/// A plan is stale if a device's speed or a link's time differs by this factor from the plan's.
const PLAN_STALE: f64 = 1.25;
/// Shares of a split operator are stale if they end later than the best shares by this factor.
const SHARES_STALE: f64 = 1.02;

/// A plan is stale if a device's power differs by this part from the plan's.
const WATTS_STALE: f64 = 0.1;

impl ExecutionPlan {
    /// Returns the expected end by present knowledge. A deviation of a few per cent does not make
    /// the plan stale, but it changes its promise. If devices share cores, the correction of a
    /// device and kind mixes fragments that ran alone with others, so this uses the history of each
    /// fragment's operators.
    pub fn expected_end(&self, speeds: &Speeds, histories: &DeviceHistories) -> Duration {
        if self.shared_graph.is_some() {
            return self.expected;
        }
        let factor = |task: usize, device| {
            let kind = self.kinds[task];
            let is_contended = self.contention.is_some();
            let change = is_contended.then(|| self.estimate_ratio(task, device, histories));
            change
                .flatten()
                .map_or(speeds.factor(kind, device), |change| {
                    change * self.planned_speeds.factor(kind, device)
                })
        };
        // The history knows a fragment's time alone separately from its time next to others.
        let alone = |task: usize, part: f64| {
            let device = self.schedule.device[task];
            let change = self.known.as_ref().and_then(|known| {
                let nodes = &self.fragments[task].nodes;
                let change = known.change_alone(device, nodes, histories).unwrap_or(1.0);
                Some(change / known.estimate_ratio(device, nodes, histories)?)
            });
            part * change.unwrap_or(1.0)
        };
        to_duration(self.simulate_end(factor, alone))
    }

    /// Returns the present estimate of a fragment on a device divided by the plan's.
    fn estimate_ratio(
        &self,
        task: usize,
        device: usize,
        histories: &DeviceHistories,
    ) -> Option<f64> {
        let known = self.known.as_ref()?;
        known.estimate_ratio(device, &self.fragments[task].nodes, histories)
    }

    /// Returns the end that the plan expected when it was new.
    pub fn believed_end(&self) -> Time {
        let believed = |task: usize, device| self.planned_speeds.factor(self.kinds[task], device);
        self.simulate_end(believed, |_, alone| alone)
    }

    /// Returns the end of the fragments if they run in the order of their planned starts. `factor`
    /// corrects each fragment's planned time; `alone` corrects the part of it that the fragment
    /// takes with its cores to itself.
    fn simulate_end(
        &self,
        factor: impl Fn(usize, usize) -> f64,
        alone: impl Fn(usize, f64) -> f64,
    ) -> Time {
        let of_piece = |task: usize| {
            let device = self.schedule.device[task];
            let factor = factor(task, device);
            let takes = (self.problem.exec_time(task, device) as f64 * factor) as Time;
            let bytes = self.fragments[task].at_host;
            let host_transfers = bytes.map(|bytes| match bytes {
                0 => 0,
                _ => time_of(self.links.buyer[device].transfer_seconds(bytes)),
            });
            (takes, host_transfers)
        };
        let (takes, host_transfers): (Vec<Time>, Vec<[Time; 2]>) =
            (0..self.fragments.len()).map(of_piece).unzip();
        let planned = (&*self.problem, &self.schedule);
        match &self.contention {
            Some(contention) => {
                let parts = contention.alone.iter().enumerate();
                let parts: Vec<f64> = parts.map(|(task, &part)| alone(task, part)).collect();
                contention.end(planned, (&takes, &parts), &host_transfers)
            }
            None => end(planned, &takes, &host_transfers, &self.join_times()),
        }
    }

    /// Returns whether the plan still saves joules as it should for a run with this much time left.
    pub fn is_suitable_for(&self, left: Option<Duration>) -> bool {
        let ends = left.is_none_or(|left| self.expected <= left);
        match self.energy.mode {
            None => true,
            Some(EnergyMode::Least) => ends,
            Some(EnergyMode::Hurried(unhurried)) => {
                ends && left.is_some_and(|left| left < unhurried)
            }
            Some(EnergyMode::Soonest) => false,
        }
    }

    /// Returns whether the devices' power is still near the power that an energy-saving plan used.
    pub fn has_stable_power(&self, members: &[GroupDevice], histories: &DeviceHistories) -> bool {
        let Some(known) = self.known.as_ref().filter(|_| self.energy.mode.is_some()) else {
            return true;
        };
        let now = group_problem::graph_watts(members, known, histories);
        let near = |(now, then): (&Option<f64>, &Option<f64>)| match (now, then) {
            (Some(now), Some(then)) => (now - then).abs() <= WATTS_STALE * then,
            (now, then) => now == then,
        };
        now.iter().zip(&self.energy.watts).all(near)
    }

    /// Returns whether present knowledge of the devices would still lead to this plan.
    pub fn is_fresh(
        &self,
        speeds: &Speeds,
        links: &Arc<Links>,
        histories: &DeviceHistories,
    ) -> bool {
        if !Arc::ptr_eq(&self.links, links)
            && !links::are_links_alike(&self.links, links, PLAN_STALE)
        {
            return false;
        }
        let devices = 0..speeds.device_count();
        let mut pairs =
            devices.flat_map(|device| (0..KINDS as u16).map(move |kind| (kind, device)));
        let near = pairs.all(|(kind, device)| {
            let change = speeds.factor(kind, device) / self.planned_speeds.factor(kind, device);
            (1.0 / PLAN_STALE..=PLAN_STALE).contains(&change)
        });
        let shared_graph = self.shared_graph.as_ref();
        let known = self.known.as_ref();
        let known = known.or(shared_graph.map(SharedGraph::planned_estimates));
        let is_tried = self
            .trial
            .is_some_and(|told| told < histories.report_count());
        let mut knowns = known.into_iter().chain(&self.alternatives);
        near && !is_tried
            && knowns.all(|known| known.is_fresh(histories))
            && shared_graph
                .is_none_or(|it| it.delay_factor(speeds, &self.planned_speeds) <= SHARES_STALE)
    }
}

/// Returns the end of the fragments if they run in the order of their planned starts and each takes
/// `takes`. `host_transfers` holds each fragment's transfer times from and to the host.
fn end(
    (problem, schedule): (&Problem, &Schedule),
    takes: &[Time],
    host_transfers: &[[Time; 2]],
    joins: &[JoinTimes],
) -> Time {
    let mut last = 0;
    let mut order = problem.topological_order().to_vec();
    order.sort_by_key(|&task| schedule.start[task]);
    let mut free = vec![0; problem.device_count()];
    let mut ends: Vec<Time> = vec![0; problem.task_count()];
    let ready = |join: &JoinTimes, ends: &[Time]| {
        let come = join
            .makers
            .iter()
            .map(|&(task, transfer)| ends[task].saturating_add(transfer));
        come.fold(0, Time::max).saturating_add(join.time)
    };
    for task in order {
        let device = schedule.device[task];
        let arrivals = problem.inputs_of(task).map(|(before, bytes)| {
            let transfer = problem.transfer_time(schedule.device[before], device, bytes);
            ends[before].saturating_add(transfer)
        });
        let joined = joins.iter().flat_map(|join| {
            let own = join.readers.iter().filter(|(reader, _)| *reader == task);
            own.map(|(_, transfer)| ready(join, &ends).saturating_add(*transfer))
        });
        let begin = free[device].max(host_transfers[task][0]);
        let start = arrivals.chain(joined).fold(begin, Time::max);
        ends[task] = start.saturating_add(takes[task]);
        free[device] = ends[task];
        last = last.max(ends[task].saturating_add(host_transfers[task][1]));
    }
    let joined = joins.iter().map(|join| ready(join, &ends));
    joined.fold(last, Time::max)
}
