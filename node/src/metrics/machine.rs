//! Metrics that every node has: its version, its process and the memory of its machine.

use std::fs;

use souk_host::system;

use super::{Kind, Page};

/// Adds these metrics; leaves out those that the system does not report.
pub(super) fn tell(page: &mut Page) {
    page.family(
        Kind::Gauge,
        "souk_build_info",
        "The souk that runs, always 1.",
    )
    .put(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    if let Some(began) = began() {
        let help = "When the process began, in seconds since 1970.";
        page.gauge("process_start_time_seconds", help, began);
    }
    if let Some(times) = system::process_times(None) {
        let help = "Time that the process has been on a core.";
        let computed = times.computed.as_secs_f64();
        page.counter("process_cpu_seconds_total", help, computed);
    }
    if let Some(bytes) = resident_bytes() {
        let help =
            "Memory of this process that is in the machine's memory; sandboxes have their own.";
        page.gauge("process_resident_memory_bytes", help, bytes);
    }
    if let Some(files) = open_files() {
        page.gauge(
            "process_open_fds",
            "Files and sockets that are open.",
            files,
        );
    }
    if let Some(bytes) = system::memory_bytes() {
        page.gauge("souk_machine_memory_bytes", "Memory of the machine.", bytes);
    }
    if let Some(bytes) = system::memory_free_bytes() {
        let help = "Memory of the machine that is free or can be made so.";
        page.gauge("souk_machine_memory_free_bytes", help, bytes);
    }
}

fn began() -> Option<f64> {
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
