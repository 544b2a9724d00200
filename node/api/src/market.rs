//! Defines the public JSON of market data: classes, order books, trades, candles (prices per
//! period), prices of measured work, and the sum of all credits.

use serde::Serialize;
use souk_market::{
    Candle, Class, ClassSummary, DepthLevel, Dtype, PriceIndex, Print, Quotes, Throughput, Totals,
};

use crate::class_name;
use crate::time::format_moment;

/// Default number of levels on each side of a book.
pub const LEVELS: usize = 32;

/// All orders of one side of a book at one price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LevelView {
    /// Micro-credits per device-second.
    pub price: u64,
    /// How many orders there are.
    pub orders: u32,
    /// How many units they have together.
    pub units: u64,
}

/// A trade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TradeView {
    /// When it happened, RFC 3339.
    pub at: String,
    /// Micro-credits per device-second.
    pub price: u64,
    /// How many units were traded.
    pub units: u64,
}

/// Prices of measured work over the last 64 trades, in nano-credits; null if no traded device does
/// such work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct IndexView {
    /// A tera-operation, by element type.
    pub per_tera_operation: ByDtype<Option<u64>>,
    /// A gigabyte that is moved.
    pub per_gigabyte_moved: Option<u64>,
    /// A gigabyte that is held for an hour.
    pub per_gigabyte_hour: Option<u64>,
}

/// A figure for each element type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ByDtype<T> {
    /// 64-bit float.
    pub f64: T,
    /// 32-bit float.
    pub f32: T,
    /// IEEE 16-bit float.
    pub f16: T,
    /// bfloat16.
    pub bf16: T,
    /// 8-bit integer.
    pub int8: T,
    /// 4-bit integer.
    pub int4: T,
}

/// A class at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClassView {
    /// Its name, such as `gpu-m5-t7-b6-emulated`.
    pub class: String,
    /// The ranges of its bands of memory, throughput and bandwidth.
    pub bands: String,
    /// Whether its devices are emulated.
    pub emulated: bool,
    /// The asks at the best price; null if there are none.
    pub ask: Option<LevelView>,
    /// The bids at the best price; null if there are none.
    pub bid: Option<LevelView>,
    /// The last trade; null if there was none.
    pub last: Option<TradeView>,
    /// How many units were traded within a day.
    pub volume: u64,
    /// The prices of measured work.
    pub index: IndexView,
}

/// The prices of measured work in a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkPricesView {
    /// The name of the class.
    pub class: String,
    /// The prices of measured work.
    pub index: IndexView,
}

/// The book of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DepthView {
    /// The name of the class.
    pub class: String,
    /// The ranges of its bands of memory, throughput and bandwidth.
    pub bands: String,
    /// Whether its devices are emulated.
    pub emulated: bool,
    /// By rising price.
    pub asks: Vec<LevelView>,
    /// By falling price.
    pub bids: Vec<LevelView>,
}

/// The last trades of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TradesView {
    /// The name of the class.
    pub class: String,
    /// The newest first.
    pub trades: Vec<TradeView>,
}

/// The prices of a class over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CandlesView {
    /// The name of the class.
    pub class: String,
    /// Seconds in a candle.
    pub step: u64,
    /// The oldest first; times without a trade have none.
    pub candles: Vec<CandleView>,
}

/// The prices of a class in one span of time, in micro-credits per device-second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CandleView {
    /// When it begins, RFC 3339.
    pub start: String,
    /// The price of the first trade.
    pub open: u64,
    /// The highest price.
    pub high: u64,
    /// The lowest price.
    pub low: u64,
    /// The price of the last trade.
    pub close: u64,
    /// How many units were traded.
    pub units: u64,
}

/// All credits, in micro-credits; available + escrow + stake + fees = deposits - withdrawals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TotalsView {
    /// What ever came in.
    pub deposits: u64,
    /// What ever went out.
    pub withdrawals: u64,
    /// What the accounts can spend.
    pub available: u64,
    /// What orders, leases and withdrawals hold.
    pub escrow: u64,
    /// What providers have at stake.
    pub stake: u64,
    /// What the market has earned and nobody has collected.
    pub fees: u64,
    /// Whether the sums agree.
    pub balanced: bool,
}

