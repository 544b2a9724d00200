//! Changes the members of a group: it adds replicas as learners (without a vote), makes them voters
//! once they have caught up, and removes replicas. It can make several changes jointly.
//!
//! A change is an entry like any other and takes effect when replicas apply it. raft-rs leaves the
//! joint configuration by itself, with a change that has no step. A change can ask raft-rs not to
//! leave it, after which no other change would be possible, so replicas refuse such a change. A
//! removed id can never be used again, because its disk can be gone, and its votes and
//! acknowledgements with it.

use std::collections::BTreeSet;

use protobuf::Message as _;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry,
    EntryType, Message, MessageType,
};

use super::{Accusation, Replica, StepError};
use crate::check::{EntryFault, Fault};
use crate::ids::{ReplicaId, Term};
use crate::machine::{ChangeStanding, MemberChange, StateMachine};
use souk_proof::LogIndex;

/// The most entries that a learner can lack when it becomes a voter: a leader sends them in one
/// message or two.
pub const LEARNER_BEHIND_MAX: u64 = 1_000;

/// Why a change was not proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// This replica does not lead; only the leader knows which learners caught up.
    #[error("this replica does not lead: {}", leader_hint(*leader))]
    NotLeader {
        /// The leader, if this replica knows it.
        leader: Option<ReplicaId>,
    },
    /// The change has no step.
    #[error("the change names no replica")]
    Empty,
    /// Another change is not finished.
    #[error("another membership change is under way")]
    UnderWay,
    /// The id was removed earlier.
    #[error("replica {0} was removed and never comes back: a new replica needs a new id")]
    Retired(ReplicaId),
    /// The operators did not order the change.
    #[error("the operators did not order that {0}")]
    Unordered(MemberChange),
    /// The replica is a member already.
    #[error("replica {0} is a member already")]
    Member(ReplicaId),
    /// The replica is not a member of the required kind.
    #[error("replica {0} is not a {wanted}", wanted = .1)]
    NoMember(ReplicaId, &'static str),
    /// The learner has not caught up.
    #[error(
        "learner {learner} has {reached} of {last} entries: it gets a vote once it has caught up"
    )]
    Behind {
        /// The id of the learner.
        learner: ReplicaId,
        /// The learner's last entry.
        reached: LogIndex,
        /// The leader's last entry.
        last: LogIndex,
    },
    /// No voter would remain.
    #[error("a group must keep at least one voter")]
    NobodyLeft,
    /// raft-rs dropped the proposal.
    #[error("the leader accepts no change at the moment: try again shortly")]
    Dropped,
}

/// A peer's progress, as its leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The id of the peer.
    pub id: ReplicaId,
    /// The last entry that the peer has.
    pub reached: LogIndex,
    /// Whether the peer sent a message within an election timeout.
    pub active: bool,
    /// Whether the peer has a vote.
    pub voter: bool,
}

impl<M: StateMachine> Replica<M> {
    /// Proposes a membership change; several steps take effect jointly. The change has happened
    /// once the members in [`Replica::status`] show it.
    ///
    /// # Errors
    /// If the change is impossible now, or can never become possible.
    pub fn change_members(&mut self, changes: &[MemberChange]) -> Result<(), ChangeError> {
        if !self.is_leader() {
            return Err(ChangeError::NotLeader {
                leader: self.leader(),
            });
        }
        if changes.is_empty() {
            return Err(ChangeError::Empty);
        }
        if self.raw.raft.has_pending_conf() || !self.members().get_voters_outgoing().is_empty() {
            return Err(ChangeError::UnderWay);
        }
        for change in changes {
            self.admit_change(*change)?;
        }
        if !self.has_voter_after(changes) {
            return Err(ChangeError::NobodyLeft);
        }
        let mut change = ConfChangeV2::default();
        change.set_changes(
            changes
                .iter()
                .map(to_single_change)
                .collect::<Vec<_>>()
                .into(),
        );
        let proposed = self.raw.propose_conf_change(Vec::new(), change);
        self.settle_elections();
        proposed.map_err(|_| ChangeError::Dropped)
    }

    /// Returns whether a voter remains after the changes, in their order.
    fn has_voter_after(&self, changes: &[MemberChange]) -> bool {
        let mut voters: BTreeSet<u64> = self.members().get_voters().iter().copied().collect();
        for change in changes {
            match change {
                MemberChange::Promote(id) => voters.insert(id.get()),
                MemberChange::AddLearner(id) | MemberChange::Remove(id) => voters.remove(&id.get()),
            };
        }
        !voters.is_empty()
    }

    /// Asks the leader to transfer its leadership to a voter.
    pub fn transfer_leader(&mut self, to: ReplicaId) {
        self.raw.transfer_leader(to.get());
        self.settle_elections();
    }

