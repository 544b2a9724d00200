//! The catalogue of known processors, from which emulated devices take their profiles.
//!
//! The data file states each figure in one fixed unit and with its source, and separates dense
//! throughput from throughput with structured sparsity. Data sheets do not give the time to launch
//! an operator, so this module assumes one for each kind. Every entry must name its source, and
//! must not have fields that this module does not know.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;
use souk_memory::DType;

use crate::profile::{Memory, Power, Profile, Throughput};
use crate::taxonomy::{MemoryKind, ProcessorKind, Trait};

/// The data file, compiled into the program.
const FILE: &str = include_str!("../catalogue.json");

/// The parsed data file: profiles, and the links of each processor by its name.
static CATALOGUE: LazyLock<(Vec<Profile>, BTreeMap<String, Interconnect>)> = LazyLock::new(|| {
    let mut entries: Vec<Entry> =
        serde_json::from_str(FILE).expect("catalogue.json is valid: a test reads it");
    let linked = entries.iter_mut().filter_map(|entry| {
        let link = entry.link.take()?;
        Some((entry.name.clone(), link.into()))
    });
    let links = linked.collect();
    (entries.into_iter().map(Profile::from).collect(), links)
});

/// The links between a device's memory and other memories, as far as its maker states them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interconnect {
    /// PCI Express generation and lanes of the link to the host.
    pub pcie: Option<(u8, u8)>,
    /// Name of a link to devices with a link of the same name, and its bytes per second each way
    /// between two of them.
    pub direct: Option<(String, f64)>,
}

/// Returns all known processors in the order of the data file, each marked as emulated.
#[must_use]
pub fn all_processors() -> &'static [Profile] {
    &CATALOGUE.0
}

/// Returns the links of the named processor; `None` if it works in the host's memory, or its links
/// are unknown.
#[must_use]
pub fn find_interconnect(name: &str) -> Option<&'static Interconnect> {
    CATALOGUE.1.get(name)
}

/// Returns the processor with this name.
#[must_use]
pub fn find_processor(name: &str) -> Option<&'static Profile> {
    all_processors().iter().find(|profile| profile.name == name)
}

/// One processor in the data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    vendor: String,
    model: String,
    kind: String,
    /// These fields refine the kind; the kind's type defines their names.
    api: Option<serde_json::Value>,
    generation: Option<serde_json::Value>,
    family: Option<serde_json::Value>,
    isa: Option<serde_json::Value>,
    memory: EntryMemory,
    /// Operations per second on dense operands, in tera (10^12).
    #[serde(default)]
    dense: BTreeMap<DType, f64>,
    /// Operations per second counted with 2:4 sparsity, in tera (10^12).
    #[serde(default)]
    sparse: BTreeMap<DType, f64>,
    /// Power limit, in watts.
    watts: Option<f64>,
    #[serde(default)]
    traits: Vec<Trait>,
    link: Option<EntryLink>,
    source: String,
}

/// Links of a processor with memory of its own, with the source of their figures, which must not be
/// empty.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLink {
    /// PCI Express generation and lanes.
    pcie: Option<(u8, u8)>,
    direct: Option<EntryDirect>,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryDirect {
    name: String,
    /// Bandwidth each way between two processors, in 10^9 bytes per second.
    gb_per_second: f64,
}

