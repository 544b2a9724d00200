//! Content between peers: `/souk/tensor/1`, asked for by id, checked by id.
//!
//! The receiver asks, so nothing travels that it has already, and a transfer that broke goes on
//! at the byte where it stopped. An id is a capability: who knows the hash of some content may
//! have it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::swarm::{Stream, StreamProtocol};
use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, Store, StoreError, Verifier};

use crate::network::{Network, OpenError};
use crate::wire::{self, WireError};

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/tensor/1");

/// Bytes handed to the stream at once: large enough to amortise encryption, small enough to
/// leave the connection to others in between.
const FRAME_BYTES: usize = 512 << 10;

/// Transfers a node serves at a time; the others wait.
const SERVED_MAX: usize = 64;

/// Times a broken transfer is taken up again.
const RESUMES_MAX: usize = 3;

/// A sender that gives nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The receiver's word: what it wants, and from which byte on.
#[derive(Debug, Serialize, Deserialize)]
struct Want {
    id: ContentId,
    offset: u64,
}

/// The sender's word, before the bytes.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The content follows, from the wanted offset to its end.
    Content {
        /// Length of the whole in bytes.
        length: u64,
    },
    /// The sender does not hold it.
    Missing,
}

/// Content that is here now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The content.
    pub bytes: Bytes,
    /// Bytes that came over the network; 0 where the content was here already.
    pub moved: u64,
}

