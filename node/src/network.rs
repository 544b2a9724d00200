//! The node's place in the network: one libp2p swarm, owned by one task.
//!
//! All protocols of souk are streams. A caller opens one by peer and protocol name; the swarm task
//! knows who is connected and dials where nobody is. Nothing else of libp2p is seen outside.

mod acquaintances;
mod address_limits;
pub mod gossip;
mod kept_streams;
pub mod peer_score;
pub mod profile;
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
use souk_market::AccountKey;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::folder::contact::Contact;
use crate::folder::key::{NodeKey, NotAKey, account_of};
use crate::network::profile::{Profile, SignedProfile};
use kept_streams::KeptStreams;
use peer_score::{Conduct, Misconduct};
use stream_quotas::{QuotaExceeded, StreamQuotas};
use streams::{IncomingStream, StreamError, Streams};
use swarm::routes::{self, Route};
use swarm::{Command, SwarmTask};

pub use rate_limit::RateLimit;
pub use stream_quotas::STREAMS_PER_PEER_MAX;
pub use transport::Pieces;

/// Requests to the swarm task that may wait; each is small and answered at once.
const COMMANDS_MAX: usize = 256;

/// How long a caller waits for a connection and for its protocol to be agreed on.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The file of known peers in a node's folder.
pub const PEERS_FILE: &str = "peers.json";

/// How the network listens.
#[derive(Clone, Debug, Default)]
pub struct NetworkConfig {
    /// The address to listen on; port 0 takes a free one. None listens nowhere.
    pub listen: Option<Multiaddr>,
    /// Where addresses of known peers are kept over restarts. A node that has none is here for a
    /// moment only and takes no part in discovery.
    pub peers_file: Option<PathBuf>,
    /// What it does beyond that.
    pub options: Options,
}

/// What a node does in the network only when it is told to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Looks for peers on the local network by multicast, and can be found so.
    pub mdns: bool,
    /// Relays for peers that nobody can dial, within limits.
    pub relays: bool,
    /// By how much its connections read and write.
    pub pieces: Pieces,
}

/// A handle on the swarm; clones are cheap and all mean the same swarm.
#[derive(Clone)]
pub struct Network {
    peer: PeerId,
    commands: mpsc::Sender<Command>,
    streams: Streams,
    kept: Arc<KeptStreams<Stream>>,
}

/// Why the network did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Somebody else listens there.
    #[error("the address {address} is in use by another program: stop it or choose another port")]
    InUse {
        /// The address wanted.
        address: Multiaddr,
    },
    /// The system or the transport refused to listen.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address wanted.
        address: Multiaddr,
        /// What was said.
        cause: std::io::Error,
    },
    /// The encryption layer refused the node's key.
    #[error("cannot set up encryption with the node's key: {0}")]
    Encryption(#[from] libp2p::noise::Error),
}

/// Why a stream was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The account is not a key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// No connection came about.
    #[error("cannot reach peer {peer}: {cause}")]
    Unreachable {
        /// Who was wanted.
        peer: PeerId,
        /// What each attempt said.
        cause: swarm::DialFailure,
    },
    /// The peer is there but speaks no such protocol.
    #[error("peer {peer} does not speak {protocol}: is it an older or newer souk?")]
    Protocol {
        /// Who was asked.
        peer: PeerId,
        /// What was asked for.
        protocol: StreamProtocol,
    },
    /// The connection broke while the protocol was agreed on.
    #[error("the connection to peer {peer} broke: {cause}")]
    Broken {
        /// Who was asked.
        peer: PeerId,
        /// What the stream said.
        cause: std::io::Error,
    },
    /// Nothing happened in time.
    #[error("peer {peer} did not answer within {} s", OPEN_TIMEOUT.as_secs())]
    Timeout {
        /// Who was asked.
        peer: PeerId,
    },
    /// This node's own network has stopped.
    #[error("this node's network has stopped")]
    Stopped,
}

