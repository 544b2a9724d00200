//! When a leader tells the others how far the log is committed.
//!
//! raft-rs would send every follower a message for each commit, answered by each: half of all
//! messages. The next entries say the same, so while commands keep coming nothing is sent for a
//! commit alone. It is sent at once where someone else waits for it, that is if the committed part
//! holds entries that came from another replica, and otherwise when the caller finds nothing else
//! to do, at the latest with the next tick.

use super::Replica;
use crate::machine::StateMachine;

/// What the others know and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// The commit index that went out with the last messages to all.
    told: u64,
    /// The last entry that another replica waits for.
    awaited: u64,
}

impl Commits {
    /// An entry of another replica was taken into the log.
    pub(super) fn on_awaited(&mut self, index: u64) {
        self.awaited = self.awaited.max(index);
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

    /// Tells the others what is committed if one of them waits for it.
    pub(super) fn tell_awaited_commit(&mut self) {
        if self.commits.awaited > self.commits.told {
            self.tell_commit();
        }
    }

    /// Messages went to all others, and with them what is committed.
    pub(super) fn on_appends_sent(&mut self) {
        self.commits.told = self.raw.raft.raft_log.committed;
    }
}
