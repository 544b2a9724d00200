//! Gangs: several unlike bids that all match, each on a provider of its own, or none does.
//!
//! With n legs, the n cheapest providers of each leg hold the cheapest way to match them all: a
//! leg that used a dearer one could swap to one of its n cheapest, of which the other n - 1 legs
//! can't hold all. So the search is a small assignment problem, solved exactly.

use std::ops::ControlFlow;

use crate::books::{BookId, Hunt, Order};
use crate::command::{Accepted, Command};
use crate::event::{Event, OrderEnd};
use crate::ledger::Slot;
use crate::order::{Bid, Side};
use crate::refusal::Refusal;
use crate::units::{Credits, Price};

use super::matching::{Fill, LiveBid};
use super::{Exchange, Scene};

/// What an assignment costs, and, to choose among equals, which candidates it takes: a number in
/// base [`Command::GANG_MAX`] with a digit for each leg, the first leg's weighing most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost(i128, i128);

impl Cost {
    const ZERO: Self = Self(0, 0);
    const MAX: Self = Self(i128::MAX, 0);
    /// More than any sum of leg costs, so that a forbidden pair is never preferred.
    const FORBIDDEN: Self = Self(1 << 80, 0);

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0 - other.0, self.1 - other.1)
    }
}

/// The cheapest fill of one leg on each of its cheapest providers, the cheapest first.
type Candidates = Vec<(Slot, Fill)>;

impl Exchange {
    pub(super) fn on_gang(
        &mut self,
        scene: &mut Scene<'_>,
        legs: &[Bid],
    ) -> Result<Accepted, Refusal> {
        let count = u32::try_from(legs.len()).unwrap_or(u32::MAX);
        if legs.is_empty() || legs.len() > Command::GANG_MAX {
            let limit = Command::GANG_MAX as u32;
            return Err(Refusal::GangSize { legs: count, limit });
        }
        let places = self.gang_places(legs)?;
        let live = self.gang_bids(scene, legs, &places);
        let fills = self.gang_fills(&live).and_then(|fills| {
            let cost = |(fill, bid): (&Fill, &LiveBid)| fill.escrow(bid.terms.duration);
            let costs = fills.iter().zip(&live).map(cost);
            let needed = costs.fold(Credits::ZERO, Credits::plus);
            self.ledger.need(scene.slot, needed)?;
            Ok(fills)
        });
        let done = fills.map(|fills| {
            self.orders_made += u64::from(count);
            self.trade_gang(scene, &live, &fills)
        });
        live.iter().for_each(|bid| self.books.release(&bid.order));
        done
    }

    /// Each leg's book and highest price.
    fn gang_places(&mut self, legs: &[Bid]) -> Result<Vec<(BookId, Price)>, Refusal> {
        let place = |bid: &Bid| {
            let rules = self.class_rules(bid.class);
            if let Some(interval) = rules.auction {
                return Err(Refusal::AuctionOnly { interval });
            }
            let price = self.check_bid(bid, &rules)?;
            Ok((self.open_book(bid.class)?, price))
        };
        legs.iter().map(place).collect()
    }

    fn gang_bids(
        &mut self,
        scene: &Scene<'_>,
        legs: &[Bid],
        places: &[(BookId, Price)],
    ) -> Vec<LiveBid> {
        let first = self.orders_made + 1;
        let bid = |(id, (bid, (book, price))): (u64, (&Bid, &(BookId, Price)))| {
            let order = self.new_bid(id, scene.slot, *book, *price, bid);
            self.live_bid(order)
        };
        (first..).zip(legs.iter().zip(places)).map(bid).collect()
    }

    fn trade_gang(&mut self, scene: &mut Scene<'_>, legs: &[LiveBid], fills: &[Fill]) -> Accepted {
        let mut trades = Vec::with_capacity(legs.len());
        for (bid, fill) in legs.iter().zip(fills) {
            trades.extend(self.carry_out_fills(bid, &[*fill], scene.events));
            let (account, reason) = (scene.key, OrderEnd::Filled);
            scene.events.push(Event::OrderClosed {
                account,
                order: bid.order.id,
                reason,
            });
        }
        Accepted::Ganged { trades }
    }

    fn gang_fills(&self, legs: &[LiveBid]) -> Result<Vec<Fill>, Refusal> {
        let mut candidates: Vec<Candidates> = Vec::with_capacity(legs.len());
        for bid in legs {
            let found = self.candidates(bid, legs.len());
            if found.is_empty() {
                let leg = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
                let seen = self.asks_in(bid.order.detail.book);
                return Err(Refusal::GangLegUnmatched { leg, seen });
            }
            candidates.push(found);
        }
        assign(&candidates, legs)
    }

    fn asks_in(&self, book: BookId) -> u32 {
        let levels = self.books.book(book).book.side(Side::Ask).iter();
        levels.map(|level| level.count).sum()
    }

