//! Defines the report of a run: for each device its busy time, utilisation, idle time by cause,
//! work, bytes and joules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_vocabulary::processor::Engine;

use super::timeline::{SpanKind, Timeline};

/// The report of a run over one or several devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Microseconds from the start of the first device to the end of the last.
    pub makespan_micros: u64,
    /// The devices' reports by name.
    pub devices: BTreeMap<String, DeviceReport>,
    /// Bytes that the run copied to assemble results of operators that several devices shared.
    #[serde(default)]
    pub joined_bytes: u64,
    /// Number of operators that several devices shared. Row-wise operators that run on the same
    /// parts directly afterwards count together with it.
    #[serde(default)]
    pub partitioned_tasks: u64,
    /// Use of each memory and transfers between memories, in a run of several devices. The key is
    /// the device's name, or the group's name for the machine's own memory.
    #[serde(default)]
    pub memory: BTreeMap<String, MemoryReport>,
    /// Expected time and energy of the plan, and expected time of the best single device; only for
    /// one run of several devices.
    #[serde(default)]
    pub against: Option<ExpectedRun>,
    /// The work that devices lacked support for, refused or failed at, with the devices that did it
    /// instead.
    #[serde(default)]
    pub fallbacks: Vec<Fallback>,
}

/// Work of a run that one device did not do, and the devices that did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The device that did not do the work.
    pub device: String,
    /// The operator, or none if the device failed as a whole.
    pub operator: Option<String>,
    /// Number of nodes of the operator that the device did not run.
    pub nodes: u64,
    /// The feature that the device lacks, or its error.
    pub reason: String,
    /// The devices that ran these nodes, or the rest of the failed device's work.
    pub by: Vec<String>,
}

/// Use of one memory by tensors that pass between devices, and its transfers. Concurrent runs share
/// the memory and its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Limit in bytes at the end.
    pub limit_bytes: u64,
    /// Bytes in use at the end.
    pub used_bytes: u64,
    /// Largest number of bytes in use at a time.
    pub peak_bytes: u64,
    /// Bytes copied from or to another memory.
    pub copied_bytes: u64,
    /// Bytes that another device received by reference, without a copy.
    pub shared_bytes: u64,
    /// Bytes written to disk for lack of room.
    pub spilled_bytes: u64,
    /// Bytes read back from disk.
    pub restored_bytes: u64,
    /// Bytes that entered or left over direct links between devices, such as NVLink. The group's
    /// own entry covers all memories and counts each byte once.
    #[serde(default)]
    pub nvlink_bytes: u64,
    /// Bytes that entered or left over PCI Express.
    #[serde(default)]
    pub pcie_bytes: u64,
    /// Bytes that the host's processor copied in or out.
    #[serde(default)]
    pub host_bytes: u64,
    /// Bytes that moved within one memory that the device and the host share.
    #[serde(default)]
    pub unified_bytes: u64,
}

/// The planner's expectations, to compare with the actual figures of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedRun {
    /// Makespan in the plan, in microseconds.
    pub expected_micros: u64,
    /// Joules in the plan; none if those of a device are unknown.
    pub expected_joules: Option<f64>,
    /// The device of the group that would finish first alone; none if no device can run it all.
    pub single: Option<SingleForecast>,
}

/// The forecast for the best single device, to compare with a run of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SingleForecast {
    /// Name of the device.
    pub device: String,
    /// Expected makespan on this device alone, in microseconds.
    pub expected_micros: u64,
}

/// The work of one device in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Kind of the device in one word.
    pub kind: String,
    /// Whether its times and joules come from a device profile instead of hardware.
    pub emulated: bool,
    /// Microseconds in which the device computed.
    pub busy_micros: u64,
    /// Microseconds in which weights or tensors moved to or from the device, including those during
    /// its computations.
    #[serde(default)]
    pub transfer_micros: u64,
    /// Fraction of the makespan in which the device computed, from 0 to 1.
    pub utilisation: f64,
    /// The causes of its idle time.
    pub idle: Idle,
    /// Number of subgraphs that the device ran.
    pub tasks: u64,
    /// Number of operators that the device ran.
    pub operators: u64,
    /// Number of subgraphs by the engine that ran them.
    #[serde(default)]
    pub engines: BTreeMap<Engine, u64>,
    /// Bytes of input tensors, including weights that the device loaded.
    pub bytes_in: u64,
    /// Bytes of output tensors.
    pub bytes_out: u64,
    /// Energy, if known.
    pub energy: Option<ReportedEnergy>,
}

