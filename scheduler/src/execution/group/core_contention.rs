//! Measures how devices that compute on the same cores of this machine slow each other during a
//! run, and computes the end of a plan with that contention.
//!
//! A software GPU, for example, computes on the cores of the CPU device. So a device's time next to
//! another differs from its time alone. Each measurement states the part of its time next to
//! others, so that the histories of measured times can learn both.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::execution::lock::lock;
use crate::execution::task::Clock;
use crate::execution::timeline::UnixMicros;
use crate::learning::core_sharing::{CoreSharing, mixed_time};
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

/// Measures the time in which devices compute next to others on their cores.
#[derive(Debug)]
pub(super) struct CoreContentionWatch {
    cores: CoreSharing,
    busy: Vec<bool>,
    beside_micros: Vec<u64>,
    last: UnixMicros,
}

impl CoreContentionWatch {
    pub fn new(cores: CoreSharing) -> Self {
        Self {
            busy: vec![false; cores.device_count()],
            beside_micros: vec![0; cores.device_count()],
            last: UnixMicros(0),
            cores,
        }
    }

    /// Records that a device starts to compute. The caller must record the end as well.
    pub fn begin_compute(&mut self, device: usize, now: UnixMicros) {
        self.advance_time(now);
        self.busy[device] = self.cores.is_shared(device);
        self.beside_micros[device] = 0;
    }

    /// Records that a device ends its computation. Returns its microseconds next to others.
    pub fn end_compute(&mut self, device: usize, now: UnixMicros) -> u64 {
        self.advance_time(now);
        self.busy[device] = false;
        self.beside_micros[device]
    }

    fn advance_time(&mut self, now: UnixMicros) {
        let passed = now.micros_since(self.last);
        self.last = self.last.max(now);
        if self.busy.iter().filter(|busy| **busy).count() < 2 {
            return;
        }
        for (beside, busy) in self.beside_micros.iter_mut().zip(&self.busy) {
            *beside += if *busy { passed } else { 0 };
        }
    }
}

/// The start of a computation, and the part of its time in which others computed on its cores.
pub(super) struct CoreWatch {
    pub start: UnixMicros,
    pub beside: f64,
}

/// Runs a computation of a device and measures its contention.
pub(super) fn watch_compute<T>(
    watch: &Mutex<CoreContentionWatch>,
    device: usize,
    clock: &Clock,
    compute: impl FnOnce() -> T,
) -> (T, CoreWatch) {
    let start = clock();
    lock(watch).begin_compute(device, start);
    let computed = compute();
    let end = clock();
    let beside =
        lock(watch).end_compute(device, end) as f64 / end.micros_since(start).max(1) as f64;
    let beside = beside.min(1.0);
    (computed, CoreWatch { start, beside })
}

/// Fragments that run next to others on their cores.
pub(in crate::execution) struct CoreContention {
    pub cores: CoreSharing,
    /// By fragment, its time with its cores to itself divided by its time next to others.
    pub alone: Vec<f64>,
}

impl CoreContention {
    /// Converts a measured time, `part` of it next to others, to a time entirely next to others, as
    /// plans state it.
    pub fn to_contended_time(&self, fragment: usize, took: Duration, part: f64) -> Duration {
        took.div_f64(mixed_time(self.alone[fragment], 1.0, part))
    }

    /// Returns the end of the fragments if they run in the order of their planned starts. `takes`
    /// holds each fragment's time next to others and the part of that which it takes alone;
    /// `host_transfers` its transfer times from and to the host.
    pub fn end(
        &self,
        (problem, schedule): (&Problem, &Schedule),
        takes: (&[Time], &[f64]),
        host_transfers: &[[Time; 2]],
    ) -> Time {
        let mut order = problem.topological_order().to_vec();
        order.sort_by_key(|&task| schedule.start[task]);
        let mut queues = vec![VecDeque::new(); problem.device_count()];
        for task in order {
            queues[schedule.device[task]].push_back(task);
        }
        let mut ends: Vec<Option<f64>> = vec![None; problem.task_count()];
        // The fragment that each device runs, and the remaining part of it.
        let mut running: Vec<Option<(usize, f64)>> = vec![None; problem.device_count()];
        let (mut now, mut last) = (0.0, 0.0f64);
        loop {
            let mut next = f64::INFINITY;
            for (device, queue) in queues.iter_mut().enumerate() {
                let Some(&task) = queue.front().filter(|_| running[device].is_none()) else {
                    continue;
                };
                let from = |(before, bytes): (usize, u64)| {
                    let transfer = problem.transfer_time(schedule.device[before], device, bytes);
                    Some(ends[before]? + transfer as f64)
                };
                let begin = host_transfers[task][0] as f64;
                let mut arrivals = problem.inputs_of(task).map(from);
                let arrived = arrivals.try_fold(begin, |at, transfer| Some(at.max(transfer?)));
                match arrived {
                    Some(at) if at <= now => {
                        running[device] = Some((task, 1.0));
                        queue.pop_front();
                    }
                    Some(at) => next = next.min(at),
                    None => {}
                }
            }
            let whole = self.fragment_times(&running, takes.0, takes.1);
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
                // The unit of times is a picosecond.
                if *part * whole[device] < 1.0 {
                    ends[*task] = Some(next);
                    last = last.max(next + host_transfers[*task][1] as f64);
                    *at_work = None;
                }
            }
            now = next;
        }
    }

    /// Returns the total time of each device's current fragment if the present contention
    /// continues.
    fn fragment_times(
        &self,
        running: &[Option<(usize, f64)>],
        takes: &[Time],
        alone: &[f64],
    ) -> Vec<f64> {
        let is_busy = |device: &usize| running[*device].is_some() && self.cores.is_shared(*device);
        let busy = (0..running.len()).filter(is_busy).count();
        let pace = |(device, at_work): (usize, &Option<(usize, f64)>)| {
            at_work.map_or(f64::INFINITY, |(task, _)| {
                let has_all = busy < 2 && self.cores.is_shared(device);
                let part = if has_all { alone[task] } else { 1.0 };
                (takes[task] as f64 * part).max(1.0)
            })
        };
        running.iter().enumerate().map(pace).collect()
    }
}
