//! The faster way between two peers: a connection of its own, TLS 1.3 with AES-GCM, on threads.
//!
//! Two peers agree on a direct channel over `/souk/direct/1`, where each knows who the other is:
//! whoever has an address tells it with a token drawn for this once, and the other dials. The token
//! opens the door to the handshake, in which each end shows the key that is its peer id
//! (`identity`), so a direct channel has the same two ends as the stream it was agreed on. Where no
//! connection comes about, because of a firewall for instance, the peers go on over libp2p, and it
//! is said why.

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
use souk_memory::ContentId;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::folder::key::{self, NodeKey, NotAKey};
use crate::network::wire::{self, WireError};
use crate::network::{Network, OpenError};

pub(crate) use channel::{Breaker, Channel};

/// The protocol by which peers agree on a direct channel.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/direct/1");

/// Agreements a node takes part in at a time.
const AGREEMENTS_MAX: usize = 32;

/// The longest word of an agreement: a token and some addresses.
const WORD_BYTES_MAX: usize = 1 << 10;

/// Addresses of a peer that are tried.
const ADDRESSES_MAX: usize = 8;

/// How long a connection may take to come about, and each step of the agreement and the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const STEP_MAX: Duration = Duration::from_secs(3);

/// Direct channels served at a time, in all and for one peer: each is a thread.
const SERVED_MAX: usize = 16;
const SERVED_PER_PEER_MAX: usize = 2;

/// A direct channel that carries nothing for so long is closed by the end that serves. The other
/// end does not take it up again a while before.
const SERVED_IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Direct channels kept for later to one peer.
const KEPT_PER_PEER_MAX: usize = 2;

/// A peer to which no direct channel came about is not tried again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Peers remembered as refused.
const REFUSED_MAX: usize = 1024;

/// What proves that a connection was agreed on.
type Token = [u8; 32];

/// What is said at the door: made of the token, so that nobody has a node send bytes of his choice
/// to an address of his choice.
fn password(token: &Token) -> Token {
    *ContentId::of(&[&b"souk direct channel 1 "[..], token].concat()).as_bytes()
}

/// How a node takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DirectListen {
    /// Not at all: everything goes over libp2p.
    Off,
    /// It dials, and is dialled by nobody.
    #[default]
    Nowhere,
    /// It is dialled at this address; port 0 takes a free one.
    At(SocketAddr),
}

/// Why there is no direct channel to a peer.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// This node wants none.
    #[error("this node is told to use none")]
    Off,
    /// It was tried a moment ago.
    #[error("it was tried a moment ago: {why}")]
    Refused {
        /// What came of it.
        why: String,
    },
    /// The peer's account is no key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// The peer was not reached, or is a souk without direct channels.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The agreement broke off.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer serves as many as it can.
    #[error("the peer has none free")]
    Full,
    /// Neither end has an address that the other one reached.
    #[error("neither end could dial the other: {cause}")]
    Unreachable {
        /// What the last attempt said.
        cause: io::Error,
    },
    /// The connection came about and the handshake did not.
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
}

/// The first word of whoever wants a direct channel.
#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    token: Token,
    /// Where its end may be dialled, if the other end cannot be.
    addresses: Vec<SocketAddr>,
}

/// What the other end says to it.
#[derive(Debug, Serialize, Deserialize)]
enum DirectReply {
    /// Dial me there, or ask me to dial.
    Dial(Vec<SocketAddr>),
    /// Not now.
    Full,
}

/// How it went.
#[derive(Debug, Serialize, Deserialize)]
enum DialOutcome {
    /// The connection is there.
    Dialled,
    /// It did not come about: the other end should dial.
    YourTurn,
    /// Nor did that come about.
    Neither,
}

/// Serves one direct channel until the other end has closed it.
type Serve = dyn Fn(PeerId, Channel) + Send + Sync;

/// The direct channels of a node.
#[derive(Clone)]
pub(crate) struct DirectChannels(Arc<DirectState>);

struct DirectState {
    network: Network,
    key: NodeKey,
    listening: DirectListen,
    /// Where it is dialled; the address may be that of all interfaces.
    door: Option<SocketAddr>,
    awaited: Mutex<HashMap<Token, oneshot::Sender<TcpStream>>>,
    kept: Mutex<HashMap<PeerId, Vec<(Instant, Channel)>>>,
    refused: Mutex<HashMap<PeerId, (Instant, String)>>,
    served: Mutex<HashMap<PeerId, usize>>,
    serve: Box<Serve>,
}

