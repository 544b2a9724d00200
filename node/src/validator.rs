//! Runs one validator of a market: a task that owns a replica and the state machine, and a thread
//! that owns its log on disk.
//!
//! Every input is a variant of one enum, `Input`, and arrives over one bounded channel. A core
//! ([`souk_roles::validator::core`]) decides the effects, and the task must carry them out in the
//! core's order. Callers hold a [`Validator`], which can only send inputs and await answers. The
//! exchange answers queries either after a ReadIndex round (linearizable) or at once (stale, with
//! the age of the state).

mod account_watchers;
mod admission;
mod audit;
mod backup;
mod backup_file;
mod callers;
mod cosigning;
pub mod exchange_machine;
mod history_folder;
mod jury;
mod members;
pub mod node;
pub mod operator;
pub mod raft_link;
pub mod request_server;
mod settlements;
mod statements;
mod storage;
mod task;
mod verifier;
mod views;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_consensus::check::checks_of;
use souk_consensus::disk::FolderDisk;
use souk_consensus::replica::{
    AppliedEntry, COMMAND_BYTES_MAX, NoAnswer, Proposal, ProposalRefusal, StartError, Status,
};
use souk_consensus::store::StoreOpenError;
use souk_consensus::wal::WalError;
use souk_consensus::wire::Envelope;
use souk_consensus::{
    CommandFault, LogIndex, Replica, ReplicaConfig, ReplicaId, StateMachine, Store, StoreConfig,
    TreeTip,
};
use souk_roles::validator::action::ReplicaFailure;
pub use souk_roles::validator::event::{Consistency, ReadMoment};
pub use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use admission::{Admission, AdmissionFull};
pub use audit::{ValidatorAudit, ValidatorAuditError, audit_folder};
pub use backup::{
    BackupError, RestoreBackupError, place_state, read_backup, restore_backup, write_backup,
};
pub use backup_file::BackupFault;
pub use cosigning::{CosigningError, start_cosigning_in_group};
use history_folder::HistoryFolder;
pub use members::MembersError;
use settlements::Settlements;
use task::{Followers, Input, ValidatorTask};
use verifier::verify_all;
pub use views::ViewsError;

/// Inputs that can wait for the task: some 0.1 s of work at full speed. A caller beyond that gets
/// "busy".
const INPUTS_MAX: usize = 16_384;

/// Notices that a watcher can fall behind; beyond that it loses them and learns how many it missed.
const NOTICES_MAX: usize = 4_096;

/// How a validator begins in an unused folder.
#[derive(Clone, Debug)]
pub enum LogBeginning {
    /// As one of the first members of a new group; every member must be configured with the same
    /// list.
    NewGroup(Vec<ReplicaId>),
    /// As a new replica that an existing group will add.
    Join,
    /// Not at all: the folder must hold a replica. A wiped one must not return under its old id.
    Refuse,
}

/// The configuration of a validator.
#[derive(Clone, Debug)]
pub struct ValidatorConfig {
    /// The configuration of the replica.
    pub replica: ReplicaConfig,
    /// The folder of the log, the snapshots, and the views, which can be rebuilt.
    pub folder: PathBuf,
    /// How to begin if the folder is empty.
    pub beginning: LogBeginning,
    /// Length of a tick.
    pub tick: Duration,
    /// Limits of the files on disk.
    pub store: StoreConfig,
    /// How long [`Validator::propose`] and [`Validator::query_machine`] wait for a result.
    pub patience: Duration,
}

impl ValidatorConfig {
    /// Returns the defaults: a tick of 15 ms (elections after 300 to 600 ms), 10 s of patience.
    #[must_use]
    pub fn new(id: ReplicaId, seed: u64, folder: PathBuf, beginning: LogBeginning) -> Self {
        Self {
            replica: ReplicaConfig::new(id, seed),
            folder,
            beginning,
            tick: Duration::from_millis(15),
            store: StoreConfig::default(),
            patience: Duration::from_secs(10),
        }
    }
}

