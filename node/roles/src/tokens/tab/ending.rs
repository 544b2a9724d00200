//! Ends a tab: by a receipt that both sides sign, or without one if the provider is lost or bills
//! more than the buyer counted. It also disputes a usage note (a provider's statement in the log)
//! that exceeds the buyer's count.

use souk_market::{
    Command, Credits, DeviceMicros, Lease, LeaseId, LeaseState, Millis, Receipt, TokenUsage,
};

use super::{
    BillObjection, TabAction, TabCore, TabFailure, TabOutcome, TabStage, TabTimer, TabWait,
};
use crate::clock::{Micros, Timers};
use crate::lease::{BuyerMessage, Failure};

/// How long the core follows a lease after its end, until the log closes it. A provider can note
/// usage for two minutes, and a note is open for one more.
const CLOSING_MAX: Micros = Micros::from_seconds(240);

/// The share of a note's time that the core keeps for its answer.
const NOTE_SHARE: u64 = 3;

/// How long a note waits for its answer in every market. By a clock that runs late, it seems to
/// wait longer.
const NOTE_DEADLINE: Millis = Millis(60_000);

/// The most by which the held time in a note can exceed the buyer's own: a provider can learn late
/// that the stream is broken.
const HELD_SLACK: Micros = Micros::from_seconds(10);

impl TabCore {
    /// Fails the open request, and ends the tab without a receipt.
    pub(super) fn end_early(&mut self, failure: TabFailure) {
        self.fail_request(failure.clone());
        self.failure.get_or_insert(failure.clone());
        if self.terms.is_none() {
            return self.finish(Credits(0));
        }
        let reason = failure.to_string();
        if self.is_talking() {
            self.push_effect(TabAction::SendMessage(BuyerMessage::Refused { reason }));
            self.push_effect(TabAction::CloseStream);
        }
        self.stage = TabStage::Ending;
        // The slot is held until the log ends the lease.
        self.idle_since.get_or_insert(self.now.tick);
        self.stop_timers_of_work();
        self.waits.forget_waits(|wait| *wait != TabWait::Command);
        self.wake_in(TabTimer::Closing, CLOSING_MAX);
        let lease = self.lease_id();
        let command = match failure {
            // What was billed wrongly is refused: the market then pays no more than was accepted.
            TabFailure::Bill(objection) if !objection.is_of_time() => self.dispute(lease),
            TabFailure::BadAnswer(_) => self.dispute(lease),
            // Silence would accept the note, whoever ends the lease. Without a note, the provider
            // is still to note the tokens, which it counts like the buyer.
            _ if self.is_note_over() => self.dispute(lease),
            _ => Command::EndLease { lease },
        };
        self.submit_command(command, TabWait::Command);
    }

    fn dispute(&mut self, lease: LeaseId) -> Command {
        self.has_disputed = true;
        Command::Dispute { lease }
    }

    pub(super) fn fail_request(&mut self, failure: TabFailure) {
        if self.open.take().is_some() {
            self.push_effect(TabAction::Fail(failure));
        }
    }

    /// Ends a tab whose lease was never bought.
    pub(super) fn stop(&mut self, failure: TabFailure) {
        self.fail_request(failure.clone());
        self.failure = Some(failure);
        self.finish(Credits(0));
    }

    fn stop_timers_of_work(&mut self) {
        use TabTimer::{Idle, Look, Nears, Receipt, Silent, Start, Text};
        for timer in [Silent, Start, Idle, Nears, Receipt, Text, Look] {
            self.timers.stop_timer(timer);
        }
    }

    pub(super) fn on_finished(&mut self, receipt: Receipt) {
        if self.open.as_ref().is_some_and(|open| open.answer.is_some()) {
            // The last answer is still being counted.
            self.receipt = Some(Box::new(receipt));
            return;
        }
        if self.open.is_some() {
            // An answer is still owed, so the provider has no reason to end.
            return self.end_early(TabFailure::Confused);
        }
        self.end_idle();
        if let Err(objection) = self.check_receipt(&receipt) {
            return self.end_early(TabFailure::Bill(objection));
        }
        self.stage = TabStage::Signing;
        self.stop_timers_of_work();
        self.request_effect(TabAction::Sign(Box::new(receipt)), TabWait::Sign);
    }

