//! Describes why a sandbox did not do the work of its lease, in words that its buyer or the
//! provider's owner reads.

use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::process::ExitStatusExt;
#[cfg(target_os = "linux")]
use std::process::ExitStatus;

use souk_memory::StoreError;

use super::{MissingRule, SILENCE_MAX};
use crate::device::graph_work::GraphWork;

/// The message of a Rust program that cannot allocate memory.
#[cfg(target_os = "linux")]
const NO_MEMORY: &str = "memory allocation of";

/// Signals by number, as the kernel numbers them on every machine that souk supports.
#[cfg(target_os = "linux")]
const SIGNALS: [(i32, &str); 8] = [
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (24, "SIGXCPU"),
    (31, "SIGSYS"),
];

/// Why a sandbox did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum SandboxFault {
    /// A wall around jobs is missing, and the configuration does not permit that.
    #[error(
        "this system cannot isolate jobs fully, {0} is missing: write isolation = \"partial\" in \
         provider.toml to sell with the isolation that there is, to buyers you trust"
    )]
    Wall(MissingRule),
    /// This system has no sandboxes.
    #[error(
        "jobs run in sandboxed processes only on Linux, and this is {system}: write \
         isolation = \"none\" in provider.toml to run them in the provider's own process, for \
         buyers you trust"
    )]
    NotHere {
        /// The name of the system.
        system: &'static str,
    },
    /// The process could not be started.
    #[error("the job's process was not started: {0}")]
    Start(io::Error),
    /// The device does not open.
    #[error("its device does not open: {0}")]
    Device(String),
    /// The device refuses the work, or failed in it. The sandbox lives.
    #[error("{0}")]
    Refused(String),
    /// The device refuses the node with this digest, with its words. The sandbox lives.
    #[error("{1}")]
    RefusedNode(u64, String),
    /// The inputs are invalid for any device; the work of the run, if it was wanted and is known.
    /// The sandbox lives.
    #[error("{0}")]
    BadInput(String, Option<GraphWork>),
    /// The process ended.
    #[error("the job's process ended: {0}")]
    Ended(String),
    /// The process needed more memory than it can have.
    #[error("the job needed more memory than the {limit_bytes} bytes it may have")]
    OutOfMemory {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// The outputs exceed the limit of a lease.
    #[error("the job's process returned more than the {limit_bytes} bytes that a lease may make")]
    TooMuch {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// The process computed for longer than its lease could last.
    #[error("the job's process computed beyond its lease")]
    OutOfTime,
    /// The process sent no sign of life.
    #[error("the job's process sent nothing for {} s", SILENCE_MAX.as_secs())]
    Silent,
    /// The process sent an invalid message.
    #[error("the job's process sent an invalid message")]
    Confused,
    /// Content for the sandbox could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shared memory could not be allocated.
    #[error("there is no memory to share with the job's process: {0}")]
    Memory(io::Error),
}

#[cfg(target_os = "linux")]
impl SandboxFault {
    /// Returns the fault of a process with this exit status and last output.
    pub(super) fn from_exit_status(
        status: ExitStatus,
        words: &str,
        limit_bytes: u64,
    ) -> SandboxFault {
        if words.contains(NO_MEMORY) {
            return SandboxFault::OutOfMemory { limit_bytes };
        }
        let Some(signal) = status.signal() else {
            let last = words.lines().last().unwrap_or_default();
            let code = status.code().unwrap_or_default();
            return SandboxFault::Ended(format!("code {code} {last}").trim_end().to_owned());
        };
        let name = SIGNALS.iter().find(|(number, _)| *number == signal);
        match name.map(|(_, name)| *name) {
            Some("SIGXCPU") => SandboxFault::OutOfTime,
            Some(name) => SandboxFault::Ended(format!("signal {signal} ({name})")),
            None => SandboxFault::Ended(format!("signal {signal}")),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_told_apart() {
        let by = |signal| ExitStatus::from_raw(signal);
        let said = |status, words| SandboxFault::from_exit_status(status, words, 7).to_string();
        assert!(said(by(11), "").contains("signal 11 (SIGSEGV)"));
        assert!(said(by(24), "").contains("beyond its lease"));
        assert!(said(by(6), "memory allocation of 99 bytes failed").contains("7 bytes"));
        assert!(said(by(3 << 8), "one\nlast").contains("code 3 last"));
    }
}