impl Network {
    /// Starts the swarm; returns once it listens.
    pub async fn start(key: &NodeKey, config: NetworkConfig) -> Result<Network, StartError> {
        if let Some(address) = &config.listen {
            claim(address)?;
        }
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let mut task = SwarmTask::new(key, &config, inbox)?;
        if let Some(address) = config.listen {
            task.listen(address).await?;
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

    /// This node's peer id.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The addresses this node listens on.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        self.ask(Command::Addresses).await.unwrap_or_default()
    }

    /// The peers with a connection at this moment.
    pub async fn connected(&self) -> Vec<PeerId> {
        let routes = self.ask(Command::Routes).await.unwrap_or_default();
        routes.into_iter().map(|(peer, _)| peer).collect()
    }

    /// The accounts with a connection at this moment, and by which way each is connected.
    pub async fn routes(&self) -> BTreeMap<AccountKey, Route> {
        let routes = self.ask(Command::Routes).await.unwrap_or_default();
        let account = |(peer, route)| Some((AccountKey(account_of(&peer)?), route));
        routes.into_iter().filter_map(account).collect()
    }

    /// The address from which a peer is connected, or at which it was dialled; none where it is not
    /// connected, or through a relay alone.
    pub async fn whereabouts(&self, peer: PeerId) -> Option<IpAddr> {
        let ask = |reply| Command::Whereabouts { peer, reply };
        self.ask(ask).await.ok().flatten()
    }

    /// Says to the network what this node is. Who does not take part in discovery says nothing.
    pub async fn publish(&self, profile: &SignedProfile) {
        match postcard::to_allocvec(profile) {
            // A network that has stopped has no ears.
            Ok(bytes) => drop(self.commands.send(Command::Publish(bytes)).await),
            Err(error) => tracing::warn!(%error, "the profile does not encode"),
        }
    }

    /// The providers that were heard of, checked and not expired.
    pub async fn profiles(&self) -> Vec<Profile> {
        self.ask(Command::Profiles).await.unwrap_or_default()
    }

    /// Remembers where a peer can be reached.
    pub async fn learn(&self, contact: &Contact) -> Result<(), OpenError> {
        let (peer, addresses) = (contact.peer()?, contact.addresses.clone());
        let learn = Command::Learn { peer, addresses };
        self.commands
            .send(learn)
            .await
            .map_err(|_| OpenError::Stopped)
    }

    /// Opens a stream to `peer`, dialling the addresses known of it where there is no connection.
    pub async fn open(&self, peer: PeerId, protocol: StreamProtocol) -> Result<Stream, OpenError> {
        self.open_over(peer, protocol, 0).await
    }

    /// A stream to `peer` that was kept for its next question; the peer may have closed it since.
    pub(crate) fn take_kept(&self, peer: PeerId, protocol: &StreamProtocol) -> Option<Stream> {
        self.kept.take(&(peer, protocol.clone()), Instant::now())
    }

    /// Keeps a stream, on which nothing is owed, for its next question.
    pub(crate) fn keep(&self, peer: PeerId, protocol: StreamProtocol, stream: Stream) {
        self.kept.keep((peer, protocol), stream, Instant::now());
    }

    /// Drops what is kept: a stream to that peer broke.
    pub(crate) fn forget_kept(&self, peer: PeerId, protocol: StreamProtocol) {
        self.kept.forget(&(peer, protocol));
    }

    /// How many connections to a peer there are: processes that share a key are one peer.
    pub fn connections(&self, peer: PeerId) -> usize {
        self.streams.connections(peer)
    }

    /// The same over one of several connections, of which the youngest is number 0.
    pub async fn open_over(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
        number: usize,
    ) -> Result<Stream, OpenError> {
        let opening = async {
            self.ask(|reply| Command::Connect { peer, reply })
                .await?
                .map_err(|cause| OpenError::Unreachable { peer, cause })?;
            let opened = self.streams.open(peer, protocol.clone(), number).await;
            opened.map_err(|error| match error {
                StreamError::Unspoken => OpenError::Protocol { peer, protocol },
                StreamError::Broken(cause) => OpenError::Broken { peer, cause },
            })
        };
        let timed = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
        timed.unwrap_or(Err(OpenError::Timeout { peer }))
    }

    /// The streams that peers open here for `protocol`. Each protocol has one acceptor in a node.
    fn accept(&self, protocol: StreamProtocol) -> mpsc::Receiver<IncomingStream> {
        let accepted = self.streams.accept(protocol);
        accepted.expect("each protocol of a node is accepted in one place")
    }

    /// Serves each stream of `protocol` in a task of its own, at most `streams_max` at a time. Of
    /// one peer at most [`STREAMS_PER_PEER_MAX`] are served at a time, idle ones among them, fewer
    /// where places are short; those over it are closed. What a handler says of the peer's conduct
    /// counts against it.
    pub fn serve<F, Served>(&self, protocol: StreamProtocol, streams_max: usize, mut serve: F)
    where
        F: FnMut(PeerId, Stream) -> Served + Send + 'static,
        Served: Future<Output: Into<Conduct>> + Send + 'static,
    {
        let mut incoming = self.accept(protocol.clone());
        let quotas = StreamQuotas::new(streams_max);
        let commands = self.commands.clone();
        tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.recv().await {
                let share = match quotas.take(peer, Instant::now()) {
                    Ok(share) => share,
                    Err(over) => {
                        tracing::debug!(%peer, %protocol, ?over, "a stream is closed");
                        if over == QuotaExceeded::Rate {
                            report(&commands, peer, Misconduct::Flood);
                        }
                        continue;
                    }
                };
                let served = serve(peer, stream);
                let commands = commands.clone();
                tokio::spawn(async move {
                    if let Conduct::Wrong(fault) = served.await.into() {
                        report(&commands, peer, fault);
                    }
                    drop(share);
                });
            }
        });
    }

    /// Counts a fault of a peer; whoever has too many is disconnected and kept out for a while.
    pub fn report(&self, peer: PeerId, fault: Misconduct) {
        report(&self.commands, peer, fault);
    }

    async fn ask<T>(
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

/// Tells the swarm of a fault. While it has much to do, one fault more or less is nothing to it.
fn report(commands: &mpsc::Sender<Command>, peer: PeerId, fault: Misconduct) {
    let _ = commands.try_send(Command::Misconduct { peer, fault });
}

/// Fails where another program listens on the address.
///
/// libp2p listens with `SO_REUSEPORT`, so that a second node on the same port would start without
/// a word and receive half of the first one's connections.
fn claim(address: &Multiaddr) -> Result<(), StartError> {
    // The socket of an address through a relay is the relay's.
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

/// The socket behind an address of TCP.
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
    use crate::network::wire;

    /// A node that listens at several addresses, through a relay too.
    pub(crate) async fn listening_at(addresses: &[Multiaddr]) -> (NodeKey, Network, Contact) {
        let key = NodeKey::generate();
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let mut task = SwarmTask::new(&key, &NetworkConfig::default(), inbox).unwrap();
        for address in addresses {
            claim(address).unwrap();
            task.listen(address.clone()).await.unwrap();
        }
        let (peer, streams) = (key.peer_id(), task.streams());
        tokio::spawn(task.run());
        let network = Network {
            peer,
            commands,
            streams,
            kept: Arc::default(),
        };
        let addresses = network.addresses().await;
        let account = key.public();
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
        let addresses = network.addresses().await;
        let contact = Contact {
            account: key.public(),
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
        server.serve(ECHO, 1, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &word).await.unwrap();
        });
        let client = silent().await;
        client.learn(&contact).await.unwrap();
        let mut stream = client.open(contact.peer().unwrap(), ECHO).await.unwrap();
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
        let mut incoming = server.accept(ECHO);
        let client = silent().await;
        client.learn(&contact).await.unwrap();
        let peer = contact.peer().unwrap();
        let mut opened = Vec::new();
        for number in 0..COUNT {
            let mut stream = client.open(peer, ECHO).await.unwrap();
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
        client.learn(&contact).await.unwrap();
        let refused = client
            .open(contact.peer().unwrap(), ECHO)
            .await
            .unwrap_err();
        assert!(matches!(refused, OpenError::Protocol { .. }), "{refused}");
    }

    /// A node that says it speaks another version of souk, until this is dropped.
    async fn of_version(version: &str) -> (tokio::task::JoinHandle<()>, Contact) {
        let key = NodeKey::generate();
        let (account, version) = (key.public(), version.to_owned());
        let mut swarm = SwarmBuilder::with_existing_identity(key.libp2p())
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
        client.learn(&contact).await.unwrap();
        let peer = contact.peer().unwrap();
        let says = "it speaks /souk/2 and this node /souk/1: one of the two must be updated";
        until(async || {
            // Before it has said what it speaks, it only does not speak this.
            let refused = client.open(peer, ECHO).await.unwrap_err().to_string();
            refused.contains(says).then_some(())
        })
        .await;
        other.abort();
    }

    #[tokio::test]
    async fn a_peer_without_address_is_unreachable() {
        let client = silent().await;
        let nobody = NodeKey::generate().peer_id();
        let refused = client.open(nobody, ECHO).await.unwrap_err();
        assert!(
            matches!(refused, OpenError::Unreachable { .. }),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let (_, server, _) = listening().await;
        let taken = server.addresses().await.remove(0);
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
            network.learn(contact).await.unwrap();
        }
        let addresses = network.addresses().await;
        let account = key.public();
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
        server.serve(ECHO, 1, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &word).await.unwrap();
        });
        until(async || (middle.connected().await.len() == 2).then_some(())).await;
        // Nobody told the client where the server is.
        let peer = contact.peer().unwrap();
        let mut stream = until(async || client.open(peer, ECHO).await.ok()).await;
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
        let now = crate::clock::unix_ms();
        let profile = Profile {
            account: AccountKey(key.public()),
            addresses: contact.addresses.clone(),
            resources: souk_market::Resources::default(),
            issued_ms: now,
            expires_ms: now + profile::LIFE_MS,
        };
        let heard = until(async || {
            // Said again until the mesh has formed, with a later time each.
            let mut again = profile.clone();
            again.issued_ms = crate::clock::unix_ms();
            provider.publish(&again.sign(&key).unwrap()).await;
            far.profiles().await.pop()
        });
        let heard = heard.await;
        assert_eq!((heard.account, heard.contact()), (profile.account, contact));
    }

    #[tokio::test]
    async fn one_peer_cannot_take_all_streams() {
        let (_, server, contact) = listening().await;
        server.serve(ECHO, 1_000, |_, mut stream| async move {
            let _ = wire::receive::<String>(&mut stream).await;
            let _ = wire::send(&mut stream, &"served").await;
        });
        let client = silent().await;
        client.learn(&contact).await.unwrap();
        let peer = contact.peer().unwrap();
        let mut idle = Vec::new();
        for _ in 0..STREAMS_PER_PEER_MAX {
            let mut stream = client.open(peer, ECHO).await.unwrap();
            // A protocol is agreed on lazily: the first byte settles it.
            futures::AsyncWriteExt::write_all(&mut stream, &[0, 0])
                .await
                .unwrap();
            futures::AsyncWriteExt::flush(&mut stream).await.unwrap();
            idle.push(stream);
        }
        let mut over = client.open(peer, ECHO).await.unwrap();
        let sent = wire::send(&mut over, &"me too").await;
        let answer = wire::receive::<String>(&mut over).await;
        assert!(sent.is_err() || answer.is_err(), "it is closed");
        idle.pop();
        let served = until(async || {
            let mut stream = client.open(peer, ECHO).await.ok()?;
            wire::send(&mut stream, &"now me").await.ok()?;
            wire::receive::<String>(&mut stream).await.ok()
        });
        assert_eq!(served.await, "served");
    }

    #[tokio::test]
    async fn who_sends_garbage_is_kept_out_and_others_are_served() {
        let (_, server, contact) = listening().await;
        server.serve(ECHO, 16, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await?;
            wire::send(&mut stream, &word).await
        });
        let peer = contact.peer().unwrap();
        let (hostile, honest) = (silent().await, silent().await);
        for network in [&hostile, &honest] {
            network.learn(&contact).await.unwrap();
        }
        let refused = until(async || {
            let mut stream = match hostile.open(peer, ECHO).await {
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
        let mut stream = honest.open(peer, ECHO).await.unwrap();
        wire::send(&mut stream, &"salaam").await.unwrap();
        let echoed: String = wire::receive(&mut stream).await.unwrap();
        assert_eq!(echoed, "salaam");
        assert_eq!(server.connected().await, [honest.peer()]);
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
        damage: &mut crate::protocols::fuzzed::DamageSource,
    ) -> usize {
        let (client, mut sent) = (silent().await, 0);
        client.learn(contact).await.unwrap();
        for protocol in BELOW {
            for _ in 0..6 {
                // A length, then fields of protobuf's kind, which most of these speak.
                let sample = [
                    40, 8, 4, 18, 34, 10, 32, 7, 7, 7, 7, 26, 2, 1, 1, 34, 0, 40, 1,
                ];
                let bytes = damage.of(&sample);
                let peer = contact.peer().unwrap();
                let protocol = StreamProtocol::new(protocol);
                let mut stream = match client.open(peer, protocol).await {
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
        server.serve(ECHO, 16, |_, mut stream| async move {
            let word: String = wire::receive(&mut stream).await?;
            wire::send(&mut stream, &word).await
        });
        let mut damage = crate::protocols::fuzzed::DamageSource::new(21);
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
        honest.learn(&contact).await.unwrap();
        let peer = contact.peer().unwrap();
        let mut stream = until(async || honest.open(peer, ECHO).await.ok()).await;
        wire::send(&mut stream, &"salaam").await.unwrap();
        let echoed: String = wire::receive(&mut stream).await.unwrap();
        assert_eq!(echoed, "salaam");
    }
}
