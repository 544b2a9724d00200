//! The protocol of one lease: the messages of `/souk/lease/13`.
//!
//! The buyer opens a stream to the provider of each lease and keeps it open for the length of the
//! work: an [`Opening`], then [`BuyerMessage`]s one way and [`ProviderMessage`]s the other. A lease
//! serves a stream of requests, one after the other; a job with one request is a stream with one
//! request. When a tensor is ready, the provider of one part sends an offer to the provider of the
//! next on a separate stream. The answer is an [`OfferAnswer`], and the stream can then carry the
//! next offer. The tensor does not pass through the buyer.
//!
//! Every message comes from a peer: the receiver must check it, refuse it if it is wrong, and never
//! trust it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, DeviceMicros, JobId, LeaseId, Receipt};
use souk_memory::ContentId;

use crate::clock::Micros;

/// The most requests of one lease under way at a time.
pub const WINDOW_MAX: u32 = 64;

/// The greatest number of a request: after each, another number can follow.
pub const REQUEST_NUMBER_MAX: u32 = u32::MAX - 1;

/// The longest opening in bytes, with room for the names of some ten thousands of weights.
pub const OPENING_BYTES_MAX: usize = 4 << 20;

/// The longest later message in bytes: a receipt with the most tensors it can name, or the inputs
/// of one request.
pub const WORD_BYTES_MAX: usize = 512 << 10;

/// The name of the input of a tab's requests, a [`crate::tokens::text::TextRequest`] as bytes.
pub const TAB_REQUEST: &str = "request";

/// The name of their output, a [`crate::tokens::text::TextAnswer`] as bytes.
pub const TAB_ANSWER: &str = "answer";

/// The most inputs, outputs, their consumers and other providers of one lease, over all its parts.
/// Each costs a peer at least two bytes, and about a hundred bytes of memory here.
pub const THINGS_MAX: usize = 16_384;

/// How often a provider sends a heartbeat: three times in the silence after which a buyer drops it.
pub const ALIVE_PERIOD: Micros = Micros::from_seconds(3);

/// The most bytes of a peer's text that the receiver keeps.
pub const TEXT_BYTES_MAX: usize = 256;

/// The most tensors that a session makes in one lease: the provider's last message names all of
/// them, and none of its inputs.
pub const SESSION_TENSORS_MAX: usize = 8192;

/// The shortest run to measure a speed by: shorter ones say more about clocks than about the
/// device.
pub const TELLING_RUN: Micros = Micros::from_millis(20);

/// The device time that a receipt bills if no work was done.
pub const USAGE_MIN: DeviceMicros = DeviceMicros(1);

/// The first message of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    /// The buyer starts the work of a lease.
    Start(Box<Start>),
    /// The buyer lost the stream of a lease and asks how it went. The answer is
    /// [`ProviderMessage::Accepted`] and the messages about the work while it runs, or
    /// [`ProviderMessage::Finished`] once it is done.
    Resume(LeaseId),
    /// A provider has a tensor that another provider's lease waits for. The answer is
    /// [`OfferAnswer`].
    Offer(Offer),
}

/// The work of one lease: one part of the job, or several with other providers' parts between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The lease that pays for the work.
    pub lease: LeaseId,
    /// The buyer's job.
    pub job: JobId,
    /// The parts, in the order in which they run.
    pub parts: Vec<Part>,
    /// The contacts of the job's other providers.
    pub peers: Vec<Contact>,
    /// Its priority among this buyer's own leases at the same provider: while the higher of two is
    /// at work, the lower begins no part. It has no effect on other buyers' leases.
    pub priority: u8,
    /// The number of sequences of a session, or 0 if it is no session. In a session, parts keep the
    /// states of their graphs from request to request of a sequence, requests can differ in shape,
    /// and the receipt names all outputs by one hash.
    pub sequences: u32,
    /// The first request.
    pub first: Request,
    /// Whether it is also the last one.
    pub last: bool,
}

/// The contact of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The peer's account.
    pub account: AccountKey,
    /// Its addresses as text, the best known first; the dialler parses them.
    pub addresses: Vec<String>,
}

