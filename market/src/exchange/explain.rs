//! Answers a buyer's questions before it bids: which asks are in the books, and why each of them
//! does or does not match a bid. It only reads the state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::book::VisitBudget;
use crate::books::{BookQuery, ClassBook, Order, OrderDetail, OrderKind};
use crate::class::{Class, Resources};
use crate::ids::{AccountKey, BookId, DeviceId, LeaseId, OrderId, Slot, TermsId};
use crate::order::{Bid, Side, SpotPrice};
use crate::predicate::{BuyerFilter, Lack};
use crate::refusal::Refusal;
use crate::terms::{AskTerms, BidTerms, Terms};
use crate::text::Name;
use crate::units::{Count, Credits, Millis, Permille, Price, Units};

use super::Exchange;
use super::bid::LiveBid;

/// An ask in the book, with all data that a planner needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The ask's id.
    pub order: OrderId,
    /// The account that will run the work.
    pub provider: AccountKey,
    /// The provider's name; older journals have none.
    #[serde(default)]
    pub name: Name,
    /// The provider's reputation.
    pub reputation: Permille,
    /// The provider's stake.
    pub stake: Credits,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The class a bid must name to match it.
    pub class: Class,
    /// Exactly what one unit is.
    pub resources: Resources,
    /// The price per device-second.
    pub price: Price,
    /// The units that remain.
    pub quantity: Units,
    /// The shortest lease, in milliseconds.
    pub duration_min: Millis,
    /// The longest lease, in milliseconds.
    pub duration_max: Millis,
    /// The notice before a reclaim or a displacement, in milliseconds.
    pub notice: Millis,
    /// The spot prices by notice; see [`SpotPrice`].
    #[serde(default)]
    pub spot: Vec<SpotPrice>,
    /// The part of the price that a second costs in which the device is held and not used.
    #[serde(default)]
    pub idle: Permille,
    /// The buyers that the ask accepts.
    pub accepts: BuyerFilter,
    /// The lease whose rest this ask resells, if a buyer resells one.
    pub resale: Option<LeaseId>,
}

/// The most asks that an explanation considers.
const EXPLAINED_MAX: usize = 20_000;

/// The fewest asks to list of each class, the best first.
const ASKS_EACH_LEAST: usize = 8;

/// An ask in the book, as [`Listing`] has it, but borrowed: you can look at many
/// at little cost.
#[derive(Clone, Copy, Debug)]
pub struct ListingRef<'a> {
    /// The ask's id.
    pub order: OrderId,
    /// The account that will run the work.
    pub provider: AccountKey,
    /// The provider's name.
    pub name: &'a Name,
    /// The provider's reputation.
    pub reputation: Permille,
    /// The provider's stake.
    pub stake: Credits,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The class a bid must name to match it.
    pub class: Class,
    /// Exactly what one unit is.
    pub resources: &'a Resources,
    /// The price per device-second.
    pub price: Price,
    /// The units that remain.
    pub quantity: Units,
    /// The shortest lease, in milliseconds.
    pub duration_min: Millis,
    /// The longest lease, in milliseconds.
    pub duration_max: Millis,
    /// The notice before a reclaim or a displacement, in milliseconds.
    pub notice: Millis,
    /// The spot prices by notice.
    pub spot: &'a [SpotPrice],
    /// The part of the price that a second costs in which the device is held and not used.
    pub idle: Permille,
    /// The buyers that the ask accepts.
    pub accepts: &'a BuyerFilter,
    /// The lease whose rest this ask resells, if a buyer resells one.
    pub resale: Option<LeaseId>,
}

impl Listing {
    /// Returns the same ask, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> ListingRef<'_> {
        ListingRef {
            order: self.order,
            provider: self.provider,
            name: &self.name,
            reputation: self.reputation,
            stake: self.stake,
            device: self.device,
            class: self.class,
            resources: &self.resources,
            price: self.price,
            quantity: self.quantity,
            duration_min: self.duration_min,
            duration_max: self.duration_max,
            notice: self.notice,
            spot: &self.spot,
            idle: self.idle,
            accepts: &self.accepts,
            resale: self.resale,
        }
    }
}

