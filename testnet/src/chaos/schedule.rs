//! Which fault comes when: drawn from a seed, so that a run can be made again.

use serde::Serialize;

use super::Config;
use crate::sim::random::Random;

/// The longest a fault lasts, in seconds: longer than any timeout of a node.
const SECONDS_MAX: u64 = 12;

/// What is done to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Fault {
    /// Its process is ended as a power cut would, and started again.
    Kill {
        /// Which.
        node: String,
        /// How long it is away.
        seconds: u64,
    },
    /// Its process is stopped, and goes on as if nothing had been.
    Stop {
        /// Which.
        node: String,
        /// How long it stands still.
        seconds: u64,
    },
    /// Its link is taken down.
    Cut {
        /// Which.
        node: String,
        /// How long nothing goes through.
        seconds: u64,
    },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// When, in seconds from the start.
    pub at_seconds: u64,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Fault {
    /// How long it lasts.
    pub fn seconds(&self) -> u64 {
        match self {
            Fault::Kill { seconds, .. } | Fault::Stop { seconds, .. } => *seconds,
            Fault::Cut { seconds, .. } => *seconds,
        }
    }
}

/// Draws faults, one after another: a majority of the validators is never away at once.
pub(super) fn draw(config: &Config, nodes: &[String]) -> Vec<Planned> {
    let mut random = Random::new(config.seed, "chaos");
    let interval = (3600 / u64::from(config.per_hour.max(1))).max(2);
    let longest = SECONDS_MAX.min(interval - 1);
    let mut faults = Vec::new();
    for begin in (0..config.length.as_secs().saturating_sub(interval - 1))
        .step_by(usize::try_from(interval).expect("an hour at most"))
    {
        let seconds = random.between(1, longest);
        let at_seconds = begin + random.below(interval - seconds);
        let node = nodes[random.place(nodes.len())].clone();
        let kinds = if config.namespaces { 3 } else { 2 };
        let fault = match random.below(kinds) {
            0 => Fault::Kill { node, seconds },
            1 => Fault::Stop { node, seconds },
            _ => Fault::Cut { node, seconds },
        };
        faults.push(Planned { at_seconds, fault });
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config(namespaces: bool) -> Config {
        let length = Duration::from_secs(3600);
        Config {
            seed: 7,
            length,
            per_hour: 100,
            namespaces,
            buyers: 1,
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_faults_one_at_a_time() {
        let nodes = ["validator-1".to_owned(), "provider-1".to_owned()];
        let faults = draw(&config(true), &nodes);
        assert_eq!(faults, draw(&config(true), &nodes));
        assert_eq!(faults.len(), 100);
        for pair in faults.windows(2) {
            assert!(pair[0].at_seconds + pair[0].fault.seconds() <= pair[1].at_seconds);
        }
    }

    #[test]
    fn links_are_cut_only_where_there_are_links() {
        let nodes = ["validator-1".to_owned()];
        let cuts = |namespaces| {
            let faults = draw(&config(namespaces), &nodes);
            faults
                .iter()
                .filter(|planned| matches!(planned.fault, Fault::Cut { .. }))
                .count()
        };
        assert!(cuts(true) > 10);
        assert_eq!(cuts(false), 0);
    }
}
