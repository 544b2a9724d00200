//! Computes when the caller of a session is warned of the end of its leases: the slower its
//! requests are answered, the earlier. `warning` keeps it up to date.

use serde::{Deserialize, Serialize};

use crate::clock::Micros;

/// The requests that must have room after the warning: one on its way to the core, the last one,
/// and one for chance.
const ROOMS: u64 = 3;

/// The requests that must be answered after the warning, beside those under way: one on its way to
/// the core, and the last one.
const REST: u64 = 2;

/// When the caller is warned, by the pace of the answers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WarningTime {
    /// The moment since which the providers work on the next answer; none if they have no request.
    since: Option<Micros>,
    /// The time from one answer to the next, which rises at once and falls by halves. The first
    /// answer does not count: it also waited for a provider that was not ready yet.
    each: Micros,
    has_answer: bool,
    /// The latest moment of the warning.
    pub latest: Micros,
    /// Whether the caller was warned.
    pub is_over: bool,
}

impl WarningTime {
    /// Records that the providers have a request.
    pub(super) fn begin_answer(&mut self, now: Micros) {
        self.since.get_or_insert(now);
    }

    /// Records an answer.
    pub(super) fn note_answer(&mut self, now: Micros, is_next_begun: bool) {
        let took = self.since.map_or(Micros(0), |since| now.since(since));
        if std::mem::replace(&mut self.has_answer, true) {
            self.each = took.max(Micros(self.each.plus(took).0 / 2));
        }
        self.since = is_next_begun.then_some(now);
    }

    /// Returns the moment of the warning for an attempt that sends requests, and awaits answers,
    /// until these moments, with so many requests under way.
    pub(super) fn moment(&self, send_until: Micros, await_until: Micros, window: u32) -> Micros {
        let time_for = |requests: u64| Micros(self.each.0.saturating_mul(requests));
        let last_sent = send_until.since(time_for(ROOMS));
        let last_answered = await_until.since(time_for(u64::from(window) + REST));
        self.latest.min(last_sent).min(last_answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_seconds(1);

    fn warning() -> WarningTime {
        WarningTime {
            latest: Micros::from_seconds(18),
            ..WarningTime::default()
        }
    }

    fn moment(warning: WarningTime) -> Micros {
        let [send, wait] = [20, 27].map(Micros::from_seconds);
        warning.moment(send, wait, 4)
    }

    #[test]
    fn slow_answers_hasten_the_warning_and_quick_ones_put_it_off() {
        let mut warning = warning();
        assert_eq!(moment(warning), Micros::from_seconds(18));
        warning.begin_answer(Micros(0));
        warning.note_answer(SECOND, true);
        assert_eq!(moment(warning), Micros::from_seconds(18), "the first");
        warning.note_answer(Micros::from_seconds(3), true);
        // Two seconds an answer: three more requests have room within six.
        assert_eq!(moment(warning), Micros::from_seconds(14));
        for tick in 3..9 {
            warning.note_answer(Micros::from_seconds(tick), true);
        }
        assert_eq!(moment(warning), Micros::from_seconds(17));
        // One that takes far longer counts at once.
        warning.note_answer(Micros::from_seconds(12), true);
        assert_eq!(moment(warning), Micros::from_seconds(3));
    }

    #[test]
    fn time_in_which_nothing_is_asked_says_nothing_about_the_pace() {
        let mut warning = warning();
        warning.begin_answer(Micros(0));
        warning.note_answer(Micros(0), false);
        warning.begin_answer(Micros::from_seconds(8));
        warning.begin_answer(Micros::from_seconds(9));
        warning.note_answer(Micros::from_seconds(9), false);
        assert_eq!(moment(warning), Micros::from_seconds(17));
    }
}