impl ListingRef<'_> {
    /// Returns the same ask with its own data.
    #[must_use]
    pub fn to_listing(self) -> Listing {
        Listing {
            order: self.order,
            provider: self.provider,
            name: self.name.clone(),
            reputation: self.reputation,
            stake: self.stake,
            device: self.device,
            class: self.class,
            resources: self.resources.clone(),
            price: self.price,
            quantity: self.quantity,
            duration_min: self.duration_min,
            duration_max: self.duration_max,
            notice: self.notice,
            spot: self.spot.to_vec(),
            idle: self.idle,
            accepts: self.accepts.clone(),
            resale: self.resale,
        }
    }

    /// Returns the ask as a buyer sees it that takes spot leases of at least this notice: with the
    /// price that it pays and the notice that it gets.
    #[must_use]
    pub fn to_spot_buyer(mut self, notice: Millis) -> Self {
        let spot = std::mem::take(&mut self.spot);
        if let Some(spot) = spot.iter().find(|spot| spot.notice >= notice) {
            (self.price, self.notice) = (spot.price, spot.notice);
        }
        self
    }
}

/// The number of asks that a bid could match, and the reasons that exclude the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Asks of the bid's kind of device, in any class.
    pub seen: u32,
    /// Asks with which the bid could trade now.
    pub eligible: u32,
    /// The reasons that exclude the other asks; each ask counts once.
    pub ruled_out: Vec<Exclusion>,
}

/// The first ask that suits a bid, and the cost of finding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAsk {
    /// The ask, if one suits.
    pub ask: Option<OrderId>,
    /// The nodes and orders visited.
    pub visits: u32,
}

/// The number of asks that one reason excludes, and the value that comes nearest to the bid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The reason for the exclusion.
    pub lack: Lack,
    /// The number of asks.
    pub count: u32,
    /// The value that the bid demands, if the reason is a figure.
    pub wanted: u64,
    /// The nearest value that any of those asks offers.
    pub nearest: u64,
}

/// The asks of one class: its devices with the number of asks on each, and its best asks.
#[derive(Clone, Copy)]
pub struct ClassAsks<'a> {
    exchange: &'a Exchange,
    book: &'a ClassBook,
    each: usize,
}

impl<'a> ClassAsks<'a> {
    /// Iterates over the resources on which the class has asks, each with their number. Asks on the
    /// same terms share one value of resources, so you can recognise it by its address.
    pub fn devices(self) -> impl Iterator<Item = (&'a Resources, u64)> {
        let terms = self.book.asks_by_terms();
        terms.map(move |(terms, asks)| {
            let terms = self.exchange.books.ask_terms.get(terms);
            (&terms.resources, u64::from(asks))
        })
    }

    /// Iterates over the asks that are the class's share, best first. Each item is the ask's
    /// resources and a function that looks up the rest.
    pub fn best_asks(
        self,
    ) -> impl Iterator<Item = (&'a Resources, impl FnOnce() -> ListingRef<'a>)> {
        let exchange = self.exchange;
        let asks = exchange.books.side_orders(self.book, Side::Ask);
        asks.take(self.each).map(move |ask| {
            let terms = exchange.books.ask_terms.get(ask.detail.terms);
            let class = self.book.class;
            (&terms.resources, move || exchange.to_listing(class, &ask))
        })
    }
}

impl Exchange {
    /// Iterates over all asks, by class, best first.
    pub fn all_asks(&self) -> impl Iterator<Item = Listing> {
        self.books
            .by_class()
            .flat_map(|book| self.book_listings(book))
            .map(ListingRef::to_listing)
    }

