//! What devices run their operators through, in the market's terms: a feature of a device for each.

use souk_market::Features;
use souk_roles::market::features;
use souk_vocabulary::profile::Backend;

use crate::folder::config::{DeviceChoice, Isolation};

fn feature(backend: Backend) -> Features {
    features::of(&features::BACKENDS, backend.name())
}

/// What an ask states: what each of the devices goes through.
#[must_use]
pub fn stated(devices: &DeviceChoice) -> Features {
    let backend = match devices {
        DeviceChoice::Cpu { .. } => Backend::Cpu,
        DeviceChoice::Gpu { .. } => Backend::Wgpu,
        DeviceChoice::Cuda { .. } => Backend::Cuda,
        DeviceChoice::Onnxruntime { .. } => Backend::Onnxruntime,
        DeviceChoice::Emulated { .. } => Backend::Emulated,
        DeviceChoice::Group(group) => {
            let each = group.iter().map(|device| stated(device).0);
            return Features(each.fold(0, |bits, device| bits | device));
        }
    };
    feature(backend)
}

/// What an ask states of sessions: a device by itself keeps states for a lease that has a process
/// of its own. Neither several devices together nor ONNX Runtime keep any.
#[must_use]
pub fn sessions(devices: &DeviceChoice, isolation: Isolation) -> Features {
    let keeps_states = match devices {
        DeviceChoice::Group(group) => match &group[..] {
            [one] => return sessions(one, isolation),
            _ => false,
        },
        DeviceChoice::Onnxruntime { .. } => false,
        DeviceChoice::Cpu { .. }
        | DeviceChoice::Gpu { .. }
        | DeviceChoice::Cuda { .. }
        | DeviceChoice::Emulated { .. } => true,
    };
    match keeps_states && isolation != Isolation::None {
        true => features::of(&features::SERVICES, "sessions"),
        false => Features(0),
    }
}

/// What a job of so many sequences needs: none for one that keeps no states.
#[must_use]
pub fn needed_sessions(sequences: u32) -> Features {
    match sequences {
        0 => Features(0),
        _ => features::of(&features::SERVICES, "sessions"),
    }
}

/// What a job needs that asks for one.
#[must_use]
pub fn needed(backend: Option<Backend>) -> Features {
    backend.map_or(Features(0), feature)
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
        let sells = |devices: &DeviceChoice| sessions(devices, Isolation::Process) != Features(0);
        assert!(sells(&cpu) && sells(&group(&[&cpu])));
        assert!(sells(&DeviceChoice::emulated("nvidia-t4")));
        assert!(!sells(&runtime) && !sells(&group(&[&cpu, &cpu])));
        assert_eq!(sessions(&cpu, Isolation::None), Features(0));
        let needed = needed_sessions(1);
        assert_eq!(needed, sessions(&cpu, Isolation::Process));
        assert_eq!(needed_sessions(0), Features(0));
    }

    #[test]
    fn a_team_has_what_any_of_its_devices_goes_through() {
        let cpu = DeviceChoice::Cpu { threads: 1 };
        let group = DeviceChoice::Group(vec![cpu, DeviceChoice::emulated("nvidia-t4")]);
        let both = feature(Backend::Cpu).0 | feature(Backend::Emulated).0;
        assert_eq!(stated(&group), Features(both));
        for backend in Backend::ALL {
            assert_ne!(needed(Some(backend)), Features(0), "{}", backend.name());
        }
        assert_eq!(needed(None), Features(0));
    }
}
