//! Verifies commands before this validator proposes them, so that no invalid one takes a place in
//! the log.
//!
//! Signatures cost less in a batch: commands that arrive during a verification wait for it, and are
//! then verified as one batch. The caller verifies a few commands that arrive alone, because waking
//! a thread takes about as long as that.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use souk_consensus::replica::Proposal;
use souk_consensus::{CommandFault, ReplicaId, StateMachine};
use tokio::sync::oneshot;

/// Commands that can wait: half a second's work. A caller beyond that gets "busy".
const WAITING_MAX: usize = 16_384;

/// Commands verified in one batch: less than a millisecond's work. Larger batches are no cheaper,
/// and delay the followers, who verify the admitted commands.
const TOGETHER_MAX: usize = 48;

/// If no more commands than these arrive, the caller verifies them itself.
const AT_HAND_MAX: usize = 2;

/// The verdicts on commands of one request, in their order.
pub(super) type AdmissionResults<C> = Vec<Result<Proposal<C>, CommandFault>>;

/// The error if too many commands already wait for verification.
pub(super) struct AdmissionFull;

/// The commands of one request, whose sender waits for the verdicts.
struct Applicant<C> {
    commands: Vec<Bytes>,
    reply: oneshot::Sender<AdmissionResults<C>>,
}

/// The requests that wait.
struct Queue<C> {
    applicants: Vec<Applicant<C>>,
    commands: usize,
}

impl<C> Queue<C> {
    /// Takes the first requests, up to the size of a batch.
    fn take_batch(&mut self) -> Vec<Applicant<C>> {
        let mut commands = 0;
        let mut count = 0;
        while let Some(next) = self.applicants.get(count)
            && commands < TOGETHER_MAX
        {
            commands += next.commands.len();
            count += 1;
        }
        self.commands -= commands;
        self.applicants.drain(..count).collect()
    }

    fn take_all(&mut self) -> Vec<Applicant<C>> {
        self.commands = 0;
        std::mem::take(&mut self.applicants)
    }
}

/// The queue of commands to verify, and the thread that does it.
pub(super) struct Admission<M: StateMachine> {
    queue: Arc<Mutex<Queue<M::Command>>>,
    /// Wakes the thread; one token is enough, because the thread then takes all that wait.
    wake: SyncSender<()>,
}

impl<M: StateMachine> Clone for Admission<M> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<M: StateMachine<Command: Send> + 'static> Admission<M> {
    /// Starts the thread; it ends when the last handle is dropped.
    pub(super) fn start(id: ReplicaId) -> std::io::Result<Self> {
        let queue = Arc::new(Mutex::new(Queue {
            applicants: Vec::new(),
            commands: 0,
        }));
        let (wake, awoken) = sync_channel(1);
        let admission = Self {
            queue: queue.clone(),
            wake,
        };
        std::thread::Builder::new()
            .name(format!("admit-{id}"))
            .spawn(move || run_admission::<M>(&queue, &awoken))?;
        Ok(admission)
    }

    /// Verifies commands and returns the verdicts in their order, or none if the thread has ended.
    pub(super) async fn verify_commands(
        &self,
        commands: Vec<Bytes>,
    ) -> Result<Option<AdmissionResults<M::Command>>, AdmissionFull> {
        let (reply, answer) = oneshot::channel();
        self.queue_up(Applicant { commands, reply })?;
        // Other tasks may hold commands that the network delivered at the same time: they must run
        // first, to join this batch.
        tokio::task::yield_now().await;
        verify_together::<M>(self.take_at_hand());
        Ok(answer.await.ok())
    }

    fn queue_up(&self, applicant: Applicant<M::Command>) -> Result<(), AdmissionFull> {
        let mut queue = lock(&self.queue);
        if queue.commands >= WAITING_MAX {
            return Err(AdmissionFull);
        }
        queue.commands += applicant.commands.len();
        queue.applicants.push(applicant);
        Ok(())
    }

    /// Takes all commands that wait if they are few; otherwise leaves them to the thread.
    fn take_at_hand(&self) -> Vec<Applicant<M::Command>> {
        let mut queue = lock(&self.queue);
        if queue.commands <= AT_HAND_MAX {
            return queue.take_all();
        }
        // A token from before wakes the thread as well. If it has ended, no command will get an
        // answer.
        if let Err(TrySendError::Disconnected(())) = self.wake.try_send(()) {
            drop(queue.take_all());
        }
        Vec::new()
    }
}

fn lock<C>(queue: &Mutex<Queue<C>>) -> MutexGuard<'_, Queue<C>> {
    // No code under this lock panics half-way through a change.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_admission<M: StateMachine>(queue: &Mutex<Queue<M::Command>>, awoken: &Receiver<()>) {
    while awoken.recv().is_ok() {
        loop {
            let applicants = lock(queue).take_batch();
            if applicants.is_empty() {
                break;
            }
            verify_together::<M>(applicants);
        }
    }
}

fn verify_together<M: StateMachine>(applicants: Vec<Applicant<M::Command>>) {
    let counts: Vec<usize> = applicants.iter().map(|it| it.commands.len()).collect();
    let (commands, replies): (Vec<_>, Vec<_>) = applicants
        .into_iter()
        .map(|it| (it.commands, it.reply))
        .unzip();
    let mut verified = Proposal::verify_commands::<M>(commands.concat()).into_iter();
    for (count, reply) in counts.into_iter().zip(replies) {
        // The send fails only if the caller no longer waits.
        let _gone = reply.send(verified.by_ref().take(count).collect());
    }
}
