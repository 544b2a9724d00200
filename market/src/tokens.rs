//! Defines the terms on which an ask sells the tokens of a language model in place of a device, and
//! the counts of tokens in a receipt.
//!
//! An output token is a millisecond of device time by definition, so every rule about device time
//! holds for tokens. An ask states only how much device time the other tokens cost.

use serde::{Deserialize, Serialize};

use crate::text::Name;
use crate::units::{DeviceMicros, Permille, widening_product};

/// The device time of one output token: a millisecond, by definition.
const OUTPUT_US: u64 = 1_000;

/// The most device time of one input token: as much as a thousand output tokens.
const INPUT_US_MAX: u32 = 1_000_000;

/// The most device time that a second of holding costs: all of it.
const FLOOR_US_MAX: u32 = 1_000_000;

/// The time without a request in which a lease owes no floor.
const FREE_HOLD: DeviceMicros = DeviceMicros(10_000_000);

/// The microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// How both sides count the tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountingRule {
    /// Four bytes of UTF-8 are one token, whatever tokeniser the engine has.
    FourBytes,
}

/// The terms on which an ask sells tokens. A lease keeps them as they were at its trade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenTerms {
    /// How tokens are counted.
    pub counting: CountingRule,
    /// The device time of an input token, in microseconds; at most a second.
    pub input_us: u32,
    /// The device time of a cached input token, in microseconds; at most that of another one.
    pub cached_us: u32,
    /// The device time that each second without a request costs at least after the first ten, in
    /// microseconds; 0 for none. If the market's own price for an unused device is higher, that
    /// applies instead.
    pub floor_us: u32,
}

/// Why an ask cannot have token terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenTermsFault {
    /// An input token costs too much.
    #[error("an input token costs at most {INPUT_US_MAX} device-us")]
    Input,
    /// A cached token costs more than another input token.
    #[error("a cached token costs at most as much as another input token")]
    Cached,
    /// Holding costs more than the whole device.
    #[error("a second of holding costs at most {FLOOR_US_MAX} device-us")]
    Floor,
}

/// The tokens that a bid demands: of this model, by this rule, and at these terms at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WantedTokens {
    /// The model.
    pub model: Name,
    /// The rule of counting, and the most for each kind of token.
    pub most: TokenTerms,
}

/// The tokens of a lease as its receipt counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// The terms of the lease.
    pub terms: TokenTerms,
    /// The tokens of messages that were not cached.
    pub input: u64,
    /// The tokens of messages with which an earlier request of the lease began too.
    pub cached: u64,
    /// The tokens of answers.
    pub output: u64,
    /// The time for which the buyer held the units without an open request.
    pub held: DeviceMicros,
}

impl TokenTerms {
    /// The terms of a provider that states none: an input token costs a quarter of an output token,
    /// cached or not.
    pub const USUAL: Self = Self {
        counting: CountingRule::FourBytes,
        input_us: 250,
        cached_us: 250,
        floor_us: 0,
    };

    /// Checks that an ask can have these terms.
    ///
    /// # Errors
    /// The first figure that is out of its range.
    pub fn check(self) -> Result<(), TokenTermsFault> {
        if self.input_us > INPUT_US_MAX {
            return Err(TokenTermsFault::Input);
        }
        if self.cached_us > self.input_us {
            return Err(TokenTermsFault::Cached);
        }
        match self.floor_us > FLOOR_US_MAX {
            true => Err(TokenTermsFault::Floor),
            false => Ok(()),
        }
    }

    /// Returns whether tokens are counted alike, and none of them costs more than at `most`.
    pub fn is_within(self, most: Self) -> bool {
        self.counting == most.counting
            && self.input_us <= most.input_us
            && self.cached_us <= most.cached_us
            && self.floor_us <= most.floor_us
    }

    /// Returns the device time of so many tokens; the greatest one if it does not fit in 64 bits.
    pub fn device_time(self, input: u64, cached: u64, output: u64) -> DeviceMicros {
        let input = input.saturating_mul(self.input_us.into());
        let cached = cached.saturating_mul(self.cached_us.into());
        let output = output.saturating_mul(OUTPUT_US);
        DeviceMicros(input.saturating_add(cached).saturating_add(output))
    }

    /// Returns the least device time that a lease owes which held its units for so long.
    pub fn floor_usage(self, held: DeviceMicros) -> DeviceMicros {
        let charged = held.0.saturating_sub(FREE_HOLD.0);
        let product = widening_product(charged, self.floor_us.into());
        let usage = product.checked_div(SECOND_US.into()).unwrap_or_default();
        DeviceMicros(u64::try_from(usage).unwrap_or(u64::MAX))
    }
}

impl TokenUsage {
    /// Returns the usage that the counts give: the device time of all tokens, at least that of the
    /// floor, and at least a microsecond, because a receipt is of some work.
    pub fn usage(&self) -> DeviceMicros {
        let counted = self.terms.device_time(self.input, self.cached, self.output);
        let floor = self.terms.floor_usage(self.held);
        counted.max(floor).max(DeviceMicros(1))
    }

