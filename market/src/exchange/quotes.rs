//! Reads the market data of a class from the exchange: prices and quantities in the book, last
//! trades and candles. It reads the same state that matches orders, so it can never lag behind the
//! books.

use serde::{Deserialize, Serialize};

use crate::book::Level;
use crate::books::ClassBook;
use crate::class::Class;
use crate::order::Side;
use crate::rules::ClassRules;
use crate::tape::{Candle, PriceIndex, Print};
use crate::units::Price;

use super::Exchange;

/// All orders of one side at one price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepthLevel {
    /// The price per device-second.
    pub price: Price,
    /// The number of orders.
    pub orders: u32,
    /// The units of these orders together.
    pub quantity: u64,
}

/// The market data of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotes {
    /// The class with this market data.
    pub class: Class,
    /// The rules of the class.
    pub rules: ClassRules,
    /// Asks by rising price; the first is the best.
    pub asks: Vec<DepthLevel>,
    /// Bids by falling price; the first is the best.
    pub bids: Vec<DepthLevel>,
    /// The last trades, the newest first.
    pub last: Vec<Print>,
    /// A candle for each of the last minutes with trades, the oldest first.
    pub candles: Vec<Candle>,
    /// The cost of measured work over the last trades.
    pub index: PriceIndex,
}

/// A summary of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSummary {
    /// The class that is summarised.
    pub class: Class,
    /// The asks at the best price, if there are any.
    pub ask: Option<DepthLevel>,
    /// The bids at the best price, if there are any.
    pub bid: Option<DepthLevel>,
    /// The last trade.
    pub last: Option<Print>,
    /// Units traded in the stored minutes, at most a day.
    pub volume: u64,
    /// The cost of measured work over the last trades.
    pub index: PriceIndex,
}

impl Exchange {
    /// Iterates over a summary of each class that the exchange knows.
    pub fn class_summaries(&self) -> impl Iterator<Item = ClassSummary> {
        self.books.by_class().map(|book| ClassSummary {
            class: book.class,
            ask: depth_levels(book, Side::Ask, 1).pop(),
            bid: depth_levels(book, Side::Bid, 1).pop(),
            last: book.tape.prints().next_back().copied(),
            volume: book.tape.candles().map(|candle| candle.volume).sum(),
            index: book.tape.index(),
        })
    }

    /// Iterates over all classes that the exchange knows.
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.books.by_class().map(|book| book.class)
    }

    /// Returns the market data of one class, with at most `depth` price levels a side.
    pub fn class_quotes(&self, class: Class, depth: usize) -> Option<Quotes> {
        let book = self.books.book(self.books.find_book(class)?);
        let side = |side| depth_levels(book, side, depth);
        Some(Quotes {
            class,
            rules: book.rules,
            asks: side(Side::Ask),
            bids: side(Side::Bid),
            last: book.tape.prints().rev().copied().collect(),
            candles: book.tape.candles().copied().collect(),
            index: book.tape.index(),
        })
    }
}

fn depth_levels(book: &ClassBook, side: Side, depth: usize) -> Vec<DepthLevel> {
    let level = |level: &Level| DepthLevel {
        price: level.key.price(side),
        orders: level.count,
        quantity: level.quantity,
    };
    let levels: Vec<DepthLevel> = book.book.side(side).iter().take(depth).map(level).collect();
    debug_assert!(
        levels.iter().all(|level| level.orders > 0),
        "a level has orders"
    );
    levels
}
