//! Connects a node to a market: starts its network, and a broker of the validators.

use crate::client::broker::{Broker, BrokerError};
use crate::folder::config::ConfigError;
use crate::folder::key::NodeKey;
use crate::folder::market_file::MarketFile;
use crate::network::{self, Network};
use crate::protocols::market::Members;

/// Why a node could not reach a market.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The market's file is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This node's network did not start.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// No validator answers.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Returns a broker that can only read, or submit what another key signed: its own key has no
/// account.
///
/// # Errors
/// When no validator answers.
pub async fn connect_read_only(market: &MarketFile) -> Result<(Broker, Members), ReachError> {
    let stranger = NodeKey::generate();
    let (_, broker) = connect_market(&stranger, market, network::NetworkConfig::default()).await?;
    let members = broker.refresh_validators().await?;
    Ok((broker, members))
}

/// Starts the node's network, and a broker of the validators in the market's file.
pub(crate) async fn connect_market(
    key: &NodeKey,
    market: &MarketFile,
    config: network::NetworkConfig,
) -> Result<(Network, Broker), ReachError> {
    let network = Network::start(key, config).await?;
    let broker = Broker::new(network.clone(), &market.contacts()?).await?;
    Ok((network, broker.in_market(&market.genesis)))
}
