//! Limits how fast one sender of requests can send them: a peer, over all its streams together, or
//! an IP address.
//!
//! [Quotas](crate::stream_quotas) count streams when they are opened; this limit counts
//! the requests within them. A peer that is too fast is not refused but delayed: an honest peer
//! loses a moment, and one that tries to keep the node busy gets no more of it than others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use tokio::time::Instant;

use crate::stream_quotas::RateBucket;

/// Peers whose rate is remembered; the limit on connections is lower.
const PEERS_MAX: usize = 4096;

/// The rates of all peers, or of other senders of requests.
#[derive(Debug)]
pub struct RateLimit<K = PeerId> {
    burst: u32,
    per_second: u32,
    peers: Mutex<HashMap<K, RateBucket>>,
}

impl<K: Copy + Eq + Hash> RateLimit<K> {
    /// Returns limits that allow each peer a cost of `burst` at once, and `per_second` after that,
    /// which must not be 0.
    #[must_use]
    pub fn new(burst: u32, per_second: u32) -> RateLimit<K> {
        RateLimit {
            burst,
            per_second,
            peers: Mutex::default(),
        }
    }

    /// Waits until `peer` may make a request of this cost.
    pub async fn wait_for_tokens(&self, peer: K, cost: u32) {
        while let Err(wait) = self.take_tokens(peer, cost, Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until `peer` may make a request of this cost, on a thread that can block.
    pub fn pass_blocking(&self, peer: K, cost: u32) {
        while let Err(wait) = self.take_tokens(peer, cost, Instant::now()) {
            std::thread::sleep(wait);
        }
    }

    /// Counts a request of `peer`, or returns how long the peer must wait to make it.
    ///
    /// # Errors
    /// If the peer must wait; the request does not count.
    pub fn take_tokens(&self, peer: K, cost: u32, now: Instant) -> Result<(), Duration> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.retain(|_, bucket| !bucket.is_full(now));
            if peers.len() >= PEERS_MAX {
                // So many peers cannot be connected at once, so those forgotten are gone.
                peers.clear();
            }
        }
        let bucket = peers
            .entry(peer)
            .or_insert_with(|| RateBucket::new(self.burst, self.per_second, now));
        bucket.take_many(cost.min(self.burst), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_too_fast_waits_and_others_do_not() {
        let rate_limit = RateLimit::new(100, 50);
        let (greedy, other, now) = (PeerId::random(), PeerId::random(), Instant::now());
        for _ in 0..10 {
            assert_eq!(rate_limit.take_tokens(greedy, 10, now), Ok(()));
        }
        assert_eq!(
            rate_limit.take_tokens(greedy, 10, now),
            Err(Duration::from_millis(200))
        );
        assert_eq!(rate_limit.take_tokens(other, 10, now), Ok(()));
        let later = now + Duration::from_millis(200);
        assert_eq!(rate_limit.take_tokens(greedy, 10, later), Ok(()));
        assert!(rate_limit.take_tokens(greedy, 1, later).is_err());
    }

    #[test]
    fn what_costs_more_than_all_is_let_through_by_itself() {
        let (rate_limit, now) = (RateLimit::new(10, 10), Instant::now());
        let peer = PeerId::random();
        assert_eq!(rate_limit.take_tokens(peer, 64, now), Ok(()));
        assert!(rate_limit.take_tokens(peer, 64, now).is_err());
    }

    #[test]
    fn many_keys_do_not_take_memory() {
        let (rate_limit, now) = (RateLimit::new(10, 10), Instant::now());
        for _ in 0..2 * PEERS_MAX {
            let _ = rate_limit.take_tokens(PeerId::random(), 1, now);
        }
        assert!(rate_limit.peers.lock().unwrap().len() <= PEERS_MAX);
    }
}
