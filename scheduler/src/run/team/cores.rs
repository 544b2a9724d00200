//! Members whose work the same cores of this machine do, and who so slow each other.
//!
//! A software GPU computes on the cores that the CPU beside it computes on. What a member takes
//! beside another is therefore another thing than what it takes by itself: both are learned, each
//! from runs of its kind, and plans tell them apart.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use super::flow::lock;
use super::{Clock, Member};
use crate::problem::{Problem, Time};
use crate::schedule::Schedule;
use crate::timeline::UnixMicros;

/// How a member takes part in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Standing {
    /// With its cores to itself, if it needs any.
    Alone,
    /// While others compute on its cores.
    Beside,
    /// Not at all.
    Out,
}

/// Which members have too few cores together.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::run) struct Cores {
    shared: Vec<bool>,
    /// What each takes longer beside the others by, until that was seen: half way between nothing
    /// and as many times as there are threads for each core, so that it is tried where that pays.
    pub slow: f64,
}

impl Cores {
    /// Of members on a machine with so many cores.
    pub fn new(members: &[Member], available: usize) -> Self {
        let used: Vec<usize> = members
            .iter()
            .map(|member| member.processor.cores())
            .collect();
        let sum: usize = used.iter().sum();
        let shared: Vec<bool> = used
            .iter()
            .map(|&used| used > 0 && sum > available)
            .collect();
        let slow = (sum as f64 / available.max(1) as f64).sqrt();
        match shared.iter().filter(|shared| **shared).count() {
            0 | 1 => Self {
                shared: vec![false; members.len()],
                slow: 1.0,
            },
            _ => Self { shared, slow },
        }
    }

    /// Whether others compute on a member's cores.
    pub fn shares(&self, device: usize) -> bool {
        self.shared[device]
    }

    /// The ways to plan: with one of those who share cores, or with all of them, each slower.
    pub fn ways(&self) -> Vec<Vec<Standing>> {
        let sharing: Vec<usize> = (0..self.shared.len())
            .filter(|&device| self.shared[device])
            .collect();
        if sharing.is_empty() {
            return vec![vec![Standing::Alone; self.shared.len()]];
        }
        let way = |of_sharing: &dyn Fn(usize) -> Standing| -> Vec<Standing> {
            let devices = self.shared.iter().enumerate();
            let each = devices.map(|(device, &shared)| match shared {
                true => of_sharing(device),
                false => Standing::Alone,
            });
            each.collect()
        };
        let with_one = sharing.iter().map(|&one| {
            way(&|device| match device == one {
                true => Standing::Alone,
                false => Standing::Out,
            })
        });
        with_one.chain([way(&|_| Standing::Beside)]).collect()
    }
}

/// Sees for how long members compute beside others on their cores.
#[derive(Debug)]
pub(super) struct Watch {
    cores: Cores,
    busy: Vec<bool>,
    beside_micros: Vec<u64>,
    last: UnixMicros,
}

impl Watch {
    pub fn new(cores: Cores) -> Self {
        Self {
            busy: vec![false; cores.shared.len()],
            beside_micros: vec![0; cores.shared.len()],
            last: UnixMicros(0),
            cores,
        }
    }

    /// A member begins to compute.
    pub fn begin(&mut self, device: usize, now: UnixMicros) {
        self.pass(now);
        self.busy[device] = self.cores.shared[device];
        self.beside_micros[device] = 0;
    }

    /// A member has computed: for so many microseconds beside others.
    pub fn end(&mut self, device: usize, now: UnixMicros) -> u64 {
        self.pass(now);
        self.busy[device] = false;
        self.beside_micros[device]
    }

    fn pass(&mut self, now: UnixMicros) {
        let passed = now.since(self.last);
        self.last = self.last.max(now);
        if self.busy.iter().filter(|busy| **busy).count() < 2 {
            return;
        }
        for (beside, busy) in self.beside_micros.iter_mut().zip(&self.busy) {
            *beside += if *busy { passed } else { 0 };
        }
    }
}

/// When a member began to compute, and the part of its time in which others did on its cores.
pub(super) struct Watched {
    pub start: UnixMicros,
    pub beside: f64,
}

