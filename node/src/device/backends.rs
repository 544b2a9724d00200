//! What devices run their operators through, in the market's terms: a feature of a device for each.

use souk_market::Features;
use souk_vocabulary::profile::Backend;

use crate::folder::config::DeviceChoice;

/// Bits of the market never change their meaning; those of [`crate::device::kernels`] are below.
fn feature(backend: Backend) -> u32 {
    match backend {
        Backend::Cpu => 1 << 2,
        Backend::Wgpu => 1 << 3,
        Backend::Cuda => 1 << 4,
        Backend::Onnxruntime => 1 << 5,
        Backend::Emulated => 1 << 6,
    }
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
    Features(feature(backend))
}

/// What a job needs that asks for one.
#[must_use]
pub fn needed(backend: Option<Backend>) -> Features {
    Features(backend.map_or(0, feature))
}

/// What is asked for and not there.
#[must_use]
pub fn missing(needed: Features, there: Features) -> Option<Backend> {
    let lacks = |backend: &Backend| feature(*backend) & needed.0 & !there.0 != 0;
    Backend::ALL.into_iter().find(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernels;
    use crate::folder::limits::Limits;

    #[test]
    fn a_team_has_what_any_of_its_devices_goes_through() {
        let cpu = DeviceChoice::Cpu { threads: 1 };
        let group = DeviceChoice::Group(vec![cpu, DeviceChoice::emulated("nvidia-t4")]);
        for backend in Backend::ALL {
            let there = matches!(backend, Backend::Cpu | Backend::Emulated);
            let lacks = missing(needed(Some(backend)), stated(&group));
            assert_eq!(lacks, (!there).then_some(backend));
        }
        assert_eq!(missing(needed(None), Features(0)), None);
    }

    #[test]
    fn no_two_features_are_one() {
        let each = Backend::ALL.map(feature);
        let all = each.into_iter().fold(0, |bits, bit| {
            assert_eq!(bits & bit, 0);
            bits | bit
        });
        let gpu = DeviceChoice::Gpu {
            name: String::new(),
            memory_mib: None,
        };
        let group = DeviceChoice::Group(vec![gpu, DeviceChoice::Cpu { threads: 1 }]);
        assert_eq!(kernels::offered(&group, &Limits::default()).0 & all, 0);
    }
}
