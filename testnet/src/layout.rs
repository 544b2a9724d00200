//! The folder of a testnet: who is in it, with which keys, at which ports.
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

use souk_node::folder::config::{
    self, ConfigError, DeviceChoice, FORMAT, Isolation, KEY_FILE, OPERATOR_FOLDER, PROVIDER_FILE,
    ProviderFile, VALIDATOR_FILE, ValidatorFile,
};
use souk_node::folder::contact::{Contact, Multiaddr};
use souk_node::folder::key::{KeyError, NodeKey};
use souk_node::folder::limits::ProviderLimits;
use souk_node::folder::market_file::MarketFile;
use souk_node::folder::pricing::Pricing;
use souk_node::market::{AccountKey, Credits, Founder, Genesis, Millis, Name, Rules};
use souk_node::validator::node::REMOVED_FILE;

use crate::ports::Ports;

/// What the buyer of a testnet starts with, in micro-credits: 100 credits.
pub const BUYER_CREDITS: u64 = 100_000_000;

/// On one machine nobody is away for long: money left open comes back within seconds.
const SETTLE_GRACE: Millis = Millis(5_000);
const NOTE_DEADLINE: Millis = Millis(3_000);
const RULES_NOTICE: Millis = Millis(5_000);

/// Where nodes listen that have a host of their own.
const HOST_PORT: u16 = 4001;

/// What a testnet is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many validators, 1 to 7.
    pub validators: u32,
    /// The providers, one device each.
    pub providers: Vec<ProviderChoice>,
    /// Where providers run jobs.
    pub isolation: Isolation,
    /// The addresses of the nodes, validators first, where each has a host of its own; on loopback
    /// where there are none.
    pub hosts: Vec<Ipv4Addr>,
}

/// A provider of a testnet.
#[derive(Clone, Debug)]
pub struct ProviderChoice {
    /// What it sells.
    pub device: DeviceChoice,
    /// The least price in micro-credits per device-second.
    pub price: u64,
}

/// Why a folder was not laid out or read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file system refused.
    #[error("cannot use the folder {path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No port was free.
    #[error("cannot find a free port on loopback: {0}")]
    Port(io::Error),
    /// A file of it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key of it.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There are not as many hosts as nodes.
    #[error("{hosts} hosts are given for {nodes} nodes")]
    Hosts {
        /// Addresses given.
        hosts: usize,
        /// Nodes to lay out.
        nodes: usize,
    },
    /// The number of validators is out of range.
    #[error("a testnet has 1 to 7 validators, not {0}")]
    Validators(u32),
}

impl Default for Config {
    /// Three validators and four unlike devices, one of them this machine's CPU.
    fn default() -> Config {
        let emulated = |profile: &str, price| ProviderChoice {
            device: DeviceChoice::emulated(profile),
            price,
        };
        Config {
            validators: 3,
            providers: vec![
                ProviderChoice {
                    device: DeviceChoice::Cpu { threads: 0 },
                    price: 40_000,
                },
                emulated("nvidia-h100-sxm", 900_000),
                emulated("amd-epyc-9654", 250_000),
                emulated("apple-m3-max-gpu", 120_000),
            ],
            isolation: Isolation::here(),
            hosts: Vec::new(),
        }
    }
}

impl Config {
    /// Validators and emulated devices at these prices: for what is tried on the market rather than
    /// on a machine's arithmetic.
    #[must_use]
    pub fn emulated(validators: u32, devices: &[(&str, u64)]) -> Config {
        let provider = |(profile, price): &(&str, u64)| ProviderChoice {
            device: DeviceChoice::emulated(profile),
            price: *price,
        };
        Config {
            validators,
            providers: devices.iter().map(provider).collect(),
            ..Config::default()
        }
    }
}

/// The name of the nth validator, from 1.
pub fn validator_name(number: u32) -> String {
    format!("validator-{number}")
}

/// The name of the nth provider, from 1.
pub fn provider_name(number: u32) -> String {
    format!("provider-{number}")
}

/// The names of the nodes laid out in `folder`, validators first; none that the market removed.
pub fn nodes(folder: &Path) -> Vec<String> {
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

/// Lays out a testnet in `folder`, which has none yet. Keep its ports until its nodes run.
pub fn create(folder: &Path, config: &Config) -> Result<Ports, LayoutError> {
    if !(1..=7).contains(&config.validators) {
        return Err(LayoutError::Validators(config.validators));
    }
    make(folder)?;
    let buyer = NodeKey::load_or_create(&folder.join("buyer").join(KEY_FILE))?;
    let operator = NodeKey::load_or_create(&folder.join(OPERATOR_FOLDER).join(KEY_FILE))?;
    let ports = ports(config)?;
    let mut sockets = sockets(config, &ports).into_iter();
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
    let mut genesis = Genesis::new(name("souk testnet"), account(&operator));
    genesis.accounts = vec![(account(&buyer), name("buyer"), Credits(BUYER_CREDITS))];
    genesis.rules = Rules {
        settle_grace: SETTLE_GRACE,
        note_deadline: NOTE_DEADLINE,
        rules_notice: RULES_NOTICE,
        ..Rules::default()
    };
    genesis.validators = validators;
    // Written last: a folder with this file is whole.
    let mut market = MarketFile::new(genesis);
    market.testnet = true;
    market.write(folder)?;
    Ok(ports)
}

/// A port on loopback for each node that has no host of its own.
fn ports(config: &Config) -> Result<Ports, LayoutError> {
    let nodes = config.validators as usize + config.providers.len();
    match config.hosts.len() {
        0 => Ports::take(nodes).map_err(LayoutError::Port),
        hosts if hosts == nodes => Ok(Ports::default()),
        hosts => Err(LayoutError::Hosts { hosts, nodes }),
    }
}

/// Where each node listens.
fn sockets(config: &Config, ports: &Ports) -> Vec<(Ipv4Addr, u16)> {
    let own = config.hosts.iter().map(|host| (*host, HOST_PORT));
    let loopback = ports.numbers().iter();
    own.chain(loopback.map(|port| (Ipv4Addr::LOCALHOST, *port)))
        .collect()
}

fn create_validator(folder: &Path, number: u32, listen: Multiaddr) -> Result<Founder, LayoutError> {
    let home = folder.join(validator_name(number));
    make(&home)?;
    let key = NodeKey::load_or_create(&home.join(KEY_FILE))?;
    let raft_id = u64::from(number);
    let contact = Contact {
        account: key.public(),
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
    let account = account(&key);
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
    make(&home)?;
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
        fault: None,
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

fn account(key: &NodeKey) -> AccountKey {
    AccountKey(key.public())
}

fn make(folder: &Path) -> Result<(), LayoutError> {
    std::fs::create_dir_all(folder).map_err(|source| LayoutError::Folder {
        path: folder.to_owned(),
        source,
    })
}
