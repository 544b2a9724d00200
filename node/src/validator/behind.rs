//! Verification behind: commands that other validators took in, checked on a thread of its own.
//!
//! The replica applies them at once; this thread follows, and what it reached lets the replica
//! vouch for checkpoints and keep snapshots. It never waits for the replica, which looks at its
//! progress each round. The replica waits for it only when it is too far behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use souk_consensus::replica::Applied;
use souk_consensus::{Forged, LogIndex, ReplicaId, StateMachine};
use tokio::sync::mpsc;

use super::ValidatorConfig;

/// Entries not verified yet: as many as between two checkpoints, so that a forged command is found
/// within the next one. At full entries they are 256 MiB, which the log in memory holds anyway.
const ENTRIES_MAX: usize = 1_024;

/// A command that a validator let into the log although its signature does not hold.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "command {offset} of entry {index}, which validator {origin} took in, is forged: {cause}. This \
     validator has applied it and stops: remove validator {origin} from the group, and restore the \
     others from backups taken before that entry"
)]
pub struct ForgedCommand {
    /// The entry.
    pub index: LogIndex,
    /// The command in it, from zero.
    pub offset: usize,
    /// Who took it in, as the entry says.
    pub origin: ReplicaId,
    /// What is wrong with it; it names the account.
    #[source]
    pub cause: Arc<Forged>,
}

/// What one entry brought to verify.
struct Entry {
    index: LogIndex,
    origin: ReplicaId,
    commands: Vec<Bytes>,
}

/// What the thread has come to.
#[derive(Default)]
struct Progress {
    verified: AtomicU64,
    forged: OnceLock<ForgedCommand>,
}

/// The replica's end.
pub(super) struct Behind {
    enabled: bool,
    entries: mpsc::Sender<Entry>,
    progress: Arc<Progress>,
    sent: LogIndex,
}

impl Behind {
    /// Starts the thread; what `reached` covers counts as verified.
    pub(super) fn start<M: StateMachine>(
        config: &ValidatorConfig,
        reached: LogIndex,
    ) -> std::io::Result<Self> {
        let (id, enabled) = (config.replica.id, config.verify_behind);
        if !enabled {
            tracing::warn!("what other validators take in is not verified");
        }
        let (entries, mut inbox) = mpsc::channel(ENTRIES_MAX);
        let progress = Arc::new(Progress::default());
        progress.verified.store(reached.0, Ordering::Release);
        let theirs = progress.clone();
        std::thread::Builder::new()
            .name(format!("behind-{id}"))
            .spawn(move || follow::<M>(&mut inbox, &theirs))?;
        let sent = reached;
        Ok(Self {
            enabled,
            entries,
            progress,
            sent,
        })
    }

    /// An entry was applied. Waits while the thread is too far behind.
    pub(super) async fn on_applied(&mut self, applied: &Applied) {
        if applied.taken_in_here || !self.enabled {
            return;
        }
        let commands = applied.results.iter().map(|(command, _)| command.clone());
        let commands: Vec<Bytes> = commands.filter(|command| !command.is_empty()).collect();
        if !commands.is_empty() {
            let (index, origin) = (applied.index, applied.origin);
            let entry = Entry {
                index,
                origin,
                commands,
            };
            self.send(entry).await;
        }
    }

    async fn send(&mut self, entry: Entry) {
        self.sent = entry.index;
        // The thread only ends before this value if it found a forged command.
        let _ended = self.entries.send(entry).await;
    }

    /// Everything up to where the thread is, or up to `applied` if nothing waits.
    pub(super) fn verified(&self, applied: LogIndex) -> Result<LogIndex, ForgedCommand> {
        if let Some(forged) = self.progress.forged.get() {
            return Err(forged.clone());
        }
        let verified = LogIndex(self.progress.verified.load(Ordering::Acquire));
        Ok(if verified >= self.sent {
            applied
        } else {
            verified
        })
    }
}

fn follow<M: StateMachine>(inbox: &mut mpsc::Receiver<Entry>, progress: &Progress) {
    while let Some(entry) = inbox.blocking_recv() {
        for (offset, command) in entry.commands.iter().enumerate() {
            if let Err(forged) = M::verify(command) {
                let forged = ForgedCommand {
                    index: entry.index,
                    offset,
                    origin: entry.origin,
                    cause: Arc::new(forged),
                };
                tracing::error!(%forged, "a forged command is in the log");
                // Set once: the thread ends with it.
                let _first = progress.forged.set(forged);
                return;
            }
        }
        progress.verified.store(entry.index.0, Ordering::Release);
    }
}
