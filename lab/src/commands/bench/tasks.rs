//! `souk bench tasks`: measures the executor's own cost for each task, with tasks that are empty
//! and tasks that compute. The executor is the part of the scheduler that runs a plan's tasks on
//! devices.

use souk_scheduler_bench::{TaskReport, measure_tasks};

use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Measures with this many devices.
pub fn run(output: Output, devices: usize) -> Outcome {
    let report = measure_tasks(devices).map_err(|error| {
        let cause = format!("cannot start a thread for each device: {error}");
        Failure::new(Kind::State, cause, "give fewer --devices")
    })?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    Ok(())
}

fn print_report(report: &TaskReport) {
    print_line(&format!(
        "{} workers, {:.1} us from one to another, empty tasks:",
        report.devices, report.hand_over_us
    ));
    for row in &report.overhead {
        print_line(&format!(
            "  {} of {}, {}: {:.3} us a task ({:.3} us of processor time); at most {} KiB more \
             resident the first time, {} KiB after it",
            row.graph,
            row.tasks,
            row.placement,
            row.wall_us,
            row.cpu_us,
            row.first_bytes >> 10,
            row.grown_bytes >> 10
        ));
    }
    print_line("tasks that compute:");
    for row in &report.efficiency {
        print_line(&format!(
            "  {} us, {}: {:.1} % of the processor time is theirs, {:.1} % of the wall time",
            row.task_us,
            row.placement,
            row.efficiency * 100.0,
            row.wall_efficiency * 100.0
        ));
    }
}