impl DirectChannels {
    /// Listens, if it is to, and serves the direct channels that peers open.
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
        let door = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let channels = DirectChannels(Arc::new(DirectState {
            network,
            key,
            listening,
            door,
            awaited: Mutex::default(),
            kept: Mutex::default(),
            refused: Mutex::default(),
            served: Mutex::default(),
            serve: Box::new(serve),
        }));
        if let Some(listener) = listener {
            tokio::spawn(admit(listener, Arc::downgrade(&channels.0)));
        }
        if channels.0.listening != DirectListen::Off {
            channels.agree_with_all();
        }
        Ok(channels)
    }

    /// A direct channel to `peer`, one of those kept or a new one.
    pub(crate) async fn acquire(&self, peer: PeerId) -> Result<Channel, DirectError> {
        if self.0.listening == DirectListen::Off {
            return Err(DirectError::Off);
        }
        if let Some(kept) = self.0.take_kept(peer) {
            return Ok(kept);
        }
        if let Some(why) = self.0.refusal(peer) {
            return Err(DirectError::Refused { why });
        }
        let agreed = self.agree(peer).await;
        if let Err(error) = &agreed {
            self.0.refuse(peer, error);
        }
        agreed
    }

    /// Keeps a direct channel for the next transfer.
    pub(crate) fn keep(&self, peer: PeerId, channel: Channel) {
        let mut kept = lock(&self.0.kept);
        let channels = kept.entry(peer).or_default();
        if channels.len() < KEPT_PER_PEER_MAX {
            channels.push((Instant::now(), channel));
        }
    }

    /// Why a peer was told of in the log as one without a direct channel, if it was a moment ago.
    #[cfg(test)]
    pub(crate) fn refusal(&self, peer: PeerId) -> Option<String> {
        self.0.refusal(peer)
    }

    async fn agree(&self, peer: PeerId) -> Result<Channel, DirectError> {
        let account = key::account_of(&peer).ok_or_else(|| NotAKey(peer.to_string()))?;
        let awaited = ExpectedConnection::new(self.0.clone());
        let addresses = self.0.addresses().await;
        let proposal = Proposal {
            token: awaited.token,
            addresses,
        };
        let mut stream = self.0.network.open(peer, PROTOCOL).await?;
        timely(wire::send(&mut stream, &proposal)).await?;
        let dialled = match timely(wire::receive_short(&mut stream, WORD_BYTES_MAX)).await? {
            DirectReply::Full => return Err(DirectError::Full),
            DirectReply::Dial(addresses) => dial(addresses, awaited.token).await,
        };
        let key = self.0.key.clone();
        let (connection, is_dialled) = match dialled {
            Ok(connection) => {
                timely(wire::send(&mut stream, &DialOutcome::Dialled)).await?;
                (connection, false)
            }
            Err(cause) if proposal.addresses.is_empty() => {
                return Err(DirectError::Unreachable { cause });
            }
            Err(_) => {
                timely(wire::send(&mut stream, &DialOutcome::YourTurn)).await?;
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
        network.serve(PROTOCOL, AGREEMENTS_MAX, move |peer, stream| {
            let inner = inner.upgrade();
            async move {
                let Some(inner) = inner else { return };
                if let Err(error) = inner.on_proposal(peer, stream).await {
                    tracing::debug!(%peer, %error, "no direct channel came about");
                }
            }
        });
    }
}

impl DirectState {
    /// The other side of [`DirectChannels::agree`]; what comes about is served.
    async fn on_proposal(
        self: Arc<DirectState>,
        peer: PeerId,
        mut stream: Stream,
    ) -> Result<(), DirectError> {
        let account = key::account_of(&peer).ok_or_else(|| NotAKey(peer.to_string()))?;
        let proposal: Proposal = timely(wire::receive_short(&mut stream, WORD_BYTES_MAX)).await?;
        let Some(place) = Place::take(&self, peer) else {
            timely(wire::send(&mut stream, &DirectReply::Full)).await?;
            return Err(DirectError::Full);
        };
        let awaited = ExpectedConnection::with(self.clone(), proposal.token);
        let addresses = self.addresses().await;
        timely(wire::send(&mut stream, &DirectReply::Dial(addresses))).await?;
        let said = wire::receive_short(&mut stream, WORD_BYTES_MAX);
        let (connection, is_dialled) = match timely(said).await? {
            DialOutcome::Dialled => (awaited.connection().await?, true),
            DialOutcome::YourTurn => match self.dial_back(peer, proposal).await {
                Ok(connection) => (connection, false),
                Err(cause) => {
                    timely(wire::send(&mut stream, &DialOutcome::Neither)).await?;
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
                Err(error) => tracing::debug!(%peer, %error, "no direct channel came about"),
            }
            drop(place);
        };
        // A thread and not a place in the runtime's pool: a direct channel stays for long.
        let named = std::thread::Builder::new().name("direct".to_owned());
        named.spawn(serve).map_err(DirectError::Handshake)?;
        Ok(())
    }

    /// Dials a peer that nobody here has asked for, where it is and nowhere else: any other address
    /// may be one that it would have somebody knock at for it.
    async fn dial_back(&self, peer: PeerId, proposal: Proposal) -> io::Result<TcpStream> {
        let own = self.network.whereabouts(peer).await;
        let mut addresses = proposal.addresses;
        addresses.retain(|address| Some(address.ip()) == own);
        dial(addresses, proposal.token).await
    }

    /// Where this end may be dialled, as the other end should be told.
    async fn addresses(&self) -> Vec<SocketAddr> {
        let Some(door) = self.door else {
            return Vec::new();
        };
        if !door.ip().is_unspecified() {
            return vec![door];
        }
        // All interfaces: those that libp2p found.
        let listening = self.network.addresses().await;
        let ip = |part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::from(ip)),
            Protocol::Ip6(ip) => Some(IpAddr::from(ip)),
            _ => None,
        };
        let ips = listening
            .iter()
            .filter_map(|address| address.iter().find_map(ip));
        let doors = ips.map(|ip| SocketAddr::new(ip, door.port()));
        doors.take(ADDRESSES_MAX).collect()
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

    fn refusal(&self, peer: PeerId) -> Option<String> {
        let mut refused = lock(&self.refused);
        refused.retain(|_, (since, _)| since.elapsed() < REFUSED_FOR);
        refused.get(&peer).map(|(_, why)| why.clone())
    }

    fn refuse(&self, peer: PeerId, why: &DirectError) {
        tracing::info!(%peer, %why, "no direct channel to a peer: large content goes over libp2p");
        let mut refused = lock(&self.refused);
        if refused.len() < REFUSED_MAX {
            refused.insert(peer, (Instant::now(), why.to_string()));
        }
    }
}

/// A connection that is expected; forgotten when this is dropped.
struct ExpectedConnection {
    inner: Arc<DirectState>,
    token: Token,
    connection: oneshot::Receiver<TcpStream>,
}

impl ExpectedConnection {
    fn new(inner: Arc<DirectState>) -> ExpectedConnection {
        let mut token = Token::default();
        let random = identity::provider().secure_random;
        random.fill(&mut token).expect("the system has randomness");
        ExpectedConnection::with(inner, token)
    }

    fn with(inner: Arc<DirectState>, token: Token) -> ExpectedConnection {
        let (tell, connection) = oneshot::channel();
        // No more than there are agreements, which are bounded.
        lock(&inner.awaited).insert(password(&token), tell);
        ExpectedConnection {
            inner,
            token,
            connection,
        }
    }

    async fn connection(mut self) -> Result<TcpStream, DirectError> {
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
        lock(&self.inner.awaited).remove(&password(&self.token));
    }
}

/// A peer's place among the direct channels served; given back when this is dropped.
struct Place {
    inner: Arc<DirectState>,
    peer: PeerId,
}

impl Place {
    fn take(inner: &Arc<DirectState>, peer: PeerId) -> Option<Place> {
        let mut served = lock(&inner.served);
        let all: usize = served.values().sum();
        let ours = served.get(&peer).copied().unwrap_or(0);
        if all >= SERVED_MAX || ours >= SERVED_PER_PEER_MAX {
            return None;
        }
        served.insert(peer, ours + 1);
        let inner = inner.clone();
        Some(Place { inner, peer })
    }
}

impl Drop for Place {
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

/// Brings each connection to who awaits it. One without a token that was given out is closed before
/// anything is computed for it.
async fn admit(listener: TcpListener, inner: std::sync::Weak<DirectState>) {
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
                tracing::warn!(%error, "a direct channel's connection was not accepted");
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
                // Who awaited it may have given up.
                let _ = awaited.send(connection);
            }
            drop(place);
        });
    }
}

