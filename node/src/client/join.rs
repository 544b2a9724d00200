//! Joins a market with nothing but its invitation, a line of text with the market's id and the
//! addresses of validators. A validator sends the market's genesis (its initial state), which must
//! match the id in the invitation.

use souk_folder::invitation::Invitation;
use souk_folder::key::NodeKey;
use souk_market::{Genesis, GenesisFault, MarketId};
use souk_network::protocols::market::{Answer, Members, Request};
use souk_network::{Network, NetworkConfig};

use super::broker::{Broker, BrokerError};

/// Why a market could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoiningError {
    /// This node's network did not start.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// No validator answers.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The validators belong to another market.
    #[error("the validators there keep market {found}, the line is for {wanted}")]
    Other {
        /// The market of the invitation.
        wanted: MarketId,
        /// The market of the validators.
        found: MarketId,
    },
    /// The genesis is not valid.
    #[error("the market's genesis that they sent is not valid: {0}")]
    Genesis(#[from] GenesisFault),
}

/// Asks the validators of an invitation for the market's genesis and its current validators.
///
/// # Errors
/// When none answers, or the genesis does not match the invitation's id.
pub async fn fetch_market(invitation: &Invitation) -> Result<(Genesis, Members), JoiningError> {
    let network = Network::start(&NodeKey::generate(), NetworkConfig::default()).await?;
    let broker = Broker::new(network, &invitation.contacts).await?;
    let Answer::Genesis(genesis) = broker.ask(&Request::Genesis).await? else {
        return Err(BrokerError::Confused.into());
    };
    let (wanted, found) = (invitation.market, genesis.market_id());
    if found != wanted {
        return Err(JoiningError::Other { wanted, found });
    }
    genesis.check()?;
    let members = broker.in_market(&genesis).refresh_validators().await?;
    Ok((*genesis, members))
}
