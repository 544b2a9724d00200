//! Reads and writes the files that configure a node, in a versioned format. A node reads them once,
//! when it starts.
//!
//! A node's folder holds `market.json` (or its parent does, because the nodes of a testnet share
//! one), the node's `key`, and `validator.json`, `provider.toml` or `provider.json`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::{fs, io};

use multiaddr::Multiaddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use souk_market::GenesisFault;
use souk_roles::market::regions::NamedRegion;
use souk_vocabulary::objective::Objective;

use crate::contact::ContactError;
use crate::limits::ProviderLimits;
use crate::pricing::Pricing;

/// The version of every file and folder that this souk writes.
pub const FORMAT: u32 = 1;

/// The name of a validator's file.
pub const VALIDATOR_FILE: &str = "validator.json";
/// The name of a provider's file, as programs write it.
pub const PROVIDER_FILE: &str = "provider.json";
/// The name of a provider's file, as people edit it; it comes before [`PROVIDER_FILE`].
pub const PROVIDER_TOML: &str = "provider.toml";
/// The name of a node's key file.
pub const KEY_FILE: &str = "key";
/// The folder of the operator's key, if it lies within the market's folder.
pub const OPERATOR_FOLDER: &str = "operator";

/// The configuration of a validator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ValidatorFile {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The validator's id in the replicated log; none until the market assigns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_id: Option<u64>,
    /// The address it listens on.
    pub listen: Multiaddr,
}

/// The configuration of a provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProviderFile {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The name it registers under.
    pub name: String,
    /// The address it listens on.
    pub listen: Multiaddr,
    /// The device it sells.
    pub device: DeviceChoice,
    /// The region of the device, which buyers can ask for.
    #[serde(default, skip_serializing_if = "is_unstated")]
    pub region: NamedRegion,
    /// The library of ONNX Runtime to use, relative to this file's folder; none for the one that
    /// souk finds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onnxruntime: Option<PathBuf>,
    /// The price in micro-credits per device-second, unless the pricing computes another.
    pub price: u64,
    /// Limits that hold at any price.
    #[serde(default)]
    pub limits: ProviderLimits,
    /// How the price is computed.
    #[serde(default)]
    pub pricing: Pricing,
    /// What a device group minimises: time, or the energy of runs that meet the deadline.
    #[serde(default)]
    pub prefer: Objective,
    /// Limits of its network traffic.
    #[serde(default)]
    pub traffic: Traffic,
    /// Where it runs jobs.
    #[serde(default)]
    pub isolation: Isolation,
    /// A fault to play on jobs, to test what buyers survive; only an emulated device can have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Successful runs before the fault is played.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fault_after: u32,
}

fn is_unstated(region: &NamedRegion) -> bool {
    *region == NamedRegion::default()
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Limits of a node's network traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Where other peers can dial this one for a direct channel.
    pub direct: DirectChoice,
    /// Upload limit for tensors, in bytes per second; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_bytes_per_second: Option<u64>,
    /// Download limit for tensors, in bytes per second; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download_bytes_per_second: Option<u64>,
}

/// Where peers can dial a node for a direct channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectChoice {
    /// At the address it listens on, with a free port; a node that does not listen only dials.
    #[default]
    Auto,
    /// At this address.
    At(SocketAddr),
    /// Nowhere, and it dials no peer: all traffic goes over libp2p.
    Off,
}

/// Where a provider runs the jobs of buyers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Each lease in its own process, behind every wall of the sandbox.
    #[default]
    Process,
    /// The same, but behind only those walls that this system supports.
    Partial,
    /// In the provider's own process: only for buyers that you trust, on your own machine.
    None,
}

impl Isolation {
    /// Returns the strongest isolation that this system supports; a testnet's providers use it.
    #[must_use]
    pub fn strongest_supported() -> Isolation {
        if cfg!(target_os = "linux") {
            Isolation::Partial
        } else {
            Isolation::None
        }
    }
}

/// How a faulty provider behaves in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It gives wrong results and signs for them.
    Lie,
    /// It leaves out every second run of a session, and gives the results of the run before.
    Skip,
    /// It changes one element of one output and signs for it.
    LieOnce,
    /// It begins runs and never ends them.
    Stall,
    /// Its process ends just before a part runs.
    Die,
    /// The job's process crashes just before a part runs.
    Crash,
    /// The job's process allocates memory without end.
    Hoard,
    /// The job's process crashes while it reads a graph to check the owner's limits.
    Choke,
    /// It does not accept the first tensor that a peer offers.
    Deaf,
    /// It accepts no tensor.
    Shut,
}