    /// Returns the idle time to bill beside [`usage`](Self::usage) at a part of the price: what
    /// the floor already charges is left out. So a lease costs the larger of its floor, and of its
    /// tokens and idle time as without a floor.
    pub fn idle_beyond_floor(&self, idle: DeviceMicros, part: Permille) -> DeviceMicros {
        let counted = self.terms.device_time(self.input, self.cached, self.output);
        let charged = self.usage().0.saturating_sub(counted.0.max(1));
        let thousandths = widening_product(charged, 1_000);
        let covered = thousandths.checked_div(part.0.into()).unwrap_or_default();
        let covered = u64::try_from(covered).unwrap_or(u64::MAX);
        DeviceMicros(idle.0.saturating_sub(covered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: TokenTerms = TokenTerms {
        counting: CountingRule::FourBytes,
        input_us: 250,
        cached_us: 25,
        floor_us: 50_000,
    };

    fn metered(input: u64, cached: u64, output: u64, held_seconds: u64) -> TokenUsage {
        TokenUsage {
            terms: TERMS,
            input,
            cached,
            output,
            held: DeviceMicros(held_seconds * SECOND_US),
        }
    }

    #[test]
    fn the_usage_is_that_of_all_tokens_and_no_less_than_the_floor() {
        let tokens = metered(1_000, 2_000, 300, 10).usage();
        assert_eq!(tokens.0, 250_000 + 50_000 + 300_000);
        // Ten seconds are free; 60 more at a twentieth are three seconds.
        assert_eq!(metered(1_000, 2_000, 300, 70).usage().0, 3_000_000);
        assert_eq!(metered(0, 0, 5_000, 70).usage().0, 5_000_000);
        assert_eq!(metered(0, 0, 0, 10).usage().0, 1);
        // An hour on all of eight slots: what the floor says, but for the first ten seconds.
        let hour: u64 = (0..8).map(|_| metered(0, 0, 0, 3_600).usage().0).sum();
        let stated = 8 * 3_600 * u64::from(TERMS.floor_us);
        assert!(hour.abs_diff(stated) * 100 < stated, "{hour} of {stated}");
    }

    #[test]
    fn a_floor_makes_no_hold_cheaper() {
        let reserve = Permille(100);
        let cost = |floor_us: u32, output: u64, seconds: u64| {
            let mut lease = metered(0, 0, output, seconds);
            lease.terms.floor_us = floor_us;
            let idle = lease.idle_beyond_floor(lease.held, reserve);
            lease.usage().0 + idle.scale_by(reserve).0
        };
        for (output, seconds) in [(0, 9), (0, 30), (0, 300), (500, 70), (50_000, 300)] {
            let without = cost(0, output, seconds);
            for floor_us in [1, 50_000, 100_000, 500_000] {
                let with = cost(floor_us, output, seconds);
                assert!(with + 1 >= without, "{floor_us} {output} {seconds}");
            }
        }
        // The larger one, and not both.
        assert_eq!(cost(50_000, 0, 300), 30_000_001);
        assert_eq!(cost(500_000, 0, 300), 145_000_000);
    }

    #[test]
    fn no_count_overflows() {
        let most = metered(u64::MAX, u64::MAX, u64::MAX, 1);
        assert_eq!(most.usage(), DeviceMicros(u64::MAX));
        let held = TokenTerms {
            floor_us: u32::MAX,
            ..TERMS
        };
        let most = DeviceMicros(u64::MAX);
        assert_eq!(held.floor_usage(most), most);
        let free = TokenTerms {
            input_us: 0,
            cached_us: 0,
            floor_us: 0,
            ..TERMS
        };
        assert_eq!(free.device_time(u64::MAX, u64::MAX, 2).0, 2_000);
    }

    #[test]
    fn terms_are_held_to_their_ranges_and_to_those_of_a_bid() {
        assert_eq!(TERMS.check(), Ok(()));
        assert_eq!(TokenTerms::USUAL.check(), Ok(()));
        let wrong = |change: fn(&mut TokenTerms)| {
            let mut terms = TERMS;
            change(&mut terms);
            (terms.check(), terms.is_within(TERMS))
        };
        let dear = wrong(|it| it.input_us = INPUT_US_MAX + 1);
        assert_eq!(dear, (Err(TokenTermsFault::Input), false));
        let cached = wrong(|it| it.cached_us = 251);
        assert_eq!(cached, (Err(TokenTermsFault::Cached), false));
        let held = wrong(|it| it.floor_us = FLOOR_US_MAX + 1);
        assert_eq!(held, (Err(TokenTermsFault::Floor), false));
        assert_eq!(wrong(|it| it.input_us = 26), (Ok(()), true));
    }
}
