//! Selects the asks in the book that suit a buyer, and says why the others do not. The validator
//! runs it for a planner, because a book of a hundred thousand asks is too much to send for a job
//! of two parts: the answer has the cheapest suitable asks of each class and a few words about the
//! rest.

mod ask_walk;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, Class, Features, Listing, ListingRef, Millis, Name, Operators, OrderId, Permille,
    Price, Regions, Resources, TokenTerms,
};

use super::device_verdicts::DeviceVerdict;
use super::unsuitable::{Cause, Unsuitable};
use super::{features, operators, regions};
use crate::tokens::card::TextCard;
use crate::tokens::counting::TokenRates;
use ask_walk::AskWalk;

/// How far apart prices can be to count as equal: the dearer one, in per cent of the other.
const NEAR_PERCENT: u128 = 101;

/// The most operators that an example names: enough to see what kind they are.
const NAMED_MAX: usize = 5;

/// The conditions that an ask must meet for a buyer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demands {
    /// The buyer's account.
    pub buyer: AccountKey,
    /// Providers not to buy from.
    pub excluded: Vec<AccountKey>,
    /// Whether the buyer accepts only real devices, not emulated ones.
    pub real_only: bool,
    /// The most per device-second.
    pub price_max: Option<Price>,
    /// The least notice.
    pub notice_min: Millis,
    /// Whether the buyer wants spot leases, at the prices that asks state for them.
    pub spot: bool,
    /// The regions where devices can be; the empty set for anywhere.
    pub regions: Regions,
    /// The least reputation.
    pub reputation_min: Permille,
    /// Whether the device's power must be stated.
    pub power_known: bool,
    /// The languages of the buyer's own kernels that the device must run, and the backend that it
    /// must use, as [`features`] names them.
    pub features: Features,
    /// Operators of the model.
    pub operators: Operators,
    /// Digests of the model's nodes, in order, as [`souk_market::RefusedGraphNodes`] has them.
    pub nodes: Vec<u64>,
    /// Whether a device that runs only some of the operators suits too, because other devices can
    /// run the rest.
    pub in_parts: bool,
    /// Kinds or models of which the device must be one, by kind or name; none for any.
    pub devices: Vec<String>,
    /// The model whose text the buyer wants; none if it wants a device.
    pub text_model: Option<Name>,
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
    /// Selects among the asks of a book. Each item is a class: the resources of its asks, each with
    /// their number, and the asks themselves, the cheapest first. Each ask is its resources, and a
    /// function that looks up the rest. A class without a suitable device costs no walk over its
    /// asks: the devices are judged once each, and a few asks looked up as examples.
    #[must_use]
    pub fn choose_asks<'a, D, A, L>(&self, classes: impl Iterator<Item = (D, A)>) -> Choice
    where
        D: Iterator<Item = (&'a Resources, u64)>,
        A: Iterator<Item = (&'a Resources, L)>,
        L: FnOnce() -> ListingRef<'a>,
    {
        let mut walk = AskWalk::new(self);
        for (devices, asks) in classes {
            walk.on_class(devices, asks);
        }
        walk.into_choice()
    }

    /// Returns the cheapest asks of a class, those first that run the whole model. Among asks
    /// within 1 % of the cheapest of them, the order is this buyer's own: otherwise all buyers
    /// would want the same ones, and only one of them can have each. If texts are wanted, an ask is
    /// as cheap as a usual request there, and each provider has one place: others must not lose
    /// theirs to someone with many asks.
    pub(super) fn select_cheapest<'a>(
        &self,
        mut asks: Vec<ListingRef<'a>>,
        most: usize,
    ) -> Vec<ListingRef<'a>> {
        let is_short =
            |it: &ListingRef<'_>| !it.resources.operators.is_superset_of(&self.operators);
        asks.sort_by_cached_key(|it| (is_short(it), self.cost_of(it), it.order));
        if self.text_model.is_some() {
            let mut placed = BTreeSet::new();
            asks.retain(|it| placed.insert(it.provider));
        }
        let seed = own_seed(self.buyer);
        let mut chosen = Vec::new();
        let mut rest = &mut asks[..];
        while chosen.len() < most
            && let Some(first) = rest.first().copied()
        {
            let near_most = self.cost_of(&first).saturating_mul(NEAR_PERCENT);
            let is_near = |it: &ListingRef<'_>| {
                is_short(it) == is_short(&first)
                    && self.cost_of(it).saturating_mul(100) <= near_most
            };
            let (near, others) = rest.split_at_mut(rest.partition_point(is_near));
            near.sort_by_cached_key(|it| own_rank(seed, it.order));
            chosen.extend(near.iter().take(most - chosen.len()).copied());
            rest = others;
        }
        chosen
    }

    /// Returns the only class of asks that can suit; none if several can.
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        let card = TextCard::new(self.text_model.as_ref()?.as_str()).ok()?;
        Some(card.to_resources(TokenTerms::USUAL).class())
    }

    /// Returns what asks of one class are compared by.
    fn cost_of(&self, ask: &ListingRef<'_>) -> u128 {
        match self.text_model {
            Some(_) => TokenRates::new(ask.price, ask.resources.tokens).usual_cost(),
            None => u128::from(ask.price.0),
        }
    }

    /// Returns whether an ask suits.
    #[must_use]
    pub fn is_suitable(&self, listing: &Listing) -> bool {
        self.judge_device(&listing.resources).cause.is_none()
            && self.ask_cause(&listing.as_ref()).is_none()
    }

    /// Judges a device by its resources alone.
    pub(super) fn judge_device(&self, stated: &Resources) -> DeviceVerdict {
        DeviceVerdict {
            cause: self.device_cause(stated),
            is_short: !stated.operators.is_superset_of(&self.operators),
        }
    }

    /// Returns why no ask of a device suits, if so.
    fn device_cause(&self, stated: &Resources) -> Option<Cause> {
        let is_it =
            |word: &String| is_named(word, stated.kind_name.as_str(), stated.model.as_str());
        let lacks = |table| features::missing_names(table, self.features, stated.features);
        let mut refused = stated.refused.digests().iter();
        let is_elsewhere = self.regions != Regions(0) && !self.regions.has_region(stated.region);
        if !self.devices.is_empty() && !self.devices.iter().any(is_it) {
            return Some(Cause::Device);
        }
        let is_other = |model: &Name| !is_text_of(stated, model);
        if self.text_model.as_ref().is_some_and(is_other) {
            return Some(Cause::Device);
        }
        if lacks(&features::BACKENDS).next().is_some() {
            return Some(Cause::Backend);
        }
        if lacks(&features::SERVICES).next().is_some() {
            return Some(Cause::Sessions);
        }
        if lacks(&features::PROMISES).next().is_some() {
            return Some(Cause::Exact);
        }
        if lacks(&features::KERNELS).next().is_some() {
            return Some(Cause::Kernels);
        }
        if !self.has_operators(&stated.operators) {
            return Some(Cause::Operators);
        }
        if refused.any(|digest| self.nodes.binary_search(digest).is_ok()) {
            return Some(Cause::Refused);
        }
        let causes = [
            (self.real_only && stated.emulated, Cause::Emulated),
            (is_elsewhere, Cause::Region),
            (self.power_known && stated.power_mw == 0, Cause::Power),
        ];
        first_cause(causes)
    }

    /// Returns whether a device runs the operators of the model, or as many as are needed.
    fn has_operators(&self, there: &Operators) -> bool {
        let runs_some = || self.operators.numbers().any(|it| there.has_operator(it));
        there.is_superset_of(&self.operators) || (self.in_parts && runs_some())
    }

    /// Returns why an ask of a device that suits does not: its account, notice, price and the like.
    pub(super) fn ask_cause(&self, listing: &ListingRef<'_>) -> Option<Cause> {
        let causes = [
            (listing.provider == self.buyer, Cause::Own),
            (self.excluded.contains(&listing.provider), Cause::Excluded),
            (listing.reputation < self.reputation_min, Cause::Reputation),
            (listing.notice < self.notice_min, Cause::Notice),
            (is_buyer_refused(listing, self.buyer), Cause::Buyer),
            (
                self.price_max.is_some_and(|most| listing.price > most),
                Cause::Price,
            ),
        ];
        first_cause(causes)
    }

    /// Returns what an ask has in place of the demand that it does not meet.
    pub(super) fn describe_lack(&self, cause: Cause, listing: &ListingRef<'_>) -> String {
        let stated = listing.resources;
        let lacks = |table| features::missing_names(table, self.features, stated.features);
        match cause {
            Cause::Device => format!("is a {}", stated.kind_name),
            Cause::Backend => {
                let backend = lacks(&features::BACKENDS).next().unwrap_or_default();
                format!("runs nothing through {backend}")
            }
            Cause::Sessions => "keeps no states between requests".to_owned(),
            Cause::Exact => "does not promise exact results".to_owned(),
            Cause::Kernels => {
                let kernels: Vec<&str> = lacks(&features::KERNELS).collect();
                format!("runs no kernels in {}", kernels.join(" or "))
            }
            Cause::Operators => self.describe_missing(&stated.operators),
            Cause::Region => format!("is in {}", regions::name(stated.region)),
            Cause::Reputation => {
                format!("has {}, below {}", listing.reputation, self.reputation_min)
            }
            Cause::Notice => {
                let (has, least) = (listing.notice.0, self.notice_min.0);
                format!("gives {has} ms, below {least}")
            }
            Cause::Price => {
                let asked = format_credits(listing.price);
                let most = format_credits(self.price_max.unwrap_or(listing.price));
                format!("asks {asked} credits a second, above the limit of {most}")
            }
            Cause::Own
            | Cause::Excluded
            | Cause::Refused
            | Cause::Emulated
            | Cause::Power
            | Cause::Buyer => String::new(),
        }
    }

    /// Describes the operators of the model that a device does not run.
    fn describe_missing(&self, there: &Operators) -> String {
        let missing: Vec<&str> = operators::missing_names(&self.operators, there).collect();
        let named = missing[..missing.len().min(NAMED_MAX)].join(", ");
        let more = match missing.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("runs no {named}{more}")
    }
}

