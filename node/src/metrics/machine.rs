//! What is told of any node: its version, its process and the memory of its machine.

use std::fs;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use souk_host::system;

use super::{Kind, Page};

/// About when the process started: when it was first asked to serve metrics.
static BEGAN: LazyLock<f64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
});

/// Tells it; what the system does not say is left out.
pub(super) fn tell(page: &mut Page) {
    page.family(
        Kind::Gauge,
        "souk_build_info",
        "The souk that runs, always 1.",
    )
    .put(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64);
    page.gauge(
        "process_start_time_seconds",
        "When the process began to serve, in seconds since 1970.",
        *BEGAN,
    );
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

/// As Linux has it; elsewhere nothing is told.
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
    // One of them is the folder that is read.
    files.checked_sub(1)
}
