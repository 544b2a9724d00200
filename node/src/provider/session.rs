//! One lease from the buyer's word to the receipt, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::AsyncReadExt;
use futures::io::{ReadHalf, WriteHalf};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{
    AccountKey, Command, DeviceMicros, Dtype, Lease, LeaseId, LeaseState, Millis, Receipt,
    ReceiptBody,
};
use souk_memory::{ContentId, Tensor};

use super::sessions::Awaited;
use super::work::{self, Ran};
use super::{Provider, receipts};
use crate::key;
use crate::lease_protocol::{
    Closing, Event, Failure, Finished, Go, Moved, Offer, Opening, PROTOCOL, Source, Start, Taken,
};
use crate::trader::unix_ms;
use crate::wire;

/// How long the buyer may take to fetch the outputs and sign.
const SIGN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long another provider may take to answer an offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs of less than this say more about clocks than about the device.
const TELLING_RUN: Duration = Duration::from_millis(20);

/// The buyer's stream, both ways.
struct Line {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
}

impl Line {
    /// Tells the buyer. A buyer that has gone does not stop the work: it is owed either way.
    async fn tell(&mut self, event: &Event) {
        if let Err(error) = wire::send(&mut self.writer, event).await {
            tracing::debug!(%error, "the buyer does not listen");
        }
    }
}

/// Serves the lease that `start` names.
pub(super) async fn serve(provider: &Provider, peer: PeerId, start: Start, stream: Stream) {
    let (reader, writer) = stream.split();
    let mut line = Line { reader, writer };
    let lease = start.lease;
    let worked = match admit(provider, peer, &start).await {
        Ok(admitted) => {
            let work = work(provider, &start, &admitted, &mut line);
            let worked = within_lease(&admitted, work).await;
            if worked.is_err() {
                give_up(provider, lease).await;
            }
            worked
        }
        Err(refused) => Err(refused),
    };
    match worked {
        Ok(finished) => close(provider, &mut line, finished).await,
        Err(failure) => {
            tracing::warn!(%lease, %failure, "the work was not done");
            line.tell(&Event::Failed(failure)).await;
        }
    }
}

/// The lease as the log has it, if this work may be done under it.
async fn admit(provider: &Provider, peer: PeerId, start: &Start) -> Result<Lease, Failure> {
    let found = provider.trader.broker().lease(start.lease).await;
    let lease = found.map_err(|error| Failure::Lease(error.to_string()))?;
    let refuse = |why: &str| Err(Failure::Lease(why.to_owned()));
    let Some(lease) = lease else { return refuse("no such lease is in the log") };
    if lease.provider != provider.trader.account() {
        return refuse("it is another provider's");
    }
    if key::account_of(&peer) != Some(lease.buyer.0) {
        return refuse("it is another buyer's");
    }
    if lease.job != start.job {
        return refuse("it is for another job");
    }
    if lease.state != LeaseState::Active {
        return refuse("it has ended");
    }
    Ok(lease)
}

async fn within_lease<T>(
    lease: &Lease,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let left = Duration::from_millis(lease.deadline.0.saturating_sub(unix_ms()));
    tokio::time::timeout(left, work).await.unwrap_or(Err(Failure::Expired))
}

async fn give_up(provider: &Provider, lease: LeaseId) {
    if let Err(error) = provider.trader.submit_one(Command::GiveUp { lease }).await {
        tracing::warn!(%lease, %error, "the lease was not given up");
    }
}

/// The work itself: everything between the admission and the buyer's signature.
async fn work(
    provider: &Provider,
    start: &Start,
    lease: &Lease,
    line: &mut Line,
) -> Result<Finished, Failure> {
    let (_running, awaited) = provider.sessions.begin(start)?;
    line.tell(&Event::Accepted).await;
    for contact in &start.peers {
        let learned = provider.network.learn(contact).await;
        learned.map_err(|error| Failure::Input(error.to_string()))?;
    }
    let mut fetched = Fetched::default();
    let buyer = key::peer_of(&lease.buyer.0).map_err(|error| Failure::Lease(error.to_string()))?;
    let program = {
        let (model, weights) = fetched.from_buyer(provider, buyer, lease.buyer, start).await?;
        line.tell(&fetched.summary()).await;
        work::compile(provider.device.clone(), model, weights).await?
    };
    line.tell(&Event::Compiled).await;
    let Ok(Go::Ahead) = wire::receive(&mut line.reader).await else {
        return Err(Failure::Input("the buyer went away before the work began".to_owned()));
    };
    fetched.from_providers(provider, start, awaited).await?;
    line.tell(&Event::Running).await;
    let started = Millis(unix_ms());
    let ran = work::run(provider, program, &start.name, fetched.inputs.clone()).await?;
    let outputs = offer_outputs(provider, start, &ran).await?;
    let body = receipt_body(provider, start, lease, started, &fetched, &ran, &outputs)?;
    let receipt = Receipt::new(body).sign_as_provider(provider.trader.key().signing());
    let Ran { report, timeline, .. } = ran;
    Ok(Finished { receipt, outputs, moved: fetched.moved, report, timeline })
}

