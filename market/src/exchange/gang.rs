//! Matches a gang: several bids (*legs*) of one buyer of which all match, each with a different
//! provider, or none does.
//!
//! With n legs, the n cheapest providers of each leg are enough for the cheapest match: a leg that
//! used a more expensive provider could swap to one of its n cheapest, because the other n - 1 legs
//! cannot use all of them. So the search is a small assignment problem, which the exchange solves
//! exactly.
//!
//! If free asks are not enough, legs that can wait displace spot leases of exactly their size: as
//! few as possible, then as cheaply as possible.

use std::ops::ControlFlow;

use crate::book::VisitBudget;
use crate::books::Order;
use crate::command::{Acceptance, Command};
use crate::event::{Event, OrderEnd};
use crate::ids::{BookId, Slot};
use crate::order::{Bid, Side};
use crate::refusal::Refusal;
use crate::units::{Count, Credits, Price};

use super::bid::LiveBid;
use super::displace::Displacement;
use super::matching::Fill;
use super::steps::{SPOT_STEPS, StepCount, assignment_steps};
use super::{Context, Exchange};

/// The cost of an assignment and, to choose among equal costs, its candidates: a number in base
/// [`CANDIDATES_MAX`] with a digit for each leg, of which the first leg's weighs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost(i128, i128);

#[allow(
    clippy::arithmetic_side_effects,
    reason = "sums of a few costs below 2^80, and places in short lists"
)]
impl Cost {
    const ZERO: Self = Self(0, 0);
    const MAX: Self = Self(i128::MAX, 0);
    /// More than any sum of leg costs, so that an assignment never prefers a forbidden pair.
    const FORBIDDEN: Self = Self(1 << 80, 0);
    /// More than the credits of all legs, so that an assignment displaces as few leases as
    /// possible.
    const DISPLACES: Self = Self(1 << 70, 0);

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0 - other.0, self.1 - other.1)
    }
}

/// The most candidates of a leg: asks, and the same number of leases that it can displace.
const CANDIDATES_MAX: i128 = 2 * Command::GANG_MAX as i128;

/// A match for a leg: a part of an ask, or the device of a spot lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitSource {
    Fill(Fill),
    Displace(Displacement),
}

impl UnitSource {
    fn escrow(&self, bid: &LiveBid) -> Credits {
        match self {
            Self::Fill(fill) => fill.escrow(bid.terms.duration),
            Self::Displace(displaced) => displaced.escrow,
        }
    }

    fn cost(&self, bid: &LiveBid) -> Cost {
        let price = Cost(i128::from(self.escrow(bid).0), 0);
        match self {
            Self::Fill(_) => price,
            Self::Displace(_) => price.plus(Cost::DISPLACES),
        }
    }
}

/// The candidates of one leg, on each of its cheapest providers: asks first, the cheapest first.
type Candidates = Vec<(Slot, UnitSource)>;

impl Exchange {
    pub(super) fn on_gang(
        &mut self,
        context: &mut Context<'_>,
        legs: &[Bid],
    ) -> Result<Acceptance, Refusal> {
        let count = u32::try_from(legs.len()).unwrap_or(u32::MAX);
        if legs.is_empty() || legs.len() > Command::GANG_MAX {
            let limit = Command::GANG_MAX as u32;
            return Err(Refusal::GangSize { legs: count, limit });
        }
        let places = self.gang_places(legs)?;
        let live = self.gang_bids(context, legs, &places);
        assert_eq!(live.len(), legs.len(), "a bid for each leg");
        let takes = self.gang_takes(&live, context.steps).and_then(|takes| {
            let costs = takes.iter().zip(&live).map(|(take, bid)| take.escrow(bid));
            let needed = costs.fold(Credits::ZERO, Credits::plus);
            self.ledger.check_available(context.slot, needed)?;
            Ok(takes)
        });
        let done = takes.map(|takes| {
            legs.iter().for_each(|_| self.orders_made.count_up());
            self.trade_gang(context, &live, &takes)
        });
        live.iter()
            .for_each(|bid| self.books.release_terms(&bid.order));
        done
    }

    /// Returns each leg's book and highest price.
    fn gang_places(&mut self, legs: &[Bid]) -> Result<Vec<(BookId, Price)>, Refusal> {
        let place = |bid: &Bid| {
            let rules = self.class_rules(bid.class);
            let price = self.check_bid(bid, &rules)?;
            Ok((self.known_book(bid.class)?, price))
        };
        legs.iter().map(place).collect()
    }

