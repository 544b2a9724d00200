//! The messages between a peer and a validator: [`Request`] and [`Answer`], and the limits on both.
//! Most requests get one answer; a watch gets one for each change.

use serde::{Deserialize, Serialize};
use souk_market::{
    Acceptance, Account, AccountKey, AccountProof, Approval, Bid, Class, ClassSummary, Digest,
    Dispute, Explanation, Genesis, JobId, Lease, LeaseId, Listing, MarketId, Millis, MoneyRequest,
    OpenOrder, Quotes, Refusal, RequestId, Rules, RulesChange, SignedBatch, Totals, Upgrade,
};

use souk_proof::receipt_proof::SettlementRecord;

use super::demands::{Choice, Demands};
use super::roster::{RosterRefusal, SignedMembershipOrder};
use super::statement::{LogPlace, Statement};
use crate::lease::Contact;

/// The protocol's name.
pub const PROTOCOL: &str = "/souk/market/14";

/// The longest request in bytes. The largest batch of receipts, with the most tensors each, takes
/// half of it.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// The most accounts or jobs that one request can name: several times the size of a book's answer.
pub const NAMED_MAX: usize = 1_024;

/// The most requests for credits in one answer. To read more, you can ask again after the last.
pub const MONEY_REQUESTS_MAX: usize = 4_096;

/// A peer's request to a validator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Carry out these commands. The answer follows once they are durable on a quorum and applied.
    Submit(SignedBatch),
    /// Return every ask in the book.
    Book,
    /// Return one account.
    Account(AccountKey),
    /// Return one lease.
    Lease(LeaseId),
    /// Return the open leases in which an account is buyer or provider.
    Leases(AccountKey),
    /// Return the sums over all accounts.
    Totals,
    /// Explain why the asks in the book do or do not suit a bid of an account.
    Explain(AccountKey, Box<Bid>),
    /// Return this validator's state in the replicated log.
    Status,
    /// Record the addresses of the asking peer.
    Announce(Vec<String>),
    /// Return the addresses of these peers.
    Find(Vec<AccountKey>),
    /// Watch an account: an [`Answer::Changed`] follows at once and after each change, until the
    /// stream closes.
    Watch(AccountKey),
    /// Return the validators and the progress of each.
    Members,
    /// Carry out an order about the validators; only the leader does.
    Order(SignedMembershipOrder),
    /// Send a backup of the state: an [`Answer::Backup`], then its bytes in frames.
    Backup(SignedMembershipOrder),
    /// Return the asks that suit a buyer, the cheapest of each class.
    Choose(Box<Demands>),
    /// Return every lease of these jobs that an account bought, closed ones included.
    JobLeases(AccountKey, Vec<JobId>),
    /// Return the prices of one class that were lately asked, bid and paid.
    Quotes(Class),
    /// Allow the validator to answer the later questions on this stream from its own state, without
    /// asking the others. This request has no answer; each later answer comes with its [`Age`].
    Stale,
    /// Return only the time that every answer carries: the validator's clock.
    Time,
    /// Return the genesis of the market.
    Genesis,
    /// Return the requests for credits in or out that await the operator: those of an account, or
    /// of all, after this one, the oldest first, at most [`MONEY_REQUESTS_MAX`].
    MoneyRequests(Option<AccountKey>, RequestId),
    /// Return a summary of every class that was ever traded or quoted.
    Classes,
    /// Return the orders of an account that rest in the books.
    Orders(AccountKey),
    /// Return movements of an account's credits before a place in the log, or the newest, as far as
    /// this validator has seen them.
    Statement(AccountKey, Option<LogPlace>),
    /// Return the market's operators, its rules, and the pending changes to them.
    Governance,
    /// Return the heads of the history's tree that this validator signed.
    TreeHeads,
    /// Return a tile of the history's tree, or the beginning of one that is not full yet.
    Tile {
        /// The tile's level, 0 for leaves.
        level: u32,
        /// The number of full tiles to the left.
        index: u64,
    },
    /// Return the command that settled a lease by a receipt, with its place in the history.
    Settlement(LeaseId),
    /// Prove what the state with this root says about an account.
    AccountProof(AccountKey, Digest),
    /// Return the open disputes, and the last closed ones.
    Disputes,
}

