//! Connects a node to its peers: one libp2p swarm (the connections of a node and their protocols),
//! owned by one task. All roles and protocols use it through [`Network`].
//!
//! All protocols of souk are streams. A caller can open one by peer and protocol name; the swarm
//! task knows the connected peers and dials the others. Callers need no other part of libp2p than
//! its peer ids, addresses and streams. Above the swarm are [`content`], which moves contents
//! between peers, the [`protocols`] of leases and of the market, and a node's [`metrics`].
//!
//! ```no_run
//! use souk_folder::key::NodeKey;
//! use souk_network::{Network, NetworkConfig};
//!
//! # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
//! let config = NetworkConfig {
//!     listen: Some("/ip4/0.0.0.0/tcp/4001".parse()?),
//!     ..NetworkConfig::default()
//! };
//! let network = Network::start(&NodeKey::generate(), config).await?;
//! println!("{} peers", network.connected_peers().await.len());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod acquaintances;
mod address_limits;
pub mod content;
pub mod gossip;
mod kept_streams;
pub mod metrics;
pub mod peer_score;
pub mod profile;
pub mod protocols;
mod rate_limit;
mod stream_quotas;
mod streams;
pub mod swarm;
mod transport;
pub mod wire;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use libp2p::multiaddr::Protocol;
use libp2p::swarm::{Stream, StreamProtocol};
use libp2p::{Multiaddr, PeerId};
use souk_folder::contact::Contact;
use souk_folder::key::{NodeKey, NotAKey, account_of};
use souk_market::AccountKey;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::profile::{Profile, SignedProfile};
use kept_streams::KeptStreams;
use peer_score::{Conduct, Misconduct};
use stream_quotas::{QuotaExceeded, StreamQuotas};
use streams::{IncomingStream, StreamError, Streams};
use swarm::routes::{self, Route};
use swarm::{Command, SwarmTask};

pub use rate_limit::RateLimit;
pub use stream_quotas::STREAMS_PER_PEER_MAX;
pub use transport::Pieces;

/// Requests that can wait for the swarm task; each is small and answered at once.
const COMMANDS_MAX: usize = 256;

/// How long a caller waits for a connection and for agreement on its protocol.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The file of known peers in a node's folder.
pub const PEERS_FILE: &str = "peers.json";

/// The configuration of the network.
#[derive(Clone, Debug, Default)]
pub struct NetworkConfig {
    /// The address to listen on; port 0 takes a free one. Without an address the node only dials.
    pub listen: Option<Multiaddr>,
    /// Where the node keeps addresses of known peers over restarts. A node without this file is
    /// here only briefly and takes no part in discovery.
    pub peers_file: Option<PathBuf>,
    /// The optional features.
    pub options: Options,
}

/// Features of a node's network that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Finds peers on the local network by multicast, and can be found so.
    pub mdns: bool,
    /// Relays, within limits, for peers that cannot be dialled.
    pub relays: bool,
    /// The sizes in which its connections read and write.
    pub pieces: Pieces,
}

/// A handle on the swarm; clones are cheap and share the swarm.
#[derive(Clone)]
pub struct Network {
    peer: PeerId,
    commands: mpsc::Sender<Command>,
    streams: Streams,
    kept: Arc<KeptStreams<Stream>>,
}

