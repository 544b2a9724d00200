//! The arguments of `souk order …` and `souk lease …`.

use clap::Subcommand;

use super::account::credits;

/// Commands on the orders of --dir's account.
#[derive(Debug, Subcommand)]
pub enum Order {
    /// List its orders that rest in the books, the oldest first.
    List,
    /// Take one out of its book; what was held for it returns.
    Cancel {
        /// Its id.
        order: u64,
    },
    /// Change one. With fewer units at the same price it keeps its place in line.
    Amend {
        /// Its id.
        order: u64,
        /// Its new price, in credits per device-second; else as it is.
        #[arg(long, value_parser = credits)]
        price: Option<u64>,
        /// Its new number of units; else as it is.
        #[arg(long)]
        units: Option<u32>,
    },
}

/// Commands on the leases of --dir's account.
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// List its leases that are not closed, bought and sold.
    List,
    /// Show any lease: parties, price, times, what is held and was paid.
    Show {
        /// Its number.
        lease: u64,
    },
    /// End a lease that it bought. What was used is paid, the rest returns.
    End {
        /// Its number.
        lease: u64,
    },
    /// Make a lease that it bought longer, within what its ask allows, at the same price.
    Extend {
        /// Its number.
        lease: u64,
        /// By how many seconds.
        seconds: u64,
    },
    /// Offer the rest of a lease that it bought, whole, to whoever bids.
    Resell {
        /// Its number.
        lease: u64,
        /// The least price, in credits per device-second.
        #[arg(value_parser = credits)]
        price: u64,
    },
    /// Give up a lease that it sold: it closes unpaid but for what was accepted, at a cost in
    /// reputation.
    GiveUp {
        /// Its number.
        lease: u64,
    },
    /// Take back a spot lease that it sold, after its notice.
    Reclaim {
        /// Its number.
        lease: u64,
    },
}
