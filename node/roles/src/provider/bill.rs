//! Adds up the work of a lease for its receipt: device time, tensors, bytes and operations. The
//! lease's core adds each run and each arrival, and the provider's core builds the receipt from
//! the bill when the work ends.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{
    ContentId as MarketContentId, Credits, DeviceMicros, Dtype, Lease, Millis, ReceiptBody,
    TokenTerms, TokenUsage,
};
use souk_memory::ContentId;

use super::event::{Arrival, RunResult};
use super::provider_context::SharedState;
use crate::clock::Micros;
use crate::lease::{Part, Start, TELLING_RUN, USAGE_MIN, transcript};
use crate::tokens::counting::TokenCount;

/// The outputs of each request, by number.
pub(super) type Outputs = Vec<(u32, Vec<(String, ContentId)>)>;

/// The totals of all runs and transfers for a lease.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Bill {
    runs: u32,
    /// The tokens of all runs.
    tokens: TokenCount,
    /// Those of the answers that the buyer surely has.
    known_tokens: TokenCount,
    /// The device time of all runs.
    busy: Micros,
    /// The time in which the device waited for a further request that did not come.
    idle: Micros,
    /// The device time of runs whose work is known beforehand, and their operations.
    judged: (Micros, u64),
    /// The promised device time of those runs; none once one had no promise.
    promised: Option<Micros>,
    /// The most parts that any request reached.
    parts: u32,
    /// The tensors that came from outside, each once, in the order of arrival.
    inputs: Vec<ContentId>,
    /// The tensors made, by request, in the order in which they were made.
    outputs: BTreeMap<u32, Vec<(String, ContentId)>>,
    /// The bytes that came over the network.
    moved: u64,
    /// The bytes of the tensors made.
    made: u64,
}

/// Returns the device time of a whole lease: a receipt bills no more.
fn time_of(lease: &Lease) -> DeviceMicros {
    DeviceMicros::from_units(lease.quantity, lease.deadline.saturating_since(lease.start))
}

impl Bill {
    pub(super) fn new() -> Bill {
        Bill {
            promised: Some(Micros(0)),
            ..Bill::default()
        }
    }

    /// Returns whether some work ran that the buyer must pay for.
    pub(super) fn has_run(&self) -> bool {
        self.runs > 0
    }

    /// Adds a content that arrived.
    pub(super) fn add_arrival(&mut self, arrival: &Arrival, is_input: bool) {
        self.moved = self.moved.saturating_add(arrival.moved);
        if is_input && !self.inputs.contains(&arrival.id) {
            self.inputs.push(arrival.id);
        }
    }

    /// Returns whether one more request fits, each with `tensors` tensors in and out.
    pub(super) fn has_room(&self, requests: u32, tensors: usize, most: usize) -> bool {
        let requests = requests as usize + 1;
        requests == 1 || requests.saturating_mul(tensors) <= most
    }

