//! Content between peers: `/souk/tensor/2`, asked for by id under a job, checked by id.
//!
//! The receiver asks, so nothing travels that it has already. It is told the hashes of the frames
//! first, and checks each frame as it comes: what was checked stays, so a transfer that broke goes
//! on behind it, and a frame that is wrong is fetched again, from another peer if there is one.
//! Long content goes over a [direct channel](crate::content::direct) where one comes about, else
//! over libp2p. To know an id is not enough to have the content: it is served to the parties of the
//! job, and used for a buyer that has shown it ([access](crate::content::access)).

mod coming;
mod config;
mod error;
mod order;
mod protocol;
mod serving;
mod transfer;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::io::BufReader;
use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use souk_market::AccountKey;
use souk_memory::transfers::Urgency;
use souk_memory::{ContentId, Store, VerifiedContent};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::unix_ms;
use crate::content::access::Access;
use crate::content::direct::{DirectChannels, DirectError};
use crate::content::links::{Carrier, Links, Sample};
use crate::content::pace::Pacer;
use crate::folder::key::{self, NodeKey};
use crate::network::Network;
use crate::network::wire::{self, WireError};
use coming::WantedHere;
use order::{Gate, TransferQueue};
use protocol::{ContentRequest, WANTS_MAX, look_up_aside};
use serving::ContentServer;
use transfer::{TensorStream, Transfer, TransferProgress};

pub use crate::content::access::Scope;
pub use config::TransferConfig;
pub use error::FetchError;
pub use order::TooManyTransfers;

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/tensor/2");

/// Streams a node serves at a time; the others wait.
const SERVED_MAX: usize = 64;

/// Times a broken transfer is taken up again.
const RESUMES_MAX: usize = 3;

/// A peer that gives nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Content this long goes over a direct channel: below it the hand-shake costs more than it saves.
const DIRECT_BYTES_MIN: u64 = 4 << 20;

/// Memory that content left behind is kept for the next for so long, twice that at most.
const SPARE_PAGES_FOR: Duration = Duration::from_secs(20);

/// Content that is here now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedContent {
    /// The content.
    pub bytes: Bytes,
    /// Bytes that came over the network; 0 where the content was here already.
    pub moved: u64,
    /// Who sent the last of it, and over what; none where it was here already.
    pub from: Option<(PeerId, Carrier)>,
    /// What it took.
    pub took: Option<Sample>,
}

/// Serves and fetches content of one store.
#[derive(Clone)]
pub struct Tensors(Arc<TensorsState>);

struct TensorsState {
    network: Network,
    store: Arc<Store>,
    bytes_max: u64,
    download: Arc<Pacer>,
    server: Arc<ContentServer>,
    access: Arc<Access>,
    channels: DirectChannels,
    links: Links,
    account: AccountKey,
    /// What is being fetched: who else wants it waits, and then has it.
    coming: coming::Contents,
    queue: Arc<TransferQueue>,
}

impl Tensors {
    /// Serves `store` to peers and fetches into it.
    ///
    /// # Errors
    /// When the address for direct channels cannot be listened on.
    pub async fn start(
        network: Network,
        key: &NodeKey,
        store: Arc<Store>,
        config: TransferConfig,
    ) -> io::Result<Tensors> {
        let account = AccountKey(key.public());
        let access = Arc::new(Access::open(account, config.shown));
        let upload = Pacer::new(config.upload);
        let server = Arc::new(ContentServer::new(store.clone(), access.clone(), upload));
        let of_channels = server.clone();
        let serve_channel = move |peer, mut channel| {
            if let Err(error) = serving::on_channel(peer, &mut channel, &of_channels) {
                tracing::debug!(%peer, %error, "a direct channel ended early");
            }
        };
        let channels =
            DirectChannels::start(network.clone(), key.clone(), config.channel, serve_channel)
                .await?;
        let of_streams = server.clone();
        network.serve(PROTOCOL, SERVED_MAX, move |peer, stream| {
            let server = of_streams.clone();
            async move {
                let ended = serving::on_stream(peer, stream, &server).await;
                if let Err(error) = &ended {
                    tracing::debug!(%peer, %error, "a transfer ended early");
                }
                ended
            }
        });
        tokio::spawn(age_spare_pages(Arc::downgrade(&store)));
        Ok(Tensors(Arc::new(TensorsState {
            network,
            store,
            bytes_max: config.bytes_max,
            download: Arc::new(Pacer::new(config.download)),
            server,
            access,
            channels,
            links: Links::open(config.links),
            account,
            coming: Mutex::default(),
            queue: Arc::default(),
        })))
    }