/// Sees how a member computes.
pub(super) fn watched<T>(
    watch: &Mutex<Watch>,
    device: usize,
    clock: &Clock,
    compute: impl FnOnce() -> T,
) -> (T, Watched) {
    let start = clock();
    lock(watch).begin(device, start);
    let computed = compute();
    let end = clock();
    let beside = lock(watch).end(device, end) as f64 / end.since(start).max(1) as f64;
    let beside = beside.min(1.0);
    (computed, Watched { start, beside })
}

/// The part of its time that something takes alone of what it takes beside others, of which it
/// computed `part` of its time: what the whole should have taken.
pub(super) fn mixed(alone: f64, beside: f64, part: f64) -> f64 {
    alone / (1.0 - part + part * alone / beside)
}

/// Pieces that run beside others on their cores.
pub(in crate::run) struct Contended {
    pub cores: Cores,
    /// By piece, what it takes with its cores to itself of what it takes beside others.
    pub alone: Vec<f64>,
}

impl Contended {
    /// What a piece that took so long, `part` of it beside others, takes where that is all of it:
    /// as its plan states it.
    pub fn beside(&self, piece: usize, took: Duration, part: f64) -> Duration {
        took.div_f64(mixed(self.alone[piece], 1.0, part))
    }

    /// When pieces end that run in the order of their planned starts and each takes so long beside
    /// others, and such a part of that alone; what comes from the host to a piece and goes there
    /// takes `ways`.
    pub fn end(
        &self,
        (problem, schedule): (&Problem, &Schedule),
        takes: (&[Time], &[f64]),
        ways: &[[Time; 2]],
    ) -> Time {
        let mut order = problem.order().to_vec();
        order.sort_by_key(|&task| schedule.start[task]);
        let mut queues = vec![VecDeque::new(); problem.devices()];
        for task in order {
            queues[schedule.device[task]].push_back(task);
        }
        let mut ends: Vec<Option<f64>> = vec![None; problem.tasks()];
        // What each device is at, and the part of it that is left.
        let mut running: Vec<Option<(usize, f64)>> = vec![None; problem.devices()];
        let (mut now, mut last) = (0.0, 0.0f64);
        loop {
            let mut next = f64::INFINITY;
            for (device, queue) in queues.iter_mut().enumerate() {
                let Some(&task) = queue.front().filter(|_| running[device].is_none()) else {
                    continue;
                };
                let from = |(before, bytes): (usize, u64)| {
                    let way = problem.transfer(schedule.device[before], device, bytes);
                    Some(ends[before]? + way as f64)
                };
                let begin = ways[task][0] as f64;
                let mut arrivals = problem.before(task).map(from);
                let arrived = arrivals.try_fold(begin, |at, way| Some(at.max(way?)));
                match arrived {
                    Some(at) if at <= now => {
                        running[device] = Some((task, 1.0));
                        queue.pop_front();
                    }
                    Some(at) => next = next.min(at),
                    None => {}
                }
            }
            let whole = self.paces(&running, takes);
            let left = |device: usize| running[device].map(|(_, part)| part * whole[device]);
            let soonest = (0..running.len()).filter_map(left);
            next = soonest.fold(next, |next, left| next.min(now + left));
            if next.is_infinite() {
                return last as Time;
            }
            for (device, at_work) in running.iter_mut().enumerate() {
                let Some((task, part)) = at_work else {
                    continue;
                };
                *part -= (next - now) / whole[device];
                // A picosecond is what times are counted in.
                if *part * whole[device] < 1.0 {
                    ends[*task] = Some(next);
                    last = last.max(next + ways[*task][1] as f64);
                    *at_work = None;
                }
            }
            now = next;
        }
    }

    /// What the piece that each device is at would take if all went on so.
    fn paces(
        &self,
        running: &[Option<(usize, f64)>],
        (takes, alone): (&[Time], &[f64]),
    ) -> Vec<f64> {
        let is_busy = |device: &usize| running[*device].is_some() && self.cores.shares(*device);
        let busy = (0..running.len()).filter(is_busy).count();
        let pace = |(device, at_work): (usize, &Option<(usize, f64)>)| {
            at_work.map_or(f64::INFINITY, |(task, _)| {
                let has_all = busy < 2 && self.cores.shares(device);
                let part = if has_all { alone[task] } else { 1.0 };
                (takes[task] as f64 * part).max(1.0)
            })
        };
        running.iter().enumerate().map(pace).collect()
    }
}
