//! Signals to the processes of a testnet, on systems that have them.

use std::io;

/// What a process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Nothing: it is ended at once, as by kill -9.
    Kill,
    /// To end itself.
    Terminate,
    /// To stand still.
    Stop,
    /// To go on.
    Continue,
}

/// Tells a process, by its id.
///
/// # Errors
/// What the system says; where souk sends no signals, that it is not supported.
#[cfg(unix)]
pub(crate) fn send(process: u32, signal: Signal) -> io::Result<()> {
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

/// Tells a process nothing: it is stopped by its standard input, which ends with its parent.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub(crate) fn send(_process: u32, _signal: Signal) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