/// A device to sell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// This machine's CPU, with this number of threads; 0 for all.
    Cpu {
        /// Threads to sell.
        threads: u32,
    },
    /// This machine's CPU, with results that are the same bits on every machine: it promises
    /// `exact-1`, and answers for it with its stake.
    Exact {
        /// Threads to sell; 0 for all.
        threads: u32,
    },
    /// A GPU of this machine.
    Gpu {
        /// A part of its name; empty for the first hardware GPU.
        name: String,
        /// Mebibytes of its memory that jobs can use; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_mib: Option<NonZeroU32>,
    },
    /// An NVIDIA GPU of this machine, through CUDA.
    Cuda {
        /// The number of the GPU, from 0.
        ordinal: u32,
        /// Mebibytes of its memory that jobs can use; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_mib: Option<NonZeroU32>,
    },
    /// A processor that a library of ONNX Runtime supports.
    Onnxruntime {
        /// A part of the execution provider's name; empty for the library's first.
        provider: String,
    },
    /// A processor of the catalogue, emulated on this machine's CPU.
    Emulated {
        /// Its name in the catalogue.
        profile: String,
        /// How it differs from its profile.
        #[serde(flatten)]
        manner: EmulationSettings,
    },
    /// Several devices that are sold as one and share each subgraph.
    Group(Vec<DeviceChoice>),
    /// A model of an inference engine: its answers are sold, and no device.
    Endpoint(EndpointChoice),
    /// A model that souk's own decoder runs: its answers are sold, and no device.
    Serve(ServedModelChoice),
}

/// A model that an inference engine with OpenAI's HTTP API serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointChoice {
    /// The base URL of the engine's API, such as `http://127.0.0.1:8000/v1`.
    pub url: String,
    /// The name by which the engine knows the model, such as `qwen/qwen3-8b`.
    pub model: String,
    /// The file with the key that the engine wants, if it wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The file with the authorities that can vouch for an `https` engine; none for the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Whether the provider does not run the engine itself, but has an account there; buyers see
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resold: bool,
    /// Fields that each request to the engine has too, such as `repeat_penalty = 1.0`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, serde_json::Value>,
}

/// A language model that souk's own decoder runs on this machine's processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedModelChoice {
    /// The model as `souk generate` takes it: a folder, a GGUF file, or `bundled`.
    pub source: PathBuf,
    /// The name under which it is sold, such as `qwen/qwen3-8b`.
    pub model: String,
    /// The positions of each sequence, prompt and answer together; none for the model's own, at
    /// most 4,096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// The threads that compute; none for one on each core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

impl DeviceChoice {
    /// Returns whether it sells the answers of a model by the token, and no device.
    #[must_use]
    pub fn sells_tokens(&self) -> bool {
        matches!(self, DeviceChoice::Endpoint(_) | DeviceChoice::Serve(_))
    }

    /// Returns whether it promises results that are the same bits on every machine. Several devices
    /// that share a subgraph do not.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        match self {
            DeviceChoice::Exact { .. } => true,
            DeviceChoice::Emulated { manner, .. } => manner.exact,
            _ => false,
        }
    }

    /// Returns the model that souk's own decoder runs, if it sells one.
    #[must_use]
    pub fn as_served_model(&self) -> Option<&ServedModelChoice> {
        match self {
            DeviceChoice::Serve(choice) => Some(choice),
            _ => None,
        }
    }

    /// Returns a processor of the catalogue, emulated exactly as its profile states.
    #[must_use]
    pub fn new_emulated(profile: &str) -> DeviceChoice {
        DeviceChoice::Emulated {
            profile: profile.to_owned(),
            manner: EmulationSettings::default(),
        }
    }
}

/// How an emulated device differs from its profile, to test what markets survive. Its ask states
/// the profile in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmulationSettings {
    /// Its true speed, as a factor of the profile's; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// The largest part by which a run takes longer or shorter, from 0 to below 1; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// The part of runs that fail, from 0 to 1; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<f64>,
    /// Decides jitter and failures, run by run since the device was opened; by default a new one is
    /// drawn whenever the device is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether its results are exact, as those of [`DeviceChoice::Exact`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
}