/// One subgraph of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// A name for people, such as `part 1 of 2`.
    pub name: String,
    /// The subgraph: an ONNX model that names its large weights by their ids.
    pub graph: ContentId,
    /// The weights that it names.
    pub weights: Vec<ContentId>,
    /// The values that it reads.
    pub inputs: Vec<Input>,
    /// The values that it gives.
    pub outputs: Vec<Output>,
    /// The floating-point operations of one run, by the plan, for the delivered speed; 0 if unknown
    /// before the run.
    pub flops: u64,
    /// The device time of one run by the provider's advertised figures.
    pub expected: Micros,
}

/// One input of a subgraph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The value's name in the graph.
    pub name: String,
    /// The source of the value.
    pub source: Source,
    /// In a session, the value that replaces this input in a request that omits it. Only for the
    /// buyer's inputs.
    pub fed: Option<Feedback>,
}

/// A value that a request leaves to the next one of its sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feedback {
    /// Its name in the graph that makes it.
    pub name: String,
    /// The lease that makes it and its provider; none if the same lease reads it.
    pub maker: Option<(LeaseId, AccountKey)>,
}

/// The source of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The buyer holds it: each request names its content.
    Buyer,
    /// Another lease of the job computes it, and its provider will offer it.
    Lease {
        /// The other lease.
        lease: LeaseId,
        /// The provider of that lease.
        provider: AccountKey,
    },
    /// An earlier part of the same lease gives it.
    Own,
}

/// One output of a subgraph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The value's name in the graph.
    pub name: String,
    /// The leases that wait for it, and their providers.
    pub consumers: Vec<(LeaseId, AccountKey)>,
    /// Whether the buyer wants it. If so and it is short, it accompanies [`ProviderMessage::Made`].
    pub is_wanted: bool,
}

/// One request: the buyer's inputs for the parts of the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its number in the job, from 0 to [`REQUEST_NUMBER_MAX`].
    pub number: u32,
    /// The sequence that it is a step of, from 0. The requests of one sequence run one after the
    /// other.
    pub sequence: u32,
    /// The inputs that the buyer holds, by name. All but the first request of a sequence in a lease
    /// may omit the inputs that are fed.
    pub inputs: Vec<(String, ContentId)>,
    /// Whether the buyer wants the outputs that feed the next request of the sequence. If not, the
    /// provider holds them until that request is over, and the buyer does not fetch them.
    #[serde(default = "wants_feedback")]
    pub keep: bool,
}

/// The journals of earlier versions state nothing: the buyer then wanted all outputs.
fn wants_feedback() -> bool {
    true
}

/// An offer of a tensor to the lease that waits for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Offer {
    /// The lease that computed it.
    pub from: LeaseId,
    /// The lease that waits for it.
    pub to: LeaseId,
    /// The request it belongs to.
    pub request: u32,
    /// The value's name in the graph.
    pub name: String,
    /// The tensor; the offering peer serves it.
    pub tensor: ContentId,
}

/// The answer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferAnswer {
    /// The lease waits for it and will fetch it.
    Yes,
    /// No such lease runs here, or it does not wait for that value from that peer.
    No,
}

/// A buyer's message after the opening. [`BuyerMessage::Signed`] or [`BuyerMessage::Refused`] is
/// the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuyerMessage {
    /// Every provider of the job has accepted: runs may begin, and providers may send offers.
    Go,
    /// One more request, after the one before it.
    Next(Request),
    /// No more requests follow.
    NoMore,
    /// Inputs of later parts will not arrive. The buyer still wants the first `parts` parts of each
    /// request, and those begun or done by then. With 0, the provider begins no more work and stops
    /// its runs. [`ProviderMessage::Finished`] reports the work done.
    Limit {
        /// The number of parts that the buyer still wants.
        parts: u32,
    },
    /// The outputs are here and right: the receipt with both signatures.
    Signed(Box<Receipt>),
    /// The buyer does not sign.
    Refused {
        /// The reason, for people.
        reason: String,
    },
}

