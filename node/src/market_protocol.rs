//! What a peer and a validator say to each other: `/souk/market/1`, one request, one answer.

use libp2p::Multiaddr;
use libp2p::swarm::StreamProtocol;
use serde::{Deserialize, Serialize};
use souk_market::{
    Accepted, Account, AccountKey, Bid, Explanation, Lease, LeaseId, Listing, MarketId, Refusal,
    SignedBatch, Totals,
};

use crate::contact::Contact;

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/souk/market/1");

/// What a peer asks of a validator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Carry out these commands; answered once they are durable on a quorum and applied.
    Submit(SignedBatch),
    /// Every ask in the book.
    Book,
    /// One account.
    Account(AccountKey),
    /// One lease.
    Lease(LeaseId),
    /// The open leases in which an account is buyer or provider.
    Leases(AccountKey),
    /// The sums over all accounts.
    Totals,
    /// Why the asks in the book do or do not suit a bid of an account.
    Explain(AccountKey, Box<Bid>),
    /// How this validator stands in the replicated log.
    Status,
    /// Where the asking peer can be reached.
    Announce(Vec<Multiaddr>),
    /// Where these peers can be reached.
    Find(Vec<AccountKey>),
    /// Say when something happens to an account: an [`Answer::Changed`] at once and after each
    /// change, until the stream is closed.
    Watch(AccountKey),
}

/// What the validator answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What each command of the batch came to.
    Applied(Vec<Result<Accepted, Refusal>>),
    /// The batch is not one: its signature or its form is wrong.
    Invalid(String),
    /// The asks in the book.
    Book(Vec<Listing>),
    /// The account, if it is registered.
    Account(Option<Box<Account>>),
    /// The lease, if it is known.
    Lease(Option<Box<Lease>>),
    /// The leases.
    Leases(Vec<Lease>),
    /// The sums.
    Totals(Totals),
    /// Which asks suit the bid, and why the others do not; or why the bid is none.
    Explanation(Result<Explanation, Refusal>),
    /// The validator's standing.
    Status(Status),
    /// Done, nothing to say.
    Done,
    /// Contacts of those that are known.
    Found(Vec<Contact>),
    /// Something happened to the watched account.
    Changed,
    /// The validator is full; ask again later.
    Busy {
        /// When, in milliseconds.
        retry_after_ms: u64,
    },
    /// The validator cannot answer now (no leader, shutting down); another may.
    Unavailable(String),
}

/// How a validator stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The market.
    pub market: MarketId,
    /// The validator's raft id.
    pub raft_id: u64,
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: String,
    /// The leader it knows; 0 for none.
    pub leader: u64,
    /// The raft term.
    pub term: u64,
    /// The last index known to be on a quorum.
    pub committed: u64,
    /// The last index applied here.
    pub applied: u64,
    /// The digest of the state at `applied`, in hexadecimal.
    pub digest: String,
}
