//! Describes a device's capabilities and speed in a [`Profile`], as a data sheet states them or as
//! souk measured them. Every device has one, and souk estimates times and energy from it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::DType;

use crate::taxonomy::{GpuApi, MemoryKind, ProcessorKind, Trait};

/// The name of the machine's own CPU.
pub const CPU: &str = "cpu";
/// The name of one of the machine's GPUs.
pub const GPU: &str = "gpu";

/// The description of a device, which the market sells and the planner computes with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Short name in lowercase with dashes, which must be unique in the catalogue.
    pub name: String,
    /// The maker's name.
    pub vendor: String,
    /// The maker's name for the model.
    pub model: String,
    /// The kind of processor.
    #[serde(flatten)]
    pub kind: ProcessorKind,
    /// Whether time and energy come from this profile instead of hardware.
    pub emulated: bool,
    /// Capacity and speed of its memory.
    pub memory: Memory,
    /// Arithmetic throughput for each element type it computes in.
    pub throughput: BTreeMap<DType, Throughput>,
    /// Time from the request for one operator to its start, while the device is idle.
    #[serde(rename = "launch_seconds", with = "seconds")]
    pub launch: Duration,
    /// Power that it draws, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Workloads it suits.
    #[serde(default)]
    pub traits: Vec<Trait>,
    /// Source of the figures: a data sheet, or the method and machine of the measurement.
    pub source: String,
}

/// The backend that runs a device's operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// souk's engines for CPUs.
    Cpu,
    /// Vulkan, Metal or Direct3D 12.
    Wgpu,
    /// CUDA.
    Cuda,
    /// A library of ONNX Runtime.
    Onnxruntime,
    /// The CPU, in place of a processor of the catalogue.
    Emulated,
}

impl Backend {
    /// All backends.
    pub const ALL: [Self; 5] = [
        Self::Cpu,
        Self::Wgpu,
        Self::Cuda,
        Self::Onnxruntime,
        Self::Emulated,
    ];

    /// Returns the backend with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Returns its name in options and metadata.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
            Self::Onnxruntime => "onnxruntime",
            Self::Emulated => "emulated",
        }
    }
}

/// A device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The memory's technology.
    pub kind: MemoryKind,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Bandwidth in bytes per second; infinite if not measured, which JSON stores as null.
    #[serde(with = "measured")]
    pub bytes_per_second: f64,
}

/// Arithmetic throughput in one element type.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    /// Operations per second; a multiplication and an addition are two.
    pub operations_per_second: f64,
    /// Whether the figure counts zeros skipped by structured sparsity.
    #[serde(default)]
    pub sparse: bool,
    /// Whether the figure was measured on the described device.
    #[serde(default)]
    pub measured: bool,
}

/// Power in watts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// Power while idle; most data sheets do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_watts: Option<f64>,
    /// Power while all of the device works.
    pub busy_watts: f64,
}

impl Throughput {
    /// Returns the operations per second on dense operands: half of a sparse figure, because
    /// sparsity is 2:4.
    #[must_use]
    pub fn dense_rate(&self) -> f64 {
        if self.sparse {
            self.operations_per_second / 2.0
        } else {
            self.operations_per_second
        }
    }
}

/// Returns whether a word names a device: its kind, or a part of its model's name, in any case.
#[must_use]
pub fn is_named(word: &str, kind: &str, model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    kind.eq_ignore_ascii_case(word) || model.contains(&word.to_ascii_lowercase())
}

impl Profile {
    /// Returns whether a word names this device, as [`is_named`] does.
    #[must_use]
    pub fn is_named(&self, word: &str) -> bool {
        is_named(word, self.kind.name(), &self.model)
    }

    /// Returns the device's backend; `None` for a processor that only a data sheet describes, which
    /// cannot run anything.
    #[must_use]
    pub fn backend(&self) -> Option<Backend> {
        match (self.name.as_str(), &self.kind) {
            _ if self.emulated => Some(Backend::Emulated),
            (
                GPU,
                ProcessorKind::Gpu {
                    api: GpuApi::Cuda { .. },
                },
            ) => Some(Backend::Cuda),
            (GPU, _) => Some(Backend::Wgpu),
            (CPU, _) => Some(Backend::Cpu),
            (name, _) if name == Backend::Onnxruntime.name() => Some(Backend::Onnxruntime),
            _ => None,
        }
    }

