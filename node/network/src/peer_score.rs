//! Scores the misconduct of peers and decides which of them the node keeps out, and until when. The
//! swarm's task reports each fault; the points of a peer fade with time.
//!
//! It takes faults and the time, and returns verdicts, without any effect. Keys are free, so this
//! stops only a peer that continues under one key; the limits on connections and streams bound a
//! stranger with many.

use std::collections::HashMap;

use libp2p::PeerId;
use serde::{Deserialize, Serialize};

use crate::wire::WireError;

/// A peer with this many points is disconnected and kept out.
pub const POINTS_MAX: u32 = 100;

/// Points that fade per second: a peer with one slip a minute is never kept out.
const FADE_PER_SECOND: u32 = 1;

/// How long a peer is kept out the first time, in milliseconds; each next time lasts twice as long.
pub const BLOCK_MS: u64 = 5 * 60_000;

/// The longest a peer is kept out at a time, in milliseconds.
const BLOCK_MS_MAX: u64 = 60 * 60_000;

/// After this time without a fault a peer is as good as new, in milliseconds.
const FORGET_MS: u64 = 24 * 60 * 60_000;

/// A flood or a forgery counts as one fault per second, however many messages it has.
const FLOOD_PERIOD_MS: u64 = 1_000;

/// Peers remembered; the limit on connections is lower.
const PEERS_MAX: usize = 4096;

/// The kinds of misconduct of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misconduct {
    /// It announced a frame over the limit.
    Oversize,
    /// It sent a frame that is not a message of its protocol.
    Malformed,
    /// It forwarded a forged or invalid profile; a peer that checks profiles will not.
    Forged,
    /// It opened more streams or forwarded more messages than a peer may.
    Flood,
    /// It opened a stream and sent nothing, or did not read the answer that it requested.
    Silent,
    /// Its gossip score is too low: it sends invalid messages, or breaks the protocol.
    Gossip,
}

impl Misconduct {
    /// Returns its points. No honest peer sends oversize, malformed or forged messages; a flood can
    /// be a burst, and silence a broken connection.
    fn points(self) -> u32 {
        match self {
            Misconduct::Oversize | Misconduct::Malformed => 50,
            Misconduct::Forged | Misconduct::Flood => 20,
            Misconduct::Silent => 2,
            Misconduct::Gossip => POINTS_MAX,
        }
    }
}

/// How a conversation ended, for the peer's score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// The peer did nothing wrong.
    Fine,
    /// The peer misbehaved like this.
    Wrong(Misconduct),
}

impl From<()> for Conduct {
    fn from((): ()) -> Conduct {
        Conduct::Fine
    }
}

impl From<Result<(), WireError>> for Conduct {
    fn from(ended: Result<(), WireError>) -> Conduct {
        match ended {
            Err(WireError::TooLong { .. }) => Conduct::Wrong(Misconduct::Oversize),
            Err(WireError::Malformed(_)) => Conduct::Wrong(Misconduct::Malformed),
            Err(WireError::Stream(cause)) if cause.kind() == std::io::ErrorKind::TimedOut => {
                Conduct::Wrong(Misconduct::Silent)
            }
            Ok(()) | Err(WireError::Stream(_) | WireError::Closed | WireError::Crowded) => {
                Conduct::Fine
            }
        }
    }
}

/// A peer that is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedPeer {
    /// The end of this time, in milliseconds since 1970.
    pub until_ms: u64,
    /// The fault that exceeded the limit.
    pub fault: Misconduct,
}

/// The faults of every peer.
#[derive(Debug, Default)]
pub struct PeerScores {
    scores: HashMap<PeerId, PeerScore>,
}

#[derive(Debug)]
struct PeerScore {
    points: u32,
    /// When the points last faded, in milliseconds since 1970.
    at_ms: u64,
    /// When a flood last counted, in milliseconds since 1970.
    flood_ms: Option<u64>,
    times_blocked: u32,
    blocked: Option<BlockedPeer>,
}

impl PeerScore {
    fn new(now_ms: u64) -> PeerScore {
        PeerScore {
            points: 0,
            at_ms: now_ms,
            flood_ms: None,
            times_blocked: 0,
            blocked: None,
        }
    }

    fn current_points(&self, now_ms: u64) -> u32 {
        let seconds = now_ms.saturating_sub(self.at_ms) / 1_000;
        let faded = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.points
            .saturating_sub(faded.saturating_mul(FADE_PER_SECOND))
    }
}

impl PeerScores {
    /// Counts a fault. Returns the verdict if this fault exceeds the limit and the peer was not out
    /// already.
    pub fn on_fault(
        &mut self,
        peer: PeerId,
        fault: Misconduct,
        now_ms: u64,
    ) -> Option<BlockedPeer> {
        self.make_room(peer, now_ms);
        let score = self
            .scores
            .entry(peer)
            .or_insert_with(|| PeerScore::new(now_ms));
        if score.blocked.is_some() {
            return None;
        }
        if matches!(fault, Misconduct::Flood | Misconduct::Forged) {
            let counted = score.flood_ms;
            if counted.is_some_and(|counted| now_ms < counted + FLOOD_PERIOD_MS) {
                return None;
            }
            score.flood_ms = Some(now_ms);
        }
        score.points = score.current_points(now_ms).saturating_add(fault.points());
        score.at_ms = now_ms;
        if score.points < POINTS_MAX {
            return None;
        }
        let longer = BLOCK_MS.saturating_mul(1 << score.times_blocked.min(10));
        let until_ms = now_ms + longer.min(BLOCK_MS_MAX);
        score.times_blocked += 1;
        score.blocked = Some(BlockedPeer { until_ms, fault });
        score.blocked
    }