    /// Returns the progress of the other members; empty unless this replica leads.
    #[must_use]
    pub fn peer_progress(&self) -> Vec<PeerProgress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let progress = |(id, peer): (&u64, &raft::Progress)| {
            let voter = self.members().get_voters().contains(id);
            let reached = LogIndex(peer.matched);
            let id = ReplicaId::new(*id).filter(|id| *id != self.config.id)?;
            Some(PeerProgress {
                id,
                reached,
                active: self.has_heard(id),
                voter,
            })
        };
        let mut peers: Vec<_> = self.raw.raft.prs().iter().filter_map(progress).collect();
        peers.sort_by_key(|peer| peer.id);
        peers
    }

    /// Returns whether a member sent a message within an election timeout. `recent_active` of
    /// raft-rs is not enough: it resets for all members at once at the end of each such timeout.
    fn has_heard(&self, id: ReplicaId) -> bool {
        let heard = self.last_heard_ticks.get(&id);
        heard.is_some_and(|tick| tick + self.config.election_ticks as u64 > self.ticks)
    }

    /// Returns whether this replica is a member, as far as it has applied the log.
    #[must_use]
    pub fn is_member(&self) -> bool {
        has_member(self.members(), self.config.id)
    }

    fn members(&self) -> &ConfState {
        self.raw.store().members()
    }

    fn admit_change(&self, change: MemberChange) -> Result<(), ChangeError> {
        if self.machine.judge_change(change) != ChangeStanding::Ordered {
            return Err(ChangeError::Unordered(change));
        }
        match change {
            MemberChange::AddLearner(id) if self.sessions.is_retired(id) => {
                Err(ChangeError::Retired(id))
            }
            MemberChange::AddLearner(id) if has_member(self.members(), id) => {
                Err(ChangeError::Member(id))
            }
            MemberChange::AddLearner(_) => Ok(()),
            MemberChange::Promote(id) => self.admit_promotion(id),
            MemberChange::Remove(id) if has_member(self.members(), id) => Ok(()),
            MemberChange::Remove(id) => Err(ChangeError::NoMember(id, "member")),
        }
    }

    fn admit_promotion(&self, learner: ReplicaId) -> Result<(), ChangeError> {
        if !self.members().get_learners().contains(&learner.get()) {
            return Err(ChangeError::NoMember(learner, "learner"));
        }
        let last = self.raw.store().last_entry_index();
        let progress = self.raw.raft.prs().get(learner.get());
        let reached = LogIndex(progress.map_or(0, |peer| peer.matched));
        if reached.0 + LEARNER_BEHIND_MAX < last.0 {
            return Err(ChangeError::Behind {
                learner,
                reached,
                last,
            });
        }
        Ok(())
    }

    /// Compares the changes of members that a leader sends with the state, before raft sees them.
    /// It cuts an append before a change that the state does not know yet: the leader sends it
    /// again, and the replica judges it once it has applied everything before it.
    pub(super) fn check_appended_changes(
        &mut self,
        from: ReplicaId,
        message: &mut Message,
    ) -> Result<(), StepError> {
        let raft = &self.raw.raft;
        if message.get_msg_type() != MessageType::MsgAppend || message.term < raft.term {
            return Ok(());
        }
        let is_new = |entry: &Entry| {
            entry.get_entry_type() == EntryType::EntryConfChangeV2
                && entry.index > raft.raft_log.committed
        };
        let found = (0..)
            .zip(message.entries.iter())
            .find_map(|(place, entry)| {
                let fault = is_new(entry).then(|| self.find_unordered(entry)).flatten();
                fault.map(|fault| (place, LogIndex(entry.index), fault))
            });
        let Some((place, index, fault)) = found else {
            return Ok(());
        };
        if index.0 > self.applied.0 + 1 {
            // The sender may lie about the rest, too: the commit index will come again.
            message.commit = message.commit.min(self.raw.raft.raft_log.committed);
            message.mut_entries().truncate(place);
            return Ok(());
        }
        let found = EntryFault { index, fault };
        Err(StepError::Unordered(self.accuse_sender(
            from,
            message.term,
            found,
        )))
    }

    /// Records the sender of an entry that must not be in the log, and campaigns if the sender
    /// leads.
    fn accuse_sender(&mut self, from: ReplicaId, term: u64, found: EntryFault) -> Accusation {
        let accusation = Accusation {
            leader: Some(from),
            term: Term(term),
            found,
        };
        let leads = self.leader() == Some(from);
        self.verifying.on_accused(accusation.clone(), self.ticks);
        if leads && self.is_member() && !self.has_unverified() {
            // raft refuses while changes of members wait for application; the election timeout
            // follows anyway.
            let _later = self.raw.campaign();
            self.settle_elections();
        }
        accusation
    }

    /// Returns the first fault in a change, as far as the local state shows: its transition, or a
    /// step that is unordered, already in effect, or of the id 0.
    fn find_unordered(&self, entry: &Entry) -> Option<Fault> {
        let change = ConfChangeV2::parse_from_carllerche_bytes(&entry.data);
        let change = change.expect("what can't be read was not admitted");
        if !is_left_by_raft(&change) {
            return Some(Fault::Joint);
        }
        let judge = |single: &ConfChangeSingle| match member_change(single) {
            None => Some(Fault::NoMember),
            Some(change) => {
                let is_unordered = self.machine.judge_change(change) == ChangeStanding::Unordered;
                let is_fault = is_unordered || self.is_done(change);
                is_fault.then_some(Fault::Unordered(change))
            }
        };
        change.get_changes().iter().find_map(judge)
    }

    /// Applies a committed change. Every replica reaches the same decision from the same state: a
    /// change that the operators do not want, or no longer want, has no effect. Returns whether the
    /// members changed.
    pub(super) fn apply_members(&mut self, change: &ConfChangeV2) -> bool {
        let is_sound = |single: &ConfChangeSingle| {
            member_change(single).is_some_and(|change| self.is_applicable(change))
        };
        if !is_left_by_raft(change) || !change.get_changes().iter().all(is_sound) {
            return false;
        }
        let before = self.members().clone();
        let Ok(members) = self.raw.apply_conf_change(change) else {
            return false;
        };
        for id in member_ids(&before).filter(|id| !has_member(&members, *id)) {
            self.sessions.retire_replica(id);
            self.last_heard_ticks.remove(&id);
        }
        self.raw.mut_store().on_members_changed(members);
        true
    }

    /// Returns whether a change is already in effect: it adds a member or promotes a voter. To add
    /// a voter as a learner would take its vote away.
    fn is_done(&self, change: MemberChange) -> bool {
        match change {
            MemberChange::AddLearner(id) => has_member(self.members(), id),
            MemberChange::Promote(id) => self.members().get_voters().contains(&id.get()),
            MemberChange::Remove(_) => false,
        }
    }

    fn is_applicable(&self, change: MemberChange) -> bool {
        let members = self.members();
        let fits = match change {
            MemberChange::AddLearner(id) => {
                !self.sessions.is_retired(id) && !has_member(members, id)
            }
            MemberChange::Promote(id) => members.get_learners().contains(&id.get()),
            MemberChange::Remove(id) => has_member(members, id),
        };
        fits && self.machine.judge_change(change) == ChangeStanding::Ordered
    }

    /// Returns the other members, including learners and members about to leave.
    pub(super) fn other_members(&self) -> Vec<ReplicaId> {
        member_ids(self.members())
            .filter(|id| *id != self.config.id)
            .collect()
    }
}

