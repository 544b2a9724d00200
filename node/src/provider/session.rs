//! One lease from the buyer's word to the receipt, step by step.

mod stream;

use std::sync::Arc;
use std::time::Duration;

use futures::io::{ReadHalf, WriteHalf};
use futures::{AsyncReadExt, AsyncWrite};
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{
    Command, DeviceMicros, Dtype, Lease, LeaseId, LeaseState, Millis, Receipt, ReceiptBody,
};
use souk_memory::ContentId;
use souk_onnx as onnx;
use souk_onnx::custom::Custom;
use souk_scheduler::execution::{Moment, Precedence};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

use super::done::Done;
use super::notice::{Curfew, HANDOVER, Noticed, ended_early, ends_within, is_to_end, last_moment};
use super::sessions::Standing;
use super::statistics::{self, DoneLease};
use super::turns::{Rank, Turn};
use super::values::Values;
use super::{Provider, Stopping, receipts, work};
use crate::clock::unix_ms;
use crate::executor::LeaseExecutor;
use crate::folder::key;
use crate::folder::limits::LimitRefusal;
use crate::folder::limits::Limits;
use crate::network::wire;
use crate::protocols::lease::{
    Closing, Event, Failure, Finished, Go, Part, Start, USAGE_MIN, Untaken, WINDOW_MAX,
    WORD_BYTES_MAX,
};
use crate::provider::session::stream::Stage;

/// How long the buyer may take to fetch the outputs and sign.
const SIGN_TIMEOUT: Duration = Duration::from_secs(30);

/// Words of the buyer's that wait to be heard: it says three at most.
const WORDS_MAX: usize = 4;

/// Parts for which all is here before the work begins.
pub(super) const PARTS_FIRST: usize = 1;

/// The buyer's stream, both ways.
struct Line {
    writer: WriteHalf<Stream>,
    /// The buyer's words, as they come: who waits for one may stop waiting and lose none. Closed
    /// when the buyer is gone.
    words: mpsc::Receiver<Word>,
    listening: AbortHandle,
    /// How many parts the buyer still wants, once it said so.
    enough: Option<usize>,
}

/// A word of the buyer's after its opening.
pub(super) enum Word {
    Go(Go),
    Closing(Closing),
}

/// What a buyer has a lease do.
pub(super) enum Work {
    /// Its parts once.
    Once(Start),
    /// Its parts for each of many requests, of which this is the first.
    Stream(Start),
}

impl Work {
    fn start(&self) -> &Start {
        match self {
            Work::Once(start) | Work::Stream(start) => start,
        }
    }

    /// Requests that may be under way at a time.
    fn ahead(&self) -> u32 {
        match self {
            Work::Once(_) => 1,
            Work::Stream(_) => WINDOW_MAX,
        }
    }
}

impl Line {
    fn new(stream: Stream) -> Line {
        let (reader, writer) = stream.split();
        let (heard, words) = mpsc::channel(WORDS_MAX);
        let listening = tokio::spawn(listen(reader, heard)).abort_handle();
        Line {
            writer,
            words,
            listening,
            enough: None,
        }
    }

    async fn tell(&mut self, event: &Event) {
        tell(&mut self.writer, event).await;
    }

    /// Waits until the buyer says that the work may begin.
    async fn go(&mut self) -> Option<Go> {
        match self.words.recv().await? {
            Word::Go(go) => Some(go),
            Word::Closing(_) => None,
        }
    }

    /// Waits until the buyer wants no more than the parts that are done; for ever, if it never says
    /// so.
    async fn enough(&mut self, done: usize) {
        while self.enough.is_none_or(|wanted| wanted > done) {
            match self.words.recv().await {
                Some(Word::Closing(Closing::Enough { parts })) => {
                    self.enough = usize::try_from(parts).ok();
                }
                Some(Word::Closing(Closing::Over)) => self.enough = Some(0),
                // One that went without a word may come back for it.
                _ => std::future::pending().await,
            }
        }
    }