/// Idle microseconds by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// Weights or tensors moved to or from the device.
    pub data_micros: u64,
    /// The device's next task waited for another task's result.
    pub dependency_micros: u64,
    /// The device had no task.
    pub nothing_to_do_micros: u64,
}

/// Joules by their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportedEnergy {
    /// Joules that a meter counted.
    pub measured_joules: f64,
    /// Joules that a model computes from power and time.
    pub modelled_joules: f64,
}

impl Report {
    /// Adds another report's counts, then reads each device's times from the merged timeline. You
    /// must merge the timelines first.
    pub fn merge(&mut self, other: Self, timeline: &Timeline) {
        self.add(other);
        self.read_times(timeline);
    }

    /// Adds another report's counts but not its times. [`Self::read_times`] scans a whole timeline,
    /// so you should call it once, after the last report.
    pub fn add(&mut self, other: Self) {
        for (name, device) in other.devices {
            match self.devices.get_mut(&name) {
                Some(mine) => mine.add(&device),
                None => {
                    self.devices.insert(name, device);
                }
            }
        }
        self.joined_bytes = self.joined_bytes.saturating_add(other.joined_bytes);
        self.partitioned_tasks = self
            .partitioned_tasks
            .saturating_add(other.partitioned_tasks);
        for (place, memory) in &other.memory {
            self.memory.entry(place.clone()).or_default().add(memory);
        }
        // Two runs have no common plan.
        self.against = match (self.against.take(), other.against) {
            (Some(_), Some(_)) => None,
            (mine, others) => mine.or(others),
        };
        for fallback in other.fallbacks {
            if !self.fallbacks.contains(&fallback) {
                self.fallbacks.push(fallback);
            }
        }
    }

    /// Adds the counts and times of a later run, and sums the makespans. Omits new
    /// devices and memories beyond `names_max` of each.
    pub fn append_run(&mut self, other: &Self, names_max: usize) {
        self.makespan_micros = self.makespan_micros.saturating_add(other.makespan_micros);
        self.joined_bytes = self.joined_bytes.saturating_add(other.joined_bytes);
        self.partitioned_tasks = self
            .partitioned_tasks
            .saturating_add(other.partitioned_tasks);
        self.against = None;
        for (name, device) in &other.devices {
            if self.devices.len() >= names_max && !self.devices.contains_key(name) {
                continue;
            }
            let mine = self.devices.entry(name.clone()).or_default();
            mine.kind.clone_from(&device.kind);
            mine.add(device);
            mine.add_times(device);
        }
        for (place, memory) in &other.memory {
            if self.memory.len() < names_max || self.memory.contains_key(place) {
                self.memory.entry(place.clone()).or_default().add(memory);
            }
        }
        let makespan = self.makespan_micros.max(1) as f64;
        for device in self.devices.values_mut() {
            device.utilisation = device.busy_micros as f64 / makespan;
        }
    }

    /// Reads the makespan, utilisation and idle times from a timeline.
    pub fn read_times(&mut self, timeline: &Timeline) {
        let extent = timeline.time_extent();
        self.makespan_micros = extent.map_or(0, |(start, end)| end.micros_since(start));
        for (name, device) in &mut self.devices {
            device.read_times(name, timeline, self.makespan_micros);
        }
    }

    /// Returns the joules of all devices that report any.
    #[must_use]
    pub fn total_joules(&self) -> f64 {
        let energies = self.devices.values().filter_map(|device| device.energy);
        let each = energies.map(|energy| energy.measured_joules + energy.modelled_joules);
        // Otherwise the sum of no terms would be negative zero.
        each.fold(0.0, |sum, joules| sum + joules)
    }
}