    /// Returns the dense operations per second in `dtype`; `None` if the device cannot compute in
    /// that type at all. If the device lacks the type, it widens values to the next wider type that
    /// it has; if it has no type wider than 16-bit floats, it computes 32-bit floats as several
    /// products of 16-bit ones.
    #[must_use]
    pub fn operations_per_second(&self, dtype: DType) -> Option<f64> {
        let rate = |dtype: &DType| self.throughput.get(dtype).map(Throughput::dense_rate);
        let split = || {
            let halves = [DType::Bf16, DType::F16].iter().find_map(rate)?;
            (dtype == DType::F32).then_some(halves / HALF_PASSES)
        };
        widening_types(dtype).iter().find_map(rate).or_else(split)
    }
}

/// Products of 16-bit floats that make one product of 32-bit floats, as XLA computes at its highest
/// precision on tensor processors.
const HALF_PASSES: f64 = 6.0;

/// Returns the element types that hold every value of `dtype`, itself included, narrowest first.
fn widening_types(dtype: DType) -> &'static [DType] {
    match dtype {
        DType::F64 => &[DType::F64],
        DType::F32 => &[DType::F32, DType::F64],
        DType::F16 => &[DType::F16, DType::F32, DType::F64],
        DType::Bf16 => &[DType::Bf16, DType::F32, DType::F64],
        DType::I8 | DType::U8 | DType::I4 | DType::U4 => {
            &[DType::I8, DType::F16, DType::Bf16, DType::F32, DType::F64]
        }
        // Other integers run on the general units, as fast as 32-bit floats to within a small
        // factor.
        _ => &[DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I8],
    }
}

/// Stores a duration as a number of seconds, which must be neither negative nor infinite.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// Stores a figure that is infinite until it is measured, because JSON cannot represent infinity.
mod measured {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let known = value.is_finite().then_some(*value);
        known.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let known = Option::deserialize(deserializer)?;
        Ok(known.unwrap_or(f64::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::find_processor;
    use crate::taxonomy::CpuIsa;

    #[test]
    fn a_type_runs_wider_or_split_or_not_at_all() {
        let rate = |name, dtype| find_processor(name).unwrap().operations_per_second(dtype);
        assert_eq!(
            rate("nvidia-v100-sxm2-32", DType::Bf16),
            Some(15.7e12),
            "as f32"
        );
        assert_eq!(
            rate("google-tpu-v5p", DType::F32),
            Some(459e12 / 6.0),
            "as six in bf16"
        );
        assert_eq!(rate("google-tpu-v5p", DType::F64), None);
        assert_eq!(rate("amd-xdna-2", DType::F32), None);
    }

    #[test]
    fn what_a_device_runs_through_is_told_by_what_it_is() {
        let card = find_processor("nvidia-v100-sxm2-32").unwrap();
        let named = |name: &str, emulated, kind: &ProcessorKind| Profile {
            name: name.to_owned(),
            emulated,
            kind: kind.clone(),
            ..card.clone()
        };
        let isa = CpuIsa::Other;
        for (profile, backend) in [
            (
                named(CPU, false, &ProcessorKind::Cpu { isa }),
                Some(Backend::Cpu),
            ),
            (
                named("onnxruntime", false, &card.kind),
                Some(Backend::Onnxruntime),
            ),
            (named(GPU, false, &card.kind), Some(Backend::Cuda)),
            (
                named(GPU, false, &ProcessorKind::Custom),
                Some(Backend::Wgpu),
            ),
            (card.clone(), Some(Backend::Emulated)),
            (named("nvidia-v100-sxm2-32", false, &card.kind), None),
        ] {
            assert_eq!(profile.backend(), backend, "{}", profile.name);
        }
        for backend in Backend::ALL {
            assert_eq!(Backend::from_name(backend.name()), Some(backend));
        }
    }

    #[test]
    fn a_bandwidth_that_nobody_measured_survives_json() {
        let mut profile = find_processor("nvidia-v100-sxm2-32").unwrap().clone();
        for bytes_per_second in [f64::INFINITY, 900e9] {
            profile.memory.bytes_per_second = bytes_per_second;
            let text = serde_json::to_string(&profile).unwrap();
            assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
        }
    }
}
