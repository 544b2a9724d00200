//! By which way peers are reached: directly, or through a relay where there is no other.
//!
//! A node asks its peers whether it can be reached from where they are (autonat). One that cannot
//! is listening at up to two peers that offer to relay. Who then comes through a relay is asked to
//! try directly, both ends at once (dcutr); when that works the relayed connection is closed. A
//! relay carries what it is told to, within limits, and cannot read it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, autonat, dcutr, identify, relay};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::network::swarm::SwarmTask;

/// Relays a node behind a NAT listens at: one may go away.
const RELAYS_WANTED: usize = 2;

/// Relays that are remembered.
const RELAYS_MAX: usize = 64;

/// How long the direct addresses of a peer are tried before its relayed ones are too.
const DIRECT_PATIENCE: Duration = Duration::from_millis(1_500);

/// How long a peer that was reached through a relay may take until it is reached directly, where
/// this node listens and so can be. Less than opening a stream may take.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(2);

/// Peers that may listen through this node, and circuits at a time.
const RESERVATIONS_MAX: usize = 256;
const CIRCUITS_MAX: usize = 64;
const CIRCUITS_PER_PEER_MAX: usize = 8;

/// What one circuit may carry, in bytes, and how long it may last: a job, and not a day.
const CIRCUIT_BYTES_MAX: u64 = 1 << 30;
const CIRCUIT_LASTS: Duration = Duration::from_secs(60 * 60);

/// Circuits one peer may ask for in a minute.
const CIRCUITS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("sixty is not zero");

/// Whether others can dial this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Nobody has tried yet.
    #[default]
    Unknown,
    /// A peer has dialled it.
    Public,
    /// A peer has tried and failed.
    Private,
}

/// By which way a peer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// From address to address.
    Direct,
    /// Through another peer.
    Relayed,
}

/// What is known of ways.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    pub(crate) reach: Reach,
    /// Open connections of each peer.
    connections: HashMap<PeerId, BTreeMap<ConnectionId, (Route, Multiaddr)>>,
    /// Peers that offer to relay, and where they are.
    relays: BTreeMap<PeerId, Multiaddr>,
    /// Those this node listens at or has asked to.
    asked: HashSet<PeerId>,
    /// Relayed addresses of peers whose direct ones are being tried, and since when.
    second: HashMap<PeerId, (Instant, Vec<Multiaddr>)>,
    /// Peers reached through a relay that may yet be reached directly, and since when.
    upgrading: HashMap<PeerId, Instant>,
}

impl Routes {
    /// How a peer is connected and where, the better way first.
    pub(crate) fn of(&self, peer: &PeerId) -> Option<(Route, &Multiaddr)> {
        let open = self.connections.get(peer)?;
        let direct = open.values().find(|(way, _)| *way == Route::Direct);
        let (way, address) = direct.or_else(|| open.values().next())?;
        Some((*way, address))
    }

    /// How each peer is connected that is.
    pub(crate) fn all(&self) -> Vec<(PeerId, Route)> {
        let peers = self.connections.keys();
        let route = |peer: &PeerId| Some((*peer, self.of(peer)?.0));
        peers.filter_map(route).collect()
    }

    /// The relays this node listens at.
    pub(crate) fn relays(&self) -> impl Iterator<Item = &PeerId> {
        self.asked.iter()
    }
}

/// Whether an address leads through a relay.
pub(crate) fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// A node that relays for others.
pub(crate) fn offer(local: PeerId) -> relay::Behaviour {
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
    /// Divides addresses: the direct ones are for now, relayed ones for when those fail.
    pub(crate) fn direct_first(&mut self, peer: PeerId, known: Vec<Multiaddr>) -> Vec<Multiaddr> {
        let (relayed, direct): (Vec<_>, Vec<_>) = known.into_iter().partition(is_relayed);
        if direct.is_empty() || relayed.is_empty() {
            return [direct, relayed].concat();
        }
        self.routes.second.insert(peer, (Instant::now(), relayed));
        direct
    }

    /// The relayed addresses of a peer, once: its direct ones have failed.
    pub(crate) fn second_routes(&mut self, peer: PeerId) -> Option<Vec<Multiaddr>> {
        self.routes.second.remove(&peer).map(|(_, relayed)| relayed)
    }

    /// A connection is there. Whether it will do: one through a relay may become a better one.
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
                    tracing::info!(%peer, "reached directly; the relayed connection is closed");
                    self.swarm.close_connection(id);
                }
                true
            }
            Route::Relayed if has_direct => true,
            Route::Relayed => {
                tracing::info!(%peer, "reached through a relay");
                let upgrades = self.swarm.listeners().any(|address| !is_relayed(address));
                if upgrades {
                    self.routes.upgrading.insert(peer, Instant::now());
                }
                !upgrades
            }
        }
    }

    /// A connection is gone.
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

    /// A peer says what it is: perhaps one that relays.
    pub(crate) fn on_relay(&mut self, peer: PeerId, info: &identify::Info) {
        if !info.protocols.contains(&relay::HOP_PROTOCOL_NAME) {
            self.routes.relays.remove(&peer);
            return;
        }
        let connected = self
            .routes
            .of(&peer)
            .filter(|(way, _)| *way == Route::Direct);
        let known = self.known.get(&peer).and_then(|known| known.first());
        let address = known.or(connected.map(|(_, address)| address)).cloned();
        if let Some(address) = address.filter(|_| self.routes.relays.len() < RELAYS_MAX) {
            self.routes.relays.insert(peer, address);
        }
    }

    /// Somebody has tried to dial this node.
    pub(crate) fn on_dialled_back(&mut self, event: &autonat::v2::client::Event) {
        let reach = match event.result {
            Ok(()) => Reach::Public,
            Err(_) if self.routes.reach == Reach::Public => Reach::Public,
            Err(_) => Reach::Private,
        };
        if reach != self.routes.reach {
            let (address, by) = (&event.tested_addr, event.server);
            tracing::info!(?reach, %address, %by, "whether others can dial this node");
            self.routes.reach = reach;
        }
    }

    /// The direct way was tried from both ends.
    pub(crate) fn on_upgrade(&mut self, event: dcutr::Event) {
        let peer = event.remote_peer_id;
        if let Err(error) = event.result {
            tracing::info!(%peer, %error, "no direct way; the relay stays");
            self.routes.upgrading.remove(&peer);
            self.answer(peer, &Ok(()));
        }
    }

    /// Each second: other ways where the first did not lead there in time.
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
            self.answer(peer, &Ok(()));
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
                Err(error) => tracing::warn!(%relay, %error, "the relay is no address"),
            }
        }
    }

    /// A relay was lost: it is asked again, or another.
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
            // It was refused before there was an address: whoever it was, all are free again.
            self.routes.asked.clear();
        }
        for relay in lost {
            self.routes.asked.remove(&relay);
        }
    }
}
