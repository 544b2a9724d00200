//! Counts what an exchange holds (accounts, classes, orders, leases), so that a validator can
//! report it to monitors without a visit to each order and lease.

use super::Exchange;

/// The numbers of objects that an exchange holds and has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Accounts that the exchange knows.
    pub accounts: u64,
    /// Classes that the exchange knows.
    pub classes: u64,
    /// Orders that rest.
    pub orders: u64,
    /// Orders ever placed.
    pub orders_made: u64,
    /// Leases that are not closed.
    pub leases: u64,
    /// Trades ever made.
    pub trades_made: u64,
}

impl Exchange {
    /// Counts the exchange's objects. The cost grows with the pages of orders and leases, not with
    /// each order or lease.
    pub fn census(&self) -> Census {
        let closed = self.closed.len().saturating_add(self.answering.len()) as u64;
        let known = self.leases.len();
        debug_assert!(closed <= known, "closed leases are known");
        Census {
            accounts: self.ledger.accounts().len() as u64,
            classes: self.books.class_count(),
            orders: self.books.order_count(),
            orders_made: self.orders_made,
            leases: known.saturating_sub(closed),
            trades_made: self.trades_made,
        }
    }
}
