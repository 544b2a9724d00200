//! Which fault comes when: drawn from a seed, so that a run can be made again.

use serde::Serialize;

use super::Config;
use crate::sim::random::Random;

/// The longest a fault lasts, in seconds: longer than any timeout of a node.
const SECONDS_MAX: u64 = 12;

/// How wrong a clock is: within what is forgiven, by a lease, by a time zone, back by a minute.
const CLOCKS_MS: [i64; 4] = [5_000, 120_000, 3_600_000, -60_000];

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
    /// What it sends is lost; what is sent to it arrives.
    Mute {
        /// Which.
        node: String,
        /// How long nobody hears it.
        seconds: u64,
    },
    /// Its disk is full.
    Fill {
        /// Which.
        node: String,
        /// How long there is no byte left.
        seconds: u64,
    },
    /// It is started again with a wrong clock.
    Clock {
        /// Which.
        node: String,
        /// How long its clock is wrong.
        seconds: u64,
        /// By how many milliseconds it is ahead; behind where negative.
        ahead_ms: i64,
    },
    /// It gives wrong results and signs for them.
    Lie {
        /// Which provider.
        node: String,
        /// How long.
        seconds: u64,
    },
    /// It takes leases and does nothing.
    Stall {
        /// Which provider.
        node: String,
        /// How long.
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
            Fault::Kill { seconds, .. }
            | Fault::Stop { seconds, .. }
            | Fault::Cut { seconds, .. }
            | Fault::Mute { seconds, .. }
            | Fault::Fill { seconds, .. }
            | Fault::Clock { seconds, .. }
            | Fault::Lie { seconds, .. }
            | Fault::Stall { seconds, .. } => *seconds,
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
        let kinds = if config.namespaces { 8 } else { 2 };
        let fault = match random.below(kinds) {
            0 => Fault::Kill { node, seconds },
            1 => Fault::Stop { node, seconds },
            2 => Fault::Cut { node, seconds },
            3 => Fault::Mute { node, seconds },
            4 => Fault::Fill { node, seconds },
            5 => Fault::Clock {
                node,
                seconds,
                ahead_ms: CLOCKS_MS[random.place(CLOCKS_MS.len())],
            },
            // Only providers compute.
            _ if !node.starts_with("provider") => Fault::Kill { node, seconds },
            6 => Fault::Lie { node, seconds },
            _ => Fault::Stall { node, seconds },
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
        assert!(cuts(true) > 5);
        assert_eq!(cuts(false), 0);
    }
}
