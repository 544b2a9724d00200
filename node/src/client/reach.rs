//! How a node comes to a market: its own network, and the validators behind it.

use crate::client::broker::{Broker, BrokerError};
use crate::folder::config::ConfigError;
use crate::folder::key::NodeKey;
use crate::folder::market_file::MarketFile;
use crate::network::{self, Network};
use crate::protocols::market::Members;

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

/// A broker for who only looks, or brings what was signed elsewhere: its key means nothing.
///
/// # Errors
/// When no validator answers.
pub async fn look(market: &MarketFile) -> Result<(Broker, Members), ReachError> {
    let stranger = NodeKey::generate();
    let (_, broker) = reach(&stranger, market, network::NetworkConfig::default()).await?;
    let members = broker.refresh().await?;
    Ok((broker, members))
}

/// Starts the node's network, and a broker with the validators that the market's file names.
pub(crate) async fn reach(
    key: &NodeKey,
    market: &MarketFile,
    config: network::NetworkConfig,
) -> Result<(Network, Broker), ReachError> {
    let network = Network::start(key, config).await?;
    let broker = Broker::new(network.clone(), &market.contacts()?).await?;
    Ok((network, broker.in_market(&market.genesis)))
}
