//! The tensors of a lease: fetched from the buyer, offered by other providers, made here.

mod prefetcher;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::transfers::Urgency;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::timeline::{Span, SpanKind, Timeline, UnixMicros};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Provider;
use crate::provider::inbox::{Awaited, Promised};
use crate::provider::values::prefetcher::Later;

use crate::clock::unix_us;
use crate::content::transfers::{Fetched, Tensors};
use crate::folder::contact::Contact;
use crate::folder::key;
use crate::protocols::lease::{Event, Failure, Input, Moved, Part, Request, Source, Start};

/// What a lease has for one request, and how it came.
pub(super) struct Values<'a> {
    provider: &'a Provider,
    /// What spans are called behind the tensor's name, where there are many requests.
    title: String,
    /// Rung whenever something has come.
    bell: Arc<Notify>,
    coming: BTreeMap<String, Coming>,
    /// The peers of the job.
    others: Vec<PeerId>,
    tensors: BTreeMap<String, Tensor>,
    /// The ids of the tensors that came from outside, in the order they came.
    pub(super) input_ids: Vec<ContentId>,
    /// What came over the network, by sender.
    pub(super) moved: Vec<Moved>,
    /// Bytes of all that came from outside or was here already.
    pub(super) bytes: u64,
    /// Bytes of the tensors made here that others fetch.
    pub(super) kept_bytes: u64,
    /// When what came.
    pub(super) timeline: Timeline,
    pieces: u32,
    held: u32,
    pins: Vec<Pinned>,
    /// What came together and was not asked for by itself yet.
    short: BTreeMap<ContentId, Fetched>,
    /// What later parts want of the buyer.
    later: Option<Later>,
}

/// What is kept in the store for as long as the lease runs: a full folder evicts the rest.
struct Pinned {
    store: Arc<Store>,
    id: ContentId,
}

impl Pinned {
    fn new(store: &Arc<Store>, id: ContentId) -> Pinned {
        store.pin(id);
        let store = store.clone();
        Pinned { store, id }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.store.unpin(&self.id);
    }
}

/// Content that came, and when.
pub(super) struct Came {
    id: ContentId,
    fetched: Fetched,
    begin: u64,
    end: u64,
    pinned: Pinned,
    /// Whether it has a span of its own.
    is_shown: bool,
}

impl Came {
    /// It came with others from `begin` to `end`, of which one is shown.
    pub(super) fn came_with(&mut self, fetched: Fetched, (begin, end): (u64, u64), is_shown: bool) {
        (self.fetched, self.begin, self.end) = (fetched, begin, end);
        self.is_shown = is_shown;
    }
}

/// A peer, and its account.
pub(super) type Party = (PeerId, AccountKey);

/// A tensor on its way: it is fetched as soon as it is offered, whatever the
/// device does meanwhile. The task ends with this.
struct Coming {
    provider: AccountKey,
    state: Arc<State>,
    task: JoinHandle<Result<Came, Failure>>,
}

/// How far a tensor is.
#[derive(Default)]
struct State {
    /// Whether awaiting the task takes no time any more.
    here: AtomicBool,
    /// Whether the device waits for it.
    awaited: AtomicBool,
    /// What it is, once that is known.
    id: OnceLock<ContentId>,
}

