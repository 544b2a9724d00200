//! Verify before acknowledging: what others took in counts only once its signatures were checked.
//!
//! An entry from the leader is written to disk and checked at the same time. Only when both are
//! done is it acknowledged, counted, and applied. So a forged command is never on a majority that
//! is honest, and never takes effect. Who finds one cuts its log before it, which it may, since
//! nobody was told of that entry, hears that leader no more in this term, and stands for election.
//!
//! A leader appends what its own caller verified and what it verified of what others forward. No
//! replica campaigns while anything in its log is unverified. So whoever sends a forged entry as
//! a leader knew it, or did not look: it is answerable for it.

use std::collections::{BTreeMap, VecDeque};

use raft::RawNode;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::{Recovery, Replica, StartError, raft_config, silent};
use crate::batch::{Batch, BatchId, restamp};
use crate::check::{Check, CheckTicket, EntryFault, Fault, ForgedCommand, Verdict, batch_of};
use crate::ids::{LogIndex, LogTime, ReplicaId, Term};
use crate::machine::StateMachine;
use crate::wire::{PeerMessage, envelopes};
use bytes::Bytes;

/// Batches that others forwarded and that are being verified; who sends more sends them again.
const FORWARDED_MAX: usize = 1_024;

/// Election timeouts for which a leader that was accused is not heard: time for the others to find
/// the same, and to elect another.
const DEAF_TIMEOUTS: u64 = 4;

/// A leader that sent what it must not have in its log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}, which led term {term}, sent what must not be in the log: {found}", name(*leader))]
pub struct Accusation {
    /// The leader, unless it was gone before the entry was looked at.
    pub leader: Option<ReplicaId>,
    /// The term in which it was heard.
    pub term: Term,
    /// What it sent.
    #[source]
    pub found: EntryFault,
}

fn name(leader: Option<ReplicaId>) -> String {
    leader.map_or_else(
        || "the validator".to_owned(),
        |id| format!("validator {id}"),
    )
}

/// What a verdict brought to light.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Forgery {
    /// The leader sent it. Nothing of it was acknowledged; this replica stands for election.
    #[error(transparent)]
    Leader(Accusation),
    /// Another replica forwarded it; it was not taken into the log.
    #[error("validator {from} forwarded a batch of which {forged}")]
    Forwarded {
        /// Who.
        from: ReplicaId,
        /// What is wrong with it.
        #[source]
        forged: ForgedCommand,
    },
}

/// What is known of an entry that is not applied yet.
#[derive(Debug)]
pub(super) enum Standing<C> {
    /// Its signatures are being checked.
    Asked(CheckTicket),
    /// It must not be there.
    Faulty(Fault),
    /// It is in flight from here: its commands were verified before they were proposed.
    Own,
    /// Its commands.
    Checked(Vec<C>),
}

/// A batch in the log that is not applied yet.
#[derive(Debug)]
pub(super) struct UnappliedEntry<C> {
    pub batch: Batch,
    pub standing: Standing<C>,
    /// Whom this replica followed when the entry came, and in which term.
    sender: (u64, u64),
}

/// A batch that another replica forwarded, while it is checked.
#[derive(Debug)]
struct ForwardedBatch {
    from: ReplicaId,
    batch: BatchId,
    data: Bytes,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Verifying<C> {
    next_ticket: u64,
    /// To go out with the next work.
    checks: Vec<Check>,
    unapplied: BTreeMap<u64, UnappliedEntry<C>>,
    /// The entries that must not be acknowledged yet.
    unverified: BTreeMap<u64, CheckTicket>,
    asked: BTreeMap<CheckTicket, u64>,
    forwarded: BTreeMap<CheckTicket, ForwardedBatch>,
    /// Verified batches of others on their way into this leader's log.
    admitted: BTreeMap<BatchId, (Vec<Bytes>, Vec<C>)>,
    /// Durable rounds by number, with their last entry, that were not acknowledged.
    durable: VecDeque<(u64, u64)>,
    /// Acknowledgements that wait for what they acknowledge.
    held: Vec<Message>,
    /// The last accusation, and when it was made.
    accusation: Option<(Accusation, u64)>,
}

impl<C> Default for Verifying<C> {
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
            held: Vec::new(),
            accusation: None,
        }
    }
}

impl<C> Verifying<C> {
    fn ask(&mut self, commands: Vec<Bytes>) -> CheckTicket {
        let ticket = CheckTicket(self.next_ticket);
        self.next_ticket += 1;
        self.checks.push(Check { ticket, commands });
        ticket
    }

