//! Gangs: several unlike bids that all match, each on a provider of its own, or none does.
//!
//! With n legs, the n cheapest providers of each leg hold the cheapest way to match them all: a
//! leg that used a dearer one could swap to one of its n cheapest, of which the other n - 1 legs
//! can't hold all. So the search is a small assignment problem, solved exactly.

use std::collections::BTreeMap;
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

/// More than any sum of leg costs, so that a forbidden pair is never preferred.
const FORBIDDEN: i128 = 1 << 80;

/// The cheapest fill of one leg on each of its cheapest providers.
type Candidates = BTreeMap<Slot, Fill>;

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
            if fits && self.lack(&ask, bid).is_none() {
                let (ask, quantity, price) = (ask.id, order.remaining, ask.price);
                found.entry(provider).or_insert(Fill {
                    ask,
                    quantity,
                    price,
                });
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

/// The cheapest choice of one candidate a leg, no provider twice.
fn assign(candidates: &[Candidates], legs: &[LiveBid]) -> Result<Vec<Fill>, Refusal> {
    let mut providers: Vec<Slot> = candidates.iter().flat_map(|c| c.keys().copied()).collect();
    providers.sort_unstable();
    providers.dedup();
    // The assignment wants at least as many columns as rows: the missing ones are forbidden.
    let columns = providers.len().max(legs.len());
    let cost = |leg: usize, column: usize| {
        let fill = providers
            .get(column)
            .and_then(|slot| candidates[leg].get(slot));
        fill.map_or(FORBIDDEN, |fill| {
            i128::from(fill.escrow(legs[leg].terms.duration).0)
        })
    };
    let chosen = cheapest_assignment(legs.len(), columns, cost);
    let fills: Vec<Fill> = chosen
        .iter()
        .zip(candidates)
        .filter_map(|(column, found)| found.get(providers.get(*column)?).copied())
        .collect();
    if fills.len() < legs.len() {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        return Err(Refusal::GangUnmatched {
            legs: count(legs.len()),
            matched: count(fills.len()),
        });
    }
    Ok(fills)
}

/// The column of each row in a cheapest assignment, by successive shortest paths with
/// potentials (Jonker and Volgenant); `rows <= columns`.
fn cheapest_assignment(
    rows: usize,
    columns: usize,
    cost: impl Fn(usize, usize) -> i128,
) -> Vec<usize> {
    assert!(rows <= columns, "each row needs a column");
    let (mut row_potential, mut column_potential) = (vec![0; rows + 1], vec![0; columns + 1]);
    // Rows and columns count from 1; 0 is "none". The row each column is given to:
    let mut owner = vec![0; columns + 1];
    for row in 1..=rows {
        owner[0] = row;
        let mut least = vec![i128::MAX; columns + 1];
        let mut from = vec![0; columns + 1];
        let mut visited = vec![false; columns + 1];
        let mut at = 0;
        while owner[at] != 0 {
            visited[at] = true;
            let (mut delta, mut next) = (i128::MAX, 0);
            for column in (1..=columns).filter(|column| !visited[*column]) {
                let reduced = cost(owner[at] - 1, column - 1)
                    - row_potential[owner[at]]
                    - column_potential[column];
                if reduced < least[column] {
                    least[column] = reduced;
                    from[column] = at;
                }
                if least[column] < delta {
                    delta = least[column];
                    next = column;
                }
            }
            for column in 0..=columns {
                if visited[column] {
                    row_potential[owner[column]] += delta;
                    column_potential[column] -= delta;
                } else if least[column] != i128::MAX {
                    least[column] -= delta;
                }
            }
            at = next;
        }
        while at != 0 {
            owner[at] = owner[from[at]];
            at = from[at];
        }
    }
    let mut chosen = vec![0; rows];
    for column in (1..=columns).filter(|column| owner[*column] != 0) {
        chosen[owner[column] - 1] = column - 1;
    }
    chosen
}
