//! Converts a device's backend (the code that makes one kind of processor run ONNX) into a
//! *feature*, a property that asks state and bids demand. The feature for sessions is here too.

use souk_folder::config::{DeviceChoice, Isolation};
use souk_market::Features;
use souk_roles::market::features;
use souk_vocabulary::profile::Backend;

fn backend_feature(backend: Backend) -> Features {
    features::find_feature(&features::BACKENDS, backend.name())
}

/// Returns the features that an ask states: the backend of each device.
#[must_use]
pub fn stated_features(devices: &DeviceChoice) -> Features {
    let backend = match devices {
        DeviceChoice::Cpu { .. } | DeviceChoice::Exact { .. } => Backend::Cpu,
        DeviceChoice::Gpu { .. } => Backend::Wgpu,
        DeviceChoice::Cuda { .. } => Backend::Cuda,
        DeviceChoice::Onnxruntime { .. } => Backend::Onnxruntime,
        DeviceChoice::Emulated { .. } => Backend::Emulated,
        DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_) => return Features(0),
        DeviceChoice::Group(group) => {
            let each = group.iter().map(|device| stated_features(device).0);
            return Features(each.fold(0, |bits, device| bits | device));
        }
    };
    Features(backend_feature(backend).0 | promised_features(devices).0)
}

/// Returns the promise of exact results, if these devices make it.
fn promised_features(devices: &DeviceChoice) -> Features {
    match devices.is_exact() {
        true => Features::EXACT_1,
        false => Features(0),
    }
}

/// Returns the features that a job needs because its buyer wants to be able to dispute results.
#[must_use]
pub fn needed_exactness(exact: bool) -> Features {
    match exact {
        true => Features::EXACT_1,
        false => Features(0),
    }
}

/// Returns whether an ask offers sessions, as a feature. A single device can keep states for a
/// lease with a process of its own; groups of several devices and ONNX Runtime keep none.
#[must_use]
pub fn session_features(devices: &DeviceChoice, isolation: Isolation) -> Features {
    // The receipt of a session names no inputs, so no validator could judge it.
    if devices.is_exact() {
        return Features(0);
    }
    let keeps_states = match devices {
        DeviceChoice::Group(group) => match &group[..] {
            [one] => return session_features(one, isolation),
            _ => false,
        },
        DeviceChoice::Exact { .. }
        | DeviceChoice::Onnxruntime { .. }
        | DeviceChoice::Endpoint(_)
        | DeviceChoice::Serve(_) => false,
        DeviceChoice::Cpu { .. }
        | DeviceChoice::Gpu { .. }
        | DeviceChoice::Cuda { .. }
        | DeviceChoice::Emulated { .. } => true,
    };
    match keeps_states && isolation != Isolation::None {
        true => features::find_feature(&features::SERVICES, "sessions"),
        false => Features(0),
    }
}

/// Returns the features that a job with this many sequences needs; none if it keeps no states.
#[must_use]
pub fn needed_sessions(sequences: u32) -> Features {
    match sequences {
        0 => Features(0),
        _ => features::find_feature(&features::SERVICES, "sessions"),
    }
}

/// Returns the features that a job needs because it requests a backend.
#[must_use]
pub fn needed_features(backend: Option<Backend>) -> Features {
    backend.map_or(Features(0), backend_feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_onnx_runtime_and_leases_without_a_process_sell_no_sessions() {
        let cpu = DeviceChoice::Cpu { threads: 1 };
        let runtime = DeviceChoice::Onnxruntime {
            provider: "CPU".to_owned(),
        };
        let group = |devices: &[&DeviceChoice]| {
            DeviceChoice::Group(devices.iter().copied().cloned().collect())
        };
        let sells =
            |devices: &DeviceChoice| session_features(devices, Isolation::Process) != Features(0);
        assert!(sells(&cpu) && sells(&group(&[&cpu])));
        assert!(sells(&DeviceChoice::new_emulated("nvidia-t4")));
        assert!(!sells(&runtime) && !sells(&group(&[&cpu, &cpu])));
        assert_eq!(session_features(&cpu, Isolation::None), Features(0));
        let needed = needed_sessions(1);
        assert_eq!(needed, session_features(&cpu, Isolation::Process));
        assert_eq!(needed_sessions(0), Features(0));
    }

    #[test]
    fn a_team_has_what_any_of_its_devices_goes_through() {
        let cpu = DeviceChoice::Cpu { threads: 1 };
        let group = DeviceChoice::Group(vec![cpu, DeviceChoice::new_emulated("nvidia-t4")]);
        let both = backend_feature(Backend::Cpu).0 | backend_feature(Backend::Emulated).0;
        assert_eq!(stated_features(&group), Features(both));
        for backend in Backend::ALL {
            assert_ne!(
                needed_features(Some(backend)),
                Features(0),
                "{}",
                backend.name()
            );
        }
        assert_eq!(needed_features(None), Features(0));
    }
}