/// Why the network could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another program listens there.
    #[error("the address {address} is in use by another program: stop it or choose another port")]
    InUse {
        /// The address to listen on.
        address: Multiaddr,
    },
    /// The system or the transport refused to listen.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address to listen on.
        address: Multiaddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The encryption layer refused the node's key.
    #[error("cannot set up encryption with the node's key: {0}")]
    Encryption(#[from] libp2p::noise::Error),
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The account is not a key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// No connection could be established.
    #[error("cannot reach peer {peer}: {cause}")]
    Unreachable {
        /// The peer to reach.
        peer: PeerId,
        /// The failure of each attempt.
        cause: swarm::DialFailure,
    },
    /// The peer is connected but does not speak the protocol.
    #[error("peer {peer} does not speak {protocol}: is it an older or newer souk?")]
    Protocol {
        /// The peer that refused.
        peer: PeerId,
        /// The protocol that it does not speak.
        protocol: StreamProtocol,
    },
    /// The connection broke during the agreement on the protocol.
    #[error("the connection to peer {peer} broke: {cause}")]
    Broken {
        /// The peer of the connection.
        peer: PeerId,
        /// The stream's error.
        cause: std::io::Error,
    },
    /// The peer did not answer in time.
    #[error("peer {peer} did not answer within {} s", OPEN_TIMEOUT.as_secs())]
    Timeout {
        /// The peer that did not answer.
        peer: PeerId,
    },
    /// This node's own network has stopped.
    #[error("this node's network has stopped")]
    Stopped,
}

