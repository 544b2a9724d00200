//! Records the recent trades of one class of devices: the last trades one by one (prints), candles
//! (prices per minute), and the price of a unit of measured work. Quotes read it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::class::{DTYPES, Dtype, Resources, Throughput};
use crate::units::{Millis, Price, Units, widening_product};

/// Trades that a tape stores one by one.
const PRINTS_KEPT: usize = 64;

/// Candles that a tape stores: one day.
const CANDLES_KEPT: usize = 1_440;

/// The length of a candle.
const CANDLE: Millis = Millis(60_000);

/// Nano-credits in a micro-credit.
const NANO: u128 = 1_000;

/// One trade as the tape shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Print {
    /// The log time of the trade.
    pub at: Millis,
    /// The price per device-second.
    pub price: Price,
    /// The units traded.
    pub quantity: Units,
    /// The throughput of one unit, in mega-operations per second.
    pub throughput: Throughput,
    /// Memory bandwidth of one unit, in bytes per second.
    pub memory_bandwidth: u64,
    /// Memory of one unit, in bytes.
    pub memory_bytes: u64,
}

/// A minute of trades; a minute without trades has no candle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candle {
    /// The log time at which the minute began.
    pub start: Millis,
    /// The first price.
    pub open: Price,
    /// The highest price.
    pub high: Price,
    /// The lowest price.
    pub low: Price,
    /// The last price.
    pub close: Price,
    /// Units traded.
    pub volume: u64,
}

/// The cost of measured work over the last prints, in nano-credits (a thousandth of a
/// micro-credit), rounded down; `None` if no traded device does such work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceIndex {
    /// Per tera-operation (a TFLOP/s for a second), by element type.
    pub per_tera_operation: [Option<u64>; DTYPES],
    /// Per GB/s of memory bandwidth for a second (a GB is 10^9 bytes).
    pub per_gigabyte_moved: Option<u64>,
    /// Per GB of memory for an hour.
    pub per_gigabyte_hour: Option<u64>,
}

/// The tape of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tape {
    prints: VecDeque<Print>,
    candles: VecDeque<Candle>,
}

impl Tape {
    pub(crate) fn record_print(
        &mut self,
        at: Millis,
        price: Price,
        quantity: Units,
        of: &Resources,
    ) {
        if self.prints.len() == PRINTS_KEPT {
            self.prints.pop_front();
        }
        self.prints.push_back(Print {
            at,
            price,
            quantity,
            throughput: of.throughput,
            memory_bandwidth: of.memory_bandwidth,
            memory_bytes: of.memory_bytes,
        });
        debug_assert!(
            self.prints.len() <= PRINTS_KEPT,
            "the oldest print gives way"
        );
        self.update_candle(at, price, quantity);
        debug_assert!(
            self.candles.len() <= CANDLES_KEPT,
            "the oldest candle gives way"
        );
    }

    /// Adds a trade to the candle of its minute. Trades must arrive in the order of log time.
    fn update_candle(&mut self, at: Millis, price: Price, quantity: Units) {
        let start = at.floor_to(CANDLE);
        let volume = u64::from(quantity.0);
        debug_assert!(
            self.candles.back().is_none_or(|last| last.start <= start),
            "in order"
        );
        match self
            .candles
            .back_mut()
            .filter(|candle| candle.start == start)
        {
            Some(candle) => {
                candle.high = candle.high.max(price);
                candle.low = candle.low.min(price);
                candle.close = price;
                debug_assert!(candle.low <= candle.open && candle.open <= candle.high);
                candle.volume = candle.volume.saturating_add(volume);
            }
            None => {
                if self.candles.len() == CANDLES_KEPT {
                    self.candles.pop_front();
                }
                let (open, high, low, close) = (price, price, price, price);
                self.candles.push_back(Candle {
                    start,
                    open,
                    high,
                    low,
                    close,
                    volume,
                });
            }
        }
    }

    pub(crate) fn prints(&self) -> impl DoubleEndedIterator<Item = &Print> {
        self.prints.iter()
    }

    pub(crate) fn candles(&self) -> impl Iterator<Item = &Candle> {
        self.candles.iter()
    }

    /// Returns the index, weighted by volume over the stored prints.
    pub(crate) fn index(&self) -> PriceIndex {
        let per = |measure: &dyn Fn(&Print) -> u64, scale: u128| {
            let weigh =
                |figure: u64, print: &Print| widening_product(figure, print.quantity.0.into());
            let useful = || self.prints.iter().filter(|print| measure(print) > 0);
            let paid: u128 = useful().map(|print| weigh(print.price.0, print)).sum();
            let measured: u128 = useful().map(|print| weigh(measure(print), print)).sum();
            // The sum of 64 prints of up to 96 bits, times a scale below 2^52, can exceed 128 bits.
            let value = paid.checked_mul(scale)?.checked_div(measured)?;
            u64::try_from(value).ok()
        };
        PriceIndex {
            per_tera_operation: Dtype::ALL
                .map(|dtype| per(&|print| print.throughput.for_dtype(dtype), NANO * 1_000_000)),
            per_gigabyte_moved: per(&|print| print.memory_bandwidth, NANO * 1_000_000_000),
            per_gigabyte_hour: per(&|print| print.memory_bytes, NANO * 3_600 * 1_000_000_000),
        }
    }
}
