//! Lets a higher bid take over the device of a spot lease, which is a lease that can end early,
//! after the lease's notice. This is called displacement.
//!
//! A bid displaces a lease only if no free ask suits. The cheapest lease goes first and, of equal
//! ones, the newest; the new price must be at least one tick above the old one, so that every
//! displacement gains.

use std::cmp::Reverse;

use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState};
use crate::order::Trade;
use crate::units::{Credits, Price, Units};

use super::Exchange;
use super::bid::LiveBid;
use super::leases::LeaseOpening;
use super::matching::Fill;

/// The most spot leases that one bid considers.
const LEASES_SEEN_MAX: usize = 256;

/// A lease that a bid will displace, and the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Displacement {
    lease: LeaseId,
    price: Price,
    pub quantity: Units,
    pub escrow: Credits,
}

impl Exchange {
    /// Returns the leases that a bid displaces for the units that no free ask fills, and the units
    /// left even then. A lease whose rest the bid buys has ended by then.
    pub(super) fn plan_displacement(
        &self,
        bid: &LiveBid,
        fills: &[Fill],
        wanted: Units,
    ) -> (Vec<Displacement>, Units) {
        debug_assert!(wanted <= bid.order.remaining, "no more than the bid wants");
        let mut displaced = Vec::new();
        let mut rest = wanted;
        let bought = |lease: &Lease| fills.iter().any(|fill| lease.resale_ask == Some(fill.ask));
        for lease in self.displaceable_leases(bid) {
            if rest.0 == 0 {
                break;
            }
            if lease.quantity <= rest && !bought(lease) {
                displaced.push(self.new_displacement(lease, bid));
                rest = rest.minus(lease.quantity);
            }
        }
        debug_assert!(rest <= wanted, "no more is left than there was");
        (displaced, rest)
    }

    /// Returns the spot leases that a bid may displace, the first to go first.
    pub(super) fn displaceable_leases(&self, bid: &LiveBid) -> impl Iterator<Item = &Lease> {
        let book = bid.order.detail.book;
        let tick = self.books.book(book).rules.tick;
        // A limit below one tick leaves an empty range, because no lease has the price zero.
        let limit = Price(bid.order.price.0.saturating_sub(tick.0));
        let first = (book, Price(0), Reverse(LeaseId(u64::MAX)));
        let last = (book, limit, Reverse(LeaseId(0)));
        let seen = self.spot.range(first..=last).take(LEASES_SEEN_MAX);
        let leases = seen.map(|(_, _, Reverse(id))| &self.leases[id]);
        // Most leases have too long a notice, which needs no lookup of their terms.
        let soon = leases.filter(|lease| lease.notice <= bid.terms.start_delay_max);
        soon.filter(|lease| self.displaceable_by(lease, bid))
    }

    /// Returns the cost of displacing a lease for a bid.
    pub(super) fn new_displacement(&self, lease: &Lease, bid: &LiveBid) -> Displacement {
        let price = self.price_of_displacing(lease, bid);
        debug_assert!(price <= bid.order.price, "a bid never pays above its limit");
        let escrow = price.escrow_for(lease.quantity, bid.terms.duration);
        Displacement {
            lease: lease.id,
            price,
            quantity: lease.quantity,
            escrow: escrow.expect("bounded by the bid's budget"),
        }
    }

    /// Returns one tick above the lease's price, and at least the price that its provider demands
    /// of such a bid.
    fn price_of_displacing(&self, lease: &Lease, bid: &LiveBid) -> Price {
        let tick = self.books.book(bid.order.detail.book).rules.tick;
        let terms = self.books.ask_terms.get(lease.parties.terms);
        let asked = terms.least_for(&bid.terms);
        Price(lease.price.0.saturating_add(tick.0)).max(asked)
    }

    fn displaceable_by(&self, lease: &Lease, bid: &LiveBid) -> bool {
        let parties = &lease.parties;
        let own = parties.buyer == bid.order.slot() || parties.provider == bid.order.slot();
        let terms = self.books.ask_terms.get(parties.terms);
        let is_frozen = self.ledger.get(parties.provider).frozen.is_some();
        let is_paid = self.price_of_displacing(lease, bid) <= bid.order.price;
        !own && !is_frozen
            && is_paid
            && self
                .lack_of_terms(
                    terms,
                    parties.provider,
                    terms.notice_for(&bid.terms),
                    bid.as_view(),
                )
                .is_none()
    }

    pub(super) fn displace_leases(
        &mut self,
        bid: &LiveBid,
        displaced: &[Displacement],
        trades: &mut Vec<Trade>,
        events: &mut Vec<Event>,
    ) {
        let before = trades.len();
        let one = |displaced| self.displace_one(bid, displaced, events);
        trades.extend(displaced.iter().map(one));
        let made = trades.len().saturating_sub(before);
        assert_eq!(made, displaced.len(), "one trade a lease");
    }

    fn displace_one(
        &mut self,
        bid: &LiveBid,
        displaced: &Displacement,
        events: &mut Vec<Event>,
    ) -> Trade {
        let behind = displaced.lease;
        let lease = &self.leases[&behind];
        assert!(lease.successor.is_none(), "a lease is displaced once");
        assert!(
            displaced.price > lease.price,
            "nobody is displaced for nothing"
        );
        let until = self.now.saturating_add(lease.notice).min(lease.deadline);
        debug_assert!(until >= self.now, "notice is given beforehand");
        let terms = self.books.ask_terms.get(lease.parties.terms);
        let opening = LeaseOpening {
            bid,
            notice: terms.notice_for(&bid.terms),
            ask: lease.ask,
            device: lease.device,
            provider: lease.parties.provider,
            terms: lease.parties.terms,
            price: displaced.price,
            quantity: displaced.quantity,
            escrow: displaced.escrow,
            start: until,
            state: LeaseState::Waiting { behind, until },
        };
        let trade = self.open_new_lease(&opening, events);
        self.lease_mut(behind).successor = Some(trade.lease);
        self.give_notice(behind, until, CloseReason::Displaced, events);
        if until <= self.now {
            self.end_lease(behind, CloseReason::Displaced, events);
        }
        trade
    }
}
