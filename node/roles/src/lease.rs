//! What is said about one lease: the words of `/souk/lease/11`.
//!
//! The buyer opens a stream to the provider of each lease and keeps it for the length of the work:
//! an [`Opening`], then [`BuyerWord`]s one way and [`ProviderWord`]s the other. A lease serves
//! requests, one behind the other; a job of one request is a stream of one. The provider of one
//! part tells the provider of the next where a tensor can be fetched by an offer on a stream of its
//! own, which is answered by [`OfferAnswer`] and may bring the next offer then; the buyer is not in
//! that tensor's way.
//!
//! What is said here comes from peers: it is looked at, and refused where it is wrong, never
//! believed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, DeviceMicros, JobId, LeaseId, Receipt};
use souk_memory::ContentId;

use crate::clock::Micros;

/// Requests of one lease that are under way at a time.
pub const WINDOW_MAX: u32 = 64;

/// The longest opening: the names of some ten thousands of weights fit.
pub const OPENING_BYTES_MAX: usize = 4 << 20;

/// The longest word after that: a receipt with as many tensors as it may name, or the inputs of one
/// request.
pub const WORD_BYTES_MAX: usize = 512 << 10;

/// What one lease may be made of, all its parts together: inputs, outputs, their takers, other
/// providers. Each costs a peer two bytes at least, and memory here some hundred.
pub const THINGS_MAX: usize = 16_384;

/// How often a provider says that it lives.
pub const ALIVE_PERIOD: Micros = Micros::seconds(2);

/// Of a text that a peer says, so many bytes are kept.
pub const TEXT_BYTES_MAX: usize = 256;

/// Tensors that a session makes in one lease: what its provider says at the end names them all,
/// and nothing that it was given.
pub const SESSION_TENSORS_MAX: usize = 8192;

/// Runs of less device time than this say more about clocks than about the device.
pub const TELLING_RUN: Micros = Micros::millis(20);

/// The device time that a receipt bills where nothing was done.
pub const USAGE_MIN: DeviceMicros = DeviceMicros(1);

/// The first word of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opening {
    /// The buyer starts the work of a lease.
    Start(Box<Start>),
    /// The buyer lost the stream of a lease and asks how it went: [`ProviderWord::Accepted`] and
    /// what is said of the work while it is at it, [`ProviderWord::Finished`] once it is done.
    Resume(LeaseId),
    /// A provider has a tensor that another one's lease waits for; [`OfferAnswer`] follows.
    Offer(Offer),
}

/// The work of one lease: one part of the job, or several with other providers' parts between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The lease it is done under.
    pub lease: LeaseId,
    /// The buyer's job.
    pub job: JobId,
    /// The parts, in the order in which they are run.
    pub parts: Vec<Part>,
    /// The other providers of the job.
    pub peers: Vec<Contact>,
    /// Its place among this buyer's own leases at the same provider: of two at work, no part of
    /// the lower one is begun meanwhile. To other buyers' leases it is nothing.
    pub priority: u8,
    /// How many sequences it has where it is a session, 0 where it is none: for each, parts keep
    /// what their graphs call states from request to request, requests may differ in shape, and the
    /// receipt names all that was made by one hash.
    pub sequences: u32,
    /// The first request.
    pub first: Request,
    /// Whether it is the last one too.
    pub last: bool,
}

/// Where a peer can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The peer's account.
    pub account: AccountKey,
    /// Its addresses as text, the best known first; who dials them reads them.
    pub addresses: Vec<String>,
}

/// One subgraph of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// A name for people, such as `part 1 of 2`.
    pub name: String,
    /// The subgraph: an ONNX model whose large weights are named by their ids.
    pub graph: ContentId,
    /// The weights it names.
    pub weights: Vec<ContentId>,
    /// What it reads.
    pub inputs: Vec<Input>,
    /// What it gives.
    pub outputs: Vec<Output>,
    /// Floating-point operations of one run, by the plan; for the delivered speed. 0 where they are
    /// not known before it runs.
    pub flops: u64,
    /// Device time of one run by the figures the provider advertises.
    pub expected: Micros,
}

/// One input of a subgraph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The value's name in the graph.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
    /// In a session, what it is in a request that does not bring it. Of what the buyer holds alone.
    pub fed: Option<Feedback>,
}

