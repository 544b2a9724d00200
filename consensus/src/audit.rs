//! Replays what a replica kept, and demands every digest it wrote down.
//!
//! The oldest snapshot is restored, the log after it is applied by the production replica, and at
//! each later snapshot the state must come out byte for byte as it was written.

use raft::eraftpb::{Entry, HardState};

use crate::check::{Check, ForgedCommand, Verdict, batch_of, checks_of};
use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::history::Digest;
use crate::ids::{LogIndex, LogTime, ReplicaId};
use crate::machine::StateMachine;
use crate::replica::{ApplyError, Replica, ReplicaConfig, StartError};
use crate::snapshot::Snapshot;
use crate::store::{KEPT, Recovery, StoreOpenError, read_snapshot, recover, snapshots_of};
use crate::wal::{Contents, Wal, WalOpenError};

/// What an audit found in order.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Entries between two checkpoints.
    pub checkpoint_entries: u64,
    /// The entry it began after.
    pub from: LogIndex,
    /// The last entry replayed: the last one known to be committed when the log was written.
    pub to: LogIndex,
    /// Commands replayed.
    pub commands: u64,
    /// Snapshots whose bytes came out as written.
    pub snapshots: Vec<LogIndex>,
    /// Digests passed on the way, for comparison with those of others.
    pub checkpoints: Vec<Checkpoint>,
    /// Root of the history at the end.
    pub history: Digest,
    /// Digest of the state at the end.
    pub state: Digest,
}

/// What an audit found wrong.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file is damaged.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The log is damaged.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// The folder can't be read.
    #[error("cannot read the folder: {0}")]
    Read(#[from] std::io::Error),
    /// There is nothing to audit.
    #[error("the folder holds no snapshot to begin from")]
    Empty,
    /// A snapshot does not restore.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A snapshot does not restore.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A command in the log was signed by nobody who may command.
    #[error(
        "command {} of entry {index}, taken in by replica {origin}, is forged: {}",
        forged.offset, forged.cause
    )]
    Forged {
        /// The entry.
        index: LogIndex,
        /// Who took it in, as the entry says.
        origin: ReplicaId,
        /// The command.
        #[source]
        forged: ForgedCommand,
    },
    /// The log does not reach a snapshot.
    #[error("the log ends at entry {reached}, before the snapshot of entry {wanted}")]
    Short {
        /// The last entry replayed.
        reached: LogIndex,
        /// The snapshot's entry.
        wanted: LogIndex,
    },
    /// A replay comes to another state than the one written.
    #[error(
        "replayed from entry {from}, the state at entry {index} is {found}; written was {wanted}"
    )]
    Differs {
        /// Where the replay began.
        from: LogIndex,
        /// The snapshot that differs.
        index: LogIndex,
        /// Digest of the snapshot written.
        wanted: Digest,
        /// Digest of the snapshot replayed.
        found: Digest,
    },
}

/// Replays a folder's log from its oldest snapshot, with a checkpoint every `checkpoint_entries`
/// entries. `machine` makes an empty machine.
///
/// # Errors
/// The first thing that is damaged or does not come out as written.
pub fn audit<M: StateMachine>(
    disk: &mut impl Disk,
    checkpoint_entries: u64,
    machine: impl Fn() -> M,
) -> Result<Audit, AuditError> {
    let indexes = snapshots_of(disk)?;
    let contents = Wal::read(disk)?;
    let snapshots = indexes.iter().map(|index| read_snapshot(disk, *index));
    let mut snapshots: Vec<Snapshot> = snapshots.collect::<Result<_, _>>()?;
    // Where power was lost while the oldest was given up, its log may be gone and its file not.
    while snapshots.len() > KEPT && !leads_on(&contents, &snapshots[0]) {
        snapshots.remove(0);
    }
    let oldest = snapshots.first().ok_or(AuditError::Empty)?;
    let mut audit = Audit {
        checkpoint_entries,
        from: oldest.index,
        to: oldest.index,
        commands: 0,
        snapshots: Vec::new(),
        checkpoints: Vec::new(),
        history: oldest.history.root(),
        state: oldest.state,
    };
    for pair in snapshots.windows(2) {
        if !installed(&contents, &pair[1]) {
            check_next(pair, &contents, &machine, &mut audit)?;
        }
    }
    let newest = snapshots.last().ok_or(AuditError::Empty)?;
    let end = LogIndex(contents.hard_state.commit).max(newest.index);
    let replica = replay(newest, &contents, end, machine(), &mut audit)?;
    audit.to = replica.applied();
    audit.history = replica.history().root();
    audit.state = Digest(replica.machine().digest());
    Ok(audit)
}

