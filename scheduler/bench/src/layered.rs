//! Generates layered random problems of any size, for measurements of the planners' speed and
//! growth.

use souk_scheduler::planning::planner::Random;
use souk_scheduler::planning::problem::{Edge, Problem, ProblemError, ProblemParts};

/// Seed of the random numbers; any number will do.
const SEED: u64 = 42;

/// Number of inputs of each task, and their maximum length in bytes.
const EDGES_EACH: usize = 3;
const BYTES_MAX: usize = 1_000;

/// Returns a problem with layers of about the square root of `tasks`, three edges for each task,
/// and devices of unequal speed: random execution times of 100 to 999 for each task and device, a
/// latency of 5 and a time per byte of 1.
///
/// # Errors
/// [`ProblemError`] without tasks or devices.
pub fn layered_problem(tasks: usize, devices: usize) -> Result<Problem, ProblemError> {
    let mut random = Random::new(SEED);
    let width = tasks.isqrt().max(1);
    let mut edges = Vec::new();
    for to in width..tasks {
        let layer = to / width;
        for _ in 0..EDGES_EACH {
            edges.push(Edge {
                from: (layer - 1) * width + random.next_below(width),
                to,
                bytes: random.next_below(BYTES_MAX) as u64,
            });
        }
    }
    let exec = (0..tasks * devices).map(|_| 100 + random.next_below(900) as u64);
    let square = devices * devices;
    Problem::new(ProblemParts {
        devices,
        exec: exec.collect(),
        edges,
        latency: vec![5; square],
        time_per_byte: vec![1; square],
        ..ProblemParts::default()
    })
}
