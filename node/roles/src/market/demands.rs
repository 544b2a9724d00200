//! Selects the asks in the book that suit a buyer, and says why the others do not. The validator
//! runs it for a planner, because a book of a hundred thousand asks is too much to send for a job
//! of two parts: the answer has the cheapest suitable asks of each class and a few words about the
//! rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, Class, Features, Listing, Millis, Operators, Permille, Price, Regions,
};

use super::unsuitable::{Cause, Tally, Unsuitable};
use super::{features, operators, regions};

/// The most asks of one class in an answer: more than a plan has parts, so that there is a choice.
const PER_CLASS: usize = 24;

/// The most asks in an answer: a planner looks through so many within milliseconds.
const LISTINGS_MAX: usize = 256;

/// The most operators that an example names: enough to see what kind they are.
const NAMED_MAX: usize = 5;

/// The conditions that an ask must meet for a buyer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demands {
    /// The buyer's account.
    pub buyer: AccountKey,
    /// Providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// Whether only devices that are really there will do.
    pub real_only: bool,
    /// The most per device-second.
    pub price_max: Option<Price>,
    /// The least notice.
    pub notice_min: Millis,
    /// Whether spot leases are wanted, at what asks ask for them.
    pub spot: bool,
    /// The regions where devices can be; the empty set for anywhere.
    pub regions: Regions,
    /// The least reputation.
    pub reputation_min: Permille,
    /// Whether the device's power must be stated.
    pub power_known: bool,
    /// Kernels of the buyer's own that the device must run, and what it must go through, as
    /// [`features`] has both.
    pub features: Features,
    /// Operators of the model.
    pub operators: Operators,
    /// Digests of the model's nodes, in order, as [`souk_market::RefusedNodes`] has them.
    pub nodes: Vec<u64>,
    /// Whether a device that runs only some of them will do, for others can run the rest.
    pub in_parts: bool,
    /// Kinds or models of which the device must be one, by kind or name; none for any.
    pub devices: Vec<String>,
}

/// The asks that suit, and why the others do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The number of asks in the book.
    pub seen: u64,
    /// The number of asks that suit.
    pub eligible: u64,
    /// The cheapest of each class that suit.
    pub listings: Vec<Listing>,
    /// The asks that do not suit, by cause.
    pub unsuitable: Vec<Unsuitable>,
    /// Operators of the model that some of all asks do not run, rarest first.
    pub scarce: Vec<ScarceOperator>,
}

/// An operator that not every ask runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScarceOperator {
    /// Its number among [`operators::NAMES`].
    pub operator: u16,
    /// The number of asks that run it.
    pub asks: u64,
}

impl Demands {
    /// Selects among the asks of a book, which can come in any order.
    #[must_use]
    pub fn choose_asks(&self, asks: impl Iterator<Item = Listing>) -> Choice {
        let mut suiting = BTreeMap::<Class, Vec<Listing>>::new();
        let mut tally = Tally::default();
        let mut choice = Choice::default();
        let mut lacks = BTreeMap::<usize, u64>::new();
        for listing in asks {
            choice.seen += 1;
            let there = &listing.resources.operators;
            let missing = self
                .operators
                .numbers()
                .filter(|it| !there.has_operator(*it));
            missing.for_each(|number| *lacks.entry(number).or_default() += 1);
            let listing = match self.spot {
                true => listing.to_spot_buyer(self.notice_min),
                false => listing,
            };
            let Some(lack) = self.unsuitable_cause(&listing) else {
                choice.eligible += 1;
                suiting.entry(listing.class).or_default().push(listing);
                continue;
            };
            tally.add(&listing, lack);
        }
        for mut class in suiting.into_values() {
            let is_short = |it: &Listing| !it.resources.operators.is_superset_of(&self.operators);
            class.sort_by_key(|listing| (is_short(listing), listing.price, listing.order));
            class.truncate(PER_CLASS);
            choice.listings.extend(class);
        }
        choice.listings.sort_by_key(|listing| listing.order);
        choice.listings.truncate(LISTINGS_MAX);
        choice.unsuitable = tally.into_unsuitable();
        let scarce = lacks.into_iter().map(|(number, lacking)| ScarceOperator {
            operator: u16::try_from(number).expect("a set holds few"),
            asks: choice.seen - lacking,
        });
        choice.scarce = scarce.collect();
        choice.scarce.sort_by_key(|it| it.asks);
        choice
    }

