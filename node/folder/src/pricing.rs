//! Computes what a provider asks for a device-second at a moment, from the pricing in its file and
//! the state of the market. All functions are pure and count in whole micro-credits.

use serde::{Deserialize, Serialize};
use souk_market::{
    Dtype, Listing, Millis, Price, Quotes, Resources, SPOT_PRICES_MAX, SpotPrice, TokenTerms,
};

use super::limits::Hours;

/// Watt-seconds in a kilowatt-hour.
const WATT_SECONDS_PER_KWH: u128 = 3_600_000;

/// How a price is computed. The default is the configured price.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pricing {
    /// The base of the price.
    pub strategy: Strategy,
    /// Prices at times of the day, in UTC; the first band that applies counts.
    pub bands: Vec<Band>,
    /// Prices of leases that the provider can take back at a notice; a longer notice costs more.
    pub spot: Vec<SpotShare>,
    /// What input tokens and held slots cost, if the provider sells tokens.
    #[serde(skip_serializing_if = "TokenPricing::is_usual")]
    pub tokens: TokenPricing,
}

/// What a provider of tokens asks besides the price of output tokens, of which each is 1,000
/// microseconds of device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenPricing {
    /// Microseconds of device time for an input token; 250 by default.
    pub input_us: u32,
    /// Microseconds of device time for a cached input token; as for another one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_us: Option<u32>,
    /// Microseconds of device time for each second in which a buyer holds a slot, whatever it
    /// reads or writes; 0 by default, and then the market's reserve applies.
    pub floor_us: u32,
}

impl Default for TokenPricing {
    fn default() -> Self {
        Self {
            input_us: TokenTerms::USUAL.input_us,
            cached_us: None,
            floor_us: TokenTerms::USUAL.floor_us,
        }
    }
}

impl TokenPricing {
    /// Returns the terms that its ask states.
    #[must_use]
    pub fn to_terms(self) -> TokenTerms {
        TokenTerms {
            input_us: self.input_us,
            cached_us: self.cached_us.unwrap_or(self.input_us),
            floor_us: self.floor_us,
            ..TokenTerms::USUAL
        }
    }

    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// The price of leases that the provider can take back at a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpotShare {
    /// Seconds of notice.
    pub notice_seconds: u32,
    /// Per cent of the price of a lease that the provider does not take back.
    pub percent: u32,
}

/// The base of a price.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The configured price.
    #[default]
    Fixed,
    /// The cost of running the device, and a margin.
    CostPlus(Costs),
    /// The price of recent trades of this class; the configured price if there were none.
    Follow {
        /// Per cent of it to ask; 100 asks the same. Below 100 it also undercuts its own last
        /// trade, down to the least price.
        percent: u32,
    },
}

/// The cost of running a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Watts that it draws under load.
    pub watts: u32,
    /// Micro-credits per kilowatt-hour.
    pub price_per_kwh: u64,
    /// Micro-credits per hour for everything else: wear, rent, the network.
    pub price_per_hour: u64,
    /// Per cent added as a margin.
    pub margin_percent: u32,
}

/// A time of the day with its own price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// The span of the day.
    pub hours: Hours,
    /// Per cent of the base price.
    pub percent: u32,
}

/// The inputs of a price besides the strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The minute of the day, in UTC.
    pub minute: u16,
    /// The price that the market paid recently for devices of the class.
    pub paid: Option<Price>,
    /// The configured price.
    pub price: u64,
    /// The least price.
    pub price_min: u64,
    /// Each price must be a multiple of this.
    pub tick: u64,
}

/// The source of a proposed price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The mean of this number of trades of the class.
    Trades(usize),
    /// The cheapest of this number of asks of the class.
    Asks(usize),
    /// The median price per operation a second of this number of asks of other classes.
    Throughput(usize),
}

impl Pricing {
    /// Returns the price of a device-second. It is rounded up to the market's tick at the end, and
    /// once each for costs, margin and band before that.
    pub fn device_price(&self, moment: Moment) -> Price {
        let base = match &self.strategy {
            Strategy::Fixed => u128::from(moment.price),
            Strategy::CostPlus(costs) => costs.per_second(),
            Strategy::Follow { percent } => match moment.paid {
                Some(paid) => scale_percent(u128::from(paid.0), *percent),
                None => u128::from(moment.price),
            },
        };
        let band = self
            .bands
            .iter()
            .find(|band| band.hours.contains_minute(moment.minute));
        let price = band.map_or(base, |band| scale_percent(base, band.percent));
        let tick = u128::from(moment.tick.max(1));
        let price = price
            .max(u128::from(moment.price_min))
            .max(1)
            .div_ceil(tick)
            * tick;
        Price(u64::try_from(price).unwrap_or(u64::MAX))
    }

