//! Seeded bugs: each breaks one promise on purpose, to prove that the checks would notice.
//!
//! None of them touches the production code. They sit in the simulated shell, the simulated disk
//! and the machine's wrapper, where a careless change would put them.

use serde::Serialize;

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bug {
    /// The disk says "synced" and does nothing.
    SkipSync,
    /// Acknowledgements and votes leave before anything is written.
    AckBeforePersist,
    /// Term and vote are not written.
    LoseVote,
    /// The last entry of a batch of entries is not written.
    LoseLastEntry,
    /// The log's last entries are ignored at the start.
    CutLogAtStart,
    /// A client is told "done" when its command was only queued.
    AnswerEarly,
    /// Linearizable reads are answered at once.
    StaleRead,
    /// One replica applies a command twice now and then.
    ApplyTwice,
    /// One replica skips a command now and then.
    SkipCommand,
    /// The machine reads the local clock instead of the log's.
    LocalClock,
    /// One replica's machine sees another command than the log holds.
    CorruptCommand,
    /// A snapshot forgets which batches were applied.
    SnapshotForgetsSessions,
    /// A snapshot holds the state of an earlier moment.
    SnapshotTooOld,
    /// A replica that lost its disk comes back under its old id.
    WipedReturns,
    /// A replica counts its lives from one again.
    SameIncarnation,
    /// One replica believes it is alone in the group.
    SplitMembers,
    /// A replica takes the latest clock it heard of for its own.
    AdoptClock,
    /// A replica goes on after a sync that failed.
    IgnoreSyncError,
    /// Views are trusted although their hashes differ.
    TrustSpoiledViews,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 19] = [
        Bug::SkipSync,
        Bug::AckBeforePersist,
        Bug::LoseVote,
        Bug::LoseLastEntry,
        Bug::CutLogAtStart,
        Bug::AnswerEarly,
        Bug::StaleRead,
        Bug::ApplyTwice,
        Bug::SkipCommand,
        Bug::LocalClock,
        Bug::CorruptCommand,
        Bug::SnapshotForgetsSessions,
        Bug::SnapshotTooOld,
        Bug::WipedReturns,
        Bug::SameIncarnation,
        Bug::SplitMembers,
        Bug::AdoptClock,
        Bug::IgnoreSyncError,
        Bug::TrustSpoiledViews,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bug::SkipSync => "skip_sync",
            Bug::AckBeforePersist => "ack_before_persist",
            Bug::LoseVote => "lose_vote",
            Bug::LoseLastEntry => "lose_last_entry",
            Bug::CutLogAtStart => "cut_log_at_start",
            Bug::AnswerEarly => "answer_early",
            Bug::StaleRead => "stale_read",
            Bug::ApplyTwice => "apply_twice",
            Bug::SkipCommand => "skip_command",
            Bug::LocalClock => "local_clock",
            Bug::CorruptCommand => "corrupt_command",
            Bug::SnapshotForgetsSessions => "snapshot_forgets_sessions",
            Bug::SnapshotTooOld => "snapshot_too_old",
            Bug::WipedReturns => "wiped_returns",
            Bug::SameIncarnation => "same_incarnation",
            Bug::SplitMembers => "split_members",
            Bug::AdoptClock => "adopt_clock",
            Bug::IgnoreSyncError => "ignore_sync_error",
            Bug::TrustSpoiledViews => "trust_spoiled_views",
        }
    }

    /// The bug of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }
}