impl State {
    /// What it is, and how urgent that makes it: whoever waits later says so to the transfer.
    fn on_known(&self, id: ContentId) -> Urgency {
        self.id.get_or_init(|| id);
        match self.awaited.load(Ordering::SeqCst) {
            true => Urgency::Awaited,
            false => Urgency::Planned,
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Coming {
    /// What another provider will offer.
    fn promised(name: &str, promised: Promised, values: &Values<'_>) -> Coming {
        let (what, tensors) = (name.to_owned(), values.provider.tensors.clone());
        let others = values.others.clone();
        let state = Arc::new(State::default());
        let known = state.clone();
        let coming = async move {
            let never = |_| Failure::Input(format!("{what} was never offered"));
            let offered = promised.offered.await.map_err(never)?;
            let urgency = known.on_known(offered.tensor);
            let holders = holders(offered.peer, &others);
            bring(&tensors, (urgency, &holders), offered.tensor, &what).await
        };
        Coming::new(promised.provider, state, &values.bell, coming)
    }

    /// What the buyer holds.
    fn held(name: &str, id: ContentId, (peer, buyer): Party, values: &Values<'_>) -> Coming {
        let (what, tensors) = (name.to_owned(), values.provider.tensors.clone());
        let holders = holders(peer, &values.others);
        let state = Arc::new(State::default());
        let urgency = state.on_known(id);
        let coming = async move { bring(&tensors, (urgency, &holders), id, &what).await };
        Coming::new(buyer, state, &values.bell, coming)
    }

    fn new(
        provider: AccountKey,
        state: Arc<State>,
        bell: &Arc<Notify>,
        coming: impl Future<Output = Result<Came, Failure>> + Send + 'static,
    ) -> Coming {
        let (told, bell) = (state.clone(), bell.clone());
        let task = tokio::spawn(async move {
            let came = coming.await;
            told.here.store(true, Ordering::Release);
            bell.notify_one();
            came
        });
        Coming {
            provider,
            state,
            task,
        }
    }

    /// The device waits for it from now on.
    fn hurry(&self, tensors: &Tensors) {
        self.state.awaited.store(true, Ordering::SeqCst);
        if let Some(id) = self.state.id.get() {
            tensors.hurry(id);
        }
    }
}

/// Who is asked for a content: who should have it, then who else works on the job.
pub(super) fn holders(peer: PeerId, others: &[PeerId]) -> Vec<PeerId> {
    let others = others.iter().filter(|other| **other != peer);
    std::iter::once(&peer).chain(others).copied().collect()
}

/// A content of a part that the buyer holds.
pub(super) struct Held<'p> {
    pub(super) id: ContentId,
    /// An input's name, or what else it is.
    pub(super) what: &'p str,
    is_input: bool,
}

/// The contents of a part that the buyer holds, the graph first.
pub(super) fn held_by_buyer(part: &Part) -> impl Iterator<Item = Held<'_>> {
    let held = |id, what, is_input| Held { id, what, is_input };
    let of_input = move |input: &'_ Input| match input.source {
        Source::Buyer(id) => Some(id),
        Source::Lease { .. } | Source::Own => None,
    };
    let weights = part.weights.iter();
    let weights = weights.map(move |id| held(*id, "weights", false));
    let inputs = part.inputs.iter();
    let inputs = inputs.filter_map(move |input| Some(held(of_input(input)?, &input.name, true)));
    let graph = std::iter::once(held(part.graph, "graph", false));
    graph.chain(weights).chain(inputs)
}

pub(super) async fn bring(
    tensors: &Tensors,
    (urgency, holders): (Urgency, &[PeerId]),
    id: ContentId,
    what: &str,
) -> Result<Came, Failure> {
    let begin = unix_us();
    // Before it comes, so that nothing that comes meanwhile pushes it out again.
    let pinned = Pinned::new(tensors.store(), id);
    let fetched = tensors.fetch_as(urgency, holders, id).await;
    let fetched = fetched.map_err(|error| Failure::Input(format!("{what}: {error}")))?;
    Ok(Came {
        id,
        fetched,
        begin,
        end: unix_us(),
        pinned,
        is_shown: true,
    })
}