    /// The store behind.
    pub fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Bytes of content that went to other peers, and that came from them.
    pub fn moved(&self) -> (u64, u64) {
        (self.0.server.sent(), self.0.download.passed())
    }

    /// What is served to whom, and used for whom.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// What is known of the ways between peers.
    pub fn links(&self) -> &Links {
        &self.0.links
    }

    /// Brings `id` of a job into the store from `peer`, unless it is there and the job's buyer has
    /// shown it before.
    pub async fn fetch(
        &self,
        scope: Scope,
        peer: PeerId,
        id: ContentId,
    ) -> Result<FetchedContent, FetchError> {
        self.fetch_from(scope, &[peer], id).await
    }

    /// The same from the first of `holders`. Where one fails, the next goes on behind what has
    /// come.
    ///
    /// # Errors
    /// What the first of them failed with that is not just without the content.
    pub async fn fetch_from(
        &self,
        scope: Scope,
        holders: &[PeerId],
        id: ContentId,
    ) -> Result<FetchedContent, FetchError> {
        self.fetch_as(Urgency::Awaited, scope, holders, id).await
    }

    /// The same for what may not be awaited yet: what is more urgent goes first.
    ///
    /// # Errors
    /// As [`Tensors::fetch_from`].
    pub async fn fetch_as(
        &self,
        urgency: Urgency,
        scope: Scope,
        holders: &[PeerId],
        id: ContentId,
    ) -> Result<FetchedContent, FetchError> {
        let coming = WantedHere::new(&self.0.coming, id);
        coming.wanted.hurry(urgency);
        let _alone = coming.wanted.alone.lock().await;
        if self.0.access.may_use(scope.buyer, &id)
            && let Some(held) = look_up_aside(&self.0.store, id).await
        {
            let bytes = held.bytes;
            return Ok(FetchedContent {
                bytes,
                moved: 0,
                from: None,
                took: None,
            });
        }
        let mut transfer = self.0.transfer(scope, id);
        let mut failed: Option<FetchError> = None;
        for &holder in holders {
            transfer.ask_another();
            let urgency = coming.wanted.urgency.subscribe();
            let bringing = self.0.clone().bring(holder, transfer, urgency);
            let (left, came) = on_a_worker(bringing).await;
            match came {
                Ok(way) => return self.0.arrived(left, holder, way).await,
                Err(error) => {
                    tracing::warn!(peer = %holder, %error, "content did not come");
                    transfer = left;
                    let telling = |known: &FetchError| !matches!(known, FetchError::Missing { .. });
                    if !failed.as_ref().is_some_and(telling) {
                        failed = Some(error);
                    }
                }
            }
        }
        Err(failed.unwrap_or(FetchError::Nobody { id }))
    }

    /// Somebody waits for a content that is perhaps on its way: it goes first from now on.
    pub fn hurry(&self, id: &ContentId) {
        if let Some(wanted) = lock(&self.0.coming).get(id) {
            wanted.hurry(Urgency::Awaited);
        }
    }

    /// Brings many contents from one peer, those that are short without a question for each.
    ///
    /// # Errors
    /// What the first of them failed with; what came before it is kept.
    pub async fn fetch_many(
        &self,
        scope: Scope,
        peer: PeerId,
        ids: &[ContentId],
    ) -> Result<Vec<FetchedContent>, FetchError> {
        let mut short = self.fetch_short(Urgency::Awaited, scope, peer, ids).await;
        let mut fetched = Vec::with_capacity(ids.len());
        for &id in ids {
            fetched.push(match short.remove(&id) {
                Some(came) => came,
                None => self.fetch(scope, peer, id).await?,
            });
        }
        Ok(fetched)
    }

    /// Brings those of many contents that are short from one peer, without a question for each;
    /// what does not come, or is here already, is not among those returned.
    pub async fn fetch_short(
        &self,
        urgency: Urgency,
        scope: Scope,
        peer: PeerId,
        ids: &[ContentId],
    ) -> BTreeMap<ContentId, FetchedContent> {
        let mut fetched = BTreeMap::new();
        for ids in ids.chunks(WANTS_MAX) {
            let asking = self
                .0
                .bring_short((urgency, scope, peer), ids, &mut fetched);
            if let Err(error) = asking.await {
                tracing::debug!(%peer, %error, "the rest is asked for one by one");
                break;
            }
        }
        fetched
    }
}

impl TensorsState {
    fn transfer(&self, scope: Scope, id: ContentId) -> Transfer {
        Transfer::new((scope, id), self.store.clone(), self.bytes_max)
    }

