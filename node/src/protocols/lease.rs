//! What is said about one lease: `/souk/lease/5`.
//!
//! The buyer opens a stream to the provider of each lease and keeps it for the length of the
//! run. The provider of one part tells the provider of the next where a tensor can be fetched by
//! an [`Opening::Offer`] on a stream of its own; the buyer is not in that tensor's way.
//!
//! A lease may serve many requests, one behind the other: [`Opening::Stream`] brings the first,
//! each further one comes as [`Closing::Next`] and is answered with [`Event::Answered`], until
//! [`Closing::Over`].
//! The buyer has at most [`WINDOW_MAX`] requests under way; so nobody on the line can be flooded.

use std::time::Duration;

use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, DeviceMicros, JobId, LeaseId, Receipt};
use souk_memory::ContentId;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;

use crate::content::links::Sample;
use crate::folder::contact::Contact;

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/lease/5");

/// Requests of one lease that are under way at a time.
pub const WINDOW_MAX: u32 = 64;

/// The longest opening: the names of some ten thousands of weights fit.
pub const OPENING_BYTES_MAX: usize = 4 << 20;

/// The longest word of a buyer after that: a receipt with as many tensors as it may name, or the
/// inputs of one request.
pub const WORD_BYTES_MAX: usize = 256 << 10;

/// The first frame of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub enum Opening {
    /// The buyer starts the work of a lease; [`Event`]s follow, then one [`Closing`].
    Start(Box<Start>),
    /// A provider has a tensor that another one's lease waits for; [`Taken`] follows.
    Offer(Offer),
    /// The buyer lost the stream of a lease and asks how it went: [`Event::Accepted`] while it is
    /// at work, [`Event::Finished`] and then one [`Closing`] once it is done.
    Resume(LeaseId),
    /// The same as [`Opening::Start`], of the first of many requests.
    Stream(Box<Start>),
    /// The same as [`Opening::Offer`], for one of many requests.
    Hand {
        /// Its number, from 0.
        request: u32,
        /// The tensor.
        offer: Offer,
    },
}

/// The work of one lease: one part of the job, or several with other providers' parts between.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
}

/// Runs of less device time than this say more about clocks than about the device.
pub const TELLING_RUN: Duration = Duration::from_millis(20);

/// The device time that a receipt bills where nothing was done.
pub const USAGE_MIN: DeviceMicros = DeviceMicros(1);

/// One subgraph of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    pub expected: Duration,
}

impl Start {
    /// What the receipt names as the graph: the part's id, or the hash of several parts' ids.
    pub fn graph(&self) -> ContentId {
        self.graph_of(self.parts.len())
    }

    /// The same for the first parts alone, where the lease ended with them.
    pub fn graph_of(&self, parts: usize) -> ContentId {
        match &self.parts[..parts] {
            [part] => part.graph,
            parts => {
                let ids: Vec<u8> = parts.iter().flat_map(|p| *p.graph.as_bytes()).collect();
                ContentId::of(&ids)
            }
        }
    }

    /// The same work without the parts after the first `parts`.
    #[must_use]
    pub fn first(mut self, parts: usize) -> Start {
        self.parts.truncate(parts);
        self
    }
}

/// One input of a subgraph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Input {
    /// The value's name in the graph.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
}

/// Where an input comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Source {
    /// The buyer holds it.
    Buyer(ContentId),
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    /// The value's name in the graph.
    pub name: String,
    /// The leases that wait for it, and their providers.
    pub consumers: Vec<(LeaseId, AccountKey)>,
}

/// A tensor is there for whoever waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The lease that computed it.
    pub from: LeaseId,
    /// The lease that waits for it.
    pub to: LeaseId,
    /// The value's name in the graph.
    pub name: String,
    /// The tensor; the offering peer serves it.
    pub tensor: ContentId,
}

/// Whether an offer was of use.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Taken {
    /// The lease waits for it and will fetch it.
    Yes,
    /// No such lease runs here, or it does not wait for that value from that peer.
    No,
}

/// A tensor that its maker could not hand to another provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Untaken {
    /// Who did not take it.
    pub consumer: AccountKey,
    /// The one of many requests that it belongs to; none where there is but one.
    pub request: Option<u32>,
    /// What was offered.
    pub offer: Offer,
    /// Why it was not taken.
    pub why: String,
}

impl Untaken {
    /// Whether it is about something that the work of `start` makes for that lease.
    pub(crate) fn is_of(&self, start: &Start) -> bool {
        let outputs = start.parts.iter().flat_map(|part| &part.outputs);
        let mut named = outputs.filter(|output| output.name == self.offer.name);
        let consumer = (self.offer.to, self.consumer);
        self.offer.from == start.lease && named.any(|output| output.consumers.contains(&consumer))
    }
}

