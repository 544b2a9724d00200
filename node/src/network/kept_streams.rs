//! Streams that wait for their next question. A new one takes two round trips before anything is
//! said on it, and a turn of the swarm's task.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use tokio::time::Instant;

/// Streams of one protocol kept to one peer, and for how long: the other side closes silent ones.
const KEPT_PER_PEER_MAX: usize = 4;
const KEPT_MAX: Duration = Duration::from_secs(5);

/// A protocol, and whom it is spoken with.
type PeerProtocol = (PeerId, StreamProtocol);

/// What is kept, the youngest last.
pub(super) struct KeptStreams<S>(Mutex<HashMap<PeerProtocol, Vec<(Instant, S)>>>);

impl<S> Default for KeptStreams<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> KeptStreams<S> {
    /// The stream that was kept last, if the other side has it still.
    pub(super) fn take(&self, kind: &PeerProtocol, now: Instant) -> Option<S> {
        let mut kept = self.inner();
        kept.retain(|_, streams| {
            streams.retain(|(since, _)| now.duration_since(*since) < KEPT_MAX);
            !streams.is_empty()
        });
        kept.get_mut(kind)?.pop().map(|(_, stream)| stream)
    }

    /// Keeps a stream on which nothing is owed.
    pub(super) fn keep(&self, kind: PeerProtocol, stream: S, now: Instant) {
        let mut kept = self.inner();
        let streams = kept.entry(kind).or_default();
        if streams.len() < KEPT_PER_PEER_MAX {
            streams.push((now, stream));
        }
    }

    /// Drops all of a kind: one broke, and the others are of the same connection.
    pub(super) fn forget(&self, kind: &PeerProtocol) {
        self.inner().remove(kind);
    }

    fn inner(&self) -> MutexGuard<'_, HashMap<PeerProtocol, Vec<(Instant, S)>>> {
        // Each change under this lock is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_is_taken_first_few_are_kept_and_none_for_long() {
        let kept = KeptStreams::default();
        let kind = (PeerId::random(), StreamProtocol::new("/a"));
        let other = (kind.0, StreamProtocol::new("/b"));
        let now = Instant::now();
        for number in 0..10 {
            kept.keep(kind.clone(), number, now);
        }
        assert_eq!(kept.take(&other, now), None);
        let taken: Vec<usize> = std::iter::from_fn(|| kept.take(&kind, now)).collect();
        assert_eq!(taken, [3, 2, 1, 0]);
        kept.keep(kind.clone(), 10, now);
        assert_eq!(kept.take(&kind, now + KEPT_MAX), None);
        kept.keep(kind.clone(), 11, now);
        kept.forget(&kind);
        assert_eq!(kept.take(&kind, now), None);
    }
}
