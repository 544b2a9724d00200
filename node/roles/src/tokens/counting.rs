//! Counts the tokens of texts, and the device time that they cost. The provider and the buyer of a
//! tab count the same texts by the same rule, and neither has to believe the other's engine.

use serde::{Deserialize, Serialize};
use souk_market::{Credits, DeviceMicros, Price};

/// The bytes of one token.
const TOKEN_BYTES: u64 = 4;

/// The device time of one output token: a millisecond, by definition.
const OUTPUT_MICROS: u64 = 1_000;

/// The device time of one input token: a quarter of an output token's.
const INPUT_MICROS: u64 = 250;

/// The microseconds of a second, to which a price refers.
const MICROS_PER_SECOND: u128 = 1_000_000;

/// The tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCount {
    /// The tokens of its messages.
    pub input: u64,
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

/// The price of tokens, in micro-credits a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPrice {
    /// The price of a million input tokens.
    pub input_per_million: u64,
    /// The price of a million output tokens.
    pub output_per_million: u64,
}

impl From<Price> for TokenPrice {
    /// Returns the price of tokens at a price of device time: a device-second is a thousand output
    /// tokens.
    fn from(price: Price) -> TokenPrice {
        let of_micros = |micros: u64| price.0.saturating_mul(micros);
        TokenPrice {
            input_per_million: of_micros(INPUT_MICROS),
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
}

impl TokenCount {
    /// Returns the highest price at which these tokens cost at most `credits`.
    #[must_use]
    pub fn affordable_price(self, credits: Credits) -> Price {
        let time = u128::from(self.device_time().0.max(1));
        let price = u128::from(credits.0) * MICROS_PER_SECOND / time;
        Price(u64::try_from(price).unwrap_or(u64::MAX))
    }

    /// Returns the device time that a receipt bills for these tokens.
    #[must_use]
    pub fn device_time(self) -> DeviceMicros {
        let output = self.output.saturating_mul(OUTPUT_MICROS);
        DeviceMicros(output.saturating_add(self.input.saturating_mul(INPUT_MICROS)))
    }
}

#[cfg(test)]
mod tests {
    use souk_market::ReceiptBody;

    use super::*;

    #[test]
    fn an_output_token_is_a_millisecond_and_an_input_token_a_quarter_of_it() {
        let count = TokenCount {
            input: 1_000,
            output: 200,
        };
        assert_eq!(count.device_time(), DeviceMicros(450_000));
        let price = TokenPrice::to_device_price(400_000).unwrap();
        assert_eq!(price, Price(400), "0.40 credits a million output tokens");
        assert_eq!(TokenPrice::from(price).input_per_million, 100_000);
        assert_eq!(TokenPrice::to_device_price(400_500), None);
        let cost = |price| ReceiptBody::amount_due(price, count.device_time()).unwrap();
        for credits in [0, 1, 449, 450, 451, 1_000_000] {
            let price = count.affordable_price(Credits(credits));
            assert!(cost(price) <= Credits(credits), "{credits}");
            assert!(cost(Price(price.0 + 1)) > Credits(credits), "{credits}");
        }
        // Every character counts by its bytes.
        assert_eq!(count_tokens("äöü"), 2);
    }
}
