//! Draws a replica's election timeouts from its own seed, in place of those of raft-rs.
//!
//! raft-rs draws them from the thread's random generator, which would make replays impossible. This
//! module draws a new timeout whenever the role, term or leader changes or a campaign begins, and
//! sets it after every step over the one that raft-rs drew.

use raft::{RawNode, StateRole};

use crate::log::Log;

/// Ticks beyond the election timeout before a replica campaigns. Voters refuse while they heard
/// from a leader within the timeout; a replica that campaigned at the very end of it would meet
/// refusals from those that heard the same heartbeat a moment later, and lose a whole round.
const LEASE_TICKS: usize = 2;

/// The timeout of a replica that must not campaign.
const NEVER: usize = usize::MAX - 1;

/// The longest timeout in the configuration of raft-rs.
pub(super) const TIMEOUT_MAX: usize = usize::MAX;

/// Draws timeouts between one and two election timeouts.
#[derive(Debug)]
pub(super) struct Elections {
    state: u64,
    ticks: usize,
    drawn: usize,
    seen: Option<(u64, StateRole, u64)>,
}

impl Elections {
    /// Creates timeouts of at least `ticks` and less than twice as many.
    pub(super) fn new(seed: u64, ticks: usize) -> Self {
        Self {
            state: seed,
            ticks,
            drawn: ticks,
            seen: None,
        }
    }

    /// Sets the timeout; you must call this after anything that can have touched raft's state. A
    /// replica that must not campaign yet waits without limit.
    pub(super) fn set_timeout(&mut self, raw: &mut RawNode<Log>, may_campaign: bool) {
        let now = (raw.raft.term, raw.raft.state, raw.raft.leader_id);
        let campaign = raw.raft.election_elapsed == 0 && now.1 != StateRole::Leader && now.2 == 0;
        if self.seen != Some(now) || campaign {
            self.seen = Some(now);
            let least = self.ticks + LEASE_TICKS.min(self.ticks - 1);
            let draw = self.next() % (2 * self.ticks - least) as u64;
            self.drawn = least + usize::try_from(draw).unwrap_or(0);
        }
        let timeout = if may_campaign { self.drawn } else { NEVER };
        raw.raft.set_randomized_election_timeout(timeout);
    }

    /// Returns the next number of splitmix64: small, well mixed, and the same on every platform.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