    /// Adds a run of a part of a request.
    pub(super) fn add_run(&mut self, request: u32, index: u32, part: &Part, ran: &RunResult) {
        self.runs = self.runs.saturating_add(1);
        self.busy = self.busy.plus(ran.busy);
        self.tokens = self.tokens.plus(ran.tokens.unwrap_or_default());
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

    /// Notes that the buyer has all answers so far: it sent its next request, or wants no more.
    pub(super) fn confirm_answers(&mut self) {
        self.known_tokens = self.tokens;
    }

    /// Returns the device time of the answers that the buyer of tokens surely has, which it cannot
    /// dispute. None of the time that it held the lease is in it: clocks and late messages differ.
    pub(super) fn known_time(&self, lease: &Lease) -> DeviceMicros {
        let terms = lease.tokens.unwrap_or(TokenTerms::USUAL);
        self.known_tokens.device_time(terms).min(time_of(lease))
    }

    /// Adds time in which the device waited for a request.
    pub(super) fn add_idle_time(&mut self, idle: Micros) {
        self.idle = self.idle.plus(idle);
    }

    /// Adds a run without outputs because its inputs are at fault: the buyer owes for its time.
    pub(super) fn add_failed_run(&mut self, took: Micros) {
        self.runs = self.runs.saturating_add(1);
        self.busy = self.busy.plus(took);
        self.parts = self.parts.max(1);
    }

    /// Returns the bytes of the tensors made.
    pub(super) fn output_bytes(&self) -> u64 {
        self.made
    }

    /// Returns the device time of all runs.
    pub(super) fn busy(&self) -> Micros {
        self.busy
    }

    /// Returns the device time of a lease that its runs have not used yet.
    pub(super) fn time_left(&self, lease: &Lease) -> DeviceMicros {
        DeviceMicros(time_of(lease).0.saturating_sub(self.busy.0))
    }

    /// Returns the device time of runs whose work was known beforehand, and their operations.
    pub(super) fn measurable_work(&self) -> (Micros, u64) {
        self.judged
    }

    pub(super) fn outputs(&self) -> Outputs {
        let outputs = self.outputs.iter();
        outputs.map(|(n, made)| (*n, made.clone())).collect()
    }

    /// Returns the receipt body to sign; none if the price overflows. Some work must have run.
    pub(super) fn receipt_body(
        &self,
        shared: &SharedState,
        lease: &Lease,
        start: &Start,
        started: Millis,
    ) -> Option<ReceiptBody> {
        assert!(self.has_run(), "nothing is billed for nothing");
        // A lease has only this much time, and clocks differ.
        let most = time_of(lease);
        let metered = self.count_tokens(lease);
        let usage = self.usage(lease);
        let idle = DeviceMicros(self.idle.0);
        let beyond = |metered: &TokenUsage| metered.idle_beyond_floor(idle, lease.idle);
        let idle = metered.as_ref().map_or(idle, beyond);
        let idle = idle.min(DeviceMicros(most.0.saturating_sub(usage.0)));
        let id = |id: &ContentId| MarketContentId(*id.as_bytes());
        let (declared_mega_ops, delivered_mega_ops) = self.work_speeds(shared);
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
            metered,
            idle,
            idle_part: lease.idle,
            price: lease.price,
            amount: Credits::ZERO,
            bytes_in: self.moved,
            bytes_out: self.made,
            started,
            finished: shared.now.log.max(started),
        };
        body.amount = ReceiptBody::amount_due(body.price, body.billable_usage())?;
        Some(body)
    }

    /// Returns the device time that the buyer owes for the work so far.
    pub(super) fn usage(&self, lease: &Lease) -> DeviceMicros {
        match self.count_tokens(lease) {
            // Tokens can cost more time than there was.
            Some(metered) => metered.usage().min(time_of(lease)),
            None => DeviceMicros(self.busy.0).max(USAGE_MIN),
        }
    }

    /// Returns the tokens that the receipt of a lease of those states, and for how long the buyer
    /// held the lease without a request. That is by this side's own clock: the log's time differs
    /// on each side.
    fn count_tokens(&self, lease: &Lease) -> Option<TokenUsage> {
        let terms = lease.tokens?;
        Some(TokenUsage {
            terms,
            input: self.tokens.input,
            cached: self.tokens.cached,
            output: self.tokens.output,
            held: DeviceMicros(self.idle.0).min(time_of(lease)),
        })
    }

    /// Returns the speed that the ask promises for this work and the delivered speed; the latter is
    /// 0 if the runs were too short to tell, or their work was unknown beforehand.
    fn work_speeds(&self, shared: &SharedState) -> (u64, u64) {
        let untold = (shared.resources.throughput.for_dtype(Dtype::F32), 0);
        let (busy, flops) = self.judged;
        // Operations per microsecond equal mega-operations per second.
        let promised = self.promised.and_then(|time| flops.checked_div(time.0));
        match promised {
            Some(promised) if busy >= TELLING_RUN => (promised, flops / busy.0),
            _ => untold,
        }
    }
}
