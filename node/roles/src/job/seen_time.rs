//! How long a provider had something to do, by its buyer's own clock: it can have used no more.
//!
//! A provider has something to do from the moment at which its buyer sends it a request, or hears
//! that another provider made what a part reads, until the buyer hears that the last such part is
//! made. Words take their time to the buyer, so the measure holds every run of an honest provider
//! whole. What another provider made may reach its reader before its buyer hears of it: that is
//! allowed for by the time in which the maker answers.

use serde::{Deserialize, Serialize};

use super::JobCore;
use super::event::Leg;
use super::state::{Attempt, LegState, Stage};
use crate::clock::Micros;
use crate::lease::{Input, Source};

/// What a bill may be over what was seen: a sixteenth and a twentieth of a second, for clocks that
/// differ and words that travel unevenly.
const UNSEEN_SHARE: u64 = 16;
const UNSEEN: Micros = Micros::millis(50);

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

impl JobCore {
    /// Counts for each provider at work whether it has something to do.
    pub(super) fn observe(&mut self) {
        let now = self.now.tick;
        for attempt in self.attempts.values_mut() {
            let work: Vec<Option<Micros>> = attempt
                .places()
                .map(|place| attempt.work_of(place))
                .collect();
            for (leg, lag) in attempt.legs.iter_mut().zip(work) {
                match lag {
                    // What an earlier life began is counted from its lease's begin.
                    _ if leg.stage == Stage::Asked => {}
                    Some(lag) => leg.seen.begin(Micros(now.since(lag).0)),
                    None => leg.seen.end(now),
                }
            }
        }
    }

    /// The most that a provider can bill: what was seen of it. Time in which a session holds its
    /// device and asks nothing is billed by the terms of its lease, where those say so, and would
    /// be added here.
    pub(super) fn payable(&self, leg: Leg) -> Micros {
        let state = self.attempts[&leg.attempt].leg(leg.place);
        payable(state.seen.seen_at(self.now.tick))
    }
}

impl Attempt {
    /// Whether a place has something to do, and how much earlier than its buyer heard so it may
    /// have begun.
    fn work_of(&self, place: u32) -> Option<Micros> {
        let leg = self.leg(place);
        if leg.stage != Stage::Working {
            return None;
        }
        let mut open = leg.open.iter();
        open.find_map(|request| self.lag_of(leg, *request))
    }

    /// The same of one request: none where its next part waits for another provider.
    fn lag_of(&self, leg: &LegState, request: u32) -> Option<Micros> {
        let start = leg.start.as_ref().expect("it was told");
        let part = start.parts.get(leg.parts_made(request) as usize)?;
        let mut lag = Micros(0);
        for input in &part.inputs {
            lag = lag.max(self.lag_of_input(input, request)?);
        }
        Some(lag)
    }

    fn lag_of_input(&self, input: &Input, request: u32) -> Option<Micros> {
        let (maker, request, name) = match (input.source, &input.fed) {
            (Source::Lease { lease, .. }, _) => (lease, request, &input.name),
            (Source::Buyer, Some(fed)) => match (fed.maker, self.before(request)) {
                (Some((lease, _)), Some(before)) => (lease, before, &fed.name),
                _ => return Some(Micros(0)),
            },
            _ => return Some(Micros(0)),
        };
        let maker = self.legs.iter().find(|leg| leg.terms.lease == maker)?;
        let mut made = maker.made.get(&request).into_iter().flatten().flatten();
        // Nothing more is heard of one that is over, though it may have made it.
        let is_there = maker.stage.is_over() || made.any(|(made, _)| made == name);
        is_there.then(|| maker.echo.unwrap_or_default())
    }

    /// The request before one in its sequence.
    fn before(&self, request: u32) -> Option<u32> {
        self.sequences.values().find_map(|sent| {
            let place = sent.binary_search(&request).ok()?;
            sent.get(place.checked_sub(1)?).copied()
        })
    }
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