    /// Iterates over about `most` asks of the classes that `counts` selects, by class, best first.
    /// Each of them has an equal share, so that its best appear however many asks another class
    /// has.
    pub fn best_asks<'a>(
        &'a self,
        most: usize,
        counts: impl Fn(&Class) -> bool + 'a,
    ) -> impl Iterator<Item = ListingRef<'a>> {
        let classes = self.asks_by_class(most, counts);
        classes.flat_map(|class| class.best_asks().map(|(_, look_up)| look_up()))
    }

    /// Iterates over the classes that `counts` selects and that have asks. Each of them has an
    /// equal share of about `most` asks.
    pub fn asks_by_class<'a>(
        &'a self,
        most: usize,
        counts: impl Fn(&Class) -> bool + 'a,
    ) -> impl Iterator<Item = ClassAsks<'a>> {
        let each = self.each_of(most, &counts);
        let books = self.books.by_class();
        let books = books.filter(move |book| counts(&book.class));
        let books = books.filter(|book| book.book.side(Side::Ask).order_count() > 0);
        books.map(move |book| ClassAsks {
            exchange: self,
            book,
            each,
        })
    }

    /// Returns the asks to list of each class to list about `most` in all.
    fn each_of(&self, most: usize, counts: impl Fn(&Class) -> bool) -> usize {
        let books = self.books.by_class();
        let offering =
            |book: &&ClassBook| book.book.side(Side::Ask).order_count() > 0 && counts(&book.class);
        let classes = books.filter(offering).count();
        let each = most.checked_div(classes).unwrap_or(most);
        each.max(ASKS_EACH_LEAST)
    }

    fn book_listings<'a>(
        &'a self,
        book: &'a ClassBook,
    ) -> impl Iterator<Item = ListingRef<'a>> + 'a {
        let asks = self.books.side_orders(book, Side::Ask);
        asks.map(|ask| self.to_listing(book.class, &ask))
    }

    fn to_listing(&self, class: Class, order: &Order) -> ListingRef<'_> {
        let terms: &AskTerms = self.books.ask_terms.get(order.detail.terms);
        let (provider, resale) = order.provider();
        let provider = self.ledger.get(provider);
        let device = match order.detail.kind {
            OrderKind::Ask { device, .. } => device,
            OrderKind::Bid { .. } => unreachable!("a listing is of an ask"),
        };
        ListingRef {
            order: order.id,
            provider: provider.key,
            name: &provider.name,
            reputation: provider.reputation.score,
            stake: provider.stake,
            device,
            class,
            resources: &terms.resources,
            price: order.price,
            quantity: order.remaining,
            duration_min: terms.duration_min,
            duration_max: self.longest_duration(resale, terms.duration_max),
            notice: terms.notice,
            spot: match resale {
                Some(_) => &[],
                None => &terms.spot.prices,
            },
            idle: terms.idle.clamp(self.rules.reserve, Permille(1_000)),
            accepts: &terms.accepts,
            resale,
        }
    }

    /// Limits a resale to the time that its lease has left.
    fn longest_duration(&self, resale: Option<LeaseId>, duration_max: Millis) -> Millis {
        let left = resale.map(|lease| self.leases[&lease].deadline.saturating_since(self.now));
        left.map_or(duration_max, |left| left.min(duration_max))
    }

    /// Returns, reason by reason, what `buyer` would find among the best asks of each class if it
    /// placed `bid` now.
    ///
    /// # Errors
    /// If the exchange would refuse the bid before it searches for asks.
    pub fn explain_bid(&self, buyer: AccountKey, bid: &Bid) -> Result<Explanation, Refusal> {
        let slot = self
            .ledger
            .find_slot(buyer)
            .ok_or(Refusal::AccountUnknown { account: buyer })?;
        let price = self.check_bid(bid, &self.class_rules(bid.class))?;
        let live = hypothetical_bid(slot, price, bid);
        let mut found = Explanation::default();
        let mut ruled: BTreeMap<Lack, Exclusion> = BTreeMap::new();
        let is_alike =
            |class: &Class| class.kind == bid.class.kind && class.emulated == bid.class.emulated;
        let each = self.each_of(EXPLAINED_MAX, is_alike);
        for book in self.books.by_class().filter(|book| is_alike(&book.class)) {
            let class = book.class;
            for ask in self.books.side_orders(book, Side::Ask).take(each) {
                found.seen.count_up();
                match self.any_lack(&class, &ask, &live, bid) {
                    None => found.eligible.count_up(),
                    Some(lack) => {
                        count_exclusion(&mut ruled, lack, self.lack_figures(lack, &ask, &live))
                    }
                }
            }
        }
        found.ruled_out = ruled.into_values().collect();
        Ok(found)
    }

    /// Returns the ask with which `buyer` would trade first if it placed `bid` now.
    ///
    /// # Errors
    /// If the exchange would refuse the bid before it searches for asks.
    pub fn first_ask(&self, buyer: AccountKey, bid: &Bid) -> Result<FirstAsk, Refusal> {
        let slot = self
            .ledger
            .find_slot(buyer)
            .ok_or(Refusal::AccountUnknown { account: buyer })?;
        let price = self.check_bid(bid, &self.class_rules(bid.class))?;
        let Some(book) = self.books.find_book(bid.class) else {
            return Ok(FirstAsk {
                ask: None,
                visits: 0,
            });
        };
        let live = hypothetical_bid(slot, price, bid);
        // This considers only the asks' limits, because it measures the visits of the index.
        let query = BookQuery {
            book,
            side: Side::Ask,
            demand: live.terms.demand(),
            limit: price,
        };
        let mut visits = VisitBudget::new();
        let suits = |ask: &Order| self.find_lack(ask, live.as_view()).is_none();
        let found = self.books.next(&query, None, &mut visits, suits);
        Ok(FirstAsk {
            ask: found.map(|ask| ask.id),
            visits: visits.steps_made(),
        })
    }

    fn any_lack(&self, class: &Class, ask: &Order, live: &LiveBid, bid: &Bid) -> Option<Lack> {
        let other = || (*class != bid.class).then_some(Lack::Class);
        let dear =
            || (self.ask_price_for(ask, live.as_view()) > live.order.price).then_some(Lack::Price);
        self.find_lack(ask, live.as_view())
            .or_else(other)
            .or_else(dear)
    }

    /// Returns the bid's demand and the ask's value, if the reason is a figure.
    fn lack_figures(&self, lack: Lack, ask: &Order, live: &LiveBid) -> Option<(u64, u64)> {
        let terms = self.books.ask_terms.get(ask.detail.terms);
        let provider = self.ledger.get(ask.provider().0);
        let (wants, resources) = (&live.terms.wants, &terms.resources);
        Some(match lack {
            Lack::Memory => (wants.memory_bytes, resources.memory_bytes),
            Lack::MemoryBandwidth => (wants.memory_bandwidth, resources.memory_bandwidth),
            Lack::Throughput(dtype) => (
                wants.throughput.for_dtype(dtype),
                resources.throughput.for_dtype(dtype),
            ),
            Lack::LinkBandwidth => (wants.link_bandwidth, resources.link_bandwidth),
            Lack::LinkLatency => (wants.link_latency_us, resources.link_latency_us),
            Lack::Reputation => (
                wants.reputation.0.into(),
                provider.reputation.score.0.into(),
            ),
            Lack::Stake => (wants.stake.0, provider.stake.0),
            Lack::Notice => {
                let notice = self.notice_of(ask, ask.resold_lease(), live.as_view());
                (wants.notice.0, notice.0)
            }
            Lack::Price => (
                live.order.price.0,
                self.ask_price_for(ask, live.as_view()).0,
            ),
            _ => return None,
        })
    }
}

