//! Runs the task that owns the swarm (libp2p's connections of a node): it connects and dials,
//! remembers the addresses of peers, and keeps out those that misbehave. The handle `Network` sends
//! it commands.

mod dialling;
mod discovery;
pub mod routes;
pub mod view;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder};
use libp2p::{
    allow_block_list, autonat, connection_limits, dcutr, gossipsub, identify, kad, mdns,
    memory_connection_limits, noise, ping, relay,
};
use souk_folder::clock::unix_ms;
use souk_folder::contact::{self, Contact};
use souk_folder::key::NodeKey;
use tokio::sync::{mpsc, oneshot};

use super::acquaintances::Acquaintances;
use super::streams::Streams;
use super::transport::{self, Multiplexing};
use super::{NetworkConfig, Options, StartError, gossip};
use crate::address_limits::{AddressLimits, ip_of};
use crate::peer_score::{Misconduct, PeerScores};
use crate::profile::Profile;
use crate::swarm::discovery::Discovery;
use crate::swarm::routes::{Route, Routes};
use crate::swarm::view::NETWORK_FILE;

/// A connection without streams is closed after this time; a job's pauses are shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection can take until both ends have agreed on everything. A node that asks a
/// peer to dial it back waits twice as long, so it also learns of a dial that got no answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Peers whose addresses the node remembers; it will ignore those of further peers.
const PEERS_MAX: usize = 4096;

/// Connections at a time: a validator has one with each of 1,000 providers and their buyers.
/// Incoming strangers never take the last quarter, so this node's own dials find room.
const CONNECTIONS_MAX: u32 = 2048;
const CONNECTIONS_INCOMING_MAX: u32 = 1536;
const CONNECTIONS_PER_PEER_MAX: u32 = 4;
const CONNECTIONS_PENDING_MAX: u32 = 128;

/// The node refuses new connections while this process holds so much of the machine's memory: paid
/// work continues, and the system need not kill the process.
const MEMORY_SHARE_MAX: f64 = 0.9;

/// How often a node pings the other end of a connection, and how long the answer can take: it
/// notices a vanished peer within their sum.
const PING_PERIOD: Duration = Duration::from_secs(4);
const PING_TIMEOUT: Duration = Duration::from_secs(6);

/// How often the task does its periodic work, for example checks of connections and writes of
/// files.
const TICK: Duration = Duration::from_secs(1);

/// The version of the network as a whole; each protocol has its own version too.
pub(super) const VERSION: &str = "/souk/1";

/// Why a peer could not be reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialFailure {
    /// No address of the peer is known.
    #[error("its address is not known")]
    NoAddress,
    /// Each address failed.
    #[error("{0}")]
    Refused(String),
    /// The peer runs another version of souk.
    #[error(
        "it speaks {theirs} and this node {}: one of the two must be updated",
        VERSION
    )]
    Version {
        /// The version that the peer states.
        theirs: String,
    },
    /// The peer misbehaved and is kept out.
    #[error("it is blocked for {seconds} s more because of what it sent ({fault:?})")]
    BlockedPeer {
        /// The seconds until it can come again.
        seconds: u64,
        /// The peer's last fault.
        fault: Misconduct,
    },
}

/// The requests that the rest of the node sends to the swarm.
pub(super) enum Command {
    Learn {
        peer: PeerId,
        addresses: Vec<Multiaddr>,
    },
    Connect {
        peer: PeerId,
        reply: oneshot::Sender<Result<(), DialFailure>>,
    },
    /// Publish this profile.
    Publish(Vec<u8>),
    /// A peer misbehaved.
    Misconduct {
        peer: PeerId,
        fault: Misconduct,
    },
    /// Return the known profiles of providers.
    Profiles(oneshot::Sender<Vec<Profile>>),
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    /// Return the connected peers, with their routes.
    Routes(oneshot::Sender<Vec<(PeerId, Route)>>),
    /// Return the address of a peer that is connected directly.
    Whereabouts {
        peer: PeerId,
        reply: oneshot::Sender<Option<IpAddr>>,
    },
}

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    blocked: allow_block_list::Behaviour<allow_block_list::BlockedPeers>,
    limits: connection_limits::Behaviour,
    memory: memory_connection_limits::Behaviour,
    address_limits: AddressLimits,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    streams: Streams,
    /// Only permanent nodes take part in these two.
    pub(super) routing: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
    pub(super) gossip: Toggle<gossipsub::Behaviour>,
    /// Whether others can dial this node, and answers to the same question of others.
    reach: Toggle<autonat::v2::client::Behaviour>,
    dial_back: Toggle<autonat::v2::server::Behaviour>,
    /// Connections through relays, their upgrade to direct ones, and relaying for others.
    through: relay::client::Behaviour,
    upgrade: Toggle<dcutr::Behaviour>,
    offer: Toggle<relay::Behaviour>,
    nearby: Toggle<mdns::tokio::Behaviour>,
}

