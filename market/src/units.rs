//! The number types of the market: amounts, prices, quantities and times as integers. Each
//! operation that can lose a fraction takes its rounding as an argument or documents it.

use serde::{Deserialize, Serialize};

use crate::ids::number;

number! {
    /// An amount of money in micro-credits, which are millionths of a credit.
    Credits(u64)
}
number! {
    /// A price in micro-credits per device-second (one second of one unit).
    Price(u64)
}
number! {
    /// A number of like devices of one pool, which an order sells or buys together.
    Units(u32)
}
number! {
    /// A time of the market's log in milliseconds since 1970, or a span in milliseconds.
    Millis(u64)
}
number! {
    /// Device time in microseconds: two devices for one second are 2,000,000.
    DeviceMicros(u64)
}
number! {
    /// A share in thousandths: 1,000 is the whole.
    Permille(u16)
}

/// How a fraction of a micro-credit is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Up to the next micro-credit, as for a buyer's debt.
    Up,
    /// Down, as for a fee.
    Down,
}

impl Credits {
    /// No credits.
    pub const ZERO: Self = Self(0);

    /// Returns the sum, or `None` if it does not fit in 64 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Returns the sum, which must fit in 64 bits; panics if it does not.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self(
            self.0
                .checked_add(other.0)
                .expect("credits are bounded by the deposits"),
        )
    }

    /// Returns the sum or, on overflow, the greatest value. Use it for sums over an account's life:
    /// deposits do not bound them, because credits circulate.
    pub(crate) fn plus_at_most(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, which must not be negative; panics if it is.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self(
            self.0
                .checked_sub(other.0)
                .expect("a balance is never negative"),
        )
    }
}

/// An integer that counts things, or that the exchange assigns in order. Both operations panic on
/// overflow.
pub(crate) trait Count {
    /// Adds one.
    fn count_up(&mut self);
    /// Subtracts one; the number must not be 0.
    fn count_down(&mut self);
}

macro_rules! counted {
    ($($number:ty)+) => {$(
        impl Count for $number {
            fn count_up(&mut self) {
                *self = self.checked_add(1).expect("there are fewer things than numbers");
            }

            fn count_down(&mut self) {
                *self = self.checked_sub(1).expect("what goes was counted");
            }
        }
    )+};
}

counted!(u32 u64);

/// Returns the product of two 64-bit figures, which always fits in 128 bits.
#[inline]
pub(crate) fn widening_product(one: u64, other: u64) -> u128 {
    u128::from(one).saturating_mul(u128::from(other))
}

impl Millis {
    /// Returns the latest multiple of `span` at or before this time; for a span of zero, the time
    /// itself.
    pub(crate) fn floor_to(self, span: Self) -> Self {
        let past = self.0.checked_rem(span.0).unwrap_or(0);
        Self(self.0.saturating_sub(past))
    }
    /// Returns the time `span` later or, on overflow, the greatest time.
    pub fn saturating_add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the span since `earlier`, or zero if `earlier` is later than this time.
    pub fn saturating_since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Price {
    /// Returns the greatest multiple of `tick` that does not exceed this price; for a tick of zero,
    /// the price itself.
    pub(crate) fn floor_to(self, tick: Self) -> Self {
        let over = self.0.checked_rem(tick.0).unwrap_or(0);
        Self(self.0.saturating_sub(over))
    }
}

impl Units {
    /// Returns the sum, which must fit in 32 bits; panics if it does not.
    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = self.0.checked_add(other.0);
        Self(sum.expect("a sum of parts is no more than the whole"))
    }

    /// Returns the difference, which must not be negative; panics if it is.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self(
            self.0
                .checked_sub(other.0)
                .expect("a quantity is never negative"),
        )
    }
}

