//! Finds the asks in a market's book that sell text, and whether the market sold a model lately.

use std::collections::BTreeSet;
use std::sync::Arc;

use souk_market::{AccountKey, Listing, Millis, OrderId, Permille, Regions, TokenTerms};
use souk_roles::market::demands::Demands;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenRates;
use souk_roles::tokens::router::{NoRoute, Route, SOLD_LATELY};
use tokio::time::Instant;

use super::book_looks::FoundAsks;
use super::{TextRouter, TextRouterError};
use crate::client::broker::{Broker, BrokerError};

/// The most asks of a model that the router knows.
const OFFERS_MAX: usize = 256;

/// An ask for the texts of a model.
#[derive(Clone, Debug)]
pub struct TextOffer {
    /// The model.
    pub card: TextCard,
    /// The ask.
    pub listing: Listing,
}

/// The offers that a router's requests see.
impl TextRouter {
    /// Returns all offers of texts, by model and price.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn fetch_offers(&self) -> Result<Vec<TextOffer>, BrokerError> {
        let listed = self.buyer.broker().fetch_book().await?;
        Ok(text_offers(listed))
    }

    /// Returns whether the market sold the model lately. If it did and has no ask now, the model is
    /// probably only sold out.
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn was_sold_lately(&self, model: &str) -> Result<bool, BrokerError> {
        was_sold_lately(self.buyer.broker(), model).await
    }

    /// Returns the cheapest asks of a request's model, the cheapest first, of a look that did not
    /// begin before a moment.
    pub(super) async fn find_asks(
        &self,
        route: &Route,
        not_before: Option<Instant>,
    ) -> Result<Vec<Listing>, TextRouterError> {
        let Some(mut demands) = demands_of(self.buyer.account(), route.model()) else {
            return Ok(Vec::new());
        };
        let found = self
            .look(route.model(), demands.clone(), not_before)
            .await?;
        let mut listings = found.listings();
        let now = self.clock.now().tick;
        let avoided = self.lock_state().core.list_avoided(now, route);
        let is_avoided = |ask: &Listing| avoided.contains(&ask.provider);
        if !found.is_whole && listings.iter().any(is_avoided) {
            // Asks that the request cannot use must not take the places of others.
            demands.excluded = avoided;
            let others = self.look(route.model(), demands, not_before).await?;
            let seen: BTreeSet<OrderId> = listings.iter().map(|ask| ask.order).collect();
            let others = others.listings().into_iter();
            listings.extend(others.filter(|ask| !seen.contains(&ask.order)));
        }
        let offers = text_offers(listings).into_iter();
        Ok(offers.map(|offer| offer.listing).collect())
    }

    /// Looks at a model's asks in the book, or joins the look of another request.
    async fn look(
        &self,
        model: &str,
        demands: Demands,
        not_before: Option<Instant>,
    ) -> Result<Arc<FoundAsks>, TextRouterError> {
        let subject = (model.to_owned(), demands.excluded.clone());
        let broker = self.buyer.broker().clone();
        let ask = || async move { broker.choose_asks(demands).await };
        let moments = (not_before, Instant::now());
        let found = self.looks.find_asks(subject, moments, ask).await;
        found.map_err(TextRouterError::Broker)
    }

    pub(super) async fn explain_lack(
        &self,
        model: &str,
        lack: NoRoute,
        asks: &[Listing],
    ) -> TextRouterError {
        let named = model.to_owned();
        match lack {
            NoRoute::SoldOut => TextRouterError::SoldOut { model: named },
            NoRoute::Unsuitable(misfits) => TextRouterError::Unsuitable {
                model: named,
                misfits,
                names: asks.iter().map(|ask| ask.name.clone()).collect(),
            },
            NoRoute::Unsold => match self.find_other_models(model).await {
                Ok(None) => TextRouterError::SoldOut { model: named },
                Ok(Some(others)) => TextRouterError::NoOffer {
                    model: named,
                    others,
                },
                Err(error) => error.into(),
            },
        }
    }

    /// Returns the models that are on sale; none if this one was lately.
    async fn find_other_models(&self, model: &str) -> Result<Option<Vec<String>>, BrokerError> {
        if self.was_sold_lately(model).await? {
            return Ok(None);
        }
        let offers = self.fetch_offers().await?.into_iter();
        let mut others: Vec<String> = offers.map(|offer| offer.card.model.to_string()).collect();
        others.dedup();
        Ok(Some(others))
    }
}

/// Returns whether a market sold a model lately, so that its slots may only be taken: an ask whose
/// slots are all taken is not in the book.
///
/// # Errors
/// When no validator answers.
pub async fn was_sold_lately(broker: &Broker, model: &str) -> Result<bool, BrokerError> {
    let Ok(card) = TextCard::new(model) else {
        return Ok(false);
    };
    let class = card.to_resources(TokenTerms::USUAL).class();
    let quotes = broker.fetch_quotes(class).await?;
    let last = quotes.and_then(|quotes| quotes.last.first().map(|print| print.at));
    let now = broker.log_clock().log_time();
    let lately = Millis(SOLD_LATELY.0 / 1_000);
    Ok(last.is_some_and(|last| now.saturating_since(last) < lately))
}

/// Returns the asks that sell texts: by model, by what a usual request costs, and by age.
#[must_use]
pub fn text_offers(listings: Vec<Listing>) -> Vec<TextOffer> {
    let offer = |listing: Listing| {
        let card = TextCard::of_resources(&listing.resources)?;
        Some(TextOffer { card, listing })
    };
    let mut offers: Vec<TextOffer> = listings.into_iter().filter_map(offer).collect();
    offers.sort_by(|one, other| {
        let key = |offer: &TextOffer| {
            let listing = &offer.listing;
            let cost = TokenRates::from(listing).usual_cost();
            (offer.card.model.clone(), cost, listing.order)
        };
        key(one).cmp(&key(other))
    });
    offers.truncate(OFFERS_MAX);
    offers
}

/// Returns the demands on an ask that answers a request for a model; none if no ask can have the
/// model's name.
fn demands_of(buyer: AccountKey, model: &str) -> Option<Demands> {
    Some(Demands {
        buyer,
        excluded: Vec::new(),
        real_only: true,
        price_max: None,
        notice_min: Millis(0),
        spot: false,
        regions: Regions(0),
        reputation_min: Permille(0),
        power_known: false,
        features: Default::default(),
        operators: Default::default(),
        nodes: Vec::new(),
        in_parts: false,
        devices: Vec::new(),
        text_model: Some(model.try_into().ok()?),
    })
}
