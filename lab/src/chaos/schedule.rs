//! Draws the schedule of faults of the chaos test from a seed, so that a run can be repeated.

use std::time::Duration;

use serde::Serialize;

use super::ChaosConfig;
use souk_sim::random::Random;

/// The longest a fault lasts, in seconds: longer than any timeout of a node.
const SECONDS_MAX: u64 = 12;

/// Clock errors in milliseconds: within the tolerance, more than a lease, a time zone, a minute
/// back.
const CLOCKS_MS: [i64; 4] = [5_000, 120_000, 3_600_000, -60_000];

/// A fault of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
pub enum Fault {
    /// Kills the node's process, as a power cut would, and restarts it.
    Kill {
        /// The node's name.
        node: String,
        /// How long the node is away, in seconds.
        seconds: u64,
    },
    /// Suspends the node's process, and resumes it.
    Stop {
        /// The node's name.
        node: String,
        /// How long the process is suspended, in seconds.
        seconds: u64,
    },
    /// Takes the node's link down.
    Cut {
        /// The node's name.
        node: String,
        /// How long the link is down, in seconds.
        seconds: u64,
    },
    /// Drops messages from the node, but delivers those to it.
    Mute {
        /// The node's name.
        node: String,
        /// How long messages are dropped, in seconds.
        seconds: u64,
    },
    /// Fills the node's disk.
    Fill {
        /// The node's name.
        node: String,
        /// How long the disk is full, in seconds.
        seconds: u64,
    },
    /// Restarts the node with a wrong clock.
    Clock {
        /// The node's name.
        node: String,
        /// How long the clock is wrong, in seconds.
        seconds: u64,
        /// How far the clock is ahead in milliseconds; negative if behind.
        ahead_ms: i64,
    },
    /// Makes the clock of the running node jump, and later jump back.
    Jump {
        /// The node's name.
        node: String,
        /// How long the clock is wrong, in seconds.
        seconds: u64,
        /// How far the clock is ahead in milliseconds; negative if behind.
        ahead_ms: i64,
    },
    /// Makes a provider return wrong results and sign for them.
    Lie {
        /// The provider's name.
        node: String,
        /// How long the provider lies, in seconds.
        seconds: u64,
    },
    /// Makes a provider take leases and do no work.
    Stall {
        /// The provider's name.
        node: String,
        /// How long the provider stalls, in seconds.
        seconds: u64,
    },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedFault {
    /// Seconds since the start.
    pub at_seconds: u64,
    /// The fault and its node.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Fault {
    /// Returns how long the fault lasts, in seconds.
    pub fn seconds(&self) -> u64 {
        match self {
            Fault::Kill { seconds, .. }
            | Fault::Stop { seconds, .. }
            | Fault::Cut { seconds, .. }
            | Fault::Mute { seconds, .. }
            | Fault::Fill { seconds, .. }
            | Fault::Clock { seconds, .. }
            | Fault::Jump { seconds, .. }
            | Fault::Lie { seconds, .. }
            | Fault::Stall { seconds, .. } => *seconds,
        }
    }
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Kill,
    Stop,
    Clock,
    Jump,
    Lie,
    Stall,
    Cut,
    Mute,
    Fill,
}

/// Every kind. Those that need a network and a disk for each node must come last.
const KINDS: [FaultKind; 9] = [
    FaultKind::Kill,
    FaultKind::Stop,
    FaultKind::Clock,
    FaultKind::Jump,
    FaultKind::Lie,
    FaultKind::Stall,
    FaultKind::Cut,
    FaultKind::Mute,
    FaultKind::Fill,
];

/// Number of kinds that need only processes.
const KINDS_OF_PROCESSES: usize = 6;

/// Draws faults that can never take a majority of three validators away. Kinds are dealt like
/// cards: each comes once before any comes again.
pub(super) fn draw_schedule(config: &ChaosConfig, nodes: &[String]) -> Vec<PlannedFault> {
    let kinds = match config.namespaces {
        true => &KINDS[..],
        false => &KINDS[..KINDS_OF_PROCESSES],
    };
    deal_faults(kinds, config.seed, config.length, config.per_hour, nodes)
}

/// Draws which nodes die and when, for a length of time and a number of kills per hour.
pub(super) fn draw_kills(
    seed: u64,
    length: Duration,
    per_hour: u32,
    nodes: &[String],
) -> Vec<(Duration, String)> {
    let faults = deal_faults(&[FaultKind::Kill], seed, length, per_hour, nodes);
    let kill = |planned: PlannedFault| match planned.fault {
        Fault::Kill { node, .. } => Some((Duration::from_secs(planned.at_seconds), node)),
        _ => None,
    };
    faults.into_iter().filter_map(kill).collect()
}

fn deal_faults(
    kinds: &[FaultKind],
    seed: u64,
    length: Duration,
    per_hour: u32,
    nodes: &[String],
) -> Vec<PlannedFault> {
    let mut random = Random::new(seed, "chaos");
    let interval = (3600 / u64::from(per_hour.max(1))).max(2);
    let longest = SECONDS_MAX.min(interval - 1);
    let (mut deck, mut faults) = (Vec::new(), Vec::new());
    for begin in (0..length.as_secs().saturating_sub(interval - 1))
        .step_by(usize::try_from(interval).expect("an hour at most"))
    {
        let seconds = random.draw_between(1, longest);
        let at_seconds = begin + random.draw_below(interval - seconds);
        if deck.is_empty() {
            deck.extend_from_slice(kinds);
        }
        let kind = deck.swap_remove(random.draw_index(deck.len()));
        faults.push(PlannedFault {
            at_seconds,
            fault: draw_fault(&mut random, kind, nodes, seconds),
        });
    }
    faults
}

/// Returns a fault of this kind, on a random node that can have it.
fn draw_fault(random: &mut Random, kind: FaultKind, nodes: &[String], seconds: u64) -> Fault {
    // Only providers compute.
    let computes = matches!(kind, FaultKind::Lie | FaultKind::Stall);
    let may = |node: &&String| !computes || node.starts_with("provider");
    let suited: Vec<&String> = nodes.iter().filter(may).collect();
    let node = suited[random.draw_index(suited.len())].clone();
    let ahead_ms = CLOCKS_MS[random.draw_index(CLOCKS_MS.len())];
    match kind {
        FaultKind::Kill => Fault::Kill { node, seconds },
        FaultKind::Stop => Fault::Stop { node, seconds },
        FaultKind::Cut => Fault::Cut { node, seconds },
        FaultKind::Mute => Fault::Mute { node, seconds },
        FaultKind::Fill => Fault::Fill { node, seconds },
        FaultKind::Clock => Fault::Clock {
            node,
            seconds,
            ahead_ms,
        },
        FaultKind::Jump => Fault::Jump {
            node,
            seconds,
            ahead_ms,
        },
        FaultKind::Lie => Fault::Lie { node, seconds },
        FaultKind::Stall => Fault::Stall { node, seconds },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use super::*;

    fn config(namespaces: bool) -> ChaosConfig {
        let length = Duration::from_secs(3600);
        ChaosConfig {
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
        let faults = draw_schedule(&config(true), &nodes);
        assert_eq!(faults, draw_schedule(&config(true), &nodes));
        assert_eq!(faults.len(), 100);
        for pair in faults.windows(2) {
            assert!(pair[0].at_seconds + pair[0].fault.seconds() <= pair[1].at_seconds);
        }
    }

    #[test]
    fn every_kind_comes_before_any_comes_again() {
        let nodes = ["validator-1".to_owned(), "provider-1".to_owned()];
        let faults = draw_schedule(&config(true), &nodes);
        for hand in faults.chunks_exact(KINDS.len()) {
            let kinds = hand.iter().map(|planned| discriminant(&planned.fault));
            assert_eq!(kinds.collect::<HashSet<_>>().len(), KINDS.len());
        }
    }

    #[test]
    fn of_kills_alone_the_same_seed_draws_the_same_and_another_others() {
        let nodes = ["validator-1", "provider-1", "provider-2"].map(str::to_owned);
        let draw = |seed| draw_kills(seed, Duration::from_secs(600), 360, &nodes);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(draw(7).len(), 60);
        for node in &nodes {
            assert!(draw(7).iter().any(|(_, killed)| killed == node));
        }
    }

    #[test]
    fn links_are_cut_only_where_there_are_links() {
        let nodes = ["validator-1".to_owned(), "provider-1".to_owned()];
        let cuts = |namespaces| {
            let faults = draw_schedule(&config(namespaces), &nodes);
            faults
                .iter()
                .filter(|planned| matches!(planned.fault, Fault::Cut { .. }))
                .count()
        };
        assert!(cuts(true) > 5);
        assert_eq!(cuts(false), 0);
    }
}
