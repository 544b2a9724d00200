//! Opens direct channels between two peers, over which `transfers` sends long content: each is a
//! TLS 1.3 connection of its own with AES-GCM, on threads, which is faster than a stream.
//!
//! Two authenticated peers agree on a direct channel over `/souk/direct/1`: one end proposes it
//! with a random token, and then whichever end can reach the other dials it. A hash of the token
//! opens the handshake, in which each end must prove the key that is its peer id (`identity`), so a
//! direct channel has the same two ends as the stream before it. If no connection is possible, for
//! example because of a firewall, the peers continue over libp2p, and the node logs the reason.

mod channel;
mod handshake;
mod identity;
mod records;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use libp2p::PeerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{Stream, StreamProtocol};
use serde::{Deserialize, Serialize};
use souk_folder::key::{self, NodeKey, NotAKey};
use souk_memory::ContentId;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::wire::{self, WireError};
use crate::{Network, OpenError};

pub(crate) use channel::{Breaker, Channel};

/// The protocol by which peers agree on a direct channel.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/direct/1");

/// The most agreements of a node at a time.
const AGREEMENTS_MAX: usize = 32;

/// The longest message of an agreement: a token and some addresses.
const WORD_BYTES_MAX: usize = 1 << 10;

/// How many addresses of a peer are dialled.
const ADDRESSES_MAX: usize = 8;

/// How long a connection can take, and each step of the agreement and the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const STEP_MAX: Duration = Duration::from_secs(3);

/// How many direct channels a node serves at a time, in all and for one peer: each is a thread.
const SERVED_MAX: usize = 16;
const SERVED_PER_PEER_MAX: usize = 2;

/// The serving end closes a direct channel that is idle for so long. The other end stops using it
/// somewhat earlier.
const SERVED_IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_MAX: Duration = Duration::from_secs(20);

/// How many idle direct channels to one peer are kept.
const KEPT_PER_PEER_MAX: usize = 2;

/// How long a peer without a direct channel is not tried again.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How many such peers are remembered.
const REFUSED_MAX: usize = 1024;

/// A secret that proves that the peers agreed on a connection.
type Token = [u8; 32];

/// Returns the first bytes on a connection: a hash of the token, so that no peer can choose which
/// bytes a node sends to an address.
fn hash_token(token: &Token) -> Token {
    *ContentId::for_content(&[&b"souk direct channel 1 "[..], token].concat()).as_bytes()
}

/// How a node uses direct channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DirectListen {
    /// It uses none: everything goes over libp2p.
    Off,
    /// It dials, but accepts no connections.
    #[default]
    Nowhere,
    /// It accepts connections at this address; port 0 takes a free one.
    At(SocketAddr),
}

/// Why there is no direct channel to a peer.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The settings of this node forbid direct channels.
    #[error("this node is configured to use none")]
    Off,
    /// The last attempt failed a moment ago.
    #[error("it was tried a moment ago: {why}")]
    Refused {
        /// The error of that attempt.
        why: String,
    },
    /// The peer's id is not an ed25519 key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// The peer does not answer, or its souk has no direct channels.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The agreement broke off.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer serves as many direct channels as it can.
    #[error("the peer has none free")]
    Full,
    /// Neither end could dial the other.
    #[error("neither end could dial the other: {cause}")]
    Unreachable {
        /// The error of the last attempt.
        cause: io::Error,
    },
    /// The connection opened, but the handshake failed.
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
}

/// The first message of the end that wants a direct channel.
#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    token: Token,
    /// The addresses of this end, in case the other end accepts no connections.
    addresses: Vec<SocketAddr>,
}

/// The answer to a proposal.
#[derive(Debug, Serialize, Deserialize)]
enum DirectReply {
    /// The addresses of this end; if dialling them fails, ask it to dial.
    Dial(Vec<SocketAddr>),
    /// This end serves as many direct channels as it can.
    Full,
}

