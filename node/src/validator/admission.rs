//! Verifies what this validator is asked to propose, before it may take a place in the log.
//!
//! Signatures cost less together: commands that come while others are verified wait for them, and
//! are then verified as one. A few that come alone are verified where they are, since a thread
//! takes about as long to wake and to answer.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use souk_consensus::replica::Proposal;
use souk_consensus::{CommandFault, ReplicaId, StateMachine};
use tokio::sync::oneshot;

/// Commands that may wait: half a second's work. More is answered "busy".
const WAITING_MAX: usize = 16_384;

/// Commands verified together: less than a millisecond's work. More do not get cheaper, and the
/// followers, who verify what is admitted, would wait.
const TOGETHER_MAX: usize = 48;

/// Commands that are verified by who asks.
const AT_HAND_MAX: usize = 2;

/// What is said of commands that were asked about together, in their order.
pub(super) type AdmissionResults<C> = Vec<Result<Proposal<C>, CommandFault>>;

/// Too many commands wait.
pub(super) struct AdmissionFull;

/// Commands whose sender waits for what is said of them.
struct Applicant<C> {
    commands: Vec<Bytes>,
    reply: oneshot::Sender<AdmissionResults<C>>,
}

/// All that wait.
struct Queue<C> {
    applicants: Vec<Applicant<C>>,
    commands: usize,
}

impl<C> Queue<C> {
    /// The first ones, as many as are verified together.
    fn take(&mut self) -> Vec<Applicant<C>> {
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

/// See the module.
pub(super) struct Admission<M: StateMachine> {
    queue: Arc<Mutex<Queue<M::Command>>>,
    /// Wakes the thread; one token is enough, since it then takes all that wait.
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
    /// Starts the thread; it ends with the last of those who may ask.
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
            .spawn(move || admit::<M>(&queue, &awoken))?;
        Ok(admission)
    }

    /// Verifies commands; what is said of each is in their order. Nothing is said if the thread has
    /// ended.
    pub(super) async fn verify(
        &self,
        commands: Vec<Bytes>,
    ) -> Result<Option<AdmissionResults<M::Command>>, AdmissionFull> {
        let (reply, answer) = oneshot::channel();
        self.queue_up(Applicant { commands, reply })?;
        // What came with it from the network is verified with it: its tasks are to run first.
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

    /// All that waits if it is little; more is left to the thread.
    fn take_at_hand(&self) -> Vec<Applicant<M::Command>> {
        let mut queue = lock(&self.queue);
        if queue.commands <= AT_HAND_MAX {
            return queue.take_all();
        }
        // A token that is there already wakes it as well. If it has ended, nobody is answered.
        if let Err(TrySendError::Disconnected(())) = self.wake.try_send(()) {
            drop(queue.take_all());
        }
        Vec::new()
    }
}

fn lock<C>(queue: &Mutex<Queue<C>>) -> MutexGuard<'_, Queue<C>> {
    // Each change under this lock is whole before anything can panic.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn admit<M: StateMachine>(queue: &Mutex<Queue<M::Command>>, awoken: &Receiver<()>) {
    while awoken.recv().is_ok() {
        loop {
            let applicants = lock(queue).take();
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
    let mut verified = Proposal::verify_each::<M>(commands.concat()).into_iter();
    for (count, reply) in counts.into_iter().zip(replies) {
        // One that no longer waits is no error.
        let _gone = reply.send(verified.by_ref().take(count).collect());
    }
}
