//! Counts the tokens of texts, and the device time and price of those tokens. The provider and the
//! buyer of a tab count the same texts by the same rule, so neither must trust the other's engine.

use serde::{Deserialize, Serialize};
use souk_market::{Credits, DeviceMicros, Listing, Price, ReceiptBody, TokenTerms};

/// The bytes of one token.
const TOKEN_BYTES: u64 = 4;

/// A usual request, by which offers of one model are compared.
const USUAL_REQUEST: TokenCount = TokenCount {
    input: 1_000,
    cached: 0,
    output: 300,
};

/// The device time of one output token: a millisecond, by definition.
const OUTPUT_MICROS: u64 = 1_000;

/// The tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// The tokens of its messages that are not cached.
    pub input: u64,
    /// The tokens of its cached messages: those with which an earlier request of its tab began.
    #[serde(default)]
    pub cached: u64,
    /// The tokens of its answer.
    pub output: u64,
}

/// Returns the tokens of one text.
///
/// ```
/// use souk_roles::tokens::counting::count_tokens;
///
/// assert_eq!(count_tokens(""), 0);
/// assert_eq!(count_tokens("a market"), 2);
/// assert_eq!(count_tokens("a market is"), 3);
/// ```
#[must_use]
pub fn count_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(TOKEN_BYTES)
}

/// What tokens cost at an offer: the price of a device-second, and the device time of each kind of
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenRates {
    /// The price of a device-second, which is a thousand output tokens.
    pub price: Price,
    /// The device time of the other tokens.
    pub terms: TokenTerms,
}

/// The price of tokens, in micro-credits a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPrice {
    /// The price of a million input tokens that are not cached.
    pub input_per_million: u64,
    /// The price of a million cached input tokens.
    pub cached_per_million: u64,
    /// The price of a million output tokens.
    pub output_per_million: u64,
}

impl TokenRates {
    /// Creates the rates of a lease or an ask; one without terms of tokens has the usual ones.
    #[must_use]
    pub fn new(price: Price, terms: Option<TokenTerms>) -> TokenRates {
        let terms = terms.unwrap_or(TokenTerms::USUAL);
        TokenRates { price, terms }
    }

    /// Returns the cost of these tokens, rounded up; the largest amount if it overflows.
    #[must_use]
    pub fn cost_of(self, count: TokenCount) -> Credits {
        let cost = ReceiptBody::amount_due(self.price, count.device_time(self.terms));
        cost.unwrap_or(Credits(u64::MAX))
    }
}

impl TokenRates {
    /// Returns the cost of a usual request of 1,000 input and 300 output tokens, in millionths of a
    /// micro-credit, by which offers are compared.
    ///
    /// ```
    /// use souk_market::{Price, TokenTerms};
    /// use souk_roles::tokens::counting::TokenRates;
    ///
    /// let rates = TokenRates::new(Price(200), Some(TokenTerms::USUAL));
    /// assert_eq!(rates.usual_cost(), 110_000_000);
    /// ```
    #[must_use]
    pub fn usual_cost(self) -> u128 {
        let time = USUAL_REQUEST.device_time(self.terms);
        u128::from(time.0) * u128::from(self.price.0)
    }
}

impl From<&Listing> for TokenRates {
    fn from(listing: &Listing) -> TokenRates {
        TokenRates::new(listing.price, listing.resources.tokens)
    }
}

impl From<TokenRates> for TokenPrice {
    fn from(rates: TokenRates) -> TokenPrice {
        let of_micros = |micros: u64| rates.price.0.saturating_mul(micros);
        TokenPrice {
            input_per_million: of_micros(rates.terms.input_us.into()),
            cached_per_million: of_micros(rates.terms.cached_us.into()),
            output_per_million: of_micros(OUTPUT_MICROS),
        }
    }
}

impl TokenPrice {
    /// Returns the price of device time at which a million output tokens cost this much; none if it
    /// is no whole micro-credit a second.
    #[must_use]
    pub fn to_device_price(output_per_million: u64) -> Option<Price> {
        let is_whole = output_per_million.is_multiple_of(OUTPUT_MICROS);
        is_whole.then_some(Price(output_per_million / OUTPUT_MICROS))
    }

