//! What a lease's work has come to so far: what its receipt will say.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{
    ContentId as MarketContentId, Credits, DeviceMicros, Dtype, Lease, Millis, ReceiptBody,
};
use souk_memory::ContentId;

use super::event::{Arrival, RunResult};
use super::shared::SharedState;
use crate::clock::Micros;
use crate::lease::{Part, Start, TELLING_RUN, USAGE_MIN, transcript};

/// What each request gave, by number.
pub(super) type Outputs = Vec<(u32, Vec<(String, ContentId)>)>;

/// The sum over everything that was run and moved for a lease.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Bill {
    runs: u32,
    /// Device time of all of them.
    busy: Micros,
    /// Time in which the device was held for a further request that did not come.
    idle: Micros,
    /// Device time of those whose work is known before they are run, and their operations.
    judged: (Micros, u64),
    /// Device time that was promised for those; none once nobody could say.
    promised: Option<Micros>,
    /// The longest run of parts that any request came to.
    parts: u32,
    /// The tensors that came from outside, each once, in the order in which they came.
    inputs: Vec<ContentId>,
    /// The tensors that were made, by request, in the order in which they were made.
    outputs: BTreeMap<u32, Vec<(String, ContentId)>>,
    /// Bytes that came over the network.
    moved: u64,
    /// Bytes of the tensors that were made.
    made: u64,
}

impl Bill {
    pub(super) fn new() -> Bill {
        Bill {
            promised: Some(Micros(0)),
            ..Bill::default()
        }
    }

    /// Whether anything was run, and is to be paid for.
    pub(super) fn has_run(&self) -> bool {
        self.runs > 0
    }

    /// A content came.
    pub(super) fn came(&mut self, arrival: &Arrival, is_input: bool) {
        self.moved = self.moved.saturating_add(arrival.moved);
        if is_input && !self.inputs.contains(&arrival.id) {
            self.inputs.push(arrival.id);
        }
    }

    /// Whether one more request fits, each with so many tensors in and out.
    pub(super) fn has_room(&self, requests: u32, tensors: usize, most: usize) -> bool {
        let requests = requests as usize + 1;
        requests == 1 || requests.saturating_mul(tensors) <= most
    }

    /// A part of a request was run.
    pub(super) fn ran(&mut self, request: u32, index: u32, part: &Part, ran: &RunResult) {
        self.runs = self.runs.saturating_add(1);
        self.busy = self.busy.plus(ran.busy);
        self.made = self.made.saturating_add(ran.bytes);
        self.parts = self.parts.max(index + 1);
        if part.flops > 0 {
            let (busy, flops) = self.judged;
            self.judged = (busy.plus(ran.busy), flops.saturating_add(part.flops));
            let sum = |sum: Micros| Some(sum.plus(ran.promised?));
            self.promised = self.promised.and_then(sum);
        }
        let made = self.outputs.entry(request).or_default();
        made.extend(ran.outputs.iter().cloned());
    }

    /// The device waited for a request so long.
    pub(super) fn waited(&mut self, idle: Micros) {
        self.idle = self.idle.plus(idle);
    }

    /// A run gave nothing, since its inputs are at fault: its time is owed all the same.
    pub(super) fn failed(&mut self, took: Micros) {
        self.runs = self.runs.saturating_add(1);
        self.busy = self.busy.plus(took);
        self.parts = self.parts.max(1);
    }

    /// Bytes of the tensors that were made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Device time of all runs.
    pub(super) fn busy(&self) -> Micros {
        self.busy
    }

    /// Device time of runs whose work was known before, and their operations.
    pub(super) fn judged(&self) -> (Micros, u64) {
        self.judged
    }

    pub(super) fn outputs(&self) -> Outputs {
        let outputs = self.outputs.iter();
        outputs.map(|(n, made)| (*n, made.clone())).collect()
    }

    /// What the provider signs; none where its price is beyond counting.
    pub(super) fn body(
        &self,
        shared: &SharedState,
        (lease, start): (&Lease, &Start),
        started: Millis,
    ) -> Option<ReceiptBody> {
        assert!(self.has_run(), "nothing is billed for nothing");
        let usage = DeviceMicros(self.busy.0).max(USAGE_MIN);
        // A lease has so much time, and clocks differ.
        let most = DeviceMicros::of(lease.quantity, lease.deadline.since(lease.start));
        let idle = DeviceMicros(self.idle.0.min(most.0.saturating_sub(usage.0)));
        let id = |id: &ContentId| MarketContentId(*id.as_bytes());
        let (declared_mega_ops, delivered_mega_ops) = self.speeds(shared);
        let made = self.outputs.values().flatten().map(|(_, id)| id);
        let (inputs, outputs) = match start.sequences {
            0 => (self.inputs.iter().map(id).collect(), made.map(id).collect()),
            _ => (Vec::new(), transcript(made).iter().map(id).collect()),
        };
        let mut body = ReceiptBody {
            market: shared.config.market,
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            graph: id(&start.graph_of(self.parts as usize)),
            inputs,
            outputs,
            class: lease.class,
            model: lease.model.clone(),
            emulated: shared.resources.emulated,
            dtype: Dtype::F32,
            declared_mega_ops,
            delivered_mega_ops,
            usage,
            idle,
            idle_part: lease.idle,
            price: lease.price,
            amount: Credits::ZERO,
            bytes_in: self.moved,
            bytes_out: self.made,
            started,
            finished: shared.now.log.max(started),
        };
        body.amount = ReceiptBody::due(body.price, body.charged())?;
        Some(body)
    }

    /// The speed that the figures of the ask promise for this work, and the one that was delivered:
    /// 0 where the runs were too short to tell, or nothing is known of them beforehand.
    fn speeds(&self, shared: &SharedState) -> (u64, u64) {
        let untold = (shared.resources.throughput.of(Dtype::F32), 0);
        let (busy, flops) = self.judged;
        // Operations a microsecond are millions a second.
        let promised = self.promised.and_then(|time| flops.checked_div(time.0));
        match promised {
            Some(promised) if busy >= TELLING_RUN => (promised, flops / busy.0),
            _ => untold,
        }
    }
}