impl MemoryReport {
    /// Adds a later report of the same memory.
    fn add(&mut self, other: &Self) {
        self.limit_bytes = other.limit_bytes;
        self.used_bytes = other.used_bytes;
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.copied_bytes = self.copied_bytes.saturating_add(other.copied_bytes);
        self.shared_bytes = self.shared_bytes.saturating_add(other.shared_bytes);
        self.spilled_bytes = self.spilled_bytes.saturating_add(other.spilled_bytes);
        self.restored_bytes = self.restored_bytes.saturating_add(other.restored_bytes);
        self.nvlink_bytes = self.nvlink_bytes.saturating_add(other.nvlink_bytes);
        self.pcie_bytes = self.pcie_bytes.saturating_add(other.pcie_bytes);
        self.host_bytes = self.host_bytes.saturating_add(other.host_bytes);
        self.unified_bytes = self.unified_bytes.saturating_add(other.unified_bytes);
    }
}

impl DeviceReport {
    /// Adds the same device's work in another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.emulated |= other.emulated;
        self.tasks = self.tasks.saturating_add(other.tasks);
        self.operators = self.operators.saturating_add(other.operators);
        for (engine, tasks) in &other.engines {
            let mine = self.engines.entry(*engine).or_default();
            *mine = mine.saturating_add(*tasks);
        }
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.energy = match (self.energy, other.energy) {
            (Some(mine), Some(others)) => Some(ReportedEnergy {
                measured_joules: mine.measured_joules + others.measured_joules,
                modelled_joules: mine.modelled_joules + others.modelled_joules,
            }),
            (mine, others) => mine.or(others),
        };
    }

    fn add_times(&mut self, other: &Self) {
        self.busy_micros = self.busy_micros.saturating_add(other.busy_micros);
        self.transfer_micros = self.transfer_micros.saturating_add(other.transfer_micros);
        let (idle, more) = (&mut self.idle, &other.idle);
        let sums = [
            (&mut idle.data_micros, more.data_micros),
            (&mut idle.dependency_micros, more.dependency_micros),
            (&mut idle.nothing_to_do_micros, more.nothing_to_do_micros),
        ];
        sums.into_iter()
            .for_each(|(mine, others)| *mine = mine.saturating_add(others));
    }

    /// Reads the device's times from its spans. A moment of computing counts as busy even if it
    /// overlaps a transfer, and a transfer takes precedence over a wait, so busy and idle times add
    /// up to the makespan.
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
        self.transfer_micros = covered(&moving[1..]);
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
    use crate::execution::timeline::tests::span;

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
        assert_eq!(cpu.transfer_micros, 10, "also where it is hidden");
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
    fn runs_one_after_the_other_are_summed_up() {
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::TransferIn, 0, 30));
        timeline.push(span("cpu", SpanKind::Compute, 20, 50));
        let mut run = one_task();
        run.partitioned_tasks = 2;
        let held = |used_bytes, peak_bytes| MemoryReport {
            limit_bytes: 100,
            used_bytes,
            peak_bytes,
            spilled_bytes: 5,
            ..MemoryReport::default()
        };
        run.memory.insert("host".to_owned(), held(40, 90));
        run.read_times(&timeline);
        let mut all = Report::default();
        all.append_run(&run, 1);
        run.memory.insert("host".to_owned(), held(10, 60));
        run.devices
            .insert("gpu".to_owned(), DeviceReport::default());
        all.append_run(&run, 1);
        let cpu = &all.devices["cpu"];
        assert_eq!((all.makespan_micros, all.partitioned_tasks), (100, 4));
        assert_eq!(
            (cpu.busy_micros, cpu.transfer_micros, cpu.tasks),
            (60, 60, 2)
        );
        assert_eq!((cpu.utilisation, cpu.idle.data_micros), (0.6, 40));
        assert_eq!(all.devices.len(), 1, "names are bounded");
        let host = all.memory["host"];
        assert_eq!(
            (host.used_bytes, host.peak_bytes, host.spilled_bytes),
            (10, 90, 10)
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
