//! What peers did wrong: points that fade, and who is kept out until when.
//!
//! Pure: faults and the time in, verdicts out. Keys are free, so this stops whoever goes on under
//! one; what a stranger with many can take is bounded by the limits on connections and streams.

use std::collections::HashMap;

use libp2p::PeerId;
use serde::{Deserialize, Serialize};

use crate::network::wire::WireError;

/// A peer with so many points is disconnected and kept out.
pub const POINTS_MAX: u32 = 100;

/// Points that fade in a second: who slips once in a minute is never kept out.
const FADE_PER_SECOND: u32 = 1;

/// How long a peer is kept out the first time, in milliseconds; twice as long each next time.
pub const BLOCK_MS: u64 = 5 * 60_000;

/// The longest a peer is kept out at a time, in milliseconds.
const BLOCK_MS_MAX: u64 = 60 * 60_000;

/// After so long without a fault a peer is as new, in milliseconds.
const FORGET_MS: u64 = 24 * 60 * 60_000;

/// A flood or a forgery is one fault a second, however many messages it has.
const FLOOD_PERIOD_MS: u64 = 1_000;

/// Peers remembered; the limit on connections is lower.
const PEERS_MAX: usize = 4096;

/// What a peer may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misconduct {
    /// It announced a frame over the limit.
    Oversize,
    /// It sent a frame that is no message of its protocol.
    Malformed,
    /// It passed on a profile that is forged or no profile: whoever checks does not.
    Forged,
    /// It opened more streams or passed on more messages than a peer may.
    Flood,
    /// It opened a stream and said nothing, or did not read what it asked for.
    Silent,
    /// Gossip judged it: it sends what is wrong, or does not keep to the protocol.
    Gossip,
}

impl Misconduct {
    /// Its points. No honest peer sends what is oversize, malformed or forged; a flood may be a
    /// burst, silence a broken line.
    fn points(self) -> u32 {
        match self {
            Misconduct::Oversize | Misconduct::Malformed => 50,
            Misconduct::Forged | Misconduct::Flood => 20,
            Misconduct::Silent => 2,
            Misconduct::Gossip => POINTS_MAX,
        }
    }
}

/// How a conversation ended, for who keeps the score of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// Nothing to be blamed for.
    Fine,
    /// The peer did this.
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
    /// Until when, in milliseconds since 1970.
    pub until_ms: u64,
    /// The fault that was one too many.
    pub fault: Misconduct,
}

/// Every peer's faults.
#[derive(Debug, Default)]
pub struct PeerScores {
    scores: HashMap<PeerId, PeerScore>,
}

#[derive(Debug)]
struct PeerScore {
    points: u32,
    /// When the points were last counted.
    at_ms: u64,
    /// When a flood was last counted.
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

    fn points(&self, now_ms: u64) -> u32 {
        let seconds = now_ms.saturating_sub(self.at_ms) / 1_000;
        let faded = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.points
            .saturating_sub(faded.saturating_mul(FADE_PER_SECOND))
    }
}

impl PeerScores {
    /// Counts a fault. The verdict, where it is one too many and the peer was not out already.
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
        score.points = score.points(now_ms).saturating_add(fault.points());
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

    /// Those whose time is over: they may come again, with nothing against them but the memory.
    pub fn release(&mut self, now_ms: u64) -> Vec<PeerId> {
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

    /// A peer's points at this moment.
    pub fn points(&self, peer: &PeerId, now_ms: u64) -> u32 {
        self.scores
            .get(peer)
            .map_or(0, |score| score.points(now_ms))
    }

    /// Why and until when a peer is kept out, if it is.
    pub fn blocked(&self, peer: &PeerId) -> Option<BlockedPeer> {
        self.scores.get(peer).and_then(|score| score.blocked)
    }

    /// Everyone who is kept out.
    pub fn all_blocked(&self) -> impl Iterator<Item = (&PeerId, BlockedPeer)> {
        self.scores
            .iter()
            .filter_map(|(peer, score)| Some((peer, score.blocked?)))
    }

    /// Forgets whom it can; where all are remembered for a reason, the one that counts least.
    fn make_room(&mut self, peer: PeerId, now_ms: u64) {
        if self.scores.len() < PEERS_MAX || self.scores.contains_key(&peer) {
            return;
        }
        self.scores.retain(|_, score| {
            let idle = now_ms.saturating_sub(score.at_ms);
            score.blocked.is_some() || score.points(now_ms) > 0 || idle < FORGET_MS
        });
        if self.scores.len() < PEERS_MAX {
            return;
        }
        let weight =
            |score: &PeerScore| (score.blocked.is_some(), score.points(now_ms), score.at_ms);
        let least = self.scores.iter().min_by_key(|(_, score)| weight(score));
        if let Some(least) = least.map(|(peer, _)| *peer) {
            self.scores.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::key::NodeKey;

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
        assert_eq!(scores.blocked(&peer), Some(blocked));
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
        assert_eq!(scores.points(&peer, NOW + 20_000), 30);
        let later = scores.on_fault(peer, Misconduct::Malformed, NOW + 60_000);
        assert_eq!(later, None, "the first is forgotten");
    }

    #[test]
    fn a_flood_counts_once_a_second() {
        let (mut scores, peer) = (PeerScores::default(), peer());
        for _ in 0..1_000 {
            assert_eq!(scores.on_fault(peer, Misconduct::Flood, NOW), None);
        }
        assert_eq!(scores.points(&peer, NOW), Misconduct::Flood.points());
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
        assert!(scores.release(NOW + BLOCK_MS - 1).is_empty());
        let now = NOW + BLOCK_MS;
        assert_eq!(scores.release(now), [peer]);
        assert_eq!(scores.points(&peer, now), 0);
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
        assert!(scores.blocked(&kept).is_some(), "who is out stays out");
    }
}
