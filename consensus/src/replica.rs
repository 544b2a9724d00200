//! The core of a replica: it connects raft-rs and the state machine, and returns all effects for
//! its caller to carry out. It does no I/O.

mod admission;
mod applying;
mod clocks;
mod commits;
mod divergence;
mod effects;
mod elections;
mod members;
mod proposals;
mod reads;
mod transfer;
mod verifying;
mod vouching;

use std::collections::BTreeMap;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{RawNode, Ready, StateRole};

use crate::check::{Fault, Verdict};
use crate::checkpoint::Checkpoint;
use crate::ids::{ReplicaId, Term};
use crate::log::Log;
use crate::machine::StateMachine;
use crate::sessions::Sessions;
use crate::snapshot::{LogGrowth, Snapshot, SnapshotParts};
use crate::store::Recovery;
use crate::tree_head::is_tick_due;
use crate::wire::{Envelope, PeerMessage};
use souk_proof::Digest;
use souk_proof::History;
use souk_proof::{LogIndex, LogTime};

pub use crate::machine::MemberChange;
pub use admission::StepError;
pub use applying::ApplyError;
pub use divergence::Divergence;
pub use effects::{Answer, AppliedEntry, NoAnswer, Outcome, RoundWork};
pub use members::{ChangeError, LEARNER_BEHIND_MAX, PeerProgress};
pub use proposals::{
    COMMAND_BYTES_MAX, Proposal, ProposalLimits, ProposalRefusal, QueueFull, Ticket,
};
pub use reads::ReadTicket;
pub use verifying::{Accusation, Forgery};

use clocks::Clocks;
use commits::Commits;
use divergence::Checkpoints;
use elections::{Elections, TIMEOUT_MAX};
use proposals::{Proposals, SendMoment};
use reads::Reads;
use transfer::Incoming;
use verifying::Verification;
use vouching::Vouching;

/// The most bytes of entries in one message.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// The most bytes of entries that a leader holds and no quorum has; beyond it the leader will take
/// no more proposals.
const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;

/// The most bytes of entries applied in one round, so that heartbeats can go out in between.
const COMMITTED_BYTES_MAX: u64 = 4 << 20;

/// The most append messages in flight to one peer.
const INFLIGHT_MESSAGES_MAX: usize = 256;

/// The configuration of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The id of this replica.
    pub id: ReplicaId,
    /// The seed of its election timeouts.
    pub seed: u64,
    /// The least ticks without a leader before an election; the most are twice as many.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Entries between two checkpoints.
    pub checkpoint_entries: u64,
    /// The least entries between two snapshots; there are more if the log is small compared with
    /// the state. This and the next field must be equal on all members, because they vouch for the
    /// same states.
    pub snapshot_entries: u64,
    /// Bytes of entries after which the members make a snapshot however few the entries are. Memory
    /// holds, and a start reads, up to about twice as many.
    pub snapshot_log_bytes: u64,
    /// The bytes of one part of a snapshot in transfer.
    pub snapshot_chunk_bytes: usize,
    /// The least time between two entries that only advance time, in milliseconds.
    pub time_step_ms: u64,
    /// The bounds of the proposal queue.
    pub limits: ProposalLimits,
}

impl ReplicaConfig {
    /// Returns the defaults: with a tick of 15 ms an election timeout is 300 to 600 ms.
    #[must_use]
    pub fn new(id: ReplicaId, seed: u64) -> Self {
        Self {
            id,
            seed,
            election_ticks: 20,
            heartbeat_ticks: 4,
            checkpoint_entries: 1_024,
            snapshot_entries: 16_384,
            snapshot_log_bytes: 64 << 20,
            snapshot_chunk_bytes: 256 << 10,
            time_step_ms: 250,
            limits: ProposalLimits::default(),
        }
    }
}

/// Why a replica cannot start from its stored data.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// raft-rs rejects the configuration.
    #[error("the replica's configuration is not sound: {0}")]
    Raft(#[from] raft::Error),
    /// The machine cannot take the snapshot.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The log states as committed an entry that this replica never acknowledged.
    #[error(
        "entry {index} of the log must not be there: {fault}. Restore the folder from a backup, or \
         add this replica again under a new id"
    )]
    Entry {
        /// The index of the entry.
        index: LogIndex,
        /// The fault in it.
        #[source]
        fault: Fault,
    },
}

/// The current role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica follows a leader, or waits for one.
    Follower,
    /// The replica asks for votes.
    Candidate,
    /// The replica leads the group.
    Leader,
}

