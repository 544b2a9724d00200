//! How a market is come to by its line alone: a validator says how it began, which is checked
//! against the id in the line.

use souk_market::{Genesis, GenesisFault, MarketId};

use super::broker::{Broker, BrokerError};
use crate::folder::invitation::Invitation;
use crate::folder::key::NodeKey;
use crate::network::{self, Network, NetworkConfig};
use crate::protocols::market::{Answer, Members, Request};

/// Why a market was not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoiningError {
    /// This node's network.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// No validator answers.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Another market is there.
    #[error("the validators there keep market {found}, the line is for {wanted}")]
    Other {
        /// The line's.
        wanted: MarketId,
        /// Theirs.
        found: MarketId,
    },
    /// It is no market.
    #[error("what they say began the market is none: {0}")]
    Genesis(#[from] GenesisFault),
}

/// Asks the validators of a line how the market began, and who its validators are now.
///
/// # Errors
/// When none answers, or what they say is not what the line's id names.
pub async fn fetch(invitation: &Invitation) -> Result<(Genesis, Members), JoiningError> {
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
    let members = broker.in_market(&genesis).refresh().await?;
    Ok((*genesis, members))
}
