//! Adds to a page the metrics that every node has: its version, its process and the memory of its
//! machine.

use std::fs;

use souk_host::system;

use super::{MetricKind, Page};

/// Adds these metrics; leaves out those that the system does not report.
pub(super) fn add_metrics(page: &mut Page) {
    page.add_family(
        MetricKind::Gauge,
        "souk_build_info",
        "The souk that runs, always 1.",
    )
    .add_figure(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    if let Some(began) = process_start_seconds() {
        let help = "When the process began, in seconds since 1970.";
        page.add_gauge("process_start_time_seconds", help, began);
    }
    if let Some(times) = system::process_times(None) {
        let help = "Time that the process has been on a core.";
        let computed = times.computed.as_secs_f64();
        page.add_counter("process_cpu_seconds_total", help, computed);
    }
    if let Some(bytes) = resident_bytes() {
        let help =
            "Memory of this process that is in the machine's memory; sandboxes have their own.";
        page.add_gauge("process_resident_memory_bytes", help, bytes);
    }
    if let Some(files) = open_files() {
        page.add_gauge(
            "process_open_fds",
            "Files and sockets that are open.",
            files,
        );
    }
    if let Some(bytes) = system::memory_bytes() {
        page.add_gauge("souk_machine_memory_bytes", "Memory of the machine.", bytes);
    }
    if let Some(bytes) = system::memory_free_bytes() {
        let help = "Memory of the machine that is free or can be made so.";
        page.add_gauge("souk_machine_memory_free_bytes", help, bytes);
    }
}

fn process_start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let machine = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    let begun = system::process_times(None)?.begun;
    Some(machine.trim().parse::<f64>().ok()? + begun.as_secs_f64())
}

/// Returns the resident memory of the process, or none outside Linux.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn open_files() -> Option<usize> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the folder being read.
    files.checked_sub(1)
}
