//! Runs the two ends of `souk bench tensors` in separate processes: a holder that serves content
//! and a taker that fetches it. For comparison they also send the same bytes over bare streams and
//! plain TCP.
//!
//! A bare stream sends bytes in large pieces without hashing or storing them: the taker overwrites
//! each piece with the next. One bare stream uses the connection of the tensor protocol, another
//! one a connection with libp2p's own defaults.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, JobId};
use souk_memory::{ContentId, FRAME_BYTES, Store, StoreError};
use souk_roles::access::{Readers, Scope};

use souk_folder::contact::Contact;
use souk_folder::key::{NodeKey, NotAKey};
use souk_network::content::direct::DirectListen;
use souk_network::content::links::Carrier;
use souk_network::content::transfers::{FetchError, Tensors, TransferConfig};
use souk_network::wire::{self, WireError};
use souk_network::{Network, OpenError, Pieces, StartError};

/// The protocol of bare streams: the answer has as many bytes as the request says.
const BARE: StreamProtocol = StreamProtocol::new("/souk/bench/1");

/// The length of a small content, in bytes.
pub const SMALL_BYTES: usize = 256;

/// The most bytes of content in a benchmark.
const STORE_BYTES_MAX: u64 = 16 << 30;

/// The addresses and contents of a holder, which the taker needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Card {
    /// The contact of the holder's tensor protocol.
    pub contact: Contact,
    /// The contact of the holder's node with libp2p's own defaults.
    pub plain: Contact,
    /// The address at which it serves bytes over plain TCP.
    pub tcp: SocketAddr,
    /// The id of the large content.
    pub large: ContentId,
}

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] StartError),
    /// The holder was not reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The holder's key is not valid.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// The bare stream broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The content did not arrive.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The content does not fit.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Returns the small content of a number.
pub fn small_content(number: u32) -> Bytes {
    let bytes = number.to_le_bytes();
    Bytes::from(bytes.repeat(SMALL_BYTES / bytes.len()))
}

async fn start_loopback(key: &NodeKey, pieces: Pieces) -> Result<Network, StartError> {
    let listen = Some("/ip4/127.0.0.1/tcp/0".parse().expect("a constant address"));
    let options = souk_network::Options {
        pieces,
        ..Default::default()
    };
    let config = souk_network::NetworkConfig {
        listen,
        options,
        ..Default::default()
    };
    Network::start(key, config).await
}

/// A node with bare streams only, over connections with libp2p's own defaults.
pub struct BareStreamNode {
    key: NodeKey,
    network: Network,
}

impl BareStreamNode {
    /// Starts on loopback, and serves every peer.
    ///
    /// # Errors
    /// [`BenchError`] when a port is refused.
    pub async fn start() -> Result<BareStreamNode, BenchError> {
        let key = NodeKey::generate();
        let network = start_loopback(&key, Pieces::Plain).await?;
        give_bare(&network);
        Ok(BareStreamNode { key, network })
    }

    /// Reads this many bytes from the holder's plain node and drops them.
    ///
    /// # Errors
    /// [`BenchError`] when the stream breaks.
    pub async fn read_bare(&self, card: &Card, bytes: u64) -> Result<(), BenchError> {
        self.network.add_contact(&card.plain).await?;
        take_bare(&self.network, card.plain.peer_id()?, bytes).await
    }

    async fn contact(&self) -> Contact {
        contact(&self.key, &self.network).await
    }
}

/// The job of all content.
const SCOPE: Scope = Scope {
    buyer: AccountKey([0; 32]),
    job: JobId([0; 32]),
};

/// Returns the key of a taker, one for each carrier: the holder must know whom it serves.
fn taker_key(is_direct: bool) -> NodeKey {
    NodeKey::from_secret([1 + u8::from(is_direct); 32])
}

async fn contact(key: &NodeKey, network: &Network) -> Contact {
    Contact {
        account: key.public_key(),
        addresses: network.own_addresses().await,
    }
}

fn give_bare(network: &Network) {
    network.serve_protocol(BARE, 4, |_, mut stream| async move {
        while let Ok(Some(length)) = wire::receive_or_end::<u64>(&mut stream).await {
            let frame = vec![7; FRAME_BYTES];
            let mut left = length as usize;
            while left > 0 {
                let now = left.min(frame.len());
                if stream.write_all(&frame[..now]).await.is_err() {
                    return;
                }
                left -= now;
            }
            let _ = stream.flush().await;
        }
    });
}

async fn take_bare(network: &Network, peer: PeerId, bytes: u64) -> Result<(), BenchError> {
    let network = network.clone();
    let reading = tokio::spawn(async move {
        let mut stream = network.open_stream(peer, BARE).await?;
        wire::send(&mut stream, &bytes).await?;
        let mut buffer = vec![0; FRAME_BYTES];
        let mut left = bytes;
        while left > 0 {
            match stream.read(&mut buffer).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => left -= read as u64,
            }
        }
        Ok(())
    });
    reading.await.expect("reading does not panic")
}

