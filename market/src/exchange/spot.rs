//! Finds asks for spot bids, which are bids for leases that the provider or a higher bid can end
//! early, after a notice. An ask can state a lower price for them.
//!
//! A book lists asks at their limits. Asks with lower spot prices appear in a second list, by their
//! lowest price, and a spot bid sees both lists as one.

use std::ops::ControlFlow;

use crate::book::VisitBudget;
use crate::books::{BookQuery, Order};
use crate::ids::{BookId, LeaseId, OrderId};
use crate::order::{Ask, Limit, SPOT_PRICES_MAX, Side, SpotPrice, Term};
use crate::refusal::Refusal;
use crate::units::{Millis, Price};

use super::Exchange;
use super::bid::BidView;
use super::checks::check_price;

/// The most asks with spot prices that one bid considers.
const ASKS_SEEN_MAX: usize = 256;

/// The key of an ask in the list of spot asks: its book, its lowest price, its id.
pub(super) type SpotAskKey = (BookId, Price, OrderId);

impl Exchange {
    /// Returns the price that an ask demands of a bid.
    pub(super) fn ask_price_for(&self, ask: &Order, bid: BidView<'_>) -> Price {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        let spot = terms.spot_price(bid.terms);
        match ask.resold_lease() {
            Some(_) => ask.price,
            None => spot.map_or(ask.price, |spot| spot.price),
        }
    }

    /// Returns the lowest price that an ask demands of any bid.
    pub(super) fn least_asked(&self, ask: &Order) -> Price {
        self.spot_ask_key(ask).map_or(ask.price, |key| key.1)
    }

    /// Returns the key under which an ask with spot prices is listed.
    pub(super) fn spot_ask_key(&self, ask: &Order) -> Option<SpotAskKey> {
        if ask.side() == Side::Bid || ask.resold_lease().is_some() {
            return None;
        }
        let terms = self.books.ask_terms.get(ask.detail.terms);
        let least = terms.spot.prices.first()?;
        debug_assert!(least.price < ask.price, "spot prices are below the limit");
        Some((ask.detail.book, least.price, ask.id))
    }

    /// Returns whether an ask and a bid suit each other, and the bid pays the ask's price.
    pub(super) fn trades_with(&self, ask: &Order, bid: BidView<'_>) -> bool {
        self.ask_price_for(ask, bid) <= bid.order.price && self.find_lack(ask, bid).is_none()
    }

    /// Passes the asks that may suit a bid to `tell` with their prices, the cheapest first, until
    /// it stops.
    pub(super) fn search_asks(
        &self,
        bid: BidView<'_>,
        visits: &mut VisitBudget,
        mut tell: impl FnMut(Order, Price) -> ControlFlow<()>,
    ) {
        let query = BookQuery {
            book: bid.order.detail.book,
            side: Side::Ask,
            demand: bid.terms.demand(),
            limit: bid.order.price,
        };
        let spot = self.spot_asks(bid, visits);
        let mut next = spot.iter().peekable();
        let mut stopped = false;
        self.books.search_orders(&query, visits, |ask| {
            let before = |(price, spot): &&(Price, Order)| (*price, spot.id) < (ask.price, ask.id);
            let is_listed = || spot.iter().any(|(_, listed)| listed.id == ask.id);
            while let Some((price, cheaper)) = next.next_if(before) {
                stopped = stopped || tell(*cheaper, *price).is_break();
            }
            if !stopped && !is_listed() {
                stopped = tell(ask, ask.price).is_break();
            }
            match stopped {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        for (price, ask) in next {
            if stopped || tell(*ask, *price).is_break() {
                return;
            }
        }
    }

    /// Returns the asks whose spot price the bid can pay, the cheapest first.
    fn spot_asks(&self, bid: BidView<'_>, visits: &mut VisitBudget) -> Vec<(Price, Order)> {
        if bid.terms.term == Term::Firm {
            return Vec::new();
        }
        let (book, limit) = (bid.order.detail.book, bid.order.price);
        let range = (book, Price(0), OrderId(0))..=(book, limit, OrderId(u64::MAX));
        let seen = self.spot_asks.range(range).take(ASKS_SEEN_MAX);
        let priced = seen.filter_map(|(_, _, id)| {
            visits.spend_all(VisitBudget::CHECK);
            let ask = self.books.get(*id).expect("what is listed is in the book");
            let price = self.ask_price_for(&ask, bid);
            (price < ask.price && price <= limit).then_some((price, ask))
        });
        let mut asks: Vec<(Price, Order)> = priced.collect();
        asks.sort_by_key(|(price, ask)| (*price, ask.id));
        asks
    }

    /// Checks the spot prices of an ask.
    pub(super) fn check_spot(ask: &Ask, tick: Price) -> Result<(), Refusal> {
        let bad = |place: usize| Refusal::SpotPriceBad {
            place: u32::try_from(place).map_or(u32::MAX, |place| place.saturating_add(1)),
        };
        let Limit::Price(limit) = ask.limit else {
            return match ask.spot.is_empty() {
                true => Ok(()),
                false => Err(bad(0)),
            };
        };
        for (place, spot) in ask.spot.iter().enumerate() {
            let before = place.checked_sub(1).map(|before| ask.spot[before]);
            let rises =
                |before: SpotPrice| before.notice < spot.notice && before.price < spot.price;
            let is_sound = place < SPOT_PRICES_MAX && spot.price < limit;
            if !is_sound || !before.is_none_or(rises) {
                return Err(bad(place));
            }
            check_price(spot.price, tick)?;
        }
        Ok(())
    }

    /// Returns the notice of a lease that `bid` opens on these terms, or of the lease that an ask
    /// resells.
    pub(super) fn notice_of(
        &self,
        ask: &Order,
        resale: Option<LeaseId>,
        bid: BidView<'_>,
    ) -> Millis {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        resale.map_or_else(
            || terms.notice_for(bid.terms),
            |lease| self.leases[&lease].notice,
        )
    }
}
