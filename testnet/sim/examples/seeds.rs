//! Runs the simulator on many seeds without the `souk` binary: `seeds FIRST COUNT MINUTES
//! [raw|find]`. Prints a line for each seed that fails, then the sums of all counted events and the
//! speed relative to real time. It fails if a seed fails, or if an event never happened in many
//! seeds. With `raw` it does not shorten the schedules of faults; with `find` it stops and fails at
//! the first seed that fails.

use souk_sim::{Config, Sums, find_violation, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| -> Result<u64, Box<dyn std::error::Error>> {
        let word = arguments
            .get(place)
            .ok_or("seeds FIRST COUNT MINUTES [raw|find]")?;
        Ok(word.parse()?)
    };
    let (first, count, minutes) = (number(0)?, number(1)?, number(2)?);
    match arguments.get(3).map(String::as_str) {
        None => check_seeds(first, count, minutes)?,
        Some("raw") => raw(first, count, minutes),
        Some("find") => {
            let seed = |seed| Some((seed, find_violation(&Config::new(seed, minutes))?));
            if let Some((seed, violation)) = (first..first + count).find_map(seed) {
                println!("{} seeds, {}", seed - first + 1, violation.kind());
                return Err("a promise is broken".into());
            }
        }
        Some(other) => return Err(format!("no such way: {other}").into()),
    }
    Ok(())
}

/// Prints the violation of each seed, without shortening its schedule.
fn raw(first: u64, count: u64, minutes: u64) {
    for seed in first..first + count {
        if let Some(violation) = find_violation(&Config::new(seed, minutes)) {
            println!("seed {seed}: {violation:?}");
        }
    }
}

/// Runs seeds that must keep every promise, and prints the sums.
fn check_seeds(first: u64, count: u64, minutes: u64) -> Result<(), String> {
    let (mut simulated_ms, mut failed) = (0, 0_u64);
    let mut sums = Sums::default();
    for seed in first..first + count {
        let report = run(&Config::new(seed, minutes));
        simulated_ms += report.counts.simulated_ms;
        sums.add(&report.counts);
        if let Some(failure) = report.failure {
            failed += 1;
            println!("seed {seed}: {:?}\n  {}", failure.violation, failure.replay);
        }
    }
    let simulated = simulated_ms as f64 / 1_000.0;
    let spent = processor_seconds();
    println!(
        "{count} seeds from {first}: {failed} failed, {:.1} simulated hours, {spent:.1} s of \
         processor time, {:.0} times real time",
        simulated / 3_600.0,
        simulated / spent,
    );
    println!("{:?}", sums.counts);
    match (failed, sums.missing_events()) {
        (0, never) if never.is_empty() => Ok(()),
        (0, never) => Err(format!("never seen: {}", never.join(", "))),
        (failed, _) => Err(format!("{failed} seeds break a promise")),
    }
}

/// Returns the processor time of this process in seconds, by Linux's counter.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    first.unwrap_or(f64::NAN) / 1e9
}
