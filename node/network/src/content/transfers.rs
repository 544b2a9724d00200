//! Transfers content between peers over `/souk/tensor/2`: a peer requests it by id under a job, and
//! checks it by its id.
//!
//! The receiver requests content, so nothing travels that it already has. It first receives the
//! hashes of the frames, and checks each frame when it arrives. It keeps checked frames, so a
//! broken transfer can resume behind them; it will fetch a wrong frame again, from another peer if
//! there is one. Long content uses a [direct channel](crate::content::direct) if one opens, else
//! libp2p. To know an id does not give access to the content: a peer will serve it only to the
//! parties of the job, and will use it only for a buyer that has provided it
//! ([access](crate::content::access)).

mod config;
mod error;
mod fetched_content;
mod in_flight;
mod order;
mod protocol;
mod serving;
mod transfer;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::io::BufReader;
use libp2p::PeerId;
use libp2p::swarm::StreamProtocol;
use souk_folder::clock::unix_ms;
use souk_folder::key::{self, NodeKey};
use souk_market::AccountKey;
use souk_memory::transfers::Urgency;
use souk_memory::{ContentId, Store, VerifiedContent};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Network;
use crate::content::access::Access;
use crate::content::direct::{DirectChannels, DirectError};
use crate::content::links::{Carrier, Links, Sample};
use crate::content::pace::Pacer;
use crate::wire::{self, WireError};
use in_flight::InFlight;
use order::{Gate, TransferQueue};
use protocol::{ContentRequest, WANTS_MAX, look_up_aside};
use serving::ContentServer;
use transfer::{TensorStream, Transfer, TransferProgress};

pub use crate::content::access::Scope;
pub use config::TransferConfig;
pub use error::FetchError;
pub use fetched_content::FetchedContent;
pub use order::TooManyTransfers;

/// The protocol of transfers.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/tensor/2");

/// The most streams that a node serves at a time; the others wait.
const SERVED_MAX: usize = 64;

/// How often a broken transfer resumes.
const RESUMES_MAX: usize = 3;

/// How long a peer can be silent before the transfer breaks.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The least length of content for a direct channel: below it, the handshake costs more than it
/// saves.
const DIRECT_BYTES_MIN: u64 = 4 << 20;

/// How long the memory of unused content is kept for new content; at most twice that.
const SPARE_PAGES_FOR: Duration = Duration::from_secs(20);

/// Serves and fetches the content of one store.
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
    /// Content that is on its way: further callers wait and then share it.
    coming: in_flight::Contents,
    queue: Arc<TransferQueue>,
}