    fn gang_bids(
        &mut self,
        context: &Context<'_>,
        legs: &[Bid],
        places: &[(BookId, Price)],
    ) -> Vec<LiveBid> {
        assert_eq!(legs.len(), places.len(), "a book for each leg");
        let first = self.next_order().0;
        let bid = |(id, (bid, (book, price))): (u64, (&Bid, &(BookId, Price)))| {
            let order = self.new_bid(id, context.slot, *book, *price, bid);
            self.live_bid(order, bid.job)
        };
        (first..).zip(legs.iter().zip(places)).map(bid).collect()
    }

    fn trade_gang(
        &mut self,
        context: &mut Context<'_>,
        legs: &[LiveBid],
        takes: &[UnitSource],
    ) -> Acceptance {
        assert_eq!(legs.len(), takes.len(), "each leg has its own");
        let mut trades = Vec::with_capacity(legs.len());
        for (bid, take) in legs.iter().zip(takes) {
            debug_assert!(take.escrow(bid) <= self.hold_of(&bid.order, bid.order.remaining));
            match take {
                UnitSource::Fill(fill) => {
                    self.carry_out_fills(bid, &[*fill], &mut trades, context.events);
                }
                UnitSource::Displace(one) => {
                    self.displace_leases(bid, &[*one], &mut trades, context.events)
                }
            }
            let (account, reason) = (context.key, OrderEnd::Filled);
            context.events.push(Event::OrderClosed {
                account,
                order: bid.order.id,
                reason,
            });
        }
        assert_eq!(trades.len(), legs.len(), "one trade a leg");
        context.steps.spend_trades(trades.len());
        Acceptance::Ganged { trades }
    }

    fn gang_takes(
        &self,
        legs: &[LiveBid],
        steps: &mut StepCount,
    ) -> Result<Vec<UnitSource>, Refusal> {
        let asks = |bid: &LiveBid| self.asks_for(bid, legs.len(), steps);
        let mut candidates: Vec<Candidates> = legs.iter().map(asks).collect();
        if let Ok(takes) = assign_legs(&candidates, legs, steps) {
            return Ok(takes);
        }
        for (found, bid) in candidates.iter_mut().zip(legs) {
            steps.spend_steps(SPOT_STEPS);
            self.add_displaceable(found, bid, legs.len());
        }
        if let Some(leg) = candidates.iter().position(Vec::is_empty) {
            let seen = self.asks_in(legs[leg].order.detail.book);
            let leg = u32::try_from(leg).unwrap_or(u32::MAX);
            return Err(Refusal::GangLegUnmatched { leg, seen });
        }
        assign_legs(&candidates, legs, steps)
    }

    /// Adds the leases that a leg may displace, unless it has an ask for every leg of the gang:
    /// then one of them stays free in any case.
    fn add_displaceable(&self, found: &mut Candidates, bid: &LiveBid, count: usize) {
        if found.len() >= count {
            return;
        }
        let most = found.len().saturating_add(count);
        for lease in self.displaceable_leases(bid) {
            let provider = lease.parties.provider;
            let taken = found.iter().any(|(known, _)| *known == provider);
            if lease.quantity == bid.order.remaining && !taken {
                found.push((
                    provider,
                    UnitSource::Displace(self.new_displacement(lease, bid)),
                ));
            }
            if found.len() == most {
                break;
            }
        }
        debug_assert!(
            found.len() as i128 <= CANDIDATES_MAX,
            "a digit tells them apart"
        );
    }

    fn asks_in(&self, book: BookId) -> u32 {
        let levels = self.books.book(book).book.side(Side::Ask).iter();
        levels.map(|level| level.count).sum()
    }

