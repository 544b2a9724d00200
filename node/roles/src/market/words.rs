//! What a peer and a validator say to each other: one request, one answer.

use serde::{Deserialize, Serialize};
use souk_market::{
    Acceptance, Account, AccountKey, Approval, Bid, Class, ClassSummary, Explanation, Genesis,
    JobId, Lease, LeaseId, Listing, MarketId, Millis, MoneyRequest, OpenOrder, Quotes, Refusal,
    RequestId, Rules, RulesChange, SignedBatch, Totals, Upgrade,
};

use super::demands::{Choice, Demands};
use super::roster::{RosterRefusal, SignedOrder};
use super::statement::{LogPlace, Statement};
use crate::lease::Contact;

/// The protocol's name.
pub const PROTOCOL: &str = "/souk/market/11";

/// The longest request: a batch of as many receipts as it may hold, each with as many tensors as it
/// may name, is half of it.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// Accounts or jobs that one request may name: several times what a book's answer has.
pub const NAMED_MAX: usize = 1_024;

/// The most requests for credits in one answer: who wants more asks on after the last.
pub const MONEY_REQUESTS_MAX: usize = 4_096;

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
    Announce(Vec<String>),
    /// Where these peers can be reached.
    Find(Vec<AccountKey>),
    /// Say when something happens to an account: an [`Answer::Changed`] at once and after each
    /// change, until the stream is closed.
    Watch(AccountKey),
    /// Who the validators are, and how far each is.
    Members,
    /// Carry out an order about the validators; the leader alone does.
    Order(SignedOrder),
    /// A backup of the state: an [`Answer::Backup`], then its bytes in frames.
    Backup(SignedOrder),
    /// The asks that suit a buyer, of each class the cheapest.
    Choose(Box<Demands>),
    /// Every lease of a job that an account buys, closed ones too.
    JobLeases(AccountKey, Vec<JobId>),
    /// One class: prices asked, bid and paid lately.
    Quotes(Class),
    /// The questions that follow on this stream may be answered from what this validator has,
    /// without asking the others. It is not answered itself; each answer to a question comes with
    /// its [`Age`].
    Stale,
    /// No more than what every answer says: the validator's clock.
    Time,
    /// How the market began.
    Genesis,
    /// Requests for credits in or out that wait for the operator: those of an account, or of all,
    /// that came after this one; the oldest first, [`MONEY_REQUESTS_MAX`] at most.
    MoneyRequests(Option<AccountKey>, RequestId),
    /// Every class that was ever traded in or quoted, at a glance.
    Classes,
    /// The orders of an account that rest in the books.
    Orders(AccountKey),
    /// Movements of an account's credits before a place in the log, or the newest: as far as this
    /// validator has seen them.
    Statement(AccountKey, Option<LogPlace>),
    /// How the market is run: its operators, its rules, and what of them is to change.
    Governance,
}

impl Request {
    /// What it costs to answer beside what a question about one account costs: some look through
    /// the whole book.
    #[must_use]
    pub fn cost(&self) -> u32 {
        match self {
            Request::Book | Request::Backup(_) | Request::Classes | Request::Orders(_) => 64,
            Request::Choose(_) | Request::Explain(..) | Request::Find(_) => 8,
            Request::Statement(..) => 8,
            Request::Leases(_) | Request::JobLeases(..) | Request::Order(_) => 8,
            Request::MoneyRequests(..) | Request::Governance => 8,
            // A signature is checked, and a quorum's disks written.
            Request::Submit(_) => 4,
            _ => 1,
        }
    }

    /// Whether anyone who asks it gets the same answer.
    #[must_use]
    pub fn is_common(&self) -> bool {
        matches!(
            self,
            Request::Book
                | Request::Totals
                | Request::Quotes(_)
                | Request::Classes
                | Request::MoneyRequests(None, _)
        )
    }

    /// Why it asks for more than is looked for at once, if it does.
    #[must_use]
    pub fn excess(&self) -> Option<String> {
        let named = match self {
            Request::Find(accounts) => accounts.len(),
            Request::JobLeases(_, jobs) => jobs.len(),
            Request::Choose(demands) => demands.excluded.len(),
            _ => return None,
        };
        (named > NAMED_MAX).then(|| format!("{named} are named, at most {NAMED_MAX} may be"))
    }
}

/// What the validator answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// What each command of the batch came to.
    Applied(Vec<Result<Acceptance, Refusal>>),
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
    /// The validators.
    Members(Members),
    /// The raft id an order was about, once it is in the log.
    Ordered(Result<u64, OrderRefusal>),
    /// Only the leader does this.
    Elsewhere {
        /// Its raft id; 0 where nobody leads at the moment.
        leader: u64,
    },
    /// A backup follows, in frames of at most [`BACKUP_FRAME_BYTES`].
    Backup {
        /// How many bytes.
        bytes: u64,
    },
    /// The asks that suit, and why the others do not.
    Chosen(Box<Choice>),
    /// The class, if it was ever quoted.
    Quotes(Option<Box<Quotes>>),
    /// The batch is larger than the log takes; no validator will ever take it.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most that is taken.
        bytes_max: u64,
    },
    /// How the market began: whoever asks checks it against the market's id.
    Genesis(Box<Genesis>),
    /// The requests.
    MoneyRequests(Vec<MoneyRequest>),
    /// The classes.
    Classes(Vec<ClassSummary>),
    /// The orders, the oldest first.
    Orders(Vec<OpenOrder>),
    /// The movements.
    Statement(Statement),
    /// How the market is run.
    Governance(Box<Governance>),
}

