//! Runs the effects of a core as tokio tasks. A core (a state machine without I/O) requests
//! effects, such as a fetch, each under a number, its ticket. The shell, the task that drives the
//! core, uses [`EffectTasks`] to start and stop them and to receive their outcomes with their
//! tickets.

use std::collections::BTreeMap;
use std::future::pending;

use souk_roles::effect::Ticket;
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// The running effects of a core, each with an outcome of type `O`. When this is dropped, all of
/// them are aborted.
pub struct EffectTasks<O> {
    tasks: JoinSet<(Ticket, O)>,
    handles: BTreeMap<Ticket, AbortHandle>,
}

impl<O> Default for EffectTasks<O> {
    fn default() -> Self {
        EffectTasks {
            tasks: JoinSet::new(),
            handles: BTreeMap::new(),
        }
    }
}

impl<O: Send + 'static> EffectTasks<O> {
    /// Starts an effect. Its ticket must not belong to a running effect.
    pub fn start(&mut self, ticket: Ticket, effect: impl Future<Output = O> + Send + 'static) {
        let handle = self.tasks.spawn(async move { (ticket, effect.await) });
        self.handles.insert(ticket, handle);
    }

    /// Stops an effect, which then has no outcome, even if it has just ended.
    pub fn stop(&mut self, ticket: Ticket) {
        if let Some(handle) = self.handles.remove(&ticket) {
            handle.abort();
        }
    }

    /// Waits for the next outcome; for ever if no effect runs. If you drop the future, no outcome
    /// is lost.
    ///
    /// # Errors
    /// If an effect panicked. You can call this again.
    pub async fn next_outcome(&mut self) -> Result<(Ticket, O), JoinError> {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((ticket, outcome))) => {
                    if self.handles.remove(&ticket).is_some() {
                        return Ok((ticket, outcome));
                    }
                }
                Some(Err(error)) if error.is_cancelled() => {}
                Some(Err(error)) => return Err(error),
                None => pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn a_stopped_effect_has_no_outcome() {
        let mut effects = EffectTasks::default();
        effects.start(Ticket(1), pending());
        effects.start(Ticket(2), ready("two"));
        effects.start(Ticket(3), ready("three"));
        // The second has ended by then, and its outcome waits.
        tokio::task::yield_now().await;
        effects.stop(Ticket(1));
        effects.stop(Ticket(2));
        assert_eq!(effects.next_outcome().await.unwrap(), (Ticket(3), "three"));
        assert!(effects.handles.is_empty());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_others_go_on() {
        let mut effects = EffectTasks::default();
        effects.start(Ticket(1), async { panic!("as planned") });
        assert!(effects.next_outcome().await.unwrap_err().is_panic());
        effects.start(Ticket(2), ready(2));
        assert_eq!(effects.next_outcome().await.unwrap(), (Ticket(2), 2));
    }
}
