//! Keeps the provider's ask (its offer in the market's book) right: in the book while the device is
//! free, out of it while the device is leased or the provider stops.
//!
//! The core compares the log with the ask that should be there and takes the missing step. It does
//! not remember its own steps, so it is still right after a crash, a lost answer or a lease that
//! ended by itself.

use serde::Serialize;
use souk_market::{
    Acceptance, Ask, BuyerFilter, Command, DeviceId, Limit, Millis, OrderId, Refusal, Resources,
    SpotPrice, TimeInForce, Units,
};

use super::action::{Action, Report};
use super::event::{MarketView, NotDone, Terms};
use super::provider_context::{SharedState, Wait};
use crate::clock::Micros;

/// The shortest lease.
const DURATION_MIN: Millis = Millis(1);

/// The difference in per mille by which an ask's price can be off before the core replaces the ask.
const PRICE_SLACK: u64 = 10;

/// The pause before the core retries an ask that the market has no room for.
const PLACE_WAIT: Micros = Micros::from_seconds(10);

/// The device of a provider, which sells exactly one.
pub const DEVICE: DeviceId = DeviceId(1);

/// The state of a provider's asks in the book.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PlacedAsks {
    placed: Option<(OrderId, Terms)>,
    /// The resources of the next ask, if they differ from those of the last one.
    due: Option<Box<Resources>>,
    /// Whether the core needs the numbers of the asks in the book, to cancel them.
    pub(super) clears: bool,
    /// Why the market has no room for the ask, and when the core tries again.
    refused: Option<(String, Micros)>,
}

impl Terms {
    /// Returns whether an ask with these terms can stay although others are due.
    fn stand_for(&self, due: &Terms, price_min: u64) -> bool {
        let slack = due.price.0 / 1_000 * PRICE_SLACK;
        let off = self.price.0.abs_diff(due.price.0);
        let alike = self.duration_max == due.duration_max
            && self.notice == due.notice
            && self.idle == due.idle
            && self.reputation_min == due.reputation_min;
        let near = |(one, due): (&SpotPrice, &SpotPrice)| {
            one.notice == due.notice && one.price.0.abs_diff(due.price.0) <= slack
        };
        let alike =
            alike && self.spot.len() == due.spot.len() && self.spot.iter().zip(&due.spot).all(near);
        off <= slack && self.price.0 >= price_min && alike
    }

    /// Returns an ask with these terms, for `free` of `leases` leases.
    #[must_use]
    pub fn to_ask(&self, resources: &Resources, leases: Units, free: Units) -> Ask {
        Ask {
            device: DEVICE,
            capacity: leases,
            resources: resources.clone(),
            limit: Limit::Price(self.price),
            quantity: free,
            duration_min: DURATION_MIN,
            duration_max: self.duration_max,
            notice: self.notice,
            spot: self.spot.clone(),
            idle: self.idle,
            accepts: BuyerFilter {
                reputation: self.reputation_min,
                ..BuyerFilter::default()
            },
            tif: TimeInForce::Gtc,
        }
    }
}

impl PlacedAsks {
    /// Sets the resources by which to sell the device from now on.
    pub(super) fn on_speed(&mut self, shared: &SharedState, resources: Box<Resources>) {
        self.due = (*resources != shared.resources).then_some(resources);
    }

    /// Corrects the ask according to the log.
    pub(super) fn put_right(&mut self, shared: &mut SharedState, view: &MarketView) {
        let is_at_it = |wait: &Wait| matches!(wait, Wait::Place(..) | Wait::Cancel(_));
        if shared.pending.iter().any(is_at_it) {
            return;
        }
        if self.clears {
            self.clears = false;
            self.placed = None;
            for order in &view.asks {
                cancel_ask(shared, *order);
            }
            if !view.asks.is_empty() {
                return;
            }
        }
        let mine = view.leases.iter();
        let mine = mine.filter(|lease| lease.provider == shared.config.account);
        let sold = mine.filter(|lease| lease.is_running());
        let sold: u32 = sold.map(|lease| lease.quantity.0).sum();
        let slots = shared.config.capacity.min(view.slots);
        let free = Units(slots.0.saturating_sub(sold));
        // An ask that is in the book sells slots that are no longer there.
        let is_shrunk = slots < shared.config.capacity && view.open_orders > 0;
        if free == Units(0) && !is_shrunk {
            return;
        }
        // Sold leases keep the resources of their ask, so the core changes them only when none is
        // sold.
        let is_other_speed = sold == 0 && self.due.is_some();
        let price_min = shared.config.price_min.0;
        match (view.open_orders, &view.due, &self.placed) {
            (0, None, _) => {}
            (0, Some(_), _) if self.waits_for_place(shared.now.tick) => {}
            (0, Some(due), _) => self.place_ask(shared, due.clone(), sold, free),
            (_, Some(due), Some((_, placed)))
                if view.offered == free && placed.stand_for(due, price_min) && !is_other_speed => {}
            (_, _, Some((order, _))) => cancel_ask(shared, *order),
            // These asks are of an earlier life.
            (_, _, None) => {
                self.clears = true;
                shared.request_effect(Wait::Market, Action::LookAtMarket { asks: true });
            }
        }
    }

    /// Returns when the core tries again to place an ask that the market had no room for.
    pub(super) fn retries_at(&self) -> Option<Micros> {
        self.refused.as_ref().map(|(_, until)| *until)
    }

    fn waits_for_place(&self, now: Micros) -> bool {
        self.refused.as_ref().is_some_and(|(_, until)| now < *until)
    }