impl From<&DepthLevel> for LevelView {
    fn from(level: &DepthLevel) -> LevelView {
        LevelView {
            price: level.price.0,
            orders: level.orders,
            units: level.quantity,
        }
    }
}

impl From<&Print> for TradeView {
    fn from(print: &Print) -> TradeView {
        TradeView {
            at: format_moment(print.at),
            price: print.price.0,
            units: u64::from(print.quantity.0),
        }
    }
}

impl From<&Candle> for CandleView {
    fn from(candle: &Candle) -> CandleView {
        CandleView {
            start: format_moment(candle.start),
            open: candle.open.0,
            high: candle.high.0,
            low: candle.low.0,
            close: candle.close.0,
            units: candle.volume,
        }
    }
}

impl<T> ByDtype<T> {
    fn from_fn(figure: impl Fn(Dtype) -> T) -> ByDtype<T> {
        ByDtype {
            f64: figure(Dtype::F64),
            f32: figure(Dtype::F32),
            f16: figure(Dtype::F16),
            bf16: figure(Dtype::Bf16),
            int8: figure(Dtype::Int8),
            int4: figure(Dtype::Int4),
        }
    }
}

impl From<&PriceIndex> for IndexView {
    fn from(index: &PriceIndex) -> IndexView {
        IndexView {
            per_tera_operation: ByDtype::from_fn(|dtype| index.per_tera_operation[dtype as usize]),
            per_gigabyte_moved: index.per_gigabyte_moved,
            per_gigabyte_hour: index.per_gigabyte_hour,
        }
    }
}

impl From<&Throughput> for ByDtype<u64> {
    fn from(throughput: &Throughput) -> ByDtype<u64> {
        ByDtype::from_fn(|dtype| throughput.for_dtype(dtype))
    }
}

impl From<&ClassSummary> for ClassView {
    fn from(summary: &ClassSummary) -> ClassView {
        ClassView {
            class: class_name::format_class(&summary.class),
            bands: class_name::in_words(&summary.class),
            emulated: summary.class.emulated,
            ask: summary.ask.as_ref().map(LevelView::from),
            bid: summary.bid.as_ref().map(LevelView::from),
            last: summary.last.as_ref().map(TradeView::from),
            volume: summary.volume,
            index: IndexView::from(&summary.index),
        }
    }
}

impl From<&ClassSummary> for WorkPricesView {
    fn from(summary: &ClassSummary) -> WorkPricesView {
        WorkPricesView {
            class: class_name::format_class(&summary.class),
            index: IndexView::from(&summary.index),
        }
    }
}

impl DepthView {
    /// Describes the first `levels` levels of a book.
    #[must_use]
    pub fn new(quotes: &Quotes, levels: usize) -> DepthView {
        let side = |all: &[DepthLevel]| all.iter().take(levels).map(LevelView::from).collect();
        DepthView {
            class: class_name::format_class(&quotes.class),
            bands: class_name::in_words(&quotes.class),
            emulated: quotes.class.emulated,
            asks: side(&quotes.asks),
            bids: side(&quotes.bids),
        }
    }
}

impl From<&Quotes> for TradesView {
    fn from(quotes: &Quotes) -> TradesView {
        TradesView {
            class: class_name::format_class(&quotes.class),
            trades: quotes.last.iter().map(TradeView::from).collect(),
        }
    }
}

impl CandlesView {
    /// Describes candles of `step` seconds.
    #[must_use]
    pub fn new(class: &Class, step: u64, candles: &[Candle]) -> CandlesView {
        CandlesView {
            class: class_name::format_class(class),
            step,
            candles: candles.iter().map(CandleView::from).collect(),
        }
    }
}

impl From<&Totals> for TotalsView {
    fn from(totals: &Totals) -> TotalsView {
        TotalsView {
            deposits: totals.deposits.0,
            withdrawals: totals.withdrawals.0,
            available: totals.available.0,
            escrow: totals.escrow.0,
            stake: totals.stake.0,
            fees: totals.fees.0,
            balanced: totals.is_balanced(),
        }
    }
}

/// Returns the name of an element type, as the fields of [`ByDtype`] have it.
#[must_use]
pub fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "f64",
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::Bf16 => "bf16",
        Dtype::Int8 => "int8",
        Dtype::Int4 => "int4",
    }
}
