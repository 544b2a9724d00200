//! Uniform-price batch auctions: within an interval, arriving first has no advantage.
//!
//! The price is the one at which most units can trade. If a range of prices qualifies, the price is
//! the end toward which the longer side pushes, or the middle if neither side is longer. Every
//! order on the right side of the price trades at it; orders at the last price on the longer side
//! share pro rata. The auction excludes orders that suit no order of the other side, so that an
//! order that cannot trade will not move the price. Pairing then checks which orders suit each
//! other, cheapest ask and highest bid first.
//!
//! An auction considers only the best orders of each side and has a bound on its steps. If it
//! traded and had to leave orders out, it schedules the next auction for them.

use crate::book::VisitBudget;
use crate::books::Order;
use crate::event::Event;
use crate::ids::BookId;
use crate::order::Side;
use crate::units::{Count, Millis, Price, Rounding, Units, divide_rounded, widening_product};

use super::matching::{Fill, bids_for};
use super::steps::{StepCount, TIMER_STEPS};
use super::{Exchange, Timer};

/// The orders of a side that take part in an auction: those with the best prices.
const ORDERS_MAX: usize = 1_024;

/// The steps for finding the orders that suit any other, shared equally among the orders.
const SUITED_STEPS: u32 = TIMER_STEPS / 2;

/// The least steps for one order: checking fifty others is enough in most books.
const SUITED_STEPS_LEAST: u32 = 256;

/// The steps for pairing.
const PAIRED_STEPS: u32 = TIMER_STEPS / 2;

/// The price and quantity of an auction before pairing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clearing {
    pub price: Price,
    pub quantity: u64,
}

impl Exchange {
    /// Schedules the next auction of this book, unless one is due.
    pub(super) fn call_auction(&mut self, book: BookId, interval: Millis) {
        let at = self.now.floor_to(interval).saturating_add(interval);
        assert!(at > self.now, "an auction is held later");
        let class = self.books.book_mut(book);
        debug_assert_eq!(
            class.rules.auction,
            Some(interval),
            "the class has auctions"
        );
        if class.auction_at.is_none() {
            class.auction_at = Some(at);
            self.timers.insert((at, Timer::Auction(book)));
        }
    }

    pub(super) fn hold_auction(
        &mut self,
        book: BookId,
        steps: &mut StepCount,
        events: &mut Vec<Event>,
    ) {
        self.books.book_mut(book).auction_at = None;
        let class = self.books.book(book);
        let (asks, bids) = self.eligible_orders(book, steps);
        let (tick, interval) = (class.rules.tick, class.rules.auction);
        let sides = [Side::Ask, Side::Bid].map(|side| self.books.side_orders(class, side));
        let mut is_cut = sides
            .into_iter()
            .any(|mut side| side.nth(ORDERS_MAX).is_some());
        let Some(clearing) = clear(&asks, &bids, tick) else {
            return;
        };
        let Clearing { price, quantity } = clearing;
        assert!(quantity > 0, "orders that cross have units");
        events.push(Event::Auction {
            class: class.class,
            price,
            quantity,
        });
        let mut asks = share_out(&asks, clearing, |ask| ask.price <= price);
        let mut bids = share_out(&bids, clearing, |bid| bid.price >= price);
        let mut pairing = Pairing {
            price,
            left: PAIRED_STEPS,
        };
        self.pair_orders(&mut pairing, &mut asks, &mut bids, events);
        // Orders that predicates kept from pairing may still pair with the units left out above.
        let left = |shares: &mut Vec<Share>| {
            shares
                .iter_mut()
                .for_each(|share| share.allotted = share.open);
        };
        left(&mut asks);
        left(&mut bids);
        self.pair_orders(&mut pairing, &mut asks, &mut bids, events);
        steps.spend_steps(PAIRED_STEPS.saturating_sub(pairing.left));
        is_cut |= pairing.left == 0;
        if let Some(interval) = interval.filter(|_| is_cut) {
            self.call_auction(book, interval);
        }
    }