    /// Brings what is missing of a content from one peer.
    async fn bring(
        self: Arc<Self>,
        peer: PeerId,
        mut transfer: Transfer,
        urgency: watch::Receiver<Urgency>,
    ) -> (Transfer, Result<Carrier, FetchError>) {
        let mut gate = match self.gate(peer, urgency).await {
            Ok(gate) => gate,
            Err(full) => return (transfer, Err(full.into())),
        };
        let (mut resumes, mut body_bytes_max) = (0, DIRECT_BYTES_MIN);
        // Over which of several connections it is asked for, where any one will not do.
        let mut over = None;
        loop {
            let way = (peer, over);
            let asking = self.over_stream(way, &mut transfer, body_bytes_max, &mut gate);
            let reached = asking.await;
            let (again, reached) = match reached {
                Ok(TransferProgress::End) => return (transfer, Ok(Carrier::Stream)),
                Ok(TransferProgress::Head) => match self.channels.acquire(peer).await {
                    Ok(channel) => {
                        let moving = transfer::on_a_thread(transfer, peer, channel, gate);
                        let (transfer, passed, moved) = moving.await;
                        gate = passed;
                        match moved {
                            Ok(channel) => {
                                self.channels.keep(peer, channel);
                                return (transfer, Ok(Carrier::Direct));
                            }
                            Err(error) => (transfer, error),
                        }
                    }
                    Err(why) => {
                        self.say(peer, &why);
                        body_bytes_max = u64::MAX;
                        continue;
                    }
                },
                Err(error) => (transfer, error),
            };
            transfer = again;
            transfer.interrupted();
            match reached {
                FetchError::Broken { cause, id } if resumes < RESUMES_MAX => {
                    let at = transfer.next_frame();
                    tracing::debug!(%peer, %id, %cause, at, "resuming");
                    resumes += 1;
                }
                // Another process of the same key may be at the end of another connection.
                FetchError::Missing { .. } if self.is_elsewhere(peer, over) => {
                    over = Some(over.map_or(0, |number| number + 1));
                    body_bytes_max = u64::MAX;
                }
                error => return (transfer, Err(error)),
            }
        }
    }

    /// Whether there is another connection to a peer than those that were tried.
    fn is_elsewhere(&self, peer: PeerId, over: Option<usize>) -> bool {
        let connections = self.network.connections(peer);
        connections > 1 && over.map_or(0, |number| number + 1) < connections
    }

    /// What a transfer from `peer` passes, once its turn has come.
    async fn gate(
        &self,
        peer: PeerId,
        urgency: watch::Receiver<Urgency>,
    ) -> Result<Gate, TooManyTransfers> {
        let turn = self.queue.take(peer, urgency).await?;
        let pace = self.download.clone();
        Ok(Gate { pace, turn })
    }

    fn say(&self, peer: PeerId, why: &DirectError) {
        tracing::debug!(%peer, %why, "over libp2p, not a direct channel");
    }

    async fn over_stream(
        &self,
        (peer, over): (PeerId, Option<usize>),
        transfer: &mut Transfer,
        body_bytes_max: u64,
        gate: &mut Gate,
    ) -> Result<TransferProgress, FetchError> {
        let mut line = match over {
            None => self.line(peer).await?,
            Some(number) => BufReader::new(self.network.open_over(peer, PROTOCOL, number).await?),
        };
        let reached = transfer
            .over_stream(peer, &mut line, body_bytes_max, gate)
            .await;
        match &reached {
            Ok(_) | Err(FetchError::Missing { .. }) => self.keep(peer, line),
            // The others to that peer are of the same connection.
            Err(FetchError::Broken { .. }) => self.network.forget_kept(peer, PROTOCOL),
            Err(_) => {}
        }
        reached
    }

