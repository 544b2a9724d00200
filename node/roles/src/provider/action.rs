//! The effects that a provider core requests, each with its possible answers.

use serde::{Deserialize, Serialize};
use souk_market::{
    AccountKey, Command, DeviceMicros, LeaseId, Millis, Price, Receipt, ReceiptBody, TokenTerms,
};
use souk_memory::ContentId;

use super::event::StreamId;
use super::facts::Fact;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::lease::{Failure, Offer, OfferAnswer, Part, ProviderMessage, Start};

/// An effect that the provider core requests. The shell keeps the order of the messages on one
/// stream, and of the records. It can carry out all other effects at once and answer them in any
/// order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a message on a stream. No answer; if the message does not arrive,
    /// [`super::Event::StreamClosed`] follows.
    SendMessage {
        /// The stream to send on.
        stream: StreamId,
        /// The message. The shell fills in [`crate::lease::WorkResult::shown`], the result shown to
        /// people.
        message: ProviderMessage,
    },
    /// Answer the offer that opened a stream. No answer.
    Reply {
        /// The stream that the offer opened.
        stream: StreamId,
        /// Whether this provider can use the offered tensor.
        taken: OfferAnswer,
    },
    /// Close a stream after its pending messages are sent. No answer, and no `StreamClosed`.
    CloseStream {
        /// The stream to close.
        stream: StreamId,
    },
    /// Offer a tensor to another provider. Answer: [`super::Answer::Offered`], within ten seconds.
    Offer {
        /// The provider that receives the offer.
        to: AccountKey,
        /// The offer of the tensor.
        offer: Offer,
    },
    /// Ask the log for one lease. Answer: `LeaseSeen` or `NotSeen`.
    LookAt {
        /// The lease to look up.
        lease: LeaseId,
    },
    /// Ask the log for this account. Answer: `MarketSeen` or `NotSeen`.
    LookAtMarket {
        /// Whether the answer must list the account's asks in the book.
        asks: bool,
    },
    /// Send a command to the market. Answer: `Commanded`.
    Command(Box<Command>),
    /// Fetch contents, the short ones together, and pin each before its fetch begins. Answer:
    /// `Arrived` or `NotArrived`.
    Bring {
        /// The lease that needs the contents.
        lease: LeaseId,
        /// The request that needs them, if only one does.
        request: Option<u32>,
        /// The contents to fetch.
        contents: Vec<Content>,
        /// The accounts that may hold the contents, the likeliest first.
        holders: Vec<AccountKey>,
        /// How soon the lease needs them.
        urgency: Urgency,
    },
    /// Raise these contents to [`Urgency::Awaited`]: the device waits for them. No answer.
    Hurry {
        /// The contents that the device waits for.
        contents: Vec<ContentId>,
    },
    /// Pin contents that a run made and that someone reads later. No answer.
    Hold {
        /// The contents to pin.
        contents: Vec<ContentId>,
    },
    /// Unpin contents that `Bring` or `Hold` pinned. No answer.
    Release {
        /// The contents, each as often as `Bring` or `Hold` pinned it.
        contents: Vec<ContentId>,
    },
    /// Read from a start the addresses of peers, the contents that the lease will need and the
    /// operators of its graphs. The lease is at work from now until its [`Report::Failed`] or
    /// [`Report::Done`]. No answer.
    Learn {
        /// The account that bought the lease.
        buyer: AccountKey,
        /// The work that the buyer described.
        start: Box<Start>,
    },
    /// Check in the sandbox of a lease whether the owner's limits allow its graphs. Answer:
    /// `Checked`.
    Check {
        /// The lease to check.
        lease: LeaseId,
        /// Its graphs, which are in the store.
        graphs: Vec<ContentId>,
    },
    /// Open a sandbox for a lease. Answer: `Sandboxed` or `NoSandbox`.
    Sandbox {
        /// The lease that will run there.
        lease: LeaseId,
        /// The price per device-second, which sets the lease's share of the machine.
        price: Price,
        /// The moment when the lease ends.
        deadline: Millis,
        /// Whether the sandbox serves one request alone.
        alone: bool,
    },
    /// Close a lease's sandbox and end its runs. No answer, and none to effects pending there.
    EndSandbox {
        /// The lease whose sandbox closes.
        lease: LeaseId,
    },
    /// Compile a part. Answer: `Prepared`.
    Prepare {
        /// The lease that the part belongs to.
        lease: LeaseId,
        /// The index of the part, from 0.
        part: u32,
        /// The graph of the part.
        graph: ContentId,
        /// The weights that the graph names.
        weights: Vec<ContentId>,
    },
    /// Run a part and put its outputs into the store. Answer: `Ran`.
    Run {
        /// The lease that the run belongs to.
        lease: LeaseId,
        /// The number of the request.
        request: u32,
        /// The session's sequence that this run is a step of.
        sequence: u32,
        /// The index of the part, from 0.
        part: u32,
        /// The description of the part.
        work: Box<Part>,
        /// The inputs of the part by name.
        inputs: Vec<(String, ContentId)>,
        /// The most bytes that the run can make: the rest of the lease's allowance.
        bytes_max: u64,
        /// The price per device-second, which sets the run's share of the device.
        price: Price,
        /// The terms of tokens, if the lease is for those.
        tokens: Option<TokenTerms>,
        /// The device time that the lease has left to be billed.
        time_left: DeviceMicros,
        /// The moment when the lease ends.
        deadline: Millis,
    },
    /// Write facts to the journal. Answer: `Recorded` once they are on the disk, or `NotWritten`.
    Record(Vec<Fact>),
    /// Sign a receipt as the provider. Answer: `Signed`.
    Sign(Box<ReceiptBody>),
    /// Report an event to people. No answer.
    Tell(Report),
    /// Cancel an effect, which must then send no answer. No answer to this either.
    Stop(Ticket),
    /// The provider has stopped. No action will follow.
    Over,
}