    /// Returns the best orders of each side that suit any order of the other; the rest must have no
    /// influence on the price.
    fn eligible_orders(&self, book: BookId, steps: &mut StepCount) -> (Vec<Order>, Vec<Order>) {
        let class = self.books.book(book);
        let best = |side| {
            self.books
                .side_orders(class, side)
                .take(ORDERS_MAX)
                .collect::<Vec<_>>()
        };
        let (mut asks, mut bids) = (best(Side::Ask), best(Side::Bid));
        let count = u32::try_from(asks.len().max(bids.len())).unwrap_or(u32::MAX);
        let each = (SUITED_STEPS / 2).checked_div(count);
        let each = each.map_or(SUITED_STEPS_LEAST, |each| each.max(SUITED_STEPS_LEAST));
        asks.retain(|ask| {
            let mut visits = VisitBudget::up_to(each);
            let suits = self.suits_some_bid(ask, &mut visits);
            steps.spend_visits(visits);
            suits
        });
        // An all-or-none bid from before the class had auctions waits until the class has none.
        let in_parts = |bid: &Order| !self.bid_view(bid).terms.all_or_none;
        bids.retain(|bid| in_parts(bid) && self.suits_some_ask(bid, &asks, each, steps));
        (asks, bids)
    }

    /// Holds the auction that is due, because the class has no auctions from now on.
    pub(super) fn hold_last_auction(
        &mut self,
        book: BookId,
        steps: &mut StepCount,
        events: &mut Vec<Event>,
    ) {
        if let Some(at) = self.books.book(book).auction_at {
            let timed = self.timers.remove(&(at, Timer::Auction(book)));
            assert!(timed, "an auction that is due is timed");
            self.hold_auction(book, steps, events);
        }
    }

    /// Returns whether an ask could trade with any bid in the book.
    fn suits_some_bid(&self, ask: &Order, visits: &mut VisitBudget) -> bool {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        let suits = |bid: &Order| self.find_lack(ask, self.bid_view(bid)).is_none();
        let query = bids_for(ask, terms);
        self.books.next(&query, None, visits, suits).is_some()
    }

    /// Returns whether a bid could trade with any of these asks, the cheapest first. Any ask that
    /// suits a bid is among the asks that suit some bid.
    fn suits_some_ask(
        &self,
        bid: &Order,
        asks: &[Order],
        each: u32,
        steps: &mut StepCount,
    ) -> bool {
        let view = self.bid_view(bid);
        let most = (each / VisitBudget::CHECK) as usize;
        let cheap = asks
            .iter()
            .take_while(|ask| ask.price <= bid.price)
            .take(most);
        let mut cheap = cheap.inspect(|_| steps.spend_steps(VisitBudget::CHECK));
        cheap.any(|ask| self.find_lack(ask, view).is_none())
    }

    fn pair_orders(
        &mut self,
        pairing: &mut Pairing,
        asks: &mut [Share],
        bids: &mut [Share],
        events: &mut Vec<Event>,
    ) {
        for bid in bids {
            for ask in asks.iter_mut() {
                if bid.allotted == 0 {
                    break;
                }
                let quantity = bid.allotted.min(ask.allotted);
                if quantity == 0 {
                    continue;
                }
                if pairing.left == 0 {
                    return;
                }
                pairing.left = pairing.left.saturating_sub(VisitBudget::CHECK);
                if !self.can_pair(ask, bid, quantity) {
                    continue;
                }
                let order = self
                    .books
                    .get(bid.order.id)
                    .expect("a share is of an open order");
                let live = self.live_bid(order, self.books.bid_job(order.id));
                assert_ne!(ask.order.id, bid.order.id, "an order is on one side");
                let fill = Fill {
                    ask: ask.order.id,
                    quantity: Units(quantity),
                    price: pairing.price,
                };
                self.carry_out_resting(&live, &[fill], &mut Vec::new(), events);
                for share in [&mut *ask, &mut *bid] {
                    assert!(share.allotted <= share.open, "no more than is open");
                    share.allotted = share.allotted.saturating_sub(quantity);
                    share.open = share.open.saturating_sub(quantity);
                }
            }
        }
    }

    fn can_pair(&self, ask: &Share, bid: &Share, quantity: u32) -> bool {
        let whole = ask.order.provider().1.is_some() && quantity < ask.order.remaining.0;
        !whole
            && self
                .find_lack(&ask.order, self.bid_view(&bid.order))
                .is_none()
    }
}

/// The price at which the auction pairs orders, and the steps left for pairing.
struct Pairing {
    price: Price,
    left: u32,
}

/// The units of an order that the auction allots, and all its open units.
struct Share {
    order: Order,
    allotted: u32,
    open: u32,
}

