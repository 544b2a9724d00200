//! Remembers the offers that a router saw in the book. An ask leaves the book when its last slot is
//! sold, so without this memory the router could not distinguish a model that is sold out from one
//! that nobody sells.

use std::collections::{BTreeMap, VecDeque};

use souk_market::AccountKey;

use super::{OfferTerms, SOLD_LATELY};
use crate::clock::Micros;

/// The most offers that a router remembers; it forgets the one that it saw first.
const OFFERS_MAX: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(super) struct SeenOffers {
    offers: BTreeMap<(String, AccountKey), (Micros, OfferTerms)>,
    /// The offers in the order in which they were first seen.
    ages: VecDeque<(String, AccountKey)>,
}

impl SeenOffers {
    pub(super) fn on_seen(&mut self, now: Micros, model: &str, offer: OfferTerms) {
        let key = (model.to_owned(), offer.provider);
        if self.offers.insert(key.clone(), (now, offer)).is_none() {
            self.ages.push_back(key);
        }
        if self.offers.len() > OFFERS_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.offers.remove(&oldest);
        }
    }

    pub(super) fn find(&self, model: &str, provider: AccountKey) -> Option<&OfferTerms> {
        let seen = self.offers.get(&(model.to_owned(), provider));
        seen.map(|(_, offer)| offer)
    }

    /// Iterates over the offers of a model that were in the book lately.
    pub(super) fn iter_lately(
        &self,
        now: Micros,
        model: &str,
    ) -> impl Iterator<Item = &OfferTerms> {
        let from = (model.to_owned(), AccountKey([0; 32]));
        let to = (model.to_owned(), AccountKey([0xff; 32]));
        let of_model = self.offers.range(from..=to).map(|(_, seen)| seen);
        let lately = of_model.filter(move |(at, _)| now.since(*at) < SOLD_LATELY);
        lately.map(|(_, offer)| offer)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.offers.len(), self.ages.len());
        self.offers.len()
    }
}
