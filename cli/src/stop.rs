//! When a command is told to stop.

use std::io::{self, Read};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a command that was interrupted, as shells have it: 128 and SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Ctrl-C and requests to terminate, from when it was made: none between two waits is lost.
pub struct Requests {
    /// Where there is no handler, the signal ends the process by itself.
    signals: Option<(Signal, Signal)>,
}

impl Requests {
    /// From now on.
    pub fn new() -> Requests {
        let both = || -> io::Result<(Signal, Signal)> {
            Ok((
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ))
        };
        Requests {
            signals: both().ok(),
        }
    }

    /// Ends at the next one.
    pub async fn next(&mut self) {
        let Some((interrupt, terminate)) = &mut self.signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    /// Ends at the next one, and when standard input closes.
    pub async fn next_or_stdin_closed(&mut self) {
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut ignored = [0; 256];
            while matches!(io::stdin().read(&mut ignored), Ok(1..)) {}
            // The process may be ending already.
            let _ = closed.send(());
        });
        tokio::select! {
            () = self.next() => {}
            _ = is_closed => {}
        }
    }
}

/// Ends at Ctrl-C or a request to terminate.
pub async fn asked() {
    Requests::new().next().await;
}