/// The state of a replica in its group.
#[derive(Clone, Debug)]
pub struct Status {
    /// The id of this replica.
    pub id: ReplicaId,
    /// The current role.
    pub role: Role,
    /// The current term.
    pub term: Term,
    /// The leader that it follows, if any.
    pub leader: Option<ReplicaId>,
    /// The last entry that it knows to be on a quorum.
    pub commit: LogIndex,
    /// The last entry that it has applied.
    pub applied: LogIndex,
    /// The last entry of its log.
    pub last: LogIndex,
    /// The last entry of its latest snapshot.
    pub snapshot: LogIndex,
    /// The time of the last applied entry.
    pub time: LogTime,
    /// The latest checkpoint since the start, if any.
    pub checkpoint: Option<Checkpoint>,
    /// Commands of this replica that are not applied yet.
    pub proposals: usize,
    /// The voters and learners.
    pub members: ConfState,
    /// Whether this replica is a member; a removed replica can stop.
    pub member: bool,
    /// The progress of the other members; empty unless this replica leads.
    pub peers: Vec<PeerProgress>,
    /// The last leader that sent an entry that must not be in the log, if any.
    pub accusation: Option<Accusation>,
}

/// A replica, as the module describes. Take its effects with [`Replica::take_work`]; you must then
/// return them with [`Replica::on_persisted`] before you call anything else.
pub struct Replica<M: StateMachine> {
    config: ReplicaConfig,
    raw: RawNode<Log>,
    machine: M,
    sessions: Sessions,
    history: History,
    /// The size of the last tree head, if one was reached since the start.
    head_size: Option<u64>,
    /// The log's clock: the time of the last applied entry.
    time: LogTime,
    clocks: Clocks,
    applied: LogIndex,
    /// The growth of the log since members last made the whole state.
    growth: LogGrowth,
    ticks: u64,
    /// For each member, the tick of its last message.
    last_heard_ticks: BTreeMap<ReplicaId, u64>,
    time_step_at: LogTime,
    elections: Elections,
    proposals: Proposals<M::Command>,
    reads: Reads,
    checkpoints: Checkpoints,
    vouching: Vouching,
    commits: Commits,
    verifying: Verification<M::Command>,
    snapshot_ticks: BTreeMap<u64, u64>,
    /// A snapshot in transfer, with missing parts.
    incoming: Option<Incoming>,
    /// The parts of a snapshot that the replica stored before its restart.
    stored_parts: Option<BTreeMap<u32, Bytes>>,
    /// Replicas that offered a state for which no majority vouches, and the tick until which this
    /// replica refuses their offers.
    doubted: BTreeMap<ReplicaId, u64>,
    /// Messages to send with the next work.
    outbox: Vec<Envelope>,
    in_work: Option<Ready>,
}

impl<M: StateMachine> Replica<M> {
    /// Starts a replica from its stored data. `verdicts` must be those of all checks that
    /// [`crate::check::checks_of`] returns for its entries. If an entry is forged, the log
    /// continues before it, because this replica never acknowledged it.
    ///
    /// # Errors
    /// If raft-rs rejects the configuration, the machine refuses the snapshot, or the disk states a
    /// forged entry as committed.
    pub fn new(
        config: ReplicaConfig,
        recovered: Recovery,
        verdicts: Vec<Verdict<M::Command>>,
        machine: M,
    ) -> Result<Self, StartError> {
        let mut verifying = Verification::default();
        let recovered = verifying.on_recovered(recovered, verdicts)?;
        let Recovery {
            snapshot,
            entries,
            hard_state,
            incarnation,
            ..
        } = recovered;
        let chunk_bytes = config.snapshot_chunk_bytes;
        let log = Log::new(snapshot.clone(), hard_state, entries, chunk_bytes);
        let raw = RawNode::new(
            &raft_config(&config, snapshot.index),
            log,
            &discarding_logger(),
        )?;
        let mut replica = Self {
            elections: Elections::new(config.seed ^ config.id.get(), config.election_ticks),
            proposals: Proposals::new(config.id, incarnation, config.limits),
            reads: Reads::new(config.id, incarnation),
            config,
            raw,
            machine,
            sessions: Sessions::default(),
            history: History::default(),
            head_size: None,
            time: LogTime(0),
            clocks: Clocks::default(),
            applied: LogIndex(0),
            growth: LogGrowth::default(),
            ticks: 0,
            last_heard_ticks: BTreeMap::new(),
            time_step_at: LogTime(0),
            checkpoints: Checkpoints::default(),
            vouching: Vouching::default(),
            commits: Commits::default(),
            verifying,
            snapshot_ticks: BTreeMap::new(),
            incoming: None,
            stored_parts: None,
            doubted: BTreeMap::new(),
            outbox: Vec::new(),
            in_work: None,
        };
        replica.take_state(&snapshot)?;
        replica.settle_elections();
        Ok(replica)
    }