    /// The buyer's last word, unless it goes without one.
    async fn last_word(&mut self) -> Option<Closing> {
        loop {
            match self.words.recv().await? {
                // All was done when it came.
                Word::Closing(Closing::Enough { .. } | Closing::Over) => {}
                Word::Closing(closing) => return Some(closing),
                Word::Go(_) => return None,
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Tells the buyer. A buyer that has gone does not stop the work: it is owed either way.
pub(super) async fn tell(to: &mut (impl AsyncWrite + Unpin), event: &Event) {
    if let Err(error) = wire::send(to, event).await {
        tracing::debug!(%error, "the buyer does not listen");
    }
}

/// Tells the buyer what other providers did not take.
pub(super) async fn tell_untaken(to: &mut (impl AsyncWrite + Unpin), untaken: Vec<Untaken>) {
    for untaken in untaken {
        tell(to, &Event::Untaken(Box::new(untaken))).await;
    }
}

/// Hears the buyer out: first whether to begin, then how it ends.
async fn listen(mut reader: ReadHalf<Stream>, heard: mpsc::Sender<Word>) {
    let mut word = wire::receive_short(&mut reader, WORD_BYTES_MAX)
        .await
        .map(Word::Go);
    while let Ok(said) = word {
        if heard.send(said).await.is_err() {
            return;
        }
        let next = wire::receive_short(&mut reader, WORD_BYTES_MAX).await;
        word = next.map(Word::Closing);
    }
}

/// Serves the lease that `start` names.
pub(super) async fn serve(provider: &Provider, peer: PeerId, work: Work, stream: Stream) {
    let start = work.start();
    let mut line = Line::new(stream);
    let worked = match admit(provider, peer, start).await {
        Ok(lease) => {
            let left = Duration::from_millis(lease.deadline.0.saturating_sub(unix_ms()));
            let (noticed, notice) = watch::channel(None);
            let worked = tokio::select! {
                worked = do_work(provider, &work, &lease, &mut line, notice) => worked,
                () = tokio::time::sleep(left) => Err(Failure::Expired),
                () = ended_early(provider, start.lease, &noticed) => Err(Failure::Expired),
            };
            if worked.as_ref().is_err_and(is_own) {
                give_up(provider, start.lease).await;
            }
            worked.map(|finished| (finished, last_moment(&lease, *noticed.borrow())))
        }
        Err(refused) => Err(refused),
    };
    match worked {
        Ok((finished, deadline)) => {
            provider.sessions.finished(&finished);
            close(provider, &mut line, finished, deadline).await;
        }
        Err(failure) => {
            tracing::warn!(lease = %start.lease, %failure, "the work was not done");
            line.tell(&Event::Failed(failure)).await;
        }
    }
}

/// Tells a buyer that lost its stream how its lease stands, and takes its signature.
pub(super) async fn resume(provider: &Provider, peer: PeerId, lease: LeaseId, mut stream: Stream) {
    match provider.sessions.standing(lease, key::account_of(&peer)) {
        Standing::Running => tell(&mut stream, &Event::Accepted).await,
        Standing::Unknown => tell(&mut stream, &Event::Failed(Failure::Forgotten)).await,
        Standing::Finished(finished) => {
            let body = finished.receipt.body.clone();
            tell(&mut stream, &Event::Finished(finished)).await;
            let signing = wire::receive_short(&mut stream, WORD_BYTES_MAX);
            // Its usage was noted when the stream was lost; the receipt says the same.
            if let Ok(Ok(Closing::Signed(receipt))) =
                tokio::time::timeout(SIGN_TIMEOUT, signing).await
                && receipt.body == body
                && receipt.verify().is_ok()
            {
                receipts::on_signed(provider, *receipt).await;
            }
        }
    }
}

/// Whether a failure is this provider's own: a second start must not end the work of the first, and
/// where others failed or the time was over, the lease ends without this provider's word.
fn is_own(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Compile(_)
            | Failure::Run(_)
            | Failure::Full
            | Failure::Limit(_)
            | Failure::Crashed(_)
            | Failure::Memory(_)
    )
}

/// The lease as the log has it, if this work may be done under it.
async fn admit(provider: &Provider, peer: PeerId, start: &Start) -> Result<Lease, Failure> {
    if *provider.stopping.borrow() != Stopping::No {
        return Err(Failure::Stopping);
    }
    if !start.is_bounded() {
        return Err(Failure::Limit("the work has too many parts".to_owned()));
    }
    let found = provider.trader.broker().lease(start.lease).await;
    let lease = found.map_err(|error| Failure::Lease(error.to_string()))?;
    let refuse = |why: &str| Err(Failure::Lease(why.to_owned()));
    let Some(lease) = lease else {
        return refuse("no such lease is in the log");
    };
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
    if start.parts.is_empty() {
        return refuse("it has no work");
    }
    Ok(lease)
}

async fn give_up(provider: &Provider, lease: LeaseId) {
    if let Err(error) = provider.trader.submit_one(Command::GiveUp { lease }).await {
        tracing::warn!(%lease, %error, "the lease was not given up");
    }
}

/// The work itself: everything between the admission and the buyer's signature.
async fn do_work(
    provider: &Provider,
    work: &Work,
    lease: &Lease,
    line: &mut Line,
    notice: Noticed,
) -> Result<Finished, Failure> {
    let start = work.start();
    if provider.books.has_begun(lease.id) {
        return Err(Failure::Started);
    }
    let buyer = key::peer_of(&lease.buyer.0).map_err(|error| Failure::Lease(error.to_string()))?;
    let (running, awaited) = provider.sessions.begin(start, buyer, work.ahead())?;
    let noted = provider.books.began(lease);
    noted.map_err(|error| Failure::Run(error.to_string()))?;
    line.tell(&Event::Accepted).await;
    for contact in &start.peers {
        let learned = provider.network.learn(contact).await;
        learned.map_err(|error| Failure::Input(error.to_string()))?;
    }
    let bell = Arc::new(Notify::new());
    let mut values = Values::new(provider, awaited, &start.peers, &bell);
    let party = (buyer, lease.buyer);
    // What later parts want comes while earlier ones run.
    values.fetch_from_buyer(party, start, PARTS_FIRST).await?;
    line.tell(&values.summary()).await;
    let allowed = within_limits(provider, start, &values);
    allowed.map_err(|refusal| Failure::Limit(refusal.to_string()))?;
    let slots = provider
        .executor
        .for_lease(lease, provider.terms.price())
        .await?;
    for part in &start.parts[..PARTS_FIRST] {
        work::prepare(provider, &slots, part).await?;
    }
    line.tell(&Event::Compiled).await;
    let Some(Go::Ahead) = line.go().await else {
        return Err(Failure::Input(
            "the buyer went away before the work began".to_owned(),
        ));
    };
    let started = Millis(unix_ms());
    let (done, start) = match work {
        Work::Once(_) => {
            let parts = (slots, values);
            let done = run_parts(provider, start, lease, parts, (line, notice)).await?;
            let start = start.clone().first(done.parts);
            (done, start)
        }
        Work::Stream(_) => {
            let slots = slots.of_stream();
            let stage = Stage {
                provider,
                start,
                running: &running,
                buyer: party,
                bell,
                precedence: precedence(lease, started),
                rank: rank(lease, start),
                curfew: Curfew::new(provider, (lease, start, slots.ahead()), notice),
            };
            let words = (&mut line.words, &mut line.writer);
            (stage.run((slots, values), words).await?, start.clone())
        }
    };
    let body = receipt_body(provider, &start, lease, started, &done)?;
    Ok(finished(provider, body, done))
}

/// Signs for what was done, once the journal has it.
fn finished(provider: &Provider, body: ReceiptBody, done: Done) -> Finished {
    let (lease, usage) = (body.lease, body.usage);
    if let Err(error) = provider.books.ran(lease, usage) {
        tracing::error!(%lease, %error, "what was used is not in the journal");
    }
    let receipt = Receipt::new(body).sign_as_provider(provider.trader.key().signing());
    let mut report = done.report.unwrap_or_default();
    // With what came and went over the network.
    report.read_times(&done.timeline);
    let counted = DoneLease {
        received_bytes: done.moved.iter().map(|moved| moved.bytes).sum(),
        made_bytes: done.kept_bytes,
        report: report.clone(),
    };
    statistics::count_aside(&provider.home, counted);
    Finished {
        receipt,
        outputs: done.outputs,
        moved: done.moved,
        report,
        timeline: done.timeline,
    }
}

/// Whether the work is within what this provider does.
fn within_limits(
    provider: &Provider,
    start: &Start,
    values: &Values<'_>,
) -> Result<(), LimitRefusal> {
    let limits = &provider.terms.limits;
    limits.check_memory(values.bytes)?;
    if limits.allows_all_operators() {
        return Ok(());
    }
    for part in &start.parts {
        // A graph that is not one is named as such when it is compiled.
        let Ok(Some(model)) = provider.tensors.store().get(&part.graph) else {
            continue;
        };
        let nodes = onnx::decode(model).ok().and_then(|model| model.graph);
        for node in nodes.iter().flat_map(|graph| &graph.node) {
            check_node(limits, node)?;
        }
    }
    Ok(())
}

/// Whether a node, and those of its bodies, are within what this provider does.
fn check_node(limits: &Limits, node: &onnx::NodeProto) -> Result<(), LimitRefusal> {
    if let Some(kernel) = Custom::of(node) {
        limits.check_kernel(kernel)?;
    }
    limits.check_operator(node.op_type())?;
    let mut inner = node.subgraphs().flat_map(|graph| &graph.node);
    inner.try_for_each(|node| check_node(limits, node))
}

/// The job is over when this is: so is its process, before anybody is told.
async fn run_parts(
    provider: &Provider,
    start: &Start,
    lease: &Lease,
    (slots, mut values): (LeaseExecutor, Values<'_>),
    (line, mut notice): (&mut Line, Noticed),
) -> Result<Done, Failure> {
    let mut done = Done::default();
    let (precedence, rank) = (precedence(lease, Millis(unix_ms())), rank(lease, start));
    for part in &start.parts {
        // What is done by then is the buyer's, and it goes on from there elsewhere.
        let begun = done.parts > 0;
        let left = match begun {
            true => part.expected + HANDOVER,
            false => Duration::ZERO,
        };
        let turn = tokio::select! {
            biased;
            () = is_to_end(provider, lease.term), if begun => break,
            () = ends_within(&mut notice, left) => match begun {
                true => break,
                false => return Err(Failure::Expired),
            },
            () = line.enough(done.parts) => match begun {
                true => break,
                false => return Err(unwanted()),
            },
            turn = make_ready((provider, rank), &slots, &mut values, (part, begun)) => turn?,
        };
        line.tell(&Event::Running {
            part: part.name.clone(),
        })
        .await;
        let inputs = values.inputs(part)?;
        done.begins(part, &inputs);
        let ran = tokio::select! {
            ran = work::run(provider, &slots, part, "", inputs, precedence) => ran?,
            // From then on the device is another's.
            () = ends_within(&mut notice, Duration::ZERO) => match begun {
                true => break,
                false => return Err(Failure::Expired),
            },
            () = line.enough(done.parts) => match begun {
                true => break,
                false => return Err(unwanted()),
            },
        };
        drop(turn);
        for (output, id) in done.ran(part, ran, &mut values)? {
            // Whoever does not take it has failed, not this provider: the buyer hands it on.
            let untaken = work::offer(provider, start.lease, output, id, None).await;
            tell_untaken(&mut line.writer, untaken).await;
        }
        done.parts += 1;
        if done.parts < start.parts.len() {
            line.tell(&Event::Ran).await;
        }
    }
    done.over(values);
    Ok(done)
}

/// What is told where the buyer left before anything was done.
fn unwanted() -> Failure {
    Failure::Input("the buyer wants nothing of it any more".to_owned())
}

/// Waits for all that a part wants, and has it compiled unless it is the first, which was. Then for
/// its turn.
async fn make_ready<'p>(
    (provider, rank): (&'p Provider, Rank),
    slots: &LeaseExecutor,
    values: &mut Values<'_>,
    (part, is_later): (&Part, bool),
) -> Result<Turn<'p>, Failure> {
    if is_later {
        values.await_contents(part).await?;
        let allowed = provider.terms.limits.check_memory(values.bytes);
        allowed.map_err(|refusal| Failure::Limit(refusal.to_string()))?;
        work::prepare(provider, slots, part).await?;
    }
    values.await_inputs(part).await?;
    Ok(provider.turns.take(rank).await)
}

/// A lease's place among those of its buyer.
fn rank(lease: &Lease, start: &Start) -> Rank {
    Rank {
        buyer: lease.buyer,
        priority: start.priority,
    }
}

/// Leases share the devices by what they pay, and end when the market ends them. None goes before
/// another buyer's: what its own buyer says of it is its [`rank`].
fn precedence(lease: &Lease, now: Millis) -> Precedence {
    let left = Duration::from_millis(lease.deadline.since(now).0);
    Precedence {
        priority: 0,
        weight: (lease.price.0 as f64).max(1.0),
        owner: Some(lease.id.0),
        deadline: Some(Moment::now().after(left)),
    }
}

fn receipt_body(
    provider: &Provider,
    start: &Start,
    lease: &Lease,
    started: Millis,
    done: &Done,
) -> Result<ReceiptBody, Failure> {
    let busy = u64::try_from(done.busy.as_micros()).unwrap_or(u64::MAX);
    let usage = DeviceMicros(busy).max(USAGE_MIN);
    let amount = ReceiptBody::due(lease.price, usage)
        .ok_or_else(|| Failure::Run("its price overflows".to_owned()))?;
    let id = |id: &ContentId| souk_market::ContentId(*id.as_bytes());
    let (declared_mega_ops, delivered_mega_ops) = provider.speeds(done);
    Ok(ReceiptBody {
        market: provider.trader.market(),
        lease: lease.id,
        job: lease.job,
        buyer: lease.buyer,
        provider: lease.provider,
        graph: id(&start.graph()),
        inputs: done.inputs.iter().map(id).collect(),
        outputs: done.outputs.iter().map(|(_, output)| id(output)).collect(),
        class: lease.class,
        model: lease.model.clone(),
        emulated: provider.peak.emulated,
        dtype: Dtype::F32,
        declared_mega_ops,
        delivered_mega_ops,
        usage,
        price: lease.price,
        amount,
        bytes_in: done.moved.iter().map(|moved| moved.bytes).sum(),
        bytes_out: done.kept_bytes,
        started,
        finished: Millis(unix_ms().max(started.0)),
    })
}

/// Sends the result and waits for the signature; without one, the usage is noted in the log.
///
/// The wait ends with the lease at the latest: a note that comes after the grace pays nothing.
async fn close(provider: &Provider, line: &mut Line, finished: Finished, deadline: Millis) {
    let body = finished.receipt.body.clone();
    let (lease, usage) = (body.lease, body.usage);
    let signing = async {
        line.tell(&Event::Finished(Box::new(finished))).await;
        line.last_word().await
    };
    match tokio::time::timeout(patience(deadline, Millis(unix_ms())), signing).await {
        Ok(Some(Closing::Signed(receipt))) if receipt.body == body && receipt.verify().is_ok() => {
            receipts::on_signed(provider, *receipt).await;
        }
        Ok(Some(Closing::Refused { reason })) => {
            tracing::warn!(%lease, reason, "the buyer refused the receipt");
            receipts::on_unsigned(provider, lease, usage).await;
        }
        _ => receipts::on_unsigned(provider, lease, usage).await,
    }
}

/// How long to wait for a signature under a lease that ends at `deadline`.
fn patience(deadline: Millis, now: Millis) -> Duration {
    SIGN_TIMEOUT.min(Duration::from_millis(deadline.since(now).0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_not_awaited_beyond_the_lease() {
        let now = Millis(1_000_000);
        assert_eq!(patience(Millis(1_015_000), now), Duration::from_secs(15));
        assert_eq!(patience(Millis(9_000_000), now), SIGN_TIMEOUT);
        assert_eq!(patience(Millis(999_000), now), Duration::ZERO);
    }
}
