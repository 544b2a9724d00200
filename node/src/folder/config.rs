//! The files a node reads once, when it starts: what market it belongs to, and what it is there.
//!
//! A node's folder holds `market.json` (or its parent does: the nodes of a testnet share one), its
//! `key`, and `validator.json` or `provider.json`.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::{fs, io};

use libp2p::Multiaddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use souk_emulated::EmulatedConfig;
use souk_market::GenesisFault;
use souk_roles::market::regions::NamedRegion;
use souk_scheduler::planning::Objective;

use crate::folder::contact::ContactError;
use crate::folder::limits::ProviderLimits;
use crate::folder::pricing::Pricing;

/// The version of every file and folder this souk writes.
pub const FORMAT: u32 = 1;

/// The name of a validator's file.
pub const VALIDATOR_FILE: &str = "validator.json";
/// The name of a provider's file, as programs write it.
pub const PROVIDER_FILE: &str = "provider.json";
/// The name of a provider's file, as people edit it; it counts before the other.
pub const PROVIDER_TOML: &str = "provider.toml";
/// The name of a node's key file.
pub const KEY_FILE: &str = "key";
/// The folder of the key that looks after a market, where that lies with the market.
pub const OPERATOR_FOLDER: &str = "operator";

/// What a validator is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ValidatorFile {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// Its id in the replicated log; none until the market has given it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raft_id: Option<u64>,
    /// Where it listens.
    pub listen: Multiaddr,
}

/// What a provider is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProviderFile {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The name it registers under.
    pub name: String,
    /// Where it listens.
    pub listen: Multiaddr,
    /// The device it sells.
    pub device: DeviceChoice,
    /// Where the device is, as buyers ask for it.
    #[serde(default, skip_serializing_if = "is_unstated")]
    pub region: NamedRegion,
    /// The library of ONNX Runtime to use, from the folder of this file on; none for the one that
    /// is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onnxruntime: Option<PathBuf>,
    /// The price in micro-credits per device-second, unless the pricing says otherwise.
    pub price: u64,
    /// What it does not do, whatever is paid.
    #[serde(default)]
    pub limits: ProviderLimits,
    /// How the price comes about.
    #[serde(default)]
    pub pricing: Pricing,
    /// What several devices that are sold as one make small: the time of a run, or its joules
    /// where it ends in time.
    #[serde(default)]
    pub prefer: Objective,
    /// What its network may be used for.
    #[serde(default)]
    pub traffic: Traffic,
    /// Where jobs are run.
    #[serde(default)]
    pub isolation: Isolation,
    /// A fault to play on jobs, for tests of what buyers survive; only an emulated device has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Runs that go well before the fault is played.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fault_after: u32,
}

fn is_unstated(region: &NamedRegion) -> bool {
    *region == NamedRegion::default()
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a node's network may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Where other peers may dial this one for a direct channel.
    pub direct: DirectChoice,
    /// The most that is sent of tensors, in bytes a second; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_bytes_per_second: Option<u64>,
    /// The most that is received of tensors, in bytes a second; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download_bytes_per_second: Option<u64>,
}

/// Where a node is dialled for a direct channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectChoice {
    /// At the address it listens on, with a port that is free; who listens nowhere dials only.
    #[default]
    Auto,
    /// At this address.
    At(SocketAddr),
    /// Nowhere, and it dials nobody: everything goes over libp2p.
    Off,
}

/// Where a provider runs the jobs of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Each lease in a process of its own, behind all the walls that there are.
    #[default]
    Process,
    /// The same behind those walls that this system has.
    Partial,
    /// In the provider's own process: for buyers one trusts, on a machine of one's own.
    None,
}

impl Isolation {
    /// The best that this system has: what a testnet's providers are given.
    #[must_use]
    pub fn here() -> Isolation {
        if cfg!(target_os = "linux") {
            Isolation::Partial
        } else {
            Isolation::None
        }
    }
}

