//! The validator: one task that owns a replica and the state machine, and a thread that owns its
//! log on disk.
//!
//! Everything that reaches it is one closed `Input` from one bounded channel; what that comes to is
//! decided by a core ([`souk_roles::validator::core`]), and carried out in its order. Callers hold
//! a [`Validator`], which only sends inputs and awaits answers. The exchange is asked questions of
//! a closed list, either after a ReadIndex round (linearizable) or at once (stale, with the age of
//! what it sees).

mod admission;
mod auditing;
mod backup_file;
mod callers;
pub mod exchange_machine;
pub mod gateway;
mod members;
pub mod node;
pub mod operator;
pub mod raft_link;
mod saving;
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
    Answer, AppliedEntry, COMMAND_BYTES_MAX, NoAnswer, Proposal, ProposalRefusal, StartError,
    Status,
};
use souk_consensus::store::StoreOpenError;
use souk_consensus::wal::WalError;
use souk_consensus::wire::Envelope;
use souk_consensus::{
    CommandFault, LogIndex, Replica, ReplicaConfig, ReplicaId, StateMachine, Store, StoreConfig,
};
use souk_roles::validator::action::ReplicaFailure;
pub use souk_roles::validator::event::{Consistency, ReadMoment};
pub use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{broadcast, mpsc, oneshot};

use admission::{Admission, AdmissionFull};
pub use auditing::{ValidatorAudit, ValidatorAuditError, audit};
pub use backup_file::BackupFault;
pub use members::MembersError;
pub use saving::{
    BackupError, RestoreBackupError, place_state, read_backup, restore_backup, write_backup,
};
use task::{Input, ValidatorTask};
use verifier::verify_all;
pub use views::ViewsError;

/// Inputs waiting for the task: some 0.1 s of work at full speed. More is answered "busy".
const INPUTS_MAX: usize = 16_384;

/// Notices a watcher may be behind before it is told how many it missed.
const NOTICES_MAX: usize = 4_096;

/// How a folder that was never used is begun.
#[derive(Clone, Debug)]
pub enum LogBeginning {
    /// As one of the first members of a new group; every member must be given the same list.
    Found(Vec<ReplicaId>),
    /// As a new replica that an existing group will add.
    Join,
    /// Not at all: the folder must hold a replica. A wiped one must not come back as itself.
    Refuse,
}

/// How a validator is set up.
#[derive(Clone, Debug)]
pub struct ValidatorConfig {
    /// The replica.
    pub replica: ReplicaConfig,
    /// Its folder: the log, snapshots, and the views that can be rebuilt.
    pub folder: PathBuf,
    /// What to do if the folder is empty.
    pub beginning: LogBeginning,
    /// Length of a tick.
    pub tick: Duration,
    /// Sizes on disk.
    pub store: StoreConfig,
    /// How long [`Validator::propose`] and [`Validator::query`] wait.
    pub patience: Duration,
}