/// A value that a request leaves to the next one of its sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feedback {
    /// Its name in the graph that makes it.
    pub name: String,
    /// The lease that makes it and its provider; none where that is the lease that reads it.
    pub maker: Option<(LeaseId, AccountKey)>,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The buyer holds it: each request names its content.
    Buyer,
    /// Another lease of the job computes it, and its provider will offer it.
    Lease {
        /// The other lease.
        lease: LeaseId,
        /// Its provider.
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
    /// Whether the buyer wants it: where it is short it goes along with the word that it is made.
    pub is_wanted: bool,
}

/// One request: what the buyer gives to the parts of the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its number in the job, from 0.
    pub number: u32,
    /// The sequence that it is a step of, from 0. One sequence's requests are run one after the
    /// other.
    pub sequence: u32,
    /// The inputs that the buyer holds, by name. What is fed may be left out by all but the first
    /// request of a sequence in a lease.
    pub inputs: Vec<(String, ContentId)>,
}

/// A tensor is there for whoever waits for it.
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

/// Whether an offer was of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferAnswer {
    /// The lease waits for it and will fetch it.
    Yes,
    /// No such lease runs here, or it does not wait for that value from that peer.
    No,
}

/// What the buyer says after the opening. [`BuyerWord::Signed`] and [`BuyerWord::Refused`] are its
/// last words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuyerWord {
    /// Every provider of the job has accepted: runs may begin and offers may be sent.
    Go,
    /// One more request, after the one before it.
    Next(Request),
    /// No request comes any more.
    NoMore,
    /// What later parts wait for will not come: of each request the first `parts` are still wanted,
    /// and those that are begun or done by then. With 0 nothing more is begun, and what runs is
    /// stopped. [`ProviderWord::Finished`] is about what was done.
    Limit {
        /// How many parts.
        parts: u32,
    },
    /// The outputs are here and right: the receipt with both signatures.
    Signed(Box<Receipt>),
    /// The buyer does not sign.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What the provider says, in this order; [`ProviderWord::Failed`] may come at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProviderWord {
    /// The lease is open in the log and the work begins.
    Accepted,
    /// The graphs are here, and weights and the buyer's inputs of the first part. What later parts
    /// want comes while earlier ones run.
    Fetched {
        /// How many pieces of content the work needs of the buyer.
        pieces: u32,
        /// How many of them were here already.
        held: u32,
        /// Bytes that came over the network.
        bytes: u64,
    },
    /// The device has compiled the parts that all is here for.
    Ready,
    /// Every input of a part is here and the device runs it.
    Running {
        /// The request's number.
        request: u32,
        /// The part, from 0.
        part: u32,
    },
    /// A part of a request is done, and what it gave was offered to whoever waits for it.
    Made {
        /// The request's number.
        request: u32,
        /// The part, from 0.
        part: u32,
        /// What it gave, by name; the provider serves it.
        outputs: Vec<(String, ContentId)>,
    },
    /// Another provider did not take a tensor: the buyer may hand it on.
    Untaken(Box<UntakenOffer>),
    /// A tensor did not come, or the lease is about to end early, so that nothing more is begun.
    /// What was done is owed.
    Stalled(Failure),
    /// The work is done.
    Finished(Box<WorkResult>),
    /// The work cannot be done, and nothing is owed.
    Failed(Failure),
    /// It is at work, or waits for its buyer: said each [`ALIVE_PERIOD`] from
    /// [`ProviderWord::Accepted`] on, whatever else is said.
    Alive,
}

/// A tensor that its maker could not hand to another provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntakenOffer {
    /// Who did not take it.
    pub consumer: AccountKey,
    /// What was offered.
    pub offer: Offer,
    /// Why it was not taken.
    pub why: String,
}

/// The result of a lease's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkResult {
    /// The receipt, signed by the provider.
    pub receipt: Receipt,
    /// What was made of each request, by its number: the outputs of its parts, in their order, so
    /// that a buyer who heard no [`ProviderWord::Made`] can take over what is done.
    pub outputs: Vec<(u32, Vec<(String, ContentId)>)>,
    /// What people are shown of it (what moved, report, timeline): no core reads it.
    pub shown: Vec<u8>,
}

