//! The reputation of an account: a score from 0 to 1000, with the record of its settled leases and
//! proven faults behind it.
//!
//! Claims and keys cost nothing, so neither changes a reputation. A settled receipt has two
//! signatures and credits behind it: each time two accounts have settled a certain amount with each
//! other (a rule of the market), the score of each takes a step, and one counterpart can cause only
//! a few steps. So a new key that pays a thousandth of a credit changes nothing, and many receipts
//! from one friend can change only little.

use serde::{Deserialize, Serialize};

use crate::ids::AccountKey;
use crate::units::{Credits, Permille};

/// The most steps up, and the most steps down, that one counterpart can cause.
const STEPS_MAX: u64 = 4;

/// The counterparts that an account remembers: those with which it settled most.
const DEALINGS_MAX: usize = 16;

/// The record of an account's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reputation {
    /// The score, from 0 to 1000; an account begins at 500.
    pub score: Permille,
    /// Leases that a receipt settled.
    pub settled: u64,
    /// Those of them with less than 80 % of the advertised speed.
    pub slow: u64,
    /// Leases that the account gave up as a provider.
    pub gave_up: u64,
    /// Faults proven against the account.
    pub faults: u64,
    /// Leases that ended in a dispute. They do not change the score.
    pub disputed: u64,
}

impl Default for Reputation {
    fn default() -> Self {
        let score = Permille(500);
        Self {
            score,
            settled: 0,
            slow: 0,
            gave_up: 0,
            faults: 0,
            disputed: 0,
        }
    }
}

impl Reputation {
    /// Raises the score by a sixteenth of the distance to 1000.
    fn raise_score(&mut self) {
        let before = self.score;
        let missing = 1_000_u16.saturating_sub(self.score.0);
        self.score.0 = self.score.0.saturating_add(missing.div_ceil(16));
        assert!(self.score.0 <= 1_000, "a reputation is at most whole");
        assert!(self.score > before || before.0 == 1_000, "and it rises");
    }

    /// Lowers the score by an eighth of itself.
    fn lower_score(&mut self) {
        let before = self.score;
        self.score.0 = self.score.0.saturating_sub(self.score.0.div_ceil(8));
        assert!(
            self.score < before || before.0 == 0,
            "it falls, and not below nothing"
        );
    }

    /// Records a lease that a receipt settled, and applies its `steps`, which must not exceed
    /// [`STEPS_MAX`], to the score.
    pub(crate) fn on_settled(&mut self, speed: Speed, steps: u64) {
        assert!(steps <= STEPS_MAX, "a counterpart causes a few steps");
        self.settled = self.settled.saturating_add(1);
        if speed == Speed::Slow {
            self.slow = self.slow.saturating_add(1);
        }
        for _ in 0..steps {
            match speed {
                Speed::Slow => self.lower_score(),
                Speed::AsStated => self.raise_score(),
            }
        }
        assert!(self.slow <= self.settled, "slow leases were settled");
    }

    /// Records a lease that the provider gave up. The score falls by a quarter if the two parties
    /// have settled [`STEPS_MAX`] steps with each other, and by less in proportion if fewer.
    pub(crate) fn on_gave_up(&mut self, steps: u64) {
        self.gave_up = self.gave_up.saturating_add(1);
        let quarter = u64::from(self.score.0.div_ceil(4));
        let lost = quarter.saturating_mul(steps.min(STEPS_MAX)) / STEPS_MAX;
        let lost = u16::try_from(lost).expect("a part of a score is no more than it");
        self.score.0 = self.score.0.saturating_sub(lost);
    }

    pub(crate) fn on_disputed(&mut self) {
        self.disputed = self.disputed.saturating_add(1);
    }

    pub(crate) fn on_fault(&mut self) {
        self.faults = self.faults.saturating_add(1);
        self.score = Permille(0);
        assert!(self.faults > 0, "a proven fault is counted");
    }
}

/// Whether a receipt says that the device delivered the ask's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// The device delivered at least 80 % of it, or the speed could not be measured.
    AsStated,
    /// The device delivered less.
    Slow,
}

