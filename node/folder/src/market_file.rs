//! Reads and writes the files that state the market of a folder: `market.json`, and next to it
//! `validators.json` with the validators that the folder's commands met last.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_market::{Genesis, GenesisFault};

use super::config::{self, ConfigError, FORMAT};
use super::contact::Contact;

/// The name of the market's file.
pub const MARKET_FILE: &str = "market.json";
/// The name of the file with the validators that a folder's commands met last.
pub const KNOWN_FILE: &str = "validators.json";
/// The version of the market's file: 2 since the genesis names the first validators.
pub const MARKET_FORMAT: u32 = 2;

/// A market: its beginning, and the addresses of its validators.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MarketFile {
    /// [`MARKET_FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The beginning of the market; its hash is the market's id.
    pub genesis: Genesis,
    /// Whether it is a testnet, in which buyers accept emulated devices unless they refuse them. In
    /// any other market they must ask for them.
    #[serde(default)]
    pub testnet: bool,
    /// Validators met since then.
    #[serde(skip)]
    known: Vec<Contact>,
}

/// The validators met last: in time, all those of the genesis can be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownFile {
    format: u32,
    /// Their addresses, each ending in its peer id.
    addresses: Vec<String>,
}

impl MarketFile {
    /// Returns the file of a market with this genesis.
    #[must_use]
    pub fn new(genesis: Genesis) -> MarketFile {
        MarketFile {
            format: MARKET_FORMAT,
            genesis,
            testnet: false,
            known: Vec::new(),
        }
    }

    /// Reads a market's file.
    pub fn read(path: &Path) -> Result<MarketFile, ConfigError> {
        let file: MarketFile = config::read_format(path, MARKET_FORMAT)?;
        let path = path.to_owned();
        if let Err(source) = file.genesis.check() {
            return Err(ConfigError::Genesis { path, source });
        }
        // The address of each founder must have the key that the genesis names.
        for (founder, contact) in file.genesis.validators.iter().zip(file.founder_contacts()?) {
            if contact.account != founder.account.0 {
                let source = GenesisFault::Validator(founder.raft_id);
                return Err(ConfigError::Genesis { path, source });
            }
        }
        Ok(file)
    }

    /// Reads `market.json` in `folder` or in the folder above it.
    pub fn read_nearest(folder: &Path) -> Result<MarketFile, ConfigError> {
        MarketFile::read(&MarketFile::file_path(folder))
    }

    /// Returns the path of `market.json`: in `folder`, or in the folder above it.
    #[must_use]
    pub fn file_path(folder: &Path) -> PathBuf {
        let here = folder.join(MARKET_FILE);
        match folder.parent().map(|above| above.join(MARKET_FILE)) {
            Some(above) if !here.exists() && above.exists() => above,
            _ => here,
        }
    }

    /// Writes `market.json` into `folder`.
    pub fn write(&self, folder: &Path) -> Result<(), ConfigError> {
        config::write(&folder.join(MARKET_FILE), self)
    }

    /// Adds the validators met last, from `folder`, for callers that need any of them.
    #[must_use]
    pub fn with_known(mut self, folder: &Path) -> MarketFile {
        // If the file is missing or useless, callers try the market's first validators.
        if let Ok(known) = config::read::<KnownFile>(&folder.join(KNOWN_FILE)) {
            let known = known.addresses.iter();
            self.known = known.flat_map(|text| Contact::parse(text)).collect();
        }
        self
    }

    /// Stores in `folder` the validators that [`MarketFile::with_known`] adds, if they have
    /// changed.
    pub fn store_known(folder: &Path, addresses: Vec<String>) -> Result<(), ConfigError> {
        let known = KnownFile {
            format: FORMAT,
            addresses,
        };
        let path = folder.join(KNOWN_FILE);
        match config::read::<KnownFile>(&path) {
            Ok(before) if before == known => Ok(()),
            _ => config::write(&path, &known),
        }
    }

    /// Returns the contacts of the market's first validators, in their order.
    pub fn founder_contacts(&self) -> Result<Vec<Contact>, ConfigError> {
        let founders = self.genesis.validators.iter();
        let contact = founders.map(|founder| Contact::parse(&founder.address));
        contact
            .collect::<Result<_, _>>()
            .map_err(|source| ConfigError::Contact {
                path: MARKET_FILE.into(),
                source,
            })
    }

    /// Returns the contacts of those, and of all met since.
    pub fn contacts(&self) -> Result<Vec<Contact>, ConfigError> {
        let mut contacts = self.founder_contacts()?;
        for known in &self.known {
            if !contacts.contains(known) {
                contacts.push(known.clone());
            }
        }
        Ok(contacts)
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, Founder, Name};

    use super::*;
    use crate::key::NodeKey;

    fn contact() -> Contact {
        Contact {
            account: NodeKey::generate().public_key(),
            addresses: vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()],
        }
    }

    fn market() -> MarketFile {
        let chain = Name::try_from("m").unwrap();
        MarketFile::new(Genesis::new(chain, AccountKey(contact().account)))
    }

    #[test]
    fn validators_that_were_met_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let met = contact();
        assert!(market().with_known(folder.path()).known.is_empty());
        MarketFile::store_known(folder.path(), vec![met.to_text().unwrap()]).unwrap();
        let known = market().with_known(folder.path()).contacts().unwrap();
        assert_eq!(known, [met]);
    }

    #[test]
    fn a_market_that_makes_no_sense_or_is_older_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut market = market();
        market.write(folder.path()).unwrap();
        MarketFile::read_nearest(folder.path()).unwrap();
        MarketFile::read_nearest(&folder.path().join("provider")).unwrap();
        let founder = Founder {
            raft_id: 0,
            account: market.genesis.operators[0],
            address: String::new(),
        };
        market.genesis.validators.push(founder);
        market.write(folder.path()).unwrap();
        let refused = MarketFile::read_nearest(folder.path()).unwrap_err();
        assert!(refused.to_string().contains("validator 0"), "{refused}");
        market.format = 1;
        market.write(folder.path()).unwrap();
        let refused = MarketFile::read_nearest(folder.path()).unwrap_err();
        let wanted = MARKET_FORMAT;
        assert!(
            matches!(refused, ConfigError::Format { found: 1, wanted: told, .. } if told == wanted)
        );
    }
}
