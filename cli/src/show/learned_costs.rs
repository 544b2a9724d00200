//! Prints the costs that a provider learned from runs on its devices: how much longer operators
//! take than first measured, by kind, and the last runs. `souk provider …` uses it.

use souk_folder::clock::unix_ms;
use souk_sandbox::device::costs::{LearnedCosts, LearnedDevice, LearnedRun};

use super::{Table, format_seconds, print_line};

/// Largest number of runs and of models to show.
const SHOWN_MAX: usize = 8;
/// Characters that identify a graph.
const ID_CHARS: usize = 8;

/// Prints the learned costs, if there are any.
pub fn print_learned_costs(learned: &LearnedCosts) {
    if learned.devices.is_empty() {
        return;
    }
    print_line("");
    learned.devices.iter().for_each(print_device);
    print_runs(learned);
}

fn print_device(device: &LearnedDevice) {
    let [products, convolutions, others] = device.slowness.map(|times| format!("{times:.2}"));
    print_line(&format!(
        "learned of {}: products take {products} times as long as measured first, convolutions \
         {convolutions}, all else {others} ({} operators and sizes)",
        device.device, device.operators,
    ));
    for model in device.models.iter().take(SHOWN_MAX) {
        print_line(&format!(
            "  graph {}, whose work only a run tells: {} in the mean of {} runs",
            short_id(&model.graph),
            format_seconds(model.seconds),
            model.runs,
        ));
    }
    let more = device.models.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        print_line(&format!("  and {more} more such graphs"));
    }
}

fn print_runs(learned: &LearnedCosts) {
    let mut table = Table::new(&["learned from", "on", ">took", ">times expected", ">ago"]);
    let now = unix_ms();
    let row = |run: &LearnedRun| {
        [
            format!("graph {}", short_id(&run.graph)),
            run.device.clone(),
            format_seconds(run.seconds),
            format!("{:.2}", run.times),
            format!("{} s", now.saturating_sub(run.at_ms) / 1000),
        ]
    };
    let newest = learned.recent.iter().rev().take(SHOWN_MAX);
    newest.map(row).for_each(|row| table.add_row(row));
    table.print();
}

fn short_id(id: &str) -> &str {
    id.get(..ID_CHARS).unwrap_or(id)
}