/// What came over the network, and the inputs it made.
#[derive(Default)]
struct Fetched {
    inputs: BTreeMap<String, Tensor>,
    input_ids: Vec<ContentId>,
    moved: Vec<Moved>,
    pieces: u32,
    held: u32,
}

impl Fetched {
    fn summary(&self) -> Event {
        let bytes = self.moved.iter().map(|moved| moved.bytes).sum();
        Event::Fetched { pieces: self.pieces, held: self.held, bytes }
    }

    /// Graph and weights, returned, and the inputs that the buyer holds, kept.
    async fn from_buyer(
        &mut self,
        provider: &Provider,
        buyer: PeerId,
        account: AccountKey,
        start: &Start,
    ) -> Result<(bytes::Bytes, BTreeMap<ContentId, Tensor>), Failure> {
        let model = self.fetch(provider, buyer, account, start.graph, "graph").await?;
        let mut weights = BTreeMap::new();
        for id in &start.weights {
            let blob = self.fetch(provider, buyer, account, *id, "weights").await?;
            weights.insert(*id, tensor(&blob)?);
        }
        for input in &start.inputs {
            let Source::Buyer(id) = input.source else { continue };
            let blob = self.fetch(provider, buyer, account, id, &input.name).await?;
            self.inputs.insert(input.name.clone(), tensor(&blob)?);
            self.input_ids.push(id);
        }
        Ok((model, weights))
    }

    /// The inputs that other providers compute, as they are offered.
    async fn from_providers(
        &mut self,
        provider: &Provider,
        start: &Start,
        awaited: Awaited,
    ) -> Result<(), Failure> {
        for (name, peer, offered) in awaited {
            let gone = |_| Failure::Input(format!("{name} was never offered"));
            let id = offered.await.map_err(gone)?;
            let from = sender(start, &name);
            let blob = self.fetch(provider, peer, from, id, &name).await?;
            self.inputs.insert(name, tensor(&blob)?);
            self.input_ids.push(id);
        }
        Ok(())
    }

    async fn fetch(
        &mut self,
        provider: &Provider,
        peer: PeerId,
        from: AccountKey,
        id: ContentId,
        what: &str,
    ) -> Result<bytes::Bytes, Failure> {
        let fetched = provider.tensors.fetch(peer, id).await;
        let fetched = fetched.map_err(|error| Failure::Input(format!("{what}: {error}")))?;
        self.pieces += 1;
        self.held += u32::from(fetched.moved == 0);
        self.count(from, what, fetched.moved);
        Ok(fetched.bytes)
    }

    /// Adds to the bytes of the same thing from the same peer: weights are many, told as one.
    fn count(&mut self, from: AccountKey, what: &str, bytes: u64) {
        match self.moved.iter_mut().find(|moved| moved.from == from && moved.what == what) {
            Some(moved) => moved.bytes += bytes,
            None => self.moved.push(Moved { from, what: what.to_owned(), bytes }),
        }
    }
}

fn sender(start: &Start, name: &str) -> AccountKey {
    let input = start.inputs.iter().find(|input| input.name == name);
    match input.map(|input| &input.source) {
        Some(Source::Lease { provider, .. }) => *provider,
        _ => unreachable!("what is awaited is another lease's"),
    }
}

fn tensor(blob: &bytes::Bytes) -> Result<Tensor, Failure> {
    Tensor::from_blob(blob).map_err(|error| Failure::Input(error.to_string()))
}