    /// Asks for several contents at once and keeps those that are short and right; the others are
    /// left to be fetched by themselves.
    async fn bring_short(
        &self,
        (urgency, scope, peer): (Urgency, Scope, PeerId),
        ids: &[ContentId],
        fetched: &mut BTreeMap<ContentId, FetchedContent>,
    ) -> Result<(), FetchError> {
        let mut transfers: Vec<Transfer> = Vec::with_capacity(ids.len());
        for &id in ids {
            let is_asked_for = transfers.iter().any(|other| other.id() == id);
            let is_here = self.access.may_use(scope.buyer, &id) && self.store.contains(&id);
            if !is_here && !is_asked_for {
                transfers.push(self.transfer(scope, id));
            }
        }
        let Some(first) = transfers.first() else {
            return Ok(());
        };
        let broken = |cause| FetchError::Broken {
            id: first.want(0).id,
            cause,
        };
        let urgency = watch::Sender::new(urgency);
        let mut gate = self.gate(peer, urgency.subscribe()).await?;
        let mut line = self.line(peer).await?;
        let short = |transfer: &Transfer| transfer.want(souk_memory::FRAME_BYTES as u64);
        let wants = transfers.iter().map(short).collect();
        let asked = patient(wire::send(&mut line, &ContentRequest { scope, wants })).await;
        asked.map_err(broken)?;
        let mut arrived = Vec::with_capacity(transfers.len());
        let mut ended = Ok(());
        for mut transfer in transfers {
            let answer = transfer.take_answer(peer, &mut line, &mut gate, None);
            match answer.await {
                Ok(TransferProgress::End) => arrived.extend(transfer.finish()),
                Ok(TransferProgress::Head) | Err(FetchError::Missing { .. }) => {}
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        if ended.is_ok() {
            self.keep(peer, line);
        }
        let came: Vec<_> = arrived
            .iter()
            .map(|one| (one.id(), one.bytes().clone()))
            .collect();
        self.store_aside(arrived).await?;
        let came = came.into_iter().map(|(id, bytes)| {
            self.access.show(scope.buyer, id);
            let moved = bytes.len() as u64;
            let fetched = FetchedContent {
                bytes,
                moved,
                from: Some((peer, Carrier::Stream)),
                took: None,
            };
            (id, fetched)
        });
        fetched.extend(came);
        ended
    }

    async fn arrived(
        &self,
        transfer: Transfer,
        peer: PeerId,
        way: Carrier,
    ) -> Result<FetchedContent, FetchError> {
        let took = self.observe(peer, way, &transfer);
        let (buyer, id) = (transfer.scope().buyer, transfer.id());
        let arrived = transfer.finish().expect("the end was reached");
        let bytes = arrived.bytes().clone();
        let moved = bytes.len() as u64;
        self.store_aside(vec![arrived]).await?;
        self.access.show(buyer, id);
        Ok(FetchedContent {
            bytes,
            moved,
            from: Some((peer, way)),
            took: Some(took),
        })
    }

    fn observe(&self, peer: PeerId, way: Carrier, transfer: &Transfer) -> Sample {
        let measured = transfer.measured;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let sample = Sample {
            at_ms: unix_ms(),
            bytes: measured.bytes,
            micros: micros(measured.moving),
            latency_micros: measured.answered.map(micros),
            way,
        };
        if let Some(from) = key::account_of(&peer) {
            self.links.observe(AccountKey(from), self.account, sample);
        }
        sample
    }

    /// Writes to the store without waiting for a disk on the runtime's threads.
    async fn store_aside(&self, arrived: Vec<VerifiedContent>) -> Result<(), FetchError> {
        let store = self.store.clone();
        let put = move || {
            arrived
                .into_iter()
                .try_for_each(|one| store.put_arrived(one))
        };
        if !self.store.has_folder() {
            return Ok(put()?);
        }
        let put = tokio::task::spawn_blocking(put).await;
        put.expect("storing does not panic")?;
        Ok(())
    }

    /// A stream to `peer`, one of those kept or a new one.
    async fn line(&self, peer: PeerId) -> Result<TensorStream, FetchError> {
        let stream = match self.network.take_kept(peer, &PROTOCOL) {
            Some(kept) => kept,
            None => self.network.open(peer, PROTOCOL).await?,
        };
        Ok(BufReader::new(stream))
    }

    /// Keeps a stream whose answers were read to their end.
    fn keep(&self, peer: PeerId, line: TensorStream) {
        if line.buffer().is_empty() {
            self.network.keep(peer, PROTOCOL, line.into_inner());
        }
    }
}

/// Gives memory back to the system that no content wants, as long as there is the store.
async fn age_spare_pages(store: Weak<Store>) {
    let mut period = tokio::time::interval(SPARE_PAGES_FOR);
    loop {
        period.tick().await;
        let Some(store) = store.upgrade() else { return };
        store.age_spare_pages();
    }
}

/// Does work on the runtime's own threads, wherever it is waited for; dropped, it ends. The task of
/// the connection then hands over bytes on its own thread, where they are in the cache: another
/// thread that was woken for each piece took a fifth more of the processors' time.
async fn on_a_worker<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn(work);
    let done = task.join_next().await.expect("it was spawned just now");
    done.expect("moving bytes does not panic")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under these locks is whole before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn patient<T>(work: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = || WireError::Stream(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(SILENCE_MAX, work)
        .await
        .map_err(|_| silent())?
}

#[cfg(test)]
mod tests;