impl From<EntryLink> for Interconnect {
    fn from(entry: EntryLink) -> Self {
        assert!(
            !entry.source.is_empty(),
            "catalogue.json is valid: a test reads it"
        );
        Self {
            pcie: entry.pcie,
            direct: entry
                .direct
                .map(|direct| (direct.name, direct.gb_per_second * 1e9)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryMemory {
    kind: MemoryKind,
    /// Capacity in 10^9 bytes.
    gb: f64,
    /// Bandwidth in 10^9 bytes per second.
    gb_per_second: f64,
}

impl From<Entry> for Profile {
    fn from(entry: Entry) -> Self {
        let kind = entry.parse_kind();
        let rates = [(entry.dense, false), (entry.sparse, true)];
        let throughput = rates.into_iter().flat_map(|(rates, sparse)| {
            rates.into_iter().map(move |(dtype, tera)| {
                let operations_per_second = tera * 1e12;
                (
                    dtype,
                    Throughput {
                        operations_per_second,
                        sparse,
                        measured: false,
                    },
                )
            })
        });
        Self {
            name: entry.name,
            vendor: entry.vendor,
            model: entry.model,
            launch: assumed_launch(&kind),
            kind,
            emulated: true,
            memory: Memory {
                kind: entry.memory.kind,
                bytes: (entry.memory.gb * 1e9) as u64,
                bytes_per_second: entry.memory.gb_per_second * 1e9,
            },
            throughput: throughput.collect(),
            power: entry.watts.map(|busy_watts| Power {
                idle_watts: None,
                busy_watts,
            }),
            traits: entry.traits,
            source: entry.source,
        }
    }
}

impl Entry {
    fn parse_kind(&self) -> ProcessorKind {
        let details = [
            ("api", &self.api),
            ("generation", &self.generation),
            ("family", &self.family),
            ("isa", &self.isa),
        ];
        let mut fields = serde_json::Map::new();
        fields.insert("kind".to_owned(), self.kind.clone().into());
        for (name, value) in details {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value.clone());
            }
        }
        serde_json::from_value(fields.into()).expect("a test reads every kind in the data file")
    }
}

/// Returns the assumed time to launch one operator, because data sheets do not state it: the order
/// of magnitude of each kind's usual runtime.
fn assumed_launch(kind: &ProcessorKind) -> Duration {
    let microseconds = match kind {
        ProcessorKind::Cpu { .. } | ProcessorKind::Lpu => 1,
        ProcessorKind::Gpu { .. } => 5,
        ProcessorKind::Tpu { .. } | ProcessorKind::Wasm => 10,
        ProcessorKind::Fpga { .. } | ProcessorKind::Dsp { .. } | ProcessorKind::Custom => 20,
        ProcessorKind::Npu { .. } => 50,
    };
    Duration::from_micros(microseconds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_has_a_name_of_its_own_a_source_and_figures() {
        let mut names = BTreeSet::new();
        for profile in all_processors() {
            assert!(
                names.insert(&profile.name),
                "{} is there twice",
                profile.name
            );
            assert!(
                profile.emulated && !profile.source.is_empty(),
                "{}",
                profile.name
            );
            assert!(profile.memory.bytes > 0, "{}", profile.name);
            assert!(profile.memory.bytes_per_second > 1e9, "{}", profile.name);
            assert!(!profile.throughput.is_empty(), "{}", profile.name);
            assert!(
                profile
                    .throughput
                    .values()
                    .all(|rate| rate.dense_rate() > 1e9),
                "{}",
                profile.name
            );
        }
    }

    #[test]
    fn every_kind_is_there_in_numbers() {
        let kinds: BTreeSet<&str> = all_processors()
            .iter()
            .map(|profile| profile.kind.name())
            .collect();
        let every = [
            "cpu", "custom", "dsp", "fpga", "gpu", "lpu", "npu", "tpu", "wasm",
        ];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), every);
        assert!(
            all_processors().len() >= 60,
            "{} processors",
            all_processors().len()
        );
    }

    #[test]
    fn a_profile_survives_json() {
        for profile in all_processors() {
            let text = serde_json::to_string(profile).unwrap();
            assert_eq!(&serde_json::from_str::<Profile>(&text).unwrap(), profile);
        }
    }

    #[test]
    fn a_sparse_figure_is_halved_for_dense_work() {
        let h100 = find_processor("nvidia-h100-sxm").unwrap();
        assert_eq!(h100.operations_per_second(DType::Bf16), Some(989.5e12));
        assert_eq!(h100.operations_per_second(DType::F64), Some(67e12));
        assert_eq!(
            find_processor("google-tpu-v5p")
                .unwrap()
                .operations_per_second(DType::F64),
            None
        );
    }
}
