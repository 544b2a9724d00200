//! Creates and reads the folder of a testnet, which holds its nodes with their keys and ports.
//!
//! ```text
//! DIR/market.json            the market: how it began
//! DIR/buyer/key              the account `souk submit` spends from
//! DIR/operator/key           the account that makes credits and names validators
//! DIR/validator-1/…          validator.json, key, log and state, log.txt
//! DIR/provider-1/…           provider.json, key, tensors, log.txt
//! DIR/testnet.pid            the supervisor, while it runs
//! DIR/lock                   held by the supervisor
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use souk_folder::config::{
    self, ConfigError, DeviceChoice, FORMAT, Fault, Isolation, KEY_FILE, OPERATOR_FOLDER,
    PROVIDER_FILE, ProviderFile, VALIDATOR_FILE, ValidatorFile,
};
use souk_folder::contact::{Contact, Multiaddr};
use souk_folder::key::{KeyError, NodeKey};
use souk_folder::limits::ProviderLimits;
use souk_folder::market_file::MarketFile;
use souk_folder::pricing::Pricing;
use souk_node::market::{AccountKey, Credits, Founder, Genesis, Millis, Name, Rules};
use souk_node::validator::node::REMOVED_FILE;

use crate::ports::Ports;

/// Initial credits of a testnet's buyer, in micro-credits: 100 credits.
pub const BUYER_CREDITS: u64 = 100_000_000;

/// Largest number of validators, each of which is a process.
pub const VALIDATORS_MAX: u32 = 15;

/// The time after which open money returns. It is short, because parties on one machine are never
/// away for long.
const SETTLE_GRACE: Millis = Millis(5_000);
const NOTE_DEADLINE: Millis = Millis(3_000);
const RULES_NOTICE: Millis = Millis(5_000);

/// The port of nodes with a host of their own.
const HOST_PORT: u16 = 4001;

/// Configuration of a testnet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of validators; it must be from 1 to [`VALIDATORS_MAX`].
    pub validators: u32,
    /// The providers, one device each.
    pub providers: Vec<ProviderChoice>,
    /// Where providers run jobs.
    pub isolation: Isolation,
    /// The addresses of the nodes, validators first, if each has a host of its own. There must be
    /// one for each node; if there are none, all nodes use loopback.
    pub hosts: Vec<Ipv4Addr>,
}

/// A provider of a testnet.
#[derive(Clone, Debug)]
pub struct ProviderChoice {
    /// The device that the provider sells.
    pub device: DeviceChoice,
    /// Minimum price in micro-credits per device-second.
    pub price: u64,
    /// The fault that the provider plays, if any.
    pub fault: Option<Fault>,
}

/// Why a folder could not be laid out or read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file system refused.
    #[error("cannot use the folder {path}: {source}")]
    Folder {
        /// The folder or file that failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No port was free.
    #[error("cannot find a free port on loopback: {0}")]
    Port(io::Error),
    /// A file in the folder failed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key in the folder failed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The numbers of hosts and nodes differ.
    #[error("{hosts} hosts are given for {nodes} nodes")]
    Hosts {
        /// Number of addresses.
        hosts: usize,
        /// Number of nodes to lay out.
        nodes: usize,
    },
    /// The number of validators is out of range.
    #[error("a testnet has 1 to {VALIDATORS_MAX} validators, not {0}")]
    Validators(u32),
}

impl Default for Config {
    /// Returns three validators and four different devices, one of them this machine's CPU.
    fn default() -> Config {
        let emulated = |profile: &str, price| ProviderChoice {
            device: DeviceChoice::new_emulated(profile),
            price,
            fault: None,
        };
        Config {
            validators: 3,
            providers: vec![
                ProviderChoice {
                    device: DeviceChoice::Cpu { threads: 0 },
                    price: 40_000,
                    fault: None,
                },
                emulated("nvidia-h100-sxm", 900_000),
                emulated("amd-epyc-9654", 250_000),
                emulated("apple-m3-max-gpu", 120_000),
            ],
            isolation: Isolation::strongest_supported(),
            hosts: Vec::new(),
        }
    }
}

impl Config {
    /// Returns validators and emulated devices at these prices, for tests of the market rather than
    /// of a machine's arithmetic.
    #[must_use]
    pub fn for_emulated_devices(validators: u32, devices: &[(&str, u64)]) -> Config {
        let provider = |(profile, price): &(&str, u64)| ProviderChoice {
            device: DeviceChoice::new_emulated(profile),
            price: *price,
            fault: None,
        };
        Config {
            validators,
            providers: devices.iter().map(provider).collect(),
            ..Config::default()
        }
    }
}

/// Returns the name of the nth validator, from 1.
pub fn validator_name(number: u32) -> String {
    format!("validator-{number}")
}

/// Returns the name of the nth provider, from 1.
pub fn provider_name(number: u32) -> String {
    format!("provider-{number}")
}

