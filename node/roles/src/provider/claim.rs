//! Gets a provider paid for a lease whose work has ended: signs the receipt, waits for the buyer's
//! signature, and settles in the market. If the buyer does not sign, it notes the usage in the log
//! instead. A claim ends when the log has closed the lease.
//!
//! ```text
//! Recording ─Ran on the disk─> Signing ─> Told ─both signed─> Keeping ─on the disk─> Settling
//!   Told ─refused, 30 s, end, stop─> Noting          Settling ─2 s or stop─> Closing
//!   nothing ran: GivingUp for an own fault, else Closing (the log ends it)
//!   Closing ─ended, nothing else to say─> Claiming ─> Closing
//! ```
//! In every stage, a buyer that comes back receives the result once it is signed, and can sign.

use serde::Serialize;
use souk_market::{
    Acceptance, AccountKey, Command, DeviceMicros, Lease, LeaseId, LeaseState, Millis, Receipt,
    Refusal,
};

use super::StreamId;
use super::action::{Action, Report};
use super::event::NotDone;
use super::facts::{Fact, LeaseResult, PastLease, PastState};
use super::provider_context::{FollowingStep, RETRY, SharedState, Stage, Timer, Wait};
use crate::clock::Micros;
use crate::lease::{BuyerMessage, Failure, ProviderMessage, WorkResult, truncate_text};

/// How long the buyer can take to fetch the outputs and sign.
const SIGN_WAIT: Micros = Micros::from_seconds(30);

/// How long the provider waits before it settles itself; the buyer normally settles as soon as it
/// has signed.
const SETTLE_WAIT: Micros = Micros::from_seconds(2);

/// The part of the grace that the buyer gets if its lease ended before it received the result.
const LATE_WAIT: Millis = Millis(1_000);

/// The stage of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ClaimStage {
    /// It is of an earlier life: the core asks the log for its state.
    Recovering,
    /// The core records that the work is done.
    Recording,
    /// The provider signs the receipt.
    Signing,
    /// The buyer has the result, and the core waits for its signature.
    Told,
    /// The core records that both sides signed.
    Keeping,
    /// Both sides signed: the buyer can settle.
    Settling,
    /// The core notes the usage in the log.
    Noting,
    /// The core gives up the lease.
    GivingUp,
    /// The core claims the time during which the buyer held the device.
    Claiming,
    /// The core waits for the log to close it.
    Closing,
    /// The core records how the log closed it.
    Closed,
}

/// The buyer's debt for a lease.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Claim {
    pub(super) lease: LeaseId,
    pub(super) buyer: AccountKey,
    pub(super) stage: ClaimStage,
    pub(super) stream: Option<StreamId>,
    /// When the lease ends.
    ends_at: Millis,
    usage: Option<DeviceMicros>,
    /// The part of a tab's usage that its buyer cannot dispute, since it has those answers.
    pub(super) known_usage: Option<DeviceMicros>,
    /// The part of the usage to note first; the rest follows once that is accepted.
    noted_part: Option<DeviceMicros>,
    /// Whether the provider can still claim the time during which the device was held.
    is_claimable: bool,
    work: Option<Box<LeaseResult>>,
    /// The receipt with both signatures.
    receipt: Option<Box<Receipt>>,
}

impl Claim {
    /// Creates the claim for a lease with completed work.
    pub(super) fn of_work(
        shared: &mut SharedState,
        work: LeaseResult,
        ends_at: Millis,
        stream: Option<StreamId>,
    ) -> Claim {
        let (lease, usage) = (work.body.lease, work.body.usage);
        let ran = Fact::Ran {
            lease,
            usage,
            work: Some(Box::new(work.clone())),
        };
        shared.record_facts(vec![ran], FollowingStep::Told(lease));
        let mut claim = Claim {
            lease,
            buyer: work.body.buyer,
            stage: ClaimStage::Recording,
            stream,
            ends_at,
            usage: Some(usage),
            known_usage: None,
            noted_part: None,
            is_claimable: true,
            work: Some(Box::new(work)),
            receipt: None,
        };
        claim.await_signature(shared);
        claim
    }

    /// Creates the claim for a lease without any debt.
    pub(super) fn of_nothing(
        shared: &mut SharedState,
        lease: LeaseId,
        buyer: AccountKey,
        ends_at: Millis,
        is_own_fault: bool,
    ) -> Claim {
        let mut claim = Claim {
            lease,
            buyer,
            stage: ClaimStage::Closing,
            stream: None,
            ends_at,
            usage: None,
            known_usage: None,
            noted_part: None,
            is_claimable: true,
            work: None,
            receipt: None,
        };
        if is_own_fault {
            claim.give_up(shared);
        }
        claim
    }