/// Whether the log goes on where a snapshot ends.
fn leads_on(contents: &Contents, snapshot: &Snapshot) -> bool {
    let first = contents.entries.first();
    first.is_none_or(|first| first.index <= snapshot.index.0 + 1)
}

/// A snapshot that came from the leader has no log before it here: the entries begin after it.
fn installed(contents: &Contents, snapshot: &Snapshot) -> bool {
    contents
        .entries
        .first()
        .is_none_or(|first| first.index > snapshot.index.0)
}

fn check_next<M: StateMachine>(
    pair: &[Snapshot],
    contents: &Contents,
    machine: &impl Fn() -> M,
    audit: &mut Audit,
) -> Result<(), AuditError> {
    let (from, next) = (&pair[0], &pair[1]);
    let replica = replay(from, contents, next.index, machine(), audit)?;
    let reached = replica.applied();
    if reached < next.index {
        return Err(AuditError::Short {
            reached,
            wanted: next.index,
        });
    }
    let replayed = replica.vouched_snapshot();
    if replayed.bytes != next.bytes {
        let digest = |snapshot: &Snapshot| Digest(*blake3::hash(&snapshot.bytes).as_bytes());
        return Err(AuditError::Differs {
            from: from.index,
            index: next.index,
            wanted: digest(next),
            found: digest(&replayed),
        });
    }
    audit.snapshots.push(next.index);
    Ok(())
}

/// Applies the log after a snapshot up to an entry.
fn replay<M: StateMachine>(
    from: &Snapshot,
    contents: &Contents,
    to: LogIndex,
    machine: M,
    audit: &mut Audit,
) -> Result<Replica<M>, AuditError> {
    let Recovery { mut entries, .. } =
        recover(from.clone(), contents.clone(), contents.incarnation)?;
    entries.retain(|entry| entry.index <= to.0);
    let end = entries.last().map_or(from.index.0, |entry| entry.index);
    let hard_state = HardState {
        term: u64::MAX >> 1,
        commit: end,
        ..HardState::default()
    };
    let (snapshot, incarnation) = (from.clone(), contents.incarnation);
    let recovered = Recovery {
        snapshot,
        entries,
        hard_state,
        incarnation,
        cut: None,
    };
    let auditor = ReplicaId::new(u64::MAX).expect("it is not zero");
    let checkpoint_entries = audit.checkpoint_entries;
    let config = ReplicaConfig {
        checkpoint_entries,
        snapshot_entries: u64::MAX,
        snapshot_log_bytes: u64::MAX,
        ..ReplicaConfig::new(auditor, 0)
    };
    let verdicts = verify::<M>(&recovered.entries)?;
    let mut replica = Replica::new(config, recovered, verdicts, machine)?;
    while let Some(work) = replica.take_work(LogTime(0)) {
        let outcome = replica.persisted(work)?;
        for applied in &outcome.applied {
            audit.commands += applied.results.len() as u64;
        }
        audit.checkpoints.extend(outcome.checkpoints);
    }
    Ok(replica)
}

/// An audit takes nobody's word: every signature is checked.
fn verify<M: StateMachine>(entries: &[Entry]) -> Result<Vec<Verdict<M::Command>>, AuditError> {
    let verdicts = Check::run_all::<M>(&checks_of(entries));
    for verdict in &verdicts {
        if let Err(forged) = &verdict.outcome {
            let index = LogIndex(verdict.ticket.0);
            let entry = entries.iter().find(|entry| entry.index == index.0);
            let batch = entry.and_then(batch_of).and_then(Result::ok);
            let origin = batch.map(|batch| batch.id.origin);
            return Err(AuditError::Forged {
                index,
                origin: origin.expect("what was checked is a batch"),
                forged: forged.clone(),
            });
        }
    }
    Ok(verdicts)
}
