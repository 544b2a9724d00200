//! Passes on a tensor that one provider could not hand to the next: the buyer fetches it from its
//! maker and offers it to the reader. This happens where two providers cannot reach each other,
//! because both have reached the buyer. A reader that does not take the tensor from the buyer
//! either is at fault, so the core drops the reader at once instead of waiting until time runs out.

use super::JobCore;
use super::action::Action;
use super::event::{Answer, FetchFault, Leg};
use super::facts::attempt_id;
use super::reason::{Loss, Reason};
use super::state::{RelayedOffer, Wait};
use crate::lease::{self, Input, Offer, Source};

impl JobCore {
    /// Handles a tensor that its reader did not take from its maker: the buyer fetches it to pass
    /// it on.
    pub(super) fn on_untaken(&mut self, leg: Leg, untaken: lease::UntakenOffer) {
        let lease::UntakenOffer {
            consumer,
            offer,
            why,
        } = &untaken;
        let attempt = self.attempt_mut(leg.attempt);
        let state = attempt.leg(leg.place);
        let is_of = state
            .start
            .as_ref()
            .is_some_and(|start| untaken.is_of(start));
        let is_sent = attempt.sent[..state.requests_sent].contains(&offer.request);
        let what = (offer.request, offer.name.clone(), offer.to);
        if !is_of || !is_sent {
            return self.lose_reporting_leg(leg, Loss::Confused);
        }
        if !attempt.legs[leg.place as usize]
            .untaken_outputs
            .insert(what)
        {
            return;
        }
        let is_it = |place: &u32| attempt.leg(*place).terms.provider == *consumer;
        let place = attempt.places().find(is_it);
        let place = place.expect("a consumer is a leg of the attempt");
        let consumer = Leg {
            attempt: leg.attempt,
            place,
        };
        if !self.is_awaited(consumer, offer) {
            return;
        }
        let attempt = self.attempt_mut(leg.attempt);
        let holders = vec![attempt.leg(leg.place).terms.provider];
        let (name, id) = (offer.name.clone(), offer.tensor);
        let untaken = RelayedOffer {
            offer: offer.clone(),
            why: lease::truncate_text(why.clone()),
        };
        let wait = Wait::FetchUntaken {
            maker: leg,
            consumer,
            untaken,
        };
        self.fetch_content(leg.attempt, name, id, holders, wait);
    }

    /// Returns whether a consumer can still wait for an offered tensor: for the offer's own request
    /// or, if the tensor feeds the next request of its sequence, for that one, unless it has its
    /// own value.
    fn is_awaited(&self, consumer: Leg, offer: &Offer) -> bool {
        let attempt = self.attempts.get(&consumer.attempt);
        let attempt = attempt.expect("what is awaited of an attempt is stopped with it");
        let state = attempt.leg(consumer.place);
        let start = state.start.as_ref().expect("the core built its work");
        let is_open = |request: u32| (state.parts_made(request) as usize) < start.parts.len();
        let after = attempt.next_in_sequence(offer.request);
        let is_left_out = |input: &Input| match after {
            None => !attempt.no_more,
            Some(after) => {
                let asked = self.requests.get(&after);
                let mut given = asked.into_iter().flat_map(|asked| &asked.inputs);
                is_open(after) && !given.any(|(name, _)| *name == input.name)
            }
        };
        let waits = |input: &Input| match (&input.source, &input.fed) {
            (Source::Lease { .. }, _) => input.name == offer.name && is_open(offer.request),
            (_, Some(fed)) => fed.name == offer.name && is_left_out(input),
            _ => false,
        };
        start.parts.iter().flat_map(|part| &part.inputs).any(waits)
    }

    pub(super) fn on_untaken_fetched(
        &mut self,
        maker: Leg,
        consumer: Leg,
        untaken: RelayedOffer,
        answer: Answer,
    ) {
        if self
            .talking_leg(consumer)
            .is_none_or(|state| state.limit.is_some())
        {
            // Nobody waits for it any more.
            return;
        }
        match answer {
            Answer::Fetched => {
                let to = self.leg_provider(consumer);
                let offer = untaken.offer.clone();
                let wait = Wait::HandOn {
                    maker,
                    consumer,
                    untaken,
                };
                let job = attempt_id(self.spec.job, consumer.attempt);
                self.request_effect(Action::HandOn { job, to, offer }, wait);
            }
            Answer::NotFetched(FetchFault::Lost(why) | FetchFault::NoTensor(why)) => {
                let (provider, why) = (self.leg_provider(maker), lease::truncate_text(why));
                if self.talking_leg(maker).is_some() {
                    self.lose_leg(maker, Reason::Output { provider, why });
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_handed_on(
        &mut self,
        maker: Leg,
        consumer: Leg,
        untaken: RelayedOffer,
        answer: Answer,
    ) {
        let is_waiting = self
            .talking_leg(consumer)
            .is_some_and(|it| it.limit.is_none())
            && self.is_awaited(consumer, &untaken.offer);
        if let (Answer::HandedOn(Err(_)), true) = (answer, is_waiting) {
            let (name, maker) = (untaken.offer.name, self.leg_provider(maker));
            self.lose_reporting_leg(
                consumer,
                Loss::Untaken {
                    name,
                    maker,
                    why: untaken.why,
                },
            );
        }
    }
}
