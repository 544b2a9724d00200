//! Picks the nonce of each batch that an account signs: a number that rises even across restarts
//! and between processes of the account, because it follows the clock. The market applies each
//! nonce once, and accepts nonces in any order within a window.

use serde::Serialize;
use souk_market::{NONCE_WINDOW, Nonce};

use crate::clock::Micros;

/// How far a clock of the account can have been ahead: a hundred years. With a nonce near the end
/// of the numbers, the account could sign nothing any more.
pub const CLOCK_AHEAD_MAX: Micros = Micros::from_seconds(100 * 365 * 24 * 3_600);

/// The last nonce that this client gave out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Nonces {
    last: u64,
}

impl Nonces {
    /// Returns the clock in microseconds, but at least one more than the last nonce. While other
    /// batches are under way it returns exactly one more: the market accepts nonces in any order
    /// only within its window, and the clock would leave the window at once.
    pub fn next(&mut self, own: Micros, others: bool) -> u64 {
        let clock = if others { 0 } else { own.0 };
        self.last = self.last.saturating_add(1).max(clock);
        self.last
    }

    /// Makes the next nonce greater than every one that the market has seen, which are less than a
    /// window above `seen`: a nonce of the market's window, or the oldest of it.
    pub fn rise_above(&mut self, seen: Nonce) {
        let highest = seen.0.saturating_add(NONCE_WINDOW - 1);
        self.last = self.last.max(highest);
    }
}
