//! The orders of the API.

use serde::{Deserialize, Serialize};
use souk_node::device::class_name;
use souk_node::market::{Acceptance, Class, Lease, OpenOrder, Side, Trade};
use utoipa::ToSchema;

use crate::times;

/// An order that rests in a book.
#[derive(Debug, Serialize, ToSchema)]
pub struct OrderView {
    pub order: u64,
    /// `bid` or `ask`.
    #[schema(value_type = String)]
    side: Side,
    class: String,
    /// Micro-credits a device-second.
    price: u64,
    /// How many are left.
    units: u32,
    /// What is held for it, in micro-credits.
    held: u64,
    /// When it leaves the book; null where that is only when it is cancelled.
    expires_at: Option<String>,
    /// The lease of which it resells the rest.
    resale_of: Option<u64>,
}

/// What came of an order that was placed or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedView {
    /// Its id: a new one where a change lost it its place in line.
    pub order: u64,
    /// What it traded at once.
    pub trades: Vec<PlacedTrade>,
    /// How many units rest in the book.
    pub resting: u32,
}

/// A lease that an order became.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacedTrade {
    lease: u64,
    provider: String,
    /// Micro-credits a device-second.
    price: u64,
    units: u32,
    /// What is held for it, in micro-credits.
    held: u64,
    starts_at: String,
    ends_at: String,
}

impl From<&OpenOrder> for OrderView {
    fn from(open: &OpenOrder) -> OrderView {
        let ends = open.expires.0 < u64::MAX;
        OrderView {
            order: open.id.0,
            side: open.side,
            class: class_of(&open.class),
            price: open.price.0,
            units: open.quantity.0,
            held: open.held.0,
            expires_at: ends.then(|| times::at(open.expires.0)),
            resale_of: open.resale.map(|lease| lease.0),
        }
    }
}

fn class_of(class: &Class) -> String {
    class_name::format_class(class)
}

impl PlacedView {
    /// Describes the market's answer; returns `None` if the answer is not about an order.
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
            starts_at: times::at(trade.start.0),
            ends_at: times::at(trade.deadline.0),
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
            starts_at: times::at(lease.start.0),
            ends_at: times::at(lease.deadline.0),
        }
    }
}
