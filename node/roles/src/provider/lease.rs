//! Runs one lease at work: fetches its contents, compiles its parts, and serves its requests, from
//! the moment at which the provider accepts its start to the last run.
//!
//! ```text
//! Recording ─Began on the disk─> Fetching ─graphs, part 1─> Checking ─> Placing ─> Preparing
//!   ─> Ready ─Go─> Serving ─last done, limit, end near, an input never comes─> Done or Failed
//! ```
//! Two limits end it: a moment (`ends_at`) and a number of parts of each request (`limit`), after
//! which the core begins no more work. A [`super::claim::Claim`] then holds the buyer's debt.

mod contents;
mod ending;
mod idle;
mod notes;
mod runs;

use std::collections::{BTreeSet, VecDeque};

use serde::Serialize;
use souk_market::{AccountKey, Lease, LeaseId, LeaseState, Millis, Term};
use souk_memory::ContentId;

use super::action::{Action, Content, ContentKind, Urgency};
use super::bill::Bill;
use super::event::{Arrival, FailedRun, RunResult};
use super::facts::Fact;
use super::lease_priority::Rank;
use super::provider_context::{FollowingStep, LeaseEffect, SharedState, Stage, Timer, Wait};
use super::requests::Requests;
use super::{Answer, StreamId};
use crate::clock::Micros;
use crate::lease::{
    ALIVE_PERIOD, BuyerMessage, Failure, Offer, OfferAnswer, ProviderMessage, Request, Start,
};

/// The time kept at the end of a lease, in which the buyer fetches the outputs and signs. Part of
/// the grace that follows serves that too.
const HANDOVER: Millis = Millis(1_000);

/// If a lease ends at its own deadline, that time is at most a tenth of it.
const HANDOVER_SHARE: u64 = 10;

/// The progress of a lease at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WorkStage {
    /// The core records the begin of the work.
    Recording,
    /// The graphs and the buyer's contents of the first part arrive.
    Fetching,
    /// The core requests a sandbox to run in.
    Placing,
    /// The sandbox checks the graphs.
    Checking,
    /// The device compiles the first part.
    Preparing,
    /// The core waits for the buyer's message.
    Ready,
    /// The device runs requests.
    Serving,
}

/// How the work of a lease ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Some work ran, and the buyer owes for it.
    Done,
    /// The buyer owes nothing.
    Failed(Failure),
}

/// A run on the device.
#[derive(Clone, Debug, Serialize)]
struct Run {
    request: u32,
    part: u32,
    began: Micros,
    /// The result. The core reports runs in the order in which they began, except for those of
    /// sequences.
    ended: Option<Result<RunResult, FailedRun>>,
}

/// The core of one lease at work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseCore {
    pub(super) lease: Box<Lease>,
    pub(super) start: Box<Start>,
    pub(super) stream: Option<StreamId>,
    pub(super) stage: WorkStage,
    /// When the device becomes another lease's.
    pub(super) ends_at: Millis,
    /// When the runs began.
    pub(super) started: Millis,
    /// The number of parts of each request that the buyer wants.
    limit: u32,
    /// Whether no more requests follow.
    no_more: bool,
    /// Why the core begins no more work.
    over: Option<Failure>,
    /// Whether the buyer allowed runs to begin.
    may_run: bool,
    /// The number of runs that the sandbox accepts at once.
    slots: u32,
    runs: VecDeque<Run>,
    /// Whether there is a sandbox to close.
    has_place: bool,
    is_preparing: bool,
    /// The number of compiled parts, and of parts whose contents from the buyer are all here.
    prepared: u32,
    here: u32,
    /// The request and the part that the device waits for.
    awaited: Option<(u32, u32)>,
    pub(super) requests: Requests,
    pub(super) bill: Bill,
    /// Since when the device has waited for a further request.
    idle_since: Option<Micros>,
    /// The bytes of graphs, weights and contents fetched with them.
    bytes: u64,
    pins: Vec<ContentId>,
}

/// Returns whether a failure is this provider's own. If others failed or time ran out, the lease
/// ends without this provider's message.
pub(super) fn is_own(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Compile(_)
            | Failure::Run(_)
            | Failure::Full
            | Failure::Limit(_)
            | Failure::Crashed(_)
            | Failure::Memory(_)
            | Failure::Journal(_)
            | Failure::Disk(_)
    )
}