/// A provider's message, in this order. [`ProviderMessage::Failed`] may come at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderMessage {
    /// The log shows the lease as open, and the work begins.
    Accepted,
    /// The graphs are here, with the weights and the buyer's inputs of the first part. The contents
    /// of later parts arrive while earlier ones run.
    Fetched {
        /// The number of contents that the work needs from the buyer.
        pieces: u32,
        /// The number of those that were here already.
        held: u32,
        /// The bytes that came over the network.
        bytes: u64,
    },
    /// The device has compiled the parts whose contents are here.
    Ready,
    /// Every input of a part is here, and the device runs it.
    Running {
        /// The request's number.
        request: u32,
        /// The index of the part, from 0.
        part: u32,
    },
    /// A part of a request is done, and its outputs were offered to the leases that wait for them.
    Made {
        /// The request's number.
        request: u32,
        /// The index of the part, from 0.
        part: u32,
        /// The outputs by name; the provider serves them.
        outputs: Vec<(String, ContentId)>,
    },
    /// Another provider did not accept a tensor: the buyer may pass it on.
    Untaken(Box<UntakenOffer>),
    /// A tensor did not arrive, or the lease is about to end early, so the provider begins no more
    /// work. The buyer owes for the work done.
    Stalled(Failure),
    /// The work is done.
    Finished(Box<WorkResult>),
    /// The provider cannot do the work, and the buyer owes nothing.
    Failed(Failure),
    /// A heartbeat: the provider is at work, or waits for its buyer. From
    /// [`ProviderMessage::Accepted`] on, it sends one each [`ALIVE_PERIOD`] between other messages.
    Alive,
}

/// A tensor that another provider did not accept from its maker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntakenOffer {
    /// The provider that did not accept it.
    pub consumer: AccountKey,
    /// The maker's offer.
    pub offer: Offer,
    /// The reason, for people.
    pub why: String,
}

/// The result of a lease's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkResult {
    /// The receipt, signed by the provider.
    pub receipt: Receipt,
    /// The outputs of each request's parts in their order, by request number. A buyer that received
    /// no [`ProviderMessage::Made`] can still use them.
    pub outputs: Vec<(u32, Vec<(String, ContentId)>)>,
    /// The display data for people (transfers, report, timeline), which no core reads.
    pub shown: Vec<u8>,
}

/// Why a provider cannot do the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The log does not show this lease as open between this buyer and this provider.
    #[error("the lease is not open between this buyer and this provider: {0}")]
    Lease(String),
    /// The lease was started before.
    #[error("the lease has been started before")]
    Started,
    /// The provider runs as many leases as it can.
    #[error("the provider has no room for another lease")]
    Full,
    /// A content did not arrive.
    #[error("an input did not arrive: {0}")]
    Input(String),
    /// The device refuses the subgraph.
    #[error("the device cannot run the subgraph: {0}")]
    Compile(String),
    /// The device failed during the run.
    #[error("the run failed: {0}")]
    Run(String),
    /// The provider knows nothing of the lease in an [`Opening::Resume`].
    #[error("the provider does not know this lease: it was never started, or ended long ago")]
    Forgotten,
    /// The lease ended before the work did.
    #[error("the lease ended before the work was done")]
    Expired,
    /// The provider is about to stop, and returns leases that did not begin.
    #[error("the provider is about to stop and gives the lease back")]
    Stopping,
    /// The provider's own limits do not allow it.
    #[error("the provider's limits do not allow it: {0}")]
    Limit(String),
    /// The provider's process for the work failed.
    #[error("the provider's process for the job failed: {0}")]
    Crashed(String),
    /// The work needed more memory than the provider allows a job.
    #[error("the job needed more than the {0} bytes of memory that the provider gives each job")]
    Memory(u64),
    /// The provider cannot write its journal, so it does no work.
    #[error("the provider cannot write its journal: {0}")]
    Journal(String),
    /// The provider's disk, or its folder for contents, has no room.
    #[error("the provider has no room for the job's inputs or outputs: {0}")]
    Disk(String),
    /// The inputs do not fit the model on any device: for example, an index past an end, or a shape
    /// that fits no node. The buyer owes for the failed run as for one with outputs.
    #[error("the inputs do not fit the model: {0}")]
    BadInput(String),
}

