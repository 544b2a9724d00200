//! The effects that a job core requests, each with its possible answers.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Bid, Command, Credits, JobId, LeaseId, Receipt};
use souk_memory::ContentId;

use super::event::Leg;
use super::facts::{End, Fact};
use super::plan::PlanRequest;
use super::reason::Reason;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::lease::{BuyerMessage, Offer, Opening};

/// An effect that the job core requests. The shell keeps the order of the messages on one stream,
/// and of the records. It can carry out all other effects at once and answer them in any order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Plan a piece of work over the current book. Answer: `Planned` or `NotPlanned`.
    Plan(Box<PlanRequest>),
    /// Buy a lease for each bid, or none. Answer: `Bought`, `NotBought` or `Uncertain`.
    Buy {
        /// The id to buy the leases under.
        id: JobId,
        /// The bids, by place.
        bids: Vec<Bid>,
    },
    /// Look up the leases under these ids. Answer: `Leases` or `NotSeen`.
    Look {
        /// The ids to look up.
        ids: Vec<JobId>,
    },
    /// Find the addresses of providers. Answer: `Found`, `NotFound`, or `NotSeen` if no market
    /// answers.
    Find {
        /// The providers to find.
        providers: Vec<AccountKey>,
    },
    /// Report the state of these leases, now and after each change, by [`super::Event::Changed`].
    /// This list replaces the previous one. No answer.
    Follow {
        /// The leases to follow.
        leases: Vec<LeaseId>,
    },
    /// Send a command to the market. Answer: `Commanded`.
    Command(Box<Command>),
    /// Open a stream to a leg's provider. No answer; if a message does not arrive,
    /// [`super::Event::PeerLost`] follows.
    Open {
        /// The leg that the stream belongs to.
        leg: Leg,
        /// The provider of the leg.
        provider: AccountKey,
        /// The first message on the stream.
        opening: Opening,
    },
    /// Send a message to a leg's provider. No answer.
    SendMessage {
        /// The leg that the message belongs to.
        leg: Leg,
        /// The message for the provider.
        message: BuyerMessage,
    },
    /// Close a leg's stream after its pending messages are sent. No answer; the shell must send no
    /// `PeerLost` and no later event of that stream.
    CloseStream {
        /// The leg whose stream closes.
        leg: Leg,
    },
    /// Make contents of the plan and inputs of requests available to providers. Answer: `Served` or
    /// `NotServed`.
    Serve {
        /// The contents to serve.
        contents: Vec<ContentId>,
    },
    /// Fetch an output and check that it is a tensor. Answer: `Fetched`, `NotFetched` or
    /// `NotStored`, within `patience` of the begin of the transfer: its sender can be slow on
    /// purpose.
    Fetch {
        /// The id under which the job bought the makers' leases.
        job: JobId,
        /// The request that needs it: the shell must hold it until the caller has that answer.
        /// Without one, the shell must hold it until the job ends.
        request: Option<u32>,
        /// The name of the output.
        name: String,
        /// The id of the output.
        id: ContentId,
        /// The accounts that hold it, its maker first. The shell can choose the quickest source.
        holders: Vec<AccountKey>,
        /// The longest time that the transfer can take.
        patience: Micros,
    },
    /// Offer a content held here to a provider that did not accept it from its maker. Answer:
    /// `HandedOn`, within ten seconds.
    HandOn {
        /// The id under which the job bought the provider's lease.
        job: JobId,
        /// The provider that receives the offer.
        to: AccountKey,
        /// The offer of the content.
        offer: Offer,
    },
    /// Compare two contents held here. Answer: `Compared`.
    Compare {
        /// The first content.
        left: ContentId,
        /// The second content.
        right: ContentId,
        /// The greatest difference allowed, in parts per million of the elements' scale.
        tolerance_ppm: u32,
    },
    /// Add the buyer's signature to a receipt that the provider signed. Answer: `Signed`.
    Sign {
        /// The receipt to sign.
        receipt: Box<Receipt>,
    },
    /// Write values to the disk. Answer: `Kept` or `NotWritten`.
    Keep {
        /// The values to keep.
        ids: Vec<ContentId>,
    },
    /// Write facts to the journal. Answer: `Recorded` once they are on the disk, or `NotWritten`.
    Record(Vec<Fact>),
    /// Pass an answer to the caller, who stores it. Answer: `Taken` or `NotTaken`.
    Give {
        /// The request's number.
        request: u32,
        /// The outputs by name; the shell holds them already.
        outputs: Vec<(String, ContentId)>,
        /// Whether a comparison still reads them: the shell must then hold them until the job ends.
        is_evidence: bool,
    },
    /// Report an event to people. No answer.
    Tell(JobEvent),
    /// Warn the caller of a session that its leases end soon: its next request must ask for what it
    /// wants of the states, and no request must follow. No answer.
    Warn,
    /// Cancel an effect, which must then send no answer. No answer to this either.
    Stop(Ticket),
    /// The job is over. No action will follow.
    Over(Box<Outcome>),
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub how: End,
    /// The earlier failures that the job recovered from, in order.
    pub before: Vec<Reason>,
    /// The cost of the job; none if no market answered.
    pub spending: Option<Spending>,
    /// The number of leases that the job ended early.
    pub leases_ended: u32,
}

/// The cost of a job according to the market.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spending {
    /// The credits paid for settled leases.
    pub spent: Credits,
    /// The credits in escrow, which the market pays or returns when each lease closes.
    pub held: Credits,
}

/// An event of a job that people see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    /// The job bought the leases of an attempt.
    Leased {
        /// The attempt's number.
        attempt: u32,
        /// The provider, lease and escrow of each leg.
        leases: Vec<(AccountKey, LeaseId, Credits)>,
    },
    /// A provider fetched its contents from the buyer.
    Fetched {
        /// The provider that fetched.
        provider: AccountKey,
        /// The number of pieces that it needed.
        pieces: u32,
        /// The number of those pieces that it held already.
        held: u32,
        /// The bytes sent to it.
        bytes: u64,
    },
    /// A provider compiled its parts.
    Ready {
        /// The provider that compiled.
        provider: AccountKey,
    },
    /// A provider's device runs a part.
    Running {
        /// The provider that runs it.
        provider: AccountKey,
        /// A description of the part.
        part: String,
    },
    /// A provider finished its work.
    Finished {
        /// The provider that finished.
        provider: AccountKey,
    },
    /// The outputs are here, checked and unpaid.
    Returned,
    /// A receipt has both signatures.
    Signed {
        /// The leg that the receipt bills.
        leg: Leg,
        /// The receipt with both signatures.
        receipt: Box<Receipt>,
    },
    /// A provider failed and the job continues without it.
    Retrying {
        /// The provider that failed.
        provider: AccountKey,
        /// The reason of the failure.
        why: Reason,
        /// The number of computed values that the job keeps.
        kept: u32,
    },
    /// The job does not pay for a lease.
    Refused {
        /// The provider of the lease.
        provider: AccountKey,
        /// The reason that the provider receives.
        why: String,
    },
    /// The market did not end a lease, dispute it or begin its work; the market's own rules will
    /// close it.
    NotCommanded {
        /// The lease that the command named.
        lease: LeaseId,
        /// The reason, for people.
        why: String,
    },
}