impl Tensors {
    /// Serves `store` to peers and fetches into it.
    ///
    /// # Errors
    /// When the node cannot listen on the address for direct channels.
    pub async fn start(
        network: Network,
        key: &NodeKey,
        store: Arc<Store>,
        config: TransferConfig,
    ) -> io::Result<Tensors> {
        let account = AccountKey(key.public_key());
        let access = Arc::new(Access::load_or_default(account, config.shown));
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
        network.serve_protocol(PROTOCOL, SERVED_MAX, move |peer, stream| {
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
            links: Links::load_or_default(config.links),
            account,
            coming: Mutex::default(),
            queue: Arc::default(),
        })))
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Returns how many bytes of content went to other peers, and how many came from them.
    pub fn bytes_moved(&self) -> (u64, u64) {
        (self.0.server.bytes_sent(), self.0.download.bytes_passed())
    }

    /// Returns whether the node limits what it sends.
    pub(crate) fn limits_uploads(&self) -> bool {
        self.0.server.is_limited()
    }

    /// Returns the rules that decide which peer may fetch which content.
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// Returns the measured links between peers.
    pub fn links(&self) -> &Links {
        &self.0.links
    }

    /// Fetches `id` for a job from `peer` into the store, unless it is there and the job's buyer
    /// has provided it before.
    ///
    /// # Errors
    /// As [`Tensors::fetch_from`].
    pub async fn fetch_content(
        &self,
        scope: Scope,
        peer: PeerId,
        id: ContentId,
    ) -> Result<FetchedContent, FetchError> {
        self.fetch_from(scope, &[peer], id).await
    }

    /// Fetches from the first of `holders`. If one fails, the next continues behind the received
    /// frames.
    ///
    /// # Errors
    /// The first error other than [`FetchError::Missing`], or else the last one.
    pub async fn fetch_from(
        &self,
        scope: Scope,
        holders: &[PeerId],
        id: ContentId,
    ) -> Result<FetchedContent, FetchError> {
        self.fetch_as(Urgency::Awaited, scope, holders, id).await
    }

    /// Fetches with a lower urgency: more urgent transfers go first.
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
        let whole = (id, u64::MAX);
        self.fetch_bounded(urgency, scope, holders, whole).await
    }

    /// Fetches a content of at most so many bytes; a longer one is refused before it comes.
    ///
    /// # Errors
    /// As [`Tensors::fetch_from`].
    pub async fn fetch_bounded(
        &self,
        urgency: Urgency,
        scope: Scope,
        holders: &[PeerId],
        (id, bytes_max): (ContentId, u64),
    ) -> Result<FetchedContent, FetchError> {
        let coming = InFlight::new(&self.0.coming, id);
        coming.wanted.raise_urgency(urgency);
        let _alone = coming.wanted.alone.lock().await;
        if self.0.access.may_use(scope.buyer, &id)
            && let Some(held) = look_up_aside(&self.0.store, id).await
        {
            return Ok(FetchedContent::held_here(held.bytes));
        }
        let mut transfer = self.0.new_transfer(scope, id, bytes_max);
        let mut failed: Option<FetchError> = None;
        for &holder in holders {
            transfer.ask_another();
            let urgency = coming.wanted.urgency.subscribe();
            let bringing = self.0.clone().fetch_frames(holder, transfer, urgency);
            let (left, came) = on_a_worker(bringing).await;
            match came {
                Ok(way) => return self.0.finish_arrival(left, holder, way).await,
                Err(error) => {
                    tracing::warn!(peer = %holder, %error, "fetching content from a peer failed");
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

    /// Raises a content that can be on its way to the highest urgency, because a caller waits for
    /// it.
    pub fn hurry_content(&self, id: &ContentId) {
        if let Some(wanted) = lock(&self.0.coming).get(id) {
            wanted.raise_urgency(Urgency::Awaited);
        }
    }

    /// Fetches many contents from one peer, and requests the short ones together.
    ///
    /// # Errors
    /// The first error. The contents that came before it remain in the store.
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
                None => self.fetch_content(scope, peer, id).await?,
            });
        }
        Ok(fetched)
    }

    /// Fetches the short ones of many contents from one peer, with few requests. The result lacks
    /// those that did not come or were there already.
    pub async fn fetch_short(
        &self,
        urgency: Urgency,
        scope: Scope,
        peer: PeerId,
        ids: &[ContentId],
    ) -> BTreeMap<ContentId, FetchedContent> {
        let mut fetched = BTreeMap::new();
        for ids in ids.chunks(WANTS_MAX) {
            let asking = self.0.bring_short(urgency, scope, peer, ids, &mut fetched);
            if let Err(error) = asking.await {
                tracing::debug!(%peer, %error, "fetching the remaining contents one by one");
                break;
            }
        }
        fetched
    }
}

impl TensorsState {
    fn new_transfer(&self, scope: Scope, id: ContentId, bytes_max: u64) -> Transfer {
        Transfer::new(
            (scope, id),
            self.store.clone(),
            bytes_max.min(self.bytes_max),
        )
    }

