//! What a provider wants done, each with its answers.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Command, LeaseId, Millis, Price, Receipt, ReceiptBody};
use souk_memory::ContentId;

use super::event::StreamId;
use super::facts::Fact;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::lease::{Failure, Offer, OfferAnswer, Part, ProviderWord, Start};

/// Everything a provider wants done. What is said on one stream, and what is recorded, keeps its
/// order to the end; all else may be done at once, and is answered in any order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Say something on a stream. Not answered: what does not arrive is [`super::Event::Hung`].
    Send {
        /// The stream.
        stream: StreamId,
        /// What. Whoever carries it out puts into [`crate::lease::WorkResult::shown`] what people
        /// are shown.
        word: ProviderWord,
    },
    /// Answer the offer that a stream was opened with. Not answered.
    Reply {
        /// The stream.
        stream: StreamId,
        /// Whether it is of use.
        taken: OfferAnswer,
    },
    /// Close a stream, once what was said on it is sent. Not answered, nor by `Hung`.
    Hang {
        /// The stream.
        stream: StreamId,
    },
    /// Offer a tensor to another provider: [`super::Answer::Offered`], within ten seconds.
    Offer {
        /// The provider.
        to: AccountKey,
        /// The tensor.
        offer: Offer,
    },
    /// Ask the log about one lease: `LeaseSeen` or `NotSeen`.
    LookAt {
        /// The lease.
        lease: LeaseId,
    },
    /// Ask the log about this account: `MarketSeen` or `NotSeen`.
    LookAtMarket {
        /// Whether its asks in the book are to be named.
        asks: bool,
    },
    /// Command the market: `Commanded`.
    Command(Box<Command>),
    /// Have contents come, the short ones together, and pin each before it comes: `Came` or
    /// `NotCome`.
    Bring {
        /// For which lease.
        lease: LeaseId,
        /// For which request, if it is for one alone.
        request: Option<u32>,
        /// What.
        contents: Vec<Content>,
        /// Who may have it, the likeliest first.
        holders: Vec<AccountKey>,
        /// How soon it is wanted.
        urgency: Urgency,
    },
    /// The device waits for these from now on. Not answered.
    Hurry {
        /// What is awaited.
        contents: Vec<ContentId>,
    },
    /// Pin what a run made and is to be read later. Not answered.
    Hold {
        /// What.
        contents: Vec<ContentId>,
    },
    /// Unpin what was pinned when it was asked for. Not answered.
    Release {
        /// Each as often as it was asked for, to come or to be held.
        contents: Vec<ContentId>,
    },
    /// Learn where peers are, what a lease will want, and what its graphs compute; from here on to
    /// its [`Report::Failed`] or [`Report::Done`] it is at work. Not answered.
    Learn {
        /// Who bought it.
        buyer: AccountKey,
        /// The work.
        start: Box<Start>,
    },
    /// Look, in the place of a lease, whether the owner's limits allow what its graphs do:
    /// `Checked`.
    Check {
        /// The lease.
        lease: LeaseId,
        /// Its graphs, which are here.
        graphs: Vec<ContentId>,
    },
    /// Find a place to run a lease in: `Sandboxed` or `NoSandbox`.
    Sandbox {
        /// The lease.
        lease: LeaseId,
        /// What it pays per device-second: leases share the machine by that.
        price: Price,
        /// When it ends.
        deadline: Millis,
        /// Whether it is about one request alone.
        alone: bool,
    },
    /// Close that place; what runs in it ends. Not answered: what it was asked is answered no more.
    EndSandbox {
        /// The lease.
        lease: LeaseId,
    },
    /// Have a part compiled: `Prepared`.
    Prepare {
        /// The lease.
        lease: LeaseId,
        /// The part, from 0.
        part: u32,
        /// Its graph.
        graph: ContentId,
        /// The weights that it names.
        weights: Vec<ContentId>,
    },
    /// Have a part run, and what it gives put into the store: `Ran`.
    Run {
        /// The lease.
        lease: LeaseId,
        /// The request.
        request: u32,
        /// The sequence that it is a step of, of a session.
        sequence: u32,
        /// The part, from 0.
        part: u32,
        /// What that is.
        work: Box<Part>,
        /// Its inputs by name.
        inputs: Vec<(String, ContentId)>,
        /// Bytes that it may make: what is left of what the lease may.
        bytes_max: u64,
        /// What it pays per device-second, and when it ends: runs share the device by that.
        price: Price,
        /// When the lease ends.
        deadline: Millis,
    },
    /// Put facts down: `Recorded` once they are on the disk, or `NotWritten`.
    Record(Vec<Fact>),
    /// Sign a receipt as the provider: `Signed`.
    Sign(Box<ReceiptBody>),
    /// Something that people see. Not answered.
    Tell(Report),
    /// Stop an effect; it is answered no more. Not answered.
    Stop(Ticket),
    /// The provider has stopped. Nothing comes after it.
    Over,
}

/// A content that is to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Which.
    pub id: ContentId,
    /// A tensor's name, `graph` or `weights`.
    pub what: String,
    /// What it is to the lease.
    pub kind: ContentKind,
}

/// What a content is to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentKind {
    /// What is run.
    Graph,
    /// What that names.
    Weights,
    /// What it reads: one that is no tensor has not come.
    Tensor,
}

/// How soon a content is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Urgency {
    /// It will be.
    Planned,
    /// The device waits for it.
    Awaited,
}

/// What people see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The work of a lease was not done.
    Failed {
        /// The lease.
        lease: LeaseId,
        /// Why.
        failure: Failure,
    },
    /// A start was not taken. If its lease is at work, that goes on.
    Refused {
        /// The lease that it named.
        lease: LeaseId,
        /// Why.
        failure: Failure,
    },
    /// The work of a lease is done: what it came to is counted from now on.
    Done {
        /// What it is billed with.
        body: Box<ReceiptBody>,
        /// Device time of runs whose work was known before, and operations.
        judged: (Micros, u64),
    },
    /// A receipt that both signed: people keep it.
    Settled(Box<Receipt>),
    /// The buyer did not sign; it is noted what was used.
    Unsigned {
        /// The lease.
        lease: LeaseId,
        /// What the buyer said; nothing where it went without a word.
        reason: Option<String>,
    },
    /// The market refused a command, or did not answer it.
    NotCommanded {
        /// What was commanded.
        command: Box<Command>,
        /// Why not.
        why: String,
    },
    /// The market has no place for the ask: it is tried again.
    NotPlaced {
        /// Why.
        why: String,
    },
    /// The ask is in the book.
    Placed {
        /// Its number.
        order: souk_market::OrderId,
        /// By which figures it was placed.
        resources: Box<souk_market::Resources>,
        /// Its price.
        price: Price,
        /// How many leases it is for.
        quantity: souk_market::Units,
    },
    /// The ask was withdrawn, since the provider stops.
    Withdrawn {
        /// Its number.
        order: souk_market::OrderId,
    },
    /// A lease of an earlier life of this provider is put right.
    Recovered {
        /// The lease.
        lease: LeaseId,
    },
    /// A lease that was not begun, or that is not over after all patience, was given back.
    GivenBack {
        /// The lease.
        lease: LeaseId,
    },
    /// The disk does not take facts: nothing is sold.
    NotWritable {
        /// Why.
        why: String,
    },
}