    /// Returns the peers whose time is over: they can return, but the number of their bans remains.
    pub fn release_expired(&mut self, now_ms: u64) -> Vec<PeerId> {
        let mut released = Vec::new();
        for (peer, score) in &mut self.scores {
            if score
                .blocked
                .is_some_and(|blocked| blocked.until_ms <= now_ms)
            {
                (score.blocked, score.points, score.at_ms) = (None, 0, now_ms);
                released.push(*peer);
            }
        }
        released
    }

    /// Returns a peer's points at this moment.
    pub fn peer_points(&self, peer: &PeerId, now_ms: u64) -> u32 {
        self.scores
            .get(peer)
            .map_or(0, |score| score.current_points(now_ms))
    }

    /// Returns why and until when a peer is kept out, if it is.
    pub fn blocked_peer(&self, peer: &PeerId) -> Option<BlockedPeer> {
        self.scores.get(peer).and_then(|score| score.blocked)
    }

    /// Returns all peers that are kept out.
    pub fn all_blocked(&self) -> impl Iterator<Item = (&PeerId, BlockedPeer)> {
        self.scores
            .iter()
            .filter_map(|(peer, score)| Some((peer, score.blocked?)))
    }

    /// Forgets peers whose faults are long past; if there are none, forgets the least important.
    fn make_room(&mut self, peer: PeerId, now_ms: u64) {
        if self.scores.len() < PEERS_MAX || self.scores.contains_key(&peer) {
            return;
        }
        self.scores.retain(|_, score| {
            let idle = now_ms.saturating_sub(score.at_ms);
            score.blocked.is_some() || score.current_points(now_ms) > 0 || idle < FORGET_MS
        });
        if self.scores.len() < PEERS_MAX {
            return;
        }
        let weight = |score: &PeerScore| {
            (
                score.blocked.is_some(),
                score.current_points(now_ms),
                score.at_ms,
            )
        };
        let least = self.scores.iter().min_by_key(|(_, score)| weight(score));
        if let Some(least) = least.map(|(peer, _)| *peer) {
            self.scores.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_folder::key::NodeKey;

    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn peer() -> PeerId {
        NodeKey::generate().peer_id()
    }

    #[test]
    fn two_malformed_frames_are_one_too_many() {
        let (mut scores, peer) = (PeerScores::default(), peer());
        assert_eq!(scores.on_fault(peer, Misconduct::Malformed, NOW), None);
        let blocked = BlockedPeer {
            until_ms: NOW + BLOCK_MS,
            fault: Misconduct::Oversize,
        };
        let verdict = scores.on_fault(peer, Misconduct::Oversize, NOW);
        assert_eq!(verdict, Some(blocked));
        assert_eq!(scores.blocked_peer(&peer), Some(blocked));
        assert_eq!(scores.all_blocked().count(), 1);
        assert_eq!(
            scores.on_fault(peer, Misconduct::Oversize, NOW),
            None,
            "once"
        );
    }

    #[test]
    fn points_fade_with_time() {
        let (mut scores, peer) = (PeerScores::default(), peer());
        scores.on_fault(peer, Misconduct::Malformed, NOW);
        assert_eq!(scores.peer_points(&peer, NOW + 20_000), 30);
        let later = scores.on_fault(peer, Misconduct::Malformed, NOW + 60_000);
        assert_eq!(later, None, "the first is forgotten");
    }

    #[test]
    fn a_flood_counts_once_a_second() {
        let (mut scores, peer) = (PeerScores::default(), peer());
        for _ in 0..1_000 {
            assert_eq!(scores.on_fault(peer, Misconduct::Flood, NOW), None);
        }
        assert_eq!(scores.peer_points(&peer, NOW), Misconduct::Flood.points());
        let flooding = (1..60).find(|second| {
            let now = NOW + second * 1_000;
            scores.on_fault(peer, Misconduct::Flood, now).is_some()
        });
        assert_eq!(flooding, Some(5), "who goes on is out within seconds");
    }

    #[test]
    fn who_comes_back_and_goes_on_is_out_for_longer() {
        let (mut scores, peer) = (PeerScores::default(), peer());
        scores.on_fault(peer, Misconduct::Gossip, NOW);
        assert!(scores.release_expired(NOW + BLOCK_MS - 1).is_empty());
        let now = NOW + BLOCK_MS;
        assert_eq!(scores.release_expired(now), [peer]);
        assert_eq!(scores.peer_points(&peer, now), 0);
        let again = scores.on_fault(peer, Misconduct::Gossip, now).unwrap();
        assert_eq!(again.until_ms, now + 2 * BLOCK_MS);
    }

    #[test]
    fn many_keys_do_not_take_memory() {
        let mut scores = PeerScores::default();
        let kept = peer();
        scores.on_fault(kept, Misconduct::Gossip, NOW);
        for _ in 0..PEERS_MAX + 100 {
            scores.on_fault(PeerId::random(), Misconduct::Silent, NOW);
        }
        assert_eq!(scores.scores.len(), PEERS_MAX);
        assert!(scores.blocked_peer(&kept).is_some(), "who is out stays out");
    }
}
