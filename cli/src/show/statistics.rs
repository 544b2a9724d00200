//! The totals of a provider's devices.

use serde_json::{Value, json};
use souk_node::clock::unix_ms;
use souk_node::provider::Statistics;
use souk_node::scheduler::execution::report::{DeviceReport, Report};

use super::{Table, bytes, say, seconds};

/// Returns the totals as JSON, or null if there are none.
pub fn to_json(statistics: &Option<Statistics>) -> Value {
    json!(statistics)
}

/// Prints the totals, by device and by memory.
pub fn print(statistics: &Option<Statistics>) {
    let Some(sums) = statistics else {
        return;
    };
    let past = unix_ms().saturating_sub(sums.since_ms) as f64 / 1e3;
    say("");
    say(&format!(
        "{} leases done in the last {}: {} received over the network, {} made; {} operators shared \
         by several devices",
        sums.leases,
        long(past),
        bytes(sums.received_bytes),
        bytes(sums.made_bytes),
        sums.report.partitioned_tasks,
    ));
    print_devices(&sums.report);
    print_memory(&sums.report);
}

fn print_devices(report: &Report) {
    if report.devices.is_empty() {
        return;
    }
    let header = [
        "device",
        ">tasks",
        ">operators",
        ">computed",
        ">transfers",
        ">awaited data",
        ">awaited others",
        ">joules",
    ];
    let mut table = Table::new(&header);
    let time = |micros: u64| seconds(micros as f64 / 1e6);
    let row = |(name, done): (&String, &DeviceReport)| {
        let joules = done.energy.map_or_else(String::new, |energy| {
            format!("{:.1}", energy.measured_joules + energy.modelled_joules)
        });
        [
            super::device(name, done.emulated),
            done.tasks.to_string(),
            done.operators.to_string(),
            time(done.busy_micros),
            time(done.transfer_micros),
            time(done.idle.data_micros),
            time(done.idle.dependency_micros),
            joules,
        ]
    };
    report
        .devices
        .iter()
        .map(row)
        .for_each(|row| table.row(row));
    table.print();
}

/// Prints the current and the peak use of each memory, and the moved bytes.
pub fn print_memory(report: &Report) {
    for (place, memory) in &report.memory {
        let moved = [
            ("copied", memory.copied_bytes),
            ("handed on by reference", memory.shared_bytes),
            ("spilled to disk", memory.spilled_bytes),
            ("read back", memory.restored_bytes),
            ("over NVLink", memory.nvlink_bytes),
            ("over PCIe", memory.pcie_bytes),
            ("by the host's copies", memory.host_bytes),
            ("in unified memory", memory.unified_bytes),
        ];
        let moved = moved.into_iter().filter(|(_, count)| *count > 0);
        let moved: String = moved
            .map(|(what, count)| format!(", {} {what}", bytes(count)))
            .collect();
        say(&format!(
            "  tensors in {place}: {} of {}, {} at most{moved}",
            bytes(memory.used_bytes),
            bytes(memory.limit_bytes),
            bytes(memory.peak_bytes),
        ));
    }
}

/// Formats a long time.
fn long(time: f64) -> String {
    match time {
        t if t >= 172_800.0 => format!("{:.1} days", t / 86_400.0),
        t if t >= 7_200.0 => format!("{:.1} hours", t / 3_600.0),
        t if t >= 120.0 => format!("{:.1} minutes", t / 60.0),
        t => seconds(t),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_take_the_unit_that_suits_them() {
        assert_eq!(long(30.0), "30.00 s");
        assert_eq!(long(600.0), "10.0 minutes");
        assert_eq!(long(9_000.0), "2.5 hours");
        assert_eq!(long(259_200.0), "3.0 days");
    }
}
