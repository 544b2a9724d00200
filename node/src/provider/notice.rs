//! How a lease ends before its time: by notice in the log, or because the provider is to stop.

use std::time::Duration;

use souk_market::{Lease, LeaseId, LeaseState, Millis, Term};
use tokio::sync::watch;

use super::{Provider, Stopping};
use crate::clock::unix_ms;
use crate::protocols::lease::{Failure, Start};

/// How often the log is asked whether a lease at work has ended.
const LEASE_LOOK_PERIOD: Duration = Duration::from_secs(3);

/// What is left of a lease when nothing more is begun: time for the buyer to fetch what there is
/// and to sign. Some of the grace that follows is good for it too.
pub(super) const HANDOVER: Duration = Duration::from_secs(1);

/// When the log ends a lease, once that is not its own time.
pub(super) type Noticed = watch::Receiver<Option<Millis>>;

/// The end of a lease of many requests, as it nears.
pub(super) struct Curfew<'a> {
    provider: &'a Provider,
    term: Term,
    /// The longest that one run of one of its parts is to take, those before it included that are
    /// at work still when it begins.
    run_max: Duration,
    notice: Noticed,
}

impl Curfew<'_> {
    /// Of a lease with as many runs `ahead` as may be at work at once.
    pub(super) fn new<'a>(
        provider: &'a Provider,
        (lease, start, ahead): (&Lease, &Start, usize),
        notice: Noticed,
    ) -> Curfew<'a> {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let runs = start.parts.iter();
        let runs = runs.map(|part| part.expected.saturating_mul(ahead));
        Curfew {
            provider,
            term: lease.term,
            run_max: runs.max().unwrap_or_default(),
            notice,
        }
    }

    /// Waits until no further run would be over in time; why. Before anything was run, nothing is
    /// lost by another try.
    pub(super) async fn nears(&self, begun: bool) -> Failure {
        let mut notice = self.notice.clone();
        tokio::select! {
            () = is_to_end(self.provider, self.term), if begun => Failure::Stopping,
            () = ends_within(&mut notice, self.run_max + HANDOVER) => Failure::Expired,
        }
    }

    /// Waits until the device is another's.
    pub(super) async fn is_over(&self) {
        ends_within(&mut self.notice.clone(), Duration::ZERO).await;
    }
}

/// Waits until the log has closed a lease: its buyer may end it before its time, and what still
/// computes for it then is stopped. Tells meanwhile when it ends, once that is not its own time.
pub(super) async fn ended_early(
    provider: &Provider,
    lease: LeaseId,
    noticed: &watch::Sender<Option<Millis>>,
) {
    loop {
        tokio::time::sleep(LEASE_LOOK_PERIOD).await;
        let Ok(Some(lease)) = provider.trader.broker().lease(lease).await else {
            continue;
        };
        match lease.state {
            // A short notice may be over before it is seen.
            LeaseState::Ending { at, .. } | LeaseState::Due { ended: at, .. } => {
                noticed.send_replace(Some(at));
            }
            LeaseState::Closed { .. } => return,
            LeaseState::Waiting { .. } | LeaseState::Active => {}
        }
    }
}

/// Until when a signature is waited for: the end of the lease, which notice may have moved. Where
/// it is over, the grace is left for a while.
pub(super) fn last_moment(lease: &Lease, noticed: Option<Millis>) -> Millis {
    let soon = Millis(unix_ms().saturating_add(HANDOVER.as_millis() as u64));
    noticed.map_or(lease.deadline, |at| at.max(soon).min(lease.deadline))
}

/// Waits until the provider is to stop, and a lease of this term with it.
pub(super) async fn is_to_end(provider: &Provider, term: Term) {
    let due = match term {
        Term::Spot => Stopping::Asked,
        // It was sold for its whole time: as long as there is any, it goes on.
        Term::Firm => Stopping::LastCall,
    };
    let mut stopping = provider.stopping.subscribe();
    if stopping
        .wait_for(|stopping| *stopping >= due)
        .await
        .is_err()
    {
        std::future::pending().await
    }
}

/// Waits until notice was given and the lease has no more than this left.
pub(super) async fn ends_within(notice: &mut Noticed, left: Duration) {
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    loop {
        let at = *notice.borrow_and_update();
        let changed = notice.changed();
        let told = match at {
            None => changed.await,
            Some(at) => {
                let wait = at.0.saturating_sub(left_ms).saturating_sub(unix_ms());
                match tokio::time::timeout(Duration::from_millis(wait), changed).await {
                    Ok(told) => told,
                    Err(_) => return,
                }
            }
        };
        if told.is_err() {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notice_is_waited_for_and_its_time_too() {
        let (noticed, mut notice) = watch::channel(None);
        let left = Duration::from_secs(60);
        let mut waiting = Box::pin(ends_within(&mut notice, left));
        assert!(futures::poll!(&mut waiting).is_pending(), "no notice yet");
        noticed.send_replace(Some(Millis(unix_ms() + 3_600_000)));
        assert!(futures::poll!(&mut waiting).is_pending(), "it is long");
        noticed.send_replace(Some(Millis(unix_ms() + 59_000)));
        waiting.await;
    }
}
