//! Chooses the routes to peers: direct ones, or through a relay (a third peer) if there is no
//! other.
//!
//! A node asks its peers whether they can dial it (autonat). If they cannot, it listens at up to
//! two peers that offer to relay. A peer that arrives through a relay then tries to connect
//! directly, from both ends at once (dcutr); if that works, the relayed connection closes. A relay
//! carries bytes within limits and cannot read them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, autonat, dcutr, identify, relay};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::swarm::SwarmTask;

/// Relays at which a node behind a NAT listens: one can fail.
const RELAYS_WANTED: usize = 2;

/// Relays that are remembered.
const RELAYS_MAX: usize = 64;

/// How long a node tries the direct addresses of a peer before it also tries the relayed ones.
const DIRECT_PATIENCE: Duration = Duration::from_millis(1_500);

/// How long a peer reached through a relay can take to connect directly, if this node listens and
/// so can be dialled. It must be less than the time to open a stream.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(2);

/// Peers that can listen through this node, and circuits at a time.
const RESERVATIONS_MAX: usize = 256;
const CIRCUITS_MAX: usize = 64;
const CIRCUITS_PER_PEER_MAX: usize = 8;

/// The most bytes that one circuit can carry, and the longest it can last: enough for a job.
const CIRCUIT_BYTES_MAX: u64 = 1 << 30;
const CIRCUIT_LASTS: Duration = Duration::from_secs(60 * 60);

/// Circuits that one peer can request per minute.
const CIRCUITS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("sixty is not zero");

/// Whether others can dial this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// No peer has tried yet.
    #[default]
    Unknown,
    /// A peer has dialled it.
    Public,
    /// A peer has tried and failed.
    Private,
}

/// The route of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Directly between the two addresses.
    Direct,
    /// Through a relay.
    Relayed,
}

/// A node's knowledge of routes.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) reach: Reach,
    /// Open connections of each peer.
    connections: HashMap<PeerId, BTreeMap<ConnectionId, (Route, Multiaddr)>>,
    /// Peers that offer to relay, and their addresses.
    relays: BTreeMap<PeerId, Multiaddr>,
    /// Relays at which this node listens or has asked to.
    asked: HashSet<PeerId>,
    /// Relayed addresses of peers whose direct ones it is trying, and since when.
    second: HashMap<PeerId, (Instant, Vec<Multiaddr>)>,
    /// Peers reached through a relay that can still connect directly, and since when.
    upgrading: HashMap<PeerId, Instant>,
}

impl Routes {
    /// Returns a peer's route and address, the better route if there are several.
    pub(crate) fn peer_route(&self, peer: &PeerId) -> Option<(Route, &Multiaddr)> {
        let open = self.connections.get(peer)?;
        let direct = open.values().find(|(way, _)| *way == Route::Direct);
        let (way, address) = direct.or_else(|| open.values().next())?;
        Some((*way, address))
    }

    /// Returns the route of each connected peer.
    pub(crate) fn list_routes(&self) -> Vec<(PeerId, Route)> {
        let peers = self.connections.keys();
        let route = |peer: &PeerId| Some((*peer, self.peer_route(peer)?.0));
        peers.filter_map(route).collect()
    }

    /// Returns the relays at which this node listens or has asked to.
    pub(crate) fn relay_peers(&self) -> impl Iterator<Item = &PeerId> {
        self.asked.iter()
    }
}

/// Returns whether an address leads through a relay.
pub(crate) fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Returns the behaviour of a node that relays for others.
pub(crate) fn relay_behaviour(local: PeerId) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: RESERVATIONS_MAX,
        max_circuits: CIRCUITS_MAX,
        max_circuits_per_peer: CIRCUITS_PER_PEER_MAX,
        max_circuit_bytes: CIRCUIT_BYTES_MAX,
        max_circuit_duration: CIRCUIT_LASTS,
        circuit_src_rate_limiters: Vec::new(),
        ..relay::Config::default()
    };
    let config = config.circuit_src_per_peer(CIRCUITS_PER_MINUTE, Duration::from_secs(60));
    let mut offer = relay::Behaviour::new(local, config);
    offer.set_status(Some(relay::Status::Enable));
    offer
}

impl SwarmTask {
    /// Returns the direct addresses, to dial now, and keeps the relayed ones in case those fail.
    pub(crate) fn direct_first(&mut self, peer: PeerId, known: Vec<Multiaddr>) -> Vec<Multiaddr> {
        let (relayed, direct): (Vec<_>, Vec<_>) = known.into_iter().partition(is_relayed);
        if direct.is_empty() || relayed.is_empty() {
            return [direct, relayed].concat();
        }
        self.routes.second.insert(peer, (Instant::now(), relayed));
        direct
    }

    /// Takes the relayed addresses of a peer whose direct ones have failed.
    pub(crate) fn second_routes(&mut self, peer: PeerId) -> Option<Vec<Multiaddr>> {
        self.routes.second.remove(&peer).map(|(_, relayed)| relayed)
    }

