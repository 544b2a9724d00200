//! When a command is told to stop.

use std::io::Read;

use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a command that was interrupted, as shells have it: 128 and SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Ends at Ctrl-C or a request to terminate.
pub async fn asked() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            // Without a handler the signal ends the process by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

/// Ends as [`asked`] does, and when standard input closes.
pub async fn asked_or_stdin_closed() {
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut ignored = [0; 256];
        while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
        // The process may be ending already.
        let _ = closed.send(());
    });
    tokio::select! {
        () = asked() => {}
        _ = is_closed => {}
    }
}
