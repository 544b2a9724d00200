//! Limits how many requests or tokens a key can use in a minute: a token bucket that is full again
//! after a minute.

use souk_market::Millis;

const MINUTE_MS: u64 = 60_000;

/// A limit per minute, which is also the most at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    per_minute: u64,
    /// What is left; one request or token is 60,000 of these units.
    left: u64,
    /// What was used beyond the limit, in the same units.
    owed: u64,
    at: Millis,
}

impl RateLimit {
    /// Creates a limit that nothing has used.
    pub fn new(per_minute: u64) -> RateLimit {
        RateLimit {
            per_minute,
            left: per_minute.saturating_mul(MINUTE_MS),
            owed: 0,
            at: Millis(0),
        }
    }

    /// Returns after how many milliseconds you can take `count`; zero if you can now, and none if
    /// it exceeds the limit of a minute.
    pub fn find_wait(&mut self, now: Millis, count: u64) -> Option<Millis> {
        // A clock that went back fills nothing.
        let since = now.0.saturating_sub(self.at.0);
        self.at = now;
        self.fill(since.saturating_mul(self.per_minute));
        if count > self.per_minute {
            return None;
        }
        let needed = count.saturating_mul(MINUTE_MS).saturating_add(self.owed);
        let lacks = needed.saturating_sub(self.left);
        Some(Millis(lacks.div_ceil(self.per_minute.max(1))))
    }

    /// Takes `count`, which must be left.
    pub fn take(&mut self, count: u64) {
        let taken = count.saturating_mul(MINUTE_MS);
        assert!(taken <= self.left, "the wait was awaited");
        self.left -= taken;
    }

    /// Returns `count` that were taken and not used.
    pub fn give_back(&mut self, count: u64) {
        self.fill(count.saturating_mul(MINUTE_MS));
    }

    /// Takes `count` that were used already, even if fewer are left.
    pub fn owe(&mut self, count: u64) {
        let used = count.saturating_mul(MINUTE_MS);
        let taken = used.min(self.left);
        self.left -= taken;
        self.owed = self.owed.saturating_add(used - taken);
    }

    /// Returns the limit.
    pub fn per_minute(&self) -> u64 {
        self.per_minute
    }

    /// Pays what is owed, and fills the rest up.
    fn fill(&mut self, parts: u64) {
        let paid = parts.min(self.owed);
        self.owed -= paid;
        self.left = self.left.saturating_add(parts - paid).min(self.full());
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

    #[test]
    fn what_was_used_beyond_it_is_paid_before_more_is_taken() {
        let mut rate = RateLimit::new(60);
        let at = |seconds: u64| Millis(1_000_000 + seconds * 1_000);
        assert_eq!(rate.find_wait(at(0), 10), Some(Millis(0)));
        rate.take(10);
        rate.owe(170);
        // 50 were left of a minute, so the next two minutes are used already.
        assert_eq!(rate.find_wait(at(0), 0), Some(Millis(120_000)));
        assert_eq!(rate.find_wait(at(60), 1), Some(Millis(61_000)));
        assert_eq!(rate.find_wait(at(119), 1), Some(Millis(2_000)));
        assert_eq!(rate.find_wait(at(121), 1), Some(Millis(0)));
        rate.take(1);
        assert_eq!(rate.find_wait(at(121), 1), Some(Millis(1_000)));
    }
}
