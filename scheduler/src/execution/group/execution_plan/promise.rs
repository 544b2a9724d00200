//! When a plan promises to end, and whether what was learned since leaves the promise.

use std::sync::Arc;
use std::time::Duration;

use super::transfers::JoinTimes;
use super::{EnergyMode, ExecutionPlan, duration};
use crate::execution::group::shared_operators::SharedGraph;
use crate::execution::group::{GroupDevice, group_problem, links};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::{KINDS, Speeds};
use crate::planning::offer::Links;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::{Time, time_of};

/// A device whose speed, or a way whose time, is this far from what a plan believed has the next
/// run planned anew.
const PLAN_STALE: f64 = 1.25;
/// Shares of a split operator that end this much later than the best ones are made anew.
const SHARES_STALE: f64 = 1.02;

/// A device that draws by this part more or less than a plan believed has it made anew.
const WATTS_STALE: f64 = 0.1;

impl ExecutionPlan {
    /// When its end is expected by what is known of the devices now: for a few per cent a plan is
    /// not made anew, but what it promises is. Where devices share cores, what a device is off by
    /// for a kind of work mixes fragments that ran alone with those that ran beside others: there
    /// what is known of a fragment's own operators says more.
    pub fn expected(&self, speeds: &Speeds, histories: &DeviceHistories) -> Duration {
        if self.shared_graph.is_some() {
            return self.expected;
        }
        let factor = |task: usize, device| {
            let kind = self.kinds[task];
            let is_contended = self.contention.is_some();
            let change = is_contended.then(|| self.change(task, device, histories));
            change
                .flatten()
                .map_or(speeds.factor(kind, device), |change| {
                    change * self.believed.factor(kind, device)
                })
        };
        // What a fragment takes alone is known otherwise than what it takes beside others.
        let alone = |task: usize, part: f64| {
            let device = self.schedule.device[task];
            let change = self.known.as_ref().and_then(|known| {
                let nodes = &self.fragments[task].nodes;
                let change = known.change_alone(device, nodes, histories).unwrap_or(1.0);
                Some(change / known.change(device, nodes, histories)?)
            });
            part * change.unwrap_or(1.0)
        };
        duration(self.end(factor, alone))
    }

    /// What a fragment takes on a device by what is known now, of what was believed.
    fn change(&self, task: usize, device: usize, histories: &DeviceHistories) -> Option<f64> {
        let known = self.known.as_ref()?;
        known.change(device, &self.fragments[task].nodes, histories)
    }

    /// When its end was expected as it was made.
    pub fn believed_end(&self) -> Time {
        let believed = |task: usize, device| self.believed.factor(self.kinds[task], device);
        self.end(believed, |_, alone| alone)
    }

    /// When fragments end that run in the order of their planned starts and each take so many times
    /// what was believed, and where devices share cores such a part of it alone, by what was
    /// believed of that.
    fn end(&self, factor: impl Fn(usize, usize) -> f64, alone: impl Fn(usize, f64) -> f64) -> Time {
        let of_piece = |task: usize| {
            let device = self.schedule.device[task];
            let factor = factor(task, device);
            let takes = (self.problem.exec(task, device) as f64 * factor) as Time;
            let bytes = self.fragments[task].at_host;
            let host_transfers = bytes.map(|bytes| match bytes {
                0 => 0,
                _ => time_of(self.links.buyer[device].seconds(bytes)),
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
            None => end(planned, &takes, &host_transfers, &self.joined()),
        }
    }

    /// Whether a run that has so long would be given this plan as far as its joules go.
    pub fn suits(&self, left: Option<Duration>) -> bool {
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

    /// Whether the devices still draw what it goes by, if it goes by that.
    pub fn draws(&self, members: &[GroupDevice], histories: &DeviceHistories) -> bool {
        let Some(known) = self.known.as_ref().filter(|_| self.energy.mode.is_some()) else {
            return true;
        };
        let now = group_problem::watts(members, known, histories);
        let near = |(now, then): (&Option<f64>, &Option<f64>)| match (now, then) {
            (Some(now), Some(then)) => (now - then).abs() <= WATTS_STALE * then,
            (now, then) => now == then,
        };
        now.iter().zip(&self.energy.watts).all(near)
    }

    /// Whether what is known of the devices now would still make this plan.
    pub fn is_fresh(
        &self,
        speeds: &Speeds,
        links: &Arc<Links>,
        histories: &DeviceHistories,
    ) -> bool {
        if !Arc::ptr_eq(&self.links, links) && !links::alike(&self.links, links, PLAN_STALE) {
            return false;
        }
        let devices = 0..speeds.devices();
        let mut pairs =
            devices.flat_map(|device| (0..KINDS as u16).map(move |kind| (kind, device)));
        let near = pairs.all(|(kind, device)| {
            let change = speeds.factor(kind, device) / self.believed.factor(kind, device);
            (1.0 / PLAN_STALE..=PLAN_STALE).contains(&change)
        });
        let shared_graph = self.shared_graph.as_ref();
        let known = self.known.as_ref();
        let known = known.or(shared_graph.map(SharedGraph::known));
        let is_tried = self.trial.is_some_and(|told| told < histories.told());
        let mut knowns = known.into_iter().chain(&self.alternatives);
        near && !is_tried
            && knowns.all(|known| known.is_fresh(histories))
            && shared_graph.is_none_or(|it| it.delay(speeds, &self.believed) <= SHARES_STALE)
    }
}

/// When fragments end that run in the order of their planned starts and take so long; what comes
/// from the host to a fragment and goes there takes `ways`.
fn end(
    (problem, schedule): (&Problem, &Schedule),
    takes: &[Time],
    host_transfers: &[[Time; 2]],
    joins: &[JoinTimes],
) -> Time {
    let mut last = 0;
    let mut order = problem.order().to_vec();
    order.sort_by_key(|&task| schedule.start[task]);
    let mut free = vec![0; problem.devices()];
    let mut ends: Vec<Time> = vec![0; problem.tasks()];
    let ready = |join: &JoinTimes, ends: &[Time]| {
        let come = join
            .makers
            .iter()
            .map(|&(task, transfer)| ends[task].saturating_add(transfer));
        come.fold(0, Time::max).saturating_add(join.time)
    };
    for task in order {
        let device = schedule.device[task];
        let arrivals = problem.before(task).map(|(before, bytes)| {
            let transfer = problem.transfer(schedule.device[before], device, bytes);
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
