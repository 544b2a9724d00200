//! Applies committed entries to the state machine, and makes snapshots of the result. The caller
//! starts it when the work of a round is durable.

use bytes::Bytes;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, HardState};

use super::effects::{Answer, AppliedEntry, NoAnswer, Outcome, RoundWork};
use super::proposals::LandedProposal;
use super::verifying::{UnappliedEntry, VerificationState};
use super::{Replica, Ticket};
use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::ids::Term;
use crate::log::size_of;
use crate::machine::{MachineFailure, RestoreError, StateMachine};
use crate::snapshot::{LogGrowth, Snapshot, SnapshotParts};
use crate::tree_head::{TreeTip, is_head_due};
use protobuf::Message as _;
use souk_proof::Digest;
use souk_proof::{Leaf, Position, SealedLeaf};
use souk_proof::{LogIndex, LogTime};

/// Why a snapshot cannot become the state, or an entry cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The machine cannot restore the snapshot.
    #[error("the snapshot of entry {index} cannot be restored: {cause}")]
    Restore {
        /// The snapshot's last entry.
        index: LogIndex,
        /// The machine's reason.
        #[source]
        cause: RestoreError,
    },
    /// The restored state differs from the stored digest.
    #[error("the snapshot of entry {index} restores to the state {found}; {wanted} was recorded")]
    Differs {
        /// The snapshot's last entry.
        index: LogIndex,
        /// The digest stored with the snapshot.
        wanted: Digest,
        /// The digest of the restored machine.
        found: Digest,
    },
    /// This build of the machine cannot apply entries from this one on; another build can.
    #[error("entry {index} of the log can't be applied by this build: {cause}")]
    Unable {
        /// The first entry that is not applied.
        index: LogIndex,
        /// The machine's reason.
        #[source]
        cause: MachineFailure,
    },
}

/// Before the next snapshot, the log since the last one must reach one part in this many of the
/// state's size.
const STATE_SHARE: u64 = 8;

impl<M: StateMachine> Replica<M> {
    /// Continues after the caller made `work` durable and sent its messages.
    ///
    /// # Errors
    /// If a received snapshot cannot be restored, or an entry cannot be applied: the replica must
    /// stop.
    pub fn on_persisted(&mut self, work: RoundWork) -> Result<Outcome, ApplyError> {
        let mut ready = self
            .in_work
            .take()
            .expect("work was taken before it is given back");
        let mut outcome = Outcome::default();
        if let Some(snapshot) = work.persist.snapshot {
            self.install_snapshot(snapshot, &mut outcome)?;
        }
        let last = work.persist.entries.last().map_or(0, |entry| entry.index);
        self.verifying.on_durable(ready.number(), last);
        let log = self.raw.mut_store();
        log.append_entries(work.persist.entries);
        if let Some(hard_state) = ready.hs() {
            log.on_hard_state(HardState::clone(hard_state));
        }
        for read in ready.take_read_states() {
            self.reads.on_index(read.request_ctx, LogIndex(read.index));
        }
        self.apply_all(ready.take_committed_entries(), &mut outcome)?;
        self.raw.advance_append_async(ready);
        // A snapshot counts as applied, which is possible only once it counts as durable.
        self.acknowledge_rounds();
        self.raw.advance_apply();
        outcome.forgery = self.settle_verified().err();
        outcome.reads = self.reads.take_ready(self.applied);
        outcome.snapshot = self.vouching.take_certified();
        Ok(outcome)
    }

    /// Returns whether members make the whole state at the last applied entry and vouch for it. All
    /// will reach the same answer, because it follows from the entries that they applied.
    fn is_state_due(&self, members_changed: bool) -> bool {
        let LogGrowth {
            since,
            state_bytes,
            log_bytes,
        } = self.growth;
        let many = self.applied.0 - since.0 >= self.config.snapshot_entries;
        // A large state is worth writing again only once the log that it replaces is large enough.
        let worth_it = log_bytes >= state_bytes / STATE_SHARE;
        members_changed || (many && worth_it) || log_bytes >= self.config.snapshot_log_bytes
    }

