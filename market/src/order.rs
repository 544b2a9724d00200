//! Asks, bids and the trades between them.

use serde::{Deserialize, Serialize};

use crate::class::{Class, Resources};
use crate::ids::{AccountKey, DeviceId, JobId, LeaseId, OrderId, TradeId};
use crate::predicate::{Accepts, Wants};
use crate::units::{Credits, Millis, Permille, Price, Units};

/// The side of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Buys device time.
    Bid,
    /// Sells device time.
    Ask,
}

/// The worst price an order accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A bid pays at most this, an ask takes at least this.
    Price(Price),
    /// A bid pays whatever its budget allows, an ask takes any price. Never rests.
    Market,
}

/// How long the part of an order that found no match stays in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeInForce {
    /// Until it is cancelled.
    Gtc,
    /// Until this log time.
    Gtd(Millis),
    /// Not at all: what can't trade at once is cancelled.
    Ioc,
    /// Not at all, and nothing trades unless all of it can.
    Fok,
}

/// When an order leaves the book that never does.
pub(crate) const NEVER: Millis = Millis(u64::MAX);

impl TimeInForce {
    /// Whether what found no match stays in the book.
    #[must_use]
    pub fn rests(self) -> bool {
        matches!(self, Self::Gtc | Self::Gtd(_))
    }

    /// When what rests leaves the book; [`NEVER`] where no time says so.
    pub(crate) fn expires(self) -> Millis {
        match self {
            Self::Gtd(at) => at,
            _ => NEVER,
        }
    }

    /// Of an order that rests until `expires`.
    pub(crate) fn until(expires: Millis) -> Self {
        match expires {
            NEVER => Self::Gtc,
            at => Self::Gtd(at),
        }
    }
}

/// How safe a lease is from being ended by others than its buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Only the buyer ends it before its deadline.
    Firm,
    /// The provider may reclaim it and a higher bid may displace it, both with notice.
    Spot,
}

/// The most prices by notice that an ask states.
pub const SPOT_PRICES_MAX: usize = 4;

/// What a device-second costs in a spot lease that ends at so much notice. Of an ask's prices each
/// has a longer notice and a higher price than the one before, and all are below its limit. A spot
/// bid pays the first whose notice is what it wants, and the limit where none is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpotPrice {
    /// The notice before a reclaim or a displacement.
    pub notice: Millis,
    /// Per device-second.
    pub price: Price,
}

/// An offer of device time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which of the provider's devices, or pools of like devices, is offered.
    pub device: DeviceId,
    /// How many units that pool has. What is offered and leased of it never exceeds this.
    pub capacity: Units,
    /// Exactly what one unit is.
    pub resources: Resources,
    /// The least price, per device-second.
    pub limit: Limit,
    /// How many units are offered.
    pub quantity: Units,
    /// The shortest lease.
    pub duration_min: Millis,
    /// The longest lease, extensions included.
    pub duration_max: Millis,
    /// The notice before a reclaim or a displacement of a spot lease at the limit price.
    pub notice: Millis,
    /// What spot leases cost that may end at shorter or longer notice; see [`SpotPrice`].
    pub spot: Vec<SpotPrice>,
    /// What part of its price a second costs in which the device is held and not used. The market's
    /// reserve where that is more; above 1,000 it counts as 1,000.
    pub idle: Permille,
    /// Who may buy.
    pub accepts: Accepts,
    /// How long it rests.
    pub tif: TimeInForce,
}

/// A wish for device time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bid {
    /// The book it is matched in.
    pub class: Class,
    /// What each device must have.
    pub wants: Wants,
    /// The greatest price, per device-second.
    pub limit: Limit,
    /// The most that all its leases together may ever cost. A hard stop: where it buys less than
    /// the limit price would cost, the limit price is lowered to what it buys.
    pub budget: Credits,
    /// How many units are wanted.
    pub quantity: Units,
    /// Nothing trades unless all units can at once.
    pub all_or_none: bool,
    /// The length of each lease.
    pub duration: Millis,
    /// How long it may wait for a spot lease that it displaces; with 0 it displaces only those
    /// that have no notice. See [`Term::Spot`].
    pub start_delay_max: Millis,
    /// Firm or spot.
    pub term: Term,
    /// How long it rests.
    pub tif: TimeInForce,
    /// The buyer's job, carried into trades and leases.
    pub job: JobId,
}

/// A bid and an ask met: it opens one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trade {
    /// Its number.
    pub id: TradeId,
    /// The lease it opened.
    pub lease: LeaseId,
    /// The bid.
    pub bid: OrderId,
    /// The ask.
    pub ask: OrderId,
    /// Who buys.
    pub buyer: AccountKey,
    /// Who provides.
    pub provider: AccountKey,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The job the bid named.
    pub job: JobId,
    /// The price per device-second: that of the order which was in the book.
    pub price: Price,
    /// How many units.
    pub quantity: Units,
    /// What was put into escrow.
    pub escrow: Credits,
    /// When the lease starts.
    pub start: Millis,
    /// When the lease ends.
    pub deadline: Millis,
}