/// Why the work cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The log does not have this lease open between these two.
    #[error("the lease is not open between this buyer and this provider: {0}")]
    Lease(String),
    /// The lease was started before.
    #[error("the lease has been started before")]
    Started,
    /// The provider runs as many leases as it can.
    #[error("the provider has no room for another lease")]
    Full,
    /// Content did not arrive.
    #[error("an input did not arrive: {0}")]
    Input(String),
    /// The device refuses the subgraph.
    #[error("the device cannot run the subgraph: {0}")]
    Compile(String),
    /// The device failed while it ran.
    #[error("the run failed: {0}")]
    Run(String),
    /// Nothing is known here of a lease that is asked for.
    #[error("the provider knows nothing of this lease: it was not started, or long ago")]
    Forgotten,
    /// The lease ended before the work did.
    #[error("the lease ended before the work was done")]
    Expired,
    /// The provider is about to stop, and gives back what was not begun.
    #[error("the provider is about to stop and gives the lease back")]
    Stopping,
    /// The provider's own limits.
    #[error("the provider's limits do not allow it: {0}")]
    Limit(String),
    /// The process that the provider ran the work in came to grief.
    #[error("the provider's process for the job failed: {0}")]
    Crashed(String),
    /// The work wanted more memory than the provider gives to a job.
    #[error("the job wanted more than the {0} bytes of memory that the provider gives to one")]
    Memory(u64),
    /// The provider cannot write down what it does, so it does nothing.
    #[error("the provider cannot write its journal: {0}")]
    Journal(String),
    /// The provider's disk, or its folder for contents, has no room.
    #[error("the provider has no room for what the work needs or makes: {0}")]
    Disk(String),
    /// The inputs are none that the model can work with, on any device: an index past an end, or a
    /// shape that fits no node. The run that failed so is owed like one that gave something.
    #[error("the inputs do not fit the model: {0}")]
    BadInput(String),
}

impl Failure {
    /// What a lease is about to make is more than what is left of the sum that it may.
    #[must_use]
    pub fn too_much(bytes: u64, left: u64) -> Failure {
        Failure::Limit(format!(
            "a run makes {bytes} bytes and {left} are left of what limits.outputs_mib lets a \
             lease make in all: want fewer outputs, or fewer requests in one job"
        ))
    }
}

impl Start {
    /// What a receipt names as the graph where no request came further than the first `parts`: the
    /// one part's id, or the hash of several parts' ids.
    #[must_use]
    pub fn graph_of(&self, parts: usize) -> ContentId {
        match &self.parts[..parts.min(self.parts.len())] {
            [part] => part.graph,
            parts => {
                let ids: Vec<u8> = parts.iter().flat_map(|p| *p.graph.as_bytes()).collect();
                ContentId::of(&ids)
            }
        }
    }

    /// Tensors that requests may bring or make in this lease.
    #[must_use]
    pub fn tensors_max(&self) -> usize {
        match self.sequences {
            0 => Receipt::TENSORS_MAX,
            _ => SESSION_TENSORS_MAX,
        }
    }