    /// Returns the first snapshot of a new group, which must be equal on every member, because all
    /// begin with it.
    #[must_use]
    pub fn genesis_snapshot(members: &[ReplicaId], machine: &M) -> Snapshot {
        let voters: Vec<u64> = members.iter().map(|member| member.get()).collect();
        let state = machine.snapshot();
        Snapshot::new(&SnapshotParts {
            index: LogIndex(1),
            term: Term(1),
            members: &ConfState::from((voters, Vec::new())),
            time: LogTime(0),
            sessions: &Sessions::default(),
            history: &History::default(),
            growth: LogGrowth {
                since: LogIndex(1),
                state_bytes: state.len() as u64,
                log_bytes: 0,
            },
            state: Digest(machine.digest()),
            machine: &state,
        })
    }

    /// Advances the replica by one tick; `now` is the local clock.
    pub fn tick(&mut self, now: LogTime) {
        self.on_call(now);
        self.clocks.on_tick(now);
        self.ticks += 1;
        self.raw.tick();
        self.tell_clock();
        self.watch_snapshots();
        self.request_chunks();
        self.request_vouchers();
        self.tell_commit();
        self.settle_elections();
    }

    /// Processes a message from a peer.
    ///
    /// # Errors
    /// If the replica drops the message; the group can continue without it.
    pub fn step(&mut self, now: LogTime, from: ReplicaId, bytes: Bytes) -> Result<(), StepError> {
        self.on_call(now);
        let message = PeerMessage::decode(bytes)?;
        if self.raw.raft.prs().get(from.get()).is_some() {
            self.last_heard_ticks.insert(from, self.ticks);
        }
        match message {
            PeerMessage::Raft(mut message) => {
                self.admit_message(from, &message)?;
                self.check_appended_changes(from, &mut message)?;
                match message.get_msg_type() {
                    MessageType::MsgPropose => return self.on_forwarded(from, *message),
                    MessageType::MsgSnapshot => return self.on_snapshot_offered(from, *message),
                    _ => self.step_raft(*message)?,
                }
            }
            PeerMessage::Checkpoint(checkpoint) => self.checkpoints.on_claim(from, checkpoint),
            PeerMessage::Clock(shown) => self.clocks.on_reading(from, shown, self.ticks),
            // The process's own task reads these; see [`crate::wire::cosigned_note`].
            PeerMessage::Cosigned(_) => {}
            PeerMessage::Vouchers(certificate) => self.on_vouchers(certificate),
            PeerMessage::VoucherRequest(index) => self.on_voucher_request(from, index),
            PeerMessage::PartRequest { snapshot, number } => {
                self.on_chunk_request(from, snapshot, number);
            }
            PeerMessage::Part {
                snapshot,
                number,
                bytes,
            } => {
                return self.on_chunk(snapshot, number, bytes);
            }
        }
        Ok(())
    }

    fn step_raft(&mut self, message: Message) -> raft::Result<()> {
        let stepped = self.raw.step(message);
        self.settle_elections();
        stepped
    }

    /// Draws a new election timeout if needed; a replica with unverified entries must not campaign.
    fn settle_elections(&mut self) {
        let may_campaign = !self.has_unverified();
        self.elections.set_timeout(&mut self.raw, may_campaign);
    }

    /// Queues a command for the log. An [`Outcome`] answers it after this replica has applied it.
    ///
    /// # Errors
    /// If too many commands wait, or this one is too large.
    pub fn propose(&mut self, command: Proposal<M::Command>) -> Result<Ticket, ProposalRefusal> {
        self.proposals.push(vec![command])
    }

    /// Queues several commands, all or none. Returns the ticket of the first; the others have the
    /// tickets that follow.
    ///
    /// # Errors
    /// If too many commands wait, or one is too large.
    pub fn propose_all(
        &mut self,
        commands: Vec<Proposal<M::Command>>,
    ) -> Result<Ticket, ProposalRefusal> {
        self.proposals.push(commands)
    }

    /// Requests a moment at which the local state holds everything acknowledged before the call.
    ///
    /// # Errors
    /// If too many reads wait.
    pub fn read(&mut self) -> Result<ReadTicket, QueueFull> {
        self.reads.push()
    }

    /// Returns the machine in its current state.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns the history of everything applied.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the last applied entry.
    #[must_use]
    pub fn applied_index(&self) -> LogIndex {
        self.applied
    }

