//! Defines the rules by which a request can restrict and order the offers that may answer it. They
//! have the fields of OpenRouter's `provider` object.

use souk_market::{AccountKey, DeviceMicros, Listing, Millis, Name, Permille, Units};

use crate::tokens::counting::{TokenPrice, TokenRates};

/// The most that an idle second of a tab can cost, in thousandths of a second's price. The router
/// does not buy from an ask that wants more than this usual reserve.
const IDLE_MAX: Permille = Permille(100);

/// The same for an ask with a floor, in microseconds of device time a second.
pub const FLOOR_US_MAX: u32 = 100_000;

/// The longest lease of a tab, in milliseconds.
pub const TAB_TIME_MAX: Millis = Millis(300_000);

/// The order in which offers are tried, in place of a draw by price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteSort {
    /// The cheapest first.
    Price,
    /// The most tokens a second first, as this buyer measured them.
    Throughput,
    /// The shortest time to the first text first, as this buyer measured it.
    Latency,
}

/// The rules of a request. A provider is named by its account, or by the name that it registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingRules {
    /// The providers to try first, in this order.
    pub order: Vec<String>,
    /// The only providers that can answer the request; empty for all.
    pub only: Vec<String>,
    /// The providers that the request excludes.
    pub ignore: Vec<String>,
    /// The providers whose answers were not those of the model, by the buyer's own audits.
    pub distrusted: Vec<AccountKey>,
    /// How the others are ordered; none for a draw.
    pub sort: Option<RouteSort>,
    /// The maximum price of a million input tokens, in micro-credits.
    pub input_price_max: Option<u64>,
    /// The maximum price of a million output tokens, in micro-credits.
    pub output_price_max: Option<u64>,
    /// Whether the request can also go to providers that `order` does not name or, if `order` is
    /// empty, to other offers than the first.
    pub allows_fallbacks: bool,
}

/// The terms of an offer that rules speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferTerms {
    /// The provider.
    pub provider: AccountKey,
    /// Its name.
    pub name: Name,
    /// What its tokens cost.
    pub rates: TokenRates,
    /// The price of an idle second, in thousandths of the price.
    pub idle: Permille,
    /// The most device time that a tab has.
    pub time: DeviceMicros,
}

/// Why an offer does not suit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The request ignores the provider.
    Ignored,
    /// Its answers were not those of the model, by the buyer's own audit.
    Distrusted,
    /// The request names others only.
    NotNamed,
    /// It costs more than the request allows.
    Price,
    /// A second without a request costs more than a tenth of its price.
    Idle,
    /// The request can cost more device time than a tab has.
    Short,
    /// The provider failed at this request.
    Failed,
    /// The provider's engine did not continue an answer lately.
    NoContinuation,
    /// A bid would have to exclude more cheaper providers than it can name.
    OutOfReach,
}

impl Default for RoutingRules {
    fn default() -> Self {
        RoutingRules {
            order: Vec::new(),
            only: Vec::new(),
            ignore: Vec::new(),
            distrusted: Vec::new(),
            sort: None,
            input_price_max: None,
            output_price_max: None,
            allows_fallbacks: true,
        }
    }
}

impl From<&Listing> for OfferTerms {
    fn from(listing: &Listing) -> Self {
        OfferTerms {
            provider: listing.provider,
            name: listing.name.clone(),
            rates: TokenRates::from(listing),
            idle: listing.idle,
            time: DeviceMicros::from_units(Units(1), listing.duration_max.min(TAB_TIME_MAX)),
        }
    }
}

impl OfferTerms {
    /// Returns whether a word is the provider's account, or its name in any case.
    #[must_use]
    pub fn is_named_by(&self, word: &str) -> bool {
        self.name.as_str().eq_ignore_ascii_case(word) || self.provider.to_string() == word
    }

    /// Returns whether a tab costs too much while it is idle.
    fn is_dear_idle(&self) -> bool {
        self.idle > IDLE_MAX || self.rates.terms.floor_us > FLOOR_US_MAX
    }

    fn is_among(&self, words: &[String]) -> bool {
        words.iter().any(|word| self.is_named_by(word))
    }
}

impl RoutingRules {
    /// Returns the ignored providers that are named by their accounts.
    pub(super) fn ignored_accounts(&self) -> impl Iterator<Item = AccountKey> {
        self.ignore.iter().filter_map(|word| word.parse().ok())
    }

    /// Returns whether the order of offers is that of the rules, and no draw.
    pub(super) fn is_ordered(&self) -> bool {
        !self.order.is_empty() || self.sort.is_some()
    }

    /// Returns whether another provider will not do, even a cheaper one.
    pub(super) fn is_strict(&self) -> bool {
        let names = [&self.order, &self.only, &self.ignore];
        let is_by_price = matches!(self.sort, None | Some(RouteSort::Price));
        names.iter().any(|names| !names.is_empty()) || !self.distrusted.is_empty() || !is_by_price
    }

    /// Returns whether only one provider may be tried.
    pub(super) fn is_single_try(&self) -> bool {
        !self.allows_fallbacks && self.order.is_empty()
    }

    /// Returns the place of an offer in the order; the offers without one share the last place.
    pub(super) fn order_place(&self, offer: &OfferTerms) -> usize {
        let place = self.order.iter().position(|word| offer.is_named_by(word));
        place.unwrap_or(self.order.len())
    }

    /// Returns why an offer does not suit; none if it does.
    #[must_use]
    pub fn find_misfit(&self, offer: &OfferTerms) -> Option<Misfit> {
        let price = TokenPrice::from(offer.rates);
        let is_over = |price: u64, max: Option<u64>| max.is_some_and(|max| price > max);
        if offer.is_among(&self.ignore) {
            return Some(Misfit::Ignored);
        }
        if self.distrusted.contains(&offer.provider) {
            return Some(Misfit::Distrusted);
        }
        if !self.only.is_empty() && !offer.is_among(&self.only) {
            return Some(Misfit::NotNamed);
        }
        if !self.allows_fallbacks && !self.order.is_empty() && !offer.is_among(&self.order) {
            return Some(Misfit::NotNamed);
        }
        if is_over(price.input_per_million, self.input_price_max)
            || is_over(price.output_per_million, self.output_price_max)
        {
            return Some(Misfit::Price);
        }
        offer.is_dear_idle().then_some(Misfit::Idle)
    }
}

impl Misfit {
    /// Returns what to say of one offer or several, after their number.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Misfit::Ignored => "ignored by provider.ignore",
            Misfit::Distrusted => "whose answers failed your audit (souk audit list)",
            Misfit::NotNamed => "not named by provider.only or provider.order",
            Misfit::Price => "above provider.max_price",
            Misfit::Idle => "too dear while a tab is idle",
            Misfit::Short => "whose tabs have less device time than the request can cost",
            Misfit::Failed => "of a provider that failed at this request",
            Misfit::NoContinuation => "of an engine that does not continue answers",
            Misfit::OutOfReach => "dearer than 16 others",
        }
    }
}
