//! A stopwatch for one provider: counts the time in which the provider had something to do, or
//! waited for a request, and computes the most that it can bill for that. `seen_time` starts and
//! stops it. No span of time counts twice.

use serde::{Deserialize, Serialize};

use crate::clock::Micros;

/// A bill can exceed the time that the buyer saw by a sixteenth and 250 ms, because clocks
/// differ and messages travel unevenly.
const UNSEEN_SHARE: u64 = 16;
const UNSEEN: Micros = Micros::from_millis(250);

/// How long a provider had something to do, or waited, as its buyer has counted it so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenTime {
    counted: Micros,
    /// When the span that is counted now began.
    since: Option<Micros>,
    /// The moment up to which all time is counted: nothing is counted twice.
    until: Micros,
    /// The parts that the provider has made.
    parts: usize,
}

impl SeenTime {
    /// Records that the provider has no request at `now`, so it cannot have begun another part
    /// before.
    pub(super) fn hold_off(&mut self, now: Micros) {
        assert!(
            self.since.is_none(),
            "without a request there is nothing to do"
        );
        self.until = now;
    }

    /// Counts from `moment`, or from the end of the last span if that is later.
    pub(super) fn begin_span(&mut self, moment: Micros) {
        self.since.get_or_insert(moment.max(self.until));
    }

    /// Records that the provider has something to do since a moment so long ago that this process's
    /// clock may not reach back to it.
    pub(super) fn resume_work(&mut self, passed: Micros, now: Micros) {
        self.counted = passed;
        (self.since, self.until) = (Some(now), now);
    }

    /// Counts no further.
    pub(super) fn end_span(&mut self, now: Micros) {
        if self.since.is_some() {
            self.counted = self.seen_at(now);
            (self.since, self.until) = (None, now);
        }
    }

    /// Records how many parts the provider has made in all. Messages of two providers can overtake
    /// each other: if the provider made a part whose input the buyer does not know of yet, its run
    /// can have begun at any moment that is not counted yet.
    pub(super) fn note_parts(&mut self, parts: usize, now: Micros) {
        if parts > self.parts && self.since.is_none() {
            self.begin_span(self.until);
            self.end_span(now);
        }
        self.parts = parts;
    }

    /// Returns all the time counted until now.
    pub(super) fn seen_at(&self, now: Micros) -> Micros {
        let open = self.since.map_or(Micros(0), |since| now.since(since));
        self.counted.plus(open)
    }
}

/// Returns the most device time that a provider can bill if the buyer saw so much.
pub(super) fn max_payable(seen: Micros) -> Micros {
    seen.plus(Micros(seen.0 / UNSEEN_SHARE)).plus(UNSEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_however_early_it_began() {
        let mut seen = SeenTime::default();
        seen.begin_span(Micros(100));
        seen.begin_span(Micros(150));
        assert_eq!(seen.seen_at(Micros(160)), Micros(60));
        seen.end_span(Micros(200));
        seen.end_span(Micros(210));
        assert_eq!(seen.seen_at(Micros(900)), Micros(100));
        // A run that the buyer hears of late began no earlier than the last one ended.
        seen.begin_span(Micros(180));
        assert_eq!(seen.seen_at(Micros(300)), Micros(200));
    }

    #[test]
    fn a_part_that_is_heard_of_before_its_input_is_counted_since_the_last_one() {
        let mut seen = SeenTime::default();
        seen.hold_off(Micros(100));
        seen.note_parts(1, Micros(150));
        assert_eq!(seen.seen_at(Micros(150)), Micros(50));
        // Its input is heard of then: nothing is counted twice.
        seen.end_span(Micros(170));
        seen.note_parts(1, Micros(180));
        assert_eq!(seen.seen_at(Micros(200)), Micros(50));
        seen.begin_span(Micros(210));
        seen.note_parts(2, Micros(230));
        seen.end_span(Micros(230));
        assert_eq!(seen.seen_at(Micros(300)), Micros(70));
    }

    #[test]
    fn what_passed_before_this_clock_began_is_counted() {
        let (mut seen, second) = (SeenTime::default(), Micros::from_seconds(1));
        seen.hold_off(Micros(100));
        seen.resume_work(Micros::from_seconds(8), Micros(200));
        let now = second.plus(Micros(200));
        assert_eq!(seen.seen_at(now), Micros::from_seconds(9));
        seen.note_parts(3, now);
        seen.end_span(now);
        assert_eq!(seen.seen_at(now.plus(second)), Micros::from_seconds(9));
    }

    #[test]
    fn a_bill_is_at_most_a_sixteenth_and_a_moment_over_what_was_seen() {
        assert_eq!(max_payable(Micros(0)), UNSEEN);
        let hour = Micros::from_seconds(3_600);
        assert_eq!(
            max_payable(hour),
            Micros::from_seconds(3_600 + 225).plus(UNSEEN)
        );
    }
}
