//! The ask: in the book while the device is free, out of it while it is leased or stopping.
//!
//! The shelf looks at what the log says and does what is missing, rather than remembering what it
//! did: after a crash, a lost answer or a lease that ended by itself that is still the right step.

use std::sync::Arc;
use std::time::Duration;

use souk_market::{
    Acceptance, Accepts, Ask, Command, DeviceId, Lease, LeaseState, Limit, Millis, OrderId, Price,
    Refusal, Resources, TimeInForce, Units,
};

use super::{Provider, books};
use crate::client::broker::{Broker, BrokerError};
use crate::client::trader::TradeError;
use crate::clock::unix_ms;
use crate::folder::config::ProviderFile;
use crate::folder::limits::Limits;
use crate::folder::limits::NOTICE_SECONDS;
use crate::folder::pricing::{Moment, Pricing, paid};

/// Looked at this often even if no word of a change came.
const PERIOD: Duration = Duration::from_secs(2);

/// How long withdrawing the ask may hold up a stop.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases are for at least this long and at most an hour.
const DURATION_MIN: Millis = Millis(1);
const DURATION_MAX: Millis = Millis(3_600_000);

/// Towards the end of its hours a device is leased for whole steps of so many minutes, and for one
/// step less than are left: the ask is placed anew once a step, and no lease outlasts the hours.
const STEP_MINUTES: u64 = 5;

/// An ask stays where it is in the book until its price is off by more than this many per mille.
const PRICE_SLACK: u64 = 10;

/// Each provider sells one device.
const DEVICE: DeviceId = DeviceId(1);

/// What a provider's file says of limits and prices.
#[derive(Clone, Debug)]
pub struct Conditions {
    pub(super) limits: Limits,
    pricing: Pricing,
    price: u64,
    tick: Price,
}

/// The terms of an ask at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Per device-second.
    pub price: Price,
    /// The longest lease.
    pub duration_max: Millis,
    /// The notice before a spot lease ends.
    pub notice: Millis,
}

impl Conditions {
    /// The conditions of a provider in a market with this tick.
    pub fn new(file: ProviderFile, tick: Price) -> Conditions {
        Conditions {
            limits: file.limits,
            pricing: file.pricing,
            price: file.price,
            tick,
        }
    }

    /// The terms at a minute of the day, where the market paid so much lately; none outside hours.
    pub fn terms(&self, minute: u16, paid: Option<Price>) -> Option<Terms> {
        let duration_max = match self.limits.minutes_left(minute)? {
            u64::MAX => DURATION_MAX,
            left => {
                let steps = (left / STEP_MINUTES)
                    .checked_sub(1)
                    .filter(|steps| *steps > 0)?;
                DURATION_MAX.min(Millis(steps * STEP_MINUTES * 60_000))
            }
        };
        let price = self.pricing.price(Moment {
            minute,
            paid,
            price: self.price,
            price_min: self.limits.price_min,
            tick: self.tick.0,
        });
        let notice_seconds = self.limits.notice_seconds.unwrap_or(NOTICE_SECONDS);
        Some(Terms {
            price,
            duration_max,
            notice: Millis(u64::from(notice_seconds) * 1_000),
        })
    }

    /// What a lease costs where nothing of the pricing changes it.
    pub(super) fn price(&self) -> u64 {
        self.price
    }

    /// Leases that are sold at once.
    pub(super) fn leases(&self) -> Units {
        Units(self.limits.leases)
    }

    fn price_min(&self) -> u64 {
        self.limits.price_min
    }

    /// The terms now, by this machine's clock and the market's last trades.
    pub async fn now(
        &self,
        broker: &Broker,
        resources: &Resources,
    ) -> Result<Option<Terms>, BrokerError> {
        let minute = minute_now();
        let paid = match self.pricing.follows() {
            true => broker
                .quotes(resources.class())
                .await?
                .as_ref()
                .and_then(paid),
            false => None,
        };
        Ok(self.terms(minute, paid))
    }
}

