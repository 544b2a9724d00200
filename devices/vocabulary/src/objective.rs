//! Defines [`Objective`], the quantity that a plan minimises (for example time or price), with the
//! names by which files and the command line choose it.
//!
//! Buyers and providers choose it in their configuration files, and planners follow it. It is in
//! this crate and not with the planner, because code that reads such a file may not contain a
//! planner.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The quantity that a plan should minimise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Objective {
    /// Time to the last output.
    #[default]
    Fastest,
    /// The price of the computing time.
    Cheapest,
    /// The energy of devices while they compute.
    Greenest,
    /// Time multiplied by price: the knee between fastest and cheapest. A plan that takes a tenth
    /// more time must cost a tenth less to be as good, whatever the units.
    Balanced,
    /// A weighted sum of time and price, each in its own unit.
    Weighted {
        /// Weight of a unit of time. You can choose any unit, but must use the same one for all
        /// plans that you compare.
        time: f64,
        /// Weight of a unit of price.
        cost: f64,
    },
}

/// The name is not an objective.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not fastest, cheapest, greenest or balanced")]
pub struct ObjectiveUnknown(String);

impl Objective {
    /// The objectives with a name, as the command line and files use them.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("fastest", Self::Fastest),
        ("cheapest", Self::Cheapest),
        ("greenest", Self::Greenest),
        ("balanced", Self::Balanced),
    ];

    /// Returns the number to minimise of a plan in seconds, credits and joules, and the number that
    /// decides among equals.
    #[must_use]
    pub fn weigh_figures(&self, seconds: f64, credits: f64, joules: f64) -> (f64, f64) {
        match *self {
            Self::Fastest => (seconds, credits),
            Self::Cheapest => (credits, seconds),
            Self::Greenest => (joules, seconds),
            Self::Balanced => (seconds * credits, seconds),
            Self::Weighted { time, cost } => (time * seconds + cost * credits, seconds),
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = Self::NAMED.iter();
        let name = named.find_map(|(name, objective)| (objective == self).then_some(*name));
        f.write_str(name.unwrap_or("weighted"))
    }
}

impl From<Objective> for String {
    fn from(objective: Objective) -> Self {
        objective.to_string()
    }
}

impl TryFrom<String> for Objective {
    type Error = ObjectiveUnknown;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl FromStr for Objective {
    type Err = ObjectiveUnknown;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut named = Self::NAMED.into_iter();
        named
            .find_map(|(known, objective)| (known == name).then_some(objective))
            .ok_or_else(|| ObjectiveUnknown(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, objective) in Objective::NAMED {
            assert_eq!(name.parse(), Ok(objective));
            assert_eq!(objective.to_string(), name);
            let json = serde_json::to_string(&objective).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Objective>(&json).unwrap(), objective);
        }
        let refused = "quickest".parse::<Objective>().unwrap_err();
        assert!(refused.to_string().contains("greenest"), "{refused}");
    }

    #[test]
    fn balanced_gives_up_a_hundredth_of_time_for_a_third_of_the_price() {
        let weigh = |seconds, credits| Objective::Balanced.weigh_figures(seconds, credits, 0.0);
        let (fastest, knee, cheapest) = (weigh(2.06, 187.0), weigh(2.08, 58.0), weigh(40.0, 4.0));
        assert!(knee < fastest && knee < cheapest);
        assert!(
            weigh(1.0, 0.0) < weigh(2.0, 0.0),
            "what is free is to be fast"
        );
    }
}
