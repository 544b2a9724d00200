//! Prints the work and the memory use of each device, in total for `souk provider …` or of one
//! run in a job's report.

use serde_json::{Value, json};
use souk_folder::clock::unix_ms;
use souk_node::provider::Statistics;
use souk_node::scheduler::execution::report::{DeviceReport, Report};

use super::{Table, format_bytes, format_seconds, print_line};

/// Returns the totals as JSON, or null if there are none.
pub fn to_json(statistics: &Option<Statistics>) -> Value {
    json!(statistics)
}

/// Prints the totals, by device and by memory.
pub fn print_statistics(statistics: &Option<Statistics>) {
    let Some(sums) = statistics else {
        return;
    };
    let past = unix_ms().saturating_sub(sums.since_ms) as f64 / 1e3;
    print_line("");
    print_line(&format!(
        "{} leases done in the last {}: {} received over the network, {} made; {} operators shared \
         by several devices",
        sums.leases,
        format_long_time(past),
        format_bytes(sums.received_bytes),
        format_bytes(sums.made_bytes),
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
    let time = |micros: u64| format_seconds(micros as f64 / 1e6);
    let row = |(name, done): (&String, &DeviceReport)| {
        let joules = done.energy.map_or_else(String::new, |energy| {
            format!("{:.1}", energy.measured_joules + energy.modelled_joules)
        });
        [
            super::device_label(name, done.emulated),
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
        .for_each(|row| table.add_row(row));
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
            .map(|(what, count)| format!(", {} {what}", format_bytes(count)))
            .collect();
        print_line(&format!(
            "  tensors in {place}: {} of {}, {} at most{moved}",
            format_bytes(memory.used_bytes),
            format_bytes(memory.limit_bytes),
            format_bytes(memory.peak_bytes),
        ));
    }
}

/// Formats a long time.
fn format_long_time(time: f64) -> String {
    match time {
        t if t >= 172_800.0 => format!("{:.1} days", t / 86_400.0),
        t if t >= 7_200.0 => format!("{:.1} hours", t / 3_600.0),
        t if t >= 120.0 => format!("{:.1} minutes", t / 60.0),
        t => format_seconds(t),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_take_the_unit_that_suits_them() {
        assert_eq!(format_long_time(30.0), "30.00 s");
        assert_eq!(format_long_time(600.0), "10.0 minutes");
        assert_eq!(format_long_time(9_000.0), "2.5 hours");
        assert_eq!(format_long_time(259_200.0), "3.0 days");
    }
}