async fn start_tensors(
    network: &Network,
    key: &NodeKey,
    channel: DirectListen,
) -> io::Result<Tensors> {
    let store = Arc::new(Store::in_memory(STORE_BYTES_MAX));
    let config = TransferConfig {
        bytes_max: STORE_BYTES_MAX,
        channel,
        ..TransferConfig::default()
    };
    Tensors::start(network.clone(), key, store, config).await
}

/// Holds one content of `bytes` bytes and `count` small ones, and serves them until it is dropped.
pub struct ContentHolder {
    card: Card,
    _tensors: Tensors,
    _plain: BareStreamNode,
}

impl ContentHolder {
    /// Starts to serve on loopback.
    ///
    /// # Errors
    /// [`BenchError`] when a port or memory is refused.
    pub async fn start(bytes: usize, count: u32) -> Result<ContentHolder, BenchError> {
        let key = NodeKey::generate();
        let network = start_loopback(&key, Pieces::default()).await?;
        let listen = DirectListen::At(SocketAddr::from(([127, 0, 0, 1], 0)));
        let tensors = start_tensors(&network, &key, listen).await?;
        let words = (0..bytes.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        content.truncate(bytes);
        let large = tensors.store().put(Bytes::from(content))?;
        let small: Result<Vec<_>, _> = (0..count)
            .map(|n| tensors.store().put(small_content(n)))
            .collect();
        let takers = [false, true].map(|direct| AccountKey(taker_key(direct).public_key()));
        let readers = Readers::new(takers.into());
        tensors.access().begin_lease(SCOPE);
        tensors.access().grant_contents(SCOPE, &readers, &[large]);
        tensors.access().grant_contents(SCOPE, &readers, &small?);
        give_bare(&network);
        let plain = BareStreamNode::start().await?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let tcp = listener.local_addr()?;
        std::thread::Builder::new().spawn(move || give_over_tcp(&listener))?;
        let card = Card {
            contact: contact(&key, &network).await,
            plain: plain.contact().await,
            tcp,
            large,
        };
        Ok(ContentHolder {
            card,
            _tensors: tensors,
            _plain: plain,
        })
    }

    /// Returns the card that a taker needs.
    pub fn card(&self) -> &Card {
        &self.card
    }
}

fn give_over_tcp(listener: &TcpListener) {
    while let Ok((mut connection, _)) = listener.accept() {
        let frame = vec![7; FRAME_BYTES];
        let mut length = [0; 8];
        while connection.read_exact(&mut length).is_ok() {
            let mut left = u64::from_le_bytes(length) as usize;
            while left > 0 {
                let now = left.min(frame.len());
                if connection.write_all(&frame[..now]).is_err() {
                    break;
                }
                left -= now;
            }
        }
    }
}

/// Fetches content from a [`ContentHolder`].
pub struct ContentFetcher {
    network: Network,
    tensors: Tensors,
    peer: PeerId,
}

impl ContentFetcher {
    /// Joins the holder's network; `channel` says whether it can use direct channels.
    ///
    /// # Errors
    /// [`BenchError`] when a port is refused.
    pub async fn start(card: &Card, channel: DirectListen) -> Result<ContentFetcher, BenchError> {
        let key = taker_key(channel != DirectListen::Off);
        let network = start_loopback(&key, Pieces::default()).await?;
        network.add_contact(&card.contact).await?;
        let tensors = start_tensors(&network, &key, channel).await?;
        let peer = card.contact.peer_id()?;
        Ok(ContentFetcher {
            network,
            tensors,
            peer,
        })
    }

    /// Reads this many bytes from a bare stream and drops them.
    ///
    /// # Errors
    /// [`BenchError`] when the stream breaks.
    pub async fn read_bare(&self, bytes: u64) -> Result<(), BenchError> {
        take_bare(&self.network, self.peer, bytes).await
    }

    /// Fetches a content as a job does, removes it again, and returns its carrier.
    ///
    /// # Errors
    /// [`BenchError`] when it does not arrive.
    pub async fn fetch_content(&self, id: ContentId) -> Result<Option<Carrier>, BenchError> {
        let fetched = self.tensors.fetch_content(SCOPE, self.peer, id).await?;
        self.tensors.store().remove(&id)?;
        Ok(fetched.from.map(|(_, way)| way))
    }

    /// Fetches small contents as a job does, and removes them again.
    ///
    /// # Errors
    /// [`BenchError`] when one does not arrive.
    pub async fn fetch_small(&self, ids: &[ContentId]) -> Result<(), BenchError> {
        self.tensors.fetch_many(SCOPE, self.peer, ids).await?;
        Ok(ids
            .iter()
            .try_for_each(|id| self.tensors.store().remove(id).map(drop))?)
    }
}

/// Reads this many bytes over plain TCP and drops them.
///
/// # Errors
/// When the connection breaks.
pub fn over_tcp(card: &Card, bytes: u64) -> io::Result<()> {
    let mut connection = TcpStream::connect(card.tcp)?;
    connection.write_all(&bytes.to_le_bytes())?;
    let mut buffer = vec![0; FRAME_BYTES];
    let mut left = bytes;
    while left > 0 {
        match connection.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    Ok(())
}
