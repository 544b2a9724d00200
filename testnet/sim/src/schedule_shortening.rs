//! Shortens a schedule that breaks a promise, so that a person can understand the failure: removes
//! faults while the same promise stays broken.

use super::checker::Violation;
use super::{Config, Failure, faults, run_once, select_faults};

/// Maximum runs that shortening a schedule can take.
const RUNS_MAX: u32 = 200;

/// Returns the shortest schedule found that breaks the same promise.
pub fn shorten_schedule(config: &Config, violation: Violation) -> Failure {
    let all = faults::draw_schedule(config.seed, config.nodes, config.simulated_ms());
    let mut kept: Vec<usize> = config
        .faults
        .clone()
        .unwrap_or_else(|| (0..all.len()).collect());
    let mut found = violation;
    let runs = leave_out(&mut kept, |without| {
        let violation = try_without(config, without, found.kind());
        let is_broken = violation.is_some();
        found = violation.unwrap_or_else(|| found.clone());
        is_broken
    });
    new_failure(config, found, kept, runs)
}

/// Removes smaller and smaller pieces while the promise stays broken. Returns the number of
/// attempts.
fn leave_out(kept: &mut Vec<usize>, mut is_broken: impl FnMut(&[usize]) -> bool) -> u32 {
    let mut runs = 0;
    let mut size = kept.len().div_ceil(2);
    while size > 0 && runs < RUNS_MAX {
        let before = kept.len();
        let mut start = 0;
        while start < kept.len() && runs < RUNS_MAX {
            let end = (start + size).min(kept.len());
            let without: Vec<usize> = kept[..start].iter().chain(&kept[end..]).copied().collect();
            runs += 1;
            match is_broken(&without) {
                true => *kept = without,
                false => start = end,
            }
        }
        size = if size == 1 && kept.len() < before {
            1
        } else {
            size / 2
        };
    }
    runs
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

fn new_failure(config: &Config, violation: Violation, faults: Vec<usize>, runs: u32) -> Failure {
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
    let schedule = select_faults(&Config {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_break_it_is_left_out_and_what_does_together_stays() {
        let mut kept: Vec<usize> = (0..40).collect();
        let needed = [3, 17, 18];
        let runs = leave_out(&mut kept, |left| needed.iter().all(|it| left.contains(it)));
        assert_eq!(kept, needed);
        assert!(runs <= RUNS_MAX);
    }

    #[test]
    fn a_run_that_fails_without_any_fault_needs_none() {
        let mut kept: Vec<usize> = (0..7).collect();
        leave_out(&mut kept, |_| true);
        assert!(kept.is_empty());
    }
}