    /// Fetches the missing frames of a content from one peer.
    async fn fetch_frames(
        self: Arc<Self>,
        peer: PeerId,
        mut transfer: Transfer,
        urgency: watch::Receiver<Urgency>,
    ) -> (Transfer, Result<Carrier, FetchError>) {
        let mut gate = match self.wait_for_gate(peer, urgency).await {
            Ok(gate) => gate,
            Err(full) => return (transfer, Err(full.into())),
        };
        let (mut resumes, mut body_bytes_max) = (0, DIRECT_BYTES_MIN);
        // The connection to use, if there are several and not every one leads to a holder.
        let mut over = None;
        loop {
            let asking = self.over_stream(peer, over, &mut transfer, body_bytes_max, &mut gate);
            let reached = asking.await;
            let (again, reached) = match reached {
                Ok(TransferProgress::End) => return (transfer, Ok(Carrier::Stream)),
                Ok(TransferProgress::Head) => match self.channels.acquire_channel(peer).await {
                    Ok(channel) => {
                        let moving = transfer::on_a_thread(transfer, peer, channel, gate);
                        let (transfer, passed, moved) = moving.await;
                        gate = passed;
                        match moved {
                            Ok(channel) => {
                                self.channels.keep_channel(peer, channel);
                                return (transfer, Ok(Carrier::Direct));
                            }
                            Err(error) => (transfer, error),
                        }
                    }
                    Err(why) => {
                        self.log_fallback(peer, &why);
                        body_bytes_max = u64::MAX;
                        continue;
                    }
                },
                Err(error) => (transfer, error),
            };
            transfer = again;
            transfer.drop_partial_frame();
            match reached {
                FetchError::Broken { cause, id } if resumes < RESUMES_MAX => {
                    let at = transfer.next_frame();
                    tracing::debug!(%peer, %id, %cause, at, "the transfer broke; resuming it");
                    resumes += 1;
                }
                // Another process of the same key can be at the end of another connection.
                FetchError::Missing { .. } if self.is_elsewhere(peer, over) => {
                    over = Some(over.map_or(0, |number| number + 1));
                    body_bytes_max = u64::MAX;
                }
                error => return (transfer, Err(error)),
            }
        }
    }

    /// Returns whether there is a connection to the peer that was not tried.
    fn is_elsewhere(&self, peer: PeerId, over: Option<usize>) -> bool {
        let connections = self.network.connection_count(peer);
        connections > 1 && over.map_or(0, |number| number + 1) < connections
    }

    /// Waits for the turn of a transfer from `peer`, and returns its gate.
    async fn wait_for_gate(
        &self,
        peer: PeerId,
        urgency: watch::Receiver<Urgency>,
    ) -> Result<Gate, TooManyTransfers> {
        let turn = self.queue.wait_for_turn(peer, urgency).await?;
        let pace = self.download.clone();
        Ok(Gate { pace, turn })
    }

    fn log_fallback(&self, peer: PeerId, why: &DirectError) {
        tracing::debug!(%peer, %why, "no direct channel; transferring over libp2p");
    }

    async fn over_stream(
        &self,
        peer: PeerId,
        over: Option<usize>,
        transfer: &mut Transfer,
        body_bytes_max: u64,
        gate: &mut Gate,
    ) -> Result<TransferProgress, FetchError> {
        let mut line = match over {
            None => self.acquire_stream(peer).await?,
            Some(number) => BufReader::new(self.network.open_over(peer, PROTOCOL, number).await?),
        };
        let reached = transfer
            .over_stream(peer, &mut line, body_bytes_max, gate)
            .await;
        match &reached {
            Ok(_) | Err(FetchError::Missing { .. }) => self.keep_stream(peer, line),
            // The other idle streams to that peer use the same connection.
            Err(FetchError::Broken { .. }) => self.network.forget_kept(peer, PROTOCOL),
            Err(_) => {}
        }
        reached
    }

