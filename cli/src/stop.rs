//! Lets a command clean up before it ends: collects requests to stop from Ctrl-C, from other
//! signals and from the time limit of `--timeout`. A command creates [`Requests`] before the first
//! thing that it must clean up; without one, it ends at once.

use std::future::Future;
use std::io::{self, Read};
use std::pin::pin;
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix::{Signal as Interrupt, Signal as Terminate};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC as Interrupt, CtrlClose as Terminate};
use tokio::sync::watch;

use crate::failure::{Failure, Kind};

/// Time for a command beyond its limit to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the command's time is over. Its receivers are the waiting [`Requests`].
static IS_OVER: std::sync::LazyLock<watch::Sender<bool>> =
    std::sync::LazyLock::new(|| watch::Sender::new(false));

/// Runs a future; stops it after the time limit, as Ctrl-C would. A future without [`Requests`]
/// will be dropped at the limit.
///
/// # Errors
/// Fails with the future's own failure, or with [`Kind::Deadline`] if it is not done in time.
pub async fn run_within<T>(
    limit: Option<Duration>,
    running: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(limit) = limit else {
        return running.await;
    };
    let mut running = pin!(running);
    tokio::select! {
        done = &mut running => return done,
        () = tokio::time::sleep(limit) => {}
    }
    let late = || {
        let cause = format!("not done within {} s", limit.as_secs_f64());
        Failure::new(Kind::Deadline, cause, "give more time with --timeout")
    };
    // Without a receiver, the command has nothing to clean up.
    if IS_OVER.receiver_count() == 0 {
        return Err(late());
    }
    IS_OVER.send_replace(true);
    match tokio::time::timeout(STOP_TIMEOUT, running).await {
        Ok(Err(mut failure)) if failure.kind == Kind::Interrupted => {
            failure.kind = Kind::Deadline;
            failure.cause = format!("{}: {}", late().cause, failure.cause);
            Err(failure)
        }
        Ok(done) => done,
        Err(_) => Err(late()),
    }
}

/// Returns the sources of Ctrl-C and of requests to terminate.
#[cfg(unix)]
fn signal_sources() -> io::Result<(Interrupt, Terminate)> {
    use tokio::signal::unix::{SignalKind, signal};

    Ok((
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    ))
}

/// Returns the sources of Ctrl-C and of a closing console.
#[cfg(windows)]
fn signal_sources() -> io::Result<(Interrupt, Terminate)> {
    use tokio::signal::windows::{ctrl_c, ctrl_close};

    Ok((ctrl_c()?, ctrl_close()?))
}

/// The requests to stop since its creation, by signal or by time limit. You can wait for several in
/// turn: between two waits, it loses no request. Create it before the first thing that a stopped
/// command must clean up: until then, a signal ends the process.
pub struct Requests {
    over: watch::Receiver<bool>,
    /// `None` if no handler can be installed: the signal then ends the process by itself.
    signals: Option<(Interrupt, Terminate)>,
}

impl Requests {
    /// Collects requests from now on.
    pub fn new() -> Requests {
        Requests {
            over: IS_OVER.subscribe(),
            signals: signal_sources().ok(),
        }
    }

    /// Waits for the next request.
    pub async fn next(&mut self) {
        let Some((interrupt, terminate)) = &mut self.signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = self.over.changed() => {}
        }
    }

    /// Waits for the next request, or until standard input closes.
    pub async fn next_or_stdin_closed(&mut self) {
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut ignored = [0; 256];
            while matches!(io::stdin().read(&mut ignored), Ok(1..)) {}
            // The process may already be ending.
            let _ = closed.send(());
        });
        tokio::select! {
            () = self.next() => {}
            _ = is_closed => {}
        }
    }
}

impl Default for Requests {
    fn default() -> Requests {
        Requests::new()
    }
}
