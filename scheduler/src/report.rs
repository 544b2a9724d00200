//! What a run took: per device busy time, utilisation, idle time and why, work, bytes, joules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::timeline::{SpanKind, Timeline};

/// The report of a run over one or several devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// From the first device's start to the last one's end, in microseconds.
    pub makespan_micros: u64,
    /// One entry a device, by name.
    pub devices: BTreeMap<String, DeviceReport>,
    /// Bytes copied to put parts of shared operators together.
    #[serde(default)]
    pub joined_bytes: u64,
    /// What the plan expected, and of the best single device; of one run of several devices.
    #[serde(default)]
    pub against: Option<Against>,
}

/// What a run is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Against {
    /// Makespan the plan expected, in microseconds.
    pub expected_micros: u64,
    /// The device that would have ended soonest alone; none if no one can run it all.
    pub single: Option<Single>,
}

/// The best single device for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Single {
    /// Its name.
    pub device: String,
    /// What it would take alone by what is known of it, in microseconds.
    pub expected_micros: u64,
}

/// What one device did in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Kind of the device in one word.
    pub kind: String,
    /// Whether its times and joules come from a description rather than from hardware.
    pub emulated: bool,
    /// Microseconds it computed.
    pub busy_micros: u64,
    /// Its part of the makespan spent computing, 0 to 1.
    pub utilisation: f64,
    /// Why it was idle for the rest.
    pub idle: Idle,
    /// Subgraphs run.
    pub tasks: u64,
    /// Operators run.
    pub operators: u64,
    /// Bytes of tensors taken in; weights included when they were loaded.
    pub bytes_in: u64,
    /// Bytes of tensors given out.
    pub bytes_out: u64,
    /// Energy, if known.
    pub energy: Option<ReportedEnergy>,
}

/// Idle microseconds by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// Weights or tensors were on their way to it, or from it.
    pub data_micros: u64,
    /// A task it had waited for another's result.
    pub dependency_micros: u64,
    /// It had no task.
    pub nothing_to_do_micros: u64,
}

/// Joules, told apart by where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportedEnergy {
    /// Joules counted by a meter.
    pub measured_joules: f64,
    /// Joules computed from power and time.
    pub modelled_joules: f64,
}

impl Report {
    /// Adds another report's counts, then reads every device's times off the merged timeline.
    pub fn merge(&mut self, other: Self, timeline: &Timeline) {
        for (name, device) in other.devices {
            match self.devices.get_mut(&name) {
                Some(mine) => mine.add(&device),
                None => {
                    self.devices.insert(name, device);
                }
            }
        }
        self.joined_bytes += other.joined_bytes;
        // Two runs have no one plan.
        self.against = match (self.against.take(), other.against) {
            (Some(_), Some(_)) => None,
            (mine, others) => mine.or(others),
        };
        self.read_times(timeline);
    }

    /// Sets makespan, utilisation and idle times to what a timeline shows.
    pub fn read_times(&mut self, timeline: &Timeline) {
        let extent = timeline.extent();
        self.makespan_micros = extent.map_or(0, |(start, end)| end.since(start));
        for (name, device) in &mut self.devices {
            device.read_times(name, timeline, self.makespan_micros);
        }
    }

    /// Joules of all devices that state some.
    #[must_use]
    pub fn joules(&self) -> f64 {
        let energies = self.devices.values().filter_map(|device| device.energy);
        let each = energies.map(|energy| energy.measured_joules + energy.modelled_joules);
        // The sum of nothing is negative zero otherwise.
        each.fold(0.0, |sum, joules| sum + joules)
    }
}

impl DeviceReport {
    /// Takes in what the same device did in another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.emulated |= other.emulated;
        self.tasks += other.tasks;
        self.operators += other.operators;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.energy = match (self.energy, other.energy) {
            (Some(mine), Some(others)) => Some(ReportedEnergy {
                measured_joules: mine.measured_joules + others.measured_joules,
                modelled_joules: mine.modelled_joules + others.modelled_joules,
            }),
            (mine, others) => mine.or(others),
        };
    }

    /// Computing hides transfers, and those waits, so that the parts add up to the makespan.
    fn read_times(&mut self, name: &str, timeline: &Timeline, makespan: u64) {
        let covered = |kinds: &[SpanKind]| timeline.covered_by_any(name, kinds);
        let compute = covered(&[SpanKind::Compute]);
        let moving = [
            SpanKind::Compute,
            SpanKind::TransferIn,
            SpanKind::TransferOut,
        ];
        let with_data = covered(&moving);
        let with_waits = covered(&[moving[0], moving[1], moving[2], SpanKind::Wait]);
        assert!(compute <= with_data && with_data <= with_waits && with_waits <= makespan);
        self.busy_micros = compute;
        self.utilisation = if makespan == 0 {
            0.0
        } else {
            compute as f64 / makespan as f64
        };
        self.idle = Idle {
            data_micros: with_data - compute,
            dependency_micros: with_waits - with_data,
            nothing_to_do_micros: makespan - with_waits,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::tests::span;

    fn one_task() -> Report {
        let device = DeviceReport {
            tasks: 1,
            operators: 3,
            ..DeviceReport::default()
        };
        Report {
            devices: BTreeMap::from([("cpu".to_owned(), device)]),
            ..Report::default()
        }
    }

    #[test]
    fn busy_and_idle_add_up_to_the_makespan() {
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::TransferIn, 0, 10));
        timeline.push(span("cpu", SpanKind::Compute, 5, 25));
        timeline.push(span("cpu", SpanKind::Wait, 25, 40));
        timeline.push(span("gpu", SpanKind::Compute, 90, 100));
        let mut report = one_task();
        report.read_times(&timeline);
        let cpu = &report.devices["cpu"];
        assert_eq!((report.makespan_micros, cpu.busy_micros), (100, 20));
        assert_eq!(
            cpu.idle,
            Idle {
                data_micros: 5,
                dependency_micros: 15,
                nothing_to_do_micros: 60
            }
        );
    }

    #[test]
    fn reports_of_two_processes_add_up() {
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::Compute, 0, 50));
        let mut report = one_task();
        report.merge(one_task(), &timeline);
        assert_eq!(
            (report.devices["cpu"].tasks, report.devices["cpu"].operators),
            (2, 6)
        );
        assert_eq!(report.devices["cpu"].utilisation, 1.0);
    }
}