    /// Encodes the current state, for a backup.
    #[must_use]
    pub fn backup_snapshot(&self) -> Snapshot {
        self.snapshot_with(&self.machine.snapshot(), self.growth)
    }

    /// Encodes the current state as members vouch for it.
    #[must_use]
    pub(crate) fn vouched_snapshot(&self) -> Snapshot {
        let machine = self.machine.snapshot();
        let growth = LogGrowth {
            since: self.applied,
            state_bytes: machine.len() as u64,
            log_bytes: 0,
        };
        self.snapshot_with(&machine, growth)
    }

    fn snapshot_with(&self, machine: &[u8], growth: LogGrowth) -> Snapshot {
        let log = self.raw.store();
        let term = log.term_at(self.applied);
        Snapshot::new(&SnapshotParts {
            index: self.applied,
            term: term.expect("the last applied entry is in the log"),
            members: log.members(),
            time: self.time,
            sessions: &self.sessions,
            history: &self.history,
            growth,
            state: Digest(self.machine.digest()),
            machine,
        })
    }

    /// Removes the entries before `keep_from`, which durable snapshots must cover.
    pub fn compact(&mut self, snapshot: Snapshot, keep_from: LogIndex) {
        assert!(
            snapshot.index <= self.applied,
            "a snapshot covers what was applied"
        );
        self.raw.mut_store().compact(snapshot, keep_from);
    }

    fn install_snapshot(
        &mut self,
        snapshot: Snapshot,
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        assert!(snapshot.index > self.applied, "a snapshot never goes back");
        self.take_state(&snapshot)?;
        outcome.installed = Some(snapshot.index);
        self.vouching.on_installed(snapshot.index);
        self.verifying.forget_from(0);
        self.incoming = None;
        self.raw.mut_store().install_snapshot(snapshot);
        for ticket in self.proposals.on_installed(&self.sessions) {
            let (index, result) = (self.applied, Err(NoAnswer::InSnapshot));
            outcome.answers.push(Answer {
                ticket,
                index,
                result,
            });
        }
        Ok(())
    }

    /// Replaces the state by a snapshot's.
    pub(super) fn take_state(&mut self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let index = snapshot.index;
        if index != LogIndex(0) {
            let restored = self.machine.restore(&snapshot.machine);
            restored.map_err(|cause| ApplyError::Restore { index, cause })?;
            let found = Digest(self.machine.digest());
            if found != snapshot.state {
                return Err(ApplyError::Differs {
                    index,
                    wanted: snapshot.state,
                    found,
                });
            }
        }
        assert!(index >= self.applied, "a state never goes back");
        self.sessions = snapshot.sessions.clone();
        self.history = snapshot.history.clone();
        self.head_size = None;
        self.growth = snapshot.growth;
        self.time = snapshot.time;
        self.applied = index;
        Ok(())
    }

