//! Runs a validator's *shell*: the task that passes events to the validator's *core* (the state
//! machine that decides) and carries out the effects that the core requests, in order.
//!
//! The task runs among the network's tasks, so that a message and its consequences cross no thread.
//! Only the disk has its own thread, for which the task waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use souk_consensus::replica::{ChangeError, MemberChange, Proposal, RoundWork, Status};
use souk_consensus::wire::Envelope;
use souk_consensus::{Check, ReplicaId, Snapshot, TreeTip, Verdict};
use souk_market::Millis;
use souk_roles::clock::{Micros, Now};
use souk_roles::validator::action::{Action, Report, RoundResults};
use souk_roles::validator::core::ValidatorCore;
use souk_roles::validator::event::{Consistency, Event, ReadMoment};
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::timeout_at;

use super::callers::{Callers, ProposalEnd, WaitingCaller};
use super::history_folder::HistoryFolder;
use super::settlements::Settlements;
use super::storage::Storage;
use super::verifier::Verifier;
use super::views::Views;
use super::{Notice, ValidatorConfig, ValidatorError, ValidatorFailure, begin};

/// The most inputs of a round; they share one sync.
const ROUND_INPUTS_MAX: usize = 4_096;

/// Every input of a validator.
pub(super) enum Input<M: AnsweringMachine> {
    /// A message from a peer.
    Peer { from: ReplicaId, bytes: Bytes },
    /// Commands to replicate.
    Propose {
        commands: Vec<Proposal<M::Command>>,
        reply: oneshot::Sender<ProposalEnd>,
    },
    /// The network cannot reach a peer.
    Unreachable { peer: ReplicaId },
    /// A query of the machine.
    Query {
        consistency: Consistency,
        question: M::Question,
        reply: oneshot::Sender<(M::Reply, ReadMoment)>,
    },
    /// A request for the status of the replica.
    Status { reply: oneshot::Sender<Status> },
    /// A change of the members.
    Members {
        changes: Vec<MemberChange>,
        reply: oneshot::Sender<Result<(), ChangeError>>,
    },
    /// A transfer of the leadership.
    Transfer { to: ReplicaId },
    /// A request for the state, to save it outside.
    Backup { reply: oneshot::Sender<Snapshot> },
    /// The validator must stop.
    Stop,
}

/// The events that the task waits for.
enum Occurrence<M: AnsweringMachine> {
    /// An input, or none when every sender is gone.
    Input(Option<Input<M>>),
    /// The verdict of a check.
    Verdict(Verdict<M::Command>),
}

/// The channels on which the task reports applied entries and tree heads.
pub(super) struct Followers {
    /// Every applied entry.
    pub(super) notices: broadcast::Sender<Notice>,
    /// The last tree head reached.
    pub(super) tip: watch::Sender<Option<Arc<TreeTip>>>,
}

/// The state of the task that runs a validator.
pub(super) struct ValidatorTask<M: AnsweringMachine> {
    core: ValidatorCore<M>,
    callers: Callers<M>,
    storage: Storage,
    views: Views,
    /// The commands that settled receipts.
    settlements: Settlements,
    verifier: Verifier<M::Command>,
    /// Checks of this round that the task runs itself, in parallel with the disk.
    at_hand: Vec<Check>,
    inbox: mpsc::Receiver<Input<M>>,
    followers: Followers,
    outbound: mpsc::Sender<Envelope>,
    /// The start of the core's time.
    began: Instant,
}

