//! Replays a replica's stored log and checks every stored digest.
//!
//! The audit restores the oldest snapshot, applies the log after it with the production replica,
//! and at each later snapshot compares the state with the stored one byte by byte.

use raft::eraftpb::{Entry, HardState};

use crate::check::{Check, ForgedCommand, Verdict, batch_of, checks_of};
use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::ids::ReplicaId;
use crate::machine::StateMachine;
use crate::replica::{ApplyError, Replica, ReplicaConfig, StartError};
use crate::snapshot::Snapshot;
use crate::store::{KEPT, Recovery, StoreOpenError, build_recovery, read_snapshot, snapshots_of};
use crate::wal::{Contents, Wal, WalOpenError};
use souk_proof::Digest;
use souk_proof::{LogIndex, LogTime};

/// The result of a successful audit.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Entries between two checkpoints.
    pub checkpoint_entries: u64,
    /// The entry after which the replay began.
    pub from: LogIndex,
    /// The last entry replayed: the last one that the written log states as committed.
    pub to: LogIndex,
    /// Commands replayed.
    pub commands: u64,
    /// Snapshots whose bytes the replay reproduced.
    pub snapshots: Vec<LogIndex>,
    /// Checkpoints on the way, which you can compare with those of other replicas.
    pub checkpoints: Vec<Checkpoint>,
    /// The history's root at the end.
    pub history: Digest,
    /// The state's digest at the end.
    pub state: Digest,
}

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file is damaged.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The log is damaged.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// The folder cannot be read.
    #[error("cannot read the folder: {0}")]
    Read(#[from] std::io::Error),
    /// The folder holds no snapshot.
    #[error("the folder holds no snapshot to begin from")]
    Empty,
    /// A snapshot cannot be restored.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A snapshot cannot be restored, or an entry cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A command in the log has no valid signature of its author.
    #[error(
        "command {} of entry {index}, taken in by replica {origin}, is forged: {}",
        forged.offset, forged.cause
    )]
    Forged {
        /// The entry with the command.
        index: LogIndex,
        /// The replica that proposed it, as the entry states.
        origin: ReplicaId,
        /// The forged command and its fault.
        #[source]
        forged: ForgedCommand,
    },
    /// The log ends before a snapshot.
    #[error("the log ends at entry {reached}, before the snapshot of entry {wanted}")]
    Short {
        /// The last entry replayed.
        reached: LogIndex,
        /// The entry of the snapshot.
        wanted: LogIndex,
    },
    /// The replay reached another state than the stored one.
    #[error(
        "after replaying from entry {from}, the state at entry {index} is {found}; {wanted} was \
         recorded"
    )]
    Differs {
        /// The entry at which the replay began.
        from: LogIndex,
        /// The entry of the differing snapshot.
        index: LogIndex,
        /// The digest of the stored snapshot.
        wanted: Digest,
        /// The digest of the replayed state.
        found: Digest,
    },
}

/// Replays a folder's log from its oldest snapshot, with a checkpoint every `checkpoint_entries`
/// entries. `machine` must return an empty machine.
///
/// # Errors
/// The first damage or difference found.
pub fn audit<M: StateMachine>(
    disk: &mut impl Disk,
    checkpoint_entries: u64,
    machine: impl Fn() -> M,
) -> Result<Audit, AuditError> {
    let indexes = snapshots_of(disk)?;
    let contents = Wal::read(disk)?;
    let snapshots = indexes.iter().map(|index| read_snapshot(disk, *index));
    let mut snapshots: Vec<Snapshot> = snapshots.collect::<Result<_, _>>()?;
    // If power failed during the removal of the oldest snapshot, its log can be gone and its file
    // left.
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
        if !is_from_leader(&contents, &pair[1]) {
            check_next(pair, &contents, &machine, &mut audit)?;
        }
    }
    let newest = snapshots.last().ok_or(AuditError::Empty)?;
    let end = LogIndex(contents.hard_state.commit).max(newest.index);
    let replica = replay_entries(newest, &contents, end, machine(), &mut audit)?;
    audit.to = replica.applied_index();
    audit.history = replica.history().root();
    audit.state = Digest(replica.machine().digest());
    Ok(audit)
}

/// Returns whether the log continues at the end of a snapshot.
fn leads_on(contents: &Contents, snapshot: &Snapshot) -> bool {
    let first = contents.entries.first();
    first.is_none_or(|first| first.index <= snapshot.index.0 + 1)
}

/// Returns whether the leader sent the snapshot, which then has no log before it here: the entries
/// begin after it.
fn is_from_leader(contents: &Contents, snapshot: &Snapshot) -> bool {
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
    let replica = replay_entries(from, contents, next.index, machine(), audit)?;
    let reached = replica.applied_index();
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

/// Applies the log after a snapshot, up to an entry.
fn replay_entries<M: StateMachine>(
    from: &Snapshot,
    contents: &Contents,
    to: LogIndex,
    machine: M,
    audit: &mut Audit,
) -> Result<Replica<M>, AuditError> {
    let Recovery { mut entries, .. } =
        build_recovery(from.clone(), contents.clone(), contents.incarnation)?;
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
    let verdicts = verify_entries::<M>(&recovered.entries)?;
    let mut replica = Replica::new(config, recovered, verdicts, machine)?;
    while let Some(work) = replica.take_work(LogTime(0)) {
        let outcome = replica.on_persisted(work)?;
        for applied in &outcome.applied {
            audit.commands += applied.results.len() as u64;
        }
        audit.checkpoints.extend(outcome.checkpoints);
    }
    Ok(replica)
}

/// Checks every signature, because an audit must not trust a stored result.
fn verify_entries<M: StateMachine>(
    entries: &[Entry],
) -> Result<Vec<Verdict<M::Command>>, AuditError> {
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