impl Network {
    /// Starts the swarm and returns once it listens.
    pub async fn start(key: &NodeKey, config: NetworkConfig) -> Result<Network, StartError> {
        if let Some(address) = &config.listen {
            check_port_free(address)?;
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let mut task = SwarmTask::new(key, &config, inbox)?;
        if let Some(address) = config.listen {
            task.listen_on(address).await?;
        }
        let streams = task.streams();
        tokio::spawn(task.run());
        Ok(Network {
            peer: key.peer_id(),
            commands,
            streams,
            kept: Arc::default(),
        })
    }

    /// Returns this node's peer id.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the addresses this node listens on.
    pub async fn own_addresses(&self) -> Vec<Multiaddr> {
        self.send_command(Command::Addresses)
            .await
            .unwrap_or_default()
    }

    /// Returns the peers that are connected now.
    pub async fn connected_peers(&self) -> Vec<PeerId> {
        let routes = self.send_command(Command::Routes).await.unwrap_or_default();
        routes.into_iter().map(|(peer, _)| peer).collect()
    }

    /// Returns the accounts that are connected now, with the route of each connection.
    pub async fn account_routes(&self) -> BTreeMap<AccountKey, Route> {
        let routes = self.send_command(Command::Routes).await.unwrap_or_default();
        let account = |(peer, route)| Some((AccountKey(account_of(&peer)?), route));
        routes.into_iter().filter_map(account).collect()
    }

    /// Returns the address from which a peer is connected, or at which this node dialled it; none
    /// if it is not connected, or only through a relay.
    pub async fn peer_ip(&self, peer: PeerId) -> Option<IpAddr> {
        let ask = |reply| Command::Whereabouts { peer, reply };
        self.send_command(ask).await.ok().flatten()
    }

    /// Publishes this node's profile. A node that takes no part in discovery publishes nothing.
    pub async fn publish_profile(&self, profile: &SignedProfile) {
        match postcard::to_allocvec(profile) {
            // The send fails only if the network has stopped.
            Ok(bytes) => drop(self.commands.send(Command::Publish(bytes)).await),
            Err(error) => tracing::warn!(%error, "the profile could not be encoded"),
        }
    }

    /// Returns the valid profiles of providers that this node has received.
    pub async fn provider_profiles(&self) -> Vec<Profile> {
        self.send_command(Command::Profiles)
            .await
            .unwrap_or_default()
    }

    /// Remembers the addresses of a peer.
    pub async fn add_contact(&self, contact: &Contact) -> Result<(), OpenError> {
        let (peer, addresses) = (contact.peer_id()?, contact.addresses.clone());
        let learn = Command::Learn { peer, addresses };
        self.commands
            .send(learn)
            .await
            .map_err(|_| OpenError::Stopped)
    }

    /// Opens a stream to `peer`; dials its known addresses if there is no connection.
    pub async fn open_stream(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
    ) -> Result<Stream, OpenError> {
        self.open_over(peer, protocol, 0).await
    }

    /// Takes a stream to `peer` that was kept for its next request; the peer can have closed it
    /// since.
    pub(crate) fn take_kept(&self, peer: PeerId, protocol: &StreamProtocol) -> Option<Stream> {
        self.kept
            .take_stream(&(peer, protocol.clone()), Instant::now())
    }

    /// Keeps an idle stream for its next request; the caller must have read every answer on it.
    pub(crate) fn keep_stream(&self, peer: PeerId, protocol: StreamProtocol, stream: Stream) {
        self.kept
            .keep_stream((peer, protocol), stream, Instant::now());
    }

    /// Drops the kept streams to a peer because one of them broke.
    pub(crate) fn forget_kept(&self, peer: PeerId, protocol: StreamProtocol) {
        self.kept.forget_streams(&(peer, protocol));
    }

    /// Returns the number of connections to a peer: processes that share a key are one peer.
    pub fn connection_count(&self, peer: PeerId) -> usize {
        self.streams.connection_count(peer)
    }

    /// Opens a stream over one of several connections, of which the youngest is number 0.
    pub async fn open_over(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
        number: usize,
    ) -> Result<Stream, OpenError> {
        let opening = async {
            self.send_command(|reply| Command::Connect { peer, reply })
                .await?
                .map_err(|cause| OpenError::Unreachable { peer, cause })?;
            let opened = self
                .streams
                .open_stream(peer, protocol.clone(), number)
                .await;
            opened.map_err(|error| match error {
                StreamError::Unspoken => OpenError::Protocol { peer, protocol },
                StreamError::Broken(cause) => OpenError::Broken { peer, cause },
            })
        };
        let timed = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
        timed.unwrap_or(Err(OpenError::Timeout { peer }))
    }

    /// Returns the streams that peers open here for `protocol`. Each protocol must have only one
    /// acceptor in a node.
    fn accept_streams(&self, protocol: StreamProtocol) -> mpsc::Receiver<IncomingStream> {
        let accepted = self.streams.accept_streams(protocol);
        accepted.expect("each protocol of a node is accepted in one place")
    }

    /// Serves each stream of `protocol` in its own task, at most `streams_max` at a time. One peer
    /// gets at most [`STREAMS_PER_PEER_MAX`] at a time, idle ones included, and fewer if places are
    /// short; streams beyond that are closed. Misconduct that a handler returns counts against the
    /// peer.
    pub fn serve_protocol<F, Served>(
        &self,
        protocol: StreamProtocol,
        streams_max: usize,
        mut serve: F,
    ) where
        F: FnMut(PeerId, Stream) -> Served + Send + 'static,
        Served: Future<Output: Into<Conduct>> + Send + 'static,
    {
        let mut incoming = self.accept_streams(protocol.clone());
        let quotas = StreamQuotas::new(streams_max);
        let commands = self.commands.clone();
        tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.recv().await {
                let share = match quotas.take_place(peer, Instant::now()) {
                    Ok(share) => share,
                    Err(over) => {
                        tracing::debug!(%peer, %protocol, ?over, "closed a stream over its quota");
                        if over == QuotaExceeded::Rate {
                            send_fault_report(&commands, peer, Misconduct::Flood);
                        }
                        continue;
                    }
                };
                let served = serve(peer, stream);
                let commands = commands.clone();
                tokio::spawn(async move {
                    if let Conduct::Wrong(fault) = served.await.into() {
                        send_fault_report(&commands, peer, fault);
                    }
                    drop(share);
                });
            }
        });
    }

    /// Counts a fault of a peer; a peer with too many is disconnected and banned for a while.
    pub fn report_fault(&self, peer: PeerId, fault: Misconduct) {
        send_fault_report(&self.commands, peer, fault);
    }

    async fn send_command<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, OpenError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| OpenError::Stopped)?;
        answer.await.map_err(|_| OpenError::Stopped)
    }
}

