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
pub enum Fault {
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

impl Fault {
    /// Its points. No honest peer sends what is oversize, malformed or forged; a flood may be a
    /// burst, silence a broken line.
    fn points(self) -> u32 {
        match self {
            Fault::Oversize | Fault::Malformed => 50,
            Fault::Forged | Fault::Flood => 20,
            Fault::Silent => 2,
            Fault::Gossip => POINTS_MAX,
        }
    }
}

/// How a conversation ended, for who keeps the standing of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// Nothing to be blamed for.
    Fine,
    /// The peer did this.
    Wrong(Fault),
}

impl From<()> for Conduct {
    fn from((): ()) -> Conduct {
        Conduct::Fine
    }
}

impl From<Result<(), WireError>> for Conduct {
    fn from(ended: Result<(), WireError>) -> Conduct {
        match ended {
            Err(WireError::TooLong { .. }) => Conduct::Wrong(Fault::Oversize),
            Err(WireError::Malformed(_)) => Conduct::Wrong(Fault::Malformed),
            Err(WireError::Stream(cause)) if cause.kind() == std::io::ErrorKind::TimedOut => {
                Conduct::Wrong(Fault::Silent)
            }
            Ok(()) | Err(WireError::Stream(_) | WireError::Closed | WireError::Crowded) => {
                Conduct::Fine
            }
        }
    }
}

/// A peer that is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Until when, in milliseconds since 1970.
    pub until_ms: u64,
    /// The fault that was one too many.
    pub fault: Fault,
}

/// Every peer's faults.
#[derive(Debug, Default)]
pub struct Standing {
    marks: HashMap<PeerId, Mark>,
}

#[derive(Debug)]
struct Mark {
    points: u32,
    /// When the points were last counted.
    at_ms: u64,
    /// When a flood was last counted.
    flood_ms: Option<u64>,
    times_blocked: u32,
    blocked: Option<Blocked>,
}