    /// Returns the prices of spot leases by their notice, if a lease that is not taken back costs
    /// `price`.
    pub fn spot_prices(&self, price: Price, moment: Moment) -> Vec<SpotPrice> {
        let tick = u128::from(moment.tick.max(1));
        let mut prices: Vec<SpotPrice> = Vec::new();
        for spot in &self.spot {
            let least =
                scale_percent(u128::from(price.0), spot.percent).max(moment.price_min.into());
            let each = u64::try_from(least.max(1).div_ceil(tick) * tick).unwrap_or(u64::MAX);
            // At equal prices only the longest notice is stated.
            prices.pop_if(|before| before.price.0 >= each);
            if each < price.0 {
                prices.push(SpotPrice {
                    notice: Millis(u64::from(spot.notice_seconds) * 1_000),
                    price: Price(each),
                });
            }
        }
        prices
    }

    /// Returns whether there are no more spot prices than an ask can have, each below the price,
    /// and each with a longer notice and a greater share than the one before.
    pub fn has_sound_spot(&self) -> bool {
        let rise = |pair: &[SpotShare]| {
            pair[0].notice_seconds < pair[1].notice_seconds && pair[0].percent < pair[1].percent
        };
        self.spot.len() <= SPOT_PRICES_MAX
            && self.spot.windows(2).all(rise)
            && self
                .spot
                .iter()
                .all(|spot| (1..100).contains(&spot.percent))
    }

    /// Returns whether the price depends on the market's trades.
    pub fn is_market_based(&self) -> bool {
        matches!(self.strategy, Strategy::Follow { .. })
    }
}

impl Costs {
    fn per_second(&self) -> u128 {
        let energy = u128::from(self.watts) * u128::from(self.price_per_kwh);
        // Both have the same denominator, so that the sum is rounded once.
        let hour = u128::from(self.price_per_hour) * (WATT_SECONDS_PER_KWH / 3_600);
        let cost = (energy + hour).div_ceil(WATT_SECONDS_PER_KWH);
        scale_percent(cost, self.margin_percent.saturating_add(100))
    }
}

/// Returns the mean price of the last trades of a class, weighted by units; none if there were no
/// trades.
pub fn mean_price(quotes: &Quotes) -> Option<Price> {
    let each = quotes.last.iter();
    let sums = each.fold((0_u128, 0_u128), |(cost, units), print| {
        let quantity = u128::from(print.quantity.0);
        (
            cost + u128::from(print.price.0) * quantity,
            units + quantity,
        )
    });
    let (cost, units) = sums;
    (units > 0).then(|| Price(u64::try_from(cost.div_ceil(units)).unwrap_or(u64::MAX)))
}

/// Proposes a price for a device from the market's trades and asks; none in an empty market.
pub fn propose_price(
    quotes: Option<&Quotes>,
    book: &[Listing],
    resources: &Resources,
) -> Option<(Price, Basis)> {
    if let Some(quotes) = quotes
        && let Some(price) = mean_price(quotes)
    {
        return Some((price, Basis::Trades(quotes.last.len())));
    }
    let class = resources.class();
    let alike: Vec<Price> = book
        .iter()
        .filter(|listing| listing.class == class)
        .map(|listing| listing.price)
        .collect();
    if let Some(cheapest) = alike.iter().min() {
        return Some((*cheapest, Basis::Asks(alike.len())));
    }
    // The rate is per tera-operation, so that a small price is not rounded away.
    let rate = |listing: &Listing| {
        let operations = u128::from(listing.resources.throughput.for_dtype(Dtype::F32));
        (operations > 0).then(|| u128::from(listing.price.0) * 1_000_000 / operations)
    };
    let mut rates: Vec<u128> = book.iter().filter_map(rate).collect();
    rates.sort_unstable();
    let middle = rates.get(rates.len() / 2)?;
    let price = middle * u128::from(resources.throughput.for_dtype(Dtype::F32)) / 1_000_000;
    let price = Price(u64::try_from(price).unwrap_or(u64::MAX).max(1));
    Some((price, Basis::Throughput(rates.len())))
}

