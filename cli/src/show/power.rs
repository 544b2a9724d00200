//! Prints power domains, which are units of the machine with their own power limit, such as a CPU
//! package. It reads the energy counters twice to state the drawn power. `souk device power` uses
//! it.

use std::time::{Duration, Instant};

use serde_json::json;
use souk_host::power::PowerDomain;

use super::{Table, print_line};
use crate::args::Output;

/// Time between two reads of the counters.
const MOMENT: Duration = Duration::from_millis(250);

/// Prints domains, and the limit of the only one before its change.
pub fn print_domains(output: Output, domains: &[Box<dyn PowerDomain>], before: Option<f64>) {
    let drawn = measure_watts(domains);
    match output {
        Output::Json => print_json(domains, &drawn, before),
        Output::Text => print_text(domains, &drawn, before),
    }
}

fn print_json(domains: &[Box<dyn PowerDomain>], drawn: &[Option<f64>], before: Option<f64>) {
    let rows = domains.iter().zip(drawn).map(|(domain, watts)| {
        let limit = domain.power_limit();
        json!({
            "domain": domain.name(), "title": domain.title(), "joules": domain.energy_joules(),
            "watts": watts, "limit": limit.as_ref().ok(), "limit_watts_before": before,
            "limit_error": limit.err().map(|error| error.to_string()),
        })
    });
    super::print_json(&rows.collect::<Vec<_>>());
}

fn print_text(domains: &[Box<dyn PowerDomain>], drawn: &[Option<f64>], before: Option<f64>) {
    if domains.is_empty() {
        return print_line("this system shows no power domain: no RAPL (powercap), no NVML");
    }
    let bound = |watts: Option<f64>| watts.map_or("?".to_owned(), |watts| watts.to_string());
    let mut table = Table::new(&["domain", "what", ">draws", ">limit", ">range"]);
    for (domain, watts) in domains.iter().zip(drawn) {
        let (limit, range) = match domain.power_limit() {
            Ok(limit) => {
                let (least, most) = (bound(limit.watts_min), bound(limit.watts_max));
                (format!("{} W", limit.watts), format!("{least} to {most} W"))
            }
            Err(_) => ("none".to_owned(), String::new()),
        };
        let drawn = watts.map_or("not readable".to_owned(), |watts| format!("{watts:.1} W"));
        let (name, title) = (domain.name().to_owned(), domain.title().to_owned());
        table.add_row([name, title, drawn, limit, range]);
    }
    table.print();
    if let (Some(watts), [domain]) = (before, domains) {
        let name = domain.name();
        print_line(&format!(
            "the limit was {watts} W: `souk device power {name} --watts {watts}` restores it"
        ));
    }
}

/// Measures the watts that each domain draws.
fn measure_watts(domains: &[Box<dyn PowerDomain>]) -> Vec<Option<f64>> {
    let joules = || -> Vec<Option<f64>> { domains.iter().map(|it| it.energy_joules()).collect() };
    let (start, before) = (Instant::now(), joules());
    if before.iter().any(Option::is_some) {
        std::thread::sleep(MOMENT);
    }
    let seconds = start.elapsed().as_secs_f64();
    let watts = |(before, after): (Option<f64>, Option<f64>)| Some((after? - before?) / seconds);
    before.into_iter().zip(joules()).map(watts).collect()
}
