//! Verifies the batches of other replicas before this replica acknowledges them, so that a forged
//! command never takes effect.
//!
//! A replica writes an entry from the leader to disk and checks it at the same time. Only when both
//! are done does it acknowledge, count and apply the entry. So a forged command never reaches a
//! majority of honest replicas and never takes effect. A replica that finds a forged entry removes
//! it and all later ones from its log, which is safe because it has not acknowledged them. It then
//! ignores that leader for a while in this term, and campaigns.
//!
//! A leader appends commands that its own caller verified, and batches that it verified after other
//! replicas forwarded them. No replica campaigns while its log has an unverified entry. So a leader
//! that sends a forged entry either knew it or did not check: it is responsible for it.

use std::collections::{BTreeMap, VecDeque};

use raft::RawNode;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::{Recovery, Replica, StartError, discarding_logger, raft_config};
use crate::batch::{Batch, BatchId, restamp_batch};
use crate::check::{Check, CheckTicket, EntryFault, Fault, ForgedCommand, Verdict, batch_of};
use crate::ids::{ReplicaId, Term};
use crate::machine::StateMachine;
use crate::wire::{PeerMessage, to_envelopes};
use bytes::Bytes;
use souk_proof::{LogIndex, LogTime};

/// The most forwarded batches in verification; the origins of further ones send them again.
const FORWARDED_MAX: usize = 1_024;

/// Election timeouts for which a replica ignores an accused leader: time for the others to find the
/// same fault and elect another leader.
const DEAF_TIMEOUTS: u64 = 4;

/// A leader that sent an entry that must not be in the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{}, which led term {term}, sent an entry that must not be in the log: {found}",
    name(*leader)
)]
pub struct Accusation {
    /// The leader, unless it was gone before the check of the entry.
    pub leader: Option<ReplicaId>,
    /// The term in which the leader sent the entry.
    pub term: Term,
    /// The entry and its fault.
    #[source]
    pub found: EntryFault,
}

fn name(leader: Option<ReplicaId>) -> String {
    leader.map_or_else(
        || "the validator".to_owned(),
        |id| format!("validator {id}"),
    )
}

/// A forgery that a check found.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Forgery {
    /// The leader sent it. This replica has not acknowledged it, and campaigns.
    #[error(transparent)]
    Leader(Accusation),
    /// Another replica forwarded it; the leader did not append it to the log.
    #[error("validator {from} forwarded a batch of which {forged}")]
    Forwarded {
        /// The replica that forwarded it.
        from: ReplicaId,
        /// The forged command and its fault.
        #[source]
        forged: ForgedCommand,
    },
}

/// What a replica knows about an entry that it has not applied yet.
#[derive(Debug)]
pub(super) enum VerificationState<C> {
    /// A check of its signatures is in progress.
    Asked(CheckTicket),
    /// It must not be in the log.
    Faulty(Fault),
    /// It is a flight of this replica, whose commands were verified before the proposal.
    Own,
    /// Its verified commands.
    Checked(Vec<C>),
}

/// A batch in the log that this replica has not applied yet.
#[derive(Debug)]
pub(super) struct UnappliedEntry<C> {
    pub batch: Batch,
    pub standing: VerificationState<C>,
    /// The leader and the term at the arrival of the entry.
    sender: (u64, u64),
}

/// A forwarded batch during its check.
#[derive(Debug)]
struct ForwardedBatch {
    from: ReplicaId,
    batch: BatchId,
    data: Bytes,
}

/// The state of verification, as the module describes.
#[derive(Debug)]
pub(super) struct Verification<C> {
    next_ticket: u64,
    /// Checks that go out with the next work.
    checks: Vec<Check>,
    unapplied: BTreeMap<u64, UnappliedEntry<C>>,
    /// The entries that this replica must not acknowledge yet.
    unverified: BTreeMap<u64, CheckTicket>,
    asked: BTreeMap<CheckTicket, u64>,
    forwarded: BTreeMap<CheckTicket, ForwardedBatch>,
    /// Verified batches of other replicas that will enter this leader's log.
    admitted: BTreeMap<BatchId, (Vec<Bytes>, Vec<C>)>,
    /// Durable rounds without acknowledgement: the number and the last entry of each.
    durable: VecDeque<(u64, u64)>,
    /// Acknowledgements that wait for the verification of their entries.
    held_acknowledgements: Vec<Message>,
    /// The last accusation, and its tick.
    accusation: Option<(Accusation, u64)>,
}

impl<C> Default for Verification<C> {
    fn default() -> Self {
        Self {
            next_ticket: 1,
            checks: Vec::new(),
            unapplied: BTreeMap::new(),
            unverified: BTreeMap::new(),
            asked: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            admitted: BTreeMap::new(),
            durable: VecDeque::new(),
            held_acknowledgements: Vec::new(),
            accusation: None,
        }
    }
}