    /// Returns this replica's term.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Returns whether this replica leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Returns the leader, which can be this replica itself; `None` during an election.
    #[must_use]
    pub fn leader(&self) -> Option<ReplicaId> {
        ReplicaId::new(self.raw.raft.leader_id)
    }

    /// Returns the raft log, for checks.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.raw.store()
    }

    /// Returns the difference if a quorum reached another state than this replica, which then must
    /// stop.
    pub fn compare_checkpoints(&mut self) -> Option<Divergence> {
        let quorum = self.raw.store().members().get_voters().len() / 2 + 1;
        let differing = self.vouching.find_divergence(self.config.id, quorum);
        differing.or_else(|| self.checkpoints.find_divergence(quorum))
    }

    /// Returns the status of this replica.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        Status {
            id: self.config.id,
            role: match raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            term: Term(raft.term),
            leader: ReplicaId::new(raft.leader_id),
            commit: LogIndex(raft.raft_log.committed),
            applied: self.applied,
            last: self.raw.store().last_entry_index(),
            snapshot: self.raw.store().snapshot().index,
            time: self.time,
            checkpoint: self.checkpoints.latest_checkpoint(),
            proposals: self.proposals.command_count(),
            members: self.raw.store().members().clone(),
            member: self.is_member(),
            peers: self.peer_progress(),
            accusation: self.accusation().cloned(),
        }
    }

    /// Records that the transport could not deliver to a peer.
    pub fn on_unreachable(&mut self, peer: ReplicaId) {
        self.raw.report_unreachable(peer.get());
        self.settle_elections();
    }

    fn on_call(&mut self, now: LogTime) {
        assert!(
            self.in_work.is_none(),
            "work is given back before anything else happens"
        );
        self.clocks.on_call(now);
    }

    /// Sends the due proposals, reads and ticks of time.
    fn flush(&mut self) {
        self.flush_time();
        self.flush_proposals();
        let retry_ticks = self.config.election_ticks as u64;
        if self.raw.raft.leader_id != 0
            && let Some(context) = self.reads.due_round(self.ticks, retry_ticks)
        {
            self.raw.read_index(context);
        }
        self.tell_awaited_commit();
        self.settle_elections();
    }

    fn flush_proposals(&mut self) {
        let leader = self.raw.raft.leader_id;
        if self.proposals.is_empty() || leader == 0 {
            return;
        }
        let sent = SendMoment {
            term: self.raw.raft.term,
            leader,
            tick: self.ticks,
        };
        let mut due = self
            .proposals
            .due_flights(sent, 2 * self.config.election_ticks as u64);
        if due.is_empty() && !self.proposals.has_queued() {
            return;
        }
        let stamp = self.entry_time();
        if stamp == LogTime(0) && self.is_leader() {
            return;
        }
        while let Some(sequence) = due.pop().or_else(|| self.proposals.pack_flight()) {
            let Some(data) = self.proposals.encode_flight(sequence, stamp) else {
                continue;
            };
            if self.raw.propose(Vec::new(), data).is_err() {
                return;
            }
            self.proposals.on_sent(sequence, sent);
            self.on_appends_sent();
        }
    }

    fn flush_time(&mut self) {
        if !self.is_leader() {
            return;
        }
        let now = self.entry_time();
        let wakes = || self.machine.wakes_at().is_some_and(|at| at <= now);
        let is_due = wakes() || is_tick_due(self.head_size, self.history.size(), self.time, now);
        if is_due && self.time_step_at.0 + self.config.time_step_ms <= now.0 {
            self.time_step_at = now;
            let data = self.proposals.encode_tick(now);
            // raft can drop it; the replica will then propose another one a step later.
            let _dropped = self.raw.propose(Vec::new(), data);
        }
    }
}

fn raft_config(config: &ReplicaConfig, applied: LogIndex) -> raft::Config {
    raft::Config {
        id: config.id.get(),
        election_tick: config.election_ticks,
        heartbeat_tick: config.heartbeat_ticks,
        max_election_tick: TIMEOUT_MAX,
        applied: applied.0,
        max_size_per_msg: MESSAGE_BYTES_MAX,
        max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
        check_quorum: true,
        pre_vote: true,
        batch_append: true,
        skip_bcast_commit: true,
        max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: COMMITTED_BYTES_MAX,
        ..raft::Config::default()
    }
}

/// Returns a logger that discards, because raft-rs needs one; the status and errors say what
/// matters.
fn discarding_logger() -> slog::Logger {
    slog::Logger::root(slog::Discard, slog::o!())
}