    /// Returns whether an ask suits.
    #[must_use]
    pub fn is_suitable(&self, listing: &Listing) -> bool {
        self.unsuitable_cause(listing).is_none()
    }

    /// Returns why an ask does not suit, and what it has in place of the demand; none if it suits.
    fn unsuitable_cause(&self, listing: &Listing) -> Option<(Cause, String)> {
        let stated = &listing.resources;
        let bare = |cause| Some((cause, String::new()));
        if listing.provider == self.buyer {
            return bare(Cause::Own);
        }
        if self.excluded.contains(&listing.provider) {
            return bare(Cause::Excluded);
        }
        let is_it =
            |word: &String| is_named(word, stated.kind_name.as_str(), stated.model.as_str());
        if !self.devices.is_empty() && !self.devices.iter().any(is_it) {
            return Some((Cause::Device, format!("is a {}", stated.kind_name)));
        }
        let mut backends =
            features::missing_names(&features::BACKENDS, self.features, stated.features);
        if let Some(backend) = backends.next() {
            return Some((Cause::Backend, format!("runs nothing through {backend}")));
        }
        let mut services =
            features::missing_names(&features::SERVICES, self.features, stated.features);
        if services.next().is_some() {
            return Some((
                Cause::Sessions,
                "keeps no states between requests".to_owned(),
            ));
        }
        let kernels = features::missing_names(&features::KERNELS, self.features, stated.features);
        let kernels: Vec<&str> = kernels.collect();
        if !kernels.is_empty() {
            let has = format!("runs no kernels in {}", kernels.join(" or "));
            return Some((Cause::Kernels, has));
        }
        if let Some(lack) = self.lack_operators(&stated.operators) {
            return Some((Cause::Operators, lack));
        }
        let mut refused = stated.refused.digests().iter();
        if refused.any(|digest| self.nodes.binary_search(digest).is_ok()) {
            return bare(Cause::Refused);
        }
        if self.real_only && stated.emulated {
            return bare(Cause::Emulated);
        }
        self.terms_cause(listing)
            .or_else(|| self.price_cause(listing))
    }

    /// Returns the operators of the model that a device does not run, if that excludes it.
    fn lack_operators(&self, there: &Operators) -> Option<String> {
        let runs_some = || self.operators.numbers().any(|it| there.has_operator(it));
        if there.is_superset_of(&self.operators) || (self.in_parts && runs_some()) {
            return None;
        }
        let missing: Vec<&str> = operators::missing_names(&self.operators, there).collect();
        let named = missing[..missing.len().min(NAMED_MAX)].join(", ");
        let more = match missing.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("runs no {named}{more}"))
    }

    /// Returns why the terms of an ask (region, notice, price and the like) do not suit, if so.
    fn terms_cause(&self, listing: &Listing) -> Option<(Cause, String)> {
        let stated = &listing.resources;
        if self.regions != Regions(0) && !self.regions.has_region(stated.region) {
            let region = regions::name(stated.region);
            return Some((Cause::Region, format!("is in {region}")));
        }
        if listing.reputation < self.reputation_min {
            let (has, least) = (listing.reputation, self.reputation_min);
            return Some((Cause::Reputation, format!("has {has}, below {least}")));
        }
        if listing.notice < self.notice_min {
            let (has, least) = (listing.notice.0, self.notice_min.0);
            return Some((Cause::Notice, format!("gives {has} ms, below {least}")));
        }
        if self.power_known && stated.power_mw == 0 {
            return Some((Cause::Power, String::new()));
        }
        is_buyer_refused(listing, self.buyer).then(|| (Cause::Buyer, String::new()))
    }

    fn price_cause(&self, listing: &Listing) -> Option<(Cause, String)> {
        let limit = self.price_max?;
        let dear = listing.price > limit;
        dear.then(|| {
            let (asked, most) = (format_credits(listing.price), format_credits(limit));
            let has = format!("asks {asked} credits a second, above the limit of {most}");
            (Cause::Price, has)
        })
    }
}

