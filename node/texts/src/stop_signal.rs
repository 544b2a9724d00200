//! Defines the signal by which a caller ends all sessions of a text at once, for example when the
//! user interrupts it.

use tokio::sync::watch;

/// A signal to end at once. Once it is given, it cannot be withdrawn.
#[derive(Clone, Default)]
pub struct StopSignal(watch::Sender<bool>);

impl StopSignal {
    /// Gives the signal.
    pub fn raise_signal(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the signal.
    pub async fn wait_for_signal(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|is_given| *is_given).await;
    }
}
