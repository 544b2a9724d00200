//! How often a key can be used: a bucket that a minute fills.

use souk_market::Millis;

const MINUTE_MS: u64 = 60_000;

/// A limit of so many in a minute, which also is the most at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    per_minute: u64,
    /// What is left, in parts of a minute's milliseconds.
    left: u64,
    at: Millis,
}

impl RateLimit {
    /// Creates a limit that nothing has used.
    pub fn new(per_minute: u64) -> RateLimit {
        RateLimit {
            per_minute,
            left: per_minute.saturating_mul(MINUTE_MS),
            at: Millis(0),
        }
    }

    /// Returns after how many milliseconds so many can be taken; zero if they can be now, and none
    /// if a minute has fewer.
    pub fn find_wait(&mut self, now: Millis, count: u64) -> Option<Millis> {
        // A clock that went back fills nothing.
        let since = now.0.saturating_sub(self.at.0);
        self.at = now;
        let filled = since.saturating_mul(self.per_minute);
        self.left = self.left.saturating_add(filled).min(self.full());
        if count > self.per_minute {
            return None;
        }
        let lacks = count.saturating_mul(MINUTE_MS).saturating_sub(self.left);
        Some(Millis(lacks.div_ceil(self.per_minute.max(1))))
    }

    /// Takes so many, which must be there.
    pub fn take(&mut self, count: u64) {
        let taken = count.saturating_mul(MINUTE_MS);
        assert!(taken <= self.left, "the wait was awaited");
        self.left -= taken;
    }

    /// Gives so many back that were taken and not used.
    pub fn give_back(&mut self, count: u64) {
        let given = count.saturating_mul(MINUTE_MS);
        self.left = self.left.saturating_add(given).min(self.full());
    }

    /// Returns the limit.
    pub fn per_minute(&self) -> u64 {
        self.per_minute
    }

    fn full(&self) -> u64 {
        self.per_minute.saturating_mul(MINUTE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_fills_it_and_no_more_fits() {
        let mut rate = RateLimit::new(60);
        let at = |seconds: u64| Millis(1_000_000 + seconds * 1_000);
        assert_eq!(rate.find_wait(at(0), 60), Some(Millis(0)));
        rate.take(60);
        assert_eq!(rate.find_wait(at(0), 1), Some(Millis(1_000)));
        assert_eq!(rate.find_wait(at(1), 2), Some(Millis(1_000)));
        // A clock that goes back and comes again fills once.
        assert_eq!(rate.find_wait(at(0), 1), Some(Millis(0)));
        rate.take(1);
        assert_eq!(rate.find_wait(at(1), 1), Some(Millis(0)));
        assert_eq!(rate.find_wait(at(900), 61), None);
        assert_eq!(rate.find_wait(at(900), 60), Some(Millis(0)));
        rate.take(60);
        rate.give_back(70);
        assert_eq!(rate.find_wait(at(900), 60), Some(Millis(0)));
    }
}