impl Failure {
    /// Returns the failure of a lease whose next outputs exceed the rest of its allowance.
    #[must_use]
    pub fn too_much(bytes: u64, left: u64) -> Failure {
        Failure::Limit(format!(
            "a run makes {bytes} bytes and {left} are left of what limits.outputs_mib lets a \
             lease make in all: want fewer outputs, or fewer requests in one job"
        ))
    }

    /// Returns the failure with a peer's text cut to its first [`TEXT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn truncate_texts(self) -> Failure {
        match self {
            Failure::Lease(text) => Failure::Lease(truncate_text(text)),
            Failure::Input(text) => Failure::Input(truncate_text(text)),
            Failure::Compile(text) => Failure::Compile(truncate_text(text)),
            Failure::Run(text) => Failure::Run(truncate_text(text)),
            Failure::Limit(text) => Failure::Limit(truncate_text(text)),
            Failure::Crashed(text) => Failure::Crashed(truncate_text(text)),
            Failure::Journal(text) => Failure::Journal(truncate_text(text)),
            Failure::Disk(text) => Failure::Disk(truncate_text(text)),
            Failure::BadInput(text) => Failure::BadInput(truncate_text(text)),
            other => other,
        }
    }
}

impl Start {
    /// Returns the id that a receipt names as the graph if no request went beyond the first `parts`
    /// parts: the id of a single part, or the hash of the ids of several.
    #[must_use]
    pub fn graph_of(&self, parts: usize) -> ContentId {
        match &self.parts[..parts.min(self.parts.len())] {
            [part] => part.graph,
            parts => {
                let ids: Vec<u8> = parts.iter().flat_map(|p| *p.graph.as_bytes()).collect();
                ContentId::for_content(&ids)
            }
        }
    }

    /// Returns whether an output of this lease feeds the next request of a sequence.
    #[must_use]
    pub fn is_feedback(&self, output: &str) -> bool {
        let inputs = self.parts.iter().flat_map(|part| &part.inputs);
        let mut fed = inputs.filter_map(|input| input.fed.as_ref());
        fed.any(|fed| fed.maker.is_none() && fed.name == output)
    }

    /// Returns whether the work is a tab: requests for texts, one after the other.
    #[must_use]
    pub fn is_tab(&self) -> bool {
        let [part] = &self.parts[..] else {
            return false;
        };
        let [input] = &part.inputs[..] else {
            return false;
        };
        let [output] = &part.outputs[..] else {
            return false;
        };
        let is_whole = input.name == TAB_REQUEST
            && input.source == Source::Buyer
            && input.fed.is_none()
            && output.name == TAB_ANSWER
            && output.consumers.is_empty()
            && output.is_wanted;
        is_whole
            && self.sequences == 1
            && part.weights.is_empty()
            && self.peers.is_empty()
            && part.flops == 0
            && part.expected == Micros(0)
    }

    /// Returns the most tensors that requests can bring or make in this lease.
    #[must_use]
    pub fn tensors_max(&self) -> usize {
        match self.sequences {
            0 => Receipt::TENSORS_MAX,
            _ => SESSION_TENSORS_MAX,
        }
    }

    /// Returns the number of tensors that each request makes.
    #[must_use]
    pub fn output_count(&self) -> usize {
        self.parts.iter().map(|part| part.outputs.len()).sum()
    }

