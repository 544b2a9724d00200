//! Defines the asks and bids that an account can place, with their limits and the time that they
//! wait in the book, and the trades between them.

use serde::{Deserialize, Serialize};

use crate::class::{Class, Resources};
use crate::ids::{AccountKey, DeviceId, JobId, LeaseId, OrderId, TradeId};
use crate::predicate::{BuyerFilter, Wants};
use crate::tokens::TokenTerms;
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

/// The worst price that an order accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A bid pays at most this price, an ask accepts at least this price.
    Price(Price),
    /// A bid pays any price that its budget allows, an ask accepts any price. Such an order never
    /// stays in the book.
    Market,
}

/// How long the unmatched part of an order stays in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeInForce {
    /// Until its account cancels it (good till cancelled).
    Gtc,
    /// Until this log time, the time that the market's log states (good till date).
    Gtd(Millis),
    /// Not at all: the exchange cancels the part that cannot trade at once (immediate or cancel).
    Ioc,
    /// Not at all: nothing trades unless the whole order can trade at once (fill or kill).
    Fok,
}

/// The expiry of an order that stays in the book until its account cancels it.
pub(crate) const NEVER: Millis = Millis(u64::MAX);

impl TimeInForce {
    /// Returns whether the unmatched part stays in the book.
    #[must_use]
    pub fn can_rest(self) -> bool {
        matches!(self, Self::Gtc | Self::Gtd(_))
    }

    /// Returns when a resting order leaves the book; [`NEVER`] if it has no such time.
    pub(crate) fn expiry_time(self) -> Millis {
        match self {
            Self::Gtd(at) => at,
            _ => NEVER,
        }
    }

    /// Returns the time in force of an order that rests until `expires`.
    pub(crate) fn from_expiry(expires: Millis) -> Self {
        match expires {
            NEVER => Self::Gtc,
            at => Self::Gtd(at),
        }
    }
}

/// Whether somebody other than the buyer can end a lease before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Only the buyer can end the lease before its deadline.
    Firm,
    /// The provider can reclaim the lease and a higher bid can displace it, both with notice.
    Spot,
}

/// The largest number of spot prices that an ask can state.
pub const SPOT_PRICES_MAX: usize = 4;

/// The price of a device-second in a spot lease with this notice. In an ask, each spot price must
/// have a longer notice and a higher price than the one before, and all must be below the ask's
/// limit. A spot bid pays the first whose notice is at least the notice it wants, or the limit if
/// there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpotPrice {
    /// The notice before a reclaim or a displacement, in milliseconds.
    pub notice: Millis,
    /// The price per device-second.
    pub price: Price,
}

/// An offer of device time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The offered device of the provider, or pool of like devices.
    pub device: DeviceId,
    /// All units of that pool. Units offered and leased can never exceed this number.
    pub capacity: Units,
    /// The exact resources of one unit.
    pub resources: Resources,
    /// The least price, per device-second.
    pub limit: Limit,
    /// The units on offer.
    pub quantity: Units,
    /// The shortest lease, in milliseconds.
    pub duration_min: Millis,
    /// The longest lease including extensions, in milliseconds.
    pub duration_max: Millis,
    /// The notice before a reclaim or a displacement of a spot lease at the limit price.
    pub notice: Millis,
    /// Prices of spot leases that can end at shorter or longer notice; see [`SpotPrice`].
    pub spot: Vec<SpotPrice>,
    /// The price of a second in which the buyer holds the device and does not use it, as a part of
    /// the full price. If the market's reserve is higher, that applies; more than 1,000 counts as
    /// 1,000.
    pub idle: Permille,
    /// The buyers that the ask accepts.
    pub accepts: BuyerFilter,
    /// How long the order rests.
    pub tif: TimeInForce,
}

/// A request to buy device time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bid {
    /// The class in whose book the bid is matched.
    pub class: Class,
    /// The demands that each device must meet.
    pub wants: Wants,
    /// The highest price, per device-second.
    pub limit: Limit,
    /// The most that all leases of the bid together can cost. If it buys less than the limit price
    /// would cost, the exchange lowers the limit price to fit it.
    pub budget: Credits,
    /// The units to buy.
    pub quantity: Units,
    /// Whether nothing trades unless all units can trade at once. Unlike with [`TimeInForce::Fok`],
    /// such a bid can stay in the book until they can.
    pub all_or_none: bool,
    /// The duration of each lease, in milliseconds.
    pub duration: Millis,
    /// How long the bid can wait for a spot lease that it displaces; with 0 it displaces only
    /// leases without notice. See [`Term::Spot`].
    pub start_delay_max: Millis,
    /// Firm or spot.
    pub term: Term,
    /// How long the order rests.
    pub tif: TimeInForce,
    /// The buyer's job, which trades and leases carry.
    pub job: JobId,
}

/// A trade between a bid and an ask, which opens one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trade {
    /// The trade's id.
    pub id: TradeId,
    /// The lease that it opened.
    pub lease: LeaseId,
    /// The bid that traded.
    pub bid: OrderId,
    /// The ask that traded.
    pub ask: OrderId,
    /// The buyer's account.
    pub buyer: AccountKey,
    /// The provider's account.
    pub provider: AccountKey,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The job that the bid named.
    pub job: JobId,
    /// The price per device-second: that of the order that was in the book first.
    pub price: Price,
    /// The units that traded.
    pub quantity: Units,
    /// Credits that the trade moved into escrow.
    pub escrow: Credits,
    /// The log time at which the lease starts.
    pub start: Millis,
    /// The log time at which the lease ends.
    pub deadline: Millis,
    /// The prices of tokens, if the provider sells a model's answers by the token.
    pub tokens: Option<TokenTerms>,
}