/// The result of dialling.
#[derive(Debug, Serialize, Deserialize)]
enum DialOutcome {
    /// The connection is open.
    Dialled,
    /// Dialling failed: the other end should dial.
    YourTurn,
    /// The other end could not dial either.
    Neither,
}

/// Serves one direct channel until the other end closes it.
type Serve = dyn Fn(PeerId, Channel) + Send + Sync;

/// The direct channels of a node.
#[derive(Clone)]
pub(crate) struct DirectChannels(Arc<DirectState>);

struct DirectState {
    network: Network,
    key: NodeKey,
    listening: DirectListen,
    /// Its own address; the IP part may stand for all interfaces.
    address: Option<SocketAddr>,
    awaited: Mutex<HashMap<Token, oneshot::Sender<TcpStream>>>,
    kept: Mutex<HashMap<PeerId, Vec<(Instant, Channel)>>>,
    refused: Mutex<HashMap<PeerId, (Instant, String)>>,
    served: Mutex<HashMap<PeerId, usize>>,
    serve: Box<Serve>,
}

impl DirectChannels {
    /// Listens, if the settings say so, and serves the direct channels that peers open.
    pub(crate) async fn start(
        network: Network,
        key: NodeKey,
        listening: DirectListen,
        serve: impl Fn(PeerId, Channel) + Send + Sync + 'static,
    ) -> io::Result<DirectChannels> {
        let listener = match listening {
            DirectListen::At(address) => Some(TcpListener::bind(address).await?),
            DirectListen::Off | DirectListen::Nowhere => None,
        };
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let channels = DirectChannels(Arc::new(DirectState {
            network,
            key,
            listening,
            address,
            awaited: Mutex::default(),
            kept: Mutex::default(),
            refused: Mutex::default(),
            served: Mutex::default(),
            serve: Box::new(serve),
        }));
        if let Some(listener) = listener {
            tokio::spawn(accept_connections(listener, Arc::downgrade(&channels.0)));
        }
        if channels.0.listening != DirectListen::Off {
            channels.agree_with_all();
        }
        Ok(channels)
    }

    /// Returns a direct channel to `peer`, either an idle or a new one.
    pub(crate) async fn acquire_channel(&self, peer: PeerId) -> Result<Channel, DirectError> {
        if self.0.listening == DirectListen::Off {
            return Err(DirectError::Off);
        }
        if let Some(kept) = self.0.take_kept(peer) {
            return Ok(kept);
        }
        if let Some(why) = self.0.recent_refusal(peer) {
            return Err(DirectError::Refused { why });
        }
        let agreed = self.negotiate_channel(peer).await;
        if let Err(error) = &agreed {
            self.0.record_refusal(peer, error);
        }
        agreed
    }

    /// Keeps a direct channel for the next transfer.
    pub(crate) fn keep_channel(&self, peer: PeerId, channel: Channel) {
        let mut kept = lock(&self.0.kept);
        let channels = kept.entry(peer).or_default();
        if channels.len() < KEPT_PER_PEER_MAX {
            channels.push((Instant::now(), channel));
        }
    }

    /// Returns why a peer has no direct channel, if an attempt failed a moment ago.
    #[cfg(test)]
    pub(crate) fn recent_refusal(&self, peer: PeerId) -> Option<String> {
        self.0.recent_refusal(peer)
    }