impl EmulationSettings {
    /// Returns the entries that the file states, by name.
    #[must_use]
    pub fn stated_entries(&self) -> Vec<(&'static str, String)> {
        let stated = [
            ("speed", self.speed.map(|it| format!("{it:?}"))),
            ("jitter", self.jitter.map(|it| format!("{it:?}"))),
            ("failures", self.failures.map(|it| format!("{it:?}"))),
            ("seed", self.seed.map(|it| it.to_string())),
            ("exact", self.exact.then(|| "true".to_owned())),
        ];
        let stated = stated.into_iter();
        stated
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist.
    #[error("{path} does not exist")]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot read or write {path}: {source}")]
    File {
        /// The file that could not be used.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The JSON does not parse.
    #[error("{path} is damaged: {source}")]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The TOML does not parse as a provider's file.
    #[error("{path} is not valid: {source}")]
    Written {
        /// The file to correct.
        path: PathBuf,
        /// The parser's error, with its position.
        source: Box<toml::de::Error>,
    },
    /// A limit of 0 leaves jobs nothing.
    #[error("{path}: limits.{limit} is 0, so that no job could run; leave it out for no limit")]
    Nothing {
        /// The file to correct.
        path: PathBuf,
        /// The limit that is 0.
        limit: &'static str,
    },
    /// The prices of spot leases are invalid.
    #[error(
        "{path}: pricing.spot must have at most 4 prices, from 1 to 99 per cent, each with a \
         longer notice and a higher share than the one before"
    )]
    Spot {
        /// The file to correct.
        path: PathBuf,
    },
    /// It sells more leases than the provider can run.
    #[error("{path}: limits.leases is {leases}, at most {most} are possible: each has a core")]
    Leases {
        /// The file to correct.
        path: PathBuf,
        /// The number of leases that it states.
        leases: u32,
        /// The most leases that it may state.
        most: u32,
    },
    /// Another version of souk wrote the file.
    #[error("{path} has format {found}, this souk reads format {wanted}")]
    Format {
        /// The file of the other format.
        path: PathBuf,
        /// The format that it states; 0 if it states none.
        found: u32,
        /// The format that this souk reads.
        wanted: u32,
    },
    /// A device group cannot pursue the objective that the file prefers.
    #[error("{path} prefers {preferred}: devices sold as one can only be fastest or greenest")]
    Preferred {
        /// The file to correct.
        path: PathBuf,
        /// The objective that the file prefers.
        preferred: Objective,
    },
    /// The genesis is not valid for any market.
    #[error("{path} is not a market's: {source}")]
    Genesis {
        /// The file to correct.
        path: PathBuf,
        /// The fault of the genesis.
        source: GenesisFault,
    },
    /// The address of a validator is invalid.
    #[error("{path} has an invalid address of a validator: {source}")]
    Contact {
        /// The file to correct.
        path: PathBuf,
        /// The fault of the address.
        source: ContactError,
    },
}

impl ProviderFile {
    /// Reads `provider.toml` in `folder` or, if there is none, `provider.json`.
    pub fn read_folder(folder: &Path) -> Result<ProviderFile, ConfigError> {
        let path = folder.join(PROVIDER_TOML);
        let json = folder.join(PROVIDER_FILE);
        if !path.exists() && json.exists() {
            return read::<ProviderFile>(&json)?.validate_file(&json);
        }
        if !path.exists() {
            return Err(ConfigError::Missing { path });
        }
        let text = fs::read_to_string(&path).map_err(|source| ConfigError::File {
            path: path.clone(),
            source,
        })?;
        ProviderFile::parse_toml(&path, &text)
    }

