//! Checks the whole state of an exchange: recounts from the orders and leases every figure that the
//! exchange keeps up to date as it runs, and panics if one differs.
//!
//! The exchange checks its balance equation after every command; the audit walks the whole state.
//! You should run it in tests, on a replica after a restore, and in cases of doubt.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::accounts::Pool;
use crate::books::{Order, OrderKind};
use crate::dispute::DisputeState;
use crate::ids::{DeviceId, LeaseId, RequestId, Slot};
use crate::lease::{Lease, LeaseState};
use crate::ledger::Totals;
use crate::order::{Side, Term};
use crate::request::Direction;
use crate::units::{Credits, Millis, Units};

use super::{Exchange, SpotKey, Timer};

/// The expected running figures of one account.
#[derive(Default, PartialEq, Eq, Debug)]
struct AccountFigures {
    escrow: u64,
    open_orders: u32,
    free_asks: u32,
    open_leases: u32,
    leases_bought: u32,
    open_requests: u32,
    open_disputes: u32,
    pools: BTreeMap<DeviceId, (u32, u32)>,
}

impl Exchange {
    /// Recounts all running figures.
    ///
    /// # Panics
    /// If a stored figure differs from its recount: the state cannot be trusted.
    pub fn audit(&self) {
        self.audit_accounts();
        self.audit_books();
        self.audit_timers();
        self.leases.audit_indices();
        self.audit_answering();
        assert_eq!(self.spot, self.spot_leases(), "the displaceable leases");
        let priced = self.books.all_orders();
        let priced = priced.filter_map(|order| self.spot_ask_key(&order));
        assert_eq!(self.spot_asks, priced.collect(), "the asks at spot prices");
        assert_eq!(
            self.light,
            self.light_orders(),
            "the orders that hold little"
        );
        let open = |id: &RequestId| self.requests.get(id).is_some_and(|one| one.lock.is_none());
        assert!(self.light_requests.iter().all(open), "light requests wait");
        let open = self.leases.values().filter(|lease| !lease.is_closed());
        let asks = self
            .books
            .all_orders()
            .filter(|order| order.side() == Side::Ask);
        let bids = self
            .books
            .all_orders()
            .filter(|order| order.side() == Side::Bid);
        let (open, asks, bids) = (
            open.count() as u64,
            asks.count() as u64,
            bids.count() as u64,
        );
        let census = self.census();
        assert_eq!(
            (census.leases, census.orders),
            (open, asks + bids),
            "the census"
        );
        let users = open + asks;
        assert_eq!(
            self.books.ask_terms.total_users(),
            users,
            "users of ask terms"
        );
        assert_eq!(
            self.books.bid_terms.total_users(),
            bids,
            "users of bid terms"
        );
    }

    fn audit_accounts(&self) {
        let mut sums = Totals {
            ..self.ledger.totals()
        };
        (sums.available, sums.escrow, sums.stake) = Default::default();
        let mut expected = self.expected_figures();
        for account in self.ledger.accounts() {
            sums.available = sums.available.plus(account.available);
            sums.escrow = sums.escrow.plus(account.escrow);
            sums.stake = sums.stake.plus(account.stake);
            let slot = self.ledger.expect_slot(account.key);
            let pool = |(device, pool): (&DeviceId, &Pool)| {
                assert!(
                    pool.offered.0 + pool.leased.0 <= pool.capacity.0,
                    "sold once"
                );
                (*device, (pool.offered.0, pool.leased.0))
            };
            let kept = AccountFigures {
                escrow: account.escrow.0,
                open_orders: account.open_orders,
                free_asks: account.free_asks,
                open_leases: account.open_leases,
                leases_bought: account.leases_bought,
                open_requests: account.open_requests,
                open_disputes: account.open_disputes,
                pools: account.pools.iter().map(pool).collect(),
            };
            let own = |lease: &&Lease| {
                !lease.is_closed() && [lease.buyer, lease.provider].contains(&account.key)
            };
            let own: Vec<&Lease> = self.leases.values().filter(own).collect();
            assert_eq!(own, self.leases_of(account.key), "the open leases");
            assert_eq!(
                kept,
                expected.remove(&slot).unwrap_or_default(),
                "{}",
                account.key
            );
        }
        assert_eq!(sums, self.ledger.totals(), "the sums over all accounts");
        assert!(expected.is_empty(), "orders and leases belong to accounts");
        self.ledger.assert_balanced();
    }

    fn expected_figures(&self) -> BTreeMap<Slot, AccountFigures> {
        let mut expected: BTreeMap<Slot, AccountFigures> = BTreeMap::new();
        for order in self.books.all_orders() {
            let own = expected.entry(order.slot()).or_default();
            own.open_orders += 1;
            own.escrow += self.hold_of(&order, order.remaining).0 + order.deposit().0;
            if let OrderKind::Ask {
                device,
                resale: LeaseId(0),
                deposit,
                ..
            } = order.detail.kind
            {
                own.free_asks += u32::from(deposit.0 == 0);
                own.pools.entry(device).or_default().0 += order.remaining.0;
            }
        }
        for lease in self.leases.values() {
            expect_lease(lease, &mut expected);
        }
        for request in self.requests.values() {
            let slot = self.ledger.expect_slot(request.account);
            let own = expected.entry(slot).or_default();
            own.open_requests += 1;
            if request.direction == Direction::Withdrawal {
                own.escrow += request.amount.0;
            }
        }
        for dispute in self.disputes.values().filter(|it| it.is_open()) {
            for party in [dispute.buyer, dispute.provider] {
                let slot = self.ledger.expect_slot(party);
                expected.entry(slot).or_default().open_disputes += 1;
            }
            let accuser = self.ledger.expect_slot(dispute.buyer);
            expected.entry(accuser).or_default().escrow += dispute.bond.0;
        }
        expected
    }

