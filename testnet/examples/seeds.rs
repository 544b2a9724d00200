//! The simulator without the `souk` binary: `seeds FIRST COUNT MINUTES [BUG]`. Prints a line for
//! each seed that fails, and at the end what all of them came to, and how many simulated seconds
//! passed in a second of processor time. With a bug planted, says which seeds find it.

use souk_testnet::sim::{Bug, Config, first_violation, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| -> Result<u64, Box<dyn std::error::Error>> {
        let word = arguments
            .get(place)
            .ok_or("seeds FIRST COUNT MINUTES [BUG]")?;
        Ok(word.parse()?)
    };
    let (first, count, minutes) = (number(0)?, number(1)?, number(2)?);
    let bug = arguments.get(3).and_then(|name| Bug::of_name(name));
    let (mut simulated_ms, mut commands, mut failed) = (0, 0, 0_u64);
    if let Some(bug) = bug {
        let breaks = |seed: &u64| {
            first_violation(&Config {
                bug: Some(bug),
                ..Config::new(*seed, minutes)
            })
        };
        let found: Vec<u64> = (first..first + count)
            .filter(|seed| breaks(seed).is_some())
            .collect();
        println!(
            "{}: found by {} of {count} seeds: {found:?}",
            bug.name(),
            found.len()
        );
        return Ok(());
    }
    for seed in first..first + count {
        let report = run(&Config::new(seed, minutes));
        simulated_ms += report.counts.simulated_ms;
        commands += report.counts.commands;
        if let Some(failure) = report.failure {
            failed += 1;
            println!("seed {seed}: {:?}\n  {}", failure.violation, failure.replay);
        }
    }
    let simulated = simulated_ms as f64 / 1_000.0;
    let spent = processor_seconds();
    println!(
        "{count} seeds from {first}: {failed} failed, {:.1} simulated hours, {:.1} commands a \
         simulated second, {spent:.1} s of processor time, {:.0} times real time",
        simulated / 3_600.0,
        commands as f64 / simulated,
        simulated / spent,
    );
    Ok(())
}

/// Processor time of this process, as Linux counts it in nanoseconds.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    first.unwrap_or(f64::NAN) / 1e9
}
