//! Scores schedules by the quantity that a plan should minimise, such as time or price.
//!
//! All planners use the same objectives: a buyer over the market's offers, a provider over its own
//! devices, and the planners over a problem's whole numbers. A deadline comes before everything
//! else, and the makespan (the time to the last output) decides among equals.

pub use souk_vocabulary::objective::{Objective, ObjectiveUnknown};

use super::time::Time;

/// The makespan, price and energy of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// End of the last task.
    pub makespan: Time,
    /// Computing time x price of the device, summed over all devices.
    pub cost: u128,
    /// Computing time x power of the device, summed over all devices.
    pub energy: u128,
}

/// The score of a schedule: smaller is better, and the first difference decides. It consists of
/// whole numbers, so that every machine prefers the same of two schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Time beyond the deadline.
    pub late: Time,
    /// The quantity that the objective minimises.
    pub value: u128,
    /// The makespan, which decides among equals.
    pub makespan: Time,
}

impl Figures {
    /// Returns the score of a schedule with these figures. A larger figure never improves it.
    #[must_use]
    pub fn score(&self, objective: Objective, deadline: Option<Time>) -> Score {
        let makespan = self.makespan;
        Score {
            late: makespan.saturating_sub(deadline.unwrap_or(Time::MAX)),
            value: match objective {
                Objective::Fastest => u128::from(makespan),
                Objective::Cheapest => self.cost,
                Objective::Greenest => self.energy,
                Objective::Balanced => u128::from(makespan).saturating_mul(self.cost),
                // Beyond the exact range of floats, the makespan decides.
                Objective::Weighted { time, cost } => {
                    (time * makespan as f64 + cost * self.cost as f64) as u128
                }
            },
            makespan,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_comes_first_and_the_makespan_last() {
        let of = |makespan, cost| Figures {
            makespan,
            cost,
            energy: 0,
        };
        let score = |figures: &Figures| figures.score(Objective::Cheapest, Some(10));
        assert!(score(&of(10, 9)) < score(&of(11, 1)));
        assert!(score(&of(9, 5)) < score(&of(10, 5)));
        let weighted = Objective::Weighted {
            time: 2.0,
            cost: 1.0,
        };
        assert_eq!(of(3, 4).score(weighted, None).value, 10);
    }
}
