//! What devices run their operators through, in the market's terms: a feature of a device for each.

use souk_market::Features;
use souk_roles::market::features;
use souk_vocabulary::profile::Backend;

use crate::folder::config::DeviceChoice;

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

/// What a job needs that asks for one.
#[must_use]
pub fn needed(backend: Option<Backend>) -> Features {
    backend.map_or(Features(0), feature)
}

#[cfg(test)]
mod tests {
    use super::*;

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
