//! Times planners on layered random problems: `speed [TASKSxDEVICES ...]`.
//!
//! One line a size: milliseconds for HEFT (best of five), for `auto` with 40 ms, and for 1,000
//! single decisions where to put a task that is ready.
#![expect(clippy::disallowed_types, reason = "an example that measures time")]

use std::time::Instant;

use souk_scheduler::planner::planner;
use souk_scheduler::problem::{Edge, Problem, ProblemParts};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let sizes = if given.is_empty() {
        let all = [
            "100x8",
            "1000x8",
            "2000x8",
            "10000x16",
            "30000x32",
            "100000x64",
        ];
        all.map(String::from).to_vec()
    } else {
        given
    };
    println!("tasks x devices |  HEFT ms |  auto ms | makespan HEFT/auto");
    for size in sizes {
        let (tasks, devices) = size.split_once('x').ok_or("sizes look like 2000x8")?;
        let problem = layered(tasks.parse()?, devices.parse()?)?;
        let heft = planner("heft").ok_or("there is HEFT")?;
        let mut least = f64::INFINITY;
        let mut length = 0;
        for _ in 0..5 {
            let begin = Instant::now();
            length = heft(&problem, &mut |_| 1.0)?.makespan;
            least = least.min(begin.elapsed().as_secs_f64() * 1e3);
        }
        let auto = planner("auto").ok_or("there is auto")?;
        let begin = Instant::now();
        let found = auto(&problem, &mut |_| begin.elapsed().as_secs_f64() / 0.04)?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        let gain = length as f64 / found.makespan as f64;
        println!("{size:>15} | {least:8.2} | {took:8.1} | {gain:.3}");
    }
    Ok(())
}

/// Layers of about the root of the tasks, three edges a task, devices of unequal speed.
fn layered(tasks: usize, devices: usize) -> Result<Problem, Box<dyn std::error::Error>> {
    let mut state = 42u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let width = tasks.isqrt().max(1);
    let mut edges = Vec::new();
    for to in width..tasks {
        let layer = to / width;
        for _ in 0..3 {
            let from = (layer - 1) * width + random(width as u64) as usize;
            edges.push(Edge {
                from,
                to,
                bytes: random(1000),
            });
        }
    }
    let exec = (0..tasks * devices).map(|_| 100 + random(900)).collect();
    let square = devices * devices;
    Ok(Problem::new(ProblemParts {
        devices,
        exec,
        edges,
        latency: vec![5; square],
        time_per_byte: vec![1; square],
        ..ProblemParts::default()
    })?)
}