/// Why a validator did not start.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorError {
    /// The folder's content is not usable.
    #[error("{}: {cause}", folder.display())]
    Open {
        /// The validator's folder.
        folder: PathBuf,
        /// The fault of its content.
        #[source]
        cause: StoreOpenError,
    },
    /// The folder holds no replica.
    #[error("{} holds no replica: found a group with it, or join one", .0.display())]
    Empty(PathBuf),
    /// The folder cannot be written.
    #[error("{}: {cause}", folder.display())]
    Write {
        /// The validator's folder.
        folder: PathBuf,
        /// The write that failed.
        #[source]
        cause: WalError,
    },
    /// The replica refuses its own state.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The views cannot even be rebuilt.
    #[error(transparent)]
    Views(#[from] ViewsError),
    /// The system refused a thread or another resource.
    #[error("cannot begin: {0}")]
    System(#[from] std::io::Error),
}

/// Why a running validator stopped by itself. It must restart from its state on disk.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorFailure {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] WalError),
    /// The replica cannot continue.
    #[error(transparent)]
    Replica(#[from] ReplicaFailure),
    /// It panicked: an invariant is broken.
    #[error("the validator panicked")]
    Panicked,
}

/// Why a command has no result.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum ProposeError {
    /// The validator took nothing; you can send the same command again.
    #[error("busy: too many commands are waiting; retry after {retry_after_ms} ms")]
    Busy {
        /// Milliseconds to wait before you try again.
        retry_after_ms: u64,
    },
    /// The validator never takes a command of this size.
    #[error("a command of {bytes} bytes; at most {COMMAND_BYTES_MAX} are allowed")]
    TooLarge {
        /// The size of the command.
        bytes: usize,
    },
    /// The command may or may not be applied; if you send it again with the same nonce it is
    /// applied at most once.
    #[error("no answer within {0:?}: no leader, or no quorum; send it again with the same nonce")]
    Timeout(Duration),
    /// A snapshot applied the command, so its result must be looked up.
    #[error(transparent)]
    Unanswered(#[from] NoAnswer),
    /// The validator is not running.
    #[error("the validator has stopped")]
    Stopped,
}

/// Why a query has no answer.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum QueryError {
    /// Too many queries are waiting.
    #[error("busy: too many queries are waiting; retry after {retry_after_ms} ms")]
    Busy {
        /// Milliseconds to wait before you try again.
        retry_after_ms: u64,
    },
    /// No leader confirmed the query.
    #[error("no answer within {0:?}: no leader, or no quorum; a stale read is still possible")]
    Timeout(Duration),
    /// The validator is not running.
    #[error("the validator has stopped")]
    Stopped,
}

/// An event that a validator reports to its watchers.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The validator applied an entry.
    Applied(Arc<AppliedEntry>),
    /// A snapshot replaced the state: the watcher must read again whatever it derived from it.
    Installed(LogIndex),
}

/// Milliseconds that a busy caller should wait: about the time in which the queue empties.
const RETRY_AFTER_MS: u64 = 100;

/// A running validator, for any number of callers.
pub struct Validator<M: AnsweringMachine> {
    admission: Admission<M>,
    inputs: mpsc::Sender<Input<M>>,
    notices: broadcast::Sender<Notice>,
    tips: watch::Receiver<Option<Arc<TreeTip>>>,
    history: HistoryFolder,
    settlements: Settlements,
    patience: Duration,
}

impl<M: AnsweringMachine> Clone for Validator<M> {
    fn clone(&self) -> Self {
        Self {
            admission: self.admission.clone(),
            inputs: self.inputs.clone(),
            notices: self.notices.clone(),
            tips: self.tips.clone(),
            history: self.history.clone(),
            settlements: self.settlements.clone(),
            patience: self.patience,
        }
    }
}

/// A handle that resolves when the validator ends.
pub struct ValidatorEnd {
    end: oneshot::Receiver<Result<(), ValidatorFailure>>,
}

impl ValidatorEnd {
    /// Waits until the validator has stopped.
    ///
    /// # Errors
    /// The failure that stopped it, unless [`Validator::stop`] did.
    pub async fn wait_for_end(self) -> Result<(), ValidatorFailure> {
        self.end.await.unwrap_or(Err(ValidatorFailure::Panicked))
    }
}

