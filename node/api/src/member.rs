//! Defines the public JSON of a market's validators (its *members*), and of how far each has
//! applied the log. The gateway and the command line send it.

use serde::Serialize;
use souk_market::Founder;
use souk_roles::market::market_protocol::{Member, Members, Standing, Status};

/// A validator and its own report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ValidatorView {
    /// Its id in the replicated log.
    pub id: u64,
    /// Its account.
    pub account: String,
    /// Its address, which ends in its peer id.
    pub address: String,
    /// `waiting`, `learner`, `voter`, `leaving` or `removed`.
    pub standing: &'static str,
    /// Its own report; null if it does not answer.
    pub status: Option<ReplicaView>,
}

/// How far a validator is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReplicaView {
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: String,
    /// The id of the leader that it knows; 0 if it knows none.
    pub leader: u64,
    /// Its term.
    pub term: u64,
    /// The last entry that a quorum is known to have.
    pub committed: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The digest of its state at `applied`.
    pub digest: String,
}

/// The own report of a validator, with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StatusView {
    /// Its id in the replicated log.
    pub id: u64,
    /// How far it is.
    #[serde(flatten)]
    pub replica: ReplicaView,
}

/// The validators of a market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MembersView {
    /// The id of the validator that answers.
    pub answered_by: u64,
    /// The id of the leader; 0 if there is none.
    pub leader: u64,
    /// The accounts that can admit and remove validators.
    pub operators: Vec<String>,
    /// The present and past validators, by id.
    pub validators: Vec<MemberView>,
}

/// A validator as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemberView {
    /// Its id in the replicated log.
    pub id: u64,
    /// Its account.
    pub account: String,
    /// Its address, which ends in its peer id.
    pub address: String,
    /// `waiting`, `learner`, `voter`, `leaving` or `removed`.
    pub standing: &'static str,
    /// Whether the leader heard from it lately; null if another validator answers.
    pub running: Option<bool>,
    /// The last entry that it has; null if another validator answers.
    pub last_entry: Option<u64>,
    /// The latest version of the rules that it supports; 0 before it began its log.
    pub rules_version: u16,
}

/// A validator with which the market was founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FounderView {
    /// Its id in the replicated log.
    pub id: u64,
    /// Its account.
    pub account: String,
    /// Its address, which ends in its peer id.
    pub address: String,
}

impl From<&Founder> for FounderView {
    fn from(founder: &Founder) -> FounderView {
        FounderView {
            id: founder.raft_id,
            account: founder.account.to_string(),
            address: founder.address.clone(),
        }
    }
}

impl ValidatorView {
    /// Describes a validator; `said` is its own report, if it answered.
    #[must_use]
    pub fn new(member: &Member, said: Option<&Status>) -> ValidatorView {
        ValidatorView {
            id: member.raft_id,
            account: member.account.to_string(),
            address: member.address.clone(),
            standing: standing_name(member.standing),
            status: said.map(ReplicaView::from),
        }
    }
}

impl From<&Status> for ReplicaView {
    fn from(status: &Status) -> ReplicaView {
        ReplicaView {
            role: status.role.clone(),
            leader: status.leader,
            term: status.term,
            committed: status.committed,
            applied: status.applied,
            digest: status.digest.clone(),
        }
    }
}

impl From<&Status> for StatusView {
    fn from(status: &Status) -> StatusView {
        StatusView {
            id: status.raft_id,
            replica: ReplicaView::from(status),
        }
    }
}

impl From<&Members> for MembersView {
    fn from(members: &Members) -> MembersView {
        MembersView {
            answered_by: members.answered_by,
            leader: members.leader,
            operators: members.operators.iter().map(ToString::to_string).collect(),
            validators: members.validators.iter().map(MemberView::from).collect(),
        }
    }
}

impl From<&Member> for MemberView {
    fn from(member: &Member) -> MemberView {
        MemberView {
            id: member.raft_id,
            account: member.account.to_string(),
            address: member.address.clone(),
            standing: standing_name(member.standing),
            running: member.running,
            last_entry: member.reached,
            rules_version: member.speaks,
        }
    }
}

/// Returns the name of a validator's place in the group.
#[must_use]
pub fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Waiting => "waiting",
        Standing::Learner => "learner",
        Standing::Voter => "voter",
        Standing::Leaving => "leaving",
        Standing::Removed => "removed",
    }
}