    /// Creates the claim for a lease of an earlier life; none if the log closed it then.
    pub(super) fn of_past(
        shared: &mut SharedState,
        lease: LeaseId,
        past: PastLease,
    ) -> Option<Claim> {
        let mut claim = Claim {
            lease,
            buyer: past.buyer,
            stage: ClaimStage::Recovering,
            stream: None,
            ends_at: Millis(0),
            usage: None,
            known_usage: None,
            noted_part: None,
            is_claimable: true,
            work: None,
            receipt: None,
        };
        match past.state {
            PastState::Began => {}
            PastState::Answered { usage } => {
                claim.usage = Some(usage);
                // Its buyer did not hold the device while no process ran.
                claim.is_claimable = false;
            }
            PastState::Ran { usage, work } => {
                (claim.usage, claim.work) = (Some(usage), work);
            }
            PastState::Signed { receipt } => claim.receipt = Some(receipt),
            PastState::Closed => return None,
        }
        if let Some(work) = &claim.work {
            let body = Box::new(work.body.clone());
            shared.request_effect(Wait::Sign(lease), Action::Sign(body));
        }
        shared.look_at(lease);
        Some(claim)
    }

    /// Returns whether the provider must wait for it before it ends.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.stage, ClaimStage::Closing)
    }

    /// Sets the timer for the buyer's signature, at the latest a moment after the end of the lease.
    fn await_signature(&mut self, shared: &mut SharedState) {
        let late = Millis(shared.now.log.0.saturating_add(LATE_WAIT.0));
        let until = shared.tick_at(self.ends_at.max(late));
        let until = until.min(shared.now.tick.plus(SIGN_WAIT));
        shared.timers.set_timer(Timer::Signature(self.lease), until);
    }

    /// Continues once the record of the work is on the disk.
    pub(super) fn on_work_recorded(&mut self, shared: &mut SharedState) {
        if self.stage != ClaimStage::Recording {
            return;
        }
        self.stage = ClaimStage::Signing;
        let work = self.work.as_ref().expect("what was recorded is known");
        let body = Box::new(work.body.clone());
        shared.request_effect(Wait::Sign(self.lease), Action::Sign(body));
    }

    /// Takes the receipt with this provider's signature.
    pub(super) fn on_signed(&mut self, shared: &mut SharedState, receipt: Receipt) {
        let Some(work) = &self.work else {
            return;
        };
        assert_eq!(receipt.body, work.body, "what is signed is what was asked");
        let finished = WorkResult {
            receipt,
            outputs: work.outputs.clone(),
            shown: Vec::new(),
        };
        shared.store_result(&finished);
        if self.stage != ClaimStage::Signing {
            return;
        }
        self.stage = ClaimStage::Told;
        shared.send_message(self.stream, ProviderMessage::Finished(Box::new(finished)));
        match self.must_not_wait(shared) {
            true => self.note_usage(shared, None),
            false => self.await_signature(shared),
        }
    }

    /// Handles the buyer's return. Returns whether the claim has something for it.
    pub(super) fn on_resumed(&mut self, shared: &mut SharedState, stream: StreamId) -> bool {
        if self.stage < ClaimStage::Told && self.stage != ClaimStage::Recovering {
            shared.close_stream(&mut self.stream);
            shared.send_message(Some(stream), ProviderMessage::Accepted);
            self.stream = Some(stream);
            return true;
        }
        let Some(finished) = shared.result_for_buyer(self.lease, self.buyer).cloned() else {
            return false;
        };
        shared.close_stream(&mut self.stream);
        let message = ProviderMessage::Finished(Box::new(finished));
        shared.send_message(Some(stream), message);
        self.stream = Some(stream);
        true
    }

    /// Handles a message of the buyer.
    pub(super) fn on_message(&mut self, shared: &mut SharedState, message: BuyerMessage) {
        match message {
            BuyerMessage::Signed(receipt) => self.on_receipt(shared, receipt),
            BuyerMessage::Refused { reason } => {
                shared.close_stream(&mut self.stream);
                self.note_unless_signed(shared, Some(truncate_text(reason)));
            }
            // All work was done when the message arrived.
            BuyerMessage::Go
            | BuyerMessage::Next(_)
            | BuyerMessage::NoMore
            | BuyerMessage::Limit { .. } => {}
        }
    }

    fn on_receipt(&mut self, shared: &mut SharedState, receipt: Box<Receipt>) {
        shared.close_stream(&mut self.stream);
        let is_told = matches!(
            self.stage,
            ClaimStage::Told | ClaimStage::Noting | ClaimStage::Closing
        );
        let is_ours = self.work.as_ref().is_some_and(|w| w.body == receipt.body);
        if !is_told || !is_ours || receipt.verify().is_err() {
            return self.note_unless_signed(shared, None);
        }
        self.stage = ClaimStage::Keeping;
        shared.timers.stop_timer(Timer::Signature(self.lease));
        shared.timers.stop_timer(Timer::Retry(self.lease));
        self.receipt = Some(receipt.clone());
        let signed = Fact::Signed { receipt };
        shared.record_facts(vec![signed], FollowingStep::Settled(self.lease));
    }

    /// Continues once the record of both signatures is on the disk. A buyer that settles at once
    /// can have closed the lease before; the provider keeps the receipt then too.
    pub(super) fn on_receipt_recorded(&mut self, shared: &mut SharedState) {
        let receipt = self.receipt.as_ref().expect("it was recorded");
        shared.push_effect(Action::Tell(Report::Settled(receipt.clone())));
        if self.stage != ClaimStage::Keeping {
            return;
        }
        self.stage = ClaimStage::Settling;
        // A stopping provider does not wait for the buyer: to settle twice has no effect.
        match shared.stage >= Stage::Draining {
            true => shared.look_at(self.lease),
            false => shared.wake_in(Timer::Settle(self.lease), SETTLE_WAIT),
        }
    }

    /// Settles, because the provider stops, what it would leave to the buyer, and notes the usage
    /// that an absent buyer has not signed.
    pub(super) fn on_stopping(&mut self, shared: &mut SharedState) {
        if self.stage == ClaimStage::Told && self.must_not_wait(shared) {
            return self.note_usage(shared, None);
        }
        if self.stage == ClaimStage::Settling && shared.timers.is_set(Timer::Settle(self.lease)) {
            shared.timers.stop_timer(Timer::Settle(self.lease));
            shared.look_at(self.lease);
        }
    }

    /// Handles the end of the buyer's stream. A buyer that crashed can come back and sign, or find
    /// out which of two providers was right: it has the same time as one that stays.
    pub(super) fn on_lost(&mut self, shared: &mut SharedState) {
        self.stream = None;
        if self.stage == ClaimStage::Told && self.must_not_wait(shared) {
            self.note_usage(shared, None);
        }
    }

    /// Returns whether a stopping provider would wait for a buyer that may not come back.
    fn must_not_wait(&self, shared: &SharedState) -> bool {
        let is_away = self.stream.is_none();
        shared.stage >= Stage::Leaving || is_away && shared.stage >= Stage::Draining
    }

    fn note_unless_signed(&mut self, shared: &mut SharedState, reason: Option<String>) {
        if self.stage == ClaimStage::Told {
            self.note_usage(shared, reason);
        }
    }

    /// Handles a buyer whose time to sign is over.
    pub(super) fn on_unsigned(&mut self, shared: &mut SharedState) {
        if matches!(
            self.stage,
            ClaimStage::Told | ClaimStage::Recording | ClaimStage::Signing
        ) {
            self.note_usage(shared, None);
        }
    }

    /// Notes the usage if the buyer does not sign: the note counts unless the buyer disputes it.
    fn note_usage(&mut self, shared: &mut SharedState, reason: Option<String>) {
        self.stage = ClaimStage::Noting;
        self.note_known_first();
        shared.timers.stop_timer(Timer::Signature(self.lease));
        let lease = self.lease;
        shared.push_effect(Action::Tell(Report::Unsigned { lease, reason }));
        self.send_command(shared);
    }

    /// Has the answers noted first that the buyer of a tab surely has. It disputes a note with an
    /// answer that was lost on the way, and would then pay for none of the others.
    fn note_known_first(&mut self) {
        self.noted_part = self.known_usage.filter(|known| Some(*known) < self.usage);
    }

    /// Gives up the lease, without any debt.
    pub(super) fn give_up(&mut self, shared: &mut SharedState) {
        self.is_claimable = false;
        self.stage = ClaimStage::GivingUp;
        self.send_command(shared);
    }

    /// Returns the usage in the next note.
    fn next_note(&self) -> Option<DeviceMicros> {
        self.noted_part.or(self.usage)
    }

    /// Sends the market the command that fits the stage.
    fn send_command(&self, shared: &mut SharedState) {
        let lease = self.lease;
        let command = match self.stage {
            ClaimStage::Noting => Command::NoteUsage {
                lease,
                usage: self.next_note().expect("what was done was measured"),
            },
            ClaimStage::GivingUp => Command::GiveUp { lease },
            ClaimStage::Claiming => Command::StateReady { lease },
            ClaimStage::Settling => {
                let receipt = self.receipt.clone().expect("both have signed");
                Command::Settle(receipt)
            }
            stage => unreachable!("nothing is commanded while {stage:?}"),
        };
        shared.request_effect(Wait::Command(lease), Action::Command(Box::new(command)));
    }

    /// Retries a command.
    pub(super) fn on_retry(&mut self, shared: &mut SharedState) {
        match self.stage {
            ClaimStage::Noting | ClaimStage::GivingUp | ClaimStage::Claiming => {
                self.send_command(shared);
            }
            ClaimStage::Settling | ClaimStage::Recovering | ClaimStage::Closing => {
                shared.look_at(self.lease);
            }
            _ => {}
        }
    }

    /// Handles the market's result for the command.
    pub(super) fn on_commanded(
        &mut self,
        shared: &mut SharedState,
        commanded: Result<Acceptance, NotDone>,
    ) {
        let is_awaited = matches!(
            self.stage,
            ClaimStage::Noting | ClaimStage::GivingUp | ClaimStage::Settling | ClaimStage::Claiming
        );
        if !is_awaited {
            return;
        }
        match commanded {
            Err(NotDone::Uncertain(_)) => return shared.wake_in(Timer::Retry(self.lease), RETRY),
            // A note can add only this much: the rest follows once it is accepted.
            Err(NotDone::Refused(Refusal::UsageOver { possible, .. }))
                if self.stage == ClaimStage::Noting
                    && possible.0 > 0
                    && self.next_note() > Some(possible) =>
            {
                self.noted_part = Some(possible);
                return self.send_command(shared);
            }
            // What the buyer surely has is accepted: the rest follows, once. A part that the market
            // limited can be all that it ever accepts.
            Err(NotDone::Refused(Refusal::UsageStale { .. }))
                if self.noted_part.is_some() && self.noted_part == self.known_usage.take() =>
            {
                self.noted_part = None;
                return self.send_command(shared);
            }
            // The buyer must answer an earlier note first.
            Err(NotDone::Refused(Refusal::NoteOpen { .. })) => {
                self.noted_part = Some(DeviceMicros(0));
            }
            Err(NotDone::Refused(refusal)) if !is_harmless(&refusal) => {
                self.noted_part = None;
                let (why, lease) = (refusal.to_string(), self.lease);
                let command = match self.stage {
                    ClaimStage::Settling => {
                        // A receipt that cannot be settled leaves only a note.
                        let receipt = self.receipt.clone().expect("both have signed");
                        self.usage = Some(receipt.body.usage);
                        self.stage = ClaimStage::Noting;
                        self.send_command(shared);
                        return;
                    }
                    ClaimStage::GivingUp => Command::GiveUp { lease },
                    ClaimStage::Claiming => Command::StateReady { lease },
                    _ => Command::NoteUsage {
                        lease,
                        usage: self.usage.unwrap_or_default(),
                    },
                };
                let command = Box::new(command);
                shared.push_effect(Action::Tell(Report::NotCommanded { command, why }));
            }
            Err(NotDone::Refused(_)) => self.noted_part = None,
            Ok(_) => {}
        }
        self.stage = ClaimStage::Closing;
        shared.look_at(self.lease);
    }

    /// Handles the lease's state in the log; none if the log no longer knows it.
    pub(super) fn on_seen(&mut self, shared: &mut SharedState, lease: Option<&Lease>) {
        let (paid, reason) = match lease.map(|lease| lease.state) {
            None => (None, None),
            Some(LeaseState::Closed { paid, reason, .. }) => (Some(paid), Some(reason)),
            Some(_) => return self.on_open(shared, lease),
        };
        if self.stage == ClaimStage::Closed {
            return;
        }
        self.stage = ClaimStage::Closed;
        let id = self.lease;
        shared.timers.stop_all(|timer| timer.lease_id() == Some(id));
        shared.stop_effects(|wait| matches!(wait, Wait::Command(of) | Wait::Look(of) if *of == id));
        shared.close_stream(&mut self.stream);
        let closed = Fact::Closed {
            lease: id,
            paid,
            reason,
            at: shared.now.log,
        };
        shared.record_facts(vec![closed], FollowingStep::Nothing);
    }

    /// Handles a lease that is open in the log.
    fn on_open(&mut self, shared: &mut SharedState, lease: Option<&Lease>) {
        let lease = lease.expect("it was looked at");
        match self.stage {
            ClaimStage::Recovering => {
                self.ends_at = lease.end_time();
                let report = Report::Recovered { lease: self.lease };
                shared.push_effect(Action::Tell(report));
                if self.receipt.is_some() {
                    self.stage = ClaimStage::Settling;
                    self.send_command(shared);
                } else if self.usage.is_some() {
                    self.stage = ClaimStage::Noting;
                    self.send_command(shared);
                } else {
                    self.give_up(shared);
                }
            }
            ClaimStage::Told if lease.end_time() < self.ends_at => {
                self.ends_at = lease.end_time();
                self.await_signature(shared);
            }
            ClaimStage::Closing
                if self.noted_part.is_some()
                    && lease.note.is_none()
                    && self.usage > Some(lease.accepted) =>
            {
                self.known_usage = self.known_usage.filter(|known| *known > lease.accepted);
                self.note_known_first();
                self.stage = ClaimStage::Noting;
                self.send_command(shared);
            }
            ClaimStage::Closing if self.is_claimable && is_unclaimed(lease) => {
                self.is_claimable = false;
                self.stage = ClaimStage::Claiming;
                self.send_command(shared);
            }
            ClaimStage::Settling if !shared.timers.is_set(Timer::Settle(self.lease)) => {
                let is_asked = |w: &Wait| matches!(w, Wait::Command(of) if *of == self.lease);
                if !shared.pending.iter().any(is_asked) {
                    self.send_command(shared);
                }
            }
            _ => {}
        }
    }

    /// Handles a log that did not answer.
    pub(super) fn on_not_seen(&self, shared: &mut SharedState) {
        if matches!(self.stage, ClaimStage::Recovering | ClaimStage::Settling) {
            shared.wake_in(Timer::Retry(self.lease), RETRY);
        }
    }

    /// Returns whether no more messages about it follow while the lease continues.
    pub(super) fn is_at_rest(&self) -> bool {
        self.stage == ClaimStage::Closing && self.stream.is_none()
    }

    /// Asserts the invariants that must hold after each step.
    pub(super) fn assert_invariants(&self, shared: &SharedState) {
        use ClaimStage::{Closing, GivingUp, Keeping, Settling};
        assert!(shared.begun.has_begun(self.lease), "it was begun");
        if matches!(self.stage, Keeping | Settling) {
            let receipt = self.receipt.as_ref().expect("both have signed");
            // The core verified the signatures on arrival: to verify them after each step costs too
            // much.
            let signed = receipt.buyer_signature.and(receipt.provider_signature);
            assert!(signed.is_some(), "both have signed");
        }
        let is_given_up = self.stage == GivingUp;
        assert!(!is_given_up || self.usage.is_none(), "what is owed is kept");
        let moves = shared
            .timers
            .iter()
            .any(|(t, _)| t.lease_id() == Some(self.lease));
        let waits = shared.pending.iter().any(|wait| match wait {
            Wait::Command(of) | Wait::Look(of) | Wait::Sign(of) => *of == self.lease,
            Wait::Record(facts, _) => !facts.is_empty(),
            _ => false,
        });
        let is_at_rest =
            matches!(self.stage, Closing | ClaimStage::Closed) || shared.stage == Stage::Stopped;
        assert!(
            is_at_rest || moves || waits || shared.unwritten_fact_count() > 0,
            "{:?} of {} waits for nothing",
            self.stage,
            self.lease
        );
    }
}

/// Returns whether a closed lease held a device for which its provider has claimed nothing.
fn is_unclaimed(lease: &Lease) -> bool {
    let is_held = matches!(lease.state, LeaseState::Due { ended, .. } if ended > lease.start);
    is_held && !lease.claimed && lease.note.is_none()
}

/// Returns whether a refusal only says that the lease is over, or repeats an earlier command.
fn is_harmless(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::LeaseClosed { .. } | Refusal::LeaseEnded { .. } | Refusal::UsageStale { .. }
    )
}

/// Returns the failure of a lease that cannot begin because the disk failed.
pub(super) fn not_written(why: String) -> Failure {
    Failure::Journal(truncate_text(why))
}