/// The start and the messages.
impl LeaseCore {
    /// Begins the work of a lease that the log shows as open between the two parties, once that is
    /// on the disk.
    pub(super) fn begin(
        shared: &mut SharedState,
        lease: Box<Lease>,
        start: Box<Start>,
        stream: StreamId,
    ) -> LeaseCore {
        assert_eq!(lease.id, start.lease);
        assert!(start.is_bounded() && lease.state == LeaseState::Active);
        shared.begun.mark_begun(lease.id);
        let began = Fact::Began {
            lease: lease.id,
            buyer: lease.buyer,
            job: lease.job,
            price: lease.price,
            deadline: lease.deadline,
            at: shared.now.log,
        };
        shared.record_facts(vec![began], FollowingStep::Accepted(lease.id));
        let mut requests = Requests::new(&start, lease.buyer);
        requests.open_request(&start.first);
        let core = LeaseCore {
            ends_at: lease.end_time(),
            limit: u32::try_from(start.parts.len()).unwrap_or(u32::MAX),
            no_more: start.last,
            lease,
            start,
            stream: Some(stream),
            stage: WorkStage::Recording,
            started: Millis(0),
            over: None,
            may_run: false,
            slots: 1,
            runs: VecDeque::new(),
            has_place: false,
            is_preparing: false,
            prepared: 0,
            here: 0,
            awaited: None,
            requests,
            bill: Bill::new(),
            idle_since: None,
            bytes: 0,
            pins: Vec::new(),
        };
        core.set_timers(shared);
        core.assert_step_invariants();
        core
    }

    pub(super) fn id(&self) -> LeaseId {
        self.lease.id
    }

    pub(super) fn buyer(&self) -> AccountKey {
        self.lease.buyer
    }

    pub(super) fn rank(&self) -> Rank {
        Rank {
            buyer: self.lease.buyer,
            priority: self.start.priority,
        }
    }

    /// Continues once the begin of the work is on the disk.
    pub(super) fn on_began(&mut self, shared: &mut SharedState) -> Option<End> {
        assert_eq!(self.stage, WorkStage::Recording, "it is put down once");
        shared.send_message(self.stream, ProviderMessage::Accepted);
        shared.wake_in(Timer::Alive(self.id()), ALIVE_PERIOD);
        self.stage = WorkStage::Fetching;
        shared.push_effect(Action::Learn {
            buyer: self.buyer(),
            start: self.start.clone(),
        });
        self.bring_contents(shared, Urgency::Awaited);
        // The buyer sent these requests before that.
        let open: Vec<u32> = self.requests.open.keys().copied().collect();
        for number in open {
            self.bring_inputs(shared, number);
        }
        self.assert_step_invariants();
        None
    }

    /// Handles a message of the buyer.
    pub(super) fn on_message(
        &mut self,
        shared: &mut SharedState,
        message: BuyerMessage,
    ) -> Option<End> {
        match message {
            BuyerMessage::Go => self.on_go(shared),
            BuyerMessage::Next(request) => self.on_request(shared, &request),
            BuyerMessage::NoMore => {
                self.no_more = true;
                self.confirm_answers();
                self.pump_runs(shared)
            }
            BuyerMessage::Limit { parts: 0 } => self.on_unwanted(shared),
            BuyerMessage::Limit { parts } => {
                self.limit = self.limit.min(parts);
                self.no_more = true;
                self.pump_runs(shared)
            }
            // The buyer has received no result yet that it could sign.
            BuyerMessage::Signed(_) | BuyerMessage::Refused { .. } => {
                shared.close_stream(&mut self.stream);
                self.on_lost(shared)
            }
        }
    }

    fn on_go(&mut self, shared: &mut SharedState) -> Option<End> {
        self.may_run = true;
        match self.stage {
            WorkStage::Ready => self.begin_serving(shared),
            _ => None,
        }
    }

    /// Stops all runs, because the buyer wants no more results.
    fn on_unwanted(&mut self, shared: &mut SharedState) -> Option<End> {
        self.no_more = true;
        self.over.get_or_insert_with(unwanted_failure);
        if self.stage < WorkStage::Serving {
            return Some(End::Failed(unwanted_failure()));
        }
        // The text of an answer is with the buyer already, so the answer is ended and billed.
        if !self.start.is_tab() {
            self.stop_runs(shared);
        }
        self.pump_runs(shared)
    }

    /// Opens one more request and fetches its inputs from now on.
    fn on_request(&mut self, shared: &mut SharedState, request: &Request) -> Option<End> {
        if self.no_more || self.over.is_some() {
            return None;
        }
        let tensors = self.tensors_each();
        let wrong = if !self.requests.has_room(request) {
            Some("the buyer sent requests beyond its window".to_owned())
        } else if !self.has_all_inputs(request) {
            Some("a request is not as the first, or of no sequence there is".to_owned())
        } else if !self
            .bill
            .has_room(self.requests.count, tensors, self.start.tensors_max())
        {
            let most = self.start.tensors_max();
            let why = format!("a receipt names {most} tensors, and no further request");
            Some(why)
        } else {
            None
        };
        if let Some(why) = wrong {
            self.stall_work(shared, Failure::Input(why));
            return self.pump_runs(shared);
        }
        self.confirm_answers();
        self.requests.open_request(request);
        if self.stage > WorkStage::Recording {
            self.bring_inputs(shared, request.number);
        }
        self.pump_runs(shared)
    }

