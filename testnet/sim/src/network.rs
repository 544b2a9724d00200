//! Simulates the network between machines: decides for each message whether, when and how damaged
//! it arrives. Faults cut links, slow nodes down, and begin storms in which messages are lost,
//! duplicated or damaged.

use bytes::Bytes;

use super::random::Random;

/// Minimum and maximum milliseconds of a message's delay without faults.
const DELAY_MS: (u64, u64) = (0, 4);

/// The state of all links.
pub struct Network {
    random: Random,
    nodes: usize,
    /// For each ordered pair, the number of faults that cut it at the moment.
    cut: Vec<u32>,
    slow_ms: Vec<u64>,
    storms: Vec<MessageFaultRates>,
}

/// Chances per thousand, and the spread of delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFaultRates {
    pub lost: u64,
    pub doubled: u64,
    pub damaged: u64,
    pub spread_ms: u64,
}

impl Network {
    /// Creates uncut links between `nodes` nodes.
    pub fn new(random: Random, nodes: usize) -> Self {
        let (cut, slow_ms) = (vec![0; nodes * nodes], vec![0; nodes]);
        Self {
            random,
            nodes,
            cut,
            slow_ms,
            storms: Vec::new(),
        }
    }

    /// Cuts or restores one direction. Faults can overlap: the link is whole again once each of its
    /// cuts is restored.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        let count = &mut self.cut[from * self.nodes + to];
        *count = if cut {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// Cuts or restores both directions between the nodes of a mask and the others.
    pub fn set_partition(&mut self, mask: u64, cut: bool) {
        for from in 0..self.nodes {
            for to in 0..self.nodes {
                if (mask >> from) & 1 != (mask >> to) & 1 {
                    self.set_cut(from, to, cut);
                }
            }
        }
    }

    /// Returns whether any link is cut.
    pub fn is_cut(&self) -> bool {
        self.cut.iter().any(|count| *count > 0)
    }

    /// Delays everything that a node sends.
    pub fn set_slow(&mut self, node: usize, delay_ms: u64) {
        self.slow_ms[node] = delay_ms;
    }

    /// Begins a storm.
    pub fn begin_storm(&mut self, storm: MessageFaultRates) {
        self.storms.push(storm);
    }

    /// Ends a storm.
    pub fn end_storm(&mut self, storm: MessageFaultRates) {
        if let Some(place) = self.storms.iter().position(|other| *other == storm) {
            self.storms.swap_remove(place);
        }
    }

    /// Ends all faults.
    pub fn end_all_faults(&mut self) {
        self.cut.fill(0);
        self.slow_ms.fill(0);
        self.storms.clear();
    }

    /// Returns the copies of a message that arrive, each with its delay in milliseconds.
    pub fn carry_message(
        &mut self,
        from: usize,
        to: usize,
        bytes: Bytes,
    ) -> [Option<(u64, Bytes)>; 2] {
        if self.cut[from * self.nodes + to] > 0 {
            return [None, None];
        }
        let storm = self.storms.last().copied();
        let delay = self.random.draw_between(DELAY_MS.0, DELAY_MS.1) + self.slow_ms[from];
        let Some(storm) = storm else {
            return [Some((delay, bytes)), None];
        };
        if self.random.chance(storm.lost) {
            return [None, None];
        }
        let doubled = self.random.chance(storm.doubled);
        let mut copy = || {
            let late = self.random.draw_below(storm.spread_ms + 1);
            (delay + late, self.damage_bytes(&bytes, storm.damaged))
        };
        let first = copy();
        [Some(first), doubled.then(copy)]
    }

    fn damage_bytes(&mut self, bytes: &Bytes, permille: u64) -> Bytes {
        if bytes.is_empty() || !self.random.chance(permille) {
            return bytes.clone();
        }
        let mut damaged = bytes.to_vec();
        let place = self.random.draw_index(damaged.len());
        damaged[place] ^= 1 << self.random.draw_below(8);
        Bytes::from(damaged)
    }
}
