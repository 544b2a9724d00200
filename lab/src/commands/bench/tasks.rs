//! `souk bench tasks`: the executor's cost for each task.

use std::process::Command;

use souk_node::device;
use souk_node::folder::config::DeviceChoice;
use souk_scheduler_bench::subprocess::{self, SubprocessDevice};
use souk_scheduler_bench::{TaskReport, measure_subprocess, measure_tasks};

use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::program::program_path;
use souk_cli::show::{self, print_line};

/// Measures with this many devices.
pub fn run(output: Output, devices: usize) -> Outcome {
    let mut report = measure_tasks(devices).map_err(|error| {
        let cause = format!("cannot start a thread for each device: {error}");
        Failure::new(Kind::State, cause, "give fewer --devices")
    })?;
    let mut child = Command::new(program_path()?);
    child.args(["bench", "serve"]);
    let unexpected = |error: String| Failure::new(Kind::Unexpected, error, "see what it prints");
    let device = SubprocessDevice::start(child).map_err(|error| unexpected(error.to_string()))?;
    let measured = measure_subprocess(&device).map_err(|error| unexpected(error.to_string()))?;
    report.processes = Some(measured);
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    Ok(())
}

/// Runs the device of the other process: answers its parent until the parent is done.
pub fn serve_device() -> Outcome {
    let failed = |error: String| Failure::new(Kind::State, error, "start `souk bench tasks`");
    let cpu = device::open_devices(&DeviceChoice::Cpu { threads: 1 }, None);
    let mut devices = cpu.map_err(|error| failed(error.to_string()))?;
    let device = devices
        .pop()
        .ok_or_else(|| failed("there is no CPU".to_owned()))?;
    let served = subprocess::serve_parent(&*device, std::io::stdin(), std::io::stdout());
    served.map_err(|error| failed(error.to_string()))
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
    if let Some(across) = &report.processes {
        print_line(&format!(
            "across two processes: {:.0} subgraphs a second, round trip {:.0} us ({:.0} us for 99 \
             of 100)",
            across.tasks_per_second, across.round_trip_us, across.round_trip_p99_us
        ));
    }
}