impl<M: AnsweringMachine<Command: Send> + 'static> ValidatorTask<M> {
    pub(super) fn open_task(
        config: &ValidatorConfig,
        machine: M,
        inbox: mpsc::Receiver<Input<M>>,
        followers: Followers,
        outbound: mpsc::Sender<Envelope>,
    ) -> Result<Self, ValidatorError> {
        let (store, replica) = begin(config, machine)?;
        let views = Views::open_folder(&config.folder.join("views"))?;
        let settlements = Settlements::open_folder(&config.folder.join("settlements"))?;
        let began = Instant::now();
        Ok(Self {
            core: ValidatorCore::new(replica, Micros::from(config.tick), core_now(began)),
            callers: Callers::new(),
            storage: Storage::start(
                config.replica.id,
                store,
                HistoryFolder::in_replica(&config.folder),
            )?,
            views,
            settlements,
            verifier: Verifier::start::<M>(config.replica.id)?,
            at_hand: Vec::new(),
            inbox,
            followers,
            outbound,
            began,
        })
    }

    /// Runs until it must stop or the disk fails; then it holds nothing of the folder.
    pub(super) async fn run(mut self) -> Result<(), ValidatorFailure> {
        let ended = self.go_on().await;
        self.storage.close().await;
        ended
    }

    async fn go_on(&mut self) -> Result<(), ValidatorFailure> {
        loop {
            let running = self.take_in().await?;
            while let Some(action) = self.core.next(core_now(self.began)) {
                self.carry_out(action).await?;
            }
            if !running {
                return Ok(());
            }
        }
    }

    /// Waits for an event, and passes it with all that arrived with it to the core. Returns false
    /// when the task must end.
    async fn take_in(&mut self) -> Result<bool, ValidatorFailure> {
        let happened = async {
            tokio::select! {
                input = self.inbox.recv() => Ok(Occurrence::Input(input)),
                verdict = self.verifier.next() => verdict.map(Occurrence::Verdict),
            }
        };
        let wakes_at = self.core.wakes_at().unwrap_or(Micros(0));
        let deadline = self.began + Duration::from_micros(wakes_at.0);
        let running = match timeout_at(deadline.into(), happened).await {
            Ok(happened) => {
                let running = self.on_happened(happened?);
                // Other tasks may hold messages that the network delivered at the same time: they
                // run first, to share this sync.
                tokio::task::yield_now().await;
                running && self.take_in_waiting()
            }
            Err(_) => {
                self.core.apply(core_now(self.began), Event::TimerFired);
                true
            }
        };
        self.take_in_verdicts();
        Ok(running)
    }

    /// Passes an event to the core. Returns false when the task must end.
    fn on_happened(&mut self, happened: Occurrence<M>) -> bool {
        match happened {
            Occurrence::Input(input) => input.is_some_and(|input| self.on_input(input)),
            Occurrence::Verdict(verdict) => {
                self.on_verdict(verdict);
                true
            }
        }
    }

    fn take_in_verdicts(&mut self) {
        while let Some(verdict) = self.verifier.try_next() {
            self.on_verdict(verdict);
        }
    }

    fn on_verdict(&mut self, verdict: Verdict<M::Command>) {
        self.core
            .apply(core_now(self.began), Event::Verdict(verdict));
    }

    fn take_in_waiting(&mut self) -> bool {
        for _ in 1..ROUND_INPUTS_MAX {
            let running = match self.inbox.try_recv() {
                Ok(input) => self.on_input(input),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => false,
            };
            if !running {
                return false;
            }
        }
        true
    }

    /// Passes an input to the core, or answers it at once if it only asks for the replica's status
    /// or state. Returns false when the task must end.
    fn on_input(&mut self, input: Input<M>) -> bool {
        let event = match input {
            Input::Peer { from, bytes } => Event::Peer { from, bytes },
            Input::Propose { commands, reply } => Event::Propose {
                caller: self.callers.insert(WaitingCaller::Proposal(reply)),
                commands,
            },
            Input::Query {
                consistency,
                question,
                reply,
            } => Event::Ask {
                caller: self.callers.insert(WaitingCaller::Question(reply)),
                consistency,
                question,
            },
            Input::Members { changes, reply } => Event::Members {
                caller: self.callers.insert(WaitingCaller::Members(reply)),
                changes,
            },
            Input::Transfer { to } => Event::Transfer(to),
            Input::Unreachable { peer } => Event::Unreachable(peer),
            // The send fails only if the caller no longer waits.
            Input::Status { reply } => {
                drop(reply.send(self.core.replica().status()));
                return true;
            }
            Input::Backup { reply } => {
                drop(reply.send(self.core.replica().backup_snapshot()));
                return true;
            }
            Input::Stop => return false,
        };
        self.core.apply(core_now(self.began), event);
        true
    }

    async fn carry_out(&mut self, action: Action<M>) -> Result<(), ValidatorFailure> {
        match action {
            Action::Send(envelopes) => self.send_envelopes(envelopes),
            Action::Check(checks) => self.at_hand = self.verifier.submit_checks(checks),
            Action::Persist(work) => self.persist_work(work).await?,
            Action::Respond { caller, response } => self.callers.send_response(caller, response),
            Action::Tell(news) => self.publish_news(*news),
            Action::Keep(snapshot) => self.keep_snapshot(snapshot).await?,
            Action::SyncViews => self.views.sync_disk(),
            Action::Report(report) => log_report(&report),
            Action::Stop(failure) => return Err((*failure).into()),
        }
        Ok(())
    }

    async fn persist_work(&mut self, work: Box<RoundWork>) -> Result<(), ValidatorFailure> {
        let at_hand = std::mem::take(&mut self.at_hand);
        // The disk's thread must have its work before the checks at hand begin.
        let checked = async { Check::run_all::<M>(&at_hand) };
        let (persisted, verdicts) = tokio::join!(self.storage.persist_work(work), checked);
        let work = persisted?;
        for verdict in verdicts {
            self.on_verdict(verdict);
        }
        self.take_in_verdicts();
        self.core
            .apply(core_now(self.began), Event::Persisted(work));
        Ok(())
    }

    /// Returns the commands that settled receipts.
    pub(super) fn settlements(&self) -> &Settlements {
        &self.settlements
    }

    fn publish_news(&mut self, news: RoundResults) {
        self.views.on_checkpoints(&news.checkpoints);
        self.storage.submit_tiles(news.tiles);
        self.settlements.submit_leaves(news.sealed);
        if let Some(tip) = news.tip {
            self.followers.tip.send_replace(Some(Arc::new(tip)));
        }
        if let Some(index) = news.installed {
            drop(self.followers.notices.send(Notice::Installed(index)));
        }
        for applied in news.applied {
            let applied = Notice::Applied(Arc::new(applied));
            drop(self.followers.notices.send(applied));
        }
        // Without work for the disk, nothing ran in parallel with the checks.
        for verdict in Check::run_all::<M>(&std::mem::take(&mut self.at_hand)) {
            self.on_verdict(verdict);
        }
        self.take_in_verdicts();
    }

    async fn keep_snapshot(&mut self, snapshot: Box<Snapshot>) -> Result<(), ValidatorFailure> {
        let (snapshot, keep_from) = self.storage.keep_snapshot(snapshot).await?;
        let kept = Event::Kept {
            snapshot,
            keep_from,
        };
        self.core.apply(core_now(self.began), kept);
        Ok(())
    }

    fn send_envelopes(&mut self, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            let to = envelope.to;
            if self.outbound.try_send(envelope).is_err() {
                tracing::debug!(%to, "a message to a peer was dropped: too many are waiting");
            }
        }
    }
}

fn log_report(report: &Report) {
    match report {
        Report::Dropped { from, error } => {
            tracing::debug!(%from, %error, "a peer's message was dropped");
        }
        Report::Forged(forgery) => tracing::error!(%forgery, "refused a forged message"),
    }
}

/// Returns the current time of a core whose clock started at `began`.
fn core_now(began: Instant) -> Now {
    Now {
        tick: Micros::from(began.elapsed()),
        log: Millis(souk_folder::clock::unix_ms()),
    }
}