impl<C> Verification<C> {
    fn request_check(&mut self, commands: Vec<Bytes>) -> CheckTicket {
        let ticket = CheckTicket(self.next_ticket);
        self.next_ticket += 1;
        self.checks.push(Check { ticket, commands });
        ticket
    }

    /// Records the entries found on disk with their verdicts, and cuts the log before a faulty
    /// entry: the replica wrote it, and stopped before its check.
    pub(super) fn on_recovered(
        &mut self,
        mut recovered: Recovery,
        verdicts: Vec<Verdict<C>>,
    ) -> Result<Recovery, StartError> {
        let verdicts = verdicts.into_iter();
        let mut verdicts: BTreeMap<CheckTicket, _> =
            verdicts.map(|it| (it.ticket, it.outcome)).collect();
        for place in 0..recovered.entries.len() {
            let index = recovered.entries[place].index;
            let Some(batch) = batch_of(&recovered.entries[place]) else {
                continue;
            };
            let standing = batch.map_err(Fault::Unreadable).and_then(|batch| {
                let outcome = verdicts
                    .remove(&CheckTicket(index))
                    .unwrap_or(Ok(Vec::new()));
                let commands = outcome.map_err(Fault::Forged)?;
                assert_eq!(commands.len(), batch.commands.len(), "each was verified");
                Ok((batch, commands))
            });
            match standing {
                Ok((batch, commands)) => {
                    let unapplied = UnappliedEntry {
                        batch,
                        standing: VerificationState::Checked(commands),
                        sender: (0, 0),
                    };
                    self.unapplied.insert(index, unapplied);
                }
                Err(fault) if index <= recovered.hard_state.commit => {
                    let index = LogIndex(index);
                    return Err(StartError::Entry { index, fault });
                }
                Err(_) => {
                    recovered.entries.truncate(place);
                    return Ok(recovered);
                }
            }
        }
        Ok(recovered)
    }

    /// Records that a leader sent an entry that must not be in the log.
    pub(super) fn on_accused(&mut self, accusation: Accusation, tick: u64) {
        self.accusation = Some((accusation, tick));
    }

    /// Forgets the entries from `first` on, which other entries may replace.
    pub(super) fn forget_from(&mut self, first: u64) {
        self.unapplied.split_off(&first);
        for ticket in self.unverified.split_off(&first).values() {
            self.asked.remove(ticket);
        }
    }

    /// Returns whether any written entry, or one about to be written, is unverified.
    pub(super) fn is_behind(&self) -> bool {
        !self.unverified.is_empty()
    }

    /// Returns the last index before the first unverified entry, regardless of the log's end.
    pub(super) fn verified_index(&self) -> u64 {
        let first = self.unverified.first_key_value();
        first.map_or(u64::MAX, |(first, _)| first - 1)
    }

    pub(super) fn take_checks(&mut self) -> Vec<Check> {
        std::mem::take(&mut self.checks)
    }

    pub(super) fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Takes the batch at an index that the replica now applies.
    pub(super) fn take_batch(&mut self, index: u64) -> UnappliedEntry<C> {
        let unapplied = self.unapplied.remove(&index);
        unapplied.expect("each batch was looked at when it was written")
    }

    /// Records that a round is durable.
    pub(super) fn on_durable(&mut self, number: u64, last: u64) {
        assert!(
            self.durable
                .back()
                .is_none_or(|(before, _)| *before < number),
            "rounds are numbered in order"
        );
        self.durable.push_back((number, last));
    }

    /// Takes the last round up to which all entries are verified.
    fn take_acknowledged(&mut self) -> Option<u64> {
        let verified = self.verified_index();
        let mut number = None;
        while let Some((done, _)) = self.durable.pop_front_if(|(_, last)| *last <= verified) {
            number = Some(done);
        }
        number
    }

    /// Takes the acknowledgements that can be sent in `term`; those of earlier terms are dropped.
    fn take_held(&mut self, term: u64) -> Vec<Message> {
        let verified = self.verified_index();
        self.held_acknowledgements
            .retain(|message| message.term >= term);
        let may_leave = |message: &mut Message| message.index <= verified;
        self.held_acknowledgements
            .extract_if(.., may_leave)
            .collect()
    }

    /// Holds back those of `messages` that acknowledge unverified entries, and returns the others.
    pub(super) fn hold_unverified(&mut self, messages: Vec<Message>) -> Vec<Message> {
        let verified = self.verified_index();
        let acknowledges = |message: &Message| {
            message.get_msg_type() == MessageType::MsgAppendResponse
                && !message.reject
                && message.index > verified
        };
        let (held, free) = messages.into_iter().partition(acknowledges);
        self.held_acknowledgements.extend::<Vec<Message>>(held);
        free
    }
}

