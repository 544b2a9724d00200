//! Measures the time that planners take for layered random problems: `speed [TASKSxDEVICES ...]`.
//!
//! Prints one line for each size: milliseconds of processor time for HEFT (best of five) and for
//! `auto` with 40 ms.

use souk_scheduler::planning::planner::find_planner;
use souk_scheduler_bench::{Stopwatch, layered_problem};

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
        let problem = layered_problem(tasks.parse()?, devices.parse()?)?;
        let heft = find_planner("heft").ok_or("there is HEFT")?;
        let mut least = f64::INFINITY;
        let mut length = 0;
        for _ in 0..5 {
            let begin = Stopwatch::start();
            length = heft(&problem, &mut |_| 1.0)?.makespan;
            least = least.min(begin.elapsed().as_secs_f64() * 1e3);
        }
        let auto = find_planner("auto").ok_or("there is auto")?;
        let begin = Stopwatch::start();
        let found = auto(&problem, &mut |_| begin.elapsed().as_secs_f64() / 0.04)?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        let gain = length as f64 / found.makespan as f64;
        println!("{size:>15} | {least:8.2} | {took:8.1} | {gain:.3}");
    }
    Ok(())
}