/// Returns the names of the nodes laid out in `folder`, validators first, without those that the
/// market removed.
pub fn node_names(folder: &Path) -> Vec<String> {
    let named = |file: &'static str, name: fn(u32) -> String| {
        (1..)
            .map(name)
            .take_while(move |name| folder.join(name).join(file).exists())
            .filter(|name| !folder.join(name).join(REMOVED_FILE).exists())
    };
    named(VALIDATOR_FILE, validator_name)
        .chain(named(PROVIDER_FILE, provider_name))
        .collect()
}

/// Lays out a testnet in `folder`, which must have none yet. You must keep the returned ports until
/// the nodes run, because other processes can take them once they are dropped.
pub fn create_testnet(folder: &Path, config: &Config) -> Result<Ports, LayoutError> {
    if !(1..=VALIDATORS_MAX).contains(&config.validators) {
        return Err(LayoutError::Validators(config.validators));
    }
    create_folder(folder)?;
    let buyer = NodeKey::load_or_create(&folder.join("buyer").join(KEY_FILE))?;
    let operator = NodeKey::load_or_create(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let ports = reserve_ports(config)?;
    let mut sockets = node_sockets(config, &ports).into_iter();
    let mut listen = || {
        let (host, port) = sockets.next().expect("one for each node");
        format!("/ip4/{host}/tcp/{port}")
            .parse()
            .expect("an address and a port are well formed")
    };
    let mut validators = Vec::new();
    for number in 1..=config.validators {
        validators.push(create_validator(folder, number, listen())?);
    }
    for (number, choice) in (1..).zip(&config.providers) {
        create_provider(folder, number, choice, listen(), config.isolation)?;
    }
    let mut genesis = Genesis::new(name("souk testnet"), account_key(&operator));
    genesis.accounts = vec![(account_key(&buyer), name("buyer"), Credits(BUYER_CREDITS))];
    genesis.rules = Rules {
        settle_grace: SETTLE_GRACE,
        note_deadline: NOTE_DEADLINE,
        rules_notice: RULES_NOTICE,
        ..Rules::default()
    };
    genesis.validators = validators;
    // Written last, so that a folder with this file is complete.
    let mut market = MarketFile::new(genesis);
    market.testnet = true;
    market.write(folder)?;
    Ok(ports)
}

/// Reserves a loopback port for each node without a host of its own.
fn reserve_ports(config: &Config) -> Result<Ports, LayoutError> {
    let nodes = config.validators as usize + config.providers.len();
    match config.hosts.len() {
        0 => Ports::reserve_free(nodes).map_err(LayoutError::Port),
        hosts if hosts == nodes => Ok(Ports::default()),
        hosts => Err(LayoutError::Hosts { hosts, nodes }),
    }
}

/// Returns the socket of each node.
fn node_sockets(config: &Config, ports: &Ports) -> Vec<(Ipv4Addr, u16)> {
    let own = config.hosts.iter().map(|host| (*host, HOST_PORT));
    let loopback = ports.numbers().iter();
    own.chain(loopback.map(|port| (Ipv4Addr::LOCALHOST, *port)))
        .collect()
}

fn create_validator(folder: &Path, number: u32, listen: Multiaddr) -> Result<Founder, LayoutError> {
    let home = folder.join(validator_name(number));
    create_folder(&home)?;
    let key = NodeKey::load_or_create(&home.join(KEY_FILE))?;
    let raft_id = u64::from(number);
    let contact = Contact {
        account: key.public_key(),
        addresses: vec![listen.clone()],
    };
    let file = ValidatorFile {
        format: FORMAT,
        raft_id: Some(raft_id),
        listen,
    };
    config::write(&home.join(VALIDATOR_FILE), &file)?;
    let address = contact
        .to_text()
        .expect("a new key and an address make a contact");
    let account = account_key(&key);
    Ok(Founder {
        raft_id,
        account,
        address,
    })
}

fn create_provider(
    folder: &Path,
    number: u32,
    choice: &ProviderChoice,
    listen: Multiaddr,
    isolation: Isolation,
) -> Result<(), LayoutError> {
    let home = folder.join(provider_name(number));
    create_folder(&home)?;
    NodeKey::load_or_create(&home.join(KEY_FILE))?;
    let file = ProviderFile {
        format: FORMAT,
        name: provider_name(number),
        listen,
        device: choice.device.clone(),
        region: Default::default(),
        onnxruntime: None,
        prefer: Default::default(),
        price: choice.price,
        isolation,
        fault: choice.fault,
        fault_after: 0,
        limits: ProviderLimits::default(),
        pricing: Pricing::default(),
        traffic: Default::default(),
    };
    Ok(config::write(&home.join(PROVIDER_FILE), &file)?)
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("the names of a testnet are short")
}

fn account_key(key: &NodeKey) -> AccountKey {
    AccountKey(key.public_key())
}

fn create_folder(folder: &Path) -> Result<(), LayoutError> {
    std::fs::create_dir_all(folder).map_err(|source| LayoutError::Folder {
        path: folder.to_owned(),
        source,
    })
}