/// How a faulty provider behaves, in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It gives wrong results and signs for them.
    Lie,
    /// Its runs never end.
    Stall,
    /// Its process ends when a part is about to run.
    Die,
    /// The job's process crashes when a part is about to run.
    Crash,
    /// The job's process takes memory without end.
    Hoard,
    /// The job's process crashes as it reads a graph for the owner's limits.
    Choke,
    /// The first tensor that is offered to it is not taken.
    Deaf,
    /// No tensor that is offered to it is taken.
    Shut,
}

/// A device to sell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// This machine's CPU, with so many threads; 0 for all.
    Cpu {
        /// Threads to sell.
        threads: u32,
    },
    /// A GPU of this machine.
    Gpu {
        /// A part of its name; empty for the first that is no software one.
        name: String,
        /// Mebibytes of its memory that may be used; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_mib: Option<NonZeroU32>,
    },
    /// An NVIDIA GPU of this machine, through CUDA.
    Cuda {
        /// Its number, from 0.
        ordinal: u32,
        /// Mebibytes of its memory that may be used; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_mib: Option<NonZeroU32>,
    },
    /// A processor that a library of ONNX Runtime reaches.
    Onnxruntime {
        /// A part of the provider's name; empty for the library's first.
        provider: String,
    },
    /// A processor of the catalogue, emulated on this machine's CPU.
    Emulated {
        /// Its name in the catalogue.
        profile: String,
        /// How it differs from what its profile says.
        #[serde(flatten)]
        manner: Manner,
    },
    /// Several devices that are sold as one and share each subgraph.
    Group(Vec<DeviceChoice>),
}

impl DeviceChoice {
    /// A processor of the catalogue, emulated as its profile says.
    #[must_use]
    pub fn emulated(profile: &str) -> DeviceChoice {
        DeviceChoice::Emulated {
            profile: profile.to_owned(),
            manner: Manner::default(),
        }
    }
}

/// How an emulated device differs from what its profile says, for tests of what markets survive.
/// Its ask states the profile whatever is said here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manner {
    /// How fast it really is, as a factor of what its profile says; 1 if none is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// The largest part by which a run takes longer or shorter, 0 to below 1; 0 if none is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// The part of runs that fail, 0 to 1; 0 if none is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<f64>,
    /// Decides jitter and failures, run by run since the device was opened; if none is said it is
    /// drawn whenever the device is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Manner {
    /// What the emulation is set up with.
    #[must_use]
    pub fn config(&self) -> EmulatedConfig {
        let usual = EmulatedConfig::default();
        EmulatedConfig {
            pace: usual.pace,
            speed: self.speed.unwrap_or(usual.speed),
            jitter: self.jitter.unwrap_or(usual.jitter),
            failures: self.failures.unwrap_or(usual.failures),
            seed: self.seed.unwrap_or_else(drawn),
        }
    }

    /// The entries of a file that say something, by name.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let stated = [
            ("speed", self.speed.map(|it| format!("{it:?}"))),
            ("jitter", self.jitter.map(|it| format!("{it:?}"))),
            ("failures", self.failures.map(|it| format!("{it:?}"))),
            ("seed", self.seed.map(|it| it.to_string())),
        ];
        let stated = stated.into_iter();
        stated
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Another number each time.
fn drawn() -> u64 {
    RandomState::new().hash_one(())
}

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is none.
    #[error("{path} does not exist")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot read or write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{path} is damaged: {source}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// It is not what people may write there.
    #[error("{path} is not right: {source}")]
    Written {
        /// The file.
        path: PathBuf,
        /// What the parser said, and where.
        source: Box<toml::de::Error>,
    },
    /// It leaves jobs nothing.
    #[error("{path}: limits.{limit} is 0, so that no job could run; leave it out for no limit")]
    Nothing {
        /// The file.
        path: PathBuf,
        /// Which limit.
        limit: &'static str,
    },
    /// Its prices of spot leases are none.
    #[error(
        "{path}: pricing.spot has no such prices: 4 at most, from 1 to 99 per cent, each of a \
         longer notice and a higher share than the one before"
    )]
    Spot {
        /// The file.
        path: PathBuf,
    },
    /// It sells more leases than there may be.
    #[error("{path}: limits.leases is {leases}, and may be {most} here: each has a core")]
    Leases {
        /// The file.
        path: PathBuf,
        /// How many it says.
        leases: u32,
        /// How many there may be.
        most: u32,
    },
    /// Another souk wrote it.
    #[error("{path} has format {found}, this souk reads format {wanted}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format it has; 0 where it states none.
        found: u32,
        /// The format it must have.
        wanted: u32,
    },
    /// Its devices are to prefer what several of one owner have no choice in.
    #[error("{path} prefers {preferred}: several devices sold as one are fastest or greenest")]
    Preferred {
        /// The file.
        path: PathBuf,
        /// What it prefers.
        preferred: Objective,
    },
    /// No market begins as it says.
    #[error("{path} is no market's: {source}")]
    Genesis {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GenesisFault,
    },
    /// It names a validator by no address.
    #[error("{path} names a validator wrongly: {source}")]
    Contact {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ContactError,
    },
}

