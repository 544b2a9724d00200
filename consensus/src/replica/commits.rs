//! When a leader tells the others how far the log is committed.
//!
//! raft-rs would send every follower a message for each commit, answered by each: half of all
//! messages. The next entries say the same, so while commands keep coming nothing is sent for a
//! commit alone. A replica whose own command was committed is told at once; the others when the
//! caller finds nothing else to do, at the latest with the next tick.

use std::collections::BTreeMap;

use super::Replica;
use crate::ids::ReplicaId;
use crate::machine::StateMachine;

/// What the others know and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// The commit index that went out with the last messages to all.
    told: u64,
    /// For each replica that waits, the first and the last entry it waits for.
    awaited: BTreeMap<u64, (u64, u64)>,
}

impl Commits {
    /// An entry of another replica was taken into the log.
    pub(super) fn on_awaited(&mut self, by: ReplicaId, index: u64) {
        let (_, last) = self.awaited.entry(by.get()).or_insert((index, index));
        *last = index.max(*last);
        let (first, last) = self.awaited[&by.get()];
        assert!(first <= last, "it waits for something");
    }

    /// Those that wait for something up to `committed`. What they wait for beyond it stays.
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
    /// Whether the others do not know yet what is committed, and this replica is to tell them.
    #[must_use]
    pub fn owes_commit(&self) -> bool {
        self.is_leader() && self.raw.raft.raft_log.committed > self.commits.told
    }

    /// Tells the others what is committed; to be called when there is nothing else to do.
    pub fn tell_commit(&mut self) {
        if self.owes_commit() {
            self.raw.raft.bcast_append();
            self.on_appends_sent();
        }
    }

    /// Tells those what is committed that wait for it.
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

    /// Messages went to all others, and with them what is committed.
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
