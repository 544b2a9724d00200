//! One lease at work: from the moment its start is admitted to the last of its runs.
//!
//! ```text
//! Recording ─Began on the disk─> Fetching ─graphs, part 1─> Checking ─> Placing ─> Preparing
//!   ─> Ready ─Go─> Serving ─last done, limit, end near, an input never comes─> Done or Failed
//! ```
//! What ends it is one pair: a moment (`ends_at`) and a number of parts (`limit`) after which
//! nothing more is begun. What it is owed then is a [`super::claim::Claim`].

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
use super::event::{Arrival, RunResult};
use super::facts::Fact;
use super::requests::Requests;
use super::shared::{Effort, Follows, SharedState, Stage, Timer, Wait};
use super::turns::Rank;
use super::{Answer, StreamId};
use crate::clock::Micros;
use crate::lease::{
    ALIVE_PERIOD, BuyerWord, Failure, Offer, OfferAnswer, ProviderWord, Request, Start,
};

/// What is left of a lease when nothing more is begun: time for the buyer to fetch what there is
/// and to sign. Some of the grace that follows is good for it too.
const HANDOVER: Millis = Millis(1_000);

/// Of a lease that ends by its own time, a tenth at most is left for that.
const HANDOVER_SHARE: u64 = 10;

/// How far a lease at work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum WorkStage {
    /// That it begins is being put down.
    Recording,
    /// The graphs come, and what the first part wants of the buyer.
    Fetching,
    /// A place to run it in is found.
    Placing,
    /// The graphs are looked at, in that place.
    Checking,
    /// The first part is compiled.
    Preparing,
    /// The buyer's word is waited for.
    Ready,
    /// Requests are run.
    Serving,
}

/// How the work of a lease ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Something was run, and is owed.
    Done,
    /// Nothing is.
    Failed(Failure),
}

/// A run on the device.
#[derive(Clone, Debug, Serialize)]
struct Run {
    request: u32,
    part: u32,
    began: Micros,
    /// What it came to. Runs are told in the order in which they were begun, but for those of
    /// sequences.
    ended: Option<Result<RunResult, Failure>>,
}

/// One lease at work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseCore {
    pub(super) lease: Box<Lease>,
    pub(super) start: Box<Start>,
    pub(super) stream: Option<StreamId>,
    pub(super) stage: WorkStage,
    /// When the device is another's.
    pub(super) ends_at: Millis,
    /// When the runs began.
    pub(super) started: Millis,
    /// So many parts of each request are wanted.
    limit: u32,
    /// No request comes any more.
    no_more: bool,
    /// Why nothing more is begun.
    over: Option<Failure>,
    /// The buyer said that runs may begin.
    may_run: bool,
    /// Runs that the place takes at once.
    slots: u32,
    runs: VecDeque<Run>,
    /// Whether there is a place that is to be closed.
    has_place: bool,
    is_preparing: bool,
    /// Parts that are compiled, and parts of which all that the buyer holds is here.
    prepared: u32,
    here: u32,
    /// The request and the part that the device waits for.
    awaited: Option<(u32, u32)>,
    pub(super) requests: Requests,
    pub(super) bill: Bill,
    /// Since when the device has waited for a further request.
    idle_since: Option<Micros>,
    /// Bytes of graphs, weights and what came with them.
    bytes: u64,
    pins: Vec<ContentId>,
}

/// Whether a failure is this provider's own: where others failed or the time was over, the lease
/// ends without this provider's word.
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