impl ValidatorConfig {
    /// The defaults: a tick of 15 ms (elections after 300 to 600 ms), 10 s of patience.
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
    /// The folder's content.
    #[error("{}: {cause}", folder.display())]
    Open {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: StoreOpenError,
    },
    /// The folder holds no replica.
    #[error("{} holds no replica: found a group with it, or join one", .0.display())]
    Empty(PathBuf),
    /// The folder can't be written.
    #[error("{}: {cause}", folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// What failed.
        #[source]
        cause: WalError,
    },
    /// The replica refuses its own state.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The views can't even be rebuilt.
    #[error(transparent)]
    Views(#[from] ViewsError),
    /// The system.
    #[error("cannot begin: {0}")]
    System(#[from] std::io::Error),
}

/// Why a running validator stopped by itself. It must be started anew, from what the disk holds.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorFailure {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] WalError),
    /// The replica can't go on.
    #[error(transparent)]
    Replica(#[from] ReplicaFailure),
    /// It panicked: an invariant is broken.
    #[error("the validator panicked")]
    Panicked,
}

/// Why a command has no result.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was taken; the same command may be sent again.
    #[error("busy: too many commands are waiting; retry after {retry_after_ms} ms")]
    Busy {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// Nothing was taken, nor will be.
    #[error("a command of {bytes} bytes; at most {COMMAND_BYTES_MAX} are taken")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is not known whether it will be applied; sent again with the same nonce it is applied
    /// at most once.
    #[error("no answer within {0:?}: no leader, or no quorum; send it again with the same nonce")]
    Timeout(Duration),
    /// It was applied, but by a snapshot; its result must be looked up.
    #[error(transparent)]
    Unanswered(#[from] NoAnswer),
    /// The validator is not running.
    #[error("the validator has stopped")]
    Stopped,
}

/// Why a query has no answer.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum QueryError {
    /// Too much is waiting.
    #[error("busy: too many queries are waiting; retry after {retry_after_ms} ms")]
    Busy {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// No leader confirmed it.
    #[error("no answer within {0:?}: no leader, or no quorum; a stale read is still possible")]
    Timeout(Duration),
    /// The validator is not running.
    #[error("the validator has stopped")]
    Stopped,
}

/// What watchers are told.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An entry was applied.
    Applied(Arc<AppliedEntry>),
    /// A snapshot replaced the state: whatever was derived from it must be read anew.
    Installed(LogIndex),
}

/// Milliseconds a busy caller is asked to wait: about the time the queue takes to empty.
const RETRY_AFTER_MS: u64 = 100;

/// A running validator, for any number of callers.
pub struct Validator<M: AnsweringMachine> {
    admission: Admission<M>,
    inputs: mpsc::Sender<Input<M>>,
    notices: broadcast::Sender<Notice>,
    patience: Duration,
}

impl<M: AnsweringMachine> Clone for Validator<M> {
    fn clone(&self) -> Self {
        Self {
            admission: self.admission.clone(),
            inputs: self.inputs.clone(),
            notices: self.notices.clone(),
            patience: self.patience,
        }
    }
}

/// The end of a validator.
pub struct ValidatorEnd {
    end: oneshot::Receiver<Result<(), ValidatorFailure>>,
}

impl ValidatorEnd {
    /// Waits until the validator has stopped.
    ///
    /// # Errors
    /// Why, unless it was asked to.
    pub async fn wait(self) -> Result<(), ValidatorFailure> {
        self.end.await.unwrap_or(Err(ValidatorFailure::Panicked))
    }
}

impl<M: AnsweringMachine<Command: Send> + Send + 'static> Validator<M> {
    /// Opens the folder, recovers what it holds and starts the task, within a runtime. Messages for
    /// peers go to `outbound`; what does not fit is dropped, as a network may.
    ///
    /// # Errors
    /// When the folder can't be trusted or used; the message says what to do.
    pub fn start(
        config: &ValidatorConfig,
        machine: M,
        outbound: mpsc::Sender<Envelope>,
    ) -> Result<(Self, ValidatorEnd), ValidatorError> {
        let (inputs, inbox) = mpsc::channel(INPUTS_MAX);
        let (notices, _) = broadcast::channel(NOTICES_MAX);
        let task = ValidatorTask::open(config, machine, inbox, notices.clone(), outbound)?;
        let (end, ended) = oneshot::channel();
        // Where nobody waits for the end, nobody is told of it.
        tokio::spawn(async move { end.send(task.run().await) });
        let validator = Self {
            admission: Admission::start(config.replica.id)?,
            inputs,
            notices,
            patience: config.patience,
        };
        Ok((validator, ValidatorEnd { end: ended }))
    }

    /// Verifies commands that are to be proposed, together with what else waits for that; what is
    /// said of each is in their order.
    ///
    /// # Errors
    /// When they were not looked at.
    pub async fn verify_each(
        &self,
        commands: Vec<Bytes>,
    ) -> Result<Vec<Result<Proposal<M::Command>, CommandFault>>, ProposeError> {
        let verified = self.admission.verify(commands).await;
        let verified = verified.map_err(|AdmissionFull| ProposeError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })?;
        verified.ok_or(ProposeError::Stopped)
    }

    /// Replicates a verified command and returns what applying it gave.
    ///
    /// # Errors
    /// When there is no result; see [`ProposeError`] for what is known then.
    pub async fn propose(&self, command: Proposal<M::Command>) -> Result<Vec<u8>, ProposeError> {
        let results = self.propose_all(vec![command]).await?;
        results
            .into_iter()
            .next()
            .unwrap_or(Err(ProposeError::Stopped))
    }

    /// Replicates commands that came together and returns what applying each of them gave, once
    /// all were. They are taken in the order given, all or none.
    ///
    /// # Errors
    /// When there is no result for any of them; see [`ProposeError`] for what is known then.
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
        let result = |answer: Answer| answer.result.map_err(ProposeError::from);
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(Ok(answers))) => Ok(answers.into_iter().map(result).collect()),
            Ok(Ok(Err(refusal))) => Ok(vec![Err(refused(refusal)); count]),
            Ok(Err(_)) => Err(ProposeError::Stopped),
            Err(_) => Err(ProposeError::Timeout(self.patience)),
        }
    }

    /// Asks the machine, and says how old the answer is.
    ///
    /// # Errors
    /// When it was not asked.
    pub async fn query(
        &self,
        consistency: Consistency,
        question: M::Question,
    ) -> Result<(M::Reply, ReadMoment), QueryError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Input::Query {
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

    /// Where the replica stands.
    ///
    /// # Errors
    /// When the validator is not running, or too busy to say.
    pub async fn status(&self) -> Result<Status, QueryError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Input::Status { reply })?;
        answer.await.map_err(|_| QueryError::Stopped)
    }

    /// Inputs that wait for the task.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.inputs.max_capacity() - self.inputs.capacity()
    }

    fn ask(&self, input: Input<M>) -> Result<(), QueryError> {
        self.inputs.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => QueryError::Busy {
                retry_after_ms: RETRY_AFTER_MS,
            },
            TrySendError::Closed(_) => QueryError::Stopped,
        })
    }

    /// Hands over what a peer sent. `from` is whom the transport authenticated. False if it was
    /// dropped because too much is waiting; the peer will send again.
    pub fn peer_message(&self, from: ReplicaId, bytes: Bytes) -> bool {
        self.inputs.try_send(Input::Peer { from, bytes }).is_ok()
    }

    /// The network does not reach a peer: nothing more is sent to it than it takes to notice that
    /// it is back.
    pub fn unreachable(&self, peer: ReplicaId) {
        // A task that has too much to do hears of it the next time.
        let _busy = self.inputs.try_send(Input::Unreachable { peer });
    }

    /// From now on, every applied entry. A watcher that falls behind is told how many it missed
    /// and must read the state anew.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Asks the task to stop; what is queued before is still done.
    pub async fn stop(&self) {
        // A stopped task needs no asking; a full queue is emptied within a moment.
        let _stopped = self.inputs.send(Input::Stop).await;
    }
}

/// A proposal refused by the replica's own queue.
fn refused(refused: ProposalRefusal) -> ProposeError {
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
        (None, LogBeginning::Found(members)) => store
            .bootstrap(Replica::genesis(members, &machine))
            .map_err(|cause| ValidatorError::Write { folder, cause })?,
        (None, LogBeginning::Join) => store.join(),
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
    if let Some(received) = store.take_received() {
        tracing::info!(
            parts = received.parts.len(),
            index = %received.index,
            "a snapshot was on its way here; only the rest of it is asked for"
        );
        replica.resume(received);
    }
    Ok((store, replica))
}