impl Request {
    /// Returns the cost of an answer, relative to a question about one account: for example, some
    /// answers scan the whole book.
    #[must_use]
    pub fn cost(&self) -> u32 {
        match self {
            Request::Book | Request::Backup(_) | Request::Classes | Request::Orders(_) => 64,
            Request::Choose(_) | Request::Explain(..) | Request::Find(_) => 8,
            Request::Statement(..) | Request::Settlement(_) | Request::AccountProof(..) => 8,
            Request::JobLeases(..) | Request::Order(_) => 8,
            Request::MoneyRequests(..) | Request::Governance | Request::Tile { .. } => 8,
            Request::Disputes => 8,
            // The validators check a signature, and a quorum of disks writes.
            Request::Submit(_) => 4,
            _ => 1,
        }
    }

    /// Returns the name of this kind of request, for counts.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Request::Submit(_) => "submit",
            Request::Book => "book",
            Request::Account(_) => "account",
            Request::Lease(_) => "lease",
            Request::Leases(_) => "leases",
            Request::Totals => "totals",
            Request::Explain(..) => "explain",
            Request::Status => "status",
            Request::Announce(_) => "announce",
            Request::Find(_) => "find",
            Request::Watch(_) => "watch",
            Request::Members => "members",
            Request::Order(_) => "order",
            Request::Backup(_) => "backup",
            Request::Choose(_) => "choose",
            Request::JobLeases(..) => "job_leases",
            Request::Quotes(_) => "quotes",
            Request::Stale => "stale",
            Request::Time => "time",
            Request::Genesis => "genesis",
            Request::MoneyRequests(..) => "money_requests",
            Request::Classes => "classes",
            Request::Orders(_) => "orders",
            Request::Statement(..) => "statement",
            Request::Governance => "governance",
            Request::TreeHeads => "tree_heads",
            Request::Tile { .. } => "tile",
            Request::Settlement(_) => "settlement",
            Request::AccountProof(..) => "account_proof",
            Request::Disputes => "disputes",
        }
    }

    /// Returns whether every asker gets the same answer.
    #[must_use]
    pub fn is_common(&self) -> bool {
        matches!(
            self,
            Request::Book
                | Request::Totals
                | Request::Quotes(_)
                | Request::Classes
                | Request::MoneyRequests(None, _)
                | Request::Disputes
        )
    }

    /// Returns why the request names more than a validator looks up at once, if it does.
    #[must_use]
    pub fn excess_reason(&self) -> Option<String> {
        let named = match self {
            Request::Find(accounts) => accounts.len(),
            Request::JobLeases(_, jobs) => jobs.len(),
            Request::Choose(demands) => demands.excluded.len(),
            _ => return None,
        };
        (named > NAMED_MAX).then(|| format!("{named} are named, at most {NAMED_MAX} may be"))
    }
}

