//! The device a provider sells, opened and stated in the market's terms.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use souk_devices::cpu::Cpu;
use souk_devices::emulated::{Emulated, EmulatedConfig, EmulatedConfigError};
use souk_devices::processor::Processor;
use souk_devices::profile::Profile;
use souk_devices::taxonomy::Kind;
use souk_devices::{catalogue, discover, measure};
use souk_market::{Dtype, Features, KindCode, Name, Region, Resources, Throughput};
use souk_memory::DType;

use crate::config::DeviceChoice;

/// What a provider states of its link until it has measured one: a gigabit, half a millisecond.
const LINK_BYTES_PER_SECOND: u64 = 125_000_000;
const LINK_LATENCY: Duration = Duration::from_micros(500);

/// The market's element types beside the devices'.
const DTYPES: [(DType, Dtype); 6] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::Bf16),
    (DType::I8, Dtype::Int8),
    (DType::I4, Dtype::Int4),
];

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The catalogue has no such processor.
    #[error("the catalogue has no processor \"{name}\"; it has {}", known.join(", "))]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The emulation was set up wrongly.
    #[error(transparent)]
    Emulated(#[from] EmulatedConfigError),
}

/// Opens the device. Measures it, if it is real, which takes up to two seconds.
pub fn open(choice: &DeviceChoice) -> Result<Arc<dyn Processor>, DeviceError> {
    match choice {
        DeviceChoice::Cpu { threads } => {
            let threads = threads_of(*threads);
            let description = discover::cpu();
            let measured = measure::cpu(&description, threads);
            Ok(Arc::new(Cpu::new(
                measure::profile(&description, &measured),
                threads,
            )))
        }
        DeviceChoice::Emulated { profile } => {
            let found = catalogue::find(profile).ok_or_else(|| DeviceError::Unknown {
                name: profile.clone(),
                known: catalogue::all()
                    .iter()
                    .map(|known| known.name.clone())
                    .collect(),
            })?;
            // The CPU gives the results and the profile the time, so the CPU need not be measured.
            let cpu = Arc::new(Cpu::new(found.clone(), threads_of(0)));
            Ok(Arc::new(Emulated::new(
                found.clone(),
                cpu,
                EmulatedConfig::default(),
            )?))
        }
    }
}

/// What an ask states of a device.
pub fn resources(profile: &Profile) -> Resources {
    let mut throughput = Throughput::default();
    for (dtype, stated) in DTYPES {
        let rate = profile.operations_per_second(dtype).unwrap_or(0.0);
        throughput = throughput.with(stated, whole(rate / 1e6));
    }
    Resources {
        kind: kind_code(&profile.kind),
        kind_name: name(profile.kind.name()),
        model: name(&profile.model),
        memory_bytes: profile.memory.bytes,
        memory_bandwidth: whole(profile.memory.bytes_per_second),
        throughput,
        launch_overhead_ns: whole(profile.launch.as_secs_f64() * 1e9),
        link_latency_us: u64::try_from(LINK_LATENCY.as_micros()).unwrap_or(u64::MAX),
        link_bandwidth: LINK_BYTES_PER_SECOND,
        power_mw: profile
            .power
            .map_or(0, |power| whole(power.busy_watts * 1e3)),
        region: Region(0),
        features: Features(0),
        emulated: profile.emulated,
    }
}

/// The market's number for a kind: their order in the taxonomy, which only ever grows at its end.
fn kind_code(kind: &Kind) -> KindCode {
    KindCode(match kind {
        Kind::Cpu { .. } => 1,
        Kind::Gpu { .. } => 2,
        Kind::Tpu { .. } => 3,
        Kind::Npu { .. } => 4,
        Kind::Lpu => 5,
        Kind::Fpga { .. } => 6,
        Kind::Dsp { .. } => 7,
        Kind::Wasm => 8,
        Kind::Custom => 9,
    })
}

/// A figure as a whole number; what is negative, absurd or no number is held at the ends.
fn whole(figure: f64) -> u64 {
    figure as u64
}

/// As much of a name as the market holds.
fn name(text: &str) -> Name {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    let mut end = plain.len().min(Name::BYTES_MAX);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    Name::try_from(&plain[..end]).expect("it is short and has no control characters")
}

fn threads_of(wanted: u32) -> NonZeroUsize {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    NonZeroUsize::new(wanted as usize).map_or(all, |wanted| wanted.min(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogued_device_is_stated_as_emulated() {
        let choice = DeviceChoice::Emulated {
            profile: "nvidia-h100-sxm".to_owned(),
        };
        let device = open(&choice).unwrap();
        let stated = resources(device.profile());
        assert!(stated.emulated && stated.class().emulated);
        assert_eq!(stated.throughput.of(Dtype::F32), 67_000_000);
        assert_eq!(stated.kind_name.as_str(), "gpu");
    }

    #[test]
    fn an_unknown_profile_is_refused_with_those_there_are() {
        let choice = DeviceChoice::Emulated {
            profile: "abacus".to_owned(),
        };
        let refused = open(&choice).err().unwrap().to_string();
        assert!(
            refused.contains("abacus") && refused.contains("nvidia-h100-sxm"),
            "{refused}"
        );
    }
}
