//! Computes the ranks of tasks, which say how urgent each task is before any is placed. List
//! planners place tasks in the order of their ranks.

use crate::planning::problem::Problem;
use crate::planning::time::NEVER;

/// The way in which a task's times over the devices become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecSummary {
    /// Their mean over the devices that can run the task.
    Mean,
    /// The least of them.
    Least,
    /// The greatest of them.
    Greatest,
    /// Their median, the lower of two.
    Median,
}

/// Latency and time per byte, averaged over ordered pairs of different devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanLink {
    latency: f64,
    per_byte: f64,
}

impl MeanLink {
    pub(crate) fn new(problem: &Problem) -> Self {
        let devices = problem.device_count();
        let pairs = (devices * (devices - 1)) as f64;
        let mean = |table: &[u64]| {
            let off_diagonal = (0..devices * devices).filter(|at| at / devices != at % devices);
            let sum: f64 = off_diagonal.map(|at| table[at] as f64).sum();
            if pairs > 0.0 { sum / pairs } else { 0.0 }
        };
        Self {
            latency: mean(&problem.parts().latency),
            per_byte: mean(&problem.parts().time_per_byte),
        }
    }

    pub(crate) fn transfer_time(self, bytes: u64) -> f64 {
        self.latency + bytes as f64 * self.per_byte
    }
}

/// Returns one time for each task.
pub(crate) fn exec_summary(problem: &Problem, summary: ExecSummary) -> Vec<f64> {
    let of = |task: usize| {
        let times = problem
            .exec_row(task)
            .iter()
            .copied()
            .filter(|&time| time != NEVER);
        match summary {
            ExecSummary::Mean => {
                let (sum, count) = times.fold((0.0, 0u32), |(sum, count), time| {
                    (sum + time as f64, count + 1)
                });
                sum / f64::from(count)
            }
            ExecSummary::Least => times.min().unwrap_or(0) as f64,
            ExecSummary::Greatest => times.max().unwrap_or(0) as f64,
            ExecSummary::Median => {
                let mut times: Vec<u64> = times.collect();
                times.sort_unstable();
                times.get((times.len() - 1) / 2).copied().unwrap_or(0) as f64
            }
        }
    };
    (0..problem.task_count()).map(of).collect()
}

/// Returns the longest path from each task's start to the end, with transfers scaled by
/// `transfer_share`.
pub(crate) fn upward_rank(problem: &Problem, exec: &[f64], transfer_share: f64) -> Vec<f64> {
    let link = MeanLink::new(problem);
    let mut rank = vec![0.0; problem.task_count()];
    for &task in problem.topological_order().iter().rev() {
        let onward = problem
            .readers_of(task)
            .map(|(after, bytes)| rank[after] + transfer_share * link.transfer_time(bytes));
        rank[task] = exec[task] + onward.fold(0.0, f64::max);
    }
    rank
}

/// Returns PEFT's table: for each task and device, the least time from the task's end there to the
/// end of all. It has rows of devices, like the problem's execution times.
pub(crate) fn optimistic_costs(problem: &Problem) -> Vec<f64> {
    let devices = problem.device_count();
    let link = MeanLink::new(problem);
    let mut table = vec![0.0f64; problem.task_count() * devices];
    let mut onward = vec![0.0f64; devices];
    for &task in problem.topological_order().iter().rev() {
        for (after, bytes) in problem.readers_of(task) {
            for device in 0..devices {
                let exec = problem.exec_time(after, device);
                let time = if exec == NEVER {
                    f64::INFINITY
                } else {
                    exec as f64
                };
                onward[device] = table[after * devices + device] + time;
            }
            let elsewhere =
                onward.iter().copied().fold(f64::INFINITY, f64::min) + link.transfer_time(bytes);
            for device in 0..devices {
                let least = onward[device].min(elsewhere);
                let entry = &mut table[task * devices + device];
                *entry = entry.max(least);
            }
        }
    }
    table
}

/// Returns the tasks by falling rank, in topological order among equals. Ranks must not grow along
/// edges if the whole order should be topological.
pub(crate) fn by_rank(problem: &Problem, rank: &[f64]) -> Vec<usize> {
    let mut tasks = problem.topological_order().to_vec();
    tasks.sort_by(|&a, &b| rank[b].total_cmp(&rank[a]));
    tasks
}

/// Returns the tasks in an order in which each follows its inputs, the highest rank first among the
/// ready.
pub(crate) fn ready_by_rank(problem: &Problem, rank: &[f64]) -> Vec<usize> {
    let mut place = vec![0; problem.task_count()];
    for (index, &task) in problem.topological_order().iter().enumerate() {
        place[task] = index;
    }
    let mut waiting: Vec<usize> = (0..problem.task_count())
        .map(|t| problem.inputs_of(t).len())
        .collect();
    let entry = |task: usize| RankedTask {
        rank: rank[task],
        place: place[task],
        task,
    };
    let ready = (0..problem.task_count()).filter(|&task| waiting[task] == 0);
    let mut ready: std::collections::BinaryHeap<RankedTask> = ready.map(entry).collect();
    let mut order = Vec::with_capacity(problem.task_count());
    while let Some(RankedTask { task, .. }) = ready.pop() {
        order.push(task);
        for (after, _) in problem.readers_of(task) {
            waiting[after] -= 1;
            if waiting[after] == 0 {
                ready.push(entry(after));
            }
        }
    }
    order
}

#[derive(Clone, Copy, Debug)]
struct RankedTask {
    rank: f64,
    place: usize,
    task: usize,
}

impl Ord for RankedTask {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank
            .total_cmp(&other.rank)
            .then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for RankedTask {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RankedTask {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RankedTask {}