    /// Takes note of what was found on disk and verified there, and cuts off what is faulty: it was
    /// written, and the replica died before it had looked at it.
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
                        standing: Standing::Checked(commands),
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

    /// A leader sent what must not be in the log.
    pub(super) fn on_accused(&mut self, accusation: Accusation, tick: u64) {
        self.accusation = Some((accusation, tick));
    }

    /// Forgets the entries from `first` on: others take their place, or none.
    pub(super) fn forget_from(&mut self, first: u64) {
        self.unapplied.split_off(&first);
        for ticket in self.unverified.split_off(&first).values() {
            self.asked.remove(ticket);
        }
    }

    /// Whether any entry written or about to be is unverified.
    pub(super) fn is_behind(&self) -> bool {
        !self.unverified.is_empty()
    }

    /// The last entry up to which nothing is unverified, whatever the log's end.
    pub(super) fn verified(&self) -> u64 {
        let first = self.unverified.first_key_value();
        first.map_or(u64::MAX, |(first, _)| first - 1)
    }

    pub(super) fn take_checks(&mut self) -> Vec<Check> {
        std::mem::take(&mut self.checks)
    }

    pub(super) fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// What the log holds at an index that is applied now.
    pub(super) fn take(&mut self, index: u64) -> UnappliedEntry<C> {
        let unapplied = self.unapplied.remove(&index);
        unapplied.expect("each batch was looked at when it was written")
    }

    /// A round is durable.
    pub(super) fn on_durable(&mut self, number: u64, last: u64) {
        assert!(
            self.durable
                .back()
                .is_none_or(|(before, _)| *before < number),
            "rounds are numbered in order"
        );
        self.durable.push_back((number, last));
    }

    /// The last round of which every entry is verified, as are those of all before it.
    fn take_acknowledged(&mut self) -> Option<u64> {
        let verified = self.verified();
        let mut number = None;
        while let Some((done, _)) = self.durable.pop_front_if(|(_, last)| *last <= verified) {
            number = Some(done);
        }
        number
    }

    /// The acknowledgements that may leave in `term`; those of earlier terms never do.
    fn take_held(&mut self, term: u64) -> Vec<Message> {
        let verified = self.verified();
        self.held.retain(|message| message.term >= term);
        let may_leave = |message: &mut Message| message.index <= verified;
        self.held.extract_if(.., may_leave).collect()
    }

    /// Keeps back those of `messages` that acknowledge what is not verified.
    pub(super) fn hold(&mut self, messages: Vec<Message>) -> Vec<Message> {
        let verified = self.verified();
        let acknowledges = |message: &Message| {
            message.get_msg_type() == MessageType::MsgAppendResponse
                && !message.reject
                && message.index > verified
        };
        let (held, free) = messages.into_iter().partition(acknowledges);
        self.held.extend::<Vec<Message>>(held);
        free
    }
}

impl<M: StateMachine> Replica<M> {
    /// Takes note of entries that are about to be written, and asks for what is to be verified.
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
        let standing = match (admitted, self.proposals.claims(&batch)) {
            (Some((_, checked)), _) => Standing::Checked(checked),
            (None, Some(true)) => Standing::Own,
            (None, Some(false)) => Standing::Faulty(Fault::Framed),
            (None, None) if batch.commands.is_empty() => Standing::Checked(Vec::new()),
            (None, None) => Standing::Asked(verifying.ask(batch.commands.clone())),
        };
        match &standing {
            Standing::Asked(ticket) => {
                verifying.asked.insert(*ticket, index);
                verifying.unverified.insert(index, *ticket);
            }
            Standing::Faulty(_) => drop(verifying.unverified.insert(index, CheckTicket(0))),
            Standing::Own | Standing::Checked(_) => {}
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

    /// A check has ended.
    ///
    /// # Errors
    /// When something is forged: it was refused, and the replica goes on.
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
        // Whatever stood there was replaced, or given up for a snapshot.
        let Some(index) = self.verifying.asked.remove(&ticket) else {
            return Ok(());
        };
        let unapplied = self.verifying.unapplied.get_mut(&index);
        let unapplied = unapplied.expect("what is asked about is not applied");
        unapplied.standing = match outcome {
            Ok(commands) => {
                assert_eq!(commands.len(), unapplied.batch.commands.len());
                self.verifying.unverified.remove(&index);
                Standing::Checked(commands)
            }
            Err(forged) => Standing::Faulty(Fault::Forged(forged)),
        };
        self.settle_verified()
    }