/// Returns `product / by`, or `None` if it does not fit in 64 bits; panics if `by` is 0. Nearly
/// every product fits in 64 bits, and dividing 64 bits is several times faster than dividing 128.
#[inline]
pub(crate) fn divide_rounded(product: u128, by: u64, rounding: Rounding) -> Option<Credits> {
    assert!(by > 0, "a divisor is never zero");
    if let Ok(product) = u64::try_from(product) {
        return Some(Credits(match rounding {
            Rounding::Up => product.div_ceil(by),
            Rounding::Down => product.checked_div(by)?,
        }));
    }
    let by = u128::from(by);
    let quotient = match rounding {
        Rounding::Up => product.div_ceil(by),
        Rounding::Down => product.checked_div(by)?,
    };
    u64::try_from(quotient).ok().map(Credits)
}

impl Price {
    /// Returns the price of one unit for `duration`, rounded up, or `None` if it does not fit in 64
    /// bits.
    pub fn unit_cost(self, duration: Millis) -> Option<Credits> {
        divide_rounded(widening_product(self.0, duration.0), 1_000, Rounding::Up)
    }

    /// Returns the escrow for `quantity` units over `duration`: the cost of one unit, rounded up,
    /// times the quantity. So if a quantity is split into parts, their escrows add up to the escrow
    /// of the whole. `None` if it does not fit in 64 bits.
    pub fn escrow_for(self, quantity: Units, duration: Millis) -> Option<Credits> {
        let unit = self.unit_cost(duration)?;
        unit.0.checked_mul(u64::from(quantity.0)).map(Credits)
    }

    /// Returns the cost of `usage` at this price, or `None` if it does not fit in 64 bits.
    pub fn usage_cost(self, usage: DeviceMicros, rounding: Rounding) -> Option<Credits> {
        divide_rounded(widening_product(self.0, usage.0), 1_000_000, rounding)
    }

    /// Returns the greatest price at which the escrow for `quantity` units over `duration` is at
    /// most `budget`. It treats a quantity or a duration of 0 as 1.
    pub fn max_affordable(budget: Credits, quantity: Units, duration: Millis) -> Self {
        let each = budget.0.checked_div(u64::from(quantity.0.max(1)));
        let product = widening_product(each.unwrap_or(budget.0), 1_000);
        let price = divide_rounded(product, duration.0.max(1), Rounding::Down);
        let price = price.map_or(Self(u64::MAX), |price| Self(price.0));
        debug_assert!(
            price
                .escrow_for(quantity, duration)
                .is_none_or(|escrow| escrow <= budget),
            "what is affordable is within the budget"
        );
        price
    }
}

impl DeviceMicros {
    /// Returns this share of the time, rounded up; a share of more than 1,000 gives the whole.
    pub fn scale_by(self, part: Permille) -> Self {
        let product = widening_product(self.0, part.0.min(1_000).into());
        let part = divide_rounded(product, 1_000, Rounding::Up);
        Self(part.expect("a part is no more than the whole").0)
    }

    /// Returns the device time of `quantity` devices for `span` or, on overflow, the greatest
    /// value.
    pub fn from_units(quantity: Units, span: Millis) -> Self {
        Self(
            span.0
                .saturating_mul(1_000)
                .saturating_mul(u64::from(quantity.0)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escrow_of_parts_is_escrow_of_the_whole() {
        let (price, span) = (Price(7), Millis(333));
        let whole = price.escrow_for(Units(5), span).unwrap();
        let parts = price
            .escrow_for(Units(2), span)
            .unwrap()
            .plus(price.escrow_for(Units(3), span).unwrap());
        assert_eq!(whole, parts);
    }

    #[test]
    fn affordable_price_is_the_greatest_that_fits() {
        for (budget, quantity, span) in [(1_000, 3, 777), (5, 5, 1), (999_999, 1, 3_600_000)] {
            let price = Price::max_affordable(Credits(budget), Units(quantity), Millis(span));
            assert!(price.escrow_for(Units(quantity), Millis(span)).unwrap().0 <= budget);
            let above = Price(price.0 + 1)
                .escrow_for(Units(quantity), Millis(span))
                .unwrap();
            assert!(above.0 > budget);
        }
    }
}
