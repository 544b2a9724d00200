//! Computes the figures of a run on one device for its report: the device's name, its busy time and
//! traffic, and the end of the run. Runs on a single device and on a group use it. For an emulated
//! device the device's own time counts, not the clock's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use souk_memory::Tensor;
use souk_vocabulary::processor::{Outcome, Processor};
use souk_vocabulary::profile::Profile;

use super::report::{DeviceReport, ReportedEnergy};
use super::task::Clock;
use super::timeline::UnixMicros;

/// Returns a device's name in reports.
pub(super) fn report_label(label: &str, processor: &dyn Processor) -> String {
    let emulated = processor.profile().emulated;
    format!("{label}{}", if emulated { " (emulated)" } else { "" })
}

/// Returns the end of a run. For an emulated device its own time counts, ahead of the clock or
/// behind.
pub(super) fn end_of(
    processor: &dyn Processor,
    clock: &Arc<Clock>,
    start: UnixMicros,
    busy: Duration,
) -> UnixMicros {
    if processor.profile().emulated {
        let micros = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
        return start.saturating_add(micros);
    }
    clock()
}

/// Returns one run's contribution to its device's report.
pub(super) fn device_report<T>(
    profile: &Profile,
    outcome: &Outcome<T>,
    [bytes_in, bytes_out]: [u64; 2],
) -> DeviceReport {
    let energy = outcome.energy.map(|energy| {
        let (measured_joules, modelled_joules) = if energy.measured {
            (energy.joules, 0.0)
        } else {
            (0.0, energy.joules)
        };
        ReportedEnergy {
            measured_joules,
            modelled_joules,
        }
    });
    DeviceReport {
        kind: profile.kind.name().to_owned(),
        emulated: profile.emulated,
        tasks: 1,
        operators: outcome.operators,
        engines: BTreeMap::from([(outcome.engine, 1)]),
        bytes_in,
        bytes_out,
        energy,
        ..DeviceReport::default()
    }
}

/// Returns the total bytes of all tensors' elements.
pub(super) fn bytes_of_all(tensors: &BTreeMap<String, Tensor>) -> u64 {
    tensors
        .values()
        .map(|tensor| tensor.bytes().len() as u64)
        .sum()
}

pub(super) fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
