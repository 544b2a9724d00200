//! A bid together with its terms (demands, duration and the like), in the form that matching reads.
//! New bids and bids that rest in a book have the same form.

use std::sync::Arc;

use crate::books::Order;
use crate::ids::JobId;
use crate::order::Side;
use crate::terms::BidTerms;

use super::Exchange;

/// A bid that the exchange is matching, with its terms.
pub(super) struct LiveBid {
    pub order: Order,
    pub terms: Arc<BidTerms>,
    pub job: JobId,
}

/// A bid and its terms by reference.
#[derive(Clone, Copy)]
pub(super) struct BidView<'a> {
    pub order: &'a Order,
    pub terms: &'a BidTerms,
}

impl LiveBid {
    pub(super) fn as_view(&self) -> BidView<'_> {
        let Self { order, terms, .. } = self;
        BidView { order, terms }
    }
}

impl Exchange {
    /// Returns an order with its terms. The order must be a bid.
    pub(super) fn bid_view<'a>(&'a self, order: &'a Order) -> BidView<'a> {
        debug_assert_eq!(order.side(), Side::Bid, "only bids have a bid's terms");
        let terms = self.books.bid_terms.get(order.detail.terms);
        BidView { order, terms }
    }

    pub(super) fn live_bid(&self, order: Order, job: JobId) -> LiveBid {
        let terms = self.books.bid_terms.get(order.detail.terms).clone();
        LiveBid { order, terms, job }
    }
}
