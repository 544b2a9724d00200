//! The offers of texts in a market's book, and whether a model was sold lately.

use souk_market::{Listing, Millis, TokenTerms};
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenRates;
use souk_roles::tokens::router::SOLD_LATELY;

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
