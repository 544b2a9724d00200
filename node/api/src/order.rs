//! Defines the public JSON of an account's orders: the orders that rest in the books, the results
//! of placing, changing or cancelling one, and the reasons why asks do or do not match a bid.

use serde::{Deserialize, Serialize};
use souk_market::{
    Acceptance, Class, Exclusion, Explanation, Lack, Lease, OpenOrder, OrderId, Side, Trade,
};

use crate::class_name;
use crate::market::dtype_name;
use crate::time::format_moment;

/// An order that rests in a book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OrderView {
    /// The order's id.
    pub order: u64,
    /// `bid` or `ask`.
    pub side: &'static str,
    /// The class in whose book it rests.
    pub class: String,
    /// Micro-credits per device-second.
    pub price: u64,
    /// How many units remain.
    pub units: u32,
    /// What it holds, in micro-credits.
    pub held: u64,
    /// When it leaves the book; null if only its owner ends it.
    pub expires_at: Option<String>,
    /// The lease of which it resells the rest.
    pub resale_of: Option<u64>,
}

/// The result of an order that was placed or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlacedView {
    /// The order's id: a new one if a change lost it its place in line.
    pub order: u64,
    /// The trades that it made at once.
    pub trades: Vec<PlacedTrade>,
    /// How many units rest in the book.
    pub resting: u32,
}

/// A lease that an order became.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlacedTrade {
    /// The number of the lease.
    pub lease: u64,
    /// The account that sells it.
    pub provider: String,
    /// Micro-credits per device-second.
    pub price: u64,
    /// How many units of the device it has.
    pub units: u32,
    /// What it holds, in micro-credits.
    pub held: u64,
    /// When it starts.
    pub starts_at: String,
    /// When it ends at the latest.
    pub ends_at: String,
}

/// An order that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CancelledView {
    /// The order's id.
    pub order: u64,
    /// What it held and is available again, in micro-credits.
    pub released: u64,
}

/// The asks that a bid would find, and what rules out the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExplanationView {
    /// The class of the bid.
    pub class: String,
    /// How many asks are of the bid's kind of device, in any class.
    pub seen: u32,
    /// How many of them the bid could trade with now.
    pub eligible: u32,
    /// Why the others do not suit; each ask counts once.
    pub ruled_out: Vec<ExclusionView>,
}

/// The asks that one reason rules out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExclusionView {
    /// The reason, such as `memory`, `price` or `throughput`.
    pub lack: &'static str,
    /// The element type, if the reason is `throughput`.
    pub dtype: Option<&'static str>,
    /// How many asks it rules out.
    pub asks: u32,
    /// What the bid demands; 0 if the reason is not a figure.
    pub wanted: u64,
    /// What the nearest of those asks offers; 0 if the reason is not a figure.
    pub nearest: u64,
}

impl From<&OpenOrder> for OrderView {
    fn from(open: &OpenOrder) -> OrderView {
        let ends = open.expires.0 < u64::MAX;
        OrderView {
            order: open.id.0,
            side: match open.side {
                Side::Bid => "bid",
                Side::Ask => "ask",
            },
            class: class_name::format_class(&open.class),
            price: open.price.0,
            units: open.quantity.0,
            held: open.held.0,
            expires_at: ends.then(|| format_moment(open.expires)),
            resale_of: open.resale.map(|lease| lease.0),
        }
    }
}

impl PlacedView {
    /// Describes the market's answer; returns `None` if the answer is not about an order.
    #[must_use]
    pub fn from_acceptance(done: &Acceptance) -> Option<PlacedView> {
        match done {
            Acceptance::Placed {
                order,
                trades,
                resting,
            }
            | Acceptance::Amended {
                order,
                trades,
                resting,
            } => Some(PlacedView {
                order: order.0,
                trades: trades.iter().map(PlacedTrade::from).collect(),
                resting: resting.0,
            }),
            _ => None,
        }
    }
}

impl From<&Trade> for PlacedTrade {
    fn from(trade: &Trade) -> PlacedTrade {
        PlacedTrade {
            lease: trade.lease.0,
            provider: trade.provider.to_string(),
            price: trade.price.0,
            units: trade.quantity.0,
            held: trade.escrow.0,
            starts_at: format_moment(trade.start),
            ends_at: format_moment(trade.deadline),
        }
    }
}

impl From<&Lease> for PlacedTrade {
    fn from(lease: &Lease) -> PlacedTrade {
        PlacedTrade {
            lease: lease.id.0,
            provider: lease.provider.to_string(),
            price: lease.price.0,
            units: lease.quantity.0,
            held: lease.escrow.0,
            starts_at: format_moment(lease.start),
            ends_at: format_moment(lease.deadline),
        }
    }
}

impl CancelledView {
    /// Describes the market's answer to a cancellation; returns `None` if it answered something
    /// else.
    #[must_use]
    pub fn from_acceptance(order: OrderId, done: &Acceptance) -> Option<CancelledView> {
        match done {
            Acceptance::Cancelled { released } => Some(CancelledView {
                order: order.0,
                released: released.0,
            }),
            _ => None,
        }
    }
}

impl ExplanationView {
    /// Describes what a bid in this class would find.
    #[must_use]
    pub fn new(class: &Class, found: &Explanation) -> ExplanationView {
        ExplanationView {
            class: class_name::format_class(class),
            seen: found.seen,
            eligible: found.eligible,
            ruled_out: found.ruled_out.iter().map(ExclusionView::from).collect(),
        }
    }
}

impl From<&Exclusion> for ExclusionView {
    fn from(exclusion: &Exclusion) -> ExclusionView {
        ExclusionView {
            lack: lack_name(exclusion.lack),
            dtype: match exclusion.lack {
                Lack::Throughput(dtype) => Some(dtype_name(dtype)),
                _ => None,
            },
            asks: exclusion.count,
            wanted: exclusion.wanted,
            nearest: exclusion.nearest,
        }
    }
}

/// Returns the name of the reason why an ask does not suit a bid.
#[must_use]
pub fn lack_name(lack: Lack) -> &'static str {
    match lack {
        Lack::Class => "class",
        Lack::OwnAsk => "own_ask",
        Lack::Excluded => "excluded",
        Lack::Memory => "memory",
        Lack::MemoryBandwidth => "memory_bandwidth",
        Lack::Throughput(_) => "throughput",
        Lack::LinkBandwidth => "link_bandwidth",
        Lack::LinkLatency => "link_latency",
        Lack::Region => "region",
        Lack::Features => "features",
        Lack::Operators => "operators",
        Lack::Model => "model",
        Lack::TokenTerms => "token_terms",
        Lack::Reputation => "reputation",
        Lack::Stake => "stake",
        Lack::Notice => "notice",
        Lack::Term => "term",
        Lack::Duration => "duration",
        Lack::RefusesBuyer => "refuses_buyer",
        Lack::Price => "price",
        Lack::Quantity => "quantity",
    }
}
