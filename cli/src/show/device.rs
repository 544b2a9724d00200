//! Prints processors for a person: lists, one processor with its figures and their source, its live
//! state, and its signed measurements. Mainly `souk device …` and `souk provider …` use it.

use serde::{Deserialize, Serialize};
use souk_node::memory::DType;
use souk_registry::sheet::{QUICK_SECONDS_MAX, Sheet};
use souk_vocabulary::catalogue::find_interconnect;
use souk_vocabulary::profile::Profile;
use souk_vocabulary::taxonomy::MemoryKind;

use super::{Table, format_bytes, format_scaled, format_seconds, print_line, short_id};

/// The current state of a device.
#[derive(Serialize, Deserialize)]
pub struct DeviceFigures {
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
    let mut table = Table::new(&header).with_spare_columns(&["model", "bandwidth"]);
    for profile in profiles {
        table.add_row([
            profile.name.clone(),
            profile.kind.name().to_owned(),
            device_title(profile),
            format_rate(profile, DType::F32),
            format_bytes(profile.memory.bytes),
            format_bandwidth(profile),
        ]);
    }
    table.print();
}

/// Returns vendor and model, without repeating a vendor that begins the model's name.
fn device_title(profile: &Profile) -> String {
    if profile.model.starts_with(&profile.vendor) {
        return profile.model.clone();
    }
    format!("{} {}", profile.vendor, profile.model)
}

/// Prints one profile with its source.
pub fn print_profile(profile: &Profile) {
    let name = device_title(profile);
    print_line(&format!("{}: {name}, {}", profile.name, profile.kind));
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
        let rate = format_scaled(throughput.operations_per_second, "OP/s");
        print_line(&format!("  {dtype}: {rate}{sparse}{measured}"));
    }
    let memory = &profile.memory;
    let speed = format_bandwidth(profile);
    let kind = match memory.kind {
        MemoryKind::Unknown => String::new(),
        kind => format!(" of {kind:?}"),
    };
    let size = format_bytes(memory.bytes);
    print_line(&format!("  memory: {size}{kind}, bandwidth {speed}"));
    print_line(&format!(
        "  launch: {} an operator",
        format_seconds(profile.launch.as_secs_f64())
    ));
    print_stated_links(profile);
    if let Some(power) = profile.power {
        let idle = power
            .idle_watts
            .map_or(String::new(), |idle| format!("{idle} W idle, "));
        print_line(&format!("  power: {idle}{} W busy", power.busy_watts));
    }
    print_line(&format!("  source: {}", profile.source));
}

/// Prints the current state of a device.
pub fn print_live(live: &DeviceFigures) {
    let free = live.memory_free_bytes;
    let free = free.map_or_else(|| "not known".to_owned(), format_bytes);
    let watts = live.watts;
    let watts = watts.map_or("absent (no meter)".to_owned(), |watts| {
        format!("{watts:.1} W")
    });
    let busy = format_share(Some(live.utilisation));
    print_line(&format!(
        "  now: {busy} at work, memory free {free}, power {watts}"
    ));
}

/// Formats a share, 0 to 1, in per cent.
pub fn format_share(part: Option<f64>) -> String {
    part.map_or_else(
        || "not known".to_owned(),
        |part| format!("{:.1} %", part * 100.0),
    )
}

/// Prints the measurements of a device.
pub fn print_sheet(sheet: &Sheet, account: &str) {
    print_profile(&sheet.profile);
    let power = sheet.watts;
    let power = power.map_or("absent (no meter)".to_owned(), |watts| {
        format!("{watts:.1} W")
    });
    print_line(&format!("  energy, all operators in turn: {power}"));
    let mut table = Table::new(&["operator", "type", "shapes", ">time", ">rate", ">bytes"]);
    for row in &sheet.rows {
        let shape = |dims: &Vec<usize>| {
            let sizes: Vec<String> = dims.iter().map(ToString::to_string).collect();
            sizes.join("x")
        };
        let shapes: Vec<String> = row.shapes.iter().map(shape).collect();
        table.add_row([
            row.operator.clone(),
            row.dtype.to_string(),
            shapes.join(" "),
            format_seconds(row.seconds),
            format_scaled(row.operations_per_second, "OP/s"),
            format_scaled(row.bytes_per_second, "B/s"),
        ]);
    }
    table.print();
    print_links(sheet);
    let kind = if sheet.quick { "quick" } else { "full" };
    let took = sheet
        .seconds
        .map_or_else(String::new, |took| took_text(took, sheet.quick));
    let (key, at) = (&sheet.key, sheet.measured_at);
    print_line(&format!(
        "{kind}{took}, of \"{key}\", at {at} s since 1970, signed by {}",
        short_id(&account)
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
        return print_line("  links: none measured (it works in the host's memory)");
    }
    let mut table = Table::new(&["from", "to", "over", ">bandwidth", ">latency"]);
    for link in &sheet.links {
        let modelled = if link.modelled { " (modelled)" } else { "" };
        table.add_row([
            link.from.clone(),
            link.to.clone(),
            format!("{}{modelled}", link.over),
            format_scaled(link.bytes_per_second, "B/s"),
            format_seconds(link.latency_seconds),
        ]);
    }
    table.print();
}

/// Prints the links of an emulated processor that its vendor states.
fn print_stated_links(profile: &Profile) {
    let Some(stated) = find_interconnect(&profile.name).filter(|_| profile.emulated) else {
        return;
    };
    if let Some((generation, lanes)) = stated.pcie {
        print_line(&format!("  to the host: PCI Express {generation} x{lanes}"));
    }
    if let Some((name, rate)) = &stated.direct {
        let rate = format_scaled(*rate, "B/s");
        print_line(&format!("  to others like it: {name}, {rate} each way"));
    }
}

fn format_bandwidth(profile: &Profile) -> String {
    match profile.memory.bytes_per_second {
        rate if rate.is_finite() => format_scaled(rate, "B/s"),
        _ => "not measured".to_owned(),
    }
}

fn format_rate(profile: &Profile, dtype: DType) -> String {
    let rate = profile.operations_per_second(dtype);
    rate.map_or("-".to_owned(), |rate| format_scaled(rate, "FLOP/s"))
}
