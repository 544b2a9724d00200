//! How a node comes to a market: its own network, and the validators behind it.

use crate::client::broker::{Broker, BrokerError};
use crate::folder::config::{ConfigError, MarketFile};
use crate::folder::key::NodeKey;
use crate::network::{self, Network};

/// Why a market was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The market's file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This node's network.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// No validator answers.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Starts the node's network, and a broker with the validators that the market's file names.
pub(crate) async fn reach(
    key: &NodeKey,
    market: &MarketFile,
    config: network::NetworkConfig,
) -> Result<(Network, Broker), ReachError> {
    let network = Network::start(key, config).await?;
    let broker = Broker::new(network.clone(), &market.contacts()?).await?;
    Ok((network, broker))
}
