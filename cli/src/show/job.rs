//! Prints the result of a finished job for its buyer (outputs, receipts, balances, a timeline of
//! the devices), and converts it to JSON.

use std::path::PathBuf;

use serde_json::{Value, json};
use souk_node::buyer::JobResult;
use souk_node::scheduler::execution::report::{Fallback, Report};
use souk_node::scheduler::execution::timeline::Glyphs;
use souk_vocabulary::processor::Engine;

use super::{Names, format_count, print_line, short_id};
use crate::show::balance::Balances;

/// Columns of the timeline.
const COLUMNS: usize = 80;

/// Returns the job as JSON.
pub fn to_json(
    finished: &JobResult,
    plan: Value,
    files: &[PathBuf],
    receipts: &[PathBuf],
) -> Value {
    let outputs: serde_json::Map<String, Value> = finished
        .outputs
        .iter()
        .map(|(name, tensor)| {
            let facts = json!({
                "dtype": tensor.dtype().to_string(), "shape": tensor.dims(), "id": tensor.id(),
            });
            (name.clone(), facts)
        })
        .collect();
    json!({
        "job": finished.job, "plan": plan, "outputs": outputs, "files": files,
        "receipts": finished.receipts, "receipt_files": receipts, "transfers": finished.moved,
        "report": finished.report, "timeline": finished.timeline,
    })
}

/// Prints the job for its buyer.
pub fn print_job(
    finished: &JobResult,
    files: &[PathBuf],
    receipts: &[PathBuf],
    before: &Balances,
    after: &Balances,
    names: &Names,
) {
    if !finished.outputs.is_empty() {
        print_line("outputs");
    }
    for (name, tensor) in &finished.outputs {
        let (dtype, id) = (tensor.dtype(), short_id(&tensor.id()));
        print_line(&format!(
            "  {name}: {dtype} {}, blake3 {id}…",
            tensor.shape()
        ));
    }
    for file in files {
        print_line(&format!("  written to {}", file.display()));
    }
    print_receipts(finished, receipts, names);
    print_line("balances");
    super::balance::print_change(before, after);
    print_timeline(finished);
}

/// Prints the receipts and the paths of their files.
pub fn print_receipts(finished: &JobResult, files: &[PathBuf], names: &Names) {
    print_line("receipts, each signed by provider and buyer");
    for receipt in &finished.receipts {
        super::receipt::print_receipt(receipt, names);
    }
    for file in files {
        print_line(&format!("  written to {}", file.display()));
    }
}

/// Draws the timeline.
pub fn print_timeline(finished: &JobResult) {
    print_line("timeline");
    let utf8 = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|value| value.to_lowercase().contains("utf-8")));
    let glyphs = if utf8 { Glyphs::Unicode } else { Glyphs::Ascii };
    print_line(finished.timeline.draw(COLUMNS, glyphs).trim_end());
    print_report(&finished.report);
}

fn print_fallback(fallback: &Fallback) {
    let Fallback {
        device,
        operator,
        nodes,
        reason,
        by,
    } = fallback;
    let what = match operator {
        Some(operator) => format!("did not run {operator} ({nodes} of them)"),
        None => "gave its work up".to_owned(),
    };
    let by = match by[..] {
        [] => String::new(),
        _ => format!("; {} did", by.join(", ")),
    };
    print_line(&format!("  {device} {what}: {reason}{by}"));
}

/// Prints the work and idle time of each device, and what the run is compared with.
fn print_report(report: &Report) {
    let ms = |micros: u64| micros as f64 / 1e3;
    print_line("devices");
    for (name, device) in &report.devices {
        let joules = device.energy.map_or(String::new(), |energy| {
            let sum = energy.measured_joules + energy.modelled_joules;
            // Without a meter, the energy follows from the stated power.
            let modelled = if energy.modelled_joules > 0.0 {
                ", modelled"
            } else {
                ""
            };
            format!(", {sum:.3} J{modelled}")
        });
        let name = super::device_label(name, device.emulated);
        let by_other = device.engines.get(&Engine::OnnxRuntime);
        let other = by_other.map_or(String::new(), |tasks| format!(" ({tasks} by ONNX Runtime)"));
        print_line(&format!(
            "  {name}: busy {:.1} ms ({:.0} %)\n    waited {:.1} ms for data, {:.1} ms for others, \
             {:.1} ms without work\n    transfers took {:.1} ms; {}{other}, {}{joules}",
            ms(device.busy_micros),
            device.utilisation * 100.0,
            ms(device.idle.data_micros),
            ms(device.idle.dependency_micros),
            ms(device.idle.nothing_to_do_micros),
            ms(device.transfer_micros),
            format_count(device.tasks, "task"),
            format_count(device.operators, "operator"),
        ));
    }
    if report.partitioned_tasks > 0 {
        print_line(&format!(
            "  {} operators were shared by several devices, {} joined",
            report.partitioned_tasks,
            super::format_bytes(report.joined_bytes),
        ));
    }
    report.fallbacks.iter().for_each(print_fallback);
    super::statistics::print_memory(report);
    let Some(against) = &report.against else {
        return;
    };
    let alone = match &against.single {
        Some(single) => {
            let alone = ms(single.expected_micros);
            let known = report.devices.get(&single.device);
            let device = super::device_label(&single.device, known.is_some_and(|it| it.emulated));
            format!("{device} alone would take {alone:.1} ms")
        }
        None if report.devices.len() > 1 => "no device could run it alone".to_owned(),
        None => String::new(),
    };
    if let Some(expected) = against.expected_joules {
        print_line(&format!(
            "  {:.3} J in all; the plan expected {expected:.3} J",
            report.total_joules()
        ));
    }
    if !alone.is_empty() {
        print_line(&format!("  {alone}"));
    }
}