    fn audit_books(&self) {
        let open = self.leases.values().filter(|lease| !lease.is_closed());
        let classes = open.map(|lease| lease.class).collect::<Vec<_>>();
        for book in self.books.by_class() {
            let open = classes.iter().filter(|class| **class == book.class);
            assert_eq!(
                open.count(),
                book.open_leases as usize,
                "the open leases of a class"
            );
            let sides = [Side::Ask, Side::Bid].map(|side| self.books.side_orders(book, side));
            let light = sides
                .into_iter()
                .flatten()
                .filter(|order| self.is_light(order));
            assert_eq!(
                light.count(),
                book.light_orders as usize,
                "its light orders"
            );
            for side in [Side::Ask, Side::Bid] {
                let orders = self.books.searched_side(book, side);
                assert!(
                    orders
                        .iter()
                        .copied()
                        .eq(self.books.side_orders(book, side)),
                    "both ways through a side meet the same"
                );
                let place = |order: &Order| match side {
                    Side::Ask => (order.price.0, order.id),
                    Side::Bid => (!order.price.0, order.id),
                };
                assert!(
                    orders.windows(2).all(|two| place(&two[0]) < place(&two[1])),
                    "in order"
                );
                let levels = orders.chunk_by(|one, other| one.price == other.price);
                let counted = levels.map(|level| {
                    let units = level.iter().map(|order| u64::from(order.remaining.0)).sum();
                    (level[0].price, level[0].id, level.len() as u32, units)
                });
                let kept = book.book.side(side).iter().map(|level| {
                    let first = self.books.first_of(level);
                    (level.key.price(side), first, level.count, level.quantity)
                });
                assert!(counted.eq(kept), "levels agree with the tree");
                if side == Side::Ask {
                    let mut by_terms = BTreeMap::new();
                    for order in &orders {
                        *by_terms.entry(order.detail.terms).or_insert(0) += 1;
                    }
                    assert!(book.asks_by_terms().eq(by_terms), "asks by terms");
                }
                let units = orders.iter().map(|order| u64::from(order.remaining.0));
                assert_eq!(
                    units.sum::<u64>(),
                    book.book.side(side).total_units(),
                    "all units"
                );
            }
        }
    }

    fn audit_timers(&self) {
        let mut timers: BTreeSet<(Millis, Timer)> = BTreeSet::new();
        for order in self.books.all_orders() {
            timers.insert((order.detail.expires, Timer::OrderExpires(order.id)));
        }
        timers.retain(|(at, _)| *at != Millis(u64::MAX));
        for lease in self.leases.values() {
            match lease.state {
                LeaseState::Active | LeaseState::Ending { .. } => {
                    timers.insert((lease.end_time(), Timer::LeaseEnds(lease.id)));
                }
                LeaseState::Due { until, .. } => {
                    timers.insert((until, Timer::LeaseCloses(lease.id)));
                }
                LeaseState::Waiting { .. } | LeaseState::Closed { .. } => {}
            }
            if let Some(until) = lease.reserved_until {
                timers.insert((until, Timer::Reserve(lease.id)));
            }
            if let Some(note) = lease.note {
                timers.insert((note.accepted_at, Timer::Note(lease.id)));
            }
        }
        for change in self.changes.values() {
            timers.insert((change.at, Timer::Rules(change.id)));
        }
        for approval in self.approvals.values() {
            timers.insert((approval.until, Timer::Approval(approval.id)));
        }
        for dispute in self.disputes.values() {
            if let DisputeState::Open { until } = dispute.state {
                timers.insert((until, Timer::Dispute(dispute.id)));
            }
        }
        timers.extend(self.upgrade.map(|upgrade| (upgrade.at, Timer::Upgrade)));
        assert_eq!(self.timers, timers, "the timers");
    }

    fn spot_leases(&self) -> BTreeSet<SpotKey> {
        let spot = |lease: &&Lease| {
            let active = lease.state == LeaseState::Active && lease.resale.is_none();
            active && lease.term == Term::Spot
        };
        let key = |lease: &Lease| (lease.parties.book, lease.price, Reverse(lease.id));
        self.leases.values().filter(spot).map(key).collect()
    }
}

fn expect_lease(lease: &Lease, expected: &mut BTreeMap<Slot, AccountFigures>) {
    let parties = lease.parties;
    if lease.is_closed() {
        let resold = lease.resale.map_or(Credits::ZERO, |resale| resale.subsidy);
        assert_eq!(
            (lease.escrow, resold),
            (Credits::ZERO, Credits::ZERO),
            "closed is paid"
        );
        return;
    }
    let buyer = expected.entry(parties.buyer).or_default();
    buyer.escrow += lease.escrow.0;
    buyer.leases_bought += 1;
    if let Some(resale) = lease.resale {
        let seller = expected.entry(resale.seller_slot).or_default();
        seller.escrow += resale.subsidy.0;
        seller.leases_bought += 1;
    }
    let provider = expected.entry(parties.provider).or_default();
    provider.open_leases += 1;
    if lease.is_running() {
        let Units(quantity) = lease.quantity;
        provider.pools.entry(lease.device).or_default().1 += quantity;
    }
}