impl<M: AnsweringMachine<Command: Send> + Send + 'static> Validator<M> {
    /// Opens the folder, recovers its state and starts the task; needs a runtime. Messages for
    /// peers go to `outbound`; those that do not fit are dropped, as a network may.
    ///
    /// # Errors
    /// If the folder cannot be trusted or used; the message says how to mend it.
    pub fn start(
        config: &ValidatorConfig,
        machine: M,
        outbound: mpsc::Sender<Envelope>,
    ) -> Result<(Self, ValidatorEnd), ValidatorError> {
        let (inputs, inbox) = mpsc::channel(INPUTS_MAX);
        let (notices, _) = broadcast::channel(NOTICES_MAX);
        let (tip, tips) = watch::channel(None);
        let followers = Followers {
            notices: notices.clone(),
            tip,
        };
        let task = ValidatorTask::open_task(config, machine, inbox, followers, outbound)?;
        let settlements = task.settlements().clone();
        let (end, ended) = oneshot::channel();
        // The send fails only if no caller waits for the end.
        tokio::spawn(async move { end.send(task.run().await) });
        let validator = Self {
            admission: Admission::start(config.replica.id)?,
            inputs,
            notices,
            tips,
            history: HistoryFolder::in_replica(&config.folder),
            settlements,
            patience: config.patience,
        };
        Ok((validator, ValidatorEnd { end: ended }))
    }

    /// Verifies commands before they are proposed, in one batch with others that wait for that;
    /// returns the verdicts in the order of the commands.
    ///
    /// # Errors
    /// If the commands were not examined.
    pub async fn verify_each(
        &self,
        commands: Vec<Bytes>,
    ) -> Result<Vec<Result<Proposal<M::Command>, CommandFault>>, ProposeError> {
        let verified = self.admission.verify_commands(commands).await;
        let verified = verified.map_err(|AdmissionFull| ProposeError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })?;
        verified.ok_or(ProposeError::Stopped)
    }

    /// Replicates a verified command and returns the result of applying it. A command that the
    /// state refuses without any change stays out of the log; its result is the same.
    ///
    /// # Errors
    /// If there is no result; [`ProposeError`] says whether you can send it again.
    pub async fn propose(&self, command: Proposal<M::Command>) -> Result<Vec<u8>, ProposeError> {
        let results = self.propose_all(vec![command]).await?;
        results
            .into_iter()
            .next()
            .unwrap_or(Err(ProposeError::Stopped))
    }

    /// Replicates commands that arrived together and returns the result of each, once all are
    /// applied, or the state refuses all. The validator takes all of them, in this order, or none.
    ///
    /// # Errors
    /// If there is no result for any of them; [`ProposeError`] says whether you can send them
    /// again.
    pub async fn propose_all(
        &self,
        commands: Vec<Proposal<M::Command>>,
    ) -> Result<Vec<Result<Vec<u8>, ProposeError>>, ProposeError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        let count = commands.len();
        let input = Input::Propose { commands, reply };
        self.inputs.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => ProposeError::Busy {
                retry_after_ms: RETRY_AFTER_MS,
            },
            TrySendError::Closed(_) => ProposeError::Stopped,
        })?;
        let result = |result: Result<Vec<u8>, NoAnswer>| result.map_err(ProposeError::from);
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(Ok(results))) => Ok(results.into_iter().map(result).collect()),
            Ok(Ok(Err(refusal))) => Ok(vec![Err(to_propose_error(refusal)); count]),
            Ok(Err(_)) => Err(ProposeError::Stopped),
            Err(_) => Err(ProposeError::Timeout(self.patience)),
        }
    }

    /// Queries the machine and returns the answer with its age.
    ///
    /// # Errors
    /// If the query was not answered.
    pub async fn query_machine(
        &self,
        consistency: Consistency,
        question: M::Question,
    ) -> Result<(M::Reply, ReadMoment), QueryError> {
        let (reply, answer) = oneshot::channel();
        self.send_input(Input::Query {
            consistency,
            question,
            reply,
        })?;
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(QueryError::Stopped),
            Err(_) => Err(QueryError::Timeout(self.patience)),
        }
    }

    /// Returns the status of the replica.
    ///
    /// # Errors
    /// If the validator is not running, or too busy to answer.
    pub async fn status(&self) -> Result<Status, QueryError> {
        let (reply, answer) = oneshot::channel();
        self.send_input(Input::Status { reply })?;
        answer.await.map_err(|_| QueryError::Stopped)
    }

    /// Returns the number of inputs that wait for the task.
    #[must_use]
    pub fn queue_length(&self) -> usize {
        self.inputs.max_capacity() - self.inputs.capacity()
    }

    fn send_input(&self, input: Input<M>) -> Result<(), QueryError> {
        self.inputs.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => QueryError::Busy {
                retry_after_ms: RETRY_AFTER_MS,
            },
            TrySendError::Closed(_) => QueryError::Stopped,
        })
    }

    /// Queues a message from a peer; the transport must have authenticated `from`. Returns false if
    /// too much is waiting and the message was dropped; the peer will send it again.
    pub fn peer_message(&self, from: ReplicaId, bytes: Bytes) -> bool {
        self.inputs.try_send(Input::Peer { from, bytes }).is_ok()
    }

    /// Reports that the network cannot reach a peer: the replica then sends only enough to notice
    /// its return.
    pub fn report_unreachable(&self, peer: ReplicaId) {
        // If the task is too busy, the next report reaches it.
        let _busy = self.inputs.try_send(Input::Unreachable { peer });
    }

    /// Returns a receiver of every entry that is applied from now on. A watcher that falls behind
    /// learns how many it missed and must read the state again.
    #[must_use]
    pub fn watch_entries(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Returns a receiver of the last tree head that this validator reached by applying the log.
    fn watch_tips(&self) -> watch::Receiver<Option<Arc<TreeTip>>> {
        self.tips.clone()
    }

    /// Returns the folder of the history's tree.
    fn history_folder(&self) -> &HistoryFolder {
        &self.history
    }

    /// Returns the commands that settled receipts.
    fn settlements(&self) -> &Settlements {
        &self.settlements
    }

    /// Asks the task to stop; it first handles the inputs queued before.
    pub async fn stop(&self) {
        // The send fails only if the task has stopped; a full queue empties within a moment.
        let _stopped = self.inputs.send(Input::Stop).await;
    }
}