    async fn negotiate_channel(&self, peer: PeerId) -> Result<Channel, DirectError> {
        let account = key::account_of(&peer).ok_or_else(|| NotAKey(peer.to_string()))?;
        let awaited = ExpectedConnection::new(self.0.clone());
        let addresses = self.0.reachable_addresses().await;
        let proposal = Proposal {
            token: awaited.token,
            addresses,
        };
        let mut stream = self.0.network.open_stream(peer, PROTOCOL).await?;
        with_timeout(wire::send(&mut stream, &proposal)).await?;
        let dialled = match with_timeout(wire::receive_short(&mut stream, WORD_BYTES_MAX)).await? {
            DirectReply::Full => return Err(DirectError::Full),
            DirectReply::Dial(addresses) => dial_first(addresses, awaited.token).await,
        };
        let key = self.0.key.clone();
        let (connection, is_dialled) = match dialled {
            Ok(connection) => {
                with_timeout(wire::send(&mut stream, &DialOutcome::Dialled)).await?;
                (connection, false)
            }
            Err(cause) if proposal.addresses.is_empty() => {
                return Err(DirectError::Unreachable { cause });
            }
            Err(_) => {
                with_timeout(wire::send(&mut stream, &DialOutcome::YourTurn)).await?;
                (dialled_by(&mut stream, awaited).await?, true)
            }
        };
        let shaking = tokio::task::spawn_blocking(move || match is_dialled {
            true => dialled_end(connection, &key, account),
            false => dialling_end(connection, &key, account),
        });
        let shaken = shaking.await.map_err(io::Error::other);
        shaken.flatten().map_err(DirectError::Handshake)
    }

    fn agree_with_all(&self) {
        let inner = Arc::downgrade(&self.0);
        let network = &self.0.network;
        network.serve_protocol(PROTOCOL, AGREEMENTS_MAX, move |peer, stream| {
            let inner = inner.upgrade();
            async move {
                let Some(inner) = inner else { return };
                if let Err(error) = inner.on_proposal(peer, stream).await {
                    tracing::debug!(%peer, %error, "could not set up a direct channel");
                }
            }
        });
    }
}

impl DirectState {
    /// Answers [`DirectChannels::agree`], and serves the resulting channel.
    async fn on_proposal(
        self: Arc<DirectState>,
        peer: PeerId,
        mut stream: Stream,
    ) -> Result<(), DirectError> {
        let account = key::account_of(&peer).ok_or_else(|| NotAKey(peer.to_string()))?;
        let proposal: Proposal =
            with_timeout(wire::receive_short(&mut stream, WORD_BYTES_MAX)).await?;
        let Some(place) = ServedSlot::try_reserve(&self, peer) else {
            with_timeout(wire::send(&mut stream, &DirectReply::Full)).await?;
            return Err(DirectError::Full);
        };
        let awaited = ExpectedConnection::with(self.clone(), proposal.token);
        let addresses = self.reachable_addresses().await;
        with_timeout(wire::send(&mut stream, &DirectReply::Dial(addresses))).await?;
        let said = wire::receive_short(&mut stream, WORD_BYTES_MAX);
        let (connection, is_dialled) = match with_timeout(said).await? {
            DialOutcome::Dialled => (awaited.wait_for_connection().await?, true),
            DialOutcome::YourTurn => match self.dial_back(peer, proposal).await {
                Ok(connection) => (connection, false),
                Err(cause) => {
                    with_timeout(wire::send(&mut stream, &DialOutcome::Neither)).await?;
                    return Err(DirectError::Unreachable { cause });
                }
            },
            DialOutcome::Neither => {
                let cause = io::ErrorKind::InvalidData.into();
                return Err(DirectError::Unreachable { cause });
            }
        };
        let key = self.key.clone();
        let serve = move || {
            let shaken = match is_dialled {
                true => dialled_end(connection, &key, account),
                false => dialling_end(connection, &key, account),
            };
            let ready = shaken.and_then(|channel| {
                channel.set_patience(SERVED_IDLE_MAX)?;
                Ok(channel)
            });
            match ready {
                Ok(channel) => (self.serve)(peer, channel),
                Err(error) => tracing::debug!(%peer, %error, "could not set up a direct channel"),
            }
            drop(place);
        };
        // A thread instead of the runtime's pool, because a direct channel lives long.
        let named = std::thread::Builder::new().name("direct".to_owned());
        named.spawn(serve).map_err(DirectError::Handshake)?;
        Ok(())
    }

