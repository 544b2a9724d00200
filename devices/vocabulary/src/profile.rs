//! What a device is and can do: stated by a data sheet, or measured.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::DType;

use crate::taxonomy::{GpuApi, Kind, MemoryKind, Trait};

/// The name of the machine's own CPU.
pub const CPU: &str = "cpu";
/// The name of a GPU of the machine's.
pub const GPU: &str = "gpu";

/// A device described: what the market sells and what the planner counts with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Short name in lowercase with dashes, unique in the catalogue.
    pub name: String,
    /// Who makes it.
    pub vendor: String,
    /// What its maker calls it.
    pub model: String,
    /// Its kind.
    #[serde(flatten)]
    pub kind: Kind,
    /// Whether its time and energy come from this description rather than from hardware.
    pub emulated: bool,
    /// Its memory.
    pub memory: Memory,
    /// Arithmetic throughput for each element type it computes in.
    pub throughput: BTreeMap<DType, Throughput>,
    /// Time from asking for one operator to its start, when nothing else waits.
    #[serde(rename = "launch_seconds", with = "seconds")]
    pub launch: Duration,
    /// Power it draws, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Workloads it suits.
    #[serde(default)]
    pub traits: Vec<Trait>,
    /// Where the figures come from: a data sheet, or how and on what they were measured.
    pub source: String,
}

/// What a device runs its operators through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The own engines for CPUs.
    Cpu,
    /// Vulkan, Metal or Direct3D 12.
    Wgpu,
    /// CUDA.
    Cuda,
    /// A library of ONNX Runtime.
    Onnxruntime,
    /// The CPU that stands for a processor of the catalogue.
    Emulated,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Cpu,
        Self::Wgpu,
        Self::Cuda,
        Self::Onnxruntime,
        Self::Emulated,
    ];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Its name in options and metadata.
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
    /// What it is made of.
    pub kind: MemoryKind,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Bandwidth in bytes per second; infinite where it was not measured, which JSON has as null.
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
    /// Whether it was measured on the device described.
    #[serde(default)]
    pub measured: bool,
}

/// Power in watts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// When nothing runs; most data sheets do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_watts: Option<f64>,
    /// When all of it works.
    pub busy_watts: f64,
}

impl Throughput {
    /// Operations per second on dense operands: half a sparse figure, for 2:4 sparsity.
    #[must_use]
    pub fn dense(&self) -> f64 {
        if self.sparse {
            self.operations_per_second / 2.0
        } else {
            self.operations_per_second
        }
    }
}

/// Whether a word names a device: its kind, or a part of its model's name, in any case.
#[must_use]
pub fn is_named(word: &str, kind: &str, model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    kind.eq_ignore_ascii_case(word) || model.contains(&word.to_ascii_lowercase())
}

impl Profile {
    /// Whether a word names it: its kind, or a part of its model's name, in any case.
    #[must_use]
    pub fn is_named(&self, word: &str) -> bool {
        is_named(word, self.kind.name(), &self.model)
    }

    /// What it runs through; `None` for what only a data sheet describes.
    #[must_use]
    pub fn backend(&self) -> Option<Backend> {
        match (self.name.as_str(), &self.kind) {
            _ if self.emulated => Some(Backend::Emulated),
            (
                GPU,
                Kind::Gpu {
                    api: GpuApi::Cuda { .. },
                },
            ) => Some(Backend::Cuda),
            (GPU, _) => Some(Backend::Wgpu),
            (CPU, _) => Some(Backend::Cpu),
            (name, _) if name == Backend::Onnxruntime.name() => Some(Backend::Onnxruntime),
            _ => None,
        }
    }

    /// Dense operations per second in `dtype`. A type the device lacks runs in the next wider one
    /// it has, since values are then widened; 32-bit floats run as several products of 16-bit ones
    /// where that is all there is. `None` when the device cannot compute in the type at all.
    #[must_use]
    pub fn operations_per_second(&self, dtype: DType) -> Option<f64> {
        let rate = |dtype: &DType| self.throughput.get(dtype).map(Throughput::dense);
        let split = || {
            let halves = [DType::Bf16, DType::F16].iter().find_map(rate)?;
            (dtype == DType::F32).then_some(halves / HALF_PASSES)
        };
        widening(dtype).iter().find_map(rate).or_else(split)
    }
}

/// Products of 16-bit floats that make one of 32-bit floats: what XLA does at its highest
/// precision on tensor processors.
const HALF_PASSES: f64 = 6.0;

/// Element types that hold every value of `dtype`, narrowest first, itself included.
fn widening(dtype: DType) -> &'static [DType] {
    match dtype {
        DType::F64 => &[DType::F64],
        DType::F32 => &[DType::F32, DType::F64],
        DType::F16 => &[DType::F16, DType::F32, DType::F64],
        DType::Bf16 => &[DType::Bf16, DType::F32, DType::F64],
        DType::I8 | DType::U8 | DType::I4 | DType::U4 => {
            &[DType::I8, DType::F16, DType::Bf16, DType::F32, DType::F64]
        }
        // Other integers run on the general units, as fast as 32-bit floats within a small factor.
        _ => &[DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I8],
    }
}

/// A duration as a number of seconds.
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

/// A figure that is infinite while nobody has measured it: JSON has no infinity.
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
    use crate::catalogue::find;
    use crate::taxonomy::CpuIsa;

    #[test]
    fn a_type_runs_wider_or_split_or_not_at_all() {
        let rate = |name, dtype| find(name).unwrap().operations_per_second(dtype);
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
        let card = find("nvidia-v100-sxm2-32").unwrap();
        let named = |name: &str, emulated, kind: &Kind| Profile {
            name: name.to_owned(),
            emulated,
            kind: kind.clone(),
            ..card.clone()
        };
        let isa = CpuIsa::Other;
        for (profile, backend) in [
            (named(CPU, false, &Kind::Cpu { isa }), Some(Backend::Cpu)),
            (
                named("onnxruntime", false, &card.kind),
                Some(Backend::Onnxruntime),
            ),
            (named(GPU, false, &card.kind), Some(Backend::Cuda)),
            (named(GPU, false, &Kind::Custom), Some(Backend::Wgpu)),
            (card.clone(), Some(Backend::Emulated)),
            (named("nvidia-v100-sxm2-32", false, &card.kind), None),
        ] {
            assert_eq!(profile.backend(), backend, "{}", profile.name);
        }
        for backend in Backend::ALL {
            assert_eq!(Backend::named(backend.name()), Some(backend));
        }
    }

    #[test]
    fn a_bandwidth_that_nobody_measured_survives_json() {
        let mut profile = find("nvidia-v100-sxm2-32").unwrap().clone();
        for bytes_per_second in [f64::INFINITY, 900e9] {
            profile.memory.bytes_per_second = bytes_per_second;
            let text = serde_json::to_string(&profile).unwrap();
            assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
        }
    }
}
