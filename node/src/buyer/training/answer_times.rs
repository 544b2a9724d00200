//! Measures, by the buyer's clock, how long a request of a training lease takes. This includes what
//! no ask states: the transfer of the batch, the messages, and the load of both machines.

use std::time::Duration;

use tokio::time::Instant;

/// When the requests of a lease were answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    begun: Instant,
    /// When the first request was answered.
    first: Option<Instant>,
    last: Instant,
    count: u32,
}

impl AnswerTimes {
    /// Starts measuring a lease that begins at `now`.
    pub(super) fn start(now: Instant) -> AnswerTimes {
        AnswerTimes {
            begun: now,
            first: None,
            last: now,
            count: 0,
        }
    }

    /// Notes that a request was answered at `now`.
    pub(super) fn note_answer(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = now;
        self.count += 1;
    }

    /// Returns how long a request took; none if none was answered. The first answer also waited for
    /// the purchase and the provider's preparation, so it counts only if there is no other.
    pub(super) fn request_time(&self) -> Option<Duration> {
        let first = self.first?;
        Some(match self.count {
            1 => first.duration_since(self.begun),
            count => self.last.duration_since(first) / (count - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_first_answer_counts_only_without_another() {
        let begun = Instant::now();
        let mut times = AnswerTimes::start(begun);
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(times.request_time(), None);
        times.note_answer(after(8));
        assert_eq!(times.request_time(), Some(Duration::from_secs(8)));
        times.note_answer(after(9));
        times.note_answer(after(14));
        assert_eq!(times.request_time(), Some(Duration::from_secs(3)));
    }
}