impl Offer {
    /// What a stream for it is opened with.
    pub(crate) fn opening(self, request: Option<u32>) -> Opening {
        match request {
            None => Opening::Offer(self),
            Some(request) => Opening::Hand {
                request,
                offer: self,
            },
        }
    }
}

/// What the provider tells the buyer, in this order; [`Event::Failed`] may come at any time.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The lease is verified in the log and the work begins.
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
    Compiled,
    /// Every input of a part is here and the device runs it.
    Running {
        /// The part's name.
        part: String,
    },
    /// The work is done.
    Finished(Box<Finished>),
    /// The work cannot be done.
    Failed(Failure),
    /// One of many requests is done.
    Answered(Answered),
    /// A tensor of one of many requests did not come, or the lease is about to end early, so that
    /// nothing more is begun. What was done is owed.
    Stalled(Failure),
    /// A part is done, and what it gave was offered; what comes next is waited for.
    Ran,
    /// Another provider did not take a tensor: the buyer may hand it on.
    Untaken(Box<Untaken>),
}

/// What a lease gave for one of many requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answered {
    /// The request's number, from 0.
    pub request: u32,
    /// The outputs by name; the provider serves them to the buyer.
    pub outputs: Vec<(String, ContentId)>,
}

/// The result of a lease's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// The receipt, signed by the provider.
    pub receipt: Receipt,
    /// The outputs by name; the provider serves them to the buyer.
    pub outputs: Vec<(String, ContentId)>,
    /// What came over the network, by sender.
    pub moved: Vec<Moved>,
    /// What the device did.
    pub report: Report,
    /// When it did it.
    pub timeline: Timeline,
}

/// Bytes that came from one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The peer's account.
    pub from: AccountKey,
    /// What was moved: a tensor's name, `graph` or `weights`.
    pub what: String,
    /// How many bytes came.
    pub bytes: u64,
    /// What the longest of the transfers took.
    pub link: Option<Sample>,
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
}

/// What the buyer says once the work has begun; all but [`Closing::Enough`] is its last word.
#[derive(Debug, Serialize, Deserialize)]
pub enum Closing {
    /// The outputs are here and right: the receipt with both signatures.
    Signed(Box<Receipt>),
    /// The buyer does not sign.
    Refused {
        /// Why.
        reason: String,
    },
    /// What the later parts wait for will not come: the lease ends with the first `parts`, or with
    /// those that are done by then if they are more, and [`Event::Finished`] is about them.
    Enough {
        /// How many parts are still wanted, at least one.
        parts: u32,
    },
    /// One more request, after the one before it.
    Next(Request),
    /// No request comes any more, and what is not done by now need not be done: what runs is
    /// stopped. Of parts that are run once, those that are done are owed.
    Over,
}

/// What the buyer says between [`Event::Accepted`] and [`Closing`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Go {
    /// Every provider of the job has accepted: offers may be sent.
    Ahead,
}

/// One of many requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its number, from 0.
    pub number: u32,
    /// The inputs that the buyer holds, by name.
    pub inputs: Vec<(String, ContentId)>,
}

#[cfg(test)]
mod tests {
    use souk_market::JobId;

    use super::*;
    use crate::protocols::fuzzed;

    fn start(inputs: usize) -> Start {
        let (id, name) = (ContentId::of(b"graph"), String::new);
        let input = |_| Input {
            name: name(),
            source: Source::Own,
        };
        let consumers = vec![(LeaseId(1), AccountKey([7; 32]))];
        let part = Part {
            name: name(),
            graph: id,
            weights: vec![id; 3],
            inputs: (0..inputs).map(input).collect(),
            outputs: vec![Output {
                name: name(),
                consumers,
            }],
            flops: 1 << 40,
            expected: Duration::from_millis(3),
        };
        Start {
            lease: LeaseId(1),
            job: JobId([2; 32]),
            parts: vec![part; 2],
            peers: vec![Contact {
                account: [7; 32],
                addresses: vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()],
            }],
            priority: 1,
        }
    }

    #[test]
    fn damaged_words_of_a_buyer_do_no_harm() {
        let start = || Box::new(start(2));
        fuzzed::try_messages(1, &[Opening::Start(start()), Opening::Stream(start())]);
        fuzzed::try_messages::<Closing>(2, &[]);
        fuzzed::try_messages::<Go>(3, &[Go::Ahead]);
    }

    #[test]
    fn damaged_words_of_a_provider_do_no_harm() {
        fuzzed::try_messages::<Event>(4, &[]);
        fuzzed::try_messages::<Taken>(5, &[]);
    }
}
