//! Verifies the signatures in entries that other validators admitted, on a thread of its own, while
//! the disk writes the entries.
//!
//! Checks must be submitted in the order of the log, and their verdicts return in the same order.
//! The validator's task never waits to submit a check: checks that do not fit into the thread's
//! queue wait in this handle. The log bounds their number.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use souk_consensus::{Check, ReplicaId, StateMachine, Verdict};
use tokio::sync::mpsc;

use super::ValidatorFailure;

/// Checks and verdicts in the queues: as many as entries of a round.
const ON_THE_WAY_MAX: usize = 256;

/// Commands that the task verifies itself while it waits for the disk: this takes less time than a
/// sync, or than waking another thread.
const AT_HAND_MAX: usize = 4;

/// Commands of waiting checks that are verified in one batch: larger ones are no cheaper.
const TOGETHER_MAX: usize = 48;

/// The handle by which the validator's task submits checks and receives verdicts.
pub(super) struct Verifier<C> {
    waiting: VecDeque<Check>,
    checks: SyncSender<Check>,
    verdicts: mpsc::Receiver<Verdict<C>>,
}

impl<C: Send + 'static> Verifier<C> {
    /// Starts the thread.
    pub(super) fn start<M>(id: ReplicaId) -> std::io::Result<Self>
    where
        M: StateMachine<Command = C>,
    {
        let (checks, inbox) = sync_channel(ON_THE_WAY_MAX);
        let (outbox, verdicts) = mpsc::channel(ON_THE_WAY_MAX);
        std::thread::Builder::new()
            .name(format!("verify-{id}"))
            .spawn(move || verify_checks::<M>(&inbox, &outbox))?;
        Ok(Self {
            waiting: VecDeque::new(),
            checks,
            verdicts,
        })
    }

    /// Submits the checks of a round, and returns those that the task should run itself if they are
    /// few.
    pub(super) fn submit_checks(&mut self, checks: Vec<Check>) -> Vec<Check> {
        let commands: usize = checks.iter().map(|check| check.commands.len()).sum();
        if commands <= AT_HAND_MAX {
            return checks;
        }
        self.waiting.extend(checks);
        self.hand_over();
        Vec::new()
    }

    fn hand_over(&mut self) {
        while let Some(check) = self.waiting.pop_front() {
            match self.checks.try_send(check) {
                Ok(()) => {}
                Err(TrySendError::Full(check)) => return self.waiting.push_front(check),
                // The task learns that the thread has ended when it waits for the verdict.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Waits for the next verdict.
    pub(super) async fn next(&mut self) -> Result<Verdict<C>, ValidatorFailure> {
        let verdict = self.verdicts.recv().await;
        self.hand_over();
        verdict.ok_or(ValidatorFailure::Panicked)
    }

    /// Returns the next verdict if there is one.
    pub(super) fn try_next(&mut self) -> Option<Verdict<C>> {
        let verdict = self.verdicts.try_recv().ok();
        self.hand_over();
        verdict
    }
}

fn verify_checks<M: StateMachine>(
    inbox: &Receiver<Check>,
    outbox: &mpsc::Sender<Verdict<M::Command>>,
) {
    while let Ok(check) = inbox.recv() {
        // Signatures cost less in a batch.
        let mut commands = check.commands.len();
        let mut together = vec![check];
        while commands < TOGETHER_MAX
            && let Ok(check) = inbox.try_recv()
        {
            commands += check.commands.len();
            together.push(check);
        }
        for verdict in Check::run_all::<M>(&together) {
            if outbox.blocking_send(verdict).is_err() {
                return;
            }
        }
    }
}

/// Verifies entries found on disk, on all cores, before anything depends on them.
pub(super) fn verify_all<M>(checks: &[Check]) -> Vec<Verdict<M::Command>>
where
    M: StateMachine<Command: Send>,
{
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = checks.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = checks
            .chunks(share)
            .map(|part| scope.spawn(move || Check::run_all::<M>(part)))
            .collect();
        let verdicts = parts.into_iter().map(|part| part.join());
        verdicts
            .flat_map(|part| part.expect("a check does not panic"))
            .collect()
    })
}