/// Builds the bid as if it were placed; it has no id and no interned terms.
fn hypothetical_bid(slot: Slot, price: Price, bid: &Bid) -> LiveBid {
    let detail = OrderDetail {
        slot,
        book: BookId(u32::MAX),
        terms: TermsId(u32::MAX),
        expires: Millis(u64::MAX),
        kind: OrderKind::Bid { budget: bid.budget },
    };
    let order = Order {
        id: OrderId(u64::MAX),
        price,
        remaining: bid.quantity,
        detail,
    };
    LiveBid {
        order,
        terms: Arc::new(BidTerms::from_order(bid)),
        job: bid.job,
    }
}

fn count_exclusion(ruled: &mut BTreeMap<Lack, Exclusion>, lack: Lack, figures: Option<(u64, u64)>) {
    let (wanted, offered) = figures.unwrap_or((0, 0));
    let fresh = Exclusion {
        lack,
        count: 0,
        wanted,
        nearest: offered,
    };
    let entry = ruled.entry(lack).or_insert(fresh);
    entry.count.count_up();
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

impl fmt::Display for Exclusion {
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
                write!(
                    f,
                    "below {} (best {})",
                    format_bytes(*wanted),
                    format_bytes(*nearest)
                )
            }
            Lack::MemoryBandwidth => {
                write!(f, "below {}/s of memory bandwidth", format_bytes(*wanted))
            }
            Lack::Throughput(dtype) => {
                write!(f, "below {wanted} {dtype:?} MFLOP/s (best {nearest})")
            }
            Lack::LinkBandwidth => write!(f, "with a link below {}/s", format_bytes(*wanted)),
            Lack::LinkLatency => write!(f, "with a link slower than {wanted} us"),
            Lack::Region => f.write_str("in other regions"),
            Lack::Features => f.write_str("without a feature you need"),
            Lack::Operators => f.write_str("without an operator you need"),
            Lack::Model => f.write_str("that sell no tokens of the model you want"),
            Lack::TokenTerms => f.write_str("whose tokens cost more than you allow"),
            Lack::Reputation => write!(f, "with a reputation below {wanted} (best {nearest})"),
            Lack::Stake => write!(f, "with a stake below {wanted} (best {nearest})"),
            Lack::Term => f.write_str("that resell a spot lease"),
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

/// Formats bytes for people: whole numbers or tenths of the greatest binary unit that fits.
fn format_bytes(count: u64) -> String {
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
