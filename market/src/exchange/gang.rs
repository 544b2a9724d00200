//! Gangs: several unlike bids that all match, each on a provider of its own, or none does.
//!
//! With n legs, the n cheapest providers of each leg hold the cheapest way to match them all: a
//! leg that used a dearer one could swap to one of its n cheapest, of which the other n - 1 legs
//! can't hold all. So the search is a small assignment problem, solved exactly.

use std::collections::BTreeMap;

use crate::book::{Order, Terms};
use crate::command::{Accepted, Command};
use crate::event::{Event, OrderEnd};
use crate::ids::OrderId;
use crate::ledger::Slot;
use crate::order::Bid;
use crate::refusal::Refusal;
use crate::units::Credits;

use super::matching::Fill;
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
            return Err(Refusal::GangSize {
                legs: count,
                limit: Command::GANG_MAX as u32,
            });
        }
        let orders = self.gang_orders(scene, legs)?;
        let fills = self.gang_fills(&orders, legs)?;
        let cost = |(fill, bid): (&Fill, &Bid)| fill.escrow(bid.duration);
        let costs = fills.iter().zip(legs).map(cost);
        let needed = costs.fold(Credits::ZERO, Credits::plus);
        self.ledger.need(scene.slot, needed)?;
        self.orders_made += u64::from(count);
        let mut trades = Vec::with_capacity(legs.len());
        for ((order, bid), fill) in orders.iter().zip(legs).zip(&fills) {
            trades.extend(self.carry_out_fills(order, bid, &[*fill], scene.events));
            let (account, reason) = (order.account, OrderEnd::Filled);
            scene.events.push(Event::OrderClosed {
                account,
                order: order.id,
                reason,
            });
        }
        Ok(Accepted::Ganged { trades })
    }

    fn gang_orders(&self, scene: &Scene<'_>, legs: &[Bid]) -> Result<Vec<Order>, Refusal> {
        let order = |(place, bid): (u64, &Bid)| {
            Ok(Order {
                id: OrderId(self.orders_made + 1 + place),
                account: scene.key,
                slot: scene.slot,
                price: self.check_bid(bid)?,
                remaining: bid.quantity,
                terms: Terms::Bid(Box::new(bid.clone())),
            })
        };
        (0..).zip(legs).map(order).collect()
    }

    fn gang_fills(&self, orders: &[Order], legs: &[Bid]) -> Result<Vec<Fill>, Refusal> {
        let mut candidates: Vec<Candidates> = Vec::with_capacity(legs.len());
        for (order, bid) in orders.iter().zip(legs) {
            let found = self.candidates(order, bid, legs.len());
            if found.is_empty() {
                let leg = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
                let seen = self.books.asks(bid.class, crate::Price(u64::MAX)).count();
                let seen = u32::try_from(seen).unwrap_or(u32::MAX);
                return Err(Refusal::GangLegUnmatched { leg, seen });
            }
            candidates.push(found);
        }
        assign(&candidates, legs)
    }

    fn candidates(&self, order: &Order, bid: &Bid, count: usize) -> Candidates {
        let mut found = Candidates::new();
        for ask in self.suitable_asks(order, bid) {
            if found.len() == count {
                break;
            }
            if ask.remaining >= bid.quantity {
                let fill = Fill {
                    ask: ask.id,
                    quantity: bid.quantity,
                    price: ask.price,
                };
                found.entry(ask.slot).or_insert(fill);
            }
        }
        found
    }
}

/// The cheapest choice of one candidate a leg, no provider twice.
fn assign(candidates: &[Candidates], legs: &[Bid]) -> Result<Vec<Fill>, Refusal> {
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
            i128::from(fill.escrow(legs[leg].duration).0)
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