/// The swarm, and the node's knowledge of its peers.
pub(super) struct SwarmTask {
    pub(super) swarm: Swarm<Behaviour>,
    inbox: mpsc::Receiver<Command>,
    pub(super) known: HashMap<PeerId, Vec<Multiaddr>>,
    dialling: HashMap<PeerId, Vec<oneshot::Sender<Result<(), DialFailure>>>>,
    dials: HashMap<ConnectionId, PeerId>,
    /// Peers of another version, with that version.
    unlike: HashMap<PeerId, String>,
    pub(super) discovery: Discovery,
    pub(super) scores: PeerScores,
    pub(super) routes: Routes,
    /// The file for this node's view of the network.
    view_file: Option<PathBuf>,
    options: Options,
}

impl SwarmTask {
    pub(super) fn new(
        key: &NodeKey,
        config: &NetworkConfig,
        inbox: mpsc::Receiver<Command>,
    ) -> Result<SwarmTask, StartError> {
        let stays = config.peers_file.is_some();
        let (acquaintances, contacts) = Acquaintances::load_or_default(config.peers_file.clone());
        let transport = transport::over_tcp(&key.to_libp2p(), config.options.pieces)?;
        let swarm = SwarmBuilder::with_existing_identity(key.to_libp2p())
            .with_tokio()
            .with_other_transport(|_| transport)
            .unwrap_or_else(|never| match never {})
            .with_relay_client(noise::Config::new, || Multiplexing(config.options.pieces))?
            .with_behaviour(|pair, through| new_behaviour(pair, through, stays, config.options))
            .unwrap_or_else(|never| match never {})
            .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_TIMEOUT))
            .with_connection_timeout(CONNECT_TIMEOUT)
            .build();
        let (known, dialling, dials, unlike) = Default::default();
        let discovery = Discovery::new(acquaintances);
        let mut task = SwarmTask {
            swarm,
            inbox,
            known,
            dialling,
            dials,
            unlike,
            discovery,
            scores: PeerScores::default(),
            routes: Routes::default(),
            view_file: config
                .peers_file
                .as_ref()
                .map(|file| file.with_file_name(NETWORK_FILE)),
            options: config.options,
        };
        for contact in contacts {
            task.add_contact(&contact);
        }
        Ok(task)
    }

    pub(super) fn streams(&self) -> Streams {
        self.swarm.behaviour().streams.clone()
    }

    /// Listens on `address` and waits until the system has assigned the port.
    pub(super) async fn listen_on(&mut self, address: Multiaddr) -> Result<(), StartError> {
        let failed = |address: &Multiaddr, cause| {
            let address = address.clone();
            StartError::Listen { address, cause }
        };
        let listened = self.swarm.listen_on(address.clone());
        listened.map_err(|error| failed(&address, std::io::Error::other(error)))?;
        loop {
            match self.swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { address, .. } => {
                    self.on_listening(address);
                    return Ok(());
                }
                SwarmEvent::ListenerError { error, .. } => return Err(failed(&address, error)),
                SwarmEvent::ListenerClosed {
                    reason: Err(error), ..
                } => {
                    return Err(failed(&address, error));
                }
                _ => {}
            }
        }
    }

    /// Serves until every [`super::Network`] is dropped.
    pub(super) async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => self.on_tick(),
                command = self.inbox.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => {
                        self.discovery.acquaintances.save_addresses(&self.known);
                        self.save_view();
                        return;
                    }
                },
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        // The send fails only if the caller no longer waits.
        match command {
            Command::Learn { peer, addresses } => {
                self.make_room(peer);
                self.add_addresses(peer, addresses);
            }
            Command::Connect { peer, reply } => self.connect_peer(peer, reply),
            Command::Publish(bytes) => self.publish_profile(bytes),
            Command::Misconduct { peer, fault } => self.on_fault(peer, fault),
            Command::Profiles(reply) => {
                let _ = reply.send(self.discovery.acquaintances.valid_profiles(unix_ms()));
            }
            Command::Addresses(reply) => {
                let _ = reply.send(self.own_addresses());
            }
            Command::Routes(reply) => {
                let _ = reply.send(self.routes.list_routes());
            }
            Command::Whereabouts { peer, reply } => {
                let address = self.routes.peer_route(&peer).map(|(_, address)| address);
                let _ = reply.send(address.and_then(ip_of));
            }
        }
    }

    /// Counts a fault; a peer with too many is disconnected and kept out for a while.
    pub(super) fn on_fault(&mut self, peer: PeerId, fault: Misconduct) {
        let now = unix_ms();
        let verdict = self.scores.on_fault(peer, fault, now);
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut() {
            let points = self.scores.peer_points(&peer, now);
            gossip.set_application_score(&peer, -f64::from(points));
        }
        if let Some(blocked) = verdict {
            let seconds = (blocked.until_ms - now) / 1_000;
            tracing::warn!(%peer, ?fault, seconds, "blocked a misbehaving peer");
            self.swarm.behaviour_mut().blocked.block_peer(peer);
        }
    }

    /// Readmits peers whose time is over, and counts the faults that gossip found.
    pub(super) fn keep_order(&mut self) {
        for peer in self.scores.release_expired(unix_ms()) {
            tracing::info!(%peer, "unblocked a peer");
            self.swarm.behaviour_mut().blocked.unblock_peer(peer);
        }
        let Some(gossip) = self.swarm.behaviour().gossip.as_ref() else {
            return;
        };
        for peer in gossip::low_score_peers(gossip) {
            self.on_fault(peer, Misconduct::Gossip);
        }
    }

    /// Remembers the addresses of a peer, to dial it later.
    pub(super) fn add_contact(&mut self, contact: &Contact) {
        if let Ok(peer) = contact.peer_id() {
            self.add_addresses(peer, contact.addresses.clone());
        }
    }

    /// Forgets a disconnected peer to make room for one that this node itself deals with: hearsay
    /// about many that do not exist must not crowd out one that does.
    fn make_room(&mut self, peer: PeerId) {
        if self.known.len() < PEERS_MAX || self.known.contains_key(&peer) {
            return;
        }
        let is_away = |known: &&PeerId| !self.swarm.is_connected(known);
        if let Some(away) = self.known.keys().find(is_away).copied() {
            self.known.remove(&away);
        }
    }

    pub(super) fn add_addresses(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let full = self.known.len() >= PEERS_MAX && !self.known.contains_key(&peer);
        if full || peer == *self.swarm.local_peer_id() {
            return;
        }
        let addresses = contact::limit_addresses(addresses);
        if self.known.get(&peer) == Some(&addresses) {
            return;
        }
        self.discovery.unsaved = true;
        if let Some(routing) = self.swarm.behaviour_mut().routing.as_mut() {
            for address in &addresses {
                routing.add_address(&peer, address.clone());
            }
        }
        self.known.insert(peer, addresses);
    }

    fn connect_peer(&mut self, peer: PeerId, reply: oneshot::Sender<Result<(), DialFailure>>) {
        if let Some(theirs) = self.unlike.get(&peer).cloned() {
            let _ = reply.send(Err(DialFailure::Version { theirs }));
            return;
        }
        if let Some(blocked) = self.scores.blocked_peer(&peer) {
            let seconds = blocked.until_ms.saturating_sub(unix_ms()).div_ceil(1_000);
            let fault = blocked.fault;
            let _ = reply.send(Err(DialFailure::BlockedPeer { seconds, fault }));
            return;
        }
        if self.swarm.is_connected(&peer) {
            let _ = reply.send(Ok(()));
            return;
        }
        if let Some(waiting) = self.dialling.get_mut(&peer) {
            waiting.push(reply);
            return;
        }
        self.dialling.insert(peer, vec![reply]);
        self.dial_peer(peer);
    }

    /// Dials a peer whose address is known; otherwise first asks the network for the address.
    pub(super) fn dial_peer(&mut self, peer: PeerId) {
        let Some(addresses) = self.known.get(&peer).filter(|known| !known.is_empty()) else {
            if !self.ask_for(peer) {
                self.answer_dials(peer, &Err(DialFailure::NoAddress));
            }
            return;
        };
        let addresses = addresses.clone();
        let first = self.direct_first(peer, addresses);
        self.dial_at(peer, first);
    }

    /// Dials a peer at these addresses.
    pub(super) fn dial_at(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let local = addresses.iter().any(is_loopback);
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::Always)
            .addresses(addresses);
        // Dials from the port this node listens on, so that a NAT keeps a way back to it. On
        // loopback both ends of a connection would then be equal, which the system refuses.
        let options = match local {
            true => options.allocate_new_port().build(),
            false => options.build(),
        };
        self.dials.insert(options.connection_id(), peer);
        let id = options.connection_id();
        if let Err(error) = self.swarm.dial(options) {
            self.on_dial_failed(id, &error);
        }
    }

    /// Returns the addresses that reach this node: those it listens on, itself and at relays, and
    /// those that others observed.
    pub(super) fn own_addresses(&self) -> Vec<Multiaddr> {
        let mut addresses: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        for address in self.swarm.external_addresses() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    fn on_listening(&mut self, address: Multiaddr) {
        if self.options.relays && !routes::is_relayed(&address) {
            // A node that relays must state that it can be reached, so that peers come to it.
            self.swarm.add_external_address(address);
        }
    }

    pub(super) fn save_view(&self) {
        if let Some(file) = &self.view_file {
            self.write_view(file);
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                tracing::debug!(peer = %peer_id, "connected");
                self.dials.remove(&connection_id);
                if self.on_route(peer_id, connection_id, &endpoint) {
                    self.answer_dials(peer_id, &Ok(()));
                }
            }
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(address),
            SwarmEvent::ListenerClosed { addresses, .. } => self.on_listener_closed(&addresses),
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                error,
                ..
            } => {
                self.on_dial_failed(connection_id, &error);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                num_established,
                ..
            } => {
                self.on_route_closed(peer_id, connection_id);
                if num_established == 0 {
                    tracing::debug!(peer = %peer_id, "disconnected");
                }
            }
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            _ => {}
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Ping(ping::Event {
                peer,
                connection,
                result: Err(failure),
            }) => {
                // Closing the connection lets a protocol that waits on the peer learn this now, not
                // at its own timeout.
                tracing::debug!(%peer, %failure, "a ping failed; the connection is closed");
                self.swarm.close_connection(connection);
            }
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                self.on_identified(peer_id, info);
            }
            BehaviourEvent::Routing(event) => self.on_routing(event),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Reach(event) => self.on_dialled_back(&event),
            BehaviourEvent::Upgrade(event) => self.on_upgrade(event),
            BehaviourEvent::Nearby(mdns::Event::Discovered(found)) => self.on_nearby(found),
            _ => {}
        }
    }

    fn on_identified(&mut self, peer: PeerId, info: identify::Info) {
        if info.protocol_version != VERSION {
            let theirs = info.protocol_version;
            tracing::warn!(%peer, theirs, ours = VERSION, agent = info.agent_version,
                "a peer runs another version of souk: one of the two must be updated");
            if self.unlike.len() < PEERS_MAX {
                self.unlike.insert(peer, theirs);
            }
            // The call fails only if the connection has just closed.
            let _ = self.swarm.disconnect_peer_id(peer);
            return;
        }
        // The peer can have been updated since.
        self.unlike.remove(&peer);
        self.on_relay(peer, &info);
        let takes_part = info.protocols.contains(&discovery::ROUTING);
        if takes_part && !self.known.contains_key(&peer) {
            self.add_addresses(peer, info.listen_addrs);
        }
    }

    fn on_dial_failed(&mut self, connection: ConnectionId, error: &DialError) {
        if let Some(peer) = self.dials.remove(&connection) {
            if let Some(relayed) = self.second_routes(peer) {
                self.dial_at(peer, relayed);
                return;
            }
            let why = dialling::describe_error(error);
            self.discovery.on_failed(peer, &why);
            self.answer_dials(peer, &Err(DialFailure::Refused(why)));
        }
    }

    pub(super) fn answer_dials(&mut self, peer: PeerId, outcome: &Result<(), DialFailure>) {
        for waiting in self.dialling.remove(&peer).into_iter().flatten() {
            let _ = waiting.send(outcome.clone());
        }
    }
}