/// Puts the outputs where peers can fetch them, and tells the providers that wait for them.
async fn offer_outputs(
    provider: &Provider,
    start: &Start,
    ran: &Ran,
) -> Result<Vec<(String, ContentId)>, Failure> {
    let mut outputs = Vec::with_capacity(start.outputs.len());
    for output in &start.outputs {
        let tensor = ran.outputs.get(&output.name);
        let tensor = tensor.ok_or_else(|| Failure::Run(format!("it gave no {}", output.name)))?;
        let stored = provider.tensors.store().put_tensor(tensor);
        let id = stored.map_err(|error| Failure::Run(error.to_string()))?;
        outputs.push((output.name.clone(), id));
        for (lease, consumer) in &output.consumers {
            let (from, to, name) = (start.lease, *lease, output.name.clone());
            offer(provider, *consumer, Offer { from, to, name, tensor: id }).await?;
        }
    }
    Ok(outputs)
}

async fn offer(provider: &Provider, to: AccountKey, offer: Offer) -> Result<(), Failure> {
    let name = offer.name.clone();
    let failed = |why: String| Failure::Offer(format!("{name}: {why}"));
    let peer = key::peer_of(&to.0).map_err(|error| failed(error.to_string()))?;
    let asking = async {
        let opened = provider.network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| error.to_string())?;
        let sent = wire::send(&mut stream, &Opening::Offer(offer)).await;
        sent.map_err(|error| error.to_string())?;
        wire::receive::<Taken>(&mut stream).await.map_err(|error| error.to_string())
    };
    match tokio::time::timeout(OFFER_TIMEOUT, asking).await {
        Ok(Ok(Taken::Yes)) => Ok(()),
        Ok(Ok(Taken::No)) => Err(failed("it does not wait for it".to_owned())),
        Ok(Err(error)) => Err(failed(error)),
        Err(_) => Err(failed(format!("no answer within {} s", OFFER_TIMEOUT.as_secs()))),
    }
}

fn receipt_body(
    provider: &Provider,
    start: &Start,
    lease: &Lease,
    started: Millis,
    fetched: &Fetched,
    ran: &Ran,
    outputs: &[(String, ContentId)],
) -> Result<ReceiptBody, Failure> {
    let usage = DeviceMicros(u64::try_from(ran.busy.as_micros()).unwrap_or(u64::MAX).max(1));
    let amount = ReceiptBody::due(lease.price, usage)
        .ok_or_else(|| Failure::Run("its price overflows".to_owned()))?;
    let id = |id: &ContentId| souk_market::ContentId(*id.as_bytes());
    let mega_ops = |time: Duration| (start.flops as f64 / time.as_secs_f64() / 1e6) as u64;
    let telling = ran.busy >= TELLING_RUN && !start.expected.is_zero();
    let (declared, delivered) = match telling {
        true => (mega_ops(start.expected), mega_ops(ran.busy)),
        false => (provider.resources.throughput.of(Dtype::F32), 0),
    };
    let moved = |from_blob: &(String, ContentId)| ran.outputs.get(&from_blob.0);
    Ok(ReceiptBody {
        market: provider.trader.market(),
        lease: lease.id,
        job: lease.job,
        buyer: lease.buyer,
        provider: lease.provider,
        graph: id(&start.graph),
        inputs: fetched.input_ids.iter().map(id).collect(),
        outputs: outputs.iter().map(|(_, output)| id(output)).collect(),
        class: lease.class,
        model: lease.model.clone(),
        emulated: provider.resources.emulated,
        dtype: Dtype::F32,
        declared_mega_ops: declared,
        delivered_mega_ops: delivered,
        usage,
        price: lease.price,
        amount,
        bytes_in: fetched.moved.iter().map(|moved| moved.bytes).sum(),
        bytes_out: outputs.iter().filter_map(moved).map(|t| t.blob_length() as u64).sum(),
        started,
        finished: Millis(unix_ms().max(started.0)),
    })
}

/// Sends the result and waits for the signature; without one, the usage is noted in the log.
async fn close(provider: &Provider, line: &mut Line, finished: Finished) {
    let (lease, usage) = (finished.receipt.body.lease, finished.receipt.body.usage);
    let body = finished.receipt.body.clone();
    line.tell(&Event::Finished(Box::new(finished))).await;
    let word = tokio::time::timeout(SIGN_TIMEOUT, wire::receive(&mut line.reader)).await;
    match word {
        Ok(Ok(Closing::Signed(receipt))) if receipt.body == body && receipt.verify().is_ok() => {
            receipts::on_signed(provider, *receipt).await;
        }
        Ok(Ok(Closing::Refused { reason })) => {
            tracing::warn!(%lease, reason, "the buyer refused the receipt");
            receipts::on_unsigned(provider, lease, usage).await;
        }
        _ => receipts::on_unsigned(provider, lease, usage).await,
    }
}