    /// Returns the device time of a token, in microseconds, at which a million of them cost nearly
    /// this much; none if it is less than half a microsecond and not zero, or does not fit.
    #[must_use]
    pub fn to_token_micros(per_million: u64, price: Price) -> Option<u32> {
        let half = price.0 / 2;
        let micros = per_million.checked_add(half)?.checked_div(price.0)?;
        let micros = u32::try_from(micros).ok()?;
        (micros > 0 || per_million == 0).then_some(micros)
    }
}

impl TokenCount {
    /// Returns the device time that a receipt bills for these tokens.
    #[must_use]
    pub fn device_time(self, terms: TokenTerms) -> DeviceMicros {
        terms.device_time(self.input, self.cached, self.output)
    }

    /// Returns the tokens of the messages, cached or not.
    #[must_use]
    pub fn prompt(self) -> u64 {
        self.input.saturating_add(self.cached)
    }

    /// Returns all tokens.
    #[must_use]
    pub fn total(self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, other: TokenCount) -> TokenCount {
        TokenCount {
            input: self.input.saturating_add(other.input),
            cached: self.cached.saturating_add(other.cached),
            output: self.output.saturating_add(other.output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_token_is_a_millisecond_and_an_input_token_what_the_ask_states() {
        let count = TokenCount {
            input: 1_000,
            cached: 4_000,
            output: 200,
        };
        let terms = TokenTerms {
            cached_us: 25,
            ..TokenTerms::USUAL
        };
        assert_eq!(count.device_time(terms), DeviceMicros(550_000));
        assert_eq!((count.prompt(), count.total()), (5_000, 5_200));
        let price = TokenPrice::to_device_price(400_000).unwrap();
        assert_eq!(price, Price(400), "0.40 credits a million output tokens");
        assert_eq!(TokenPrice::to_device_price(400_500), None);
        let rates = TokenRates::new(price, Some(terms));
        assert_eq!(rates.cost_of(count), Credits(220));
        let tokens = TokenPrice::from(rates);
        assert_eq!(tokens.input_per_million, 100_000);
        assert_eq!(tokens.cached_per_million, 10_000);
        let usual = TokenPrice::from(TokenRates::new(price, None));
        assert_eq!(usual.cached_per_million, usual.input_per_million);
        // Every character counts by its bytes.
        assert_eq!(count_tokens("äöü"), 2);
    }

    #[test]
    fn offers_compare_by_what_a_usual_request_costs() {
        let usual = TokenRates::new(Price(200), None);
        // A thousand input tokens, and 300 of the answer.
        assert_eq!(usual.usual_cost(), 200 * (250_000 + 300_000));
        let dear_input = TokenTerms {
            input_us: 1_000_000,
            ..TokenTerms::USUAL
        };
        let lure = TokenRates::new(Price(1), Some(dear_input));
        assert!(lure.price < usual.price && lure.usual_cost() > usual.usual_cost());
    }

    #[test]
    fn a_price_of_a_token_is_the_nearest_whole_device_time() {
        let micros = |per_million| TokenPrice::to_token_micros(per_million, Price(200));
        assert_eq!(micros(50_000), Some(250));
        assert_eq!((micros(50_099), micros(50_100)), (Some(250), Some(251)));
        assert_eq!((micros(0), micros(99)), (Some(0), None));
        assert_eq!(micros(u64::MAX), None);
        assert_eq!(TokenPrice::to_token_micros(1, Price(0)), None);
    }

    #[test]
    fn no_price_or_count_overflows() {
        let most = TokenCount {
            input: u64::MAX,
            cached: u64::MAX,
            output: u64::MAX,
        };
        let rates = TokenRates::new(Price(u64::MAX), None);
        assert_eq!(rates.cost_of(most), Credits(u64::MAX));
        assert_eq!(most.plus(most), most);
        assert_eq!(TokenPrice::from(rates).input_per_million, u64::MAX);
    }
}