/// A validator's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The result of each command of the batch.
    Applied(Vec<Result<Acceptance, Refusal>>),
    /// The batch is invalid: its signature or its form is wrong.
    Invalid(String),
    /// The asks in the book.
    Book(Vec<Listing>),
    /// The account, if it is registered.
    Account(Option<Box<Account>>),
    /// The lease, if the log knows it.
    Lease(Option<Box<Lease>>),
    /// The leases that the request selects.
    Leases(Vec<Lease>),
    /// The sums over all accounts.
    Totals(Totals),
    /// The asks that suit the bid and the objections to the others, or why the bid is invalid.
    Explanation(Result<Explanation, Refusal>),
    /// The validator's state.
    Status(Status),
    /// Success without a value.
    Done,
    /// The contacts of the known peers.
    Found(Vec<Contact>),
    /// The watched account changed.
    Changed,
    /// The validator is full; ask again later.
    Busy {
        /// The time to wait, in milliseconds.
        retry_after_ms: u64,
    },
    /// The validator cannot answer now (no leader, shutting down); another may.
    Unavailable(String),
    /// The validators, as this one sees them.
    Members(Members),
    /// The raft id that an order concerns, once the log has the order.
    Ordered(Result<u64, OrderRefusal>),
    /// Only the leader does this.
    Elsewhere {
        /// The leader's raft id; 0 if there is no leader now.
        leader: u64,
    },
    /// A backup follows, in frames of at most [`BACKUP_FRAME_BYTES`].
    Backup {
        /// The length of the backup in bytes.
        bytes: u64,
    },
    /// The asks that suit, and the objections to the others.
    Chosen(Box<Choice>),
    /// The class, if it was ever quoted.
    Quotes(Option<Box<Quotes>>),
    /// The batch is too large for the log; no validator will ever accept it.
    TooLarge {
        /// The size of the batch.
        bytes: u64,
        /// The largest size allowed.
        bytes_max: u64,
    },
    /// The genesis of the market. You must check it against the market's id.
    Genesis(Box<Genesis>),
    /// The requests for credits.
    MoneyRequests(Vec<MoneyRequest>),
    /// The classes, each with a summary.
    Classes(Vec<ClassSummary>),
    /// The orders, the oldest first.
    Orders(Vec<OpenOrder>),
    /// The movements of the account.
    Statement(Statement),
    /// The operators, the rules and their pending changes.
    Governance(Box<Governance>),
    /// The signed heads of the history's tree.
    TreeHeads(Box<TreeHeads>),
    /// The hashes of the tile, 32 bytes each; none if this validator lacks it.
    Tile(Option<Vec<u8>>),
    /// The command; none if this validator lacks it, or no receipt settled the lease.
    Settlement(Option<Box<SettlementRecord>>),
    /// The proof; none if this validator no longer has, or never reached, a state with the root.
    AccountProof(Option<Box<AccountProof>>),
    /// The disputes, the oldest first.
    Disputes(Vec<Dispute>),
}

/// The heads of the history's tree that a validator shows, as notes; see
/// [`souk_proof::note::TreeNote`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHeads {
    /// The last head that it signed, with the cosignatures that it has.
    pub latest: Option<String>,
    /// The last head that enough validators cosigned.
    pub certified: Option<String>,
    /// Heads of which two have one size and different roots: one of their signers lied.
    pub conflicts: Vec<String>,
}

/// The operators and rules of a market, with pending changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Governance {
    /// The accounts of the operators.
    pub operators: Vec<AccountKey>,
    /// The number of operators that must issue the same command.
    pub operators_needed: u32,
    /// The current rules.
    pub rules: Rules,
    /// The announced changes of the rules.
    pub changes: Vec<RulesChange>,
    /// The commands that await more operators.
    pub approvals: Vec<Approval>,
    /// The current version of the rules.
    pub version: u16,
    /// The next version, if it was announced.
    pub upgrade: Option<Upgrade>,
    /// The log's time.
    pub now: Millis,
}

/// An answer with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimedAnswer {
    /// The validator's clock.
    pub time: Millis,
    /// The age of the answer, if the request allowed a stale one.
    pub age: Option<Age>,
    /// The answer to the request.
    pub answer: Answer,
}

/// The age of a stale answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    /// Milliseconds since the validator last heard from a leader, or 0 if it leads.
    pub age_ms: u64,
    /// The last entry of the log that the answer reflects.
    pub applied: u64,
    /// The log's clock at that entry, in milliseconds since 1970.
    pub time_ms: u64,
}

/// The most bytes of a backup in one frame.
pub const BACKUP_FRAME_BYTES: usize = 1 << 20;

