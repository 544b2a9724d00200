//! What ends the sessions of a text at once.

use tokio::sync::watch;

/// What tells all who see it that they are to end at once. Once given it stays so.
#[derive(Clone)]
pub struct StopSign(watch::Sender<bool>);

impl StopSign {
    /// One that is not given.
    pub fn new() -> StopSign {
        StopSign(watch::Sender::new(false))
    }

    /// Tells them.
    pub fn give(&self) {
        self.0.send_replace(true);
    }

    /// Ends where it is given.
    pub async fn given(&self) {
        // The sender is here, so there is one.
        let _ = self.0.subscribe().wait_for(|is_given| *is_given).await;
    }
}
