//! Provisional.
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::AccountKey;
use souk_roles::lease::{Offer, Opening, Taken};
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;

use super::lease::Moved;
use crate::folder::key;
use crate::network::{Network, wire};

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/lease/6");

/// What people are shown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shown {
    /// Moved.
    pub moved: Vec<Moved>,
    /// Report.
    pub report: Report,
    /// Timeline.
    pub timeline: Timeline,
}

impl Shown {
    /// Reads.
    pub fn read(bytes: &[u8]) -> Shown {
        postcard::from_bytes(bytes).unwrap_or_default()
    }
}

/// Offers.
pub async fn offer(network: &Network, to: AccountKey, offer: Offer) -> Result<Taken, String> {
    let asking = async {
        let peer = key::peer_of(&to.0).map_err(|error| error.to_string())?;
        let opened = network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| error.to_string())?;
        let sent = wire::send(&mut stream, &Opening::Offer(offer)).await;
        sent.map_err(|error| error.to_string())?;
        let taken = wire::receive(&mut stream).await;
        taken.map_err(|error| error.to_string())
    };
    match tokio::time::timeout(std::time::Duration::from_secs(10), asking).await {
        Ok(taken) => taken,
        Err(_) => Err("no answer within 10 s".to_owned()),
    }
}
