//! How much of everything there is: for whoever watches a market.

use super::Exchange;

/// What an exchange holds and has seen, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Accounts.
    pub accounts: u64,
    /// Classes that are traded.
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
    /// How much there is of everything; what it takes grows with the pages that orders and leases
    /// lie in, not with each of them.
    pub fn census(&self) -> Census {
        let (known, closed) = (self.leases.len(), self.closed.len() as u64);
        debug_assert!(closed <= known, "closed leases are known");
        Census {
            accounts: self.ledger.accounts().len() as u64,
            classes: self.books.classes(),
            orders: self.books.orders(),
            orders_made: self.orders_made,
            leases: known.saturating_sub(closed),
            trades_made: self.trades_made,
        }
    }
}