fn leader_hint(leader: Option<ReplicaId>) -> String {
    leader.map_or_else(
        || "nobody does".to_owned(),
        |id| format!("replica {id} does"),
    )
}

fn to_single_change(change: &MemberChange) -> ConfChangeSingle {
    let (kind, id) = match change {
        MemberChange::AddLearner(id) => (ConfChangeType::AddLearnerNode, id),
        MemberChange::Promote(id) => (ConfChangeType::AddNode, id),
        MemberChange::Remove(id) => (ConfChangeType::RemoveNode, id),
    };
    let mut single = ConfChangeSingle {
        node_id: id.get(),
        ..ConfChangeSingle::default()
    };
    single.set_change_type(kind);
    single
}

/// Returns whether raft leaves the joint configuration of a change by itself. With this transition,
/// a change without a step is the one that leaves, and has no other effect.
fn is_left_by_raft(change: &ConfChangeV2) -> bool {
    change.get_transition() == ConfChangeTransition::Auto
}

/// Converts a raft change; returns `None` for the id 0.
fn member_change(single: &ConfChangeSingle) -> Option<MemberChange> {
    let id = ReplicaId::new(single.node_id)?;
    Some(match single.get_change_type() {
        ConfChangeType::AddLearnerNode => MemberChange::AddLearner(id),
        ConfChangeType::AddNode => MemberChange::Promote(id),
        ConfChangeType::RemoveNode => MemberChange::Remove(id),
    })
}

/// Returns all voters, including those whose vote is about to end.
pub(super) fn all_voters(members: &ConfState) -> BTreeSet<ReplicaId> {
    let voters = members.get_voters().iter();
    let all = voters.chain(members.get_voters_outgoing());
    all.filter_map(|id| ReplicaId::new(*id)).collect()
}

fn member_ids(members: &ConfState) -> impl Iterator<Item = ReplicaId> {
    let voters = members
        .get_voters()
        .iter()
        .chain(members.get_voters_outgoing());
    let learners = members
        .get_learners()
        .iter()
        .chain(members.get_learners_next());
    let all: BTreeSet<u64> = voters.chain(learners).copied().collect();
    all.into_iter().filter_map(ReplicaId::new)
}

fn has_member(members: &ConfState, wanted: ReplicaId) -> bool {
    member_ids(members).any(|id| id == wanted)
}
