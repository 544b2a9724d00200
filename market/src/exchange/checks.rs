//! Checks an ask or a bid by itself, before the exchange matches it: its price, quantity, times and
//! lists must be within the market's rules.

use crate::class::Class;
use crate::ids::{AccountKey, Slot};
use crate::order::{Ask, Bid, Limit, TimeInForce};
use crate::predicate::EXCLUDED_MAX;
use crate::refusal::{Quantity, Refusal};
use crate::rules::ClassRules;
use crate::units::{Credits, Millis, Price, Units};

use super::Exchange;

impl Exchange {
    pub(super) fn class_rules(&self, class: Class) -> ClassRules {
        match self.books.find_book(class) {
            Some(book) => self.books.book(book).rules,
            None => self.rules.of_class(class),
        }
    }

    pub(super) fn check_open_orders(&self, slot: Slot) -> Result<(), Refusal> {
        let open = self.ledger.get(slot).open_orders;
        let limit = self.rules.open_orders_max;
        if open >= limit {
            Err(Refusal::OrdersMany { open, limit })
        } else {
            Ok(())
        }
    }

    pub(super) fn check_ask(
        &self,
        slot: Slot,
        ask: &Ask,
        rules: &ClassRules,
    ) -> Result<Price, Refusal> {
        self.check_open_orders(slot)?;
        check_quantity(ask.quantity, rules)?;
        self.check_durations(ask.duration_min, ask.duration_max)?;
        check_named(&ask.accepts.excluded)?;
        check_named(&ask.accepts.only)?;
        if ask.resources.region.0 > 31 {
            return Err(Refusal::RegionBad {
                region: ask.resources.region.0,
            });
        }
        if let Some(Err(fault)) = ask.resources.tokens.map(|terms| terms.check()) {
            return Err(Refusal::TokenTermsBad { fault });
        }
        self.check_tif(ask.tif, ask.limit, ask.quantity)?;
        let price = match ask.limit {
            Limit::Price(price) => check_price(price, rules.tick)?,
            Limit::Market => rules.tick,
        };
        Self::check_spot(ask, rules.tick)?;
        if price.escrow_for(ask.quantity, ask.duration_max).is_none() {
            return Err(Refusal::AmountLarge {
                what: Quantity::Cost,
            });
        }
        let account = self.ledger.get(slot);
        account.check_pool(ask.device, ask.capacity, ask.quantity)?;
        debug_assert!(
            price.0 > 0 && ask.quantity.0 > 0,
            "it offers something for something"
        );
        Ok(price)
    }

    /// Checks a bid by itself. Returns the highest price that it pays: its limit, lowered to fit
    /// its budget.
    pub(super) fn check_bid(&self, bid: &Bid, rules: &ClassRules) -> Result<Price, Refusal> {
        check_quantity(bid.quantity, rules)?;
        self.check_durations(bid.duration, bid.duration)?;
        check_named(&bid.wants.excluded)?;
        self.check_tif(bid.tif, bid.limit, bid.quantity)?;
        let affordable = Price::max_affordable(bid.budget, bid.quantity, bid.duration);
        let affordable = affordable.floor_to(rules.tick);
        if affordable.0 == 0 {
            let needed = rules.tick.escrow_for(bid.quantity, bid.duration);
            let needed = needed.unwrap_or(Credits(u64::MAX));
            return Err(Refusal::BudgetSmall {
                budget: bid.budget,
                needed,
            });
        }
        let price = match bid.limit {
            Limit::Price(price) => check_price(price, rules.tick)?.min(affordable),
            Limit::Market => affordable,
        };
        let most = price.escrow_for(bid.quantity, bid.duration);
        assert!(
            most.is_some_and(|most| most <= bid.budget),
            "what is affordable is within the budget"
        );
        Ok(price)
    }

    pub(super) fn check_durations(&self, min: Millis, max: Millis) -> Result<(), Refusal> {
        let limit = self.rules.lease_max;
        if min.0 == 0 || min > max || max > limit {
            return Err(Refusal::DurationBad { min, max, limit });
        }
        Ok(())
    }

    fn check_tif(&self, tif: TimeInForce, limit: Limit, quantity: Units) -> Result<(), Refusal> {
        match tif {
            TimeInForce::Gtd(expires) if expires <= self.now => Err(Refusal::OrderExpired {
                expires,
                now: self.now,
            }),
            TimeInForce::Gtc | TimeInForce::Gtd(_) if limit == Limit::Market => {
                Err(Refusal::MarketRests { quantity })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the price. It must be a multiple of the tick and not 0.
pub(super) fn check_price(price: Price, tick: Price) -> Result<Price, Refusal> {
    if price.0 == 0 {
        return Err(Refusal::AmountZero {
            what: Quantity::Price,
        });
    }
    debug_assert!(tick.0 > 0, "the rules are sound");
    if !price.0.is_multiple_of(tick.0) {
        return Err(Refusal::PriceOffTick { price, tick });
    }
    Ok(price)
}

pub(super) fn check_quantity(quantity: Units, rules: &ClassRules) -> Result<(), Refusal> {
    if quantity.0 == 0 {
        return Err(Refusal::AmountZero {
            what: Quantity::Units,
        });
    }
    let lot = rules.lot;
    debug_assert!(lot.0 > 0, "the rules are sound");
    if !quantity.0.is_multiple_of(lot.0) {
        return Err(Refusal::QuantityOffLot { quantity, lot });
    }
    Ok(())
}

fn check_named(accounts: &[AccountKey]) -> Result<(), Refusal> {
    if accounts.len() > EXCLUDED_MAX {
        let count = u32::try_from(accounts.len()).unwrap_or(u32::MAX);
        let limit = EXCLUDED_MAX as u32;
        return Err(Refusal::PredicateLarge { count, limit });
    }
    Ok(())
}