    pub(super) fn on_signed(&mut self, receipt: Box<Receipt>) {
        self.stage = TabStage::Settling;
        let signed = BuyerMessage::Signed(receipt.clone());
        self.push_effect(TabAction::SendMessage(signed));
        self.push_effect(TabAction::CloseStream);
        self.submit_command(Command::Settle(receipt.clone()), TabWait::Settle);
        self.receipt = Some(receipt);
    }

    pub(super) fn on_settled(&mut self, settled: Result<(), String>) {
        let amount = self.receipt.as_ref().expect("it is signed").body.amount;
        let escrow = self.terms.as_ref().map_or(amount, |terms| terms.escrow);
        let amount = amount.min(escrow);
        match settled {
            Ok(()) => self.finish(amount),
            Err(why) => {
                self.failure.get_or_insert(TabFailure::Unreachable(why));
                self.follow_to_close(amount);
            }
        }
    }

    /// Follows a lease whose receipt the market did not settle here: the provider has the receipt
    /// too and can settle it, or note more than it says.
    fn follow_to_close(&mut self, amount: Credits) {
        self.cost.get_or_insert(amount);
        self.stage = TabStage::Ending;
        self.wake_in(TabTimer::Closing, CLOSING_MAX);
        if let Some(seen) = self.seen_at_end.take() {
            self.on_changed(&seen);
        }
    }

    pub(super) fn on_changed(&mut self, lease: &Lease) {
        let is_ours = self.terms.as_ref().is_some_and(|it| it.lease == lease.id);
        if !is_ours {
            return;
        }
        if matches!(self.stage, TabStage::Signing | TabStage::Settling) {
            self.seen_at_end = Some(Box::new(lease.clone()));
            return;
        }
        if let LeaseState::Closed { .. } = lease.state {
            self.cost = Some(lease.cost);
            return match self.stage {
                TabStage::Ending => self.finish(lease.cost),
                _ => self.end_early(TabFailure::Failed(Failure::Expired)),
            };
        }
        if self.stage == TabStage::Ending && !lease.is_running() {
            self.end_idle();
        }
        if lease.reserved_until.is_some() && self.is_talking() {
            // The provider reports no work, and the buyer still wants the tab.
            self.start_work();
        }
        if self.note != lease.note {
            self.note = lease.note;
            match &self.note {
                Some(note) => {
                    let left = note.accepted_at.saturating_since(self.now.log);
                    let left = left.min(NOTE_DEADLINE);
                    let wait = Millis(left.0 - left.0 / NOTE_SHARE);
                    self.wake_in(TabTimer::Note, Micros::from_millis(wait.0));
                }
                None => self.timers.stop_timer(TabTimer::Note),
            }
        }
    }

    /// Returns whether an open note states more than the buyer counted.
    fn is_note_over(&self) -> bool {
        let owed = self.owed_time();
        self.note.is_some_and(|note| note.usage > owed)
    }

    /// Returns the device time that is owed at most: of all tokens that came, or of the floor.
    fn owed_time(&self) -> DeviceMicros {
        let came = self.counted.plus(self.streamed);
        let since = self.idle_since.map(|since| self.now.tick.since(since));
        let held = self.idle.plus(since.unwrap_or_default());
        let owed = TokenUsage {
            terms: self.token_terms(),
            input: came.input,
            cached: came.cached,
            output: came.output,
            held: DeviceMicros(held.plus(HELD_SLACK).0),
        };
        owed.usage().min(self.lease_time())
    }

    /// Answers a note before silence would accept it: disputes a usage beyond the buyer's count.
    pub(super) fn answer_note(&mut self) {
        let Some(note) = self.note else {
            return;
        };
        let counted = self.owed_time();
        if note.usage <= counted || self.has_disputed {
            return;
        }
        let objection = BillObjection::Usage {
            billed: note.usage,
            counted,
        };
        if self.stage != TabStage::Ending {
            return self.end_early(TabFailure::Bill(objection));
        }
        let lease = self.lease_id();
        let command = self.dispute(lease);
        self.submit_command(command, TabWait::Command);
    }

    pub(super) fn finish(&mut self, cost: Credits) {
        self.stage = TabStage::Over;
        self.timers = Timers::default();
        let outcome = TabOutcome {
            receipt: self.receipt.take(),
            failure: self.failure.take(),
            counted: self.counted.device_time(self.token_terms()),
            cost,
        };
        self.push_effect(TabAction::Over(outcome));
    }
}
