//! Computes each device's share of an operator, so that all parts end together.

/// A device's part of a split operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the device.
    pub device: usize,
    /// Index of the first unit (a row or an output channel).
    pub first: usize,
    /// Number of units.
    pub units: usize,
}

/// The division of an operator over devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// The parts, one after the other; idle devices have none.
    pub parts: Vec<Part>,
    /// Expected seconds.
    pub seconds: f64,
    /// Expected seconds of the best single device; infinite if none can do it alone.
    pub single_seconds: f64,
}

/// Number of bisections to find the least time: to a millionth of a millionth.
const HALVINGS: usize = 40;

/// Returns the shares of `units` over `devices` that end soonest. `time` must return a device's
/// seconds for a number of units: more for more units, infinite beyond its maximum. Returns `None`
/// if the devices cannot take all units.
#[must_use]
pub fn soonest_shares(
    units: usize,
    devices: usize,
    time: &dyn Fn(usize, usize) -> f64,
) -> Option<Shares> {
    // Returns the most units that a device can finish within a time.
    let within = |device: usize, limit: f64| {
        let (mut fits, mut beyond) = (0, units + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if time(device, middle) <= limit {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        fits
    };
    let all = |limit: f64| {
        (0..devices)
            .map(|device| within(device, limit))
            .sum::<usize>()
    };
    if units == 0 || all(f64::MAX) < units {
        return None;
    }
    // An upper bound: every device runs as many units as it can.
    let most = (0..devices).map(|device| match within(device, f64::MAX) {
        0 => 0.0,
        fits => time(device, fits),
    });
    let (mut early, mut late) = (0.0, most.fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let middle = early + (late - early) / 2.0;
        if all(middle) >= units {
            late = middle;
        } else {
            early = middle;
        }
    }
    let mut counts: Vec<usize> = (0..devices).map(|device| within(device, late)).collect();
    // Rounding up can assign a unit or two too many: the device that ends last drops them.
    for _ in units..counts.iter().sum() {
        let busy = (0..devices).filter(|&device| counts[device] > 0);
        let last = busy
            .max_by(|&one, &other| time(one, counts[one]).total_cmp(&time(other, counts[other])));
        counts[last.expect("somebody has a unit")] -= 1;
    }
    Some(contiguous_shares(&counts, time))
}

/// Places the parts one after the other.
fn contiguous_shares(counts: &[usize], time: &dyn Fn(usize, usize) -> f64) -> Shares {
    let (mut parts, mut first, mut seconds) = (Vec::new(), 0, 0.0f64);
    for (device, &units) in counts.iter().enumerate().filter(|(_, units)| **units > 0) {
        parts.push(Part {
            device,
            first,
            units,
        });
        first += units;
        seconds = seconds.max(time(device, units));
    }
    Shares {
        parts,
        seconds,
        single_seconds: f64::INFINITY,
    }
}

impl Shares {
    /// Creates shares with this number of units for each device, in the order of the devices.
    #[must_use]
    pub fn from_counts(counts: &[usize], time: &dyn Fn(usize, usize) -> f64) -> Self {
        contiguous_shares(counts, time)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The least time by trying every way to share.
    fn exhaustive(units: usize, rates: &[(f64, f64, usize)]) -> f64 {
        let time = |device: usize, units: usize| line(rates, device, units);
        match rates.len() {
            1 => time(0, units),
            _ => (0..=units)
                .map(|first| {
                    let rest = exhaustive(units - first, &rates[1..]);
                    time(0, first).max(rest)
                })
                .fold(f64::INFINITY, f64::min),
        }
    }

    fn line(rates: &[(f64, f64, usize)], device: usize, units: usize) -> f64 {
        let (fixed, each, most) = rates[device];
        match units {
            0 => 0.0,
            _ if units > most => f64::INFINITY,
            _ => fixed + each * units as f64,
        }
    }

    proptest! {
        #[test]
        fn no_other_shares_end_sooner(
            units in 1usize..24,
            rates in prop::collection::vec((0.0f64..5.0, 0.01f64..3.0, 0usize..30), 1..4),
        ) {
            let time = |device: usize, units: usize| line(&rates, device, units);
            let best = exhaustive(units, &rates);
            match soonest_shares(units, rates.len(), &time) {
                None => prop_assert!(best.is_infinite()),
                Some(found) => {
                    prop_assert!(found.seconds <= best * (1.0 + 1e-9), "{found:?} {best}");
                    let sum: usize = found.parts.iter().map(|part| part.units).sum();
                    prop_assert_eq!(sum, units);
                }
            }
        }
    }

    #[test]
    fn three_times_the_speed_does_three_times_the_work() {
        let time = |device: usize, units: usize| units as f64 * [3.0, 1.0][device];
        let found = soonest_shares(400, 2, &time).unwrap();
        let counts: Vec<usize> = found.parts.iter().map(|part| part.units).collect();
        assert_eq!(counts, [100, 300]);
    }
}