/// Returns the price at which most units trade, and the number of those units.
fn clear(asks: &[Order], bids: &[Order], tick: Price) -> Option<Clearing> {
    let (best_ask, best_bid) = (asks.first()?.price, bids.first()?.price);
    if best_ask > best_bid {
        return None;
    }
    let mut prices: Vec<Price> = asks.iter().chain(bids).map(|order| order.price).collect();
    prices.sort_unstable();
    prices.dedup();
    debug_assert!(asks.is_sorted_by_key(|ask| ask.price), "the cheapest first");
    debug_assert!(
        bids.is_sorted_by_key(|bid| std::cmp::Reverse(bid.price)),
        "the best first"
    );
    // Supply rises and demand falls with the price: one pass with two running sums.
    let mut supply: u64 = 0;
    let mut demand = total_remaining(bids);
    let (mut asks, mut bids) = (asks.iter().peekable(), bids.iter().rev().peekable());
    let mut best: Option<PriceRange> = None;
    for price in prices {
        while let Some(ask) = asks.next_if(|ask| ask.price <= price) {
            supply = supply.saturating_add(ask.remaining.0.into());
        }
        while let Some(bid) = bids.next_if(|bid| bid.price < price) {
            demand = demand.saturating_sub(bid.remaining.0.into());
        }
        best = PriceRange::pick_better(
            best,
            PriceRange {
                low: price,
                high: price,
                supply,
                demand,
            },
        );
    }
    best.map(|best| best.clearing_at(tick))
}

fn total_remaining(orders: &[Order]) -> u64 {
    orders
        .iter()
        .map(|order| u64::from(order.remaining.0))
        .sum()
}

/// The best prices so far.
#[derive(Clone, Copy)]
struct PriceRange {
    low: Price,
    high: Price,
    supply: u64,
    demand: u64,
}

impl PriceRange {
    fn tradable_quantity(&self) -> u64 {
        self.supply.min(self.demand)
    }

    fn surplus(&self) -> u64 {
        self.supply.abs_diff(self.demand)
    }

    /// Prefers more units, then a smaller surplus; joins equal candidates to a range.
    fn pick_better(old: Option<Self>, new: Self) -> Option<Self> {
        let Some(old) = old else {
            return Some(new);
        };
        let rank = |one: &Self| (one.tradable_quantity(), std::cmp::Reverse(one.surplus()));
        match rank(&new).cmp(&rank(&old)) {
            std::cmp::Ordering::Greater => Some(new),
            std::cmp::Ordering::Less => Some(old),
            std::cmp::Ordering::Equal => Some(Self {
                low: old.low,
                ..new
            }),
        }
    }

    fn clearing_at(&self, tick: Price) -> Clearing {
        debug_assert!(self.low <= self.high, "a range has an end");
        let price = match self.demand.cmp(&self.supply) {
            std::cmp::Ordering::Greater => self.high,
            std::cmp::Ordering::Less => self.low,
            std::cmp::Ordering::Equal => {
                let middle = Price(self.low.0.midpoint(self.high.0));
                middle.floor_to(tick).max(self.low)
            }
        };
        Clearing {
            price,
            quantity: self.tradable_quantity(),
        }
    }
}

/// Allots the clearing's units to the orders of one side: better prices in full, and the last price
/// pro rata, with the rounding's rest for the oldest.
fn share_out(orders: &[Order], clearing: Clearing, trades: impl Fn(&Order) -> bool) -> Vec<Share> {
    let mut left = clearing.quantity;
    let mut shares: Vec<Share> = Vec::new();
    let trading: Vec<&Order> = orders.iter().filter(|order| trades(order)).collect();
    for level in trading.chunk_by(|one, other| one.price == other.price) {
        let wanted: u64 = level.iter().map(|order| u64::from(order.remaining.0)).sum();
        let given = wanted.min(left);
        left = left.saturating_sub(given);
        share_level(level, given, wanted, &mut shares);
    }
    let shared: u64 = shares.iter().map(|share| u64::from(share.allotted)).sum();
    assert_eq!(
        shared.saturating_add(left),
        clearing.quantity,
        "each unit falls to one order"
    );
    shares
}

fn share_level(level: &[&Order], given: u64, wanted: u64, shares: &mut Vec<Share>) {
    let first = shares.len();
    let mut rest = given;
    debug_assert!(
        given <= wanted && wanted > 0,
        "a level gets a part of what it wants"
    );
    for order in level {
        let open = order.remaining.0;
        let part = divide_rounded(widening_product(open.into(), given), wanted, Rounding::Down);
        let allotted = part.and_then(|part| u32::try_from(part.0).ok());
        let allotted = allotted.expect("a part is no more than the order");
        rest = rest.saturating_sub(allotted.into());
        shares.push(Share {
            order: **order,
            allotted,
            open,
        });
    }
    for share in &mut shares[first..] {
        if rest > 0 && share.allotted < share.open {
            share.allotted.count_up();
            rest.count_down();
        }
    }
    assert_eq!(rest, 0, "rounding leaves less than one unit an order");
}