    /// Dials the peer that sent a proposal, but only at the IP address from which it is connected:
    /// another address could belong to a victim that the peer wants this node to contact.
    async fn dial_back(&self, peer: PeerId, proposal: Proposal) -> io::Result<TcpStream> {
        let own = self.network.peer_ip(peer).await;
        let mut addresses = proposal.addresses;
        addresses.retain(|address| Some(address.ip()) == own);
        dial_first(addresses, proposal.token).await
    }

    /// Returns the addresses at which the other end can dial this one.
    async fn reachable_addresses(&self) -> Vec<SocketAddr> {
        let Some(address) = self.address else {
            return Vec::new();
        };
        if !address.ip().is_unspecified() {
            return vec![address];
        }
        // The address is on all interfaces: take those that libp2p found.
        let listening = self.network.own_addresses().await;
        let ip = |part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::from(ip)),
            Protocol::Ip6(ip) => Some(IpAddr::from(ip)),
            _ => None,
        };
        let ips = listening
            .iter()
            .filter_map(|address| address.iter().find_map(ip));
        let addresses = ips.map(|ip| SocketAddr::new(ip, address.port()));
        addresses.take(ADDRESSES_MAX).collect()
    }

    fn take_kept(&self, peer: PeerId) -> Option<Channel> {
        let mut kept = lock(&self.kept);
        let now = Instant::now();
        kept.retain(|_, channels| {
            channels.retain(|(since, _)| now.duration_since(*since) < IDLE_MAX);
            !channels.is_empty()
        });
        kept.get_mut(&peer)?.pop().map(|(_, channel)| channel)
    }

    fn recent_refusal(&self, peer: PeerId) -> Option<String> {
        let mut refused = lock(&self.refused);
        refused.retain(|_, (since, _)| since.elapsed() < REFUSED_FOR);
        refused.get(&peer).map(|(_, why)| why.clone())
    }

    fn record_refusal(&self, peer: PeerId, why: &DirectError) {
        tracing::info!(%peer, %why, "no direct channel to a peer: large content goes over libp2p");
        let mut refused = lock(&self.refused);
        if refused.len() < REFUSED_MAX {
            refused.insert(peer, (Instant::now(), why.to_string()));
        }
    }
}

/// An expected connection. Dropping it withdraws the expectation.
struct ExpectedConnection {
    inner: Arc<DirectState>,
    token: Token,
    connection: oneshot::Receiver<TcpStream>,
}

impl ExpectedConnection {
    fn new(inner: Arc<DirectState>) -> ExpectedConnection {
        let mut token = Token::default();
        let random = identity::crypto_provider().secure_random;
        random.fill(&mut token).expect("the system has randomness");
        ExpectedConnection::with(inner, token)
    }

    fn with(inner: Arc<DirectState>, token: Token) -> ExpectedConnection {
        let (tell, connection) = oneshot::channel();
        // Bounded, because the number of agreements is.
        lock(&inner.awaited).insert(hash_token(&token), tell);
        ExpectedConnection {
            inner,
            token,
            connection,
        }
    }

    async fn wait_for_connection(mut self) -> Result<TcpStream, DirectError> {
        let silent = |_| DirectError::Unreachable {
            cause: io::ErrorKind::TimedOut.into(),
        };
        let arrived = tokio::time::timeout(STEP_MAX, &mut self.connection).await;
        let arrived = arrived.map_err(silent)?;
        Ok(arrived.expect("the sender is kept as long as this is"))
    }
}

impl Drop for ExpectedConnection {
    fn drop(&mut self) {
        lock(&self.inner.awaited).remove(&hash_token(&self.token));
    }
}

/// A peer's place among the served direct channels. Dropping it frees the place.
struct ServedSlot {
    inner: Arc<DirectState>,
    peer: PeerId,
}