/// How a market is run now, and what is to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Governance {
    /// The operators.
    pub operators: Vec<AccountKey>,
    /// How many of them must give the same command.
    pub operators_needed: u32,
    /// The rules as they are.
    pub rules: Rules,
    /// Changes of them that are told.
    pub changes: Vec<RulesChange>,
    /// Commands that wait for more operators.
    pub approvals: Vec<Approval>,
    /// The version of the rules that applies.
    pub version: u16,
    /// The next version, where it is told.
    pub upgrade: Option<Upgrade>,
    /// The log's time.
    pub now: Millis,
}

/// An answer, and when it was given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimedAnswer {
    /// The validator's clock.
    pub time: Millis,
    /// How old it is, where one was asked for that may be.
    pub age: Option<Age>,
    /// What it says.
    pub answer: Answer,
}

/// How old a stale answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    /// Milliseconds since the validator last heard from a leader, or 0 if it leads.
    pub age_ms: u64,
    /// The last entry of the log that the answer reflects.
    pub applied: u64,
    /// The log's clock at that entry, in milliseconds since 1970.
    pub time_ms: u64,
}

/// Bytes of a backup in one frame.
pub const BACKUP_FRAME_BYTES: usize = 1 << 20;

/// Why an order about the validators was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OrderRefusal {
    /// The roster refuses it.
    #[error(transparent)]
    Refused(#[from] RosterRefusal),
    /// The address is none, or is not that key's.
    #[error("\"{0}\" is not the address of that validator, ending in /p2p/ and its peer id")]
    Address(String),
    /// The newcomer does not answer.
    #[error("the newcomer is not reached from the leader: {0}")]
    Unreached(String),
    /// Too few would be left that run.
    #[error(
        "without validator {raft_id} only {running} of the others run, and {needed} are needed for \
         a quorum: the market would stand still"
    )]
    Quorum {
        /// Who was to leave.
        raft_id: u64,
        /// The voters left that answer.
        running: usize,
        /// How many must.
        needed: usize,
    },
    /// It has no vote.
    #[error("validator {0} has no vote, so it can't lead")]
    NoVoter(u64),
    /// It leads.
    #[error("validator {0} leads already")]
    Leads(u64),
    /// It was not heard from.
    #[error("validator {0} does not run, so it can't lead")]
    Silent(u64),
    /// The log took the order and the office was not handed over in time.
    #[error("validator {raft_id} does not lead yet: {cause}")]
    NotHandedOver {
        /// Who was to lead.
        raft_id: u64,
        /// Why.
        cause: String,
    },
}

/// The validators, as one of them sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Who answers.
    pub answered_by: u64,
    /// Who leads; 0 for nobody.
    pub leader: u64,
    /// Who may admit and remove.
    pub operators: Vec<AccountKey>,
    /// Those there are and were, by raft id.
    pub validators: Vec<Member>,
    /// The signed orders that show it, for who believes no single validator.
    pub orders: Vec<SignedOrder>,
}

impl Members {
    /// Where those are that were not removed.
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
    /// Its key.
    pub account: AccountKey,
    /// Its address, ending in its peer id.
    pub address: String,
    /// Its place in the group.
    pub standing: Standing,
    /// Whether it has begun its log.
    pub begun: bool,
    /// The latest version of the market's rules that it carries out; 0 before it began.
    pub speaks: u16,
    /// The last entry it has, as the leader knows; none where another answers.
    pub reached: Option<u64>,
    /// Whether it was heard from lately, as the leader knows.
    pub running: Option<bool>,
}

/// A validator's place in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Admitted; the leader has not taken it in yet.
    Waiting,
    /// It receives the log and has no vote yet.
    Learner,
    /// It votes.
    Voter,
    /// It is to leave and still votes.
    Leaving,
    /// It left for good.
    Removed,
}

impl Members {
    /// One validator.
    #[must_use]
    pub fn member(&self, raft_id: u64) -> Option<&Member> {
        let mut all = self.validators.iter();
        all.find(|member| member.raft_id == raft_id)
    }

    /// The place of a key that has not left.
    #[must_use]
    pub fn of(&self, account: AccountKey) -> Option<&Member> {
        let stays = |member: &&Member| {
            member.account == account
                && !matches!(member.standing, Standing::Leaving | Standing::Removed)
        };
        self.validators.iter().find(stays)
    }
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
