//! What a buyer can see: the asks, and why a bid finds none among them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::book::{Order, Terms};
use crate::class::{Class, Resources};
use crate::ids::{AccountKey, DeviceId, OrderId};
use crate::order::{Ask, Bid};
use crate::predicate::{Accepts, Lack, Wants};
use crate::refusal::Refusal;
use crate::units::{Millis, Permille, Price, Units};

use super::Exchange;

/// An ask in the book, with all that a planner needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Its id.
    pub order: OrderId,
    /// Who provides.
    pub provider: AccountKey,
    /// The provider's reputation.
    pub reputation: Permille,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The class a bid must name to match it.
    pub class: Class,
    /// Exactly what one unit is.
    pub resources: Resources,
    /// Price per device-second.
    pub price: Price,
    /// How many units are left.
    pub quantity: Units,
    /// The shortest lease.
    pub duration_min: Millis,
    /// The longest lease.
    pub duration_max: Millis,
    /// The notice before a reclaim or a displacement.
    pub notice: Millis,
    /// Who may buy.
    pub accepts: Accepts,
}

/// How many asks a bid would find, and what rules out the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Asks of the bid's kind of device, in any class.
    pub seen: u32,
    /// Asks the bid could trade with now.
    pub eligible: u32,
    /// What ruled out the others, each ask counted once.
    pub ruled_out: Vec<Ruled>,
}

/// How many asks one reason ruled out, and how near the nearest of them came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruled {
    /// The reason.
    pub lack: Lack,
    /// How many asks.
    pub count: u32,
    /// What the bid says, where the reason is a figure.
    pub wanted: u64,
    /// The nearest to it that any of those asks offers.
    pub nearest: u64,
}

impl Exchange {
    /// Every ask in every book, by class, best first.
    pub fn asks(&self) -> impl Iterator<Item = Listing> {
        self.books
            .all_asks()
            .filter_map(|(class, order)| self.listing(*class, order))
    }

    fn listing(&self, class: Class, order: &Order) -> Option<Listing> {
        let ask = order.ask()?.clone();
        Some(Listing {
            order: order.id,
            provider: order.account,
            reputation: self.ledger.get(order.slot).reputation.score,
            device: ask.device,
            class,
            resources: ask.resources,
            price: order.price,
            quantity: order.remaining,
            duration_min: ask.duration_min,
            duration_max: ask.duration_max,
            notice: ask.notice,
            accepts: ask.accepts,
        })
    }

    /// What `buyer` would find if it placed `bid` now, reason by reason.
    ///
    /// # Errors
    /// When the bid would be refused before any ask is looked at.
    pub fn explain(&self, buyer: AccountKey, bid: &Bid) -> Result<Explanation, Refusal> {
        let slot = self
            .ledger
            .slot(buyer)
            .ok_or(Refusal::AccountUnknown { account: buyer })?;
        let price = self.check_bid(bid)?;
        let terms = Terms::Bid(Box::new(bid.clone()));
        let (id, account) = (OrderId(u64::MAX), buyer);
        let order = Order {
            id,
            account,
            slot,
            price,
            remaining: bid.quantity,
            terms,
        };
        let mut found = Explanation::default();
        let mut ruled: BTreeMap<Lack, Ruled> = BTreeMap::new();
        for (class, ask_order) in self.books.all_asks() {
            if class.kind != bid.class.kind || class.emulated != bid.class.emulated {
                continue;
            }
            let Some(ask) = ask_order.ask() else { continue };
            found.seen += 1;
            match self.any_lack(class, ask_order, ask, &order, bid) {
                None => found.eligible += 1,
                Some(lack) => {
                    let reputation = self.ledger.get(ask_order.slot).reputation.score;
                    let figures = figures(lack, ask_order, ask, reputation, &order, bid);
                    tally(&mut ruled, lack, figures);
                }
            }
        }
        found.ruled_out = ruled.into_values().collect();
        Ok(found)
    }

    fn any_lack(
        &self,
        class: &Class,
        ask_order: &Order,
        ask: &Ask,
        order: &Order,
        bid: &Bid,
    ) -> Option<Lack> {
        let lack = self.lack(ask_order, ask, order, bid);
        let dear = || (ask_order.price > order.price).then_some(Lack::Price);
        let other = || (*class != bid.class).then_some(Lack::Class);
        lack.or_else(other).or_else(dear)
    }
}

