//! A lease: device time that a buyer has paid into escrow, and its state machine.
//!
//! ```text
//! Waiting ──device free──> Active ──reclaim, displacement──> Ending ──┐
//!                            └──deadline, early end, resale───────────┴──> Due
//! Due ──grace over, the provider's last claim──> Closed
//! any but Closed ──receipt, give-up──> Closed
//! any but Closed ──refused work──> Due, or Closed where its provider has noted it
//! ```
//! In `Due` the device is free again and only the payment is open: the parties can submit a receipt
//! or a last note until the grace ends. On entering `Closed` the exchange pays and refunds, exactly
//! once.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::dispute::DisputeId;
use crate::ids::{AccountKey, BookId, DeviceId, JobId, LeaseId, OrderId, Slot, TermsId};
use crate::order::Term;
use crate::rules::Rules;
use crate::text::Name;
use crate::tokens::TokenTerms;
use crate::units::{Credits, DeviceMicros, Millis, Permille, Price, Units};

/// Device time that a buyer has bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The lease's id.
    pub id: LeaseId,
    /// The buyer's account.
    pub buyer: AccountKey,
    /// The provider's account.
    pub provider: AccountKey,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The class in which the buyer bought it.
    pub class: Class,
    /// The name of the device model.
    pub model: Name,
    /// The ask that traded.
    pub ask: OrderId,
    /// The bid that traded.
    pub bid: OrderId,
    /// The buyer's job.
    pub job: JobId,
    /// The price per device-second.
    pub price: Price,
    /// The units of the device.
    pub quantity: Units,
    /// Credits that the lease holds; zero once it is closed.
    pub escrow: Credits,
    /// Credits that the buyer paid in the end; zero until the lease is closed.
    pub cost: Credits,
    /// The log time at which the lease starts.
    pub start: Millis,
    /// The latest log time at which the lease ends.
    pub deadline: Millis,
    /// Firm or spot.
    pub term: Term,
    /// The notice before a reclaim or a displacement, in milliseconds.
    pub notice: Millis,
    /// The market's share of the payment, in basis points, as the rule was at the trade.
    pub fee_basis_points: u16,
    /// Whether the buyer stated that the work has begun; until then the rule `note_unstarted`
    /// limits notes.
    pub work_started: bool,
    /// The part of the price that a second costs in which the device is held and not used.
    pub idle: Permille,
    /// The terms of tokens, if the lease is for those.
    pub tokens: Option<TokenTerms>,
    /// The log time until which the buyer must state that it works or end the lease, after its
    /// provider stated that it is ready.
    pub reserved_until: Option<Millis>,
    /// Whether the provider claims the time in which the device was held and not used.
    pub claimed: bool,
    /// The total usage that the provider states for work that the buyer refused.
    pub refused: DeviceMicros,
    /// Usage that the buyer accepted, by command or by silence.
    pub accepted: DeviceMicros,
    /// The part of it that the buyer accepted by command; silence can add at most one note's span
    /// to it.
    pub agreed: DeviceMicros,
    /// The last notes in a row that silence accepted.
    pub silent_notes: u8,
    /// The note that waits for the buyer's answer.
    pub note: Option<Note>,
    /// The longest duration that extensions can reach, in milliseconds.
    pub duration_max: Millis,
    /// The lease's current state.
    pub state: LeaseState,
    /// The lease that displaced this one and will take the device over.
    pub successor: Option<LeaseId>,
    /// The ask by which the buyer resells the rest of this lease.
    pub resale_ask: Option<OrderId>,
    /// The seller and terms, if another buyer resold this lease.
    pub resale: Option<Resale>,
    /// Whether a fault in this lease is proven.
    pub faulted: bool,
    /// Whether the buyer demanded, and the ask promised, results that are the same bits on every
    /// machine. Only then can the buyer dispute an output.
    pub exact: bool,
    /// The dispute about an output of this lease that is open or decided.
    pub disputed: Option<DisputeId>,
    pub(crate) parties: Parties,
}

/// The obligations of a lease that its buyer bought from another buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resale {
    /// The account that resold the rest of its lease.
    pub seller: AccountKey,
    /// The provider's price per device-second, as in the first lease.
    pub provider_price: Price,
    /// Credits of the seller that make up for a lower price; zero once the lease is closed.
    pub subsidy: Credits,
    pub(crate) seller_slot: Slot,
}

