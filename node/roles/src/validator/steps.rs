//! Chooses the next change of raft's members, one at a time, until they equal the roster (the list
//! of the validators that should be members). The leader calls it again and again. No change leaves
//! fewer running voters than a quorum needs.

use std::collections::{BTreeMap, BTreeSet};

use souk_consensus::ReplicaId;
use souk_consensus::replica::{MemberChange, PeerProgress, Status};

/// The maximum number of committed entries that a learner can lack when it gets its vote.
const BEHIND_MAX: u64 = 64;

/// The group as its leader sees it.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The leader itself.
    pub leader: u64,
    /// The index of the last entry that a quorum has.
    pub commit: u64,
    /// The members with a vote.
    pub voters: BTreeSet<u64>,
    /// The members without a vote.
    pub learners: BTreeSet<u64>,
    /// Whether a change is under way.
    pub changing: bool,
    /// The progress of the other members, by id.
    pub others: BTreeMap<u64, MemberProgress>,
}

/// Progress of a member, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// The index of the last entry of the log that it has; 0 if it has none.
    pub replicated_index: u64,
    /// Whether the leader lately heard from it.
    pub active: bool,
}

/// One change that the leader must make next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Changes the members: adds a newcomer as a learner, gives a learner its vote, or removes a
    /// member.
    Change(MemberChange),
    /// Lets another validator lead, because the leader itself must leave.
    HandOver(ReplicaId),
}

/// Too few voters would be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoQuorum {
    /// The remaining voters that run.
    pub running: usize,
    /// The number of voters that must run.
    pub needed: usize,
}

impl Group {
    /// Returns the group as a leading replica's status shows it.
    pub fn from_status(status: &Status) -> Group {
        let members = &status.members;
        let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        let progress = |peer: &PeerProgress| {
            let progress = MemberProgress {
                replicated_index: peer.reached.0,
                active: peer.active,
            };
            (peer.id.get(), progress)
        };
        Group {
            leader: status.id.get(),
            commit: status.commit.0,
            voters: set(members.get_voters()),
            learners: set(members.get_learners()),
            changing: !members.get_voters_outgoing().is_empty(),
            others: status.peers.iter().map(progress).collect(),
        }
    }

    /// Returns whether the leader lately heard from a validator.
    pub fn is_running(&self, id: u64) -> bool {
        id == self.leader || self.others.get(&id).is_some_and(|other| other.active)
    }

    /// Checks that enough running voters would remain without `id`.
    pub fn check_quorum_without(&self, id: u64) -> Result<(), NoQuorum> {
        let remaining = self.voters.iter().filter(|voter| **voter != id);
        let needed = remaining.clone().count() / 2 + 1;
        let running = remaining.filter(|voter| self.is_running(**voter)).count();
        match running >= needed || !self.voters.contains(&id) {
            true => Ok(()),
            false => Err(NoQuorum { running, needed }),
        }
    }

    /// Returns the next step towards the members in `wanted`; none if they are the members already
    /// or the step must wait. Only a validator in `begun`, whose start the log records, gets a
    /// vote: otherwise nobody would notice if it lost its disk.
    pub fn next_step(&self, wanted: &BTreeSet<u64>, begun: &BTreeSet<u64>) -> Option<Step> {
        if self.changing {
            return None;
        }
        let unwanted = |ids: &BTreeSet<u64>| ids.difference(wanted).next().copied();
        if let Some(learner) = unwanted(&self.learners) {
            return Some(Step::Change(MemberChange::Remove(replica_id(learner))));
        }
        let outside = |id: &&u64| !self.voters.contains(id) && !self.learners.contains(id);
        if let Some(newcomer) = wanted.iter().find(outside) {
            return Some(Step::Change(MemberChange::AddLearner(replica_id(
                *newcomer,
            ))));
        }
        let able = |id: &&u64| begun.contains(id) && self.caught_up(**id);
        if let Some(learner) = self.learners.iter().find(able) {
            return Some(Step::Change(MemberChange::Promote(replica_id(*learner))));
        }
        let leaver = unwanted(&self.voters)?;
        self.check_quorum_without(leaver).ok()?;
        match leaver == self.leader {
            true => self
                .find_successor(wanted)
                .map(replica_id)
                .map(Step::HandOver),
            false => Some(Step::Change(MemberChange::Remove(replica_id(leaver)))),
        }
    }

    fn caught_up(&self, learner: u64) -> bool {
        let progress = self.others.get(&learner);
        progress.is_some_and(|progress| {
            // The index of a learner that has received nothing yet is 0.
            let index = progress.replicated_index;
            progress.active && index > 0 && index + BEHIND_MAX >= self.commit
        })
    }

