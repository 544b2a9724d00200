//! Tells followers how far the log is committed, with as few messages as possible.
//!
//! raft-rs would send every follower a message for each commit, and each would answer: half of all
//! messages. The next entries carry the same information, so while commands keep coming the leader
//! will send no message for a commit alone. It informs a replica whose own command was committed at
//! once, and the others when the caller has nothing else to do, at the latest with the next tick.

use std::collections::BTreeMap;

use super::Replica;
use crate::ids::ReplicaId;
use crate::machine::StateMachine;

/// What the other replicas know, and the entries for which they wait.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// The commit index in the last messages to all.
    told: u64,
    /// For each waiting replica, the first and the last entry for which it waits.
    awaited: BTreeMap<u64, (u64, u64)>,
}

impl Commits {
    /// Records that the log took an entry for which its origin waits.
    pub(super) fn on_awaited(&mut self, by: ReplicaId, index: u64) {
        let (_, last) = self.awaited.entry(by.get()).or_insert((index, index));
        *last = index.max(*last);
        let (first, last) = self.awaited[&by.get()];
        assert!(first <= last, "it waits for something");
    }

    /// Returns the replicas that wait for an entry up to `committed`, and keeps their later
    /// entries.
    fn take_due(&mut self, committed: u64) -> Vec<u64> {
        let due = self
            .awaited
            .iter()
            .filter(|(_, (first, _))| *first <= committed);
        let due: Vec<u64> = due.map(|(by, _)| *by).collect();
        self.awaited.retain(|_, (first, last)| {
            *first = (*first).max(committed + 1);
            *first <= *last
        });
        assert!(self.awaited.values().all(|(first, _)| *first > committed));
        due
    }
}

impl<M: StateMachine> Replica<M> {
    /// Returns whether this replica leads and the others do not know the latest commit index.
    #[must_use]
    pub fn owes_commit(&self) -> bool {
        self.is_leader() && self.raw.raft.raft_log.committed > self.commits.told
    }

    /// Sends the commit index to the others; you should call this when you have nothing else to do.
    pub fn tell_commit(&mut self) {
        if self.owes_commit() {
            self.raw.raft.bcast_append();
            self.on_appends_sent();
        }
    }

    /// Sends the commit index to the replicas that wait for it.
    pub(super) fn tell_awaited_commit(&mut self) {
        if self.commits.awaited.is_empty() {
            return;
        }
        if !self.is_leader() {
            self.commits.awaited.clear();
        }
        for by in self.commits.take_due(self.raw.raft.raft_log.committed) {
            if self.raw.raft.prs().get(by).is_some() {
                self.raw.raft.send_append(by);
            }
        }
    }

    /// Records that messages with the commit index went to all others.
    pub(super) fn on_appends_sent(&mut self) {
        self.commits.told = self.raw.raft.raft_log.committed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_waits_is_told_of_each_commit_it_waits_for_and_of_no_other() {
        let waits = ReplicaId::new(3).unwrap();
        let mut commits = Commits::default();
        commits.on_awaited(waits, 5);
        commits.on_awaited(waits, 8);
        assert!(commits.take_due(4).is_empty());
        assert_eq!(commits.take_due(6), [3]);
        assert!(commits.take_due(6).is_empty());
        assert_eq!(commits.take_due(9), [3]);
        assert!(commits.take_due(20).is_empty());
    }
}