/// Why the validators did not carry out an order about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OrderRefusal {
    /// The roster refuses it.
    #[error(transparent)]
    Refused(#[from] RosterRefusal),
    /// The address is invalid, or belongs to another key.
    #[error("\"{0}\" is not the address of that validator, ending in /p2p/ and its peer id")]
    Address(String),
    /// The newcomer does not answer.
    #[error("the leader cannot reach the new validator: {0}")]
    Unreached(String),
    /// Too few running validators would remain.
    #[error(
        "without validator {raft_id} only {running} of the others run, and {needed} are needed for \
         a quorum: the market would stand still"
    )]
    Quorum {
        /// The validator that should leave.
        raft_id: u64,
        /// The remaining voters that answer.
        running: usize,
        /// The number of voters needed.
        needed: usize,
    },
    /// The validator has no vote.
    #[error("validator {0} has no vote, so it can't lead")]
    NotAVoter(u64),
    /// The validator leads already.
    #[error("validator {0} leads already")]
    AlreadyLeader(u64),
    /// The leader has not heard from the validator.
    #[error("validator {0} does not run, so it can't lead")]
    NotRunning(u64),
    /// The log has the order, but the validator did not become leader in time.
    #[error("validator {raft_id} does not lead yet: {cause}")]
    NotHandedOver {
        /// The validator that should lead.
        raft_id: u64,
        /// The cause, for people.
        cause: String,
    },
}

/// The validators, as one of them sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The raft id of the validator that answers.
    pub answered_by: u64,
    /// The raft id of the leader; 0 if there is none.
    pub leader: u64,
    /// The accounts that can admit and remove validators.
    pub operators: Vec<AccountKey>,
    /// The present and past validators, by raft id.
    pub validators: Vec<Member>,
    /// The signed orders that prove the list, so that you need not trust a single validator.
    pub orders: Vec<SignedMembershipOrder>,
}

impl Members {
    /// Returns the addresses of the validators that were not removed.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let staying = |member: &&Member| member.standing != Standing::Removed;
        let staying = self.validators.iter().filter(staying);
        staying.map(|member| member.address.clone()).collect()
    }
}

/// One validator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id in the replicated log.
    pub raft_id: u64,
    /// The validator's key.
    pub account: AccountKey,
    /// Its address, ending in its peer id.
    pub address: String,
    /// Its place in the group.
    pub standing: Standing,
    /// Whether it has begun its log.
    pub begun: bool,
    /// The latest version of the market's rules that it supports; 0 before it began.
    pub speaks: u16,
    /// The last entry it has, according to the leader; none if another answers.
    pub reached: Option<u64>,
    /// Whether the leader heard from it lately; none if another answers.
    pub running: Option<bool>,
}

/// A validator's place in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The roster has admitted it; the leader has not added it yet.
    Waiting,
    /// It receives the log and has no vote yet.
    Learner,
    /// It votes.
    Voter,
    /// It should leave and still votes.
    Leaving,
    /// It left for good.
    Removed,
}

impl Members {
    /// Returns the validator with this raft id.
    #[must_use]
    pub fn member(&self, raft_id: u64) -> Option<&Member> {
        let mut all = self.validators.iter();
        all.find(|member| member.raft_id == raft_id)
    }

    /// Returns the validator of a key that is neither leaving nor removed.
    #[must_use]
    pub fn find_by_account(&self, account: AccountKey) -> Option<&Member> {
        let stays = |member: &&Member| {
            member.account == account
                && !matches!(member.standing, Standing::Leaving | Standing::Removed)
        };
        self.validators.iter().find(stays)
    }
}

/// The state of a validator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The market that it serves.
    pub market: MarketId,
    /// The validator's raft id.
    pub raft_id: u64,
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: String,
    /// The raft id of the leader that it knows; 0 if there is none.
    pub leader: u64,
    /// The raft term.
    pub term: u64,
    /// The last index that a quorum is known to have.
    pub committed: u64,
    /// The last index applied here.
    pub applied: u64,
    /// The digest of the state at `applied`, in hexadecimal.
    pub digest: String,
}
