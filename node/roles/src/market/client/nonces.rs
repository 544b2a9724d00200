//! Numbers that rise over restarts and processes of one account.

use serde::Serialize;
use souk_market::{NONCE_WINDOW, Nonce};

use crate::clock::Micros;

/// The last number that was given.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Nonces {
    last: u64,
}

impl Nonces {
    /// The clock in microseconds, or one more than the last. One more as well while others are
    /// under way: the market takes them in in any order as long as they are within its window, and
    /// the clock passes that in no time.
    pub fn next(&mut self, own: Micros, others: bool) -> u64 {
        let clock = if others { 0 } else { own.0 };
        self.last = self.last.saturating_add(1).max(clock);
        self.last
    }

    /// The market can have seen numbers up to a window above `oldest`: the next must be above it.
    pub fn rise_above(&mut self, oldest: Nonce) {
        let highest = oldest.0.saturating_add(NONCE_WINDOW - 1);
        self.last = self.last.max(highest);
    }
}
