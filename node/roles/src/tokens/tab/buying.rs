//! Buys the lease of a tab, and finds it in the log if the market gave no answer.

use souk_market::{
    Bid, Command, DeviceMicros, Lease, Limit, Millis, Term, TimeInForce, Units, WantedTokens, Wants,
};

use super::{START_AGAIN, TabAction, TabCore, TabFailure, TabStage, TabTimer, TabWait};
use crate::clock::Micros;
use crate::job::facts::Terms;

/// A request must begin this long before the lease ends.
const ANSWER_TIME: Millis = Millis(60_000);

/// The device time of answers from which on the core reports at once that the work has begun: until
/// then a provider can note only two seconds, and answers no more than that.
const START_USAGE: DeviceMicros = DeviceMicros(1_000_000);

/// How often the core looks for the lease of a purchase without an answer.
pub(super) const LOOK_PERIOD: Micros = Micros::from_seconds(1);

impl TabCore {
    /// Returns the bid for the lease.
    pub(super) fn to_bid(&self) -> Bid {
        let listing = &self.spec.listing;
        Bid {
            class: listing.class,
            wants: Wants {
                excluded: self.spec.excluded.clone(),
                tokens: self.wanted_tokens(),
                ..Wants::default()
            },
            limit: Limit::Price(listing.price),
            budget: self.spec.escrow(),
            quantity: Units(1),
            all_or_none: true,
            duration: self.spec.duration,
            start_delay_max: Millis(0),
            term: Term::Firm,
            tif: TimeInForce::Fok,
            job: self.spec.job,
        }
    }

    /// Returns the demand for tokens of the same model as the chosen ask's, and no dearer ones.
    fn wanted_tokens(&self) -> Option<WantedTokens> {
        let resources = &self.spec.listing.resources;
        Some(WantedTokens {
            model: resources.model.clone(),
            most: resources.tokens?,
        })
    }

    pub(super) fn on_bought(&mut self, terms: Terms) {
        self.push_effect(TabAction::Follow(Box::new(terms.clone())));
        let nears = Micros::from_millis(
            terms
                .deadline
                .saturating_since(self.now.log)
                .0
                .saturating_sub(ANSWER_TIME.0),
        );
        self.wake_in(TabTimer::Nears, nears);
        let provider = terms.provider;
        self.terms = Some(terms);
        if self.spec.is_strict && provider != self.spec.listing.provider {
            return self.end_early(TabFailure::OtherProvider);
        }
        self.stage = TabStage::Finding;
        self.request_effect(TabAction::Find(provider), TabWait::Find);
    }

    /// Reports that the work has begun as soon as its answers come to much.
    pub(super) fn report_start_early(&mut self) {
        let counted = self.counted.device_time(self.token_terms());
        if counted >= START_USAGE && self.timers.is_set(TabTimer::Start) {
            self.timers.stop_timer(TabTimer::Start);
            self.start_work();
        }
    }

    /// Reports to the log that the work has begun.
    pub(super) fn start_work(&mut self) {
        let lease = self.lease_id();
        self.submit_command(Command::StartWork { lease }, TabWait::Start);
    }

    /// Handles the market's result for the report that the work has begun. Without it, the provider
    /// begins no further request, so a lost report is sent again.
    pub(super) fn on_start_reported(&mut self, reported: &Result<(), String>) {
        if reported.is_err() && self.is_talking() {
            self.wake_in(TabTimer::Start, START_AGAIN);
        }
    }

    /// Adopts the lease of a purchase without an answer, if there is one.
    pub(super) fn on_looked(&mut self, leases: &[Lease]) {
        if let Some(lease) = leases.iter().find(|lease| lease.is_running()) {
            return self.on_bought(Terms::from(lease));
        }
        match self.now.tick < self.uncertain_until {
            true => self.wake_in(TabTimer::Look, LOOK_PERIOD),
            false => {
                let why = "it did not say whether it sold the tab".to_owned();
                self.stop(TabFailure::Unreachable(why));
            }
        }
    }
}