/// Returns the first cause that holds.
fn first_cause<const N: usize>(causes: [(bool, Cause); N]) -> Option<Cause> {
    let cause = causes.into_iter().find(|(holds, _)| *holds);
    cause.map(|(_, cause)| cause)
}

/// Returns the number that determines a buyer's own order of asks.
fn own_seed(buyer: AccountKey) -> u64 {
    let hash = blake3::hash(&buyer.0);
    let first = hash.as_bytes().first_chunk();
    u64::from_le_bytes(*first.expect("a hash has 32 bytes"))
}

/// Returns the rank of an ask in the order of this seed: SplitMix64's mix, since equal asks can be
/// tens of thousands.
fn own_rank(seed: u64, order: OrderId) -> u64 {
    let mixed = seed ^ order.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Formats a price in credits a second, without zeros at the end.
fn format_credits(price: Price) -> String {
    let (whole, micros) = (price.0 / 1_000_000, price.0 % 1_000_000);
    let text = format!("{whole}.{micros:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns whether a word names a device: its kind, or a part of its model's name, in any case.
fn is_named(word: &str, kind: &str, model: &str) -> bool {
    let (word, model) = (word.as_bytes(), model.as_bytes());
    let is_part = || {
        let mut parts = model.windows(word.len().max(1));
        word.is_empty() || parts.any(|part| part.eq_ignore_ascii_case(word))
    };
    kind.as_bytes().eq_ignore_ascii_case(word) || is_part()
}

/// Returns whether an ask sells the texts of a model, in the one class that its texts are sold in.
/// Another model or a device of a like name could take the places of those that do.
fn is_text_of(stated: &Resources, model: &Name) -> bool {
    let card = TextCard::of_resources(stated).filter(|card| card.model == *model);
    card.is_some_and(|card| stated.class() == card.to_resources(TokenTerms::USUAL).class())
}

fn is_buyer_refused(listing: &ListingRef<'_>, buyer: AccountKey) -> bool {
    let accepts = listing.accepts;
    let named = accepts.excluded.contains(&buyer);
    let closed = !accepts.only.is_empty() && !accepts.only.contains(&buyer);
    named || closed
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use souk_market::{Credits, DeviceId, KindCode, Resources, SpotPrice, Units};

    use super::ask_walk::{LISTINGS_MAX, PER_CLASS};
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
            text_model: None,
        }
    }

    /// An ask for the texts of a model.
    fn text_ask(order: u64, provider: u8, model: &str, price: u64, input_us: u32) -> Listing {
        let terms = TokenTerms {
            input_us,
            ..TokenTerms::USUAL
        };
        let resources = TextCard::new(model).unwrap().to_resources(terms);
        Listing {
            provider: AccountKey([provider; 32]),
            class: resources.class(),
            resources,
            ..listing(order, price)
        }
    }

    /// Selects among listings of one's own.
    fn choose(demands: &Demands, listings: &[Listing]) -> Choice {
        let mut classes = BTreeMap::<Class, Vec<&Listing>>::new();
        for listing in listings {
            classes.entry(listing.class).or_default().push(listing);
        }
        demands.choose_asks(classes.values().map(|asks| {
            let devices = asks.iter().map(|it| (&it.resources, 1));
            (
                devices,
                asks.iter().map(|it| (&it.resources, || it.as_ref())),
            )
        }))
    }

    #[test]
    fn of_a_large_book_the_cheapest_of_a_class_are_sent() {
        let asks: Vec<Listing> = (1..=200).map(|n| listing(n, 20_000 - 100 * n)).collect();
        let choice = choose(&demands(), &asks);
        assert_eq!((choice.seen, choice.eligible), (200, 200));
        assert_eq!(choice.listings.len(), PER_CLASS);
        let dearest = choice.listings.iter().map(|listing| listing.price.0).max();
        assert_eq!(dearest, Some(100 * (PER_CLASS as u64 - 1)));
    }

    #[test]
    fn of_a_class_without_a_suitable_device_all_asks_are_counted_and_a_few_looked_up() {
        let asks: Vec<Listing> = (1..=500).map(|n| listing(n, 1_000 + n)).collect();
        let wanted = Demands {
            devices: vec!["tpu".to_owned()],
            ..demands()
        };
        let looked_up = Cell::new(0);
        let look_up = |listing| {
            looked_up.set(looked_up.get() + 1);
            Listing::as_ref(listing)
        };
        let devices = asks.iter().map(|it| (&it.resources, 1));
        let asks = asks.iter().map(|it| (&it.resources, || look_up(it)));
        let choice = wanted.choose_asks([(devices, asks)].into_iter());
        assert_eq!((choice.seen, choice.eligible), (500, 0));
        let other = &choice.unsuitable[0];
        assert_eq!((other.cause, other.asks), (Cause::Device, 500));
        assert!(other.examples[0].starts_with("H100 is a"), "{other}");
        assert!(looked_up.get() <= 4, "{looked_up:?}");
    }

    #[test]
    fn nobody_hides_the_texts_of_a_model_behind_asks_of_one_account() {
        let model = "qwen/qwen3-8b";
        let usual = TokenTerms::USUAL.input_us;
        let honest = || (1..=5).map(|n| text_ask(n, n as u8, model, 200 + n, usual));
        let mallory = |count: u64, change: &dyn Fn(u64, Listing) -> Listing| {
            let asks = (100..100 + count).map(|n| change(n, text_ask(n, 66, model, 1, usual)));
            asks.collect::<Vec<Listing>>()
        };
        let wanted = Demands {
            text_model: Some(Name::try_from(model).unwrap()),
            ..demands()
        };
        let chosen = |more: Vec<Listing>| -> Vec<u64> {
            let asks: Vec<Listing> = more.into_iter().chain(honest()).collect();
            let choice = choose(&wanted, &asks);
            choice.listings.iter().map(|it| it.order.0).collect()
        };
        // The look is at the asks of this model alone, however many others are cheaper.
        assert_eq!(wanted.class(), Some(text_ask(1, 1, model, 1, usual).class));
        assert_eq!(demands().class(), None);
        // Many asks of one account have the place of the cheapest of them.
        let many = chosen(mallory(40, &|n, ask| Listing {
            price: Price(n),
            ..ask
        }));
        assert_eq!(many, [1, 2, 3, 4, 5, 100]);
        // A model, a device or a class that is like the model's is none of it.
        let other = mallory(40, &|n, _| text_ask(n, 66, "qwen/qwen3-8b-x", 1, usual));
        let of_its_kind = |n: u64, ask: Listing| {
            let mut other = text_ask(n, 66, "qwen/qwen3-8b-x", 1, usual);
            (other.resources.kind, other.class) = (ask.resources.kind, ask.class);
            other
        };
        let device = |_: u64, mut ask: Listing| {
            ask.resources.tokens = None;
            ask
        };
        let classes = |n: u64, mut ask: Listing| {
            ask.resources.memory_bytes = (n - 99) << 30;
            ask.class = ask.resources.class();
            ask
        };
        let kinds = |n: u64, mut ask: Listing| {
            ask.resources.kind = KindCode(n as u16);
            ask.class = ask.resources.class();
            ask
        };
        let decoys: [Vec<Listing>; 5] = [
            other,
            mallory(40, &of_its_kind),
            mallory(40, &device),
            mallory(400, &classes),
            mallory(400, &kinds),
        ];
        for decoys in decoys {
            assert_eq!(chosen(decoys), [1, 2, 3, 4, 5]);
        }
        // A lure is as dear as its input: it comes after those that cost less.
        let lures = (0..30).map(|n| text_ask(100 + n, 100 + n as u8, model, 1, 900_000));
        let chosen = chosen(lures.collect());
        assert_eq!(
            (chosen.len(), &chosen[..5]),
            (PER_CLASS, &[1, 2, 3, 4, 5][..])
        );
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
            let choice = choose(&wanted, std::slice::from_ref(&ask));
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
        let asks: Vec<Listing> = (1..=3).map(|order| listing(order, 5)).collect();
        let choice = choose(&wanted, &asks);
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
            let choice = choose(&wanted, &asks());
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
        let asks: Vec<Listing> = (1..=9).map(|order| listing(order, 20 - order)).collect();
        let mut choice = choose(&wanted, &asks);
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
        let rules_out = |demands: Demands| !demands.is_suitable(&ask);
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

    /// Selects as the pages say, one sentence after the other, and copies every ask.
    fn choose_naively(demands: &Demands, listings: &[Listing]) -> Vec<Listing> {
        let suits = listings.iter().filter(|it| demands.is_suitable(it));
        let mut suiting: Vec<Listing> = suits.cloned().collect();
        let classes: BTreeSet<Class> = suiting.iter().map(|it| it.class).collect();
        let mut chosen = Vec::new();
        let share = (LISTINGS_MAX / classes.len().max(1)).clamp(1, PER_CLASS);
        for class in classes.iter().take(LISTINGS_MAX) {
            for _ in 0..share {
                let of_class = || suiting.iter().filter(|it| it.class == *class);
                let taken = |it: &&Listing| chosen.iter().all(|other: &Listing| other != *it);
                let all = listings.iter().filter(|it| demands.is_suitable(it));
                let mut all: Vec<u64> = all
                    .filter(|it| it.class == *class)
                    .map(|it| it.price.0)
                    .collect();
                all.sort_unstable();
                // The groups of near prices begin at the cheapest that no earlier group has.
                let mut begins = Vec::<u64>::new();
                for price in all {
                    if begins.last().is_none_or(|begin| price * 100 > begin * 101) {
                        begins.push(price);
                    }
                }
                let group = |it: &Listing| begins.iter().filter(|at| **at <= it.price.0).count();
                let rank = |it: &&Listing| (group(it), own_rank(own_seed(demands.buyer), it.order));
                chosen.extend(of_class().filter(taken).min_by_key(rank).cloned());
            }
        }
        suiting.clear();
        chosen.sort_by_key(|it| it.order);
        chosen
    }

    #[test]
    fn a_walk_over_borrowed_asks_selects_what_a_naive_one_does() {
        let mut drawn = 7_u64;
        let mut draw = |below: u64| {
            drawn = drawn
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (drawn >> 33) % below
        };
        for seed in 0..60 {
            let classes = 1 + draw(if seed % 10 == 0 { 400 } else { 6 });
            let asks = (1..=draw(300)).map(|order| {
                let mut ask = listing(order, 1_000 + draw(60));
                ask.provider = AccountKey([draw(200) as u8; 32]);
                ask.class.memory.0 = (draw(classes) % 256) as u8;
                ask.class.bandwidth.0 = (draw(classes) / 256) as u8;
                ask
            });
            let asks: Vec<Listing> = asks.collect();
            let wanted = Demands {
                price_max: Some(Price(1_000 + draw(90))),
                buyer: AccountKey([draw(200) as u8; 32]),
                excluded: vec![AccountKey([3; 32])],
                ..demands()
            };
            let choice = choose(&wanted, &asks);
            assert_eq!(
                choice.listings,
                choose_naively(&wanted, &asks),
                "seed {seed}"
            );
            let suiting = asks.iter().filter(|ask| wanted.is_suitable(ask)).count() as u64;
            let unsuitable: u64 = choice.unsuitable.iter().map(|it| it.asks).sum();
            assert_eq!((choice.eligible, choice.seen), (suiting, asks.len() as u64));
            assert_eq!(unsuitable, choice.seen - choice.eligible);
        }
    }

    #[test]
    fn each_class_has_its_share_of_the_answer() {
        let ask = |order: u64| {
            let mut ask = listing(order, 5);
            ask.class.memory.0 = (order / 30) as u8;
            ask
        };
        let asks: Vec<Listing> = (0..30 * 20).map(ask).collect();
        let choice = choose(&demands(), &asks);
        let classes: BTreeSet<u8> = choice.listings.iter().map(|it| it.class.memory.0).collect();
        assert_eq!(classes.len(), 20, "the newest class has its share too");
    }

    #[test]
    fn buyers_see_equal_asks_in_orders_of_their_own() {
        let asks: Vec<Listing> = (1..=500).map(|order| listing(order, 1_000)).collect();
        let seen = |buyer: u8| {
            let wanted = Demands {
                buyer: AccountKey([buyer; 32]),
                ..demands()
            };
            let listings = choose(&wanted, &asks).listings;
            listings.iter().map(|it| it.order).collect::<Vec<_>>()
        };
        assert_eq!(seen(251), seen(251));
        let first = seen(251);
        let shared = seen(252).iter().filter(|it| first.contains(it)).count();
        assert!(shared < PER_CLASS / 2, "{shared} of {PER_CLASS} are shared");
    }
}
