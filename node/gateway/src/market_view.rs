//! The JSON of the market in the gateway's API: books, trades, prices, and the totals of the
//! market.
//!
//! Each view converts a type of the market crate, so that the API stays as it is if that type
//! changes.

use serde::Serialize;
use souk_node::device::class_name;
use souk_node::market::{
    Account, Candle, ClassSummary, DepthLevel, Dtype, Listing, PriceIndex, Print, Quotes,
    Throughput, Totals,
};
use souk_node::protocols::regions;
use utoipa::ToSchema;

use crate::times;

/// Default number of levels on each side of a book.
pub const LEVELS: usize = 32;

/// A price in micro-credits a device-second, and what is there at it.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LevelView {
    price: u64,
    orders: u32,
    units: u64,
}

/// A trade.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TradeView {
    /// When, RFC 3339.
    at: String,
    /// Micro-credits a device-second.
    price: u64,
    units: u64,
}

/// Prices of measured work over the last 64 trades, in nano-credits; null where nothing traded
/// does it.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct IndexView {
    /// A tera-operation, by element type.
    per_tera_operation: ByDtype<Option<u64>>,
    per_gigabyte_moved: Option<u64>,
    per_gigabyte_hour: Option<u64>,
}

/// A figure for each element type.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ByDtype<T> {
    f64: T,
    f32: T,
    f16: T,
    bf16: T,
    int8: T,
    int4: T,
}

/// A class at a glance.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassView {
    /// What it is called, such as `gpu-m5-t7-b6-emulated`.
    class: String,
    /// What its bands of memory, throughput and bandwidth mean.
    bands: String,
    emulated: bool,
    ask: Option<LevelView>,
    bid: Option<LevelView>,
    last: Option<TradeView>,
    /// Units traded within a day.
    volume: u64,
    index: IndexView,
}

/// The book of a class.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DepthView {
    class: String,
    bands: String,
    emulated: bool,
    /// By rising price.
    asks: Vec<LevelView>,
    /// By falling price.
    bids: Vec<LevelView>,
}

/// The last trades of a class.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TradesView {
    class: String,
    /// The newest first.
    trades: Vec<TradeView>,
}

/// What a class cost over time.
#[derive(Debug, Serialize, ToSchema)]
pub struct CandlesView {
    class: String,
    /// Seconds in a candle.
    step: u64,
    /// The oldest first; times without a trade have none.
    candles: Vec<CandleView>,
}

/// What a class cost in some time.
#[derive(Debug, Serialize, ToSchema)]
pub struct CandleView {
    /// When it begins, RFC 3339.
    start: String,
    open: u64,
    high: u64,
    low: u64,
    close: u64,
    units: u64,
}

/// An offer.
#[derive(Debug, Serialize, ToSchema)]
pub struct AskView {
    pub order: u64,
    /// The provider's account.
    pub provider: String,
    pub provider_name: String,
    /// From 0 to 1000.
    pub reputation: u16,
    pub stake: u64,
    class: String,
    kind: String,
    pub device: String,
    pub emulated: bool,
    /// Micro-credits a device-second.
    pub price: u64,
    units: u32,
    memory_bytes: u64,
    /// Bytes a second.
    memory_bandwidth: u64,
    /// Mega-operations a second.
    throughput: ByDtype<u64>,
    /// Milliwatts under load; 0 where it is unknown.
    power_milliwatts: u64,
    region: String,
    /// The shortest and the longest lease, in seconds.
    duration_min: f64,
    duration_max: f64,
    /// How many seconds before a spot lease is taken back.
    notice: f64,
    /// The lease whose rest is sold, where a buyer resells it.
    resale_of: Option<u64>,
}

/// All credits; available + escrow + stake + fees = deposits - withdrawals.
#[derive(Debug, Serialize, ToSchema)]
pub struct TotalsView {
    deposits: u64,
    withdrawals: u64,
    available: u64,
    escrow: u64,
    stake: u64,
    fees: u64,
    /// Whether the sums agree.
    balanced: bool,
}

/// An account.
#[derive(Debug, Serialize, ToSchema)]
pub struct AccountView {
    account: String,
    name: String,
    /// What it may spend.
    available: u64,
    /// What is held for its orders and leases.
    escrow: u64,
    stake: u64,
    /// What it has earned as a provider.
    earned: u64,
    open_orders: u32,
    /// Leases that it sold, and that it bought, that are not closed.
    leases_sold: u32,
    leases_bought: u32,
    /// From 0 to 1000.
    reputation: u16,
    /// Why it is frozen, if it is.
    frozen: Option<String>,
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
            at: times::at(print.at.0),
            price: print.price.0,
            units: u64::from(print.quantity.0),
        }
    }
}

impl From<&Candle> for CandleView {
    fn from(candle: &Candle) -> CandleView {
        CandleView {
            start: times::at(candle.start.0),
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

impl DepthView {
    /// Describes the first `levels` levels of a book.
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

/// Returns the throughput by element type.
pub fn throughput_by_dtype(of: &Throughput) -> ByDtype<u64> {
    ByDtype::from_fn(|dtype| of.for_dtype(dtype))
}

impl From<&Listing> for AskView {
    fn from(ask: &Listing) -> AskView {
        let stated = &ask.resources;
        AskView {
            order: ask.order.0,
            provider: ask.provider.to_string(),
            provider_name: ask.name.to_string(),
            reputation: ask.reputation.0,
            stake: ask.stake.0,
            class: class_name::format_class(&ask.class),
            kind: stated.kind_name.to_string(),
            device: stated.model.to_string(),
            emulated: stated.emulated,
            price: ask.price.0,
            units: ask.quantity.0,
            memory_bytes: stated.memory_bytes,
            memory_bandwidth: stated.memory_bandwidth,
            throughput: throughput_by_dtype(&stated.throughput),
            power_milliwatts: stated.power_mw,
            region: regions::name(stated.region),
            duration_min: times::millis_to_seconds(ask.duration_min),
            duration_max: times::millis_to_seconds(ask.duration_max),
            notice: times::millis_to_seconds(ask.notice),
            resale_of: ask.resale.map(|lease| lease.0),
        }
    }
}

impl From<&Account> for AccountView {
    fn from(account: &Account) -> AccountView {
        AccountView {
            account: account.key.to_string(),
            name: account.name.to_string(),
            available: account.available.0,
            escrow: account.escrow.0,
            stake: account.stake.0,
            earned: account.earned.0,
            open_orders: account.open_orders,
            leases_sold: account.open_leases,
            leases_bought: account.leases_bought,
            reputation: account.reputation.score.0,
            frozen: account.frozen.as_ref().map(ToString::to_string),
        }
    }
}

impl CandlesView {
    /// Describes candles of `step` seconds.
    pub fn new(quotes: &Quotes, step: u64, candles: &[Candle]) -> CandlesView {
        CandlesView {
            class: class_name::format_class(&quotes.class),
            step,
            candles: candles.iter().map(CandleView::from).collect(),
        }
    }
}

impl From<Totals> for TotalsView {
    fn from(totals: Totals) -> TotalsView {
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
