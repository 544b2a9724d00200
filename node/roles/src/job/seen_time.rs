//! Measures, by the buyer's own clock, how long each provider had something to do, and how long it
//! waited for a request. The buyer refuses a bill for more use than the first, or more use and idle
//! time than both, plus a small margin.
//!
//! A provider has something to do from the moment at which its buyer sends it a request, or hears
//! that another provider made what a part reads, until the buyer hears that the last such part is
//! made. Messages need time to reach the buyer, so the measure covers every run of an honest
//! provider. A tensor can reach its reader before the buyer hears of it. The measure allows for
//! that with the time in which the maker answers, and counts a part even if the buyer hears of its
//! input later.

use super::JobCore;
use super::event::Leg;
use super::seen_span::max_payable;
use super::state::{Attempt, LegState, Stage};
use crate::clock::Micros;
use crate::lease::{Input, Source};

/// The most by which this buyer's clock may lag the clock that a provider bills by.
const CLOCK_LAG_MAX: Micros = Micros::from_seconds(5);

impl JobCore {
    /// Starts or stops the stopwatch of each provider, as it has something to do or not.
    pub(super) fn observe_work(&mut self) {
        let now = self.now.tick;
        for attempt in self.attempts.values_mut() {
            let work: Vec<Option<Micros>> = attempt
                .places()
                .map(|place| attempt.work_of(place))
                .collect();
            for (leg, lag) in attempt.legs.iter_mut().zip(work) {
                if leg.stage == Stage::Asked {
                    // What an earlier life began is counted from its lease's begin.
                    continue;
                }
                if leg.stage < Stage::Working {
                    leg.seen.hold_off(now);
                    continue;
                }
                leg.seen
                    .note_parts(leg.outputs_made.values().map(Vec::len).sum(), now);
                match lag {
                    Some(lag) => leg.seen.begin_span(Micros(now.since(lag).0)),
                    None => leg.seen.end_span(now),
                }
                if leg.open.is_empty() {
                    leg.seen.hold_off(now);
                }
                match leg.awaits_request() {
                    true => leg.waited.begin_span(now),
                    false => leg.waited.end_span(now),
                }
            }
        }
    }

    /// Returns the most device time that a provider can bill as used.
    pub(super) fn payable_time(&self, leg: Leg) -> Micros {
        let state = self.attempts[&leg.attempt].leg(leg.place);
        max_payable(state.seen.seen_at(self.now.tick))
    }

    /// Returns the most device time that a provider can bill as used and as idle together. A
    /// provider also waits while a request is on its way to it or an answer to this buyer, which
    /// this buyer counts as work.
    pub(super) fn holdable_time(&self, leg: Leg) -> Micros {
        let attempt = &self.attempts[&leg.attempt];
        let (state, now) = (attempt.leg(leg.place), self.now.tick);
        let held = state.seen.seen_at(now).plus(state.waited.seen_at(now));
        // An earlier life saw the lease's beginning by the log's clock.
        let lag = match attempt.is_resumed {
            true => CLOCK_LAG_MAX,
            false => Micros(0),
        };
        max_payable(held).plus(lag)
    }
}

impl LegState {
    /// Returns whether the provider has done all requests that it got, and others can follow.
    fn awaits_request(&self) -> bool {
        let can_follow = !self.knows_last && self.limit.is_none() && !self.has_stalled;
        self.stage == Stage::Working && self.open.is_empty() && can_follow
    }
}

impl Attempt {
    /// Returns, if a place has something to do, how much earlier than its buyer heard of it the
    /// provider can have begun.
    fn work_of(&self, place: u32) -> Option<Micros> {
        let leg = self.leg(place);
        if leg.stage != Stage::Working {
            return None;
        }
        let mut open = leg.open.iter();
        open.find_map(|request| self.lag_of(leg, *request))
    }

    /// Returns that time for one request; none if its next part waits for another provider.
    fn lag_of(&self, leg: &LegState, request: u32) -> Option<Micros> {
        let start = leg.start.as_ref().expect("the core built its work");
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
            (Source::Buyer, Some(fed)) => match (fed.maker, self.previous_in_sequence(request)) {
                (Some((lease, _)), Some(before)) => (lease, before, &fed.name),
                _ => return Some(Micros(0)),
            },
            _ => return Some(Micros(0)),
        };
        let maker = self.legs.iter().find(|leg| leg.terms.lease == maker)?;
        let mut made = maker
            .outputs_made
            .get(&request)
            .into_iter()
            .flatten()
            .flatten();
        // Nothing more is heard of one that is over, though it may have made it.
        let is_there = maker.stage.is_over() || made.any(|(made, _)| made == name);
        is_there.then(|| maker.round_trip_min.unwrap_or_default())
    }

    /// Returns the request before this one in its sequence.
    fn previous_in_sequence(&self, request: u32) -> Option<u32> {
        self.sequences.values().find_map(|sent| {
            let place = sent.binary_search(&request).ok()?;
            sent.get(place.checked_sub(1)?).copied()
        })
    }
}
