//! Connects a node to a market: starts the node's network, and creates a broker, which sends
//! requests to the market's validators.

use souk_folder::config::ConfigError;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::Network;
use souk_network::protocols::market::Members;

use crate::client::broker::{Broker, BrokerError};

/// Why a node could not reach a market.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The market's file is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// This node's network did not start.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
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
    let (_, broker) =
        connect_market(&stranger, market, souk_network::NetworkConfig::default()).await?;
    let members = broker.refresh_validators().await?;
    Ok((broker, members))
}

/// Starts the node's network, and a broker of the validators in the market's file.
pub(crate) async fn connect_market(
    key: &NodeKey,
    market: &MarketFile,
    config: souk_network::NetworkConfig,
) -> Result<(Network, Broker), ReachError> {
    let network = Network::start(key, config).await?;
    let broker = Broker::new(network.clone(), &market.contacts()?).await?;
    Ok((network, broker.in_market(&market.genesis)))
}
