//! The task: events in, effects carried out in order.
//!
//! It runs among the network's tasks, so that a message and what follows from it cross no thread;
//! only the disk has a thread of its own, for which it waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_consensus::replica::{
    ChangeError, MemberChange, Outcome, Proposal, ReadTicket, Status, Work,
};
use souk_consensus::wire::Envelope;
use souk_consensus::{Check, LogTime, Replica, ReplicaId, Snapshot, Verdict};
use souk_roles::validator::questions::Questioned;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::storage::Storage;
use super::verifier::Verifier;
use super::views::Views;
use super::waiting::{PendingProposals, Reply};
use super::{
    Consistency, Notice, ProposeError, ReadMoment, ValidatorConfig, ValidatorError,
    ValidatorFailure, begin, refused,
};

/// Events taken in before effects are carried out: they share one sync.
const ROUND_EVENTS_MAX: usize = 4_096;

/// Ticks made up for after the task was held up; more would only start needless elections.
const LATE_TICKS_MAX: u32 = 4;

/// How long a leader waits for more commands before it sends messages that only say what is
/// committed: some round trips of a client that answers at once.
const COMMIT_PAUSE: Duration = Duration::from_millis(2);

/// What is asked of the machine, and where the answer goes.
pub(super) struct Query<M: Questioned> {
    pub(super) question: M::Question,
    pub(super) reply: oneshot::Sender<(M::Reply, ReadMoment)>,
}

