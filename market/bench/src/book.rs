//! Runs the benchmark's flows on the bare order book alone: only the slab (the array of orders),
//! the levels and the index of ids. Compared with `full`, it shows what the rest of the exchange
//! costs.

use souk_market::book::{Book, IdIndex, Slab};
use souk_market::{OrderId, Price, Side, Units};

use crate::{Engine, Tally};

/// One bare book.
#[derive(Default)]
pub struct BookEngine {
    slab: Slab,
    book: Book,
    /// Twice the index in the slab, plus one for a bid.
    places: IdIndex,
    tally: Tally,
}

fn to_side(buys: bool) -> Side {
    if buys { Side::Bid } else { Side::Ask }
}

impl Engine for BookEngine {
    fn add(&mut self, id: u32, buys: bool, price: u64, quantity: u32) {
        let id = OrderId(u64::from(id));
        let (price, quantity) = (Price(price), Units(quantity));
        let place = self
            .book
            .insert(&mut self.slab, to_side(buys), id, price, quantity);
        self.places.insert(id, place << 1 | u32::from(buys));
        self.tally.resting += 1;
    }

    fn cancel_order(&mut self, id: u32) {
        if let Some(place) = self.places.remove(OrderId(u64::from(id))) {
            self.book
                .remove(&mut self.slab, to_side(place & 1 == 1), place >> 1);
            self.tally.resting -= 1;
        }
    }

    fn execute_market_order(&mut self, buys: bool, quantity: u32) {
        let against = to_side(!buys);
        let mut left = quantity;
        while let Some(place) = self.book.best_order(against).filter(|_| left > 0) {
            let node = *self.slab.get(place);
            let taken = left.min(node.quantity.0);
            left -= taken;
            self.tally.traded += u64::from(taken);
            if taken == node.quantity.0 {
                self.places.remove(node.id);
                self.book.remove(&mut self.slab, against, place);
                self.tally.resting -= 1;
            } else {
                self.book
                    .reduce_order(&mut self.slab, against, place, Units(taken));
            }
        }
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}