fn is_loopback(address: &Multiaddr) -> bool {
    ip_of(address).is_some_and(|ip| ip.is_loopback())
}

fn new_behaviour(
    pair: &libp2p::identity::Keypair,
    through: relay::client::Behaviour,
    stays: bool,
    options: Options,
) -> Behaviour {
    let key = pair.public();
    let local = key.to_peer_id();
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_established(Some(CONNECTIONS_MAX))
        .with_max_established_incoming(Some(CONNECTIONS_INCOMING_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX))
        .with_max_pending_incoming(Some(CONNECTIONS_PENDING_MAX))
        .with_max_pending_outgoing(Some(CONNECTIONS_PENDING_MAX));
    let agent = concat!("souk/", env!("CARGO_PKG_VERSION"));
    let identify = identify::Config::new(VERSION.to_owned(), key);
    let ping = ping::Config::new()
        .with_interval(PING_PERIOD)
        .with_timeout(PING_TIMEOUT);
    Behaviour {
        blocked: allow_block_list::Behaviour::default(),
        limits: connection_limits::Behaviour::new(limits),
        memory: memory_connection_limits::Behaviour::with_max_percentage(MEMORY_SHARE_MAX),
        address_limits: AddressLimits::default(),
        identify: identify::Behaviour::new(identify.with_agent_version(agent.to_owned())),
        ping: ping::Behaviour::new(ping),
        streams: Streams::default(),
        routing: stays.then(|| discovery::new_routing(pair)).into(),
        gossip: stays.then(gossip::new_behaviour).into(),
        reach: stays.then(Default::default).into(),
        dial_back: stays.then(Default::default).into(),
        through,
        upgrade: stays.then(|| dcutr::Behaviour::new(local)).into(),
        offer: options
            .relays
            .then(|| routes::relay_behaviour(local))
            .into(),
        nearby: options
            .mdns
            .then(|| discovery::new_mdns(local))
            .flatten()
            .into(),
    }
}