    /// Returns the running voter, other than the leader, whose log reaches furthest.
    fn find_successor(&self, wanted: &BTreeSet<u64>) -> Option<u64> {
        let able = |id: &&u64| **id != self.leader && wanted.contains(id) && self.is_running(**id);
        let replicated_index = |id: &&u64| self.others.get(id).map(|it| it.replicated_index);
        let able = self.voters.iter().filter(able);
        able.max_by_key(replicated_index).copied()
    }
}

fn replica_id(id: u64) -> ReplicaId {
    ReplicaId::new(id).expect("raft has no member 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Validator 1 leads. `others` lists the id, the replicated index and the activity of each.
    fn group(voters: &[u64], learners: &[u64], others: &[(u64, u64, bool)]) -> Group {
        Group {
            leader: 1,
            commit: 1_000,
            voters: voters.iter().copied().collect(),
            learners: learners.iter().copied().collect(),
            changing: false,
            others: others.iter().copied().map(progress).collect(),
        }
    }

    fn wanted(ids: &[u64]) -> BTreeSet<u64> {
        ids.iter().copied().collect()
    }

    fn progress((id, replicated_index, active): (u64, u64, bool)) -> (u64, MemberProgress) {
        let progress = MemberProgress {
            replicated_index,
            active,
        };
        (id, progress)
    }

    const BOTH: [(u64, u64, bool); 2] = [(2, 1_000, true), (3, 990, true)];

    #[test]
    fn wanted_members_need_no_step() {
        let group = group(&[1, 2, 3], &[], &BOTH);
        assert_eq!(
            group.next_step(&wanted(&[1, 2, 3]), &wanted(&[1, 2, 3])),
            None
        );
    }

    #[test]
    fn a_newcomer_learns_before_it_votes() {
        let mut group = group(&[1, 2, 3], &[], &BOTH);
        let (mut begun, wanted) = (wanted(&[1, 2, 3]), wanted(&[1, 2, 3, 4]));
        assert_eq!(
            group.next_step(&wanted, &begun),
            Some(Step::Change(MemberChange::AddLearner(replica_id(4))))
        );
        group.learners.insert(4);
        group.others.extend([progress((4, 0, true))]);
        assert_eq!(group.next_step(&wanted, &begun), None, "it has nothing yet");
        group.others.extend([progress((4, 900, true))]);
        assert_eq!(
            group.next_step(&wanted, &begun),
            None,
            "it lacks 100 entries"
        );
        group.others.extend([progress((4, 960, false))]);
        assert_eq!(group.next_step(&wanted, &begun), None, "it went away");
        group.others.extend([progress((4, 960, true))]);
        assert_eq!(
            group.next_step(&wanted, &begun),
            None,
            "its log does not say it began"
        );
        begun.insert(4);
        assert_eq!(
            group.next_step(&wanted, &begun),
            Some(Step::Change(MemberChange::Promote(replica_id(4))))
        );
    }

    #[test]
    fn no_step_is_taken_during_a_change() {
        let mut group = group(&[1, 2, 3], &[], &BOTH);
        group.changing = true;
        assert_eq!(group.next_step(&wanted(&[1, 2]), &wanted(&[1, 2])), None);
    }

    #[test]
    fn a_leaving_leader_hands_over_to_the_voter_with_the_longest_log() {
        let mut group = group(&[1, 2, 3], &[], &BOTH);
        assert_eq!(
            group.next_step(&wanted(&[2, 3]), &wanted(&[2, 3])),
            Some(Step::HandOver(replica_id(2)))
        );
        group.leader = 2;
        group.others = [progress((1, 1_000, true)), progress((3, 990, true))].into();
        assert_eq!(
            group.next_step(&wanted(&[2, 3]), &wanted(&[2, 3])),
            Some(Step::Change(MemberChange::Remove(replica_id(1))))
        );
    }

    #[test]
    fn nobody_leaves_if_no_quorum_would_run() {
        let group = group(&[1, 2, 3], &[], &[(2, 1_000, true), (3, 5, false)]);
        let short = NoQuorum {
            running: 1,
            needed: 2,
        };
        assert_eq!(group.check_quorum_without(2), Err(short));
        assert_eq!(group.next_step(&wanted(&[1, 3]), &wanted(&[1, 3])), None);
        assert_eq!(group.check_quorum_without(3), Ok(()));
        assert_eq!(
            group.next_step(&wanted(&[1, 2]), &wanted(&[1, 2])),
            Some(Step::Change(MemberChange::Remove(replica_id(3))))
        );
    }

    #[test]
    fn an_unwanted_learner_leaves_at_once() {
        let group = group(&[1, 2, 3], &[4], &BOTH);
        assert_eq!(
            group.next_step(&wanted(&[1, 2, 3]), &wanted(&[1, 2, 3])),
            Some(Step::Change(MemberChange::Remove(replica_id(4))))
        );
    }
}
