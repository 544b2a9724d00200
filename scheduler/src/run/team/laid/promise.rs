//! When a plan promises to end, and whether what was learned since leaves the promise.

use std::sync::Arc;
use std::time::Duration;

use super::super::Member;
use super::super::costs::Ledger;
use super::super::divide::Divided;
use super::super::offers::{self, KINDS};
use super::ways::Joined;
use super::{self as laid, Frugal, Laid, duration};
use crate::executor::Speeds;
use crate::plan::Links;
use crate::problem::{Problem, Time};
use crate::schedule::Schedule;
use crate::tasks::time_of;

/// A device whose speed, or a way whose time, is this far from what a plan believed has the next
/// run planned anew.
const PLAN_STALE: f64 = 1.25;
/// Shares of a split operator that end this much later than the best ones are made anew.
const SHARES_STALE: f64 = 1.02;

/// A device that draws by this part more or less than a plan believed has it made anew.
const WATTS_STALE: f64 = 0.1;

impl Laid {
    /// When its end is expected by what is known of the devices now: for a few per cent a plan is
    /// not made anew, but what it promises is. Where members share cores, what a device is off by
    /// for a kind of work mixes pieces that ran alone with those that ran beside others: there what
    /// is known of a piece's own operators says more.
    pub fn expected(&self, speeds: &Speeds, ledger: &Ledger) -> Duration {
        if self.divided.is_some() {
            return self.expected;
        }
        let factor = |task: usize, device| {
            let kind = self.kinds[task];
            let is_contended = self.contended.is_some();
            let change = is_contended.then(|| self.change(task, device, ledger));
            change
                .flatten()
                .map_or(speeds.factor(kind, device), |change| {
                    change * self.believed.factor(kind, device)
                })
        };
        // What a piece takes alone is known otherwise than what it takes beside others.
        let alone = |task: usize, part: f64| {
            let device = self.schedule.device[task];
            let change = self.known.as_ref().and_then(|known| {
                let nodes = &self.pieces[task].nodes;
                let change = known.change_alone(device, nodes, ledger).unwrap_or(1.0);
                Some(change / known.change(device, nodes, ledger)?)
            });
            part * change.unwrap_or(1.0)
        };
        duration(self.end(factor, alone))
    }

    /// What a piece takes on a device by what is known now, of what was believed.
    fn change(&self, task: usize, device: usize, ledger: &Ledger) -> Option<f64> {
        let known = self.known.as_ref()?;
        known.change(device, &self.pieces[task].nodes, ledger)
    }

    /// When its end was expected as it was made.
    pub fn believed_end(&self) -> Time {
        let believed = |task: usize, device| self.believed.factor(self.kinds[task], device);
        self.end(believed, |_, alone| alone)
    }

    /// When pieces end that run in the order of their planned starts and each take so many times
    /// what was believed, and where members share cores such a part of it alone, by what was
    /// believed of that.
    fn end(&self, factor: impl Fn(usize, usize) -> f64, alone: impl Fn(usize, f64) -> f64) -> Time {
        let of_piece = |task: usize| {
            let device = self.schedule.device[task];
            let factor = factor(task, device);
            let takes = (self.problem.exec(task, device) as f64 * factor) as Time;
            let bytes = self.pieces[task].at_host;
            let ways = bytes.map(|bytes| match bytes {
                0 => 0,
                _ => time_of(self.links.buyer[device].seconds(bytes)),
            });
            (takes, ways)
        };
        let (takes, ways): (Vec<Time>, Vec<[Time; 2]>) =
            (0..self.pieces.len()).map(of_piece).unzip();
        let planned = (&*self.problem, &self.schedule);
        match &self.contended {
            Some(contended) => {
                let parts = contended.alone.iter().enumerate();
                let parts: Vec<f64> = parts.map(|(task, &part)| alone(task, part)).collect();
                contended.end(planned, (&takes, &parts), &ways)
            }
            None => end(planned, &takes, &ways, &self.joined()),
        }
    }

    /// Whether a run that has so long would be given this plan as far as its joules go.
    pub fn suits(&self, left: Option<Duration>) -> bool {
        let ends = left.is_none_or(|left| self.expected <= left);
        match self.energy.frugal {
            None => true,
            Some(Frugal::Least) => ends,
            Some(Frugal::Hurried(unhurried)) => ends && left.is_some_and(|left| left < unhurried),
            Some(Frugal::Soonest) => false,
        }
    }

    /// Whether the members still draw what it goes by, if it goes by that.
    pub fn draws(&self, members: &[Member], ledger: &Ledger) -> bool {
        let Some(known) = self.known.as_ref().filter(|_| self.energy.frugal.is_some()) else {
            return true;
        };
        let now = laid::watts(members, known, ledger);
        let near = |(now, then): (&Option<f64>, &Option<f64>)| match (now, then) {
            (Some(now), Some(then)) => (now - then).abs() <= WATTS_STALE * then,
            (now, then) => now == then,
        };
        now.iter().zip(&self.energy.watts).all(near)
    }

    /// Whether what is known of the devices now would still make this plan.
    pub fn is_fresh(&self, speeds: &Speeds, links: &Arc<Links>, ledger: &Ledger) -> bool {
        if !Arc::ptr_eq(&self.links, links) && !offers::alike(&self.links, links, PLAN_STALE) {
            return false;
        }
        let devices = 0..speeds.devices();
        let mut pairs =
            devices.flat_map(|device| (0..KINDS as u16).map(move |kind| (kind, device)));
        let near = pairs.all(|(kind, device)| {
            let change = speeds.factor(kind, device) / self.believed.factor(kind, device);
            (1.0 / PLAN_STALE..=PLAN_STALE).contains(&change)
        });
        let divided = self.divided.as_ref();
        let known = self.known.as_ref();
        let known = known.or(divided.map(Divided::known));
        let is_tried = self.trial.is_some_and(|told| told < ledger.told());
        let mut knowns = known.into_iter().chain(&self.rivals);
        near && !is_tried
            && knowns.all(|known| known.is_fresh(ledger))
            && divided.is_none_or(|it| it.delay(speeds, &self.believed) <= SHARES_STALE)
    }
}

/// When pieces end that run in the order of their planned starts and take so long; what comes from
/// the host to a piece and goes there takes `ways`.
fn end(
    (problem, schedule): (&Problem, &Schedule),
    takes: &[Time],
    ways: &[[Time; 2]],
    joins: &[Joined],
) -> Time {
    let mut last = 0;
    let mut order = problem.order().to_vec();
    order.sort_by_key(|&task| schedule.start[task]);
    let mut free = vec![0; problem.devices()];
    let mut ends: Vec<Time> = vec![0; problem.tasks()];
    let ready = |join: &Joined, ends: &[Time]| {
        let come = join
            .makers
            .iter()
            .map(|&(task, way)| ends[task].saturating_add(way));
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
            own.map(|(_, way)| ready(join, &ends).saturating_add(*way))
        });
        let begin = free[device].max(ways[task][0]);
        let start = arrivals.chain(joined).fold(begin, Time::max);
        ends[task] = start.saturating_add(takes[task]);
        free[device] = ends[task];
        last = last.max(ends[task].saturating_add(ways[task][1]));
    }
    let joined = joins.iter().map(|join| ready(join, &ends));
    joined.fold(last, Time::max)
}
