//! Time that is counted while there is something to do, and the most that may be billed for it.

use serde::{Deserialize, Serialize};

use crate::clock::Micros;

/// What a bill may be over what was seen: a sixteenth and two seconds, for clocks that differ,
/// words that travel unevenly and runs that a buyer hears of late. A provider may note as much
/// unstarted.
const UNSEEN_SHARE: u64 = 16;
const UNSEEN: Micros = Micros::millis(2_000);

/// The time in which something was to be done, as far as it has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenTime {
    counted: Micros,
    /// Since when there is something to do, and until when all is counted that was before.
    since: Option<Micros>,
    until: Micros,
}

impl SeenTime {
    /// From `moment` on there is something to do; what was counted before is not counted again.
    pub(super) fn begin(&mut self, moment: Micros) {
        self.since.get_or_insert(moment.max(self.until));
    }

    /// There is nothing to do any more.
    pub(super) fn end(&mut self, now: Micros) {
        self.counted = self.seen_at(now);
        (self.since, self.until) = (None, now);
    }

    /// All of it until now.
    pub(super) fn seen_at(&self, now: Micros) -> Micros {
        let open = self.since.map_or(Micros(0), |since| now.since(since));
        self.counted.plus(open)
    }
}

/// The most that may be billed where so much was seen.
pub(super) fn payable(seen: Micros) -> Micros {
    seen.plus(Micros(seen.0 / UNSEEN_SHARE)).plus(UNSEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_however_early_it_began() {
        let mut seen = SeenTime::default();
        seen.begin(Micros(100));
        seen.begin(Micros(150));
        assert_eq!(seen.seen_at(Micros(160)), Micros(60));
        seen.end(Micros(200));
        seen.end(Micros(210));
        assert_eq!(seen.seen_at(Micros(900)), Micros(100));
        // What is heard late began no earlier than what is counted ended.
        seen.begin(Micros(180));
        assert_eq!(seen.seen_at(Micros(300)), Micros(190));
    }

    #[test]
    fn a_bill_is_at_most_a_sixteenth_and_a_moment_over_what_was_seen() {
        assert_eq!(payable(Micros(0)), UNSEEN);
        let hour = Micros::seconds(3_600);
        assert_eq!(payable(hour), Micros::seconds(3_600 + 225).plus(UNSEEN));
    }
}