/// The connection that the other end makes; it says if it cannot.
async fn dialled_by(
    stream: &mut Stream,
    awaited: ExpectedConnection,
) -> Result<TcpStream, DirectError> {
    let neither = async {
        match wire::receive_short(stream, WORD_BYTES_MAX).await {
            Ok(DialOutcome::Neither) => {}
            // A stream that ends says nothing of a connection that may be here in a moment.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        connection = awaited.connection() => connection,
        () = neither => Err(DirectError::Unreachable {
            cause: io::ErrorKind::HostUnreachable.into(),
        }),
    }
}

/// Dials all addresses at once, since one that nobody answers at costs [`CONNECT_MAX`], and says
/// the password at the first that answers.
async fn dial(addresses: Vec<SocketAddr>, token: Token) -> io::Result<TcpStream> {
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
                let said = password(&token);
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
    Channel::dialling(connection, config, STEP_MAX)
}

fn dialled_end(connection: TcpStream, key: &NodeKey, peer: [u8; 32]) -> io::Result<Channel> {
    connection.set_nonblocking(false)?;
    let config = identity::dialled(key, peer).map_err(io::Error::other)?;
    Channel::dialled(connection, config, STEP_MAX)
}

async fn timely<T>(work: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = |_| WireError::Stream(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(STEP_MAX, work).await.map_err(silent)?
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under these locks is whole before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
