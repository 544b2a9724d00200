//! Walks through the classes of a book for a buyer, and collects the answer: the asks to list, and
//! why the others do not suit.

use std::collections::BTreeMap;

use souk_market::{Class, ListingRef, Resources};

use super::{Choice, Demands, ScarceOperator};
use crate::market::device_verdicts::{DeviceVerdict, DeviceVerdicts};
use crate::market::unsuitable::Tally;

/// The most asks of one class in an answer: more than a plan has parts, so that there is a choice.
pub(super) const PER_CLASS: usize = 24;

/// The most asks in an answer: a planner looks through so many within milliseconds.
pub(super) const LISTINGS_MAX: usize = 256;

/// The asks of a class without a suitable device that are looked at for examples. They are its
/// cheapest ones, and people read a few examples in all.
const EXAMPLES_EACH: usize = 4;

/// The devices of a class that are judged before its asks. If none of so many suits, the walk goes
/// through the asks themselves, whose number is bounded.
const DEVICES_EACH: usize = 4_096;

/// The walk through a book: see the module.
pub(super) struct AskWalk<'d, 'a> {
    demands: &'d Demands,
    suiting: BTreeMap<Class, Vec<ListingRef<'a>>>,
    verdicts: DeviceVerdicts<'a>,
    tally: Tally,
    choice: Choice,
    /// The number of asks that lack each operator of the model.
    lacks: BTreeMap<usize, u64>,
}

impl<'d, 'a> AskWalk<'d, 'a> {
    /// Begins a walk for a buyer with these demands.
    pub(super) fn new(demands: &'d Demands) -> Self {
        Self {
            demands,
            suiting: BTreeMap::new(),
            verdicts: DeviceVerdicts::new(),
            tally: Tally::default(),
            choice: Choice::default(),
            lacks: BTreeMap::new(),
        }
    }

    /// Walks through a class, as [`Demands::choose_asks`] describes it.
    pub(super) fn on_class<L: FnOnce() -> ListingRef<'a>>(
        &mut self,
        devices: impl Iterator<Item = (&'a Resources, u64)>,
        asks: impl Iterator<Item = (&'a Resources, L)>,
    ) {
        let mut unsuitable = Vec::new();
        let mut is_suitable = false;
        for (place, (device, count)) in devices.enumerate() {
            let verdict = self.judge_device(device);
            let Some(cause) = verdict.cause.filter(|_| place < DEVICES_EACH) else {
                is_suitable = true;
                break;
            };
            unsuitable.push((device, cause, verdict, count));
        }
        if is_suitable {
            return asks.for_each(|(device, look_up)| self.on_ask(device, look_up));
        }
        for (device, look_up) in asks.take(EXAMPLES_EACH) {
            if let Some(cause) = self.judge_device(device).cause {
                let listing = look_up();
                let describe = || self.demands.describe_lack(cause, &listing);
                self.tally.add_example(&listing, cause, describe);
            }
        }
        for (device, cause, verdict, count) in unsuitable {
            self.count_seen(device, verdict, count);
            self.tally.count_asks(cause, count);
        }
    }

    fn on_ask(&mut self, device: &'a Resources, look_up: impl FnOnce() -> ListingRef<'a>) {
        let verdict = self.judge_device(device);
        self.count_seen(device, verdict, 1);
        if let Some(cause) = verdict.cause
            && self.tally.count_more(cause)
        {
            return;
        }
        let (demands, listing) = (self.demands, look_up());
        let listing = match demands.spot {
            true => listing.to_spot_buyer(demands.notice_min),
            false => listing,
        };
        let Some(cause) = verdict.cause.or_else(|| demands.ask_cause(&listing)) else {
            self.choice.eligible += 1;
            self.suiting.entry(listing.class).or_default().push(listing);
            return;
        };
        let describe = || demands.describe_lack(cause, &listing);
        self.tally.add(&listing, cause, describe);
    }

    fn judge_device(&mut self, device: &'a Resources) -> DeviceVerdict {
        let judge = |device| self.demands.judge_device(device);
        self.verdicts.find_or_judge(device, judge)
    }

    fn count_seen(&mut self, device: &Resources, verdict: DeviceVerdict, asks: u64) {
        self.choice.seen += asks;
        if verdict.is_short {
            let needed = self.demands.operators.numbers();
            let missing = needed.filter(|it| !device.operators.has_operator(*it));
            missing.for_each(|number| *self.lacks.entry(number).or_default() += asks);
        }
    }

    /// Returns the answer.
    pub(super) fn into_choice(self) -> Choice {
        let mut choice = self.choice;
        // Each class has its share of the answer, however many classes there are.
        let share = LISTINGS_MAX.checked_div(self.suiting.len());
        let share = share.unwrap_or(0).clamp(1, PER_CLASS);
        for class in self.suiting.into_values() {
            let cheapest = self.demands.select_cheapest(class, share);
            choice
                .listings
                .extend(cheapest.into_iter().map(ListingRef::to_listing));
        }
        choice.listings.truncate(LISTINGS_MAX);
        choice.listings.sort_by_key(|listing| listing.order);
        choice.unsuitable = self.tally.into_unsuitable();
        let scarce = self
            .lacks
            .into_iter()
            .map(|(number, lacking)| ScarceOperator {
                operator: u16::try_from(number).expect("a set holds few"),
                asks: choice.seen - lacking,
            });
        choice.scarce = scarce.collect();
        choice.scarce.sort_by_key(|it| it.asks);
        choice
    }
}