impl Terms {
    /// Whether an ask with these terms may stay where others are due.
    fn stand_for(&self, due: &Terms, price_min: u64) -> bool {
        let slack = due.price.0 / 1_000 * PRICE_SLACK;
        let off = self.price.0.abs_diff(due.price.0);
        let alike = self.duration_max == due.duration_max && self.notice == due.notice;
        off <= slack && self.price.0 >= price_min && alike
    }

    /// The ask with these terms, for `free` leases of `leases` like it.
    pub fn ask(&self, resources: &Resources, leases: Units, free: Units) -> Ask {
        Ask {
            device: DEVICE,
            capacity: leases,
            resources: resources.clone(),
            limit: Limit::Price(self.price),
            quantity: free,
            duration_min: DURATION_MIN,
            duration_max: self.duration_max,
            notice: self.notice,
            accepts: Accepts::default(),
            tif: TimeInForce::Gtc,
        }
    }
}

/// The minute of the day, in UTC, by this machine's clock.
pub fn minute_now() -> u16 {
    u16::try_from(unix_ms() / 60_000 % 1_440).expect("a day has 1,440 minutes")
}

pub(super) struct Shelf {
    provider: Arc<Provider>,
    placed: Option<(OrderId, Terms)>,
}

impl Shelf {
    pub(super) fn new(provider: Arc<Provider>) -> Shelf {
        Shelf {
            provider,
            placed: None,
        }
    }

    /// Keeps the ask as it should be, for ever.
    pub(super) async fn keep(&mut self) {
        let account = self.provider.trader.account();
        let mut changes = self.provider.trader.broker().watch(account);
        loop {
            match self.put_right().await {
                Ok(()) => {}
                // It was sold between the look at the log and the new ask: that is what it is for.
                Err(TradeError::Refused(refusal @ Refusal::DeviceBusy { .. })) => {
                    tracing::debug!(%refusal, "the ask is not renewed");
                }
                Err(error) => tracing::warn!(%error, "the ask could not be looked after"),
            }
            if let Err(error) = books::close_closed(&self.provider).await {
                tracing::warn!(%error, "how leases ended is not in the journal");
            }
            // The watch ends only with the process; the period holds then.
            let _ = tokio::time::timeout(PERIOD, changes.changed()).await;
        }
    }

    /// Takes the ask out of the book, if it can be done soon.
    pub(super) async fn withdraw(&mut self) {
        let Some((order, _)) = self.placed.take() else {
            return;
        };
        let cancel = self.provider.trader.submit_one(Command::Cancel { order });
        match tokio::time::timeout(WITHDRAW_TIMEOUT, cancel).await {
            Ok(Ok(_)) => tracing::info!(%order, "withdrew the ask"),
            Ok(Err(error)) => tracing::warn!(%order, %error, "the ask was not withdrawn"),
            Err(_) => tracing::warn!(%order, "the ask was not withdrawn in time"),
        }
    }

    async fn put_right(&mut self) -> Result<(), TradeError> {
        let trader = &self.provider.trader;
        let leases = trader.broker().leases(trader.account()).await?;
        let account = trader.broker().account(trader.account()).await?;
        let at_work = leases
            .iter()
            .filter(|lease| runs_here(lease, &self.provider));
        let sold: u32 = at_work.map(|lease| lease.quantity.0).sum();
        let free = Units(self.provider.terms.leases().0.saturating_sub(sold));
        if free == Units(0) {
            return Ok(());
        }
        let (open_orders, offered) = account.map_or((0, Units(0)), |account| {
            (account.open_orders, account.offered(DEVICE))
        });
        // What was sold goes by the figures it was sold with: they change when nothing is.
        let is_slower = sold == 0 && self.provider.pace.has_changed(self.provider.known_times());
        let (terms, resources) = (&self.provider.terms, self.provider.resources());
        let due = terms.now(trader.broker(), &resources).await?;
        match (open_orders, due, self.placed) {
            (0, None, _) => Ok(()),
            (0, Some(due), _) => self.place(due, (sold, free)).await,
            (_, None, _) => self.clear().await,
            (_, Some(due), Some((_, placed)))
                if offered == free && placed.stand_for(&due, terms.price_min()) && !is_slower =>
            {
                Ok(())
            }
            (_, Some(due), _) => {
                self.clear().await?;
                self.place(due, (sold, free)).await
            }
        }
    }