/// Everything that can happen to a validator.
pub(super) enum Event<M: Questioned> {
    /// A peer sent something.
    Peer { from: ReplicaId, bytes: Bytes },
    /// Commands are to be replicated.
    Propose {
        commands: Vec<Proposal<M::Command>>,
        reply: Reply,
    },
    /// The network does not reach a peer.
    Unreachable { peer: ReplicaId },
    /// The machine is to be read.
    Query {
        consistency: Consistency,
        query: Query<M>,
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

/// What the task waits for.
enum Occurrence<M: Questioned> {
    /// Something came, or nobody is left that could send something.
    Event(Option<Event<M>>),
    /// A check has ended.
    Verdict(Verdict<M::Command>),
}

/// What the task owns.
pub(super) struct ValidatorTask<M: Questioned> {
    replica: Replica<M>,
    storage: Storage,
    views: Views,
    verifier: Verifier<M::Command>,
    inbox: mpsc::Receiver<Event<M>>,
    notices: broadcast::Sender<Notice>,
    outbound: mpsc::Sender<Envelope>,
    proposals: PendingProposals,
    queries: HashMap<ReadTicket, Query<M>>,
    tick: Duration,
    next_tick: Instant,
    heard_at: Instant,
}

impl<M: Questioned<Command: Send> + 'static> ValidatorTask<M> {
    pub(super) fn open(
        config: &ValidatorConfig,
        machine: M,
        inbox: mpsc::Receiver<Event<M>>,
        notices: broadcast::Sender<Notice>,
        outbound: mpsc::Sender<Envelope>,
    ) -> Result<Self, ValidatorError> {
        let (store, replica) = begin(config, machine)?;
        let views = Views::open(&config.folder.join("views"))?;
        let now = Instant::now();
        Ok(Self {
            replica,
            storage: Storage::start(config.replica.id, store)?,
            views,
            verifier: Verifier::start::<M>(config.replica.id)?,
            inbox,
            notices,
            outbound,
            proposals: PendingProposals::default(),
            queries: HashMap::new(),
            tick: config.tick,
            next_tick: now + config.tick,
            heard_at: now,
        })
    }

    /// Runs until it is told to stop, or the disk fails; then nothing of the folder is held.
    pub(super) async fn run(mut self) -> Result<(), ValidatorFailure> {
        let ended = self.go_on().await;
        self.storage.close().await;
        ended
    }

    async fn go_on(&mut self) -> Result<(), ValidatorFailure> {
        loop {
            let deadline = self.deadline();
            let happened = async {
                tokio::select! {
                    event = self.inbox.recv() => Ok(Occurrence::Event(event)),
                    verdict = self.verifier.next() => verdict.map(Occurrence::Verdict),
                }
            };
            let running = match timeout_at(deadline, happened).await {
                Ok(happened) => {
                    let running = self.on_happened(happened?);
                    // What came with it from the network shares its sync: the tasks that bring it
                    // are to run first.
                    tokio::task::yield_now().await;
                    running && self.on_waiting_events()
                }
                Err(_) => {
                    self.replica.tell_commit();
                    true
                }
            };
            self.on_time();
            self.on_verdicts();
            while let Some(work) = self.replica.take_work(now()) {
                self.carry_out(work).await?;
                self.on_verdicts();
            }
            if let Some(divergence) = self.replica.compare_checkpoints() {
                return Err(divergence.into());
            }
            if !running {
                return Ok(());
            }
        }
    }

    /// False when it is over.
    fn on_happened(&mut self, happened: Occurrence<M>) -> bool {
        match happened {
            Occurrence::Event(event) => event.is_some_and(|event| self.on_event(event)),
            Occurrence::Verdict(verdict) => {
                self.on_verdict(verdict);
                true
            }
        }
    }

    fn on_verdicts(&mut self) {
        while let Some(verdict) = self.verifier.try_next() {
            self.on_verdict(verdict);
        }
    }

    fn on_verdict(&mut self, verdict: Verdict<M::Command>) {
        if let Err(forgery) = self.replica.on_verified(now(), verdict) {
            tracing::error!(%forgery, "refused, and not acknowledged");
        }
    }

    /// Until when to wait for an event.
    fn deadline(&self) -> Instant {
        if self.replica.owes_commit() {
            self.next_tick.min(Instant::now() + COMMIT_PAUSE)
        } else {
            self.next_tick
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
                query,
            } => self.answer(query),
            Event::Query {
                consistency: Consistency::Linearizable,
                query,
            } => self.on_read(query),
            // A caller that no longer waits is no error, here and below.
            Event::Status { reply } => drop(reply.send(self.replica.status())),
            Event::Members { changes, reply } => {
                drop(reply.send(self.replica.change_members(&changes)));
            }
            Event::Transfer { to } => self.replica.transfer_leader(to),
            Event::Backup { reply } => drop(reply.send(self.replica.snapshot())),
            Event::Unreachable { peer } => self.replica.on_unreachable(peer),
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

    fn on_propose(&mut self, commands: Vec<Proposal<M::Command>>, reply: Reply) {
        let count = commands.len();
        match self.replica.propose_all(commands) {
            Ok(first) => self.proposals.insert(first, count, reply),
            Err(error) => drop(reply.send(vec![Err(refused(error)); count])),
        }
    }

    /// A read that finds the queue full is dropped, which its caller sees as no answer.
    fn on_read(&mut self, query: Query<M>) {
        if let Ok(ticket) = self.replica.read() {
            self.queries.insert(ticket, query);
        }
    }

    fn answer(&self, query: Query<M>) {
        let leads = self.replica.is_leader();
        let age = if leads {
            Duration::ZERO
        } else {
            self.heard_at.elapsed()
        };
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let (applied, time) = (self.replica.applied(), self.replica.time());
        let seen = ReadMoment {
            applied,
            time,
            age_ms,
        };
        let answer = self.replica.machine().answer(query.question);
        // A caller that no longer waits is no error.
        let _gone = query.reply.send((answer, seen));
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

    async fn carry_out(&mut self, mut work: Work) -> Result<(), ValidatorFailure> {
        self.send(std::mem::take(&mut work.send_first));
        let at_hand = self.verifier.begin(std::mem::take(&mut work.checks));
        // The disk's thread has its work before the checks at hand begin.
        let checked = async { Check::run_all::<M>(&at_hand) };
        let (persisted, verdicts) = tokio::join!(self.storage.persist(work), checked);
        let mut work = persisted?;
        self.send(std::mem::take(&mut work.send_after));
        let outcome = self.replica.persisted(work)?;
        for verdict in verdicts {
            self.on_verdict(verdict);
        }
        if let Some(snapshot) = self.on_outcome(outcome) {
            self.keep(snapshot).await?;
        }
        Ok(())
    }

    /// Carries out what needs no disk; a snapshot that is to be kept is returned.
    fn on_outcome(&mut self, outcome: Outcome) -> Option<Snapshot> {
        self.send(outcome.send);
        for answer in outcome.answers {
            let result = answer.result.map_err(ProposeError::from);
            self.proposals.on_answer(answer.ticket, result);
        }
        for ticket in outcome.reads {
            if let Some(query) = self.queries.remove(&ticket) {
                self.answer(query);
            }
        }
        self.views.on_checkpoints(&outcome.checkpoints);
        if let Some(index) = outcome.installed {
            drop(self.notices.send(Notice::Installed(index)));
        }
        if let Some(forgery) = outcome.forgery {
            tracing::error!(%forgery, "refused, and not acknowledged");
        }
        for applied in outcome.applied {
            drop(self.notices.send(Notice::Applied(Arc::new(applied))));
        }
        outcome.snapshot
    }

    async fn keep(&mut self, snapshot: Snapshot) -> Result<(), ValidatorFailure> {
        let (snapshot, keep_from) = self.storage.keep(snapshot).await?;
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
    LogTime(crate::clock::unix_ms())
}
