//! Computes the current terms of a provider's ask from the limits, hours and prices in the
//! provider's file.

use std::path::Path;

use souk_folder::clock::unix_ms;
use souk_folder::config::ProviderFile;
use souk_folder::limits::{NOTICE_SECONDS, ProviderLimits};
use souk_folder::pricing::{Moment, Pricing, mean_price};
use souk_market::{Millis, Permille, Price, Resources, Units};
use souk_roles::provider::Terms;

use crate::client::broker::{Broker, BrokerError};

/// The longest lease: an hour.
const DURATION_MAX: Millis = Millis(3_600_000);

/// Towards the end of its hours a device is leased in whole steps of this many minutes, and for one
/// step less than remains: the provider places the ask again once a step, and no lease can outlast
/// the hours.
const STEP_MINUTES: u64 = 5;

/// The limits and prices of a provider's file.
#[derive(Clone, Debug)]
pub struct Conditions {
    pub(super) limits: ProviderLimits,
    pricing: Pricing,
    price: u64,
    tick: Price,
}

impl Conditions {
    /// Returns the conditions of a provider in a market with this tick.
    pub fn new(file: ProviderFile, tick: Price) -> Conditions {
        Conditions {
            limits: file.limits,
            pricing: file.pricing,
            price: file.price,
            tick,
        }
    }

    /// Returns these conditions with the price and the pricing that the provider's file states now,
    /// or with their own if the file cannot be read, for example during a write.
    pub(super) fn as_written(&self, home: &Path) -> Conditions {
        let mut now = self.clone();
        match ProviderFile::read_folder(home) {
            Ok(file) => (now.price, now.pricing) = (file.price, file.pricing),
            Err(error) => tracing::warn!(%error, "could not read the price; it does not change"),
        }
        now
    }

    /// Returns the terms at a minute of the day, given the price that the market paid lately; none
    /// outside hours.
    pub fn terms_for_minute(&self, minute: u16, paid: Option<Price>) -> Option<Terms> {
        let duration_max = match self.limits.minutes_left(minute)? {
            u64::MAX => DURATION_MAX,
            left => {
                let steps = (left / STEP_MINUTES)
                    .checked_sub(1)
                    .filter(|steps| *steps > 0)?;
                DURATION_MAX.min(Millis(steps * STEP_MINUTES * 60_000))
            }
        };
        let moment = Moment {
            minute,
            paid,
            price: self.price,
            price_min: self.limits.price_min,
            tick: self.tick.0,
        };
        let price = self.pricing.device_price(moment);
        let notice_seconds = self.limits.notice_seconds.unwrap_or(NOTICE_SECONDS);
        Some(Terms {
            price,
            duration_max,
            notice: Millis(u64::from(notice_seconds) * 1_000),
            spot: self.pricing.spot_prices(price, moment),
            idle: Permille(self.limits.idle_percent.saturating_mul(10)),
            reputation_min: Permille(self.limits.buyer_reputation_min),
        })
    }

    /// Returns all that decides the terms at this minute, except the price that the market paid.
    pub(super) fn local_terms(self) -> (Option<Terms>, u64, Pricing) {
        let terms = self.terms_for_minute(minute_now(), None);
        (terms, self.price, self.pricing)
    }

    /// Returns the configured price, before any pricing.
    pub(super) fn price(&self) -> u64 {
        self.price
    }

    /// Returns the number of leases sold at once.
    pub(super) fn lease_count(&self) -> Units {
        Units(self.limits.leases)
    }

    /// Returns the lowest price at which its ask can stay in the book.
    pub(super) fn price_min(&self) -> Price {
        Price(self.limits.price_min)
    }

    /// Returns the terms now, by this machine's clock and the market's last trades.
    pub async fn current_terms(
        &self,
        broker: &Broker,
        resources: &Resources,
    ) -> Result<Option<Terms>, BrokerError> {
        let minute = minute_now();
        let paid = match self.pricing.is_market_based() {
            true => broker
                .fetch_quotes(resources.class())
                .await?
                .as_ref()
                .and_then(mean_price),
            false => None,
        };
        Ok(self.terms_for_minute(minute, paid))
    }
}

/// Returns the minute of the day, in UTC, by this machine's clock.
pub fn minute_now() -> u16 {
    u16::try_from(unix_ms() / 60_000 % 1_440).expect("a day has 1,440 minutes")
}

#[cfg(test)]
mod tests {
    use souk_folder::config::{DeviceChoice, FORMAT};

    use super::*;

    fn conditions(hours: &[&str]) -> Conditions {
        let file = ProviderFile {
            isolation: souk_folder::config::Isolation::default(),
            format: FORMAT,
            name: "p".to_owned(),
            listen: "/ip4/127.0.0.1/tcp/0".parse().unwrap(),
            device: DeviceChoice::Cpu { threads: 0 },
            region: Default::default(),
            onnxruntime: None,
            prefer: Default::default(),
            price: 1_000,
            limits: ProviderLimits {
                hours: hours.iter().map(|text| text.parse().unwrap()).collect(),
                price_min: 900,
                ..ProviderLimits::default()
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
            let Some(terms) = day.terms_for_minute(minute, None) else {
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
        assert_eq!(
            day.terms_for_minute(9 * 60, None).unwrap().duration_max,
            DURATION_MAX
        );
        assert!(day.terms_for_minute(18 * 60 - 10, None).is_some());
        assert!(day.terms_for_minute(18 * 60 - 9, None).is_none());
    }

    #[test]
    fn a_provider_sells_one_lease_at_a_time_unless_its_owner_says() {
        assert_eq!(conditions(&[]).lease_count(), Units(1));
    }
}