    /// Requests several contents at once and keeps those that are short and correct. The caller
    /// must fetch the others one by one.
    async fn bring_short(
        &self,
        urgency: Urgency,
        scope: Scope,
        peer: PeerId,
        ids: &[ContentId],
        fetched: &mut BTreeMap<ContentId, FetchedContent>,
    ) -> Result<(), FetchError> {
        let mut transfers: Vec<Transfer> = Vec::with_capacity(ids.len());
        for &id in ids {
            let is_asked_for = transfers.iter().any(|other| other.id() == id);
            let is_here = self.access.may_use(scope.buyer, &id) && self.store.contains(&id);
            if !is_here && !is_asked_for {
                transfers.push(self.new_transfer(scope, id, u64::MAX));
            }
        }
        let Some(first) = transfers.first() else {
            return Ok(());
        };
        let broken = |cause| FetchError::Broken {
            id: first.next_request(0).id,
            cause,
        };
        let urgency = watch::Sender::new(urgency);
        let mut gate = self.wait_for_gate(peer, urgency.subscribe()).await?;
        let mut line = self.acquire_stream(peer).await?;
        let short = |transfer: &Transfer| transfer.next_request(souk_memory::FRAME_BYTES as u64);
        let wants = transfers.iter().map(short).collect();
        let asked = with_timeout(wire::send(&mut line, &ContentRequest { scope, wants })).await;
        asked.map_err(broken)?;
        let mut arrived = Vec::with_capacity(transfers.len());
        let mut ended = Ok(());
        for mut transfer in transfers {
            let answer = transfer.take_answer(peer, &mut line, &mut gate, None);
            match answer.await {
                Ok(TransferProgress::End) => arrived.extend(transfer.into_content()),
                Ok(TransferProgress::Head) | Err(FetchError::Missing { .. }) => {}
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        if ended.is_ok() {
            self.keep_stream(peer, line);
        }
        let came: Vec<_> = arrived
            .iter()
            .map(|one| (one.id(), one.bytes().clone()))
            .collect();
        self.store_aside(arrived).await?;
        let came = came.into_iter().map(|(id, bytes)| {
            self.access.record_arrival(scope.buyer, id);
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

    async fn finish_arrival(
        &self,
        transfer: Transfer,
        peer: PeerId,
        way: Carrier,
    ) -> Result<FetchedContent, FetchError> {
        let took = self.record_sample(peer, way, &transfer);
        let (buyer, id) = (transfer.scope().buyer, transfer.id());
        let arrived = transfer.into_content().expect("the end was reached");
        let bytes = arrived.bytes().clone();
        let moved = bytes.len() as u64;
        self.store_aside(vec![arrived]).await?;
        self.access.record_arrival(buyer, id);
        Ok(FetchedContent {
            bytes,
            moved,
            from: Some((peer, way)),
            took: Some(took),
        })
    }

    fn record_sample(&self, peer: PeerId, way: Carrier, transfer: &Transfer) -> Sample {
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
            self.links
                .record_sample(AccountKey(from), self.account, sample);
        }
        sample
    }

    /// Writes to the store without blocking the runtime's threads.
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

    /// Returns a stream to `peer`, either an idle or a new one.
    async fn acquire_stream(&self, peer: PeerId) -> Result<TensorStream, FetchError> {
        let stream = match self.network.take_kept(peer, &PROTOCOL) {
            Some(kept) => kept,
            None => self.network.open_stream(peer, PROTOCOL).await?,
        };
        Ok(BufReader::new(stream))
    }

    /// Keeps a stream whose answers were read to the end.
    fn keep_stream(&self, peer: PeerId, line: TensorStream) {
        if line.buffer().is_empty() {
            self.network.keep_stream(peer, PROTOCOL, line.into_inner());
        }
    }
}

/// Returns unused memory to the system for as long as the store exists.
async fn age_spare_pages(store: Weak<Store>) {
    let mut period = tokio::time::interval(SPARE_PAGES_FOR);
    loop {
        period.tick().await;
        let Some(store) = store.upgrade() else { return };
        store.age_spare_pages();
    }
}

/// Runs work as a task of the runtime; you can drop the future to end the task. The task of the
/// connection then passes bytes on in its own thread, where they are in the cache: waking another
/// thread for each piece took a fifth more processor time.
async fn on_a_worker<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn(work);
    let done = task.join_next().await.expect("it was spawned just now");
    done.expect("moving bytes does not panic")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a change half done under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn with_timeout<T>(work: impl Future<Output = Result<T, WireError>>) -> Result<T, WireError> {
    let silent = || WireError::Stream(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(SILENCE_MAX, work)
        .await
        .map_err(|_| silent())?
}

#[cfg(test)]
mod tests;