/// Why content did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The peer could not be reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke and did not come back.
    #[error("the transfer of {id} broke {RESUMES_MAX} times, last: {cause}")]
    Broken {
        /// What was wanted.
        id: ContentId,
        /// What the last attempt said.
        cause: WireError,
    },
    /// The peer does not hold it.
    #[error("peer {peer} does not hold {id}")]
    Missing {
        /// Who was asked.
        peer: PeerId,
        /// What was wanted.
        id: ContentId,
    },
    /// Other bytes came than were asked for.
    #[error("peer {peer} sent other bytes than {id}: the BLAKE3 of what came differs")]
    Corrupt {
        /// Who sent them.
        peer: PeerId,
        /// What was wanted.
        id: ContentId,
    },
    /// The content is over this node's limit.
    #[error("{id} has {length} bytes, over this node's limit of {limit} for one tensor")]
    TooLong {
        /// What was wanted.
        id: ContentId,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The store refused it.
    #[error("cannot keep what arrived: {0}")]
    Store(#[from] StoreError),
}

/// Serves and fetches content of one store.
#[derive(Clone)]
pub struct Tensors {
    network: Network,
    store: Arc<Store>,
    bytes_max: u64,
}

impl Tensors {
    /// Serves `store` to peers and fetches into it; a single content may have `bytes_max` bytes.
    pub fn start(network: Network, store: Arc<Store>, bytes_max: u64) -> Tensors {
        let served = store.clone();
        network.serve(PROTOCOL, SERVED_MAX, move |peer, stream| {
            let store = served.clone();
            async move {
                let ended = serve(stream, &store).await;
                if let Err(error) = &ended {
                    tracing::debug!(%peer, %error, "a transfer ended early");
                }
                ended
            }
        });
        Tensors {
            network,
            store,
            bytes_max,
        }
    }

    /// The store behind.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Brings `id` into the store from `peer`, unless it is there.
    pub async fn fetch(&self, peer: PeerId, id: ContentId) -> Result<Fetched, FetchError> {
        if let Some(bytes) = self.store.get(&id)? {
            return Ok(Fetched { bytes, moved: 0 });
        }
        let mut transfer = Transfer::new(peer, id, self.bytes_max);
        let mut resumes = 0;
        loop {
            let mut stream = self.network.open(peer, PROTOCOL).await?;
            match transfer.go_on(&mut stream).await {
                Ok(()) => break,
                Err(FetchError::Broken { cause, .. }) if resumes < RESUMES_MAX => {
                    tracing::debug!(%peer, %id, %cause, at = transfer.bytes.len(), "resuming");
                    resumes += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let bytes = transfer.finish()?;
        self.store.put_as(id, bytes.clone())?;
        let moved = bytes.len() as u64;
        Ok(Fetched { bytes, moved })
    }
}

/// One content on its way here, across as many streams as it takes.
struct Transfer {
    peer: PeerId,
    id: ContentId,
    bytes_max: u64,
    bytes: Vec<u8>,
    // None until the sender has stated the length.
    verifier: Option<Verifier>,
}

impl Transfer {
    fn new(peer: PeerId, id: ContentId, bytes_max: u64) -> Transfer {
        Transfer {
            peer,
            id,
            bytes_max,
            bytes: Vec::new(),
            verifier: None,
        }
    }

    async fn go_on(&mut self, stream: &mut Stream) -> Result<(), FetchError> {
        let (peer, id) = (self.peer, self.id);
        let broken = |cause: WireError| FetchError::Broken { id, cause };
        let want = Want {
            id,
            offset: self.bytes.len() as u64,
        };
        wire::send(stream, &want).await.map_err(broken)?;
        let length = match patient(wire::receive(stream)).await.map_err(broken)? {
            Answer::Content { length } => length,
            Answer::Missing => return Err(FetchError::Missing { peer, id }),
        };
        if length > self.bytes_max {
            return Err(FetchError::TooLong {
                id,
                length,
                limit: self.bytes_max,
            });
        }
        self.verifier
            .get_or_insert_with(|| Verifier::new(id, length));
        let length = usize::try_from(length).expect("the limit fits this machine's memory");
        while self.bytes.len() < length {
            let start = self.bytes.len();
            self.read_frame(stream, length).await.map_err(broken)?;
            let verifier = self
                .verifier
                .as_mut()
                .expect("it was made with the first length");
            verifier
                .feed(&self.bytes[start..])
                .map_err(|_| FetchError::Corrupt { peer, id })?;
        }
        Ok(())
    }

    /// Reads what has come, at most one frame.
    async fn read_frame(&mut self, stream: &mut Stream, length: usize) -> Result<(), WireError> {
        let start = self.bytes.len();
        self.bytes.resize(length.min(start + FRAME_BYTES), 0);
        let read = patient(async { Ok(stream.read(&mut self.bytes[start..]).await?) }).await;
        self.bytes.truncate(start + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(WireError::Stream(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<Bytes, FetchError> {
        let (peer, id) = (self.peer, self.id);
        let verified = self
            .verifier
            .is_some_and(|verifier| verifier.finish().is_ok());
        match verified {
            true => Ok(Bytes::from(self.bytes)),
            false => Err(FetchError::Corrupt { peer, id }),
        }
    }
}

async fn patient<T>(work: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = || WireError::Stream(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(SILENCE_MAX, work)
        .await
        .map_err(|_| silent())?
}

async fn serve(mut stream: Stream, store: &Store) -> Result<(), WireError> {
    while let Some(want) = patient(wire::receive_or_end::<Want>(&mut stream)).await? {
        let held = store.get(&want.id).ok().flatten();
        let Some(bytes) = held else {
            wire::send(&mut stream, &Answer::Missing).await?;
            continue;
        };
        let answer = Answer::Content {
            length: bytes.len() as u64,
        };
        wire::send(&mut stream, &answer).await?;
        let offset = usize::try_from(want.offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        for frame in bytes[offset..].chunks(FRAME_BYTES) {
            patient(async { Ok(stream.write_all(frame).await?) }).await?;
        }
        stream.flush().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact::Contact;
    use crate::key::NodeKey;
    use crate::network::Config;

    const LIMIT: u64 = 64 << 20;

    async fn node() -> (Tensors, Contact) {
        let key = NodeKey::generate();
        let listen = Some("/ip4/127.0.0.1/tcp/0".parse().unwrap());
        let network = Network::start(
            &key,
            Config {
                listen,
                ..Config::default()
            },
        )
        .await
        .unwrap();
        let contact = Contact {
            account: key.public(),
            addresses: network.addresses().await,
        };
        let store = Arc::new(Store::in_memory(LIMIT));
        (Tensors::start(network, store, LIMIT), contact)
    }

    async fn pair() -> (Tensors, Tensors, PeerId) {
        let (sender, contact) = node().await;
        let (receiver, _) = node().await;
        receiver.network.learn(&contact).await.unwrap();
        (sender, receiver, contact.peer().unwrap())
    }

    #[tokio::test]
    async fn content_travels_once() {
        let (sender, receiver, peer) = pair().await;
        let bytes = Bytes::from((0..3_000_000_u32).map(|n| n as u8).collect::<Vec<_>>());
        let id = sender.store().put(bytes.clone()).unwrap();
        let fetched = receiver.fetch(peer, id).await.unwrap();
        assert_eq!(
            fetched,
            Fetched {
                bytes: bytes.clone(),
                moved: bytes.len() as u64
            }
        );
        assert_eq!(receiver.fetch(peer, id).await.unwrap().moved, 0);
    }

    #[tokio::test]
    async fn what_a_peer_lacks_is_missing_by_name() {
        let (_sender, receiver, peer) = pair().await;
        let id = ContentId::of(b"nobody has this");
        let missing = receiver.fetch(peer, id).await.unwrap_err();
        assert!(matches!(missing, FetchError::Missing { id: named, .. } if named == id));
    }

    #[tokio::test]
    async fn a_lie_about_the_bytes_is_found() {
        let (liar, contact) = {
            let key = NodeKey::generate();
            let listen = Some("/ip4/127.0.0.1/tcp/0".parse().unwrap());
            let network = Network::start(
                &key,
                Config {
                    listen,
                    ..Config::default()
                },
            )
            .await
            .unwrap();
            let contact = Contact {
                account: key.public(),
                addresses: network.addresses().await,
            };
            (network, contact)
        };
        liar.serve(PROTOCOL, 1, |_, mut stream| async move {
            let _: Want = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &Answer::Content { length: 5 })
                .await
                .unwrap();
            stream.write_all(b"other").await.unwrap();
            stream.close().await.unwrap();
        });
        let (receiver, _) = node().await;
        receiver.network.learn(&contact).await.unwrap();
        let id = ContentId::of(b"these");
        let corrupt = receiver
            .fetch(contact.peer().unwrap(), id)
            .await
            .unwrap_err();
        assert!(matches!(corrupt, FetchError::Corrupt { .. }), "{corrupt}");
    }

    #[tokio::test]
    async fn a_broken_transfer_goes_on_where_it_stopped() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static FIRST: AtomicUsize = AtomicUsize::new(0);
        let key = NodeKey::generate();
        let listen = Some("/ip4/127.0.0.1/tcp/0".parse().unwrap());
        let network = Network::start(
            &key,
            Config {
                listen,
                ..Config::default()
            },
        )
        .await
        .unwrap();
        let contact = Contact {
            account: key.public(),
            addresses: network.addresses().await,
        };
        // The first stream gives half and breaks; the second must be asked for the rest alone.
        network.serve(PROTOCOL, 1, |_, mut stream| async move {
            let want: Want = wire::receive(&mut stream).await.unwrap();
            wire::send(&mut stream, &Answer::Content { length: 10 })
                .await
                .unwrap();
            let half: &[u8] = if want.offset == 0 { b"first" } else { b"other" };
            FIRST.fetch_add(want.offset as usize, Ordering::Relaxed);
            stream.write_all(half).await.unwrap();
            stream.close().await.unwrap();
        });
        let (receiver, _) = node().await;
        receiver.network.learn(&contact).await.unwrap();
        let id = ContentId::of(b"firstother");
        let fetched = receiver.fetch(contact.peer().unwrap(), id).await.unwrap();
        assert_eq!(&fetched.bytes[..], b"firstother");
        assert_eq!(FIRST.load(Ordering::Relaxed), 5);
    }
}