/// What the bid wants and the ask has, where the reason is a figure.
fn figures(
    lack: Lack,
    ask_order: &Order,
    ask: &Ask,
    reputation: Permille,
    order: &Order,
    bid: &Bid,
) -> Option<(u64, u64)> {
    let (Wants { memory_bytes, .. }, resources) = (&bid.wants, &ask.resources);
    Some(match lack {
        Lack::Memory => (*memory_bytes, resources.memory_bytes),
        Lack::MemoryBandwidth => (bid.wants.memory_bandwidth, resources.memory_bandwidth),
        Lack::Throughput(dtype) => (
            bid.wants.throughput.of(dtype),
            resources.throughput.of(dtype),
        ),
        Lack::LinkBandwidth => (bid.wants.link_bandwidth, resources.link_bandwidth),
        Lack::LinkLatency => (bid.wants.link_latency_us, resources.link_latency_us),
        Lack::Reputation => (bid.wants.reputation.0.into(), reputation.0.into()),
        Lack::Notice => (bid.wants.notice.0, ask.notice.0),
        Lack::Price => (order.price.0, ask_order.price.0),
        _ => return None,
    })
}

fn tally(ruled: &mut BTreeMap<Lack, Ruled>, lack: Lack, figures: Option<(u64, u64)>) {
    let (wanted, offered) = figures.unwrap_or((0, 0));
    let fresh = Ruled {
        lack,
        count: 0,
        wanted,
        nearest: offered,
    };
    let entry = ruled.entry(lack).or_insert(fresh);
    entry.count += 1;
    entry.nearest = match lack {
        Lack::Price | Lack::LinkLatency => entry.nearest.min(offered),
        _ => entry.nearest.max(offered),
    };
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seen,
            eligible,
            ruled_out,
        } = self;
        write!(f, "{seen} asks")?;
        let mut lead = ": ";
        if *eligible > 0 {
            write!(f, "{lead}{eligible} eligible")?;
            lead = ", ";
        }
        for ruled in ruled_out {
            write!(f, "{lead}{ruled}")?;
            lead = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for Ruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lack,
            count,
            wanted,
            nearest,
        } = self;
        write!(f, "{count} ")?;
        match lack {
            Lack::Class => f.write_str("in another class"),
            Lack::OwnAsk => f.write_str("your own"),
            Lack::Excluded => f.write_str("from providers you exclude"),
            Lack::Memory => {
                write!(f, "below {} (best {})", bytes(*wanted), bytes(*nearest))
            }
            Lack::MemoryBandwidth => {
                write!(f, "below {}/s of memory bandwidth", bytes(*wanted))
            }
            Lack::Throughput(dtype) => {
                write!(f, "below {wanted} {dtype:?} MFLOP/s (best {nearest})")
            }
            Lack::LinkBandwidth => write!(f, "with a link below {}/s", bytes(*wanted)),
            Lack::LinkLatency => write!(f, "with a link slower than {wanted} us"),
            Lack::Region => f.write_str("in other regions"),
            Lack::Features => f.write_str("without a feature you need"),
            Lack::Reputation => write!(f, "with a reputation below {wanted} (best {nearest})"),
            Lack::Notice => write!(f, "with less than {wanted} ms of notice (best {nearest})"),
            Lack::Duration => f.write_str("not leased for that long or short"),
            Lack::RefusesBuyer => f.write_str("that refuse you as a buyer"),
            Lack::Price => {
                let over = u128::from(nearest.saturating_sub(*wanted)) * 100;
                let percent = over.div_ceil(u128::from((*wanted).max(1)));
                write!(f, "above your limit price by {percent} %")
            }
            Lack::Quantity => f.write_str("with too few units"),
        }
    }
}

/// Bytes for people: whole or tenths of the greatest binary unit below them.
fn bytes(count: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10)];
    for (unit, shift) in UNITS {
        if count >> shift > 0 {
            let tenths = (u128::from(count) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{count} B")
}