impl<M: StateMachine> Replica<M> {
    /// Records entries that are about to be written, and requests the checks that they need.
    pub(super) fn on_written(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            self.verifying.forget_from(first.index);
        }
        let sender = (self.raw.raft.leader_id, self.raw.raft.term);
        for entry in entries {
            if let Some(batch) = batch_of(entry) {
                let batch = batch.expect("what can't be read was not admitted");
                self.on_batch_written(entry.index, batch, sender);
            }
        }
        self.verifying.admitted.clear();
    }

    fn on_batch_written(&mut self, index: u64, batch: Batch, sender: (u64, u64)) {
        let verifying = &mut self.verifying;
        let admitted = verifying.admitted.remove(&batch.id);
        let admitted = admitted.filter(|(commands, _)| *commands == batch.commands);
        let standing = match (admitted, self.proposals.is_own_flight(&batch)) {
            (Some((_, checked)), _) => VerificationState::Checked(checked),
            (None, Some(true)) => VerificationState::Own,
            (None, Some(false)) => VerificationState::Faulty(Fault::Framed),
            (None, None) if batch.commands.is_empty() => VerificationState::Checked(Vec::new()),
            (None, None) => {
                VerificationState::Asked(verifying.request_check(batch.commands.clone()))
            }
        };
        match &standing {
            VerificationState::Asked(ticket) => {
                verifying.asked.insert(*ticket, index);
                verifying.unverified.insert(index, *ticket);
            }
            VerificationState::Faulty(_) => {
                verifying.unverified.insert(index, CheckTicket(0));
            }
            VerificationState::Own | VerificationState::Checked(_) => {}
        }
        assert!(
            sender.0 != self.config.id.get() || !verifying.is_behind(),
            "a leader appends only what was verified"
        );
        let unapplied = UnappliedEntry {
            batch,
            standing,
            sender,
        };
        verifying.unapplied.insert(index, unapplied);
    }

    /// Handles the verdict of a check.
    ///
    /// # Errors
    /// If a command is forged: the replica refused it and continues.
    pub fn on_verified(
        &mut self,
        now: LogTime,
        verdict: Verdict<M::Command>,
    ) -> Result<(), Forgery> {
        self.on_call(now);
        let Verdict { ticket, outcome } = verdict;
        if let Some(forwarded) = self.verifying.forwarded.remove(&ticket) {
            return self.on_forwarded_verified(forwarded, outcome);
        }
        // Another entry replaced the checked one, or a snapshot did.
        let Some(index) = self.verifying.asked.remove(&ticket) else {
            return Ok(());
        };
        let unapplied = self.verifying.unapplied.get_mut(&index);
        let unapplied = unapplied.expect("what is asked about is not applied");
        unapplied.standing = match outcome {
            Ok(commands) => {
                assert_eq!(commands.len(), unapplied.batch.commands.len());
                self.verifying.unverified.remove(&index);
                VerificationState::Checked(commands)
            }
            Err(forged) => VerificationState::Faulty(Fault::Forged(forged)),
        };
        self.settle_verified()
    }

    /// Tells raft which rounds are durable and verified, so that they count as this replica's.
    pub(super) fn acknowledge_rounds(&mut self) {
        if let Some(number) = self.verifying.take_acknowledged() {
            self.raw.on_persist_ready(number);
        }
    }

    /// Acknowledges durable and verified entries, and handles a faulty one.
    pub(super) fn settle_verified(&mut self) -> Result<(), Forgery> {
        self.acknowledge_rounds();
        let held = self.verifying.take_held(self.raw.raft.term);
        self.outbox.extend(to_envelopes(held));
        self.settle_elections();
        self.handle_fault()
    }

    /// Handles a fault in the first unverified entry; all entries before it stay.
    fn handle_fault(&mut self) -> Result<(), Forgery> {
        let Some((&index, _)) = self.verifying.unverified.first_key_value() else {
            return Ok(());
        };
        let Some(UnappliedEntry {
            standing: VerificationState::Faulty(fault),
            sender: (leader, term),
            ..
        }) = self.verifying.unapplied.get(&index)
        else {
            return Ok(());
        };
        let accusation = Accusation {
            leader: ReplicaId::new(*leader),
            term: Term(*term),
            found: EntryFault {
                index: LogIndex(index),
                fault: fault.clone(),
            },
        };
        self.verifying.on_accused(accusation.clone(), self.ticks);
        self.truncate_log(index);
        Err(Forgery::Leader(accusation))
    }

    /// Cuts the log before `first`, whose entries this replica has not acknowledged, as a start
    /// from disk would, and campaigns. New entries will replace those on disk; if the replica
    /// restarts before that, it cuts them again.
    fn truncate_log(&mut self, first: u64) {
        assert!(first > self.applied.0, "what was applied was verified");
        self.verifying.forget_from(first);
        self.verifying.durable.clear();
        self.verifying.held_acknowledgements.clear();
        let log = self.raw.mut_store().take_before(LogIndex(first));
        let config = raft_config(&self.config, self.applied);
        let raw = RawNode::new(&config, log, &discarding_logger());
        self.raw = raw.expect("the log was good for the replica that wrote it");
        self.commits = super::Commits::default();
        self.snapshot_ticks.clear();
        self.settle_elections();
        if self.is_member() {
            // raft refuses while changes of members wait for application; the election timeout
            // follows anyway.
            let _later = self.raw.campaign();
        }
        self.settle_elections();
        assert!(self.raw.raft.raft_log.last_index() < first || self.is_leader());
    }

    /// Returns whether a message is from a leader whose entries this replica refused recently in
    /// this term. If the others still follow that leader, this replica listens to it again later:
    /// it never acknowledges forged entries, so it can follow for the others.
    pub(super) fn is_accused(&self, message: &Message) -> bool {
        let deaf_ticks = DEAF_TIMEOUTS * self.config.election_ticks as u64;
        let accused = self.verifying.accusation.as_ref();
        accused.is_some_and(|(it, at)| {
            it.leader.is_some_and(|leader| leader.get() == message.from)
                && it.term.0 == message.term
                && at + deaf_ticks > self.ticks
        })
    }

    /// Returns the last leader whose entries this replica refused, if any.
    #[must_use]
    pub fn accusation(&self) -> Option<&Accusation> {
        self.verifying.accusation.as_ref().map(|(it, _)| it)
    }

    /// Returns the last entry up to which the whole log is verified.
    #[must_use]
    pub fn verified_index(&self) -> LogIndex {
        LogIndex(
            self.verifying
                .verified_index()
                .min(self.raw.store().last_entry_index().0),
        )
    }

    /// Returns whether the log has an unverified entry, including entries not written yet.
    pub(super) fn has_unverified(&self) -> bool {
        self.verifying.is_behind() || !self.raw.raft.raft_log.unstable_entries().is_empty()
    }

    /// Starts the check of another replica's batch, which must pass before it enters this leader's
    /// log.
    pub(super) fn verify_forwarded(&mut self, from: ReplicaId, batch: Batch, data: Bytes) {
        let known = |it: &ForwardedBatch| it.batch == batch.id;
        let forwarded = &self.verifying.forwarded;
        if forwarded.len() >= FORWARDED_MAX || forwarded.values().any(known) {
            return;
        }
        let ticket = self.verifying.request_check(batch.commands);
        let batch = batch.id;
        let forwarded = ForwardedBatch { from, batch, data };
        self.verifying.forwarded.insert(ticket, forwarded);
    }

    fn on_forwarded_verified(
        &mut self,
        forwarded: ForwardedBatch,
        outcome: Result<Vec<M::Command>, ForgedCommand>,
    ) -> Result<(), Forgery> {
        let ForwardedBatch { from, batch, data } = forwarded;
        let checked = outcome.map_err(|forged| Forgery::Forwarded { from, forged })?;
        let stamp = self.entry_time();
        if !self.is_leader() || stamp == LogTime(0) {
            // Its origin sends it again to the leader of that time.
            return Ok(());
        }
        let commands = Batch::decode(data.clone()).map(|batch| batch.commands);
        let commands = commands.expect("it was read when it came");
        let admitted = (commands, checked);
        self.verifying.admitted.insert(batch, admitted);
        let mut message = Message {
            to: self.config.id.get(),
            from: from.get(),
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgPropose);
        let mut entry = Entry {
            data: restamp_batch(&data, stamp),
            ..Entry::default()
        };
        entry.set_entry_type(EntryType::EntryNormal);
        message.set_entries(vec![entry].into());
        if self.step_raft(message).is_err() {
            self.verifying.admitted.remove(&batch);
            return Ok(());
        }
        let last = self.raw.raft.raft_log.last_index();
        self.commits.on_awaited(from, last);
        Ok(())
    }

    /// Sends a checkpoint to the others: all entries up to it are verified, because it was applied.
    pub(super) fn tell_checkpoint(&mut self, checkpoint: crate::checkpoint::Checkpoint) {
        self.tell_others(&PeerMessage::Checkpoint(checkpoint));
    }
}