    /// Reads the text of a `provider.toml`.
    pub fn parse_toml(path: &Path, text: &str) -> Result<ProviderFile, ConfigError> {
        let file: ProviderFile = toml::from_str(text).map_err(|source| ConfigError::Written {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        match file.format {
            FORMAT => file.validate_file(path),
            found => Err(ConfigError::Format {
                path: path.to_owned(),
                found,
                wanted: FORMAT,
            }),
        }
    }

    /// Returns the path of the ONNX Runtime library that the file names, resolved against the
    /// provider's `folder`.
    #[must_use]
    pub fn library_path(&self, folder: &Path) -> Option<PathBuf> {
        let path = folder.join(self.onnxruntime.as_ref()?);
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    fn validate_file(self, path: &Path) -> Result<ProviderFile, ConfigError> {
        let path = || path.to_owned();
        if let Some(limit) = self.limits.zero_limit() {
            return Err(ConfigError::Nothing {
                path: path(),
                limit,
            });
        }
        if !matches!(self.prefer, Objective::Fastest | Objective::Greenest) {
            return Err(ConfigError::Preferred {
                path: path(),
                preferred: self.prefer,
            });
        }
        if !self.pricing.has_sound_spot() {
            return Err(ConfigError::Spot { path: path() });
        }
        let leases = self.limits.leases;
        match self.limits.leases_over() {
            None => Ok(self),
            Some(most) => Err(ConfigError::Leases {
                path: path(),
                leases,
                most,
            }),
        }
    }
}

/// Reads a file and checks that it has [`FORMAT`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    read_format(path, FORMAT)
}

/// Reads a file and checks that it has the format `wanted`.
pub(super) fn read_format<T: DeserializeOwned>(path: &Path, wanted: u32) -> Result<T, ConfigError> {
    let path_of = || path.to_owned();
    let text = fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ConfigError::Missing { path: path_of() },
        _ => ConfigError::File {
            path: path_of(),
            source,
        },
    })?;
    let damaged = |source| ConfigError::Damaged {
        path: path_of(),
        source,
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
    let found = value
        .get("format")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or(0);
    if found != u64::from(wanted) {
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        return Err(ConfigError::Format {
            path: path_of(),
            found,
            wanted,
        });
    }
    serde_json::from_value(value).map_err(damaged)
}

/// Writes one of this module's files atomically.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), ConfigError> {
    let file = |source| ConfigError::File {
        path: path.to_owned(),
        source,
    };
    let damaged = |source| ConfigError::Damaged {
        path: path.to_owned(),
        source,
    };
    let text = serde_json::to_string_pretty(value).map_err(damaged)?;
    let draft = path.with_extension("json.new");
    fs::write(&draft, text + "\n").map_err(file)?;
    fs::rename(&draft, path).map_err(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider() -> ProviderFile {
        ProviderFile {
            format: FORMAT,
            name: "p".to_owned(),
            listen: "/ip4/127.0.0.1/tcp/0".parse().unwrap(),
            device: DeviceChoice::new_emulated("x"),
            region: "europe-west".parse().unwrap(),
            onnxruntime: None,
            prefer: Objective::Fastest,
            price: 7,
            isolation: Isolation::default(),
            fault: None,
            fault_after: 0,
            limits: ProviderLimits::default(),
            pricing: Pricing::default(),
            traffic: Traffic::default(),
        }
    }

    #[test]
    fn a_file_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROVIDER_FILE);
        write(&path, &provider()).unwrap();
        let back: ProviderFile = read(&path).unwrap();
        assert_eq!(
            (back.name, back.device, back.region, back.price),
            ("p".into(), provider().device, provider().region, 7)
        );
    }

    #[test]
    fn a_gpu_may_be_sold_with_a_part_of_its_memory() {
        let read = |text: &str| toml::from_str::<DeviceChoice>(text);
        let all = DeviceChoice::Gpu {
            name: "x".to_owned(),
            memory_mib: None,
        };
        assert_eq!(read(r#"gpu = { name = "x" }"#).unwrap(), all);
        assert_eq!(
            serde_json::to_string(&all).unwrap(),
            r#"{"gpu":{"name":"x"}}"#
        );
        let part = read("cuda = { ordinal = 1, memory_mib = 512 }").unwrap();
        let text = serde_json::to_string(&part).unwrap();
        assert_eq!(text, r#"{"cuda":{"ordinal":1,"memory_mib":512}}"#);
        assert!(read("cuda = { ordinal = 1, memory_mib = 0 }").is_err());
    }

    #[test]
    fn an_emulated_device_states_how_it_differs_from_its_profile() {
        let read = |text: &str| serde_json::from_str::<DeviceChoice>(text).unwrap();
        let plain = read(r#"{"emulated": {"profile": "x"}}"#);
        assert_eq!(plain, DeviceChoice::new_emulated("x"));
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"emulated":{"profile":"x"}}"#);
        let told = r#"{"emulated":{"profile":"x","speed":0.5,"failures":0.25,"seed":7}}"#;
        let told = read(told);
        let DeviceChoice::Emulated { manner, .. } = &told else {
            panic!("{told:?}");
        };
        let names: Vec<&str> = manner
            .stated_entries()
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(names, ["speed", "failures", "seed"]);
    }

    #[test]
    fn another_format_is_refused_by_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PROVIDER_FILE);
        write(
            &path,
            &ProviderFile {
                format: 9,
                ..provider()
            },
        )
        .unwrap();
        let refused = read::<ProviderFile>(&path).unwrap_err();
        assert!(matches!(refused, ConfigError::Format { found: 9, .. }));
        fs::write(&path, "{}").unwrap();
        let refused = read::<ProviderFile>(&path).unwrap_err();
        assert!(matches!(refused, ConfigError::Format { found: 0, .. }));
    }
}