impl ServedSlot {
    fn try_reserve(inner: &Arc<DirectState>, peer: PeerId) -> Option<ServedSlot> {
        let mut served = lock(&inner.served);
        let all: usize = served.values().sum();
        let ours = served.get(&peer).copied().unwrap_or(0);
        if all >= SERVED_MAX || ours >= SERVED_PER_PEER_MAX {
            return None;
        }
        served.insert(peer, ours + 1);
        let inner = inner.clone();
        Some(ServedSlot { inner, peer })
    }
}

impl Drop for ServedSlot {
    fn drop(&mut self) {
        let mut served = lock(&self.inner.served);
        if let Some(count) = served.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                served.remove(&self.peer);
            }
        }
    }
}

/// Passes each connection to the agreement that expects it. Closes one without a valid token before
/// any expensive computation.
async fn accept_connections(listener: TcpListener, inner: std::sync::Weak<DirectState>) {
    let places = Arc::new(tokio::sync::Semaphore::new(AGREEMENTS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let accepted = listener.accept().await;
        let Some(inner) = inner.upgrade() else { return };
        let mut connection = match accepted {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection for a direct channel failed");
                tokio::time::sleep(CONNECT_MAX).await;
                continue;
            }
        };
        tokio::spawn(async move {
            let mut said = Token::default();
            let read = tokio::time::timeout(STEP_MAX, connection.read_exact(&mut said)).await;
            let awaited = lock(&inner.awaited).remove(&said);
            if let (Ok(Ok(_)), Some(awaited), Ok(connection)) =
                (read, awaited, connection.into_std())
            {
                // The receiver can have given up.
                let _ = awaited.send(connection);
            }
            drop(place);
        });
    }
}

/// Waits for the connection that the other end opens, or for its message that it cannot.
async fn dialled_by(
    stream: &mut Stream,
    awaited: ExpectedConnection,
) -> Result<TcpStream, DirectError> {
    let neither = async {
        match wire::receive_short(stream, WORD_BYTES_MAX).await {
            Ok(DialOutcome::Neither) => {}
            // If the stream ends, the connection may still arrive.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        connection = awaited.wait_for_connection() => connection,
        () = neither => Err(DirectError::Unreachable {
            cause: io::ErrorKind::HostUnreachable.into(),
        }),
    }
}

/// Dials all addresses at once, because an address without an answer costs [`CONNECT_MAX`], and
/// sends the password to the first that answers.
async fn dial_first(addresses: Vec<SocketAddr>, token: Token) -> io::Result<TcpStream> {
    let connect = |address| async move {
        let connecting = tokio::net::TcpStream::connect(address);
        let connected = tokio::time::timeout(CONNECT_MAX, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
    };
    let dialled = addresses.into_iter().take(ADDRESSES_MAX).map(connect);
    let mut dialled: FuturesUnordered<_> = dialled.collect();
    let mut last = io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        "it has no address for direct channels",
    );
    while let Some(connected) = dialled.next().await {
        match connected {
            Ok(mut connection) => {
                let said = hash_token(&token);
                tokio::io::AsyncWriteExt::write_all(&mut connection, &said).await?;
                return connection.into_std();
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn dialling_end(connection: TcpStream, key: &NodeKey, peer: [u8; 32]) -> io::Result<Channel> {
    connection.set_nonblocking(false)?;
    let config = identity::dialling(key, peer).map_err(io::Error::other)?;
    Channel::handshake_client(connection, config, STEP_MAX)
}

fn dialled_end(connection: TcpStream, key: &NodeKey, peer: [u8; 32]) -> io::Result<Channel> {
    connection.set_nonblocking(false)?;
    let config = identity::dialled(key, peer).map_err(io::Error::other)?;
    Channel::handshake_server(connection, config, STEP_MAX)
}

async fn with_timeout<T>(work: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = |_| WireError::Stream(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(STEP_MAX, work).await.map_err(silent)?
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a change half done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
