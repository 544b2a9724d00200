//! The task that owns the swarm: who is connected, who is being dialled, where peers live.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder};
use libp2p::{connection_limits, identify, noise, ping, tcp, yamux};
use libp2p_stream::Control;
use tokio::sync::{mpsc, oneshot};

use super::StartError;
use crate::contact::ADDRESSES_MAX;
use crate::key::NodeKey;

/// A connection without streams is closed after this; a job's pauses are shorter.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Peers whose addresses are remembered; beyond them newcomers are not.
const PEERS_MAX: usize = 4096;

/// Connections at a time: a few hundred peers of a market, each once, with room for both
/// sides dialling at the same moment.
const CONNECTIONS_MAX: u32 = 1024;
const CONNECTIONS_PER_PEER_MAX: u32 = 4;
const CONNECTIONS_PENDING_MAX: u32 = 128;

/// Streams at a time over one connection.
const STREAMS_MAX: usize = 1024;

/// Why a peer was not reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DialFailure {
    /// Nobody said where the peer lives.
    #[error("no address of it is known")]
    NoAddress,
    /// Each address failed.
    #[error("{0}")]
    Refused(String),
}

/// What the rest of the node may ask of the swarm.
pub(super) enum Command {
    Learn {
        peer: PeerId,
        addresses: Vec<Multiaddr>,
    },
    Connect {
        peer: PeerId,
        reply: oneshot::Sender<Result<(), DialFailure>>,
    },
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    Connected(oneshot::Sender<Vec<PeerId>>),
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    limits: connection_limits::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    streams: libp2p_stream::Behaviour,
}

/// The swarm and what is known of its peers.
pub(super) struct SwarmTask {
    swarm: Swarm<Behaviour>,
    inbox: mpsc::Receiver<Command>,
    known: HashMap<PeerId, Vec<Multiaddr>>,
    dialling: HashMap<PeerId, Vec<oneshot::Sender<Result<(), DialFailure>>>>,
    dials: HashMap<ConnectionId, PeerId>,
}

impl SwarmTask {
    pub(super) fn new(
        key: &NodeKey,
        inbox: mpsc::Receiver<Command>,
    ) -> Result<SwarmTask, StartError> {
        let swarm = SwarmBuilder::with_existing_identity(key.libp2p())
            .with_tokio()
            .with_tcp(
                tcp::Config::default().nodelay(true),
                noise::Config::new,
                multiplexing,
            )?
            .with_behaviour(|pair| behaviour(pair.public()))
            .unwrap_or_else(|never| match never {})
            .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE_TIMEOUT))
            .build();
        let (known, dialling, dials) = Default::default();
        Ok(SwarmTask {
            swarm,
            inbox,
            known,
            dialling,
            dials,
        })
    }

    pub(super) fn control(&self) -> Control {
        self.swarm.behaviour().streams.new_control()
    }

    /// Listens on `address` and waits until the system has given the port.
    pub(super) async fn listen(&mut self, address: Multiaddr) -> Result<(), StartError> {
        let failed = |address: &Multiaddr, cause| {
            let address = address.clone();
            StartError::Listen { address, cause }
        };
        let listened = self.swarm.listen_on(address.clone());
        listened.map_err(|error| failed(&address, std::io::Error::other(error)))?;
        loop {
            match self.swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { .. } => return Ok(()),
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
        loop {
            tokio::select! {
                command = self.inbox.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => return,
                },
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        // An asker that has gone away wants no answer.
        match command {
            Command::Learn { peer, addresses } => self.learn(peer, addresses),
            Command::Connect { peer, reply } => self.connect(peer, reply),
            Command::Addresses(reply) => {
                let _ = reply.send(self.swarm.listeners().cloned().collect());
            }
            Command::Connected(reply) => {
                let _ = reply.send(self.swarm.connected_peers().copied().collect());
            }
        }
    }

    fn learn(&mut self, peer: PeerId, mut addresses: Vec<Multiaddr>) {
        if self.known.len() >= PEERS_MAX && !self.known.contains_key(&peer) {
            return;
        }
        addresses.truncate(ADDRESSES_MAX);
        self.known.insert(peer, addresses);
    }

    fn connect(&mut self, peer: PeerId, reply: oneshot::Sender<Result<(), DialFailure>>) {
        if self.swarm.is_connected(&peer) {
            let _ = reply.send(Ok(()));
            return;
        }
        if let Some(waiting) = self.dialling.get_mut(&peer) {
            waiting.push(reply);
            return;
        }
        let Some(addresses) = self.known.get(&peer).filter(|known| !known.is_empty()) else {
            let _ = reply.send(Err(DialFailure::NoAddress));
            return;
        };
        let options = DialOpts::peer_id(peer)
            .condition(PeerCondition::Always)
            .addresses(addresses.clone())
            // A reused port makes both ends of a loopback pair the same, which the system refuses.
            .allocate_new_port()
            .build();
        self.dials.insert(options.connection_id(), peer);
        self.dialling.insert(peer, vec![reply]);
        let id = options.connection_id();
        if let Err(error) = self.swarm.dial(options) {
            self.on_dial_failed(id, &error);
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                ..
            } => {
                tracing::debug!(peer = %peer_id, "connected");
                self.dials.remove(&connection_id);
                self.answer(peer_id, &Ok(()));
            }
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                error,
                ..
            } => {
                self.on_dial_failed(connection_id, &error);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                num_established: 0,
                ..
            } => {
                tracing::debug!(peer = %peer_id, "disconnected");
            }
            _ => {}
        }
    }

    fn on_dial_failed(&mut self, connection: ConnectionId, error: &DialError) {
        if let Some(peer) = self.dials.remove(&connection) {
            self.answer(peer, &Err(DialFailure::Refused(plain(error))));
        }
    }

    fn answer(&mut self, peer: PeerId, outcome: &Result<(), DialFailure>) {
        for waiting in self.dialling.remove(&peer).into_iter().flatten() {
            let _ = waiting.send(outcome.clone());
        }
    }
}

fn multiplexing() -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(STREAMS_MAX);
    config
}

fn behaviour(key: libp2p::identity::PublicKey) -> Behaviour {
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_established(Some(CONNECTIONS_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX))
        .with_max_pending_incoming(Some(CONNECTIONS_PENDING_MAX))
        .with_max_pending_outgoing(Some(CONNECTIONS_PENDING_MAX));
    let agent = concat!("souk/", env!("CARGO_PKG_VERSION"));
    let identify = identify::Config::new("/souk/1".to_owned(), key);
    Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        identify: identify::Behaviour::new(identify.with_agent_version(agent.to_owned())),
        ping: ping::Behaviour::default(),
        streams: libp2p_stream::Behaviour::new(),
    }
}

/// What failed at each address, without the layers of transports in between.
fn plain(error: &DialError) -> String {
    match error {
        DialError::Transport(attempts) => {
            let each = attempts
                .iter()
                .map(|(address, cause)| format!("{address}: {}", root(cause)));
            each.collect::<Vec<_>>().join("; ")
        }
        DialError::WrongPeerId { obtained, address } => {
            format!("{address}: another peer answers there, {obtained}")
        }
        other => other.to_string(),
    }
}

fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
