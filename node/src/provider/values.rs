//! The tensors of a lease: fetched from the buyer, offered by other providers, made here.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::timeline::{Span, SpanKind, Timeline, UnixMicros};

use super::Provider;
use super::sessions::Awaited;
use crate::lease_protocol::{Event, Failure, Moved, Part, Source, Start};
use crate::trader::unix_us;

/// What a lease has, and how it came.
pub(super) struct Values<'a> {
    provider: &'a Provider,
    awaited: Awaited,
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
    pins: Pins,
}

/// What is kept in the store for as long as the lease runs: a full folder evicts the rest.
struct Pins {
    store: Arc<Store>,
    ids: Vec<ContentId>,
}

impl Pins {
    fn pin(&mut self, id: ContentId) {
        self.store.pin(id);
        self.ids.push(id);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.store.unpin(id));
    }
}

impl<'a> Values<'a> {
    pub(super) fn new(provider: &'a Provider, awaited: Awaited) -> Values<'a> {
        Values {
            provider,
            awaited,
            tensors: BTreeMap::new(),
            input_ids: Vec::new(),
            moved: Vec::new(),
            bytes: 0,
            kept_bytes: 0,
            timeline: Timeline::default(),
            pieces: 0,
            held: 0,
            pins: Pins {
                store: provider.tensors.store().clone(),
                ids: Vec::new(),
            },
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

    /// Graphs, weights and the inputs that the buyer holds.
    pub(super) async fn fetch_from_buyer(
        &mut self,
        peer: PeerId,
        buyer: AccountKey,
        start: &Start,
    ) -> Result<(), Failure> {
        for part in &start.parts {
            self.fetch(peer, buyer, part.graph, "graph").await?;
            for id in &part.weights {
                self.fetch(peer, buyer, *id, "weights").await?;
            }
            for input in &part.inputs {
                let Source::Buyer(id) = input.source else {
                    continue;
                };
                if !self.tensors.contains_key(&input.name) {
                    let blob = self.fetch(peer, buyer, id, &input.name).await?;
                    self.take(&input.name, id, &blob)?;
                }
            }
        }
        Ok(())
    }

    /// The inputs of a part that other providers compute, as they are offered.
    pub(super) async fn await_inputs(&mut self, part: &Part) -> Result<(), Failure> {
        for input in &part.inputs {
            let Some(promised) = self.awaited.remove(&input.name) else {
                continue;
            };
            let waiting_since = unix_us();
            let never = |_| Failure::Input(format!("{} was never offered", input.name));
            let id = promised.offered.await.map_err(never)?;
            self.span(&input.name, SpanKind::Wait, waiting_since);
            let blob = self
                .fetch(promised.peer, promised.provider, id, &input.name)
                .await?;
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

    async fn fetch(
        &mut self,
        peer: PeerId,
        from: AccountKey,
        id: ContentId,
        what: &str,
    ) -> Result<Bytes, Failure> {
        let begin = unix_us();
        // Before it comes, so that nothing that comes meanwhile pushes it out again.
        self.pins.pin(id);
        let fetched = self.provider.tensors.fetch(peer, id).await;
        let fetched = fetched.map_err(|error| Failure::Input(format!("{what}: {error}")))?;
        self.pieces += 1;
        self.bytes += fetched.bytes.len() as u64;
        self.held += u32::from(fetched.moved == 0);
        if fetched.moved > 0 {
            self.span(what, SpanKind::TransferIn, begin);
        }
        self.count(from, what, fetched.moved);
        Ok(fetched.bytes)
    }

    /// Adds to the bytes of the same thing from the same peer: weights are many, told as one.
    fn count(&mut self, from: AccountKey, what: &str, bytes: u64) {
        match self
            .moved
            .iter_mut()
            .find(|moved| moved.from == from && moved.what == what)
        {
            Some(moved) => moved.bytes += bytes,
            None => self.moved.push(Moved {
                from,
                what: what.to_owned(),
                bytes,
            }),
        }
    }

    fn span(&mut self, name: &str, kind: SpanKind, start: u64) {
        self.timeline.push(Span {
            device: self.provider.runner.label().to_owned(),
            lane: "network".to_owned(),
            name: name.to_owned(),
            kind,
            start: UnixMicros(start),
            end: UnixMicros(unix_us()),
        });
    }
}
