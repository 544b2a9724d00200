//! Draws the supply and the demand of a simulated crowd: the regions of machines with their round
//! trips, the device and the price of each provider, and the arrival, device and length of jobs.

use souk_market::{Name, Price, Resources};

use crate::random::Random;

/// Regions by index: North America, Europe, Asia, South America.
pub const REGIONS: usize = 4;

/// The round trip between two regions, in milliseconds.
const ROUND_TRIP_MS: [[u64; REGIONS]; REGIONS] = [
    [20, 90, 160, 130],
    [90, 15, 180, 190],
    [160, 180, 40, 300],
    [130, 190, 300, 30],
];

/// The shares of accounts in each region, in per cent.
const REGION_SHARES: [u64; REGIONS] = [40, 35, 20, 5];

/// The least and the greatest length of work, in microseconds: a second and an hour.
const LENGTH_MIN: u64 = 1_000_000;
const LENGTH_MAX: u64 = 3_600_000_000;

/// The median of the lengths' log-normal distribution in seconds, and its deviation.
const LENGTH_MEDIAN: f64 = 150.0;
const LENGTH_DEVIATION: f64 = 1.4;

/// The share of all device time that buyers demand on average, per thousand.
const LOAD_PERMILLE: u64 = 750;

/// How far demand is above its mean at noon, and below it at midnight, per thousand.
const SWING_PERMILLE: u64 = 250;

/// A model of device that some providers sell, and that a job can demand.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    /// The exact resources of one device.
    pub resources: Resources,
    /// The providers that sell it, as a share of the sum of all shares.
    pub share: u64,
    /// The usual price of a device-second, around which providers ask.
    pub price: Price,
}

impl DeviceModel {
    /// Returns the model's name.
    pub fn name(&self) -> &Name {
        &self.resources.model
    }
}

/// Returns the time of one message from a region to another, in microseconds.
pub fn way_us(from: usize, to: usize) -> u64 {
    ROUND_TRIP_MS[from][to] * 500
}

/// Draws the region of an account.
pub fn draw_region(random: &mut Random) -> usize {
    draw_share(REGION_SHARES.iter().copied(), random)
}

/// Draws an index with chances by shares, whose sum must not be zero.
pub fn draw_share(shares: impl Iterator<Item = u64> + Clone, random: &mut Random) -> usize {
    let mut drawn = random.draw_below(shares.clone().sum());
    for (index, share) in shares.enumerate() {
        match drawn.checked_sub(share) {
            Some(rest) => drawn = rest,
            None => return index,
        }
    }
    unreachable!("a number below the sum is within a share");
}

/// Draws a time from an exponential distribution, in microseconds.
pub fn draw_exponential(mean_us: u64, random: &mut Random) -> u64 {
    (-draw_open_unit(random).ln() * mean_us as f64) as u64 + 1
}

/// Draws the length of a piece of work, in microseconds of device time.
pub fn draw_length(random: &mut Random) -> u64 {
    let (first, second) = (draw_open_unit(random), draw_open_unit(random));
    let normal = (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos();
    let length = LENGTH_MEDIAN * (normal * LENGTH_DEVIATION).exp() * 1e6;
    (length as u64).clamp(LENGTH_MIN, LENGTH_MAX)
}

/// Returns the mean of [`draw_length`] in microseconds, over draws of its own.
pub fn mean_length() -> u64 {
    const DRAWS: u64 = 20_000;
    let mut random = Random::new(0, "lengths");
    (0..DRAWS).map(|_| draw_length(&mut random)).sum::<u64>() / DRAWS
}

/// Returns the mean time between two arrivals at a moment of the day, in microseconds, if `devices`
/// are present in the mean.
pub fn arrival_gap(now_us: u64, devices: u64, mean_length: u64) -> u64 {
    const DAY_US: u64 = 86_400_000_000;
    // A triangle: highest at noon, lowest at midnight, its mean in the morning and in the evening.
    let from_noon = (now_us % DAY_US).abs_diff(DAY_US / 2);
    let quarter = DAY_US / 4;
    let swing = SWING_PERMILLE as i64 * (quarter as i64 - from_noon as i64) / quarter as i64;
    let load = LOAD_PERMILLE as i64 * (1_000 + swing) / 1_000;
    mean_length * 1_000 / (devices.max(1) * load.unsigned_abs().max(1)).max(1)
}

/// Draws from the open interval between 0 and 1.
fn draw_open_unit(random: &mut Random) -> f64 {
    const BITS: u32 = 52;
    let drawn = random.next_u64() >> (u64::BITS - BITS);
    (drawn as f64 + 0.5) / (1_u64 << BITS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_highest_at_noon_and_its_mean_is_the_load() {
        let rate = |hour: u64| 1_000_000_000 / arrival_gap(hour * 3_600_000_000, 10, 170_000_000);
        assert!(rate(0) < rate(6) && rate(6) < rate(12) && rate(12) > rate(18));
        let mean = (0..24).map(rate).sum::<u64>() / 24;
        // 10 devices with 170 s of work each are 7.5 busy: one job in 22.7 s.
        assert!((43..=45).contains(&mean), "{mean}");
    }

    #[test]
    fn lengths_are_between_a_second_and_an_hour_with_their_median() {
        let mut random = Random::new(1, "lengths");
        let mut lengths: Vec<u64> = (0..9_999).map(|_| draw_length(&mut random)).collect();
        lengths.sort_unstable();
        assert!(lengths[0] >= LENGTH_MIN && lengths[9_998] <= LENGTH_MAX);
        assert!((140_000_000..160_000_000).contains(&lengths[4_999]));
    }

    #[test]
    fn shares_are_drawn_in_proportion() {
        let mut random = Random::new(1, "shares");
        let mut counts = [0; 3];
        for _ in 0..4_000 {
            counts[draw_share([1, 0, 3].into_iter(), &mut random)] += 1;
        }
        assert!((900..1_100).contains(&counts[0]) && counts[1] == 0);
    }
}