/// A content to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The id of the content.
    pub id: ContentId,
    /// A label: a tensor's name, `graph` or `weights`.
    pub what: String,
    /// The role that the content has in the lease.
    pub kind: ContentKind,
}

/// The role of a content in a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentKind {
    /// A graph that the lease runs.
    Graph,
    /// The weights that a graph names.
    Weights,
    /// A tensor that a run reads. If its bytes are no tensor, the fetch fails.
    Tensor,
}

/// How soon a lease needs a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Urgency {
    /// A later run needs it.
    Planned,
    /// The device waits for it now.
    Awaited,
}

/// An event that people see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The provider did not complete the work of a lease.
    Failed {
        /// The lease that failed.
        lease: LeaseId,
        /// The failure that ended the work or the start.
        failure: Failure,
    },
    /// The provider refused a start. If its lease is already at work, that work continues.
    Refused {
        /// The lease that the start named.
        lease: LeaseId,
        /// The failure that ended the work or the start.
        failure: Failure,
    },
    /// The provider completed the work of a lease and can now total it.
    Done {
        /// The body of the receipt that bills the lease.
        body: Box<ReceiptBody>,
        /// The device time of runs whose work was known before, and their operations.
        judged: (Micros, u64),
    },
    /// A receipt with both signatures, for people to keep.
    Settled(Box<Receipt>),
    /// The buyer did not sign, so the provider records its usage in a note.
    Unsigned {
        /// The lease without a signed receipt.
        lease: LeaseId,
        /// The buyer's reason; none if the buyer left without one.
        reason: Option<String>,
    },
    /// The market refused a command or did not answer it.
    NotCommanded {
        /// The command that failed.
        command: Box<Command>,
        /// The reason, for people.
        why: String,
    },
    /// The market has no room for the ask; the provider tries again.
    NotPlaced {
        /// The reason, for people.
        why: String,
    },
    /// The ask is in the book.
    Placed {
        /// The number of the ask.
        order: souk_market::OrderId,
        /// The resources that the ask lists.
        resources: Box<souk_market::Resources>,
        /// The price of the ask.
        price: Price,
        /// The number of leases that the ask offers.
        quantity: souk_market::Units,
    },
    /// The provider withdrew the ask because it stops.
    Withdrawn {
        /// The number of the ask.
        order: souk_market::OrderId,
    },
    /// The provider settled the state of a lease from its earlier life.
    Recovered {
        /// The lease from the earlier life.
        lease: LeaseId,
    },
    /// The provider returned a lease that did not begin, or that outlasted all patience.
    GivenBack {
        /// The lease that the provider returned.
        lease: LeaseId,
    },
    /// The disk accepts no facts, so the provider sells nothing.
    NotWritable {
        /// The reason, for people.
        why: String,
    },
}