impl Mark {
    fn new(now_ms: u64) -> Mark {
        Mark {
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

impl Standing {
    /// Counts a fault. The verdict, where it is one too many and the peer was not out already.
    pub fn on_fault(&mut self, peer: PeerId, fault: Fault, now_ms: u64) -> Option<Blocked> {
        self.make_room(peer, now_ms);
        let mark = self.marks.entry(peer).or_insert_with(|| Mark::new(now_ms));
        if mark.blocked.is_some() {
            return None;
        }
        if matches!(fault, Fault::Flood | Fault::Forged) {
            let counted = mark.flood_ms;
            if counted.is_some_and(|counted| now_ms < counted + FLOOD_PERIOD_MS) {
                return None;
            }
            mark.flood_ms = Some(now_ms);
        }
        mark.points = mark.points(now_ms).saturating_add(fault.points());
        mark.at_ms = now_ms;
        if mark.points < POINTS_MAX {
            return None;
        }
        let longer = BLOCK_MS.saturating_mul(1 << mark.times_blocked.min(10));
        let until_ms = now_ms + longer.min(BLOCK_MS_MAX);
        mark.times_blocked += 1;
        mark.blocked = Some(Blocked { until_ms, fault });
        mark.blocked
    }

    /// Those whose time is over: they may come again, with nothing against them but the memory.
    pub fn release(&mut self, now_ms: u64) -> Vec<PeerId> {
        let mut released = Vec::new();
        for (peer, mark) in &mut self.marks {
            if mark
                .blocked
                .is_some_and(|blocked| blocked.until_ms <= now_ms)
            {
                (mark.blocked, mark.points, mark.at_ms) = (None, 0, now_ms);
                released.push(*peer);
            }
        }
        released
    }

    /// A peer's points at this moment.
    pub fn points(&self, peer: &PeerId, now_ms: u64) -> u32 {
        self.marks.get(peer).map_or(0, |mark| mark.points(now_ms))
    }

    /// Why and until when a peer is kept out, if it is.
    pub fn blocked(&self, peer: &PeerId) -> Option<Blocked> {
        self.marks.get(peer).and_then(|mark| mark.blocked)
    }

    /// Everyone who is kept out.
    pub fn all_blocked(&self) -> impl Iterator<Item = (&PeerId, Blocked)> {
        self.marks
            .iter()
            .filter_map(|(peer, mark)| Some((peer, mark.blocked?)))
    }

    /// Forgets whom it can; where all are remembered for a reason, the one that counts least.
    fn make_room(&mut self, peer: PeerId, now_ms: u64) {
        if self.marks.len() < PEERS_MAX || self.marks.contains_key(&peer) {
            return;
        }
        self.marks.retain(|_, mark| {
            let idle = now_ms.saturating_sub(mark.at_ms);
            mark.blocked.is_some() || mark.points(now_ms) > 0 || idle < FORGET_MS
        });
        if self.marks.len() < PEERS_MAX {
            return;
        }
        let weight = |mark: &Mark| (mark.blocked.is_some(), mark.points(now_ms), mark.at_ms);
        let least = self.marks.iter().min_by_key(|(_, mark)| weight(mark));
        if let Some(least) = least.map(|(peer, _)| *peer) {
            self.marks.remove(&least);
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
        let (mut standing, peer) = (Standing::default(), peer());
        assert_eq!(standing.on_fault(peer, Fault::Malformed, NOW), None);
        let blocked = Blocked {
            until_ms: NOW + BLOCK_MS,
            fault: Fault::Oversize,
        };
        let verdict = standing.on_fault(peer, Fault::Oversize, NOW);
        assert_eq!(verdict, Some(blocked));
        assert_eq!(standing.blocked(&peer), Some(blocked));
        assert_eq!(standing.all_blocked().count(), 1);
        assert_eq!(standing.on_fault(peer, Fault::Oversize, NOW), None, "once");
    }

    #[test]
    fn points_fade_with_time() {
        let (mut standing, peer) = (Standing::default(), peer());
        standing.on_fault(peer, Fault::Malformed, NOW);
        assert_eq!(standing.points(&peer, NOW + 20_000), 30);
        let later = standing.on_fault(peer, Fault::Malformed, NOW + 60_000);
        assert_eq!(later, None, "the first is forgotten");
    }

    #[test]
    fn a_flood_counts_once_a_second() {
        let (mut standing, peer) = (Standing::default(), peer());
        for _ in 0..1_000 {
            assert_eq!(standing.on_fault(peer, Fault::Flood, NOW), None);
        }
        assert_eq!(standing.points(&peer, NOW), Fault::Flood.points());
        let flooding = (1..60).find(|second| {
            let now = NOW + second * 1_000;
            standing.on_fault(peer, Fault::Flood, now).is_some()
        });
        assert_eq!(flooding, Some(5), "who goes on is out within seconds");
    }

    #[test]
    fn who_comes_back_and_goes_on_is_out_for_longer() {
        let (mut standing, peer) = (Standing::default(), peer());
        standing.on_fault(peer, Fault::Gossip, NOW);
        assert!(standing.release(NOW + BLOCK_MS - 1).is_empty());
        let now = NOW + BLOCK_MS;
        assert_eq!(standing.release(now), [peer]);
        assert_eq!(standing.points(&peer, now), 0);
        let again = standing.on_fault(peer, Fault::Gossip, now).unwrap();
        assert_eq!(again.until_ms, now + 2 * BLOCK_MS);
    }

    #[test]
    fn many_keys_do_not_take_memory() {
        let mut standing = Standing::default();
        let kept = peer();
        standing.on_fault(kept, Fault::Gossip, NOW);
        for _ in 0..PEERS_MAX + 100 {
            standing.on_fault(PeerId::random(), Fault::Silent, NOW);
        }
        assert_eq!(standing.marks.len(), PEERS_MAX);
        assert!(standing.blocked(&kept).is_some(), "who is out stays out");
    }
}
