//! Shows processors to a person.

use serde::{Deserialize, Serialize};
use souk_node::memory::DType;
use souk_registry::sheet::{QUICK_SECONDS_MAX, Sheet};
use souk_vocabulary::catalogue::interconnect;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::MemoryKind;

use super::{Table, bytes, say, scaled, seconds, short};

/// The current state of a device.
#[derive(Serialize, Deserialize)]
pub struct Live {
    /// Busy share of the device, 0 to 1.
    pub utilisation: f64,
    /// Free memory in bytes; `None` if unknown.
    pub memory_free_bytes: Option<u64>,
    /// Power from its meter; `None` without a meter.
    pub watts: Option<f64>,
}

/// Prints profiles, one for each line.
pub fn print_list(profiles: &[Profile]) {
    let header = ["name", "kind", "model", ">f32", ">memory", ">bandwidth"];
    let mut table = Table::new(&header).sparing(&["model", "bandwidth"]);
    for profile in profiles {
        table.row([
            profile.name.clone(),
            profile.kind.name().to_owned(),
            title(profile),
            rate(profile, DType::F32),
            bytes(profile.memory.bytes),
            bandwidth(profile),
        ]);
    }
    table.print();
}

/// Returns vendor and model, without repeating a vendor that begins the model's name.
fn title(profile: &Profile) -> String {
    if profile.model.starts_with(&profile.vendor) {
        return profile.model.clone();
    }
    format!("{} {}", profile.vendor, profile.model)
}

/// Prints one profile with its source.
pub fn print(profile: &Profile) {
    let name = title(profile);
    say(&format!("{}: {name}, {}", profile.name, profile.kind));
    for (dtype, throughput) in &profile.throughput {
        let sparse = if throughput.sparse {
            " with sparsity"
        } else {
            ""
        };
        let measured = if throughput.measured {
            ", measured"
        } else {
            ""
        };
        let rate = scaled(throughput.operations_per_second, "OP/s");
        say(&format!("  {dtype}: {rate}{sparse}{measured}"));
    }
    let memory = &profile.memory;
    let speed = bandwidth(profile);
    let kind = match memory.kind {
        MemoryKind::Unknown => String::new(),
        kind => format!(" of {kind:?}"),
    };
    let size = bytes(memory.bytes);
    say(&format!("  memory: {size}{kind}, bandwidth {speed}"));
    say(&format!(
        "  launch: {} an operator",
        seconds(profile.launch.as_secs_f64())
    ));
    print_stated_links(profile);
    if let Some(power) = profile.power {
        let idle = power
            .idle_watts
            .map_or(String::new(), |idle| format!("{idle} W idle, "));
        say(&format!("  power: {idle}{} W busy", power.busy_watts));
    }
    say(&format!("  source: {}", profile.source));
}

/// Prints the current state of a device.
pub fn print_live(live: &Live) {
    let free = live.memory_free_bytes;
    let free = free.map_or_else(|| "not known".to_owned(), bytes);
    let watts = live.watts;
    let watts = watts.map_or("absent (no meter)".to_owned(), |watts| {
        format!("{watts:.1} W")
    });
    let busy = part(Some(live.utilisation));
    say(&format!(
        "  now: {busy} at work, memory free {free}, power {watts}"
    ));
}

/// Formats a share, 0 to 1, in per cent.
pub fn part(part: Option<f64>) -> String {
    part.map_or_else(
        || "not known".to_owned(),
        |part| format!("{:.1} %", part * 100.0),
    )
}

/// Prints the measurements of a device.
pub fn print_sheet(sheet: &Sheet, account: &str) {
    print(&sheet.profile);
    let power = sheet.watts;
    let power = power.map_or("absent (no meter)".to_owned(), |watts| {
        format!("{watts:.1} W")
    });
    say(&format!("  energy, all operators in turn: {power}"));
    let mut table = Table::new(&["operator", "type", "shapes", ">time", ">rate", ">bytes"]);
    for row in &sheet.rows {
        let shape = |dims: &Vec<usize>| {
            let sizes: Vec<String> = dims.iter().map(ToString::to_string).collect();
            sizes.join("x")
        };
        let shapes: Vec<String> = row.shapes.iter().map(shape).collect();
        table.row([
            row.operator.clone(),
            row.dtype.to_string(),
            shapes.join(" "),
            seconds(row.seconds),
            scaled(row.operations_per_second, "OP/s"),
            scaled(row.bytes_per_second, "B/s"),
        ]);
    }
    table.print();
    print_links(sheet);
    let kind = if sheet.quick { "quick" } else { "full" };
    let took = sheet
        .seconds
        .map_or_else(String::new, |took| took_text(took, sheet.quick));
    let (key, at) = (&sheet.key, sheet.measured_at);
    say(&format!(
        "{kind}{took}, of \"{key}\", at {at} s since 1970, signed by {}",
        short(&account)
    ));
}

/// Formats the seconds of a measurement; for a quick one, with their limit.
fn took_text(seconds: f64, is_quick: bool) -> String {
    match is_quick {
        true => format!(" in {seconds:.1} s of {QUICK_SECONDS_MAX:.0}"),
        false => format!(" in {seconds:.1} s"),
    }
}

/// Prints the measured links between a device's memory and others.
fn print_links(sheet: &Sheet) {
    if sheet.links.is_empty() {
        return say("  links: none measured (it works in the host's memory)");
    }
    let mut table = Table::new(&["from", "to", "over", ">bandwidth", ">latency"]);
    for link in &sheet.links {
        let modelled = if link.modelled { " (modelled)" } else { "" };
        table.row([
            link.from.clone(),
            link.to.clone(),
            format!("{}{modelled}", link.over),
            scaled(link.bytes_per_second, "B/s"),
            seconds(link.latency_seconds),
        ]);
    }
    table.print();
}

/// Prints the links of an emulated processor that its vendor states.
fn print_stated_links(profile: &Profile) {
    let Some(stated) = interconnect(&profile.name).filter(|_| profile.emulated) else {
        return;
    };
    if let Some((generation, lanes)) = stated.pcie {
        say(&format!("  to the host: PCI Express {generation} x{lanes}"));
    }
    if let Some((name, rate)) = &stated.direct {
        let rate = scaled(*rate, "B/s");
        say(&format!("  to others like it: {name}, {rate} each way"));
    }
}

fn bandwidth(profile: &Profile) -> String {
    match profile.memory.bytes_per_second {
        rate if rate.is_finite() => scaled(rate, "B/s"),
        _ => "not measured".to_owned(),
    }
}

fn rate(profile: &Profile, dtype: DType) -> String {
    let rate = profile.operations_per_second(dtype);
    rate.map_or("-".to_owned(), |rate| scaled(rate, "FLOP/s"))
}