    /// Counts what is durable and verified as this replica's own.
    pub(super) fn acknowledge(&mut self) {
        if let Some(number) = self.verifying.take_acknowledged() {
            self.raw.on_persist_ready(number);
        }
    }

    /// Acknowledges what is durable and verified, and deals with what must not be there.
    pub(super) fn settle_verified(&mut self) -> Result<(), Forgery> {
        self.acknowledge();
        let held = self.verifying.take_held(self.raw.raft.term);
        self.outbox.extend(envelopes(held));
        self.settle_elections();
        self.judge()
    }

    /// The first entry that is not verified is faulty: all before it may stay.
    fn judge(&mut self) -> Result<(), Forgery> {
        let Some((&index, _)) = self.verifying.unverified.first_key_value() else {
            return Ok(());
        };
        let Some(UnappliedEntry {
            standing: Standing::Faulty(fault),
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
        self.cut(index);
        Err(Forgery::Leader(accusation))
    }

    /// Gives up the log from `first` on, of which nothing was acknowledged, as a start from disk
    /// would, and stands for election. What the disk holds of it is replaced by what comes next,
    /// and cut again should this replica start before that.
    fn cut(&mut self, first: u64) {
        assert!(first > self.applied.0, "what was applied was verified");
        self.verifying.forget_from(first);
        self.verifying.durable.clear();
        self.verifying.held.clear();
        let log = self.raw.mut_store().take_before(LogIndex(first));
        let config = raft_config(&self.config, self.applied);
        let raw = RawNode::new(&config, log, &silent());
        self.raw = raw.expect("the log was good for the replica that wrote it");
        self.commits = super::Commits::default();
        self.snapshot_ticks.clear();
        self.settle_elections();
        if self.is_member() {
            // Refused while it still has changes of members to apply; its time comes anyway.
            let _later = self.raw.campaign();
        }
        self.settle_elections();
        assert!(self.raw.raft.raft_log.last_index() < first || self.is_leader());
    }

    /// Whether a message is from a leader whose entries this replica refused a short while ago in
    /// this term. Where the others still follow it, it is heard again: nothing forged is ever
    /// acknowledged, and what is not may be followed.
    pub(super) fn is_accused(&self, message: &Message) -> bool {
        let deaf_ticks = DEAF_TIMEOUTS * self.config.election_ticks as u64;
        let accused = self.verifying.accusation.as_ref();
        accused.is_some_and(|(it, at)| {
            it.leader.is_some_and(|leader| leader.get() == message.from)
                && it.term.0 == message.term
                && at + deaf_ticks > self.ticks
        })
    }

    /// The last leader whose entries this replica refused, if there was one.
    #[must_use]
    pub fn accusation(&self) -> Option<&Accusation> {
        self.verifying.accusation.as_ref().map(|(it, _)| it)
    }

    /// The last entry up to which everything in the log was verified.
    #[must_use]
    pub fn verified(&self) -> LogIndex {
        LogIndex(self.verifying.verified().min(self.raw.store().last().0))
    }

    /// Whether something in the log was not verified yet, or not even looked at.
    pub(super) fn has_unverified(&self) -> bool {
        self.verifying.is_behind() || !self.raw.raft.raft_log.unstable_entries().is_empty()
    }

    /// Another replica's batch is verified before it enters this leader's log.
    pub(super) fn verify_forwarded(&mut self, from: ReplicaId, batch: Batch, data: Bytes) {
        let known = |it: &ForwardedBatch| it.batch == batch.id;
        let forwarded = &self.verifying.forwarded;
        if forwarded.len() >= FORWARDED_MAX || forwarded.values().any(known) {
            return;
        }
        let ticket = self.verifying.ask(batch.commands);
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
        let stamp = self.stamp();
        if !self.is_leader() || stamp == LogTime(0) {
            // Its origin sends it again, to whoever leads then.
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
            data: restamp(&data, stamp),
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

    /// Tells the others of a checkpoint: everything up to it was verified, since it was applied.
    pub(super) fn tell_checkpoint(&mut self, checkpoint: crate::checkpoint::Checkpoint) {
        self.tell_others(&PeerMessage::Checkpoint(checkpoint));
    }
}
