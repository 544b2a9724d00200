//! Sends signals to the processes of a testnet, on systems that support them: tests kill, suspend
//! and resume nodes with it.

use std::io;

/// A signal to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Kills the process at once (SIGKILL).
    Kill,
    /// Asks the process to end.
    Terminate,
    /// Suspends the process.
    Stop,
    /// Resumes the process.
    Continue,
}

/// Sends a signal to a process by its id. The process should still run, because the system can give
/// the id of an ended process to another.
///
/// # Errors
/// The system's error.
#[cfg(unix)]
pub fn send_signal(process: u32, signal: Signal) -> io::Result<()> {
    use rustix::process::{Pid, Signal as Number, kill_process};

    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.ok_or(io::ErrorKind::NotFound)?;
    let number = match signal {
        Signal::Kill => Number::KILL,
        Signal::Terminate => Number::TERM,
        Signal::Stop => Number::STOP,
        Signal::Continue => Number::CONT,
    };
    Ok(kill_process(process, number)?)
}

/// Returns an error, because this system has no signals. A process stops when its parent ends and
/// closes its standard input.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn send_signal(_process: u32, _signal: Signal) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