/// The start and the words.
impl LeaseCore {
    /// A lease that the log has open between these two: its work begins once that is on the disk.
    pub(super) fn begin(
        shared: &mut SharedState,
        lease: Box<Lease>,
        start: Box<Start>,
        stream: StreamId,
    ) -> LeaseCore {
        assert_eq!(lease.id, start.lease);
        assert!(start.is_bounded() && lease.state == LeaseState::Active);
        shared.begun.begin(lease.id);
        let began = Fact::Began {
            lease: lease.id,
            buyer: lease.buyer,
            job: lease.job,
            price: lease.price,
            deadline: lease.deadline,
            at: shared.now.log,
        };
        shared.record(vec![began], Follows::Accepted(lease.id));
        let mut requests = Requests::new(&start, lease.buyer);
        requests.open(&start.first);
        let core = LeaseCore {
            ends_at: lease.ends(),
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
        core.check();
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

    /// That it begins is on the disk.
    pub(super) fn on_began(&mut self, shared: &mut SharedState) -> Option<End> {
        assert_eq!(self.stage, WorkStage::Recording, "it is put down once");
        shared.send(self.stream, ProviderWord::Accepted);
        shared.wake_in(Timer::Alive(self.id()), ALIVE_PERIOD);
        self.stage = WorkStage::Fetching;
        shared.act(Action::Learn {
            buyer: self.buyer(),
            start: self.start.clone(),
        });
        self.bring_contents(shared, Urgency::Awaited);
        // What was said before that.
        let open: Vec<u32> = self.requests.open.keys().copied().collect();
        for number in open {
            self.bring_inputs(shared, number);
        }
        self.check();
        None
    }

    /// What the buyer says.
    pub(super) fn on_word(&mut self, shared: &mut SharedState, word: BuyerWord) -> Option<End> {
        match word {
            BuyerWord::Go => self.on_go(shared),
            BuyerWord::Next(request) => self.on_request(shared, &request),
            BuyerWord::NoMore => {
                self.no_more = true;
                self.pump(shared)
            }
            BuyerWord::Limit { parts: 0 } => self.on_unwanted(shared),
            BuyerWord::Limit { parts } => {
                self.limit = self.limit.min(parts);
                self.no_more = true;
                self.pump(shared)
            }
            // Nothing was told yet that could be signed.
            BuyerWord::Signed(_) | BuyerWord::Refused { .. } => {
                shared.hang(&mut self.stream);
                self.on_lost(shared)
            }
        }
    }

    fn on_go(&mut self, shared: &mut SharedState) -> Option<End> {
        self.may_run = true;
        match self.stage {
            WorkStage::Ready => self.serve(shared),
            _ => None,
        }
    }

    /// The buyer wants nothing any more: what runs is stopped.
    fn on_unwanted(&mut self, shared: &mut SharedState) -> Option<End> {
        self.no_more = true;
        self.over.get_or_insert_with(unwanted);
        if self.stage < WorkStage::Serving {
            return Some(End::Failed(unwanted()));
        }
        self.stop_runs(shared);
        self.pump(shared)
    }

    /// One more request: what it needs is on its way from now on.
    fn on_request(&mut self, shared: &mut SharedState, request: &Request) -> Option<End> {
        if self.no_more || self.over.is_some() {
            return None;
        }
        let tensors = self.tensors_each();
        let wrong = if !self.requests.has_room(request) {
            Some("the buyer sent requests beyond its window".to_owned())
        } else if !self.gives(request) {
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
            self.stall(shared, Failure::Input(why));
            return self.pump(shared);
        }
        self.requests.open(request);
        if self.stage > WorkStage::Recording {
            self.bring_inputs(shared, request.number);
        }
        self.pump(shared)
    }

    /// Whether a request brings what it must: what is fed, where nothing came before it.
    fn gives(&self, request: &Request) -> bool {
        match self.requests.is_fed(request) {
            true => self.start.gives(request),
            false => self.start.gives_all(request),
        }
    }

    /// Tensors that a receipt names for each request, in or out.
    fn tensors_each(&self) -> usize {
        let (parts, outputs) = (&self.start.parts, self.start.outputs());
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

    /// The buyer's stream is over: what it began is finished, and nothing else is begun.
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
        self.pump(shared)
    }

    /// Says that this provider lives, and will again.
    pub(super) fn say_alive(&self, shared: &mut SharedState) {
        shared.send(self.stream, ProviderWord::Alive);
        shared.wake_in(Timer::Alive(self.id()), ALIVE_PERIOD);
    }

    /// The buyer is back.
    pub(super) fn on_resumed(&mut self, shared: &mut SharedState, stream: StreamId) {
        shared.hang(&mut self.stream);
        shared.timers.stop(Timer::Patience(self.id()));
        shared.send(Some(stream), ProviderWord::Accepted);
        self.stream = Some(stream);
    }

    fn be_patient(&self, shared: &mut SharedState) {
        let parts = self.start.parts.iter();
        let expected = parts.map(|part| part.expected.0).max().unwrap_or(0);
        let patience = Micros(expected.saturating_mul(20)).plus(Micros::seconds(5));
        shared.wake_in(Timer::Patience(self.id()), patience);
    }

    /// Nobody will hand on what another provider does not offer.
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
        self.pump(shared)
    }

    /// Takes a tensor that another provider offers, or the buyer hands on.
    pub(super) fn on_offer(
        &mut self,
        shared: &mut SharedState,
        peer: AccountKey,
        offer: &Offer,
    ) -> OfferAnswer {
        let (taken, takers) = self.requests.on_offer(peer, offer);
        if self.stage > WorkStage::Recording {
            for (request, input) in takers {
                self.bring_input(shared, request, &input, (offer.tensor, peer));
            }
        }
        self.check();
        taken
    }
}

/// What was fetched before anything was run, for the buyer to see.
fn summary(arrivals: &[Arrival]) -> ProviderWord {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let held = arrivals.iter().filter(|arrival| arrival.moved == 0);
    let moved = arrivals.iter().map(|arrival| arrival.moved);
    ProviderWord::Fetched {
        pieces: count(arrivals.len()),
        held: count(held.count()),
        bytes: moved.fold(0, u64::saturating_add),
    }
}

/// What is told where the buyer left before anything was done.
fn unwanted() -> Failure {
    Failure::Input("the buyer wants nothing of it any more".to_owned())
}
