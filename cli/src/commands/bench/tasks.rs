//! `souk bench tasks`: what the executor costs for each task.

use souk_node::scheduler::bench::{TaskReport, tasks};

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Measures with so many workers.
pub fn run(output: Output, devices: usize) -> Outcome {
    let report = tasks(devices).map_err(|error| {
        let cause = format!("cannot start a thread for each device: {error}");
        Failure::new(Kind::State, cause, "give fewer --devices")
    })?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    Ok(())
}

fn print(report: &TaskReport) {
    say(&format!("{} workers, empty tasks:", report.devices));
    for row in &report.overhead {
        say(&format!(
            "  {} of {}, {}: {:.3} us a task ({:.3} us of processor time)",
            row.graph, row.tasks, row.placement, row.wall_us, row.cpu_us
        ));
    }
    say("tasks that compute:");
    for row in &report.efficiency {
        say(&format!(
            "  {} us, {}: {:.1} % of the processor time is theirs",
            row.task_us,
            row.placement,
            row.efficiency * 100.0
        ));
    }
}