    async fn place(&mut self, terms: Terms, (sold, free): (u32, Units)) -> Result<(), TradeError> {
        let (pace, peak) = (&self.provider.pace, &self.provider.peak);
        let speed = match sold {
            0 => pace.due(self.provider.known_times()),
            _ => pace.advertised(),
        };
        let ask = terms.ask(&speed.of(peak), self.provider.terms.leases(), free);
        let command = Command::PlaceAsk(Box::new(ask));
        if let Acceptance::Placed { order, .. } = self.provider.trader.submit_one(command).await? {
            tracing::info!(%order, price = %terms.price, leases = free.0, "placed the ask");
            self.provider.pace.advertise(speed);
            self.placed = Some((order, terms));
        }
        Ok(())
    }

    /// Cancels this provider's asks, those of a former run of this node among them.
    async fn clear(&mut self) -> Result<(), TradeError> {
        let trader = &self.provider.trader;
        let book = trader.broker().book().await?;
        let old = book
            .into_iter()
            .filter(|listing| listing.provider == trader.account());
        let cancel: Vec<_> = old
            .map(|listing| Command::Cancel {
                order: listing.order,
            })
            .collect();
        if !cancel.is_empty() {
            trader.submit(cancel).await?;
        }
        self.placed = None;
        Ok(())
    }
}

fn runs_here(lease: &Lease, provider: &Provider) -> bool {
    let mine = lease.provider == provider.trader.account();
    mine && matches!(lease.state, LeaseState::Active | LeaseState::Ending { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::config::{DeviceChoice, FORMAT};

    fn conditions(hours: &[&str]) -> Conditions {
        let file = ProviderFile {
            isolation: crate::folder::config::Isolation::default(),
            format: FORMAT,
            name: "p".to_owned(),
            listen: "/ip4/127.0.0.1/tcp/0".parse().unwrap(),
            device: DeviceChoice::Cpu { threads: 0 },
            onnxruntime: None,
            prefer: Default::default(),
            price: 1_000,
            limits: Limits {
                hours: hours.iter().map(|text| text.parse().unwrap()).collect(),
                price_min: 900,
                ..Limits::default()
            },
            pricing: Pricing::default(),
            traffic: Default::default(),
            fault: None,
            fault_after: 0,
        };
        Conditions::new(file, Price(1))
    }

    #[test]
    fn no_lease_outlasts_the_hours() {
        let day = conditions(&["08:00-18:00"]);
        for minute in 0..1_440 {
            let Some(terms) = day.terms(minute, None) else {
                continue;
            };
            // The ask is placed anew within a step at the latest.
            let bought = u64::from(minute) + STEP_MINUTES;
            let ends = bought + terms.duration_max.0 / 60_000;
            assert!(
                (8 * 60..18 * 60).contains(&minute) && ends <= 18 * 60,
                "{minute}"
            );
        }
        assert_eq!(day.terms(9 * 60, None).unwrap().duration_max, DURATION_MAX);
        assert!(day.terms(18 * 60 - 10, None).is_some());
        assert!(day.terms(18 * 60 - 9, None).is_none());
    }

    #[test]
    fn an_ask_is_for_the_leases_that_are_free_of_those_there_are() {
        let terms = conditions(&[]).terms(0, None).unwrap();
        let resources = crate::provider::tests::resources();
        let ask = terms.ask(&resources, Units(3), Units(2));
        assert_eq!((ask.capacity, ask.quantity), (Units(3), Units(2)));
        assert_eq!(conditions(&[]).leases(), Units(1), "unless the owner says");
    }

    #[test]
    fn an_ask_stays_until_its_terms_are_off() {
        let due = conditions(&[]).terms(0, None).unwrap();
        let priced = |price| Terms {
            price: Price(price),
            ..due
        };
        assert!(priced(1_010).stand_for(&due, 900) && !priced(1_011).stand_for(&due, 900));
        assert!(
            !priced(995).stand_for(&due, 999),
            "never below the least price"
        );
        let shorter = Terms {
            duration_max: Millis(1),
            ..due
        };
        assert!(!shorter.stand_for(&due, 900));
    }
}