impl<'a> Values<'a> {
    pub(super) fn new(
        provider: &'a Provider,
        awaited: Awaited,
        others: &[Contact],
        bell: &Arc<Notify>,
    ) -> Values<'a> {
        let others = others.iter().filter_map(|contact| contact.peer().ok());
        let mut values = Values {
            provider,
            title: String::new(),
            bell: bell.clone(),
            coming: BTreeMap::new(),
            others: others.collect(),
            tensors: BTreeMap::new(),
            input_ids: Vec::new(),
            moved: Vec::new(),
            bytes: 0,
            kept_bytes: 0,
            timeline: Timeline::default(),
            pieces: 0,
            held: 0,
            pins: Vec::new(),
            short: BTreeMap::new(),
            later: None,
        };
        for (name, promised) in awaited {
            let coming = Coming::promised(&name, promised, &values);
            values.coming.insert(name, coming);
        }
        values
    }

    /// Of one request among many: its inputs that the buyer holds come aside.
    pub(super) fn of_request(mut self, request: &Request, buyer: Party) -> Values<'a> {
        self.title = title(request.number);
        for (name, id) in &request.inputs {
            let coming = Coming::held(name, *id, buyer, &self);
            self.coming.insert(name.clone(), coming);
        }
        self
    }

    /// Whether every input of a part has come, or failed to.
    pub(super) fn is_ready(&self, part: &Part) -> bool {
        let here = |name: &String| {
            let coming = self.coming.get(name);
            coming.is_none_or(|coming| coming.state.here.load(Ordering::Acquire))
        };
        part.inputs.iter().all(|input| here(&input.name))
    }

    /// The device has nothing to do before the inputs of a part are here: they go first.
    pub(super) fn hurry(&self, part: &Part) {
        for input in &part.inputs {
            if let Some(coming) = self.coming.get(&input.name) {
                coming.hurry(&self.provider.tensors);
            }
        }
    }

    /// What was fetched so far, for the buyer to see.
    pub(super) fn summary(&self) -> Event {
        let bytes = self.moved.iter().map(|moved| moved.bytes).sum();
        Event::Fetched {
            pieces: self.pieces,
            held: self.held,
            bytes,
        }
    }

    /// All graphs, and of the first `ready` parts the weights and the inputs that the buyer holds.
    /// Those of the other parts are on their way from then on, in their order.
    pub(super) async fn fetch_from_buyer(
        &mut self,
        (peer, buyer): Party,
        start: &Start,
        ready: usize,
    ) -> Result<(), Failure> {
        let (first, later) = start.parts.split_at(ready);
        let graphs = start.parts.iter().map(|part| part.graph);
        let wanted = first.iter().flat_map(held_by_buyer);
        let wanted: Vec<ContentId> = graphs.chain(wanted.map(|held| held.id)).collect();
        self.fetch_short(peer, &wanted).await;
        for part in later {
            self.fetch((peer, buyer), part.graph, "graph").await?;
        }
        for held in first.iter().flat_map(held_by_buyer) {
            let blob = self.fetch((peer, buyer), held.id, held.what).await?;
            self.on_held(&held, &blob)?;
        }
        if !later.is_empty() {
            let tensors = self.provider.tensors.clone();
            self.later = Some(Later::new(tensors, (peer, buyer), &self.others, later));
        }
        self.provider.outlook.on_lease(start);
        Ok(())
    }

    /// What the next of the later parts wants of the buyer: the device waits for it from now on.
    pub(super) async fn await_contents(&mut self, part: &Part) -> Result<(), Failure> {
        let Some(later) = &mut self.later else {
            return Ok(());
        };
        let (buyer, waiting_since) = (later.buyer, unix_us());
        let came = later.next(&self.provider.tensors, part).await?;
        let last = came.iter().map(|came| came.end).max();
        if let Some(end) = last.filter(|end| *end > waiting_since) {
            self.span("contents", SpanKind::Wait, waiting_since, end);
        }
        self.take_contents(buyer, came, part)
    }

    /// The same for who has other things to do meanwhile: what the next of the later parts wants,
    /// once it is here. Who stops waiting loses nothing.
    pub(super) async fn contents(&mut self) -> Result<Vec<Came>, Failure> {
        match &mut self.later {
            Some(later) => later.came().await,
            None => std::future::pending().await,
        }
    }

    /// The device has nothing to do before what a later part wants is here.
    pub(super) fn hurry_contents(&self, part: &Part) {
        if let Some(later) = &self.later {
            later.hurry(&self.provider.tensors, part);
        }
    }

    /// Takes what a later part wanted of the buyer.
    pub(super) fn take_contents(
        &mut self,
        buyer: AccountKey,
        came: Vec<Came>,
        part: &Part,
    ) -> Result<(), Failure> {
        for (came, held) in came.into_iter().zip(held_by_buyer(part).skip(1)) {
            let blob = self.on_came(buyer, came, held.what);
            self.on_held(&held, &blob)?;
        }
        Ok(())
    }

    /// An input is a tensor, once; weights are read by the device.
    fn on_held(&mut self, held: &Held<'_>, blob: &Bytes) -> Result<(), Failure> {
        match held.is_input && !self.tensors.contains_key(held.what) {
            true => self.take(held.what, held.id, blob),
            false => Ok(()),
        }
    }

    /// The inputs of a part that other providers compute. They come while earlier parts run.
    pub(super) async fn await_inputs(&mut self, part: &Part) -> Result<(), Failure> {
        self.hurry(part);
        for input in &part.inputs {
            let Some(mut coming) = self.coming.remove(&input.name) else {
                continue;
            };
            let waiting_since = unix_us();
            let came = (&mut coming.task).await;
            let came =
                came.map_err(|error| Failure::Input(format!("{}: {error}", input.name)))??;
            if came.begin > waiting_since {
                self.span(&input.name, SpanKind::Wait, waiting_since, came.begin);
            }
            let id = came.id;
            let blob = self.on_came(coming.provider, came, &input.name);
            self.take(&input.name, id, &blob)?;
        }
        Ok(())
    }

    /// The inputs of a part, all of which are here.
    pub(super) fn inputs(&self, part: &Part) -> Result<BTreeMap<String, Tensor>, Failure> {
        let held = |name: &String| {
            let tensor = self.tensors.get(name).cloned();
            let tensor = tensor.ok_or_else(|| Failure::Input(format!("{name} has no source")))?;
            Ok((name.clone(), tensor))
        };
        part.inputs.iter().map(|input| held(&input.name)).collect()
    }

    /// Keeps an output, for later parts and for whoever fetches it.
    pub(super) fn keep(&mut self, name: &str, tensor: Tensor) -> Result<ContentId, Failure> {
        let stored = self.provider.tensors.store().put_tensor(&tensor);
        let id = stored.map_err(|error| Failure::Run(error.to_string()))?;
        self.kept_bytes += tensor.blob_length() as u64;
        self.tensors.insert(name.to_owned(), tensor);
        Ok(id)
    }

    fn take(&mut self, name: &str, id: ContentId, blob: &Bytes) -> Result<(), Failure> {
        let tensor = Tensor::from_blob(blob);
        let tensor = tensor.map_err(|error| Failure::Input(format!("{name}: {error}")))?;
        self.tensors.insert(name.to_owned(), tensor);
        self.input_ids.push(id);
        Ok(())
    }

    /// What is short of what the buyer holds comes together: a question for each weight of a
    /// model would be a way there and back for each. What is left out is fetched by itself.
    async fn fetch_short(&mut self, peer: PeerId, ids: &[ContentId]) {
        let begin = unix_us();
        let tensors = &self.provider.tensors;
        // Before they come, so that nothing that comes meanwhile pushes them out again.
        let pinned = ids.iter().map(|id| Pinned::new(tensors.store(), *id));
        self.pins.extend(pinned);
        self.short = tensors.fetch_short(Urgency::Awaited, peer, ids).await;
        if !self.short.is_empty() {
            let name = format!("{} short contents", self.short.len());
            self.span(&name, SpanKind::TransferIn, begin, unix_us());
        }
    }

    async fn fetch(
        &mut self,
        (peer, from): Party,
        id: ContentId,
        what: &str,
    ) -> Result<Bytes, Failure> {
        if let Some(fetched) = self.short.remove(&id) {
            return Ok(self.count_came(from, fetched, what));
        }
        let holders = holders(peer, &self.others);
        let asked = (Urgency::Awaited, holders.as_slice());
        let came = bring(&self.provider.tensors, asked, id, what).await?;
        Ok(self.on_came(from, came, what))
    }

    fn on_came(&mut self, from: AccountKey, came: Came, what: &str) -> Bytes {
        let Came {
            fetched,
            begin,
            end,
            pinned,
            is_shown,
            ..
        } = came;
        self.pins.push(pinned);
        if is_shown && fetched.moved > 0 {
            self.span(what, SpanKind::TransferIn, begin, end);
        }
        self.count_came(from, fetched, what)
    }

    fn count_came(&mut self, from: AccountKey, fetched: Fetched, what: &str) -> Bytes {
        self.pieces += 1;
        self.bytes += fetched.bytes.len() as u64;
        self.held += u32::from(fetched.moved == 0);
        let sender = fetched.from.and_then(|(peer, _)| key::account_of(&peer));
        let sender = sender.map_or(from, AccountKey);
        let moved = Moved {
            from: sender,
            what: what.to_owned(),
            bytes: fetched.moved,
            link: fetched.took,
        };
        count(&mut self.moved, moved);
        fetched.bytes
    }

    fn span(&mut self, name: &str, kind: SpanKind, start: u64, end: u64) {
        self.timeline.push(Span {
            device: self.provider.label.clone(),
            lane: "network".to_owned(),
            name: format!("{name}{}", self.title),
            kind,
            start: UnixMicros(start),
            end: UnixMicros(end),
        });
    }
}

/// What is behind a name in a trace, to tell requests apart.
pub(super) fn title(request: u32) -> String {
    format!(", request {request}")
}

/// Adds to the bytes of the same thing from the same peer: weights are many, told as one.
pub(super) fn count(all: &mut Vec<Moved>, more: Moved) {
    let same = |moved: &&mut Moved| moved.from == more.from && moved.what == more.what;
    match all.iter_mut().find(same) {
        Some(moved) => {
            moved.bytes += more.bytes;
            let links = moved.link.into_iter().chain(more.link);
            moved.link = links.max_by_key(|sample| sample.bytes);
        }
        None => all.push(more),
    }
}
