//! What a job wants done, each with its answers.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Bid, Command, Credits, JobId, LeaseId, Receipt};
use souk_memory::ContentId;

use super::event::Leg;
use super::facts::{End, Fact};
use super::plan::PlanRequest;
use super::reason::Reason;
use crate::effect::Ticket;
use crate::lease::{BuyerWord, Offer, Opening};

/// Everything a job wants done. What is said on one stream, and what is recorded, keeps its order
/// to the end; all else may be done at once, and is answered in any order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Plan a piece of work over the book as it stands: `Planned` or `NotPlanned`.
    Plan(Box<PlanRequest>),
    /// Buy a lease for each bid, or none: `Bought`, `NotBought` or `Uncertain`.
    Buy {
        /// The id that the leases are bought under.
        id: JobId,
        /// The bids, by place.
        bids: Vec<Bid>,
    },
    /// Look up the leases under these ids: `Leases` or `NotSeen`.
    Look {
        /// The ids.
        ids: Vec<JobId>,
    },
    /// Learn where providers are: `Found`, `NotFound`, or `NotSeen` where the market is not
    /// reached.
    Find {
        /// Who.
        providers: Vec<AccountKey>,
    },
    /// Say how these leases stand, at once and whenever one changes, by [`super::Event::Changed`];
    /// in place of those followed before. Not answered.
    Follow {
        /// Which.
        leases: Vec<LeaseId>,
    },
    /// Command the market: `Commanded`.
    Command(Box<Command>),
    /// Open a stream to a leg's provider. Not answered: what does not arrive is
    /// [`super::Event::Gone`].
    Open {
        /// The leg.
        leg: Leg,
        /// Its provider.
        provider: AccountKey,
        /// The first word.
        opening: Opening,
    },
    /// Say something to a leg's provider. Not answered.
    Say {
        /// The leg.
        leg: Leg,
        /// What.
        word: BuyerWord,
    },
    /// Close a leg's stream, once what was said on it is sent. Not answered, nor by `Gone`; nothing
    /// of that stream is told afterwards.
    Hang {
        /// The leg.
        leg: Leg,
    },
    /// Have contents where providers can fetch them, those that belong to the plan and the inputs
    /// of requests alike: `Served` or `NotServed`.
    Serve {
        /// Which.
        contents: Vec<ContentId>,
    },
    /// Fetch an output, and look whether it is a tensor: `Fetched` or `NotFetched`.
    Fetch {
        /// The id that the leases of its makers were bought under.
        job: JobId,
        /// Its name.
        name: String,
        /// Which.
        id: ContentId,
        /// Who has it, its maker first; it may be asked for where it comes from soonest.
        holders: Vec<AccountKey>,
    },
    /// Offer a content that is here to a provider that did not take it from its maker: `HandedOn`,
    /// within ten seconds.
    HandOn {
        /// The id that its lease was bought under.
        job: JobId,
        /// The provider.
        to: AccountKey,
        /// What.
        offer: Offer,
    },
    /// Compare two contents that are here: `Compared`.
    Compare {
        /// One.
        left: ContentId,
        /// The other.
        right: ContentId,
        /// How far they may be apart, in parts per million of the greatest element.
        tolerance_ppm: u32,
    },
    /// Sign a receipt that its provider signed, as the buyer: `Signed`.
    Sign {
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// Put values on the disk: `Kept` or `NotWritten`.
    Keep {
        /// Which.
        ids: Vec<ContentId>,
    },
    /// Put facts down: `Recorded` once they are on the disk, or `NotWritten`.
    Record(Vec<Fact>),
    /// Give an answer to the caller, who writes it where it stays: `Taken` or `NotTaken`.
    Give {
        /// The request's number.
        request: u32,
        /// The outputs by name; they are here.
        outputs: Vec<(String, ContentId)>,
    },
    /// Something that people see. Not answered.
    Tell(JobEvent),
    /// Stop an effect; it is answered no more. Not answered.
    Stop(Ticket),
    /// The job is over. Nothing comes after it.
    Over(Box<Outcome>),
}

/// What a job came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub how: End,
    /// What had failed before and was done without, in order.
    pub before: Vec<Reason>,
    /// What it has cost, if the market could be asked.
    pub spending: Option<Spending>,
    /// How many leases were ended before their time.
    pub leases_ended: u32,
}

/// What a job has cost, by the market's own books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spending {
    /// Paid for what was settled.
    pub spent: Credits,
    /// Still in escrow, to be paid or to come back when its lease closes.
    pub held: Credits,
}

/// What people see of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    /// The leases of an attempt are bought.
    Leased {
        /// The attempt.
        attempt: u32,
        /// Provider, lease and what it holds.
        leases: Vec<(AccountKey, LeaseId, Credits)>,
    },
    /// A provider has what it needs of the buyer.
    Fetched {
        /// Who.
        provider: AccountKey,
        /// Pieces it needed.
        pieces: u32,
        /// How many of them it had already.
        held: u32,
        /// Bytes that were sent.
        bytes: u64,
    },
    /// A provider has compiled its parts.
    Ready {
        /// Who.
        provider: AccountKey,
    },
    /// A provider's device runs a part.
    Running {
        /// Who.
        provider: AccountKey,
        /// Which, in words.
        part: String,
    },
    /// A provider is done.
    Finished {
        /// Who.
        provider: AccountKey,
    },
    /// The outputs that were made are here, checked and not yet paid.
    Returned,
    /// A receipt has both signatures.
    Signed {
        /// The leg.
        leg: Leg,
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// A provider failed; the job goes on without it.
    Retrying {
        /// Who.
        provider: AccountKey,
        /// Why.
        why: Reason,
        /// How many values are kept of what was computed.
        kept: u32,
    },
    /// A lease is not paid for.
    Refused {
        /// Who provided it.
        provider: AccountKey,
        /// Why, as it hears it.
        why: String,
    },
    /// The market did not end a lease, dispute it or begin its work; its own rules will close it.
    NotCommanded {
        /// The lease.
        lease: LeaseId,
        /// Why not.
        why: String,
    },
}
