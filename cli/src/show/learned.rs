//! The costs that a provider learned from runs on its devices, and the runs.

use souk_node::clock::unix_ms;
use souk_node::device::costs::{LearnedCosts, LearnedDevice, LearnedRun};

use super::{Table, say, seconds};

/// Largest number of runs and of models to show.
const SHOWN_MAX: usize = 8;
/// Characters that identify a graph.
const ID_CHARS: usize = 8;

/// Prints the learned costs, if there are any.
pub fn print(learned: &LearnedCosts) {
    if learned.devices.is_empty() {
        return;
    }
    say("");
    learned.devices.iter().for_each(print_device);
    print_runs(learned);
}

fn print_device(device: &LearnedDevice) {
    let [products, convolutions, others] = device.slowness.map(|times| format!("{times:.2}"));
    say(&format!(
        "learned of {}: products take {products} times as long as measured first, convolutions \
         {convolutions}, all else {others} ({} operators and sizes)",
        device.device, device.operators,
    ));
    for model in device.models.iter().take(SHOWN_MAX) {
        say(&format!(
            "  graph {}, whose work only a run tells: {} in the mean of {} runs",
            short(&model.graph),
            seconds(model.seconds),
            model.runs,
        ));
    }
    let more = device.models.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        say(&format!("  and {more} more such graphs"));
    }
}

fn print_runs(learned: &LearnedCosts) {
    let mut table = Table::new(&["learned from", "on", ">took", ">times expected", ">ago"]);
    let now = unix_ms();
    let row = |run: &LearnedRun| {
        [
            format!("graph {}", short(&run.graph)),
            run.device.clone(),
            seconds(run.seconds),
            format!("{:.2}", run.times),
            format!("{} s", now.saturating_sub(run.at_ms) / 1000),
        ]
    };
    let newest = learned.recent.iter().rev().take(SHOWN_MAX);
    newest.map(row).for_each(|row| table.row(row));
    table.print();
}

fn short(id: &str) -> &str {
    id.get(..ID_CHARS).unwrap_or(id)
}
