//! The simulator without the `souk` binary: `seeds FIRST COUNT MINUTES [BUG|all|find|raw]`. Prints a line for
//! each seed that fails, and at the end what all of them came to, and how many simulated seconds
//! passed in a second of processor time. With a bug planted, says which seeds find it; with `all`,
//! how many seeds each bug takes, and by which promise it is found; with `find`, stops at the first
//! seed that fails, and fails itself if one does.

use std::collections::BTreeMap;

use souk_sim::{Bug, Config, Violation, first_violation, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| -> Result<u64, Box<dyn std::error::Error>> {
        let word = arguments
            .get(place)
            .ok_or("seeds FIRST COUNT MINUTES [BUG]")?;
        Ok(word.parse()?)
    };
    let (first, count, minutes) = (number(0)?, number(1)?, number(2)?);
    match arguments.get(3).map(String::as_str) {
        None => clean(first, count, minutes),
        Some("raw") => raw(first, count, minutes),
        Some("all") => Bug::ALL
            .into_iter()
            .for_each(|bug| first_found(bug, first, count, minutes)),
        Some("find") => {
            let seed = |seed| Some((seed, first_violation(&Config::new(seed, minutes))?));
            if let Some((seed, violation)) = (first..first + count).find_map(seed) {
                println!("{} seeds, {}", seed - first + 1, violation.kind());
                return Err("a promise is broken".into());
            }
        }
        Some(name) => {
            let bug = Bug::of_name(name).ok_or("no such bug")?;
            found(bug, first, count, minutes);
        }
    }
    Ok(())
}

fn broken(bug: Bug, seed: u64, minutes: u64) -> Option<Violation> {
    first_violation(&Config {
        bug: Some(bug),
        ..Config::new(seed, minutes)
    })
}

/// Which seeds break what, as they are.
fn raw(first: u64, count: u64, minutes: u64) {
    for seed in first..first + count {
        if let Some(violation) = first_violation(&Config::new(seed, minutes)) {
            println!("seed {seed}: {violation:?}");
        }
    }
}

/// How many seeds a bug takes.
fn first_found(bug: Bug, first: u64, count: u64, minutes: u64) {
    let found = (first..first + count).find_map(|seed| Some((seed, broken(bug, seed, minutes)?)));
    match found {
        Some((seed, violation)) => {
            let (name, taken) = (bug.name(), seed - first + 1);
            println!("{name}: {taken} seeds, {}", violation.kind());
        }
        None => println!("{}: NOT FOUND by {count} seeds", bug.name()),
    }
}

/// Which seeds find a bug.
fn found(bug: Bug, first: u64, count: u64, minutes: u64) {
    let found: Vec<u64> = (first..first + count)
        .filter(|seed| broken(bug, *seed, minutes).is_some())
        .collect();
    let (name, size) = (bug.name(), found.len());
    println!("{name}: found by {size} of {count} seeds: {found:?}");
}

/// Seeds that should hold every promise.
fn clean(first: u64, count: u64, minutes: u64) {
    let (mut simulated_ms, mut commands, mut failed) = (0, 0, 0_u64);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        let report = run(&Config::new(seed, minutes));
        simulated_ms += report.counts.simulated_ms;
        commands += report.counts.commands;
        add(
            &mut sums,
            serde_json::to_value(&report.counts).unwrap_or_default(),
        );
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
    println!("{sums:?}");
    let never: Vec<&String> = sums
        .iter()
        .filter(|(_, sum)| **sum == 0)
        .map(|it| it.0)
        .collect();
    println!("never: {never:?}");
}

/// Adds counts, those of faults too.
fn add(sums: &mut BTreeMap<String, u64>, counts: serde_json::Value) {
    for (name, count) in counts.as_object().into_iter().flatten() {
        match count.as_u64() {
            Some(count) => *sums.entry(name.clone()).or_default() += count,
            None => add(sums, count.clone()),
        }
    }
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
