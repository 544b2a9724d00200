//! Cheap tasks run twice where that saves a transfer: a reader far from what it reads gets a copy
//! of the task beside it, weights and all.

use crate::explain::{Explanation, Wait};
use crate::planner::in_order;
use crate::problem::{Edge, NEVER, Problem, Time};
use crate::schedule::Schedule;

/// A problem in which some tasks come twice, with its schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicated {
    /// The problem. Copies come behind the tasks they are of, each on the one device it is for.
    pub problem: Problem,
    /// Its schedule.
    pub schedule: Schedule,
    /// For each of its tasks, the task it is or is a copy of.
    pub origin: Vec<usize>,
}

/// `schedule` with tasks on its critical path duplicated for as long as that shortens it; without
/// copies if none does. Each copy brings a replica of its task's weights to its device, unless one
/// is there, and reads again what the task reads.
#[must_use]
pub fn duplicate(problem: &Problem, schedule: &Schedule) -> Duplicated {
    let mut best = Duplicated {
        problem: problem.clone(),
        schedule: schedule.clone(),
        origin: (0..problem.tasks()).collect(),
    };
    // Each round adds a copy; more copies than tasks are never worth their time.
    for _ in 0..problem.tasks() {
        let shorter = candidates(&best)
            .into_iter()
            .filter_map(|(task, reader)| with_copy(&best, task, reader))
            .find(|next| next.schedule.makespan < best.schedule.makespan);
        match shorter {
            Some(next) => best = next,
            None => break,
        }
    }
    best
}

/// Tasks of the critical path whose data came from another device, with their readers.
fn candidates(now: &Duplicated) -> Vec<(usize, usize)> {
    let explained = Explanation::new(&now.problem, &now.schedule);
    let device = &now.schedule.device;
    let path = explained.critical_path().into_iter();
    let waits = path.filter_map(|reader| match explained.wait(reader) {
        Wait::Data(task) if device[task] != device[reader] => Some((task, reader)),
        _ => None,
    });
    waits.collect()
}

/// The same with a copy of `task` on the device of `reader`, for all its readers there.
fn with_copy(now: &Duplicated, task: usize, reader: usize) -> Option<Duplicated> {
    let target = now.schedule.device[reader];
    let exec = now.problem.exec(task, target);
    let stays = |&(other, _): &(usize, u64)| now.schedule.device[other] != target;
    // Without another reader it would be a move, which searches try anyway.
    let needed =
        now.problem.after(task).any(|entry| stays(&entry)) || now.problem.outputs().contains(&task);
    if exec == NEVER || !needed {
        return None;
    }
    let copy = now.problem.tasks();
    let mut parts = now.problem.parts().clone();
    parts.outputs = now.problem.outputs().to_vec();
    let row = (0..parts.devices).map(|device| if device == target { exec } else { NEVER });
    parts.exec.extend(row);
    if !parts.memory.is_empty() {
        parts.memory.push(now.problem.memory(task));
        parts.weights = super::weights(&now.problem);
        parts.weights.push(parts.weights[task]);
    }
    if !parts.release.is_empty() {
        parts.release.push(now.problem.release(task));
    }
    if !parts.pinned.is_empty() {
        parts.pinned.push(Some(target));
    }
    let sources: Vec<Edge> = now
        .problem
        .before(task)
        .map(|(from, bytes)| Edge {
            from,
            to: copy,
            bytes,
        })
        .collect();
    for edge in parts.edges.iter_mut().filter(|edge| edge.from == task) {
        if now.schedule.device[edge.to] == target {
            edge.from = copy;
        }
    }
    parts.edges.extend(sources);
    let problem = Problem::new(parts).ok()?;
    let mut device = now.schedule.device.clone();
    device.push(target);
    // The copy goes as early as its own data allow: before everything that starts after its task.
    let key = |other: usize| -> (Time, usize) {
        match other {
            other if other == copy => (now.schedule.start[task], usize::MAX),
            other => (now.schedule.start[other], other),
        }
    };
    let schedule = in_order(&problem, &device, key)?;
    let mut origin = now.origin.clone();
    origin.push(now.origin[task]);
    Some(Duplicated {
        problem,
        schedule,
        origin,
    })
}
