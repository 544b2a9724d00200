//! Two order flows (sequences of random orders) that measure the speed of order books, and the
//! engines that run them: the bare book and the full exchange.
//!
//! Flow A is deep: 100,000 orders rest, half of the operations add, a third cancels. Flow B is hot:
//! few orders rest and most operations move one. A script draws the operations of a flow in
//! advance. The caller must time the engine calls, and only these, because this crate has no clock.
//!
//! It is a separate crate so that the exchange has no code that only measures it: `cargo bench -p
//! souk-market-bench` and `souk bench market` use it.

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

/// The result of a flow. It must be equal for every engine that matches by price and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Units traded.
    pub traded: u64,
    /// Orders in the book at the end.
    pub resting: u64,
}

/// An engine that carries out the operations of a script.
pub trait Engine {
    /// Adds an order that does not cross.
    fn add(&mut self, id: u32, buys: bool, price: u64, quantity: u32);
    /// Cancels an order.
    fn cancel_order(&mut self, id: u32);
    /// Takes units at any price; drops the units that the book does not have.
    fn execute_market_order(&mut self, buys: bool, quantity: u32);
    /// Returns the result so far.
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
            Operation::Cancel { id } => self.cancel_order(id),
            Operation::Market { buys, quantity } => self.execute_market_order(buys, quantity),
            Operation::Move {
                from,
                id,
                buys,
                price,
                quantity,
            } => {
                self.cancel_order(from);
                self.add(id, buys, price, quantity);
            }
        }
    }
}
