//! Keeps idle streams to peers for their next request. A new stream costs two round trips before
//! its first message, and a turn of the swarm's task.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use tokio::time::Instant;

/// Streams of one protocol kept to one peer, and for how long: the other side will close idle ones.
const KEPT_PER_PEER_MAX: usize = 4;
const KEPT_MAX: Duration = Duration::from_secs(5);

/// A peer and the protocol spoken with it.
type PeerProtocol = (PeerId, StreamProtocol);

/// The kept streams, the youngest last.
pub(super) struct KeptStreams<S>(Mutex<HashMap<PeerProtocol, Vec<(Instant, S)>>>);

impl<S> Default for KeptStreams<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> KeptStreams<S> {
    /// Takes the stream kept last, if the other side should still have it.
    pub(super) fn take_stream(&self, kind: &PeerProtocol, now: Instant) -> Option<S> {
        let mut kept = self.lock_streams();
        kept.retain(|_, streams| {
            streams.retain(|(since, _)| now.duration_since(*since) < KEPT_MAX);
            !streams.is_empty()
        });
        kept.get_mut(kind)?.pop().map(|(_, stream)| stream)
    }

    /// Keeps an idle stream.
    pub(super) fn keep_stream(&self, kind: PeerProtocol, stream: S, now: Instant) {
        let mut kept = self.lock_streams();
        let streams = kept.entry(kind).or_default();
        if streams.len() < KEPT_PER_PEER_MAX {
            streams.push((now, stream));
        }
    }

    /// Drops all streams of a kind: one broke, and the others share its connection.
    pub(super) fn forget_streams(&self, kind: &PeerProtocol) {
        self.lock_streams().remove(kind);
    }

    fn lock_streams(&self) -> MutexGuard<'_, HashMap<PeerProtocol, Vec<(Instant, S)>>> {
        // No code under this lock panics half-way through a change.
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
            kept.keep_stream(kind.clone(), number, now);
        }
        assert_eq!(kept.take_stream(&other, now), None);
        let taken: Vec<usize> = std::iter::from_fn(|| kept.take_stream(&kind, now)).collect();
        assert_eq!(taken, [3, 2, 1, 0]);
        kept.keep_stream(kind.clone(), 10, now);
        assert_eq!(kept.take_stream(&kind, now + KEPT_MAX), None);
        kept.keep_stream(kind.clone(), 11, now);
        kept.forget_streams(&kind);
        assert_eq!(kept.take_stream(&kind, now), None);
    }
}
