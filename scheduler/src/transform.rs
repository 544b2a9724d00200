//! Problems made of problems: streams of requests, micro-batches, and what is left of a plan.

mod duplicate;

pub use duplicate::{Duplicated, duplicate};

use crate::problem::{Edge, NEVER, Problem, ProblemError, ProblemParts, Time};
use crate::schedule::Schedule;

/// `count` requests through the same graph: independent copies, one behind the other.
///
/// Task `t` of request `r` is task `r * tasks + t`. The copies share their weights: a device that
/// runs any of them holds one replica.
///
/// # Errors
/// [`ProblemError::Overflow`] if the times of all copies cannot be summed.
pub fn stream(problem: &Problem, count: usize) -> Result<Problem, ProblemError> {
    copies(problem, count, |time| time, |bytes| bytes)
}

/// One batch in `count` micro-batches: each takes its share of the time, and `launch` on top. They
/// share weights as the requests of [`stream`] do.
///
/// # Errors
/// [`ProblemError::Overflow`] if the times of all pieces cannot be summed.
pub fn micro_batches(
    problem: &Problem,
    count: usize,
    launch: Time,
) -> Result<Problem, ProblemError> {
    let pieces = count.max(1) as u64;
    let time = |time: Time| time.div_ceil(pieces).saturating_add(launch);
    copies(problem, count, time, |bytes| bytes.div_ceil(pieces))
}

fn copies(
    problem: &Problem,
    count: usize,
    time: impl Fn(Time) -> Time,
    bytes: impl Fn(u64) -> u64,
) -> Result<Problem, ProblemError> {
    let parts = problem.parts();
    let timed = |&exec: &Time| if exec == NEVER { NEVER } else { time(exec) };
    let exec: Vec<Time> = parts.exec.iter().map(timed).collect();
    let edge = |request: usize, edge: &Edge| Edge {
        from: request * problem.tasks() + edge.from,
        to: request * problem.tasks() + edge.to,
        bytes: bytes(edge.bytes),
    };
    let of_request = |request: usize| parts.edges.iter().map(move |own| (request, own));
    let edges = (0..count)
        .flat_map(of_request)
        .map(|(request, own)| edge(request, own));
    let output = |request: usize| {
        let own = parts.outputs.iter();
        own.map(move |task| request * problem.tasks() + task)
    };
    Problem::new(ProblemParts {
        outputs: (0..count).flat_map(output).collect(),
        exec: exec.repeat(count),
        edges: edges.collect(),
        release: parts.release.repeat(count),
        pinned: parts.pinned.repeat(count),
        memory: parts.memory.repeat(count),
        weights: weights(problem).repeat(count),
        ..parts.clone()
    })
}

/// Which weights each task reads: those it shares, else its own.
fn weights(problem: &Problem) -> Vec<usize> {
    let own = |task: usize| problem.weight_set(task).unwrap_or(task);
    (0..problem.tasks()).map(own).collect()
}

/// What is left of a plan at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The problem of what is left. Time begins anew at 0. It has all tasks, those done taking no
    /// time where their results lie, so that transfers from there still count.
    pub problem: Problem,
    /// Tasks that must run again because their results went with a device.
    pub again: Vec<usize>,
}

/// What is left of `schedule` at `now`, without the devices in `lost`. What is done stays done,
/// what runs goes on; results on a lost device that a task still needs are made again.
///
/// # Errors
/// [`ProblemError::Nowhere`] if a task that must still run has no device left.
pub fn rest(
    problem: &Problem,
    schedule: &Schedule,
    now: Time,
    lost: &[usize],
) -> Result<Rest, ProblemError> {
    let is_lost = |device: usize| lost.contains(&device);
    let finish = |task: usize| schedule.finish(problem, task);
    let mut done: Vec<bool> = (0..problem.tasks())
        .map(|task| finish(task) <= now)
        .collect();
    let mut again = Vec::new();
    // Readers first, so that a result needed by one made again is made again as well.
    for &task in problem.order().iter().rev() {
        let needed = problem.after(task).any(|(after, _)| !done[after]);
        if done[task] && needed && is_lost(schedule.device[task]) {
            done[task] = false;
            again.push(task);
        }
    }
    let mut parts = problem.parts().clone();
    for (task, &is_done) in done.iter().enumerate() {
        let own = schedule.device[task];
        let running = schedule.start[task] < now && now < finish(task) && !is_lost(own);
        for device in 0..problem.devices() {
            let exec = &mut parts.exec[task * parts.devices + device];
            *exec = match (is_done, running) {
                (true, _) if device == own => 0,
                (false, true) if device == own => finish(task) - now,
                (true, _) | (_, true) => NEVER,
                _ if is_lost(device) => NEVER,
                _ => *exec,
            };
        }
        if done[task]
            && let Some(memory) = parts.memory.get_mut(task).filter(|_| is_lost(own))
        {
            *memory = 0;
            // What it shared, it shares no longer: its replica went with the device.
            if let Some(weights) = parts.weights.get_mut(task) {
                *weights = usize::MAX - task;
            }
        }
    }
    for release in &mut parts.release {
        *release = release.saturating_sub(now);
    }
    parts.edges.retain(|edge| !done[edge.to]);
    again.sort_unstable();
    let problem = Problem::new(parts)?;
    Ok(Rest { problem, again })
}