impl ProviderFile {
    /// Reads `provider.toml` in `folder`, or `provider.json`.
    pub fn find(folder: &Path) -> Result<ProviderFile, ConfigError> {
        let path = folder.join(PROVIDER_TOML);
        if !path.exists() {
            let path = folder.join(PROVIDER_FILE);
            return read::<ProviderFile>(&path)?.checked(&path);
        }
        let text = fs::read_to_string(&path).map_err(|source| ConfigError::File {
            path: path.clone(),
            source,
        })?;
        ProviderFile::parse(&path, &text)
    }

    /// Reads the text of a `provider.toml`.
    pub fn parse(path: &Path, text: &str) -> Result<ProviderFile, ConfigError> {
        let file: ProviderFile = toml::from_str(text).map_err(|source| ConfigError::Written {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        match file.format {
            FORMAT => file.checked(path),
            found => Err(ConfigError::Format {
                path: path.to_owned(),
                found,
                wanted: FORMAT,
            }),
        }
    }

    /// Where the library of ONNX Runtime lies that it names, in the provider's folder or elsewhere.
    #[must_use]
    pub fn library(&self, folder: &Path) -> Option<PathBuf> {
        let path = folder.join(self.onnxruntime.as_ref()?);
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    fn checked(self, path: &Path) -> Result<ProviderFile, ConfigError> {
        let path = || path.to_owned();
        if let Some(limit) = self.limits.nothing() {
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

/// Reads one of the files that have [`FORMAT`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    read_format(path, FORMAT)
}

/// Reads a file that states its format.
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

/// Writes one of the files of this module, whole or not at all.
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
            device: DeviceChoice::emulated("x"),
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
    fn an_emulated_device_is_as_its_profile_says_unless_the_file_does() {
        let read = |text: &str| serde_json::from_str::<DeviceChoice>(text).unwrap();
        let plain = read(r#"{"emulated": {"profile": "x"}}"#);
        assert_eq!(plain, DeviceChoice::emulated("x"));
        let text = serde_json::to_string(&plain).unwrap();
        assert_eq!(text, r#"{"emulated":{"profile":"x"}}"#);
        let EmulatedConfig {
            speed,
            jitter,
            failures,
            ..
        } = Manner::default().config();
        assert_eq!((speed, jitter, failures), (1.0, 0.0, 0.0));
        let told = r#"{"emulated":{"profile":"x","speed":0.5,"failures":0.25,"seed":7}}"#;
        let told = read(told);
        let DeviceChoice::Emulated { manner, .. } = &told else {
            panic!("{told:?}");
        };
        assert_eq!(
            manner.config(),
            EmulatedConfig {
                speed: 0.5,
                failures: 0.25,
                seed: 7,
                ..EmulatedConfig::default()
            }
        );
        let names: Vec<&str> = manner.entries().iter().map(|(name, _)| *name).collect();
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
