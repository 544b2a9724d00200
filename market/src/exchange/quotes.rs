//! Market data, read out of the same state that matches.

use serde::{Deserialize, Serialize};

use crate::book::Level;
use crate::books::ClassBook;
use crate::class::Class;
use crate::order::Side;
use crate::rules::ClassRules;
use crate::tape::{Candle, PriceIndex, Print};
use crate::units::{Millis, Price};

use super::Exchange;

/// All orders of one side at one price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepthLevel {
    /// The price per device-second.
    pub price: Price,
    /// How many orders.
    pub orders: u32,
    /// How many units they have together.
    pub quantity: u64,
}

/// What a class looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotes {
    /// Which class.
    pub class: Class,
    /// How it is traded.
    pub rules: ClassRules,
    /// Asks by rising price; the first is the top of the book.
    pub asks: Vec<DepthLevel>,
    /// Bids by falling price; the first is the top of the book.
    pub bids: Vec<DepthLevel>,
    /// The last trades, the newest first.
    pub last: Vec<Print>,
    /// A candle for each of the last minutes with trades, the oldest first.
    pub candles: Vec<Candle>,
    /// What measured work cost over the last trades.
    pub index: PriceIndex,
    /// When the next auction is, if one is due.
    pub auction_at: Option<Millis>,
}

/// What a class looks like at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSummary {
    /// Which class.
    pub class: Class,
    /// The best asks, if there are any.
    pub ask: Option<DepthLevel>,
    /// The best bids, if there are any.
    pub bid: Option<DepthLevel>,
    /// The last trade.
    pub last: Option<Print>,
    /// Units traded in the minutes that are remembered: a day at most.
    pub volume: u64,
    /// What measured work cost over the last trades.
    pub index: PriceIndex,
    /// When the next auction is, if one is due.
    pub auction_at: Option<Millis>,
}

impl Exchange {
    /// Every class that was ever traded in or quoted, at a glance.
    pub fn class_summaries(&self) -> impl Iterator<Item = ClassSummary> {
        self.books.by_class().map(|book| ClassSummary {
            class: book.class,
            ask: levels(book, Side::Ask, 1).pop(),
            bid: levels(book, Side::Bid, 1).pop(),
            last: book.tape.prints().next_back().copied(),
            volume: book.tape.candles().map(|candle| candle.volume).sum(),
            index: book.tape.index(),
            auction_at: book.auction_at,
        })
    }

    /// Every class that was ever traded in or quoted.
    pub fn classes(&self) -> impl Iterator<Item = Class> {
        self.books.by_class().map(|book| book.class)
    }

    /// One class, with at most `depth` price levels a side.
    pub fn quotes(&self, class: Class, depth: usize) -> Option<Quotes> {
        let book = self.books.book(self.books.find(class)?);
        let side = |side| levels(book, side, depth);
        Some(Quotes {
            class,
            rules: book.rules,
            asks: side(Side::Ask),
            bids: side(Side::Bid),
            last: book.tape.prints().rev().copied().collect(),
            candles: book.tape.candles().copied().collect(),
            index: book.tape.index(),
            auction_at: book.auction_at,
        })
    }
}

fn levels(book: &ClassBook, side: Side, depth: usize) -> Vec<DepthLevel> {
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
