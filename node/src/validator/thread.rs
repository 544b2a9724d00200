//! The thread: events in, effects carried out in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use souk_consensus::disk::FolderDisk;
use souk_consensus::replica::{ChangeError, MemberChange, Outcome, ReadTicket, Status, Work};
use souk_consensus::wire::Envelope;
use souk_consensus::{LogTime, Replica, ReplicaId, Snapshot, StateMachine, Store};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::behind::Behind;
use super::views::Views;
use super::waiting::{Reply, Waiting};
use super::{
    Consistency, Notice, ProposeError, Seen, ValidatorConfig, ValidatorError, ValidatorFailure,
    begin, refused,
};

/// Events taken in before effects are carried out: they share one sync.
const ROUND_EVENTS_MAX: usize = 4_096;

/// Ticks made up for after the thread was held up; more would only start needless elections.
const LATE_TICKS_MAX: u32 = 4;

/// How long a leader waits for more commands before it sends messages that only say what is
/// committed: some round trips of a client that answers at once.
const COMMIT_PAUSE: Duration = Duration::from_millis(2);

/// A closure that reads the machine and answers its caller.
pub(super) type Job<M> = Box<dyn FnOnce(&M, Seen) + Send>;

/// Everything that can happen to a validator.
pub(super) enum Event<M> {
    /// A peer sent something.
    Peer { from: ReplicaId, bytes: Bytes },
    /// Commands are to be replicated.
    Propose { commands: Vec<Bytes>, reply: Reply },
    /// The machine is to be read.
    Query {
        consistency: Consistency,
        job: Job<M>,
    },
    /// Someone wants to know where the replica stands.
    Status { reply: oneshot::Sender<Status> },
    /// The members are to change.
    Members {
        changes: Vec<MemberChange>,
        reply: oneshot::Sender<Result<(), ChangeError>>,
    },
    /// Another voter is to lead.
    Transfer { to: ReplicaId },
    /// The state is to be saved outside.
    Backup { reply: oneshot::Sender<Snapshot> },
    /// It is over.
    Stop,
}

/// What the thread owns.
pub(super) struct Thread<M> {
    replica: Replica<M>,
    store: Store<FolderDisk>,
    views: Views,
    behind: Behind,
    /// Snapshots that somebody wants and that are not verified yet, oldest first.
    backups: Vec<(Snapshot, oneshot::Sender<Snapshot>)>,
    inbox: Receiver<Event<M>>,
    notices: broadcast::Sender<Notice>,
    outbound: mpsc::Sender<Envelope>,
    proposals: Waiting,
    queries: HashMap<ReadTicket, Job<M>>,
    tick: Duration,
    next_tick: Instant,
    heard_at: Instant,
}

impl<M: StateMachine> Thread<M> {
    pub(super) fn open(
        config: &ValidatorConfig,
        machine: M,
        inbox: Receiver<Event<M>>,
        notices: broadcast::Sender<Notice>,
        outbound: mpsc::Sender<Envelope>,
    ) -> Result<Self, ValidatorError> {
        let (store, replica) = begin(config, machine)?;
        let views = Views::open(&config.folder.join("views"))?;
        let applied = replica.applied();
        let now = Instant::now();
        Ok(Self {
            replica,
            store,
            views,
            behind: Behind::start::<M>(config, applied)?,
            backups: Vec::new(),
            inbox,
            notices,
            outbound,
            proposals: Waiting::default(),
            queries: HashMap::new(),
            tick: config.tick,
            next_tick: now + config.tick,
            heard_at: now,
        })
    }

    /// Runs until it is told to stop, or the disk fails.
    pub(super) fn run(mut self) -> Result<(), ValidatorFailure> {
        loop {
            let running = match self.inbox.recv_timeout(self.wait()) {
                Ok(event) => self.on_event(event) && self.on_waiting_events(),
                Err(RecvTimeoutError::Timeout) => {
                    self.replica.tell_commit();
                    true
                }
                Err(RecvTimeoutError::Disconnected) => false,
            };
            self.on_time();
            self.vouch()?;
            while let Some(work) = self.replica.take_work(now()) {
                self.carry_out(work)?;
                self.vouch()?;
            }
            if let Some(divergence) = self.replica.compare_checkpoints() {
                return Err(divergence.into());
            }
            if !running {
                return Ok(());
            }
        }
    }

    /// How long to wait for an event.
    fn wait(&self) -> Duration {
        let wait = self.next_tick.saturating_duration_since(Instant::now());
        if self.replica.owes_commit() {
            wait.min(COMMIT_PAUSE)
        } else {
            wait
        }
    }

    fn on_waiting_events(&mut self) -> bool {
        for _ in 1..ROUND_EVENTS_MAX {
            let running = match self.inbox.try_recv() {
                Ok(event) => self.on_event(event),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => false,
            };
            if !running {
                return false;
            }
        }
        true
    }

