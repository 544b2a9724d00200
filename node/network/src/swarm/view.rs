//! Writes a node's view of its network (its peers, routes and blocked peers) to a file of its
//! folder, so that `souk peers` can read it whether the node runs or not.

use std::path::Path;

use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_folder::config::{self, ConfigError, FORMAT};

use crate::peer_score::Misconduct;
use crate::swarm::SwarmTask;
use crate::swarm::routes::{Reach, Route};

/// The name of the file.
pub const NETWORK_FILE: &str = "network.json";

/// A node's network at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// [`FORMAT`] of the souk that wrote it.
    pub format: u32,
    /// The time of the view, in milliseconds since 1970.
    pub at_ms: u64,
    /// The node's peer id.
    pub peer: String,
    /// The addresses at which it listens, relays included.
    pub listens: Vec<Multiaddr>,
    /// Whether others can dial it.
    pub reach: Reach,
    /// The relays at which it listens or has asked to.
    pub relays: Vec<String>,
    /// The number of providers it has heard of.
    pub providers: usize,
    /// The connected peers.
    pub peers: Vec<PeerView>,
    /// The peers that are kept out.
    pub blocked: Vec<BlockedView>,
}

/// A peer that is connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerView {
    /// The peer's id.
    pub peer: String,
    /// The route of the connection.
    pub way: Route,
    /// The peer's address.
    pub address: Multiaddr,
    /// The points of its faults; at 100 it is kept out.
    pub points: u32,
    /// Its score in gossip, if it takes part; below -100 it is kept out.
    pub score: Option<f64>,
}

/// A peer that is kept out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockedView {
    /// The peer's id.
    pub peer: String,
    /// The end of this time, in milliseconds since 1970.
    pub until_ms: u64,
    /// The peer's last fault.
    pub fault: Misconduct,
}

impl View {
    /// Reads the last view of the node in `home`.
    ///
    /// # Errors
    /// If the node has never run, or the file is damaged.
    pub fn read(home: &Path) -> Result<View, ConfigError> {
        config::read(&home.join(NETWORK_FILE))
    }
}

impl SwarmTask {
    /// Writes this node's view to `file`.
    pub(crate) fn write_view(&self, file: &Path) {
        if let Err(error) = config::write(file, &self.build_view()) {
            tracing::debug!(%error, "the view of the network could not be written");
        }
    }

    fn build_view(&self) -> View {
        let now = unix_ms();
        let gossip = self.swarm.behaviour().gossip.as_ref();
        let seen = |peer: &libp2p::PeerId| {
            let (way, address) = self.routes.peer_route(peer)?;
            Some(PeerView {
                peer: peer.to_string(),
                way,
                address: address.clone(),
                points: self.scores.peer_points(peer, now),
                score: gossip.and_then(|gossip| gossip.peer_score(peer)),
            })
        };
        let blocked = self
            .scores
            .all_blocked()
            .map(|(peer, blocked)| BlockedView {
                peer: peer.to_string(),
                until_ms: blocked.until_ms,
                fault: blocked.fault,
            });
        View {
            format: FORMAT,
            at_ms: now,
            peer: self.swarm.local_peer_id().to_string(),
            listens: self.own_addresses(),
            reach: self.routes.reach,
            relays: self.routes.relay_peers().map(ToString::to_string).collect(),
            providers: self.discovery.acquaintances.valid_profiles(now).len(),
            peers: self.swarm.connected_peers().filter_map(seen).collect(),
            blocked: blocked.collect(),
        }
    }
}