    fn candidates(&self, bid: &LiveBid, count: usize) -> Candidates {
        let order: &Order = &bid.order;
        let mut found = Candidates::new();
        let take = |ask: Order| {
            let (provider, resale) = ask.provider();
            let fits = match resale {
                Some(_) => ask.remaining == order.remaining,
                None => ask.remaining >= order.remaining,
            };
            let taken = found.iter().any(|(known, _)| *known == provider);
            if fits && !taken && self.lack(&ask, bid.view()).is_none() {
                let (ask, quantity, price) = (ask.id, order.remaining, ask.price);
                found.push((
                    provider,
                    Fill {
                        ask,
                        quantity,
                        price,
                    },
                ));
            }
            match found.len() < count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let hunt = Hunt {
            book: order.detail.book,
            side: Side::Ask,
            demand: bid.terms.demand(),
            limit: order.price,
        };
        self.books.search(&hunt, take);
        found
    }
}

/// The cheapest choice of one candidate a leg, no provider twice; of equals the one whose legs,
/// from the first on, take the candidates they would rather have.
fn assign(candidates: &[Candidates], legs: &[LiveBid]) -> Result<Vec<Fill>, Refusal> {
    let slots = |found: &Candidates| found.iter().map(|(slot, _)| *slot).collect::<Vec<_>>();
    let mut providers: Vec<Slot> = candidates.iter().flat_map(slots).collect();
    providers.sort_unstable();
    providers.dedup();
    // The assignment wants at least as many columns as rows: the missing ones are forbidden.
    let columns = providers.len().max(legs.len());
    let rank = |leg: usize, column: usize| {
        let provider = providers.get(column)?;
        candidates[leg]
            .iter()
            .position(|(slot, _)| slot == provider)
    };
    let cost = |leg: usize, column: usize| {
        let Some(rank) = rank(leg, column) else {
            return Cost::FORBIDDEN;
        };
        let (_, fill) = candidates[leg][rank];
        let weight = (Command::GANG_MAX as i128).pow((Command::GANG_MAX - 1 - leg) as u32);
        let price = i128::from(fill.escrow(legs[leg].terms.duration).0);
        Cost(price, rank as i128 * weight)
    };
    let chosen = cheapest_assignment(legs.len(), columns, cost);
    let fill = |(leg, column): (usize, &usize)| Some(candidates[leg][rank(leg, *column)?].1);
    let fills: Vec<Fill> = chosen.iter().enumerate().filter_map(fill).collect();
    if fills.len() < legs.len() {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (legs, matched) = (count(legs.len()), count(fills.len()));
        return Err(Refusal::GangUnmatched { legs, matched });
    }
    Ok(fills)
}

/// The column of each row in a cheapest assignment, by successive shortest paths with
/// potentials (Jonker and Volgenant); `rows <= columns`.
fn cheapest_assignment(
    rows: usize,
    columns: usize,
    cost: impl Fn(usize, usize) -> Cost,
) -> Vec<usize> {
    assert!(rows <= columns, "each row needs a column");
    let mut search = Assignment {
        row_potential: vec![Cost::ZERO; rows + 1],
        column_potential: vec![Cost::ZERO; columns + 1],
        owner: vec![0; columns + 1],
    };
    for row in 1..=rows {
        search.add(row, &cost);
    }
    let mut chosen = vec![0; rows];
    for (column, owner) in search.owner.iter().enumerate().skip(1) {
        if *owner != 0 {
            chosen[owner - 1] = column - 1;
        }
    }
    chosen
}

/// Rows and columns count from 1; 0 is "none".
struct Assignment {
    row_potential: Vec<Cost>,
    column_potential: Vec<Cost>,
    /// The row each column is given to.
    owner: Vec<usize>,
}

impl Assignment {
    /// Gives `row` a column, moving others along a shortest path.
    fn add(&mut self, row: usize, cost: &impl Fn(usize, usize) -> Cost) {
        let columns = self.owner.len();
        self.owner[0] = row;
        let mut least = vec![Cost::MAX; columns];
        let mut from = vec![0; columns];
        let mut visited = vec![false; columns];
        let mut at = 0;
        while self.owner[at] != 0 {
            visited[at] = true;
            let owner = self.owner[at];
            let (mut delta, mut next) = (Cost::MAX, 0);
            for column in (1..columns).filter(|column| !visited[*column]) {
                let reduced = cost(owner - 1, column - 1)
                    .minus(self.row_potential[owner])
                    .minus(self.column_potential[column]);
                if reduced < least[column] {
                    (least[column], from[column]) = (reduced, at);
                }
                if least[column] < delta {
                    (delta, next) = (least[column], column);
                }
            }
            self.shift(delta, &visited, &mut least);
            at = next;
        }
        while at != 0 {
            self.owner[at] = self.owner[from[at]];
            at = from[at];
        }
    }

    fn shift(&mut self, delta: Cost, visited: &[bool], least: &mut [Cost]) {
        for (column, visited) in visited.iter().enumerate() {
            if *visited {
                let row = &mut self.row_potential[self.owner[column]];
                *row = row.plus(delta);
                self.column_potential[column] = self.column_potential[column].minus(delta);
            } else if least[column] != Cost::MAX {
                least[column] = least[column].minus(delta);
            }
        }
    }
}
