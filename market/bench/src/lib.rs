//! The two order flows every book is measured by, and the engines they are driven through.
//!
//! Flow A is deep: 100,000 orders rest, half of the operations add, a third cancels. Flow B is
//! hot: few orders rest and most operations move one. Operations are drawn beforehand; engine calls
//! alone are timed, by whoever calls, for this crate has no clock.
//!
//! It is a crate of its own so that the exchange carries nothing that only measures it:
//! `cargo bench -p souk-market-bench` and `souk bench market` drive it.

#![forbid(unsafe_code)]

mod book;
mod full;
mod hostile;
mod script;
mod search;

pub use book::BookEngine;
pub use full::ExchangeEngine;
pub use hostile::{Hostile, HostileMarket};
pub use script::{Flow, Operation, Script};
pub use search::{Attributes, SearchEngine};

/// What a flow leaves behind; equal for every engine that matches by price and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Units traded.
    pub traded: u64,
    /// Orders in the book at the end.
    pub resting: u64,
}

/// Something that carries out the operations of a script.
pub trait Engine {
    /// Adds an order that does not cross.
    fn add(&mut self, id: u32, buys: bool, price: u64, quantity: u32);
    /// Cancels an order.
    fn cancel(&mut self, id: u32);
    /// Takes units at any price; what the book does not have is dropped.
    fn market(&mut self, buys: bool, quantity: u32);
    /// What it has come to.
    fn tally(&self) -> Tally;

    /// Carries out one operation.
    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Add {
                id,
                buys,
                price,
                quantity,
            } => self.add(id, buys, price, quantity),
            Operation::Cancel { id } => self.cancel(id),
            Operation::Market { buys, quantity } => self.market(buys, quantity),
            Operation::Move {
                from,
                id,
                buys,
                price,
                quantity,
            } => {
                self.cancel(from);
                self.add(id, buys, price, quantity);
            }
        }
    }
}