    /// Returns whether it contains work and is not too large to check.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let takers =
            |part: &Part| -> usize { part.outputs.iter().map(Output::consumer_count).sum() };
        let of = |part: &Part| 1 + part.inputs.len() + part.outputs.len() + takers(part);
        let things = self.peers.len() + self.parts.iter().map(of).sum::<usize>();
        let is_small = things <= THINGS_MAX && self.sequences <= WINDOW_MAX;
        !self.parts.is_empty() && is_small && self.gives_all(&self.first)
    }

    /// Returns the inputs that the buyer holds, in the order of parts and inputs.
    fn buyer_inputs(&self) -> impl Iterator<Item = &Input> {
        let inputs = self.parts.iter().flat_map(|part| &part.inputs);
        inputs.filter(|input| input.source == Source::Buyer)
    }

    /// Returns whether a later request of an existing sequence names the buyer's inputs and no
    /// others. It may omit inputs that are fed.
    #[must_use]
    pub fn is_complete_request(&self, request: &Request) -> bool {
        self.left_out(request).is_some()
    }

    /// Returns whether a request also omits no input, which the first of a sequence must not.
    #[must_use]
    pub fn gives_all(&self, request: &Request) -> bool {
        self.left_out(request) == Some(0)
    }

    /// Returns the number of fed inputs that a request omits; none if it lacks another input, names
    /// an unknown one, belongs to no sequence, or has a number that none can follow.
    fn left_out(&self, request: &Request) -> Option<usize> {
        let is_numbered = request.number <= REQUEST_NUMBER_MAX;
        let is_of_sequence = request.sequence < self.sequences.max(1);
        if request.inputs.len() > THINGS_MAX || !is_numbered || !is_of_sequence {
            return None;
        }
        let asked: BTreeSet<&str> = self
            .buyer_inputs()
            .map(|input| input.name.as_str())
            .collect();
        let given = request.inputs.iter().map(|(name, _)| name.as_str());
        let given: BTreeSet<&str> = given.collect();
        let mut left = self
            .buyer_inputs()
            .filter(|it| !given.contains(it.name.as_str()));
        let is_right = given.len() == request.inputs.len()
            && given.is_subset(&asked)
            && left.all(|input| input.fed.is_some());
        is_right.then(|| asked.len() - given.len())
    }
}

impl Request {
    /// Creates a request outside any session, of which the buyer wants all outputs.
    #[must_use]
    pub fn new(number: u32, inputs: Vec<(String, ContentId)>) -> Request {
        let sequence = 0;
        Request {
            number,
            sequence,
            inputs,
            keep: true,
        }
    }
}

impl Output {
    fn consumer_count(&self) -> usize {
        self.consumers.len()
    }
}

impl UntakenOffer {
    /// Returns whether the offer is for a tensor that the work of `start` makes for that lease.
    #[must_use]
    pub fn is_of(&self, start: &Start) -> bool {
        let outputs = start.parts.iter().flat_map(|part| &part.outputs);
        let mut named = outputs.filter(|output| output.name == self.offer.name);
        let consumer = (self.offer.to, self.consumer);
        self.offer.from == start.lease && named.any(|output| output.consumers.contains(&consumer))
    }
}

/// Returns the one content by which the receipt of a session names all outputs: the hash of their
/// ids, each once, in the order of their bytes; none if there are no outputs.
#[must_use]
pub fn transcript<'a>(made: impl IntoIterator<Item = &'a ContentId>) -> Option<ContentId> {
    let ids: BTreeSet<&[u8]> = made.into_iter().map(|id| &id.as_bytes()[..]).collect();
    let ids: Vec<&[u8]> = ids.into_iter().collect();
    (!ids.is_empty()).then(|| ContentId::for_content(&ids.concat()))
}