/// Reports a fault to the swarm. While the swarm is busy, a lost report does no harm.
fn send_fault_report(commands: &mpsc::Sender<Command>, peer: PeerId, fault: Misconduct) {
    let _ = commands.try_send(Command::Misconduct { peer, fault });
}

/// Fails if another program listens on the address.
///
/// libp2p listens with `SO_REUSEPORT`, so a second node on the same port would start silently and
/// receive half of the first one's connections.
fn check_port_free(address: &Multiaddr) -> Result<(), StartError> {
    // An address through a relay has the relay's socket.
    let own = Some(address).filter(|address| !routes::is_relayed(address));
    let Some(socket) = own.and_then(socket_of) else {
        return Ok(());
    };
    match TcpListener::bind(socket) {
        Ok(_) => Ok(()),
        Err(cause) if cause.kind() == std::io::ErrorKind::AddrInUse => Err(StartError::InUse {
            address: address.clone(),
        }),
        Err(cause) => Err(StartError::Listen {
            address: address.clone(),
            cause,
        }),
    }
}

/// Returns the socket of a TCP address.
pub(crate) fn socket_of(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    match (parts.next()?, parts.next()?) {
        (Protocol::Ip4(ip), Protocol::Tcp(port)) => Some((ip, port).into()),
        (Protocol::Ip6(ip), Protocol::Tcp(port)) => Some((ip, port).into()),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures::StreamExt;
    use libp2p::swarm::SwarmEvent;
    use libp2p::{SwarmBuilder, identify, noise, tcp, yamux};

    use super::*;
    use crate::wire;

    /// A node that listens at several addresses, through a relay too.
    pub(crate) async fn listening_at(addresses: &[Multiaddr]) -> (NodeKey, Network, Contact) {
        let key = NodeKey::generate();
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let mut task = SwarmTask::new(&key, &NetworkConfig::default(), inbox).unwrap();
        for address in addresses {
            check_port_free(address).unwrap();
            task.listen_on(address.clone()).await.unwrap();
        }
        let (peer, streams) = (key.peer_id(), task.streams());
        tokio::spawn(task.run());
        let network = Network {
            peer,
            commands,
            streams,
            kept: Arc::default(),
        };
        let addresses = network.own_addresses().await;
        let account = key.public_key();
        (key, network, Contact { account, addresses })
    }

    const ECHO: StreamProtocol = StreamProtocol::new("/souk/echo/1");

    async fn listening() -> (NodeKey, Network, Contact) {
        let key = NodeKey::generate();
        let listen = Some("/ip4/127.0.0.1/tcp/0".parse().unwrap());
        let network = Network::start(
            &key,
            NetworkConfig {
                listen,
                ..NetworkConfig::default()
            },
        )
        .await
        .unwrap();
        let addresses = network.own_addresses().await;
        let contact = Contact {
            account: key.public_key(),
            addresses,
        };
        (key, network, contact)
    }

    async fn silent() -> Network {
        Network::start(&NodeKey::generate(), NetworkConfig::default())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_stream_carries_frames_both_ways() {
        let (_, server, contact) = listening().await;
        server.serve_protocol(ECHO, 1, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &word).await.unwrap();
        });
        let client = silent().await;
        client.add_contact(&contact).await.unwrap();
        let mut stream = client
            .open_stream(contact.peer_id().unwrap(), ECHO)
            .await
            .unwrap();
        wire::send(&mut stream, &"salaam").await.unwrap();
        assert_eq!(
            wire::receive::<String>(&mut stream).await.unwrap(),
            "salaam"
        );
    }

    #[tokio::test]
    async fn streams_that_come_while_their_acceptor_is_away_are_all_there() {
        const COUNT: u32 = 50;
        let (_, server, contact) = listening().await;
        let mut incoming = server.accept_streams(ECHO);
        let client = silent().await;
        client.add_contact(&contact).await.unwrap();
        let peer = contact.peer_id().unwrap();
        let mut opened = Vec::new();
        for number in 0..COUNT {
            let mut stream = client.open_stream(peer, ECHO).await.unwrap();
            wire::send(&mut stream, &number).await.unwrap();
            opened.push(stream);
        }
        for number in 0..COUNT {
            let (_, mut stream) = incoming.recv().await.unwrap();
            assert_eq!(wire::receive::<u32>(&mut stream).await.unwrap(), number);
        }
    }

    #[tokio::test]
    async fn an_unknown_protocol_is_refused_by_name() {
        let (_, _server, contact) = listening().await;
        let client = silent().await;
        client.add_contact(&contact).await.unwrap();
        let refused = client
            .open_stream(contact.peer_id().unwrap(), ECHO)
            .await
            .unwrap_err();
        assert!(matches!(refused, OpenError::Protocol { .. }), "{refused}");
    }

    /// A node that says it speaks another version of souk, until this is dropped.
    async fn of_version(version: &str) -> (tokio::task::JoinHandle<()>, Contact) {
        let key = NodeKey::generate();
        let (account, version) = (key.public_key(), version.to_owned());
        let mut swarm = SwarmBuilder::with_existing_identity(key.to_libp2p())
            .with_tokio()
            .with_tcp(
                tcp::Config::default(),
                noise::Config::new,
                yamux::Config::default,
            )
            .unwrap()
            .with_behaviour(|pair| {
                identify::Behaviour::new(identify::Config::new(version, pair.public()))
            })
            .unwrap()
            .build();
        let listen = "/ip4/127.0.0.1/tcp/0".parse().unwrap();
        swarm.listen_on(listen).unwrap();
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        let driven = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        let addresses = vec![address];
        (driven, Contact { account, addresses })
    }

    #[tokio::test]
    async fn a_peer_of_another_version_is_refused_with_both_versions() {
        let (other, contact) = of_version("/souk/2").await;
        let client = silent().await;
        client.add_contact(&contact).await.unwrap();
        let peer = contact.peer_id().unwrap();
        let says = "it speaks /souk/2 and this node /souk/1: one of the two must be updated";
        until(async || {
            // Before it has said what it speaks, it only does not speak this.
            let refused = client
                .open_stream(peer, ECHO)
                .await
                .unwrap_err()
                .to_string();
            refused.contains(says).then_some(())
        })
        .await;
        other.abort();
    }

    #[tokio::test]
    async fn a_peer_without_address_is_unreachable() {
        let client = silent().await;
        let nobody = NodeKey::generate().peer_id();
        let refused = client.open_stream(nobody, ECHO).await.unwrap_err();
        assert!(
            matches!(refused, OpenError::Unreachable { .. }),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let (_, server, _) = listening().await;
        let taken = server.own_addresses().await.remove(0);
        let again = Network::start(
            &NodeKey::generate(),
            NetworkConfig {
                listen: Some(taken),
                ..NetworkConfig::default()
            },
        )
        .await;
        assert!(matches!(again.err(), Some(StartError::InUse { .. })));
    }

    /// A node that stays, and that knows only those `knows` names.
    async fn staying(folder: &std::path::Path, knows: &[&Contact]) -> (NodeKey, Network, Contact) {
        let key = NodeKey::generate();
        let config = NetworkConfig {
            listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
            peers_file: Some(folder.join(format!("{}.json", key.peer_id()))),
            options: Options::default(),
        };
        let network = Network::start(&key, config).await.unwrap();
        for contact in knows {
            network.add_contact(contact).await.unwrap();
        }
        let addresses = network.own_addresses().await;
        let account = key.public_key();
        (key, network, Contact { account, addresses })
    }

    async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let looking = async {
            loop {
                match look().await {
                    Some(found) => return found,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), looking).await;
        found.expect("it happens within 20 s")
    }

    #[tokio::test]
    async fn two_nodes_that_know_a_third_find_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let (_, middle, meeting) = staying(folder.path(), &[]).await;
        let (_, server, contact) = staying(folder.path(), &[&meeting]).await;
        let (_, client, _) = staying(folder.path(), &[&meeting]).await;
        server.serve_protocol(ECHO, 1, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &word).await.unwrap();
        });
        until(async || (middle.connected_peers().await.len() == 2).then_some(())).await;
        // Nobody told the client where the server is.
        let peer = contact.peer_id().unwrap();
        let mut stream = until(async || client.open_stream(peer, ECHO).await.ok()).await;
        wire::send(&mut stream, &"salaam").await.unwrap();
        let echoed: String = wire::receive(&mut stream).await.unwrap();
        assert_eq!(echoed, "salaam");
    }

    #[tokio::test]
    async fn a_profile_reaches_nodes_that_its_provider_does_not_know() {
        let folder = tempfile::tempdir().unwrap();
        let (_, _middle, meeting) = staying(folder.path(), &[]).await;
        let (key, provider, contact) = staying(folder.path(), &[&meeting]).await;
        let (_, far, _) = staying(folder.path(), &[&meeting]).await;
        let now = souk_folder::clock::unix_ms();
        let profile = Profile {
            account: AccountKey(key.public_key()),
            addresses: contact.addresses.clone(),
            resources: souk_market::Resources::default(),
            issued_ms: now,
            expires_ms: now + profile::LIFE_MS,
        };
        let heard = until(async || {
            // Said again until the mesh has formed, with a later time each.
            let mut again = profile.clone();
            again.issued_ms = souk_folder::clock::unix_ms();
            provider.publish_profile(&again.sign(&key).unwrap()).await;
            far.provider_profiles().await.pop()
        });
        let heard = heard.await;
        assert_eq!(
            (heard.account, heard.to_contact()),
            (profile.account, contact)
        );
    }

    #[tokio::test]
    async fn one_peer_cannot_take_all_streams() {
        let (_, server, contact) = listening().await;
        server.serve_protocol(ECHO, 1_000, |_, mut stream| async move {
            let _ = wire::receive::<String>(&mut stream).await;
            let _ = wire::send(&mut stream, &"served").await;
        });
        let client = silent().await;
        client.add_contact(&contact).await.unwrap();
        let peer = contact.peer_id().unwrap();
        let mut idle = Vec::new();
        for _ in 0..STREAMS_PER_PEER_MAX {
            let mut stream = client.open_stream(peer, ECHO).await.unwrap();
            // A protocol is agreed on lazily: the first byte settles it.
            futures::AsyncWriteExt::write_all(&mut stream, &[0, 0])
                .await
                .unwrap();
            futures::AsyncWriteExt::flush(&mut stream).await.unwrap();
            idle.push(stream);
        }
        let mut over = client.open_stream(peer, ECHO).await.unwrap();
        let sent = wire::send(&mut over, &"me too").await;
        let answer = wire::receive::<String>(&mut over).await;
        assert!(sent.is_err() || answer.is_err(), "it is closed");
        idle.pop();
        let served = until(async || {
            let mut stream = client.open_stream(peer, ECHO).await.ok()?;
            wire::send(&mut stream, &"now me").await.ok()?;
            wire::receive::<String>(&mut stream).await.ok()
        });
        assert_eq!(served.await, "served");
    }

    #[tokio::test]
    async fn who_sends_garbage_is_kept_out_and_others_are_served() {
        let (_, server, contact) = listening().await;
        server.serve_protocol(ECHO, 16, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await?;
            wire::send(&mut stream, &word).await
        });
        let peer = contact.peer_id().unwrap();
        let (hostile, honest) = (silent().await, silent().await);
        for network in [&hostile, &honest] {
            network.add_contact(&contact).await.unwrap();
        }
        let refused = until(async || {
            let mut stream = match hostile.open_stream(peer, ECHO).await {
                Ok(stream) => stream,
                Err(refused) => return Some(refused),
            };
            // A length of nine, and a text that says it is longer than that.
            let _ = wire::send_bytes(&mut stream, &[0xff; 9]).await;
            let _ = wire::receive::<String>(&mut stream).await;
            None
        });
        let refused = refused.await;
        assert!(!matches!(refused, OpenError::Protocol { .. }), "{refused}");
        let mut stream = honest.open_stream(peer, ECHO).await.unwrap();
        wire::send(&mut stream, &"salaam").await.unwrap();
        let echoed: String = wire::receive(&mut stream).await.unwrap();
        assert_eq!(echoed, "salaam");
        assert_eq!(server.connected_peers().await, [honest.peer()]);
    }

    /// What every node that stays speaks below the protocols of souk.
    const BELOW: [&str; 9] = [
        "/souk/kad/1",
        "/souk/gossip/4/1.1.0",
        "/ipfs/id/1.0.0",
        "/ipfs/id/push/1.0.0",
        "/ipfs/ping/1.0.0",
        "/libp2p/autonat/2/dial-request",
        "/libp2p/autonat/2/dial-back",
        "/libp2p/circuit/relay/0.2.0/stop",
        "/libp2p/dcutr",
    ];

    /// Opens streams and sends damaged frames on them, until it is kept out or has sent all.
    async fn send_damaged(
        contact: &Contact,
        damage: &mut souk_node_testing::fuzzed::DamageSource,
    ) -> usize {
        let (client, mut sent) = (silent().await, 0);
        client.add_contact(contact).await.unwrap();
        for protocol in BELOW {
            for _ in 0..6 {
                // A length, then fields of protobuf's kind, which most of these speak.
                let sample = [
                    40, 8, 4, 18, 34, 10, 32, 7, 7, 7, 7, 26, 2, 1, 1, 34, 0, 40, 1,
                ];
                let bytes = damage.of(&sample);
                let peer = contact.peer_id().unwrap();
                let protocol = StreamProtocol::new(protocol);
                let mut stream = match client.open_stream(peer, protocol).await {
                    Ok(stream) => stream,
                    Err(OpenError::Protocol { .. }) => break,
                    Err(_) => return sent,
                };
                let written = futures::AsyncWriteExt::write_all(&mut stream, &bytes).await;
                let closed = futures::AsyncWriteExt::close(&mut stream).await;
                sent += usize::from(written.is_ok() && closed.is_ok());
            }
        }
        sent
    }

    #[tokio::test]
    async fn damaged_frames_below_souks_protocols_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let (_, server, contact) = staying(folder.path(), &[]).await;
        server.serve_protocol(ECHO, 16, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await?;
            wire::send(&mut stream, &word).await
        });
        let mut damage = souk_node_testing::fuzzed::DamageSource::new(21);
        let mut sent = 0;
        for _ in 0..4 {
            sent += send_damaged(&contact, &mut damage).await;
        }
        assert!(sent > 40, "{sent} were sent");
        // Not even a connection: the begin of libp2p's negotiation, damaged.
        let socket = socket_of(&contact.addresses[0]).unwrap();
        for _ in 0..40 {
            let mut connection = tokio::net::TcpStream::connect(socket).await.unwrap();
            let bytes = damage.of(b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20garbage");
            let _ = tokio::io::AsyncWriteExt::write_all(&mut connection, &bytes).await;
        }
        let honest = silent().await;
        honest.add_contact(&contact).await.unwrap();
        let peer = contact.peer_id().unwrap();
        let mut stream = until(async || honest.open_stream(peer, ECHO).await.ok()).await;
        wire::send(&mut stream, &"salaam").await.unwrap();
        let echoed: String = wire::receive(&mut stream).await.unwrap();
        assert_eq!(echoed, "salaam");
    }
}
