//! Limits how many streams of one protocol each peer has open here, and how fast it opens them. The
//! network checks each incoming stream before it serves it.
//!
//! The time is an argument, so the decisions are pure but for a lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use tokio::time::Instant;

/// Streams of one protocol that one peer can have open here: several times as many as a busy job
/// needs.
pub const STREAMS_PER_PEER_MAX: usize = 64;

/// If more than half of all places of a protocol are taken, a peer can have only this many, so
/// only many peers together can take the rest.
const STREAMS_PER_PEER_PRESSED: usize = 8;

/// Streams of one protocol that one peer can open in a burst, and per second after that: each
/// weight needs a stream, so a model can need hundreds.
const OPENED_BURST: u32 = 1_024;
const OPENED_PER_SECOND: u32 = 256;

/// Peers without an open stream whose rate is remembered.
const PEERS_MAX: usize = 4096;

/// A rate limit: a burst, and a number of tokens more each second.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateBucket {
    left: u32,
    /// When tokens were last added.
    since: Instant,
    burst: u32,
    per_second: u32,
}

impl RateBucket {
    pub(super) fn new(burst: u32, per_second: u32, now: Instant) -> RateBucket {
        RateBucket {
            left: burst,
            since: now,
            burst,
            per_second,
        }
    }

    /// Takes one token, or returns the wait until there is one.
    pub(super) fn take_token(&mut self, now: Instant) -> Result<(), Duration> {
        self.take_many(1, now)
    }

    /// Takes tokens, at most a burst at a time, or returns the wait until there are enough.
    pub(super) fn take_many(&mut self, wanted: u32, now: Instant) -> Result<(), Duration> {
        self.refill_tokens(now);
        match self.left.checked_sub(wanted) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Duration::from_secs(1) * (wanted - self.left) / self.per_second),
        }
    }

    /// Returns whether the bucket is full, so that a new one would be no different.
    pub(super) fn is_full(&mut self, now: Instant) -> bool {
        self.refill_tokens(now);
        self.left == self.burst
    }

    fn refill_tokens(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let added = passed.as_micros() * u128::from(self.per_second) / 1_000_000;
        if added > 0 {
            let added = u32::try_from(added).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(added).min(self.burst);
            self.since = now;
        }
    }
}

/// Why a stream is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaExceeded {
    /// The peer has as many open streams as it can have.
    Open,
    /// The peer opens streams too fast.
    Rate,
    /// The protocol has no free place.
    Places,
}

/// The streams of one protocol.
#[derive(Clone)]
pub(super) struct StreamQuotas {
    streams_max: usize,
    peers: Arc<Mutex<OpenStreams>>,
}

#[derive(Default)]
struct OpenStreams {
    open: usize,
    of: HashMap<PeerId, PeerStreams>,
}

struct PeerStreams {
    open: usize,
    rate: RateBucket,
}

/// One stream of a peer's quota; dropping it returns the place.
pub(super) struct HeldStream {
    quotas: StreamQuotas,
    peer: PeerId,
}

impl StreamQuotas {
    pub(super) fn new(streams_max: usize) -> StreamQuotas {
        StreamQuotas {
            streams_max,
            peers: Arc::default(),
        }
    }

    /// Takes a place for a stream of `peer`.
    pub(super) fn take_place(
        &self,
        peer: PeerId,
        now: Instant,
    ) -> Result<HeldStream, QuotaExceeded> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.of.len() >= PEERS_MAX {
            peers.of.retain(|_, peer| peer.open > 0);
        }
        let pressed = peers.open * 2 >= self.streams_max;
        let full = peers.open >= self.streams_max;
        let mine = peers.of.entry(peer).or_insert_with(|| PeerStreams {
            open: 0,
            rate: RateBucket::new(OPENED_BURST, OPENED_PER_SECOND, now),
        });
        mine.rate.take_token(now).map_err(|_| QuotaExceeded::Rate)?;
        let most = match pressed {
            true => STREAMS_PER_PEER_PRESSED,
            false => STREAMS_PER_PEER_MAX,
        };
        if mine.open >= most {
            return Err(QuotaExceeded::Open);
        }
        if full {
            return Err(QuotaExceeded::Places);
        }
        mine.open += 1;
        peers.open += 1;
        Ok(HeldStream {
            quotas: self.clone(),
            peer,
        })
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        let peers = self.quotas.peers.lock();
        let mut peers = peers.unwrap_or_else(PoisonError::into_inner);
        peers.open -= 1;
        if let Some(mine) = peers.of.get_mut(&self.peer) {
            mine.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_share_and_gets_it_back() {
        let (quotas, now) = (StreamQuotas::new(1_000), Instant::now());
        let (greedy, other) = (PeerId::random(), PeerId::random());
        let mut held: Vec<_> = (0..STREAMS_PER_PEER_MAX)
            .map(|_| quotas.take_place(greedy, now).ok().unwrap())
            .collect();
        assert_eq!(
            quotas.take_place(greedy, now).err(),
            Some(QuotaExceeded::Open)
        );
        assert!(quotas.take_place(other, now).is_ok());
        held.pop();
        assert!(quotas.take_place(greedy, now).is_ok());
    }

    #[test]
    fn a_few_peers_do_not_take_all_places() {
        let (quotas, now) = (StreamQuotas::new(4 * STREAMS_PER_PEER_MAX), Instant::now());
        let mut held = Vec::new();
        for _ in 0..6 {
            let greedy = PeerId::random();
            held.extend(
                (0..STREAMS_PER_PEER_MAX).map_while(|_| quotas.take_place(greedy, now).ok()),
            );
        }
        assert!(held.len() < 3 * STREAMS_PER_PEER_MAX);
        assert!(quotas.take_place(PeerId::random(), now).is_ok());
        while let Ok(share) = quotas.take_place(PeerId::random(), now) {
            held.push(share);
        }
        assert_eq!(held.len(), 4 * STREAMS_PER_PEER_MAX);
        let refused = quotas.take_place(PeerId::random(), now).err();
        assert_eq!(refused, Some(QuotaExceeded::Places));
    }

    #[test]
    fn streams_come_at_a_rate() {
        let (quotas, mut now) = (StreamQuotas::new(1_000), Instant::now());
        let peer = PeerId::random();
        for _ in 0..OPENED_BURST {
            drop(quotas.take_place(peer, now).ok().unwrap());
        }
        assert_eq!(
            quotas.take_place(peer, now).err(),
            Some(QuotaExceeded::Rate)
        );
        now += Duration::from_secs(1);
        let more = (0..)
            .take_while(|_| quotas.take_place(peer, now).is_ok())
            .count();
        assert_eq!(more, OPENED_PER_SECOND as usize);
    }
}