    /// Records a new connection and decides whether it suffices: one through a relay can become
    /// direct.
    pub(crate) fn on_route(
        &mut self,
        peer: PeerId,
        id: ConnectionId,
        endpoint: &ConnectedPoint,
    ) -> bool {
        let way = match endpoint.is_relayed() {
            true => Route::Relayed,
            false => Route::Direct,
        };
        let address = endpoint.get_remote_address().clone();
        let open = self.routes.connections.entry(peer).or_default();
        open.insert(id, (way, address));
        let relayed: Vec<ConnectionId> = open
            .iter()
            .filter(|(_, (way, _))| *way == Route::Relayed)
            .map(|(id, _)| *id)
            .collect();
        let has_direct = relayed.len() < open.len();
        match way {
            Route::Direct => {
                self.routes.second.remove(&peer);
                self.routes.upgrading.remove(&peer);
                for id in relayed {
                    tracing::info!(%peer, "connected directly; closing the relayed connection");
                    self.swarm.close_connection(id);
                }
                true
            }
            Route::Relayed if has_direct => true,
            Route::Relayed => {
                tracing::info!(%peer, "connected through a relay");
                let upgrades = self.swarm.listeners().any(|address| !is_relayed(address));
                if upgrades {
                    self.routes.upgrading.insert(peer, Instant::now());
                }
                !upgrades
            }
        }
    }

    /// Removes a closed connection.
    pub(crate) fn on_route_closed(&mut self, peer: PeerId, id: ConnectionId) {
        if let Some(open) = self.routes.connections.get_mut(&peer) {
            open.remove(&id);
            if open.is_empty() {
                self.routes.connections.remove(&peer);
                self.routes.upgrading.remove(&peer);
                self.routes.asked.remove(&peer);
            }
        }
    }

    /// Notes whether a peer that identified itself relays.
    pub(crate) fn on_relay(&mut self, peer: PeerId, info: &identify::Info) {
        if !info.protocols.contains(&relay::HOP_PROTOCOL_NAME) {
            self.routes.relays.remove(&peer);
            return;
        }
        let connected = self
            .routes
            .peer_route(&peer)
            .filter(|(way, _)| *way == Route::Direct);
        let known = self.known.get(&peer).and_then(|known| known.first());
        let address = known.or(connected.map(|(_, address)| address)).cloned();
        if let Some(address) = address.filter(|_| self.routes.relays.len() < RELAYS_MAX) {
            self.routes.relays.insert(peer, address);
        }
    }

    /// Notes that a peer has tried to dial this node.
    pub(crate) fn on_dialled_back(&mut self, event: &autonat::v2::client::Event) {
        let reach = match event.result {
            Ok(()) => Reach::Public,
            Err(_) if self.routes.reach == Reach::Public => Reach::Public,
            Err(_) => Reach::Private,
        };
        if reach != self.routes.reach {
            let (address, by) = (&event.tested_addr, event.server);
            tracing::info!(?reach, %address, %by, "the node's reachability changed");
            self.routes.reach = reach;
        }
    }

    /// Notes the result of a direct connection that both ends tried.
    pub(crate) fn on_upgrade(&mut self, event: dcutr::Event) {
        let peer = event.remote_peer_id;
        if let Err(error) = event.result {
            tracing::info!(%peer, %error, "no direct connection; keeping the relayed one");
            self.routes.upgrading.remove(&peer);
            self.answer_dials(peer, &Ok(()));
        }
    }

    /// Tries other routes, each second, for peers whose first route took too long.
    pub(crate) fn look_for_routes(&mut self) {
        let late = |since: &Instant, patience| since.elapsed() >= patience;
        let second = self.routes.second.iter();
        let peers: Vec<PeerId> = second
            .filter(|(_, (since, _))| late(since, DIRECT_PATIENCE))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in peers {
            if let Some(relayed) = self.second_routes(peer) {
                self.dial_at(peer, relayed);
            }
        }
        let upgrading = self.routes.upgrading.iter();
        let peers: Vec<PeerId> = upgrading
            .filter(|(_, since)| late(since, UPGRADE_PATIENCE))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in peers {
            self.routes.upgrading.remove(&peer);
            self.answer_dials(peer, &Ok(()));
        }
        if self.routes.reach == Reach::Private {
            self.listen_at_relays();
        }
    }

    fn listen_at_relays(&mut self) {
        let free = RELAYS_WANTED.saturating_sub(self.routes.asked.len());
        let wanted: Vec<(PeerId, Multiaddr)> = self
            .routes
            .relays
            .iter()
            .filter(|(relay, _)| !self.routes.asked.contains(relay))
            .filter(|(relay, _)| self.routes.connections.contains_key(relay))
            .take(free)
            .map(|(relay, address)| (*relay, address.clone()))
            .collect();
        for (relay, mut address) in wanted {
            if !matches!(address.iter().last(), Some(Protocol::P2p(_))) {
                address.push(Protocol::P2p(relay));
            }
            address.push(Protocol::P2pCircuit);
            tracing::info!(%relay, "this node cannot be dialled; it listens through a relay");
            match self.swarm.listen_on(address) {
                Ok(_) => drop(self.routes.asked.insert(relay)),
                Err(error) => tracing::warn!(%relay, %error, "listening through the relay failed"),
            }
        }
    }

    /// Asks a lost relay again, or another one.
    pub(crate) fn on_listener_closed(&mut self, addresses: &[Multiaddr]) {
        let relays = addresses.iter().filter(|address| is_relayed(address));
        let lost: Vec<PeerId> = relays
            .filter_map(|address| {
                address.iter().find_map(|part| match part {
                    Protocol::P2p(relay) => Some(relay),
                    _ => None,
                })
            })
            .collect();
        if lost.is_empty() {
            // The relay refused before it had an address, so its name is unknown, and all are free
            // again.
            self.routes.asked.clear();
        }
        for relay in lost {
            self.routes.asked.remove(&relay);
        }
    }
}
