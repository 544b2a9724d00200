//! Finds the folder that a command works in (`--dir` or `--market`), and connects to its market: to
//! read only, or as the buyer whose key the folder holds. It converts the errors on the way into
//! failures with hints.

use std::path::{Path, PathBuf};

use souk_folder::config::{ConfigError, KEY_FILE, PROVIDER_TOML, Traffic};
use souk_folder::key::NodeKey;
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_network::content::links::LINKS_FILE;
use souk_network::protocols::market::Members;
use souk_node::buyer::{Buyer, Config, JoinError, PAST_TIMES_FILE};
use souk_node::client::broker::Broker;
use souk_node::client::reach::{self, ReachError};
use souk_node::market::AccountKey;
use tempfile::TempDir;

use crate::args::GlobalArgs;
use crate::failure::{Failure, Kind};

/// Folder in which jobs announce to each other that they wait for devices.
const QUEUE_FOLDER: &str = "buyer/queue";

/// Creates a temporary folder; dropping it removes the folder.
pub fn create_temp_folder(prefix: &str) -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.map_err(|error| {
        let cause = format!("cannot make a temporary folder: {error}");
        let hint = "set TMPDIR to a folder that can be written";
        Failure::new(Kind::State, cause, hint)
    })
}

/// Returns the folder that a command's options choose.
pub fn chosen_folder(options: &GlobalArgs) -> Result<PathBuf, Failure> {
    match &options.market {
        Some(name) => of_market(&options.dir, name),
        None => Ok(options.dir.clone()),
    }
}

/// Returns the folder of the market called `name`. It must be `dir` itself, or directly below it.
fn of_market(dir: &Path, name: &str) -> Result<PathBuf, Failure> {
    let below = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let below = below.map(|entry| entry.path()).filter(|path| path.is_dir());
    let named = |folder: &PathBuf| {
        let market = MarketFile::read(&folder.join(MARKET_FILE));
        market.is_ok_and(|market| market.genesis.chain.as_str() == name)
    };
    let all = std::iter::once(dir.to_owned()).chain(below);
    let mut found: Vec<PathBuf> = all.filter(named).collect();
    found.sort();
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => {
            let cause = format!("no market in {} is called \"{name}\"", dir.display());
            let hint = "`souk --dir FOLDER market show` shows the name of one";
            Err(Failure::new(Kind::State, cause, hint))
        }
        several => {
            let paths: Vec<String> = several.iter().map(|it| it.display().to_string()).collect();
            let cause = format!("{} are called \"{name}\"", paths.join(" and "));
            Err(Failure::new(
                Kind::State,
                cause,
                "name one of them with --dir",
            ))
        }
    }
}

/// Returns the folder of the account's key and jobs.
pub fn account_folder(folder: &Path) -> PathBuf {
    folder.join("buyer")
}

/// Returns the account whose key is in `folder`, if the key exists and needs no passphrase.
pub fn own_account(folder: &Path) -> Option<AccountKey> {
    let key = NodeKey::load(&account_folder(folder).join(KEY_FILE)).ok()?;
    Some(AccountKey(key.public_key()))
}

/// Creates a folder if it does not exist.
pub fn create_folder(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| {
        let cause = format!("cannot make the folder {}: {error}", folder.display());
        Failure::new(Kind::State, cause, "give another folder with --dir")
    })
}

/// Connects to the market of `folder` for reading, which needs no account.
pub async fn connect_broker(folder: &Path) -> Result<Broker, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let looked = reach::connect_read_only(&market.with_known(folder)).await;
    let (broker, members) = looked.map_err(from_reach)?;
    store_validators(folder, &members);
    Ok(broker)
}

/// Joins the market of `folder` with the key of its buyer, which must exist.
pub async fn join_as_buyer(folder: &Path) -> Result<Buyer, Failure> {
    join_within(folder, Traffic::default()).await
}

/// Joins the market of `folder` with limits of the network traffic.
pub async fn join_within(folder: &Path, traffic: Traffic) -> Result<Buyer, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let market = market.with_known(folder);
    let key = NodeKey::load(&folder.join("buyer").join(KEY_FILE)).map_err(|error| {
        Failure::new(
            Kind::State,
            error,
            "make an account there with `souk account new`; a testnet has one",
        )
    })?;
    let links = Some(folder.join("buyer").join(LINKS_FILE));
    let config = Config {
        traffic,
        links,
        times: Some(folder.join("buyer").join(PAST_TIMES_FILE)),
        queue: Some(folder.join(QUEUE_FOLDER)),
    };
    let buyer = Buyer::join_with(key, &market, config)
        .await
        .map_err(|error| match error {
            JoinError::Reach(error) => from_reach(error),
            JoinError::Direct(_) => Failure::new(Kind::Network, error, ""),
        })?;
    // The file names the first validators; since then, some may have joined and others left.
    let members = buyer.broker().refresh_validators().await;
    store_validators(folder, &members.map_err(unreachable_market)?);
    Ok(buyer)
}

/// Converts a failure of a node's own network.
pub fn from_network(error: souk_network::StartError) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "the address is `listen` in provider.toml or validator.json, in the node's folder",
    )
}

/// Converts a failure to reach a market.
pub fn from_reach(error: ReachError) -> Failure {
    match error {
        ReachError::Config(error) => from_config(error),
        ReachError::Network(error) => from_network(error),
        ReachError::Broker(error) => unreachable_market(error),
    }
}

/// Stores the validators for the next command. In a folder that is not writable, commands only take
/// longer to find them.
pub fn store_validators(folder: &Path, members: &Members) {
    if let Err(error) = MarketFile::store_known(folder, members.addresses()) {
        tracing::debug!(%error, "the validators' addresses could not be stored");
    }
}

/// Converts a failure to read a node's files.
pub fn from_config(error: ConfigError) -> Failure {
    let hint = match &error {
        ConfigError::Missing { path } if path.ends_with(PROVIDER_TOML) => {
            "make a provider there with `souk provider init`, or give --dir"
        }
        ConfigError::Missing { .. } => {
            "bring a market there with `souk market join`, `market create` or `testnet up`, or \
             give --dir"
        }
        ConfigError::Format { .. } => {
            "it was written by another version of souk: use that one, or a new folder with --dir"
        }
        ConfigError::Damaged { .. } | ConfigError::Contact { .. } | ConfigError::Genesis { .. } => {
            "restore the file, or begin anew in another folder with --dir"
        }
        ConfigError::Written { .. } => "correct the file there",
        ConfigError::Nothing { .. } => "give another number, or none",
        ConfigError::Preferred { .. } => "give `prefer = \"fastest\"` or `prefer = \"greenest\"`",
        ConfigError::Spot { .. } => "state them like spot = [{ notice_seconds = 5, percent = 40 }]",
        ConfigError::Leases { .. } => "sell fewer leases at once, or give them more cores",
        ConfigError::File { .. } => "check the folder's permissions and the space left",
    };
    Failure::new(Kind::State, error, hint)
}

/// Converts a failure to reach any validator.
pub fn unreachable_market(error: impl ToString) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "is the market up? `souk validator run` runs a validator, `souk testnet up` a testnet",
    )
}