    /// Notes that the buyer has all answers of a tab so far, if none is under way: it sends one
    /// request after the other.
    fn confirm_answers(&mut self) {
        if self.requests.open.is_empty() && self.runs.is_empty() {
            self.bill.confirm_answers();
        }
    }

    /// Returns whether a request brings all inputs that it must; the first of a sequence must also
    /// bring the fed ones.
    fn has_all_inputs(&self, request: &Request) -> bool {
        match self.requests.is_fed(request) {
            true => self.start.is_complete_request(request),
            false => self.start.gives_all(request),
        }
    }

    /// Returns the number of tensors that a receipt names for each request, in or out.
    fn tensors_each(&self) -> usize {
        let (parts, outputs) = (&self.start.parts, self.start.output_count());
        if self.start.sequences > 0 {
            return outputs.max(1);
        }
        let elsewhere = parts.iter().flat_map(|part| &part.inputs);
        let mut names: Vec<&str> = elsewhere.map(|input| input.name.as_str()).collect();
        names.retain(|name| self.requests.is_made_elsewhere(name));
        names.sort_unstable();
        names.dedup();
        let inputs = names.len() + self.start.first.inputs.len();
        inputs.max(outputs).max(1)
    }

    /// Handles the end of the buyer's stream: completes the requests begun, and begins no others.
    pub(super) fn on_lost(&mut self, shared: &mut SharedState) -> Option<End> {
        self.stream = None;
        if !self.may_run || self.stage < WorkStage::Serving {
            let why = "the buyer went away before the work began".to_owned();
            return Some(End::Failed(Failure::Input(why)));
        }
        self.no_more = true;
        let unbegun = self.requests.open.iter();
        let unbegun = unbegun.filter(|(_, open)| !open.has_begun && !open.at_work);
        let unbegun: Vec<u32> = unbegun.map(|(number, _)| *number).collect();
        for number in unbegun {
            self.drop_request(shared, number);
        }
        self.be_patient(shared);
        self.pump_runs(shared)
    }

    /// Sends a heartbeat and sets the timer of the next one.
    pub(super) fn say_alive(&self, shared: &mut SharedState) {
        shared.send_message(self.stream, ProviderMessage::Alive);
        shared.wake_in(Timer::Alive(self.id()), ALIVE_PERIOD);
    }

    /// Continues with a buyer that is back on a new stream.
    pub(super) fn on_resumed(&mut self, shared: &mut SharedState, stream: StreamId) {
        shared.close_stream(&mut self.stream);
        shared.timers.stop_timer(Timer::Patience(self.id()));
        shared.send_message(Some(stream), ProviderMessage::Accepted);
        self.stream = Some(stream);
    }

    fn be_patient(&self, shared: &mut SharedState) {
        let parts = self.start.parts.iter();
        let expected = parts.map(|part| part.expected.0).max().unwrap_or(0);
        let patience = Micros(expected.saturating_mul(20)).plus(Micros::from_seconds(5));
        shared.wake_in(Timer::Patience(self.id()), patience);
    }

    /// Stops waiting for tensors that only a lost buyer could pass on.
    pub(super) fn on_impatient(&mut self, shared: &mut SharedState) -> Option<End> {
        if self.stream.is_some() {
            return None;
        }
        if !self.runs.is_empty() || self.is_preparing {
            self.be_patient(shared);
            return None;
        }
        let why = "what another provider makes was never offered".to_owned();
        self.over.get_or_insert(Failure::Input(why));
        self.pump_runs(shared)
    }

    /// Accepts a tensor that another provider offers, or the buyer passes on.
    pub(super) fn on_offer(
        &mut self,
        shared: &mut SharedState,
        peer: AccountKey,
        offer: &Offer,
    ) -> OfferAnswer {
        let (taken, takers) = self.requests.on_offer(peer, offer);
        if self.stage > WorkStage::Recording {
            for (request, input) in takers {
                self.bring_input(shared, request, &input, offer.tensor, peer);
            }
        }
        self.assert_step_invariants();
        taken
    }
}

/// Returns the summary of the fetched contents that the buyer receives before the first run.
fn fetch_summary(arrivals: &[Arrival]) -> ProviderMessage {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let held = arrivals.iter().filter(|arrival| arrival.moved == 0);
    let moved = arrivals.iter().map(|arrival| arrival.moved);
    ProviderMessage::Fetched {
        pieces: count(arrivals.len()),
        held: count(held.count()),
        bytes: moved.fold(0, u64::saturating_add),
    }
}

/// Returns the failure of a lease whose buyer left before any work was done.
fn unwanted_failure() -> Failure {
    Failure::Input("the buyer wants nothing of it any more".to_owned())
}