/// Formats a price in credits a second, without zeros at the end.
fn format_credits(price: Price) -> String {
    let (whole, micros) = (price.0 / 1_000_000, price.0 % 1_000_000);
    let text = format!("{whole}.{micros:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns whether a word names a device: its kind, or a part of its model's name, in any case.
fn is_named(word: &str, kind: &str, model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    kind.eq_ignore_ascii_case(word) || model.contains(&word.to_ascii_lowercase())
}

fn is_buyer_refused(listing: &Listing, buyer: AccountKey) -> bool {
    let accepts = &listing.accepts;
    let named = accepts.excluded.contains(&buyer);
    let closed = !accepts.only.is_empty() && !accepts.only.contains(&buyer);
    named || closed
}

#[cfg(test)]
mod tests {
    use souk_market::{Credits, DeviceId, Name, OrderId, Resources, SpotPrice, Units};

    use super::*;

    fn listing(order: u64, price: u64) -> Listing {
        let resources = Resources {
            model: "H100".try_into().unwrap(),
            ..Resources::default()
        };
        Listing {
            order: OrderId(order),
            provider: AccountKey([order as u8; 32]),
            name: Name::default(),
            reputation: Permille(500),
            stake: Credits(0),
            device: DeviceId(1),
            class: resources.class(),
            resources,
            price: Price(price),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(1_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: souk_market::BuyerFilter::default(),
            resale: None,
        }
    }

    fn demands() -> Demands {
        Demands {
            buyer: AccountKey([255; 32]),
            excluded: Vec::new(),
            real_only: false,
            price_max: None,
            notice_min: Millis(0),
            spot: false,
            regions: Regions(0),
            reputation_min: Permille(0),
            power_known: false,
            features: Features(0),
            operators: Operators::default(),
            nodes: Vec::new(),
            in_parts: false,
            devices: Vec::new(),
        }
    }

    #[test]
    fn of_a_large_book_the_cheapest_of_a_class_are_sent() {
        let asks = (1..=200).map(|order| listing(order, 1_000 - order));
        let choice = demands().choose_asks(asks);
        assert_eq!((choice.seen, choice.eligible), (200, 200));
        assert_eq!(choice.listings.len(), PER_CLASS);
        let dearest = choice.listings.iter().map(|listing| listing.price.0).max();
        assert_eq!(dearest, Some(800 + PER_CLASS as u64 - 1));
    }

    #[test]
    fn who_takes_spot_leases_sees_what_they_cost_at_the_notice_it_wants() {
        let spot = |notice, price| SpotPrice {
            notice: Millis(notice),
            price: Price(price),
        };
        let ask = Listing {
            spot: vec![spot(1_000, 10), spot(60_000, 20)],
            ..listing(1, 30)
        };
        let seen = |spot, notice_min| {
            let wanted = Demands {
                spot,
                notice_min: Millis(notice_min),
                ..demands()
            };
            let choice = wanted.choose_asks([ask.clone()].into_iter());
            choice.listings.first().map(|it| (it.price.0, it.notice.0))
        };
        assert_eq!(seen(false, 0), Some((30, 0)));
        assert_eq!(seen(true, 0), Some((10, 1_000)));
        assert_eq!(seen(true, 5_000), Some((20, 60_000)));
        assert_eq!(seen(true, 90_000), None, "it gives no such notice");
    }

    #[test]
    fn what_does_not_suit_is_counted_with_its_reason() {
        let wanted = Demands {
            reputation_min: Permille(600),
            ..demands()
        };
        let choice = wanted.choose_asks((1..=3).map(|order| listing(order, 5)));
        assert!(choice.listings.is_empty());
        let text: Vec<String> = choice
            .unsuitable
            .iter()
            .map(Unsuitable::to_string)
            .collect();
        assert_eq!(
            text,
            ["3 of too low a reputation (H100 has 500, below 600)"]
        );
    }

    #[test]
    fn only_who_runs_what_the_model_has_suits_and_what_is_scarce_is_counted() {
        let set = |names: &[&str]| {
            let numbers = names
                .iter()
                .map(|name| operators::operator_number(name).unwrap());
            Operators::from_numbers(numbers)
        };
        let asks = || {
            [
                (1, &["Add", "Conv", "Relu"][..]),
                (2, &["Add", "Relu"]),
                (3, &["Relu"]),
            ]
            .map(|(order, names)| {
                let mut ask = listing(order, 5 - order);
                ask.resources.operators = set(names);
                ask
            })
        };
        let chosen = |needed: &[&str], in_parts| {
            let wanted = Demands {
                operators: set(needed),
                in_parts,
                ..demands()
            };
            let choice = wanted.choose_asks(asks().into_iter());
            let orders = choice
                .listings
                .iter()
                .map(|it| it.order.0)
                .collect::<Vec<_>>();
            (orders, choice)
        };
        let (orders, choice) = chosen(&["Add", "Conv"], false);
        assert_eq!(orders, [1]);
        let told = choice.unsuitable[0].to_string();
        let both = "2 without operators of the model (H100 runs no Add, Conv; H100 runs no Conv)";
        assert_eq!(told, both);
        let scarce = choice.scarce.iter().map(|it| {
            let name = operators::name(usize::from(it.operator));
            (name, it.asks)
        });
        assert_eq!(scarce.collect::<Vec<_>>(), [("Conv", 1), ("Add", 2)]);
        // Who runs none of it is no help in parts either.
        assert_eq!(chosen(&["Add", "Conv"], true).0, [1, 2]);
        let (none, choice) = chosen(&["Gelu"], true);
        assert!(none.is_empty() && choice.scarce[0].asks == 0);
    }

    #[test]
    fn the_cheapest_are_the_examples_of_a_cause() {
        let wanted = Demands {
            price_max: Some(Price(5)),
            ..demands()
        };
        let mut choice = wanted.choose_asks((1..=9).map(|order| listing(order, 20 - order)));
        let dear = choice.unsuitable.pop().expect("all are too dear");
        assert_eq!(
            (dear.cause, dear.asks, dear.examples.len()),
            (Cause::Price, 9, 3)
        );
        assert!(dear.examples[0].contains("asks 0.000011"), "{dear}");
    }

    #[test]
    fn a_device_is_named_by_its_kind_or_a_part_of_its_model() {
        for word in ["gpu", "GPU", "h100", "NVIDIA H100 SXM"] {
            assert!(is_named(word, "gpu", "NVIDIA H100 SXM"), "{word}");
        }
        for word in ["cpu", "gp", "A100"] {
            assert!(!is_named(word, "gpu", "NVIDIA H100 SXM"), "{word}");
        }
    }

    #[test]
    fn each_demand_rules_out_by_itself() {
        let ask = listing(7, 5);
        let rules_out = |demands: Demands| demands.unsuitable_cause(&ask).is_some();
        assert!(!rules_out(demands()));
        assert!(rules_out(Demands {
            excluded: vec![ask.provider],
            ..demands()
        }));
        assert!(rules_out(Demands {
            buyer: ask.provider,
            ..demands()
        }));
        assert!(rules_out(Demands {
            price_max: Some(Price(4)),
            ..demands()
        }));
        assert!(rules_out(Demands {
            notice_min: Millis(1),
            ..demands()
        }));
        assert!(rules_out(Demands {
            regions: Regions(0b10),
            ..demands()
        }));
        assert!(rules_out(Demands {
            power_known: true,
            ..demands()
        }));
        assert!(rules_out(Demands {
            features: Features(1),
            ..demands()
        }));
        let sessions = features::find_feature(&features::SERVICES, "sessions");
        assert!(rules_out(Demands {
            features: sessions,
            ..demands()
        }));
        assert!(rules_out(Demands {
            devices: vec!["gpu".to_owned(), "tpu".to_owned()],
            ..demands()
        }));
    }
}