/// Converts a refusal by the replica's own queue.
fn to_propose_error(refused: ProposalRefusal) -> ProposeError {
    match refused {
        ProposalRefusal::Busy(_) => ProposeError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        },
        ProposalRefusal::TooLarge { bytes } => ProposeError::TooLarge { bytes },
    }
}

/// Opens a folder's store and decides how its replica begins.
fn begin<M: StateMachine<Command: Send>>(
    config: &ValidatorConfig,
    machine: M,
) -> Result<(Store<FolderDisk>, Replica<M>), ValidatorError> {
    let folder = config.folder.clone();
    let disk = FolderDisk::open(&folder)?;
    let (mut store, recovered) =
        Store::open(disk, config.store).map_err(|cause| ValidatorError::Open {
            folder: folder.clone(),
            cause,
        })?;
    let recovered = match (recovered, &config.beginning) {
        (Some(recovered), _) => recovered,
        (None, LogBeginning::NewGroup(members)) => store
            .bootstrap(Replica::genesis_snapshot(members, &machine))
            .map_err(|cause| ValidatorError::Write { folder, cause })?,
        (None, LogBeginning::Join) => store.empty_recovery(),
        (None, LogBeginning::Refuse) => return Err(ValidatorError::Empty(folder)),
    };
    if let Some((file, offset)) = &recovered.cut {
        tracing::info!(
            file,
            offset,
            "a write cut short by a crash was removed from the log"
        );
    }
    let verdicts = verify_all::<M>(&checks_of(&recovered.entries));
    let mut replica = Replica::new(config.replica.clone(), recovered, verdicts, machine)?;
    if let Some(received) = store.take_stored_parts() {
        tracing::info!(
            parts = received.parts.len(),
            index = %received.index,
            "found a partly received snapshot; requesting only its missing parts"
        );
        replica.resume_transfer(received);
    }
    Ok((store, replica))
}