/// The slots, book and terms through which the exchange finds a lease's parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parties {
    pub buyer: Slot,
    pub provider: Slot,
    pub book: BookId,
    /// The ask's terms, which the lease uses until it is closed.
    pub terms: TermsId,
}

/// A provider's statement of usage that the buyer has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Device time since the lease's start.
    pub usage: DeviceMicros,
    /// The log time at which silence will count as acceptance.
    pub accepted_at: Millis,
}

/// The answer to a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteState {
    /// The note is open until this log time.
    Open(Millis),
    /// The buyer accepted the note.
    Accepted,
    /// The buyer did not answer in time, so the note counts as accepted.
    Silent,
}

/// A lease's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// The lease displaced another one and will start when that one ends, at `until` at the latest.
    Waiting {
        /// The displaced lease.
        behind: LeaseId,
        /// The latest start, in log time.
        until: Millis,
    },
    /// The buyer has the device until the deadline.
    Active,
    /// The buyer has the device until `at`, because notice was served.
    Ending {
        /// The log time at which the lease ends.
        at: Millis,
        /// The reason why it ends early.
        reason: CloseReason,
    },
    /// The device is free, and payment stays open until `until`.
    Due {
        /// The log time at which the lease ended.
        ended: Millis,
        /// The log time at which the lease will close if no receipt arrives.
        until: Millis,
        /// The reason why the lease ended.
        reason: CloseReason,
    },
    /// The exchange has paid and refunded the lease.
    Closed {
        /// The log time at which the lease closed.
        at: Millis,
        /// The reason why the lease ended.
        reason: CloseReason,
        /// Credits paid to the provider, less the fee.
        paid: Credits,
        /// The market's fee.
        fee: Credits,
        /// Credits returned to the buyer.
        refunded: Credits,
    },
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// A receipt, signed by both parties, settled it.
    Receipt,
    /// Its deadline passed.
    Deadline,
    /// The buyer ended it early.
    BuyerEnded,
    /// The provider gave it up.
    GaveUp,
    /// The provider reclaimed it.
    Reclaimed,
    /// A higher bid displaced it.
    Displaced,
    /// The buyer refused the work.
    Disputed,
    /// The buyer left too many notes in a row unanswered.
    BuyerSilent,
    /// The buyer resold the rest of it.
    Resold,
    /// Its provider was ready, and the buyer neither stated that it works nor ended the lease.
    Unused,
}

impl Lease {
    /// Returns when the device is free again: the deadline, or earlier if the lease ends early.
    pub fn end_time(&self) -> Millis {
        match self.state {
            LeaseState::Waiting { .. } | LeaseState::Active => self.deadline,
            LeaseState::Ending { at, .. } | LeaseState::Closed { at, .. } => at,
            LeaseState::Due { ended, .. } => ended,
        }
    }

    /// Returns whether the buyer has the device now.
    pub fn is_running(&self) -> bool {
        matches!(self.state, LeaseState::Active | LeaseState::Ending { .. })
    }

    /// Returns whether the exchange has paid and refunded the lease.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, LeaseState::Closed { .. })
    }

    /// Returns the most usage that a note can state at `now`: the possible usage, and no more than
    /// one span for each unit beyond what the buyer accepted by command. Before the work has begun
    /// the limit is `note_unstarted` for each unit in all.
    pub(crate) fn usage_notable(&self, now: Millis, rules: &Rules) -> DeviceMicros {
        let next = match self.work_started {
            true => {
                let step = DeviceMicros::from_units(self.quantity, rules.note_span);
                DeviceMicros(self.agreed.0.saturating_add(step.0))
            }
            false => DeviceMicros::from_units(self.quantity, rules.note_unstarted),
        };
        self.usage_possible(now).min(next)
    }

    /// Returns the device time that counts as paid for `idle` time.
    pub fn idle_counts(&self, idle: DeviceMicros) -> DeviceMicros {
        idle.scale_by(self.idle)
    }

    /// Returns the device time that the buyer owes at least for holding the units until `now`, by
    /// the terms of tokens.
    pub fn floor_usage(&self, now: Millis) -> DeviceMicros {
        let held = self.usage_possible(now);
        let floor = self.tokens.map(|terms| terms.floor_usage(held));
        floor.unwrap_or(DeviceMicros(0))
    }

    /// Returns the most usage that is possible at `now`.
    pub fn usage_possible(&self, now: Millis) -> DeviceMicros {
        DeviceMicros::from_units(
            self.quantity,
            now.min(self.end_time()).saturating_since(self.start),
        )
    }
}