    fn place_ask(&self, shared: &mut SharedState, terms: Terms, sold: u32, free: Units) {
        let due = self.due.as_deref().filter(|_| sold == 0);
        let resources = due.unwrap_or(&shared.resources).clone();
        let ask = terms.to_ask(&resources, shared.config.capacity, free);
        assert!(ask.quantity > Units(0) && ask.quantity <= ask.capacity);
        let command = Command::PlaceAsk(Box::new(ask));
        let wait = Wait::Place(terms, Box::new(resources));
        shared.request_effect(wait, Action::Command(Box::new(command)));
    }

    /// Handles the result of an ask. Returns whether the core must look at the market again.
    pub(super) fn on_placed(
        &mut self,
        shared: &mut SharedState,
        terms: Terms,
        resources: Box<Resources>,
        placed: Result<Acceptance, NotDone>,
    ) {
        match placed {
            Ok(Acceptance::Placed { order, resting, .. }) => {
                if self.due.as_ref() == Some(&resources) {
                    self.due = None;
                }
                // From now on these figures apply to jobs. If the book refuses the ask, they do
                // not, because a buyer may just have bought the ask before it.
                shared.resources = (*resources).clone();
                let price = terms.price;
                self.placed = Some((order, terms));
                self.refused = None;
                shared.push_effect(Action::Tell(Report::Placed {
                    order,
                    resources,
                    price,
                    quantity: resting,
                }));
            }
            // A buyer bought the device between the look at the log and the new ask.
            Err(NotDone::Refused(Refusal::DeviceBusy { .. })) | Ok(_) => {}
            // The ask is not at fault: the core reports this once, and tries again while it lasts.
            Err(NotDone::Refused(
                refusal @ (Refusal::DepositShort { .. }
                | Refusal::OrdersFull { .. }
                | Refusal::AccountFrozen { .. }),
            )) => {
                self.placed = None;
                let until = shared.now.tick.plus(PLACE_WAIT);
                let why = refusal.to_string();
                let is_told = self.refused.as_ref().is_some_and(|(told, _)| *told == why);
                self.refused = Some((why.clone(), until));
                if !is_told {
                    shared.push_effect(Action::Tell(Report::NotPlaced { why }));
                }
            }
            Err(why) => {
                let ask = terms.to_ask(&resources, shared.config.capacity, Units(1));
                let command = Box::new(Command::PlaceAsk(Box::new(ask)));
                let why = why.to_string();
                shared.push_effect(Action::Tell(Report::NotCommanded { command, why }));
                // The ask may be in the book nevertheless.
                self.placed = None;
            }
        }
    }

    /// Handles an ask that is out of the book, or was not in it.
    pub(super) fn on_cancelled(
        &mut self,
        order: OrderId,
        cancelled: &Result<Acceptance, NotDone>,
    ) -> bool {
        let is_out = match cancelled {
            Ok(_) | Err(NotDone::Refused(_)) => true,
            Err(NotDone::Uncertain(_)) => false,
        };
        if is_out && self.placed.as_ref().is_some_and(|it| it.0 == order) {
            self.placed = None;
        }
        is_out
    }

    /// Cancels the ask because the provider stops.
    pub(super) fn withdraw_ask(&self, shared: &mut SharedState) {
        let is_at_it = |wait: &Wait| matches!(wait, Wait::Cancel(_));
        if let Some((order, _)) = &self.placed
            && !shared.pending.iter().any(is_at_it)
        {
            cancel_ask(shared, *order);
        }
    }
}

fn cancel_ask(shared: &mut SharedState, order: OrderId) {
    let command = Box::new(Command::Cancel { order });
    shared.request_effect(Wait::Cancel(order), Action::Command(command));
}

#[cfg(test)]
mod tests {
    use souk_market::{Permille, Price};

    use super::*;

    const DUE: Terms = Terms {
        price: Price(1_000),
        duration_max: Millis(3_600_000),
        notice: Millis(5_000),
        spot: Vec::new(),
        idle: Permille(100),
        reputation_min: Permille(0),
    };

    #[test]
    fn an_ask_is_for_the_leases_that_are_free_of_those_there_are() {
        let ask = DUE.to_ask(&Resources::default(), Units(3), Units(2));
        assert_eq!((ask.capacity, ask.quantity), (Units(3), Units(2)));
    }

    #[test]
    fn an_ask_stays_until_its_terms_are_off() {
        let priced = |price| Terms {
            price: Price(price),
            ..DUE
        };
        assert!(priced(1_010).stand_for(&DUE, 900) && !priced(1_011).stand_for(&DUE, 900));
        assert!(
            !priced(995).stand_for(&DUE, 999),
            "never below the least price"
        );
        let pickier = Terms {
            reputation_min: Permille(510),
            ..DUE
        };
        assert!(!pickier.stand_for(&DUE, 900));
        let ask = pickier.to_ask(&Resources::default(), Units(1), Units(1));
        assert_eq!(ask.accepts.reputation, Permille(510));
        let shorter = Terms {
            duration_max: Millis(1),
            ..DUE
        };
        assert!(!shorter.stand_for(&DUE, 900));
        let spot = |price| Terms {
            spot: vec![SpotPrice {
                notice: Millis(5_000),
                price: Price(price),
            }],
            ..DUE
        };
        assert!(!spot(500).stand_for(&DUE, 900));
        assert!(spot(500).stand_for(&spot(510), 900) && !spot(500).stand_for(&spot(511), 900));
    }
}