fn scale_percent(price: u128, percent: u32) -> u128 {
    (price * u128::from(percent)).div_ceil(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Moment = Moment {
        minute: 12 * 60,
        paid: None,
        price: 40_000,
        price_min: 0,
        tick: 1,
    };

    fn pricing(strategy: Strategy) -> Pricing {
        Pricing {
            strategy,
            bands: Vec::new(),
            spot: Vec::new(),
            tokens: TokenPricing::default(),
        }
    }

    #[test]
    fn a_fixed_price_stays() {
        assert_eq!(Pricing::default().device_price(NOON), Price(40_000));
        let paid = Some(Price(1));
        assert_eq!(
            Pricing::default().device_price(Moment { paid, ..NOON }),
            Price(40_000)
        );
    }

    #[test]
    fn costs_are_energy_and_the_rest_and_a_margin() {
        let costs = |watts, price_per_kwh, price_per_hour, margin_percent| {
            let costs = Costs {
                watts,
                price_per_kwh,
                price_per_hour,
                margin_percent,
            };
            pricing(Strategy::CostPlus(costs)).device_price(NOON).0
        };
        // 360 W at 0.30 credits a kWh are 0.108 credits an hour: 30 micro-credits a second.
        assert_eq!(costs(360, 300_000, 0, 0), 30);
        assert_eq!(costs(360, 300_000, 36_000, 0), 40);
        assert_eq!(costs(360, 300_000, 36_000, 50), 60);
        assert_eq!(
            costs(1, 1, 0, 0),
            1,
            "a part of a micro-credit is rounded up"
        );
        assert_eq!(costs(0, 0, 0, 0), 1, "nothing is sold for nothing");
    }

    #[test]
    fn the_market_is_followed_down_to_the_least_price() {
        let follow = pricing(Strategy::Follow { percent: 95 });
        let at = |paid, price_min| {
            let moment = Moment {
                paid,
                price_min,
                ..NOON
            };
            follow.device_price(moment).0
        };
        assert_eq!(at(Some(Price(1_000)), 0), 950);
        assert_eq!(at(Some(Price(1_000)), 970), 970);
        assert_eq!(
            at(None, 0),
            40_000,
            "without trades the configured price holds"
        );
    }

    #[test]
    fn the_time_of_day_changes_the_price_and_not_the_least_one() {
        let night = Band {
            hours: "22:00-06:00".parse().unwrap(),
            percent: 50,
        };
        let priced = Pricing {
            bands: vec![night],
            spot: Vec::new(),
            ..Pricing::default()
        };
        let at = |minute, price_min| {
            let moment = Moment {
                minute,
                price_min,
                ..NOON
            };
            priced.device_price(moment).0
        };
        assert_eq!((at(23 * 60, 0), at(12 * 60, 0)), (20_000, 40_000));
        assert_eq!(at(23 * 60, 30_000), 30_000);
    }

    #[test]
    fn prices_are_multiples_of_the_tick() {
        let moment = Moment {
            price: 1_001,
            tick: 100,
            ..NOON
        };
        assert_eq!(Pricing::default().device_price(moment), Price(1_100));
    }

    #[test]
    fn the_greatest_figures_do_not_overflow() {
        let costs = Costs {
            watts: u32::MAX,
            price_per_kwh: u64::MAX,
            price_per_hour: u64::MAX,
            margin_percent: u32::MAX,
        };
        let priced = pricing(Strategy::CostPlus(costs)).device_price(NOON);
        assert_eq!(priced, Price(u64::MAX));
    }

    #[test]
    fn strategies_are_read_from_a_file() {
        let read = |text: &str| toml::from_str::<Pricing>(text).unwrap();
        assert_eq!(read("strategy = \"fixed\""), Pricing::default());
        let follow = "strategy = { follow = { percent = 95 } }";
        assert_eq!(read(follow), pricing(Strategy::Follow { percent: 95 }));
        let bands = "bands = [{ hours = \"22:00-06:00\", percent = 70 }]";
        assert_eq!(read(bands).bands.len(), 1);
        let spot = "spot = [{ notice_seconds = 5, percent = 40 }]";
        assert_eq!(read(spot).spot.len(), 1);
    }

    #[test]
    fn spot_prices_follow_the_price_and_stay_sound() {
        let share = |(notice_seconds, percent)| SpotShare {
            notice_seconds,
            percent,
        };
        let shares = |shares: &[(u32, u32)]| Pricing {
            spot: shares.iter().copied().map(share).collect(),
            ..Pricing::default()
        };
        let of = |pricing: &Pricing, price, moment| -> Vec<(u64, u64)> {
            let prices = pricing.spot_prices(Price(price), moment).into_iter();
            prices.map(|it| (it.notice.0, it.price.0)).collect()
        };
        let two = shares(&[(5, 40), (60, 70)]);
        assert_eq!(of(&two, 1_000, NOON), [(5_000, 400), (60_000, 700)]);
        let floor = Moment {
            price_min: 800,
            ..NOON
        };
        assert_eq!(of(&two, 1_000, floor), [(60_000, 800)]);
        assert_eq!(of(&two, 1, NOON), [], "nothing is below one");
        assert!(two.has_sound_spot());
        for unsound in [
            &[(5, 40), (5, 70)][..],
            &[(5, 40), (6, 40)],
            &[(5, 100)],
            &[(5, 0)],
        ] {
            assert!(!shares(unsound).has_sound_spot(), "{unsound:?}");
        }
    }
}