    /// Returns the cheapest suitable ask of each of the cheapest providers.
    fn asks_for(&self, bid: &LiveBid, count: usize, steps: &mut StepCount) -> Candidates {
        let mut visits = VisitBudget::new();
        let order: &Order = &bid.order;
        let mut found = Candidates::new();
        let take = |ask: Order, price: Price| {
            let (provider, resale) = ask.provider();
            let fits = match resale {
                Some(_) => ask.remaining == order.remaining,
                None => ask.remaining >= order.remaining,
            };
            let taken = found.iter().any(|(known, _)| *known == provider);
            if fits && !taken && self.find_lack(&ask, bid.as_view()).is_none() {
                let (ask, quantity) = (ask.id, order.remaining);
                let fill = Fill {
                    ask,
                    quantity,
                    price,
                };
                found.push((provider, UnitSource::Fill(fill)));
            }
            match found.len() < count {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        self.search_asks(bid.as_view(), &mut visits, take);
        steps.spend_visits(visits);
        debug_assert!(found.len() <= count, "one for each leg is enough");
        found
    }
}

/// Returns the cheapest choice of one candidate for each leg with no provider twice. Among equal
/// choices it prefers the better candidates of the earlier legs.
#[allow(
    clippy::arithmetic_side_effects,
    reason = "sums of a few costs below 2^80, and places in short lists"
)]
fn assign_legs(
    candidates: &[Candidates],
    legs: &[LiveBid],
    steps: &mut StepCount,
) -> Result<Vec<UnitSource>, Refusal> {
    let slots = |found: &Candidates| found.iter().map(|(slot, _)| *slot).collect::<Vec<_>>();
    let mut providers: Vec<Slot> = candidates.iter().flat_map(slots).collect();
    providers.sort_unstable();
    providers.dedup();
    debug_assert_eq!(candidates.len(), legs.len(), "each leg has candidates");
    // The algorithm needs at least as many columns as rows: the missing ones are forbidden.
    let columns = providers.len().max(legs.len());
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    steps.spend_steps(assignment_steps(count(legs.len()), count(columns)));
    let mut ranks = vec![vec![None; columns]; legs.len()];
    let mut costs = vec![vec![Cost::FORBIDDEN; columns]; legs.len()];
    for (leg, found) in candidates.iter().enumerate() {
        let weight = CANDIDATES_MAX.pow((Command::GANG_MAX - 1 - leg) as u32);
        for (rank, (slot, take)) in found.iter().enumerate() {
            let column = providers.binary_search(slot);
            let column = column.expect("each candidate's provider is listed");
            ranks[leg][column] = Some(rank);
            costs[leg][column] = take.cost(&legs[leg]).plus(Cost(0, rank as i128 * weight));
        }
    }
    let chosen = cheapest_assignment(legs.len(), columns, |leg, column| costs[leg][column]);
    let take = |(leg, column): (usize, &usize)| Some(candidates[leg][ranks[leg][*column]?].1);
    let takes: Vec<UnitSource> = chosen.iter().enumerate().filter_map(take).collect();
    if takes.len() < legs.len() {
        let (legs, matched) = (count(legs.len()), count(takes.len()));
        return Err(Refusal::GangUnmatched { legs, matched });
    }
    Ok(takes)
}

/// Returns the column of each row in a cheapest assignment, by successive shortest paths with
/// potentials (Jonker and Volgenant). `rows` must not exceed `columns`.
#[allow(
    clippy::arithmetic_side_effects,
    reason = "sums of a few costs below 2^80, and places in short lists"
)]
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
    debug_assert!(
        (1..chosen.len()).all(|at| !chosen[..at].contains(&chosen[at])),
        "no column has two rows"
    );
    chosen
}

/// The state of the algorithm. Rows and columns count from 1; 0 means "none".
struct Assignment {
    row_potential: Vec<Cost>,
    column_potential: Vec<Cost>,
    /// The row that owns each column.
    owner: Vec<usize>,
}

#[allow(
    clippy::arithmetic_side_effects,
    reason = "sums of a few costs below 2^80, and places in short lists"
)]
impl Assignment {
    /// Assigns a column to `row`, moving other rows along a shortest path.
    fn add(&mut self, row: usize, cost: &impl Fn(usize, usize) -> Cost) {
        let columns = self.owner.len();
        debug_assert!(!self.owner[1..].contains(&row), "a row is added once");
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
            assert!(
                delta != Cost::MAX,
                "with as many columns as rows there is a way"
            );
            self.shift_potentials(delta, &visited, &mut least);
            at = next;
        }
        while at != 0 {
            self.owner[at] = self.owner[from[at]];
            at = from[at];
        }
    }

    fn shift_potentials(&mut self, delta: Cost, visited: &[bool], least: &mut [Cost]) {
        for (column, visited) in visited.iter().enumerate() {
            if *visited {
                debug_assert!(
                    self.owner[column] > 0,
                    "only columns with a row are visited"
                );
                let row = &mut self.row_potential[self.owner[column]];
                *row = row.plus(delta);
                self.column_potential[column] = self.column_potential[column].minus(delta);
            } else if least[column] != Cost::MAX {
                least[column] = least[column].minus(delta);
            }
        }
    }
}
