//! Defines the public JSON of the language models that providers sell by the token, and of their
//! offers, as `souk model list` shows them.

use serde::Serialize;
use souk_market::Listing;
use souk_roles::tokens::card::{TextCard, is_resold};

pub use souk_roles::tokens::counting::{TokenPrice, TokenRates};
pub use souk_roles::tokens::router::FLOOR_US_MAX;

/// Returns whether an ask sells the tokens of a model, and no device.
#[must_use]
pub fn sells_tokens(listing: &Listing) -> bool {
    TextCard::of_resources(&listing.resources).is_some()
}

/// One offer of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TextOfferView {
    /// The model.
    pub model: String,
    /// The number of the ask.
    pub ask: u64,
    /// The provider's account.
    pub provider: String,
    /// The name under which the provider registered.
    pub provider_name: String,
    /// The provider's reputation, 0 to 1000.
    pub reputation: u16,
    /// How many more buyers can be answered at once.
    pub free_slots: u32,
    /// Whether the provider says that it does not run the engine itself.
    pub resold: bool,
    /// The prices, in micro-credits a million tokens.
    #[cfg_attr(feature = "schema", schema(value_type = TokenPriceView))]
    pub price: TokenPrice,
}

/// The prices of tokens, in micro-credits a million.
#[cfg(feature = "schema")]
#[derive(utoipa::ToSchema)]
#[schema(as = TokenPrice)]
#[expect(dead_code, reason = "only its schema is used")]
pub struct TokenPriceView {
    /// The price of a million input tokens that are not cached.
    input_per_million: u64,
    /// The price of a million cached input tokens.
    cached_per_million: u64,
    /// The price of a million output tokens.
    output_per_million: u64,
}

/// A model on sale, with the price of its cheapest offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelView {
    /// The model.
    pub model: String,
    /// The number of offers.
    pub offers: usize,
    /// How many more buyers can be answered at once, over all offers.
    pub free_slots: u64,
    /// The prices of the cheapest offer, in micro-credits a million tokens.
    pub price: TokenPrice,
}

impl From<&Listing> for TextOfferView {
    fn from(listing: &Listing) -> Self {
        Self {
            model: listing.resources.model.to_string(),
            ask: listing.order.0,
            provider: listing.provider.to_string(),
            provider_name: listing.name.to_string(),
            reputation: listing.reputation.0,
            free_slots: listing.quantity.0,
            resold: is_resold(&listing.resources),
            price: TokenRates::from(listing).into(),
        }
    }
}

impl ModelView {
    /// Describes a model by its offers, the cheapest first; none if there are no offers.
    #[must_use]
    pub fn from_offers<'a>(offers: impl IntoIterator<Item = &'a Listing>) -> Option<ModelView> {
        let offers: Vec<TextOfferView> = offers.into_iter().map(TextOfferView::from).collect();
        let cheapest = offers.first()?;
        Some(ModelView {
            model: cheapest.model.clone(),
            price: cheapest.price,
            offers: offers.len(),
            free_slots: offers.iter().map(|offer| u64::from(offer.free_slots)).sum(),
        })
    }
}