    fn apply_all(&mut self, entries: Vec<Entry>, outcome: &mut Outcome) -> Result<(), ApplyError> {
        for entry in entries {
            assert_eq!(
                entry.index,
                self.applied.0 + 1,
                "entries are applied one by one"
            );
            self.applied = LogIndex(entry.index);
            self.growth.log_bytes += size_of(&entry);
            let mut members_changed = false;
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => self.apply_batch(&entry, outcome)?,
                EntryType::EntryConfChangeV2 => {
                    members_changed = self.apply_members(&conf_change(&entry));
                }
                EntryType::EntryConfChange => unreachable!("changes are proposed as version 2"),
            }
            if self.is_state_due(members_changed) {
                self.vouch_for_state();
            }
            if entry.index % self.config.checkpoint_entries == 0 {
                self.on_checkpoint(Term(entry.term), outcome);
            }
        }
        Ok(())
    }

    fn apply_batch(&mut self, entry: &Entry, outcome: &mut Outcome) -> Result<(), ApplyError> {
        let UnappliedEntry {
            batch, standing, ..
        } = self.verifying.take_batch(entry.index);
        if !self.sessions.record_batch(&batch) {
            return Ok(());
        }
        let before = self.time;
        self.time = self.time.max(batch.time);
        assert!(self.time >= before, "time in the log never goes back");
        if let Some(cause) = self.machine.unsupported_reason(self.time) {
            let index = LogIndex(entry.index);
            return Err(ApplyError::Unable { index, cause });
        }
        let (tickets, commands): (Vec<Ticket>, Vec<M::Command>) = match standing {
            VerificationState::Own => {
                let landed = self.proposals.on_applied(&batch).into_iter();
                landed
                    .map(|LandedProposal { ticket, command }| (ticket, command))
                    .unzip()
            }
            VerificationState::Checked(commands) => (Vec::new(), commands),
            VerificationState::Asked(_) | VerificationState::Faulty(_) => {
                unreachable!("raft gives out what was acknowledged, which was verified")
            }
        };
        let (index, term) = (LogIndex(entry.index), Term(entry.term));
        let id = batch.id;
        let results = self.run(index, batch, &commands, outcome);
        if is_head_due(before, self.time) {
            let state = self.machine.state_root();
            let tip = TreeTip::new(&self.history, state, index, self.time);
            self.head_size = Some(tip.head.size);
            outcome.tip = Some(tip);
        }
        for (ticket, (_, result)) in tickets.into_iter().zip(&results) {
            let result = Ok(result.clone());
            outcome.answers.push(Answer {
                ticket,
                index,
                result,
            });
        }
        let time = self.time;
        outcome.applied.push(AppliedEntry {
            index,
            term,
            batch: id,
            time,
            results,
        });
        Ok(())
    }

    /// Applies a batch to the machine and adds its commands and results to the history.
    fn run(
        &mut self,
        index: LogIndex,
        batch: Batch,
        commands: &[M::Command],
        outcome: &mut Outcome,
    ) -> Vec<(Bytes, Vec<u8>)> {
        assert_eq!(batch.commands.len(), commands.len());
        if commands.is_empty() {
            let at = Position { index, offset: 0 };
            let result = self.machine.tick(at, self.time);
            self.push_leaf(at, &Bytes::new(), &result, outcome);
            return vec![(Bytes::new(), result)];
        }
        let mut results = Vec::with_capacity(commands.len());
        for ((offset, bytes), command) in (0..).zip(batch.commands).zip(commands) {
            let at = Position { index, offset };
            let result = self.machine.apply_command(at, self.time, command);
            self.push_leaf(at, &bytes, &result, outcome);
            results.push((bytes, result));
        }
        results
    }

    /// Adds the last application to the history.
    fn push_leaf(&mut self, at: Position, command: &Bytes, result: &[u8], outcome: &mut Outcome) {
        let events = self.machine.events_digest();
        let leaf = Leaf {
            at,
            time: self.time,
            command: Digest::for_content(command),
            result: Leaf::hash_result(result, events),
        };
        if self.machine.is_proof_due() {
            outcome.sealed.push(SealedLeaf {
                number: self.history.size(),
                at,
                time: self.time,
                command: command.to_vec(),
                result: result.to_vec(),
                events,
            });
        }
        self.history.push(leaf.hash(), &mut outcome.tiles);
    }

    fn on_checkpoint(&mut self, term: Term, outcome: &mut Outcome) {
        let latest = self.checkpoints.latest_checkpoint();
        assert!(latest.is_none_or(|latest| latest.index < self.applied));
        let checkpoint = Checkpoint {
            index: self.applied,
            term,
            size: self.history.size(),
            history: self.history.root(),
            state: Digest(self.machine.digest()),
        };
        self.checkpoints.on_reached(checkpoint);
        self.tell_checkpoint(checkpoint);
        outcome.checkpoints.push(checkpoint);
    }

    /// Returns the log's clock.
    #[must_use]
    pub fn log_time(&self) -> LogTime {
        self.time
    }
}

/// Decodes a membership change. raft replaces a refused change by an empty normal entry, so every
/// committed change is readable.
fn conf_change(entry: &Entry) -> ConfChangeV2 {
    ConfChangeV2::parse_from_carllerche_bytes(&entry.data).expect("raft read it when proposed")
}
