//! Shortens a schedule that breaks a promise: leaves faults out while the same promise is broken.

use super::checker::Violation;
use super::{Config, Failure, chosen, faults, run_once};

/// Runs spent on shortening.
const RUNS_MAX: u32 = 200;

/// The shortest schedule found that breaks the same promise.
pub fn shorten(config: &Config, violation: Violation) -> Failure {
    let all = faults::schedule(config.seed, config.nodes, config.simulated_ms());
    let mut kept: Vec<usize> = config
        .faults
        .clone()
        .unwrap_or_else(|| (0..all.len()).collect());
    let mut found = violation;
    let mut runs = 0;
    let mut size = kept.len().div_ceil(2);
    while size > 0 && runs < RUNS_MAX {
        let before = kept.len();
        let mut start = 0;
        while start < kept.len() && runs < RUNS_MAX {
            let end = (start + size).min(kept.len());
            let without: Vec<usize> = kept[..start].iter().chain(&kept[end..]).copied().collect();
            runs += 1;
            match try_without(config, &without, found.kind()) {
                Some(violation) => (kept, found) = (without, violation),
                None => start = end,
            }
        }
        size = if size == 1 && kept.len() < before {
            1
        } else {
            size / 2
        };
    }
    failure(config, found, kept, runs)
}

fn try_without(config: &Config, faults: &[usize], kind: &str) -> Option<Violation> {
    let config = Config {
        faults: Some(faults.to_vec()),
        ..config.clone()
    };
    run_once(&config)
        .1
        .filter(|violation| violation.kind() == kind)
}

fn failure(config: &Config, violation: Violation, faults: Vec<usize>, runs: u32) -> Failure {
    let list: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let Config {
        seed,
        minutes,
        nodes,
        commands_per_second,
        ..
    } = config;
    let list = if list.is_empty() {
        "none".to_owned()
    } else {
        list.join(",")
    };
    let mut replay = format!(
        "souk testnet sim --seed {seed} --minutes {minutes} --nodes {nodes} --faults {list}"
    );
    if *commands_per_second != Config::COMMANDS_PER_SECOND {
        replay.push_str(&format!(" --commands {commands_per_second}"));
    }
    if let Some(bug) = config.bug {
        replay.push_str(&format!(" --bug {}", bug.name()));
    }
    let schedule = chosen(&Config {
        faults: Some(faults.clone()),
        ..config.clone()
    });
    Failure {
        violation,
        faults,
        schedule,
        runs,
        replay,
    }
}