    /// False when it is over.
    fn on_event(&mut self, event: Event<M>) -> bool {
        match event {
            Event::Peer { from, bytes } => self.on_peer(from, bytes),
            Event::Propose { commands, reply } => self.on_propose(commands, reply),
            Event::Query {
                consistency: Consistency::Stale,
                job,
            } => self.answer(job),
            Event::Query {
                consistency: Consistency::Linearizable,
                job,
            } => self.on_read(job),
            // A caller that no longer waits is no error, here and below.
            Event::Status { reply } => drop(reply.send(self.replica.status())),
            Event::Members { changes, reply } => {
                drop(reply.send(self.replica.change_members(&changes)));
            }
            Event::Transfer { to } => self.replica.transfer_leader(to),
            Event::Backup { reply } => self.backups.push((self.replica.snapshot(), reply)),
            Event::Stop => return false,
        }
        true
    }

    fn on_peer(&mut self, from: ReplicaId, bytes: Bytes) {
        let stepped = self.replica.step(now(), from, bytes);
        if let Err(error) = stepped {
            tracing::debug!(%from, %error, "a peer's message was dropped");
        }
        if self.replica.leader() == Some(from) {
            self.heard_at = Instant::now();
        }
    }

    fn on_propose(&mut self, commands: Vec<Bytes>, reply: Reply) {
        let count = commands.len();
        match self.replica.propose_all(commands) {
            Ok(first) => self.proposals.insert(first, count, reply),
            Err(error) => drop(reply.send(vec![Err(refused(error)); count])),
        }
    }

    /// A read that finds the queue full is dropped, which its caller sees as no answer.
    fn on_read(&mut self, job: Job<M>) {
        if let Ok(ticket) = self.replica.read() {
            self.queries.insert(ticket, job);
        }
    }

    fn answer(&self, job: Job<M>) {
        let leads = self.replica.is_leader();
        let age = if leads {
            Duration::ZERO
        } else {
            self.heard_at.elapsed()
        };
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let (applied, time) = (self.replica.applied(), self.replica.time());
        job(
            self.replica.machine(),
            Seen {
                applied,
                time,
                age_ms,
            },
        );
    }

    fn on_time(&mut self) {
        for _ in 0..LATE_TICKS_MAX {
            if Instant::now() < self.next_tick {
                return;
            }
            self.replica.tick(now());
            self.next_tick += self.tick;
        }
        self.next_tick = Instant::now() + self.tick;
    }

    fn carry_out(&mut self, mut work: Work) -> Result<(), ValidatorFailure> {
        self.send(std::mem::take(&mut work.send_first));
        self.store.persist(&work.persist)?;
        self.send(std::mem::take(&mut work.send_after));
        let outcome = self.replica.persisted(work)?;
        self.on_outcome(outcome)
    }

    fn on_outcome(&mut self, outcome: Outcome) -> Result<(), ValidatorFailure> {
        self.send(outcome.send);
        for answer in outcome.answers {
            let result = answer.result.map_err(ProposeError::from);
            self.proposals.on_answer(answer.ticket, result);
        }
        for ticket in outcome.reads {
            if let Some(job) = self.queries.remove(&ticket) {
                self.answer(job);
            }
        }
        self.views.on_checkpoints(&outcome.checkpoints);
        if let Some(index) = outcome.installed {
            drop(self.notices.send(Notice::Installed(index)));
        }
        for applied in outcome.applied {
            self.behind.on_applied(&applied);
            drop(self.notices.send(Notice::Applied(Arc::new(applied))));
        }
        if let Some(snapshot) = outcome.snapshot {
            self.keep(snapshot)?;
        }
        Ok(())
    }

    /// Tells the replica how far verification has come.
    fn vouch(&mut self) -> Result<(), ValidatorFailure> {
        let verified = self.behind.verified(self.replica.applied())?;
        self.replica.on_verified(verified);
        let ready = self.backups.partition_point(|(it, _)| it.index <= verified);
        for (snapshot, reply) in self.backups.drain(..ready) {
            // A caller that no longer waits is no error.
            drop(reply.send(snapshot));
        }
        Ok(())
    }

    fn keep(&mut self, snapshot: Snapshot) -> Result<(), ValidatorFailure> {
        self.store.save_snapshot(&snapshot)?;
        let keep_from = self.store.release()?;
        self.replica.compact(snapshot, keep_from);
        self.views.sync();
        Ok(())
    }

    fn send(&mut self, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            let to = envelope.to;
            if self.outbound.try_send(envelope).is_err() {
                tracing::debug!(%to, "a message to a peer was dropped: too many are waiting");
            }
        }
    }
}

/// The local clock.
fn now() -> LogTime {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    LogTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