/// The amounts that an account has settled with others, as far as they count for its score.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dealings(Vec<Dealing>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Dealing {
    with: AccountKey,
    /// Credits of receipts with the stated speed, up to the limit that counts.
    as_stated: Credits,
    /// Credits of receipts with a lower speed, up to the same limit.
    slow: Credits,
}

impl Dealing {
    fn sum(&self) -> u64 {
        self.as_stated.0.saturating_add(self.slow.0)
    }
}

impl Dealings {
    /// Adds `paid`, settled with another account. Returns the new steps, each of `step` credits,
    /// which must not be 0.
    pub(crate) fn record_settlement(
        &mut self,
        with: AccountKey,
        speed: Speed,
        paid: Credits,
        step: Credits,
    ) -> u64 {
        assert!(step.0 > 0, "a step is of some credits");
        let dealing = self.dealing_mut(with);
        let sum = match speed {
            Speed::AsStated => &mut dealing.as_stated,
            Speed::Slow => &mut dealing.slow,
        };
        let steps_of = |sum: u64| sum.checked_div(step.0).unwrap_or(0).min(STEPS_MAX);
        let before = steps_of(sum.0);
        sum.0 = sum
            .0
            .saturating_add(paid.0)
            .min(step.0.saturating_mul(STEPS_MAX));
        let steps = steps_of(sum.0);
        assert!(self.0.len() <= DEALINGS_MAX, "so many are remembered");
        steps.saturating_sub(before)
    }

    /// Returns the steps that an account has settled with another one.
    pub(crate) fn settled_steps(&self, with: AccountKey, step: Credits) -> u64 {
        let dealing = self.0.iter().find(|dealing| dealing.with == with);
        let sum = dealing.map_or(0, Dealing::sum);
        sum.checked_div(step.0).unwrap_or(0).min(STEPS_MAX)
    }

    /// Returns the dealing with an account; a new one replaces the smallest if the list is full.
    fn dealing_mut(&mut self, with: AccountKey) -> &mut Dealing {
        let known = self.0.iter().position(|dealing| dealing.with == with);
        let at = known.unwrap_or_else(|| {
            let new = Dealing {
                with,
                as_stated: Credits::ZERO,
                slow: Credits::ZERO,
            };
            if self.0.len() < DEALINGS_MAX {
                self.0.push(new);
                return self.0.len().saturating_sub(1);
            }
            let sums = self.0.iter().map(Dealing::sum).enumerate();
            let least = sums.min_by_key(|(at, sum)| (*sum, *at));
            let (at, _) = least.expect("a full list has a least");
            self.0[at] = new;
            at
        });
        &mut self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Credits = Credits(100);

    fn key(number: u8) -> AccountKey {
        AccountKey([number; 32])
    }

    #[test]
    fn a_new_key_with_little_moves_nothing_and_one_with_much_moves_a_few_steps() {
        let mut dealings = Dealings::default();
        let mut settle =
            |paid| dealings.record_settlement(key(1), Speed::AsStated, Credits(paid), STEP);
        assert_eq!((settle(1), settle(98), settle(1)), (0, 0, 1));
        assert_eq!((settle(1_000_000), settle(1_000_000)), (3, 0));
        assert_eq!(dealings.settled_steps(key(1), STEP), STEPS_MAX);
        assert_eq!(dealings.settled_steps(key(2), STEP), 0);
    }

    #[test]
    fn many_small_counterparts_never_push_a_large_one_out() {
        let mut dealings = Dealings::default();
        for number in 0..200 {
            let paid = Credits(if number < 15 { 400 } else { 1 });
            dealings.record_settlement(key(number), Speed::AsStated, paid, STEP);
        }
        for number in 0..15 {
            assert_eq!(dealings.settled_steps(key(number), STEP), STEPS_MAX);
        }
    }

    #[test]
    fn giving_up_costs_as_much_as_the_two_have_settled() {
        let lost = |steps| {
            let mut reputation = Reputation::default();
            reputation.on_gave_up(steps);
            500 - reputation.score.0
        };
        assert_eq!((lost(0), lost(1), lost(4)), (0, 31, 125));
    }
}
