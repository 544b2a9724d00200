//! Measures the speed of the planners: `cargo bench -p souk-scheduler-bench [NAME]`. Prints one
//! line for each measurement: the minimum and the median processor time of its runs.

use std::hint::black_box;

use souk_scheduler::planning::planner::{find_planner, step_pace};
use souk_scheduler_bench::{Stopwatch, layered_problem};

/// Runs of each measurement.
const RUNS: usize = 7;

fn main() {
    let wanted = std::env::args().skip(1).find(|name| !name.starts_with('-'));
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| name.contains(wanted));
    println!("{:<32} {:>14} {:>14}", "measurement", "least", "median");
    let sizes = [(100, 8), (1_000, 8), (2_000, 8), (10_000, 16)];
    for name in ["heft", "peft", "lookahead", "dls", "min-min", "portfolio"] {
        let plan = find_planner(name).expect("the planner exists");
        for (tasks, devices) in sizes {
            let title = format!("{name}/{tasks}x{devices}");
            // The rules that look at every ready task are too slow for so many tasks.
            let slow = matches!(name, "dls" | "min-min") && tasks > 2_000;
            if slow || !is_wanted(&title) {
                continue;
            }
            let problem = layered_problem(tasks, devices).expect("it is valid");
            let limit = 64 * tasks as u64;
            line(&title, "ms", 1e3, || {
                black_box(plan(&problem, &mut step_pace(limit)).expect("there is a plan"));
            });
        }
    }
    if is_wanted("anneal") {
        let problem = layered_problem(1_000, 8).expect("it is valid");
        let plan = find_planner("anneal").expect("the planner exists");
        line("anneal/1000x8, 100000 steps", "ms", 1e3, || {
            black_box(plan(&problem, &mut step_pace(100_000)).expect("there is a plan"));
        });
    }
}

fn line(name: &str, unit: &str, scale: f64, mut run: impl FnMut()) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let watch = Stopwatch::start();
            run();
            watch.elapsed().as_secs_f64() * scale
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{name:<32} {:>10.3} {unit} {:>10.3} {unit}",
        times[0],
        times[RUNS / 2]
    );
}