    /// Tensors that each request makes.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(|part| part.outputs.len()).sum()
    }

    /// Whether it is work, and of a size that is looked at.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let takers = |part: &Part| -> usize { part.outputs.iter().map(Output::takers).sum() };
        let of = |part: &Part| 1 + part.inputs.len() + part.outputs.len() + takers(part);
        let things = self.peers.len() + self.parts.iter().map(of).sum::<usize>();
        let is_small = things <= THINGS_MAX && self.sequences <= WINDOW_MAX;
        !self.parts.is_empty() && is_small && self.gives_all(&self.first)
    }

    /// What the buyer holds for each request, in the order of parts and inputs.
    fn given(&self) -> impl Iterator<Item = &Input> {
        let inputs = self.parts.iter().flat_map(|part| &part.inputs);
        inputs.filter(|input| input.source == Source::Buyer)
    }

    /// Whether a request that follows another of its sequence names what the buyer is to give, and
    /// nothing else, for a sequence that there is.
    #[must_use]
    pub fn gives(&self, request: &Request) -> bool {
        self.left_out(request).is_some()
    }

    /// Whether it leaves nothing out either: the first of a sequence must not.
    #[must_use]
    pub fn gives_all(&self, request: &Request) -> bool {
        self.left_out(request) == Some(0)
    }

    /// How many inputs a request leaves out to be fed; none where it lacks what is not fed, names
    /// what is not asked for, or is of no sequence.
    fn left_out(&self, request: &Request) -> Option<usize> {
        if request.inputs.len() > THINGS_MAX || request.sequence >= self.sequences.max(1) {
            return None;
        }
        let asked: BTreeSet<&str> = self.given().map(|input| input.name.as_str()).collect();
        let given = request.inputs.iter().map(|(name, _)| name.as_str());
        let given: BTreeSet<&str> = given.collect();
        let mut left = self.given().filter(|it| !given.contains(it.name.as_str()));
        let is_right = given.len() == request.inputs.len()
            && given.is_subset(&asked)
            && left.all(|input| input.fed.is_some());
        is_right.then(|| asked.len() - given.len())
    }
}

impl Request {
    /// A request of no session.
    #[must_use]
    pub fn new(number: u32, inputs: Vec<(String, ContentId)>) -> Request {
        let sequence = 0;
        Request {
            number,
            sequence,
            inputs,
        }
    }
}

impl Output {
    fn takers(&self) -> usize {
        self.consumers.len()
    }
}

impl UntakenOffer {
    /// Whether it is about something that the work of `start` makes for that lease.
    #[must_use]
    pub fn is_of(&self, start: &Start) -> bool {
        let outputs = start.parts.iter().flat_map(|part| &part.outputs);
        let mut named = outputs.filter(|output| output.name == self.offer.name);
        let consumer = (self.offer.to, self.consumer);
        self.offer.from == start.lease && named.any(|output| output.consumers.contains(&consumer))
    }
}

/// The one content by which the receipt of a session names all that was made: the hash of their
/// ids, each once, in the order of their bytes. Where nothing was made there is none.
#[must_use]
pub fn transcript<'a>(made: impl IntoIterator<Item = &'a ContentId>) -> Option<ContentId> {
    let ids: BTreeSet<&[u8]> = made.into_iter().map(|id| &id.as_bytes()[..]).collect();
    let ids: Vec<&[u8]> = ids.into_iter().collect();
    (!ids.is_empty()).then(|| ContentId::of(&ids.concat()))
}

/// The first [`TEXT_BYTES_MAX`] bytes of what a peer said, whole characters of it.
#[must_use]
pub fn cut(mut text: String) -> String {
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
        let id = ContentId::of(b"graph");
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
            expected: Micros::millis(3),
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
        assert!(start.gives(&start.first));
        let mut less = start.first.clone();
        less.inputs.pop();
        assert!(!start.gives(&less));
        let mut more = start.first.clone();
        more.inputs.push(("z".into(), ContentId::of(b"z")));
        assert!(!start.gives(&more));
        let second = Request {
            sequence: 1,
            ..start.first.clone()
        };
        assert!(!start.gives(&second), "it is no session of two sequences");
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
        assert!(start.gives(&less) && !start.gives_all(&less));
        assert!(start.gives(&start.first) && start.gives_all(&start.first));
        less.inputs.clear();
        assert!(!start.gives(&less), "the first input is not fed");
        less.inputs = vec![last.clone(), last];
        assert!(!start.gives(&less), "twice is not both");
        start.first.inputs.pop();
        assert!(!start.is_bounded(), "nothing comes before the first");
    }

    #[test]
    fn a_receipt_of_one_part_names_its_graph_and_one_of_two_the_hash_of_both() {
        let start = start(1);
        assert_eq!(start.graph_of(1), ContentId::of(b"graph"));
        let both = [*ContentId::of(b"graph").as_bytes(); 2].concat();
        assert_eq!(start.graph_of(2), ContentId::of(&both));
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
                tensor: ContentId::of(b"y"),
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
        assert_eq!(cut("short".into()), "short");
        let long = cut("ä".repeat(200));
        assert_eq!(long, "ä".repeat(TEXT_BYTES_MAX / 2));
    }
}