/// Cuts a peer's text to its first [`TEXT_BYTES_MAX`] bytes, in whole characters.
#[must_use]
pub fn truncate_text(mut text: String) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(inputs: usize) -> Start {
        let id = ContentId::for_content(b"graph");
        let input = |number: usize| Input {
            name: format!("x{number}"),
            source: Source::Buyer,
            fed: None,
        };
        let part = Part {
            name: String::new(),
            graph: id,
            weights: vec![id; 3],
            inputs: (0..inputs).map(input).collect(),
            outputs: vec![Output {
                name: "y".into(),
                consumers: vec![(LeaseId(2), AccountKey([7; 32]))],
                is_wanted: false,
            }],
            flops: 1 << 40,
            expected: Micros::from_millis(3),
        };
        let given = (0..inputs).map(|number| (format!("x{number}"), id));
        Start {
            sequences: 0,
            lease: LeaseId(1),
            job: JobId([2; 32]),
            parts: vec![
                part.clone(),
                Part {
                    inputs: Vec::new(),
                    ..part
                },
            ],
            peers: Vec::new(),
            priority: 1,
            first: Request {
                number: 0,
                sequence: 0,
                inputs: given.collect(),
                keep: true,
            },
            last: true,
        }
    }

    #[test]
    fn work_of_very_many_things_or_of_none_is_not_looked_at() {
        assert!(start(100).is_bounded());
        let many = Start {
            peers: vec![
                Contact {
                    account: AccountKey([1; 32]),
                    addresses: Vec::new()
                };
                THINGS_MAX
            ],
            ..start(1)
        };
        assert!(!many.is_bounded());
        let none = Start {
            parts: Vec::new(),
            ..start(0)
        };
        assert!(!none.is_bounded());
    }

    #[test]
    fn a_request_gives_what_is_asked_and_nothing_else() {
        let start = start(2);
        assert!(start.is_complete_request(&start.first));
        let mut less = start.first.clone();
        less.inputs.pop();
        assert!(!start.is_complete_request(&less));
        let mut more = start.first.clone();
        more.inputs.push(("z".into(), ContentId::for_content(b"z")));
        assert!(!start.is_complete_request(&more));
        let second = Request {
            sequence: 1,
            ..start.first.clone()
        };
        assert!(
            !start.is_complete_request(&second),
            "it is no session of two sequences"
        );
    }

    #[test]
    fn a_request_that_follows_another_may_leave_out_what_is_fed() {
        let mut start = start(2);
        start.sequences = 1;
        start.parts[0].inputs[1].fed = Some(Feedback {
            name: "y".into(),
            maker: None,
        });
        let mut less = start.first.clone();
        let last = less.inputs.pop().unwrap();
        assert!(start.is_complete_request(&less) && !start.gives_all(&less));
        assert!(start.is_complete_request(&start.first) && start.gives_all(&start.first));
        less.inputs.clear();
        assert!(
            !start.is_complete_request(&less),
            "the first input is not fed"
        );
        less.inputs = vec![last.clone(), last];
        assert!(!start.is_complete_request(&less), "twice is not both");
        start.first.inputs.pop();
        assert!(!start.is_bounded(), "nothing comes before the first");
    }

    #[test]
    fn a_request_whose_number_none_can_follow_is_refused() {
        let mut start = start(1);
        start.first.number = REQUEST_NUMBER_MAX;
        assert!(start.is_bounded() && start.is_complete_request(&start.first));
        start.first.number += 1;
        assert!(!start.is_bounded() && !start.is_complete_request(&start.first));
    }

    #[test]
    fn a_receipt_of_one_part_names_its_graph_and_one_of_two_the_hash_of_both() {
        let start = start(1);
        assert_eq!(start.graph_of(1), ContentId::for_content(b"graph"));
        let both = [*ContentId::for_content(b"graph").as_bytes(); 2].concat();
        assert_eq!(start.graph_of(2), ContentId::for_content(&both));
    }

    #[test]
    fn untaken_is_believed_of_what_the_lease_makes_for_that_consumer_alone() {
        let start = start(0);
        let untaken = UntakenOffer {
            consumer: AccountKey([7; 32]),
            offer: Offer {
                from: LeaseId(1),
                to: LeaseId(2),
                request: 0,
                name: "y".into(),
                tensor: ContentId::for_content(b"y"),
            },
            why: String::new(),
        };
        assert!(untaken.is_of(&start));
        let mut other = untaken.clone();
        other.offer.name = "z".into();
        assert!(!other.is_of(&start));
        other = untaken;
        other.consumer = AccountKey([8; 32]);
        assert!(!other.is_of(&start));
    }

    #[test]
    fn what_a_peer_says_is_cut_between_characters() {
        assert_eq!(truncate_text("short".into()), "short");
        let long = truncate_text("ä".repeat(200));
        assert_eq!(long, "ä".repeat(TEXT_BYTES_MAX / 2));
    }
}
