//! The folder a command works in: which market it names, and with which key.

use std::path::Path;

use souk_node::buyer::{Buyer, Config, JoinError};
use souk_node::client::reach::ReachError;
use souk_node::content::links::LINKS_FILE;
use souk_node::folder::config::{
    self, ConfigError, KEY_FILE, MARKET_FILE, MarketFile, PROVIDER_FILE, Traffic,
};
use souk_node::folder::key::NodeKey;
use souk_node::network;
use souk_node::protocols::market::Members;
use tempfile::TempDir;

use crate::failure::{Failure, Kind};

/// Where jobs that want devices say so to each other.
const QUEUE_FOLDER: &str = "buyer/queue";

/// A temporary folder, which is gone when this is dropped.
pub fn scratch(prefix: &str) -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.map_err(|error| {
        let cause = format!("cannot make a temporary folder: {error}");
        let hint = "set TMPDIR to a folder that can be written";
        Failure::new(Kind::State, cause, hint)
    })
}

/// Joins the market of `folder` with the key of its buyer.
pub async fn join(folder: &Path) -> Result<Buyer, Failure> {
    join_within(folder, Traffic::default()).await
}

/// The same, within limits of what the network may be used for.
pub async fn join_within(folder: &Path, traffic: Traffic) -> Result<Buyer, Failure> {
    let market: MarketFile = config::read(&folder.join(MARKET_FILE)).map_err(from_config)?;
    let market = market.with_known(folder);
    let key = NodeKey::load(&folder.join("buyer").join(KEY_FILE)).map_err(|error| {
        Failure::new(
            Kind::State,
            error,
            "the folder needs a buyer/key; a new testnet has one",
        )
    })?;
    let links = Some(folder.join("buyer").join(LINKS_FILE));
    let config = Config {
        traffic,
        links,
        queue: Some(folder.join(QUEUE_FOLDER)),
    };
    let buyer = Buyer::join_with(key, &market, config)
        .await
        .map_err(|error| match error {
            JoinError::Reach(error) => from_reach(error),
            JoinError::Direct(_) => Failure::new(Kind::Network, error, ""),
        })?;
    // The file names the first validators; others may have come, and these may have gone.
    let members = buyer.broker().refresh().await;
    remember(folder, &members.map_err(unreachable_market)?);
    Ok(buyer)
}

/// A failure of a node's own network.
pub fn from_network(error: network::StartError) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "the address to listen on is in the node's json file",
    )
}

/// A failure to reach a market.
pub fn from_reach(error: ReachError) -> Failure {
    match error {
        ReachError::Config(error) => from_config(error),
        ReachError::Network(error) => from_network(error),
        ReachError::Broker(error) => unreachable_market(error),
    }
}

/// Keeps the validators that were met for the next command; a folder that can't be written is
/// only slower to find them.
pub fn remember(folder: &Path, members: &Members) {
    if let Err(error) = MarketFile::remember(folder, members.addresses()) {
        tracing::debug!(%error, "the validators are not kept");
    }
}

/// A failure from a node's files.
pub fn from_config(error: ConfigError) -> Failure {
    let hint = match &error {
        ConfigError::Missing { path } if path.ends_with(PROVIDER_FILE) => {
            "make a provider there with `souk provider init`, or give --dir"
        }
        ConfigError::Missing { .. } => "start a market there with `souk testnet up`, or give --dir",
        ConfigError::Format { .. } => {
            "it was written by another version of souk: use that one, or a new folder with --dir"
        }
        ConfigError::Damaged { .. } | ConfigError::Contact { .. } => {
            "restore the file, or begin anew in another folder with --dir"
        }
        ConfigError::Written { .. } => "correct the file at that place",
        ConfigError::Nothing { .. } => "give another number, or none",
        ConfigError::Preferred { .. } => "give `prefer = \"fastest\"` or `prefer = \"greenest\"`",
        ConfigError::Leases { .. } => "sell fewer leases at once, or give them more cores",
        ConfigError::File { .. } => "check the folder's permissions and the space left",
    };
    Failure::new(Kind::State, error, hint)
}

/// A failure to reach any validator.
pub fn unreachable_market(error: impl ToString) -> Failure {
    Failure::new(
        Kind::Network,
        error,
        "is the market up? `souk testnet up` starts the one in --dir",
    )
}
