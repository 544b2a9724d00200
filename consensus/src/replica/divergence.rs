//! Finds out whether this replica's state differs from the others', by comparing digests of the
//! whole state at equal indexes.
//!
//! Raft replicates a log, not a state, so a replica with a memory or program fault would never
//! notice. Therefore each replica sends the others the digests of its state at every checkpoint. A
//! replica that finds a quorum agreeing on another state must stop, and reports between which
//! entries it diverged. These digests are quick to compute and cover inputs and outputs; members
//! compare the full content of a state when they vouch for it ([`super::vouching`]).

use std::collections::BTreeMap;

use crate::checkpoint::Checkpoint;
use crate::ids::ReplicaId;
use souk_proof::Digest;
use souk_proof::LogIndex;

/// Checkpoints that a replica stores for comparison with the claims of others.
const CHECKPOINTS_MAX: usize = 64;

/// This replica's state differs from that of the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this replica's state at entry {} is not the group's: {part} {mine} here, {theirs} on \
     {} others; they last agreed at entry {agreed}. It stops: keep the folder for `souk audit`, \
     and add the replica again under a new id",
    index, by.len()
)]
pub struct Divergence {
    /// The entry of the differing checkpoint.
    pub index: LogIndex,
    /// The last equal checkpoint; zero if none was compared.
    pub agreed: LogIndex,
    /// The differing part: "history" or "state".
    pub part: &'static str,
    /// The digest of this replica.
    pub mine: Digest,
    /// The digest of the others.
    pub theirs: Digest,
    /// The replicas that agree on it.
    pub by: Vec<ReplicaId>,
}

/// The checkpoints that replicas reached, as the module describes.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    mine: BTreeMap<LogIndex, Checkpoint>,
    /// For each other replica, its latest claimed checkpoints. A replica that claims many can
    /// displace only its own.
    claims: BTreeMap<ReplicaId, BTreeMap<LogIndex, Checkpoint>>,
    agreed: LogIndex,
    /// Whether nothing has changed since the last comparison.
    compared: bool,
}

impl Checkpoints {
    /// Records a checkpoint that this replica reached.
    pub(super) fn on_reached(&mut self, checkpoint: Checkpoint) {
        self.compared = false;
        self.mine.insert(checkpoint.index, checkpoint);
        if self.mine.len() > CHECKPOINTS_MAX {
            self.mine.pop_first();
        }
        assert!(self.mine.len() <= CHECKPOINTS_MAX);
    }

    /// Records a checkpoint that another replica claims.
    pub(super) fn on_claim(&mut self, from: ReplicaId, checkpoint: Checkpoint) {
        self.compared = false;
        let claims = self.claims.entry(from).or_default();
        claims.insert(checkpoint.index, checkpoint);
        if claims.len() > CHECKPOINTS_MAX {
            claims.pop_first();
        }
        assert!(claims.len() <= CHECKPOINTS_MAX);
    }

    /// Returns this replica's latest checkpoint.
    pub(super) fn latest_checkpoint(&self) -> Option<Checkpoint> {
        self.mine
            .last_key_value()
            .map(|(_, checkpoint)| *checkpoint)
    }

    /// Returns the difference if `quorum` replicas agree on a state that differs from this one's.
    pub(super) fn find_divergence(&mut self, quorum: usize) -> Option<Divergence> {
        if std::mem::replace(&mut self.compared, true) {
            return None;
        }
        for (index, mine) in &self.mine {
            let claims = self.claims.iter();
            let claims = claims.filter_map(|(from, claims)| Some((*from, claims.get(index)?)));
            let claims: BTreeMap<ReplicaId, &Checkpoint> = claims.collect();
            let same = |checkpoint: &Checkpoint, other: &Checkpoint| {
                (checkpoint.history, checkpoint.state) == (other.history, other.state)
            };
            if claims.values().any(|claim| same(claim, mine)) {
                self.agreed = self.agreed.max(*index);
            }
            for claim in claims.values().filter(|claim| !same(claim, mine)) {
                let agrees = |other: &(&ReplicaId, &&Checkpoint)| same(other.1, claim);
                let by: Vec<ReplicaId> = claims
                    .iter()
                    .filter(agrees)
                    .map(|(replica, _)| *replica)
                    .collect();
                if by.len() >= quorum {
                    return Some(self.new_divergence(mine, claim, by));
                }
            }
        }
        None
    }

    fn new_divergence(
        &self,
        mine: &Checkpoint,
        claim: &Checkpoint,
        by: Vec<ReplicaId>,
    ) -> Divergence {
        let (part, mine_digest, theirs) = if mine.history == claim.history {
            ("state", mine.state, claim.state)
        } else {
            ("history", mine.history, claim.history)
        };
        let (index, agreed) = (mine.index, self.agreed);
        Divergence {
            index,
            agreed,
            part,
            mine: mine_digest,
            theirs,
            by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Term;

    fn checkpoint(index: u64, state: u8) -> Checkpoint {
        Checkpoint {
            index: LogIndex(index),
            term: Term(1),
            size: index,
            history: Digest([1; 32]),
            state: Digest([state; 32]),
        }
    }

    fn id(number: u64) -> ReplicaId {
        ReplicaId::new(number).unwrap()
    }

    #[test]
    fn the_one_that_differs_from_a_quorum_is_told_where() {
        let mut checkpoints = Checkpoints::default();
        for (index, other) in [(8, 5), (16, 6)] {
            checkpoints.on_reached(checkpoint(index, 5));
            checkpoints.on_claim(id(2), checkpoint(index, other));
            assert_eq!(
                checkpoints.find_divergence(2),
                None,
                "one voice is no quorum"
            );
        }
        checkpoints.on_claim(id(3), checkpoint(16, 6));
        let divergence = checkpoints.find_divergence(2).unwrap();
        assert_eq!(divergence.index, LogIndex(16));
        assert_eq!(divergence.agreed, LogIndex(8));
        assert_eq!(divergence.part, "state");
        assert_eq!(divergence.by, [id(2), id(3)]);
    }

    #[test]
    fn one_that_claims_much_crowds_out_nobody() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.on_reached(checkpoint(8, 5));
        checkpoints.on_claim(id(2), checkpoint(8, 6));
        checkpoints.on_claim(id(3), checkpoint(8, 6));
        for index in 0..1_000 {
            checkpoints.on_claim(id(4), checkpoint(u64::MAX - index, 1));
        }
        assert_eq!(checkpoints.find_divergence(2).unwrap().by, [id(2), id(3)]);
    }

    #[test]
    fn two_others_that_differ_from_each_other_are_no_quorum() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.on_reached(checkpoint(8, 1));
        checkpoints.on_claim(id(2), checkpoint(8, 2));
        checkpoints.on_claim(id(3), checkpoint(8, 3));
        assert_eq!(checkpoints.find_divergence(2), None);
    }
}
