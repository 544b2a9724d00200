//! A lease: device time bought, paid into escrow, and its closed state machine.
//!
//! ```text
//! Waiting ──device free──> Active ──reclaim, displacement──> Ending ──┐
//!                            └──deadline, early end, resale───────────┴──> Due
//! Due ──grace over, the provider's last claim──> Closed
//! any but Closed ──receipt, give-up──> Closed
//! any but Closed ──refused work──> Due, or Closed where its provider has noted it
//! ```
//! In `Due` the device is free again and only the money is open: a receipt or a last note may
//! come until the grace is over. `Closed` has paid and refunded, exactly once.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, BookId, DeviceId, JobId, LeaseId, OrderId, Slot, TermsId};
use crate::order::Term;
use crate::rules::Rules;
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Permille, Price, Units};

/// Device time bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// Who bought.
    pub buyer: AccountKey,
    /// Who provides.
    pub provider: AccountKey,
    /// The provider's device or pool.
    pub device: DeviceId,
    /// The class it was bought in.
    pub class: Class,
    /// The device's model.
    pub model: Name,
    /// The ask it came from.
    pub ask: OrderId,
    /// The bid it came from.
    pub bid: OrderId,
    /// The buyer's job.
    pub job: JobId,
    /// Price per device-second.
    pub price: Price,
    /// How many units.
    pub quantity: Units,
    /// Credits held for it; nothing once it is closed.
    pub escrow: Credits,
    /// What the buyer paid in the end; nothing before the lease is closed.
    pub cost: Credits,
    /// When it starts.
    pub start: Millis,
    /// When it ends at the latest.
    pub deadline: Millis,
    /// Firm or spot.
    pub term: Term,
    /// The notice before a reclaim or a displacement.
    pub notice: Millis,
    /// The market's share of what is paid, in hundredths of a per cent: that of its trade.
    pub fee_basis_points: u16,
    /// Whether its buyer said that the work has begun: before that nothing is noted.
    pub work_started: bool,
    /// What part of its price a second costs in which the device is held and not used.
    pub idle: Permille,
    /// Until when the buyer may say that it works or end it, once its provider said it is ready.
    pub reserved_until: Option<Millis>,
    /// Whether its provider claims the time in which the device was held and not used.
    pub claimed: bool,
    /// Usage that its provider states in all, of work that the buyer refused.
    pub refused: DeviceMicros,
    /// Usage the buyer accepted, by word or by silence.
    pub accepted: DeviceMicros,
    /// What of it the buyer accepted by word: silence adds one note's span to that at most.
    pub agreed: DeviceMicros,
    /// Notes in a row that were accepted by silence.
    pub silent_notes: u8,
    /// The note that waits for the buyer.
    pub note: Option<Note>,
    /// How long it may become by extensions.
    pub duration_max: Millis,
    /// Where it is in its life.
    pub state: LeaseState,
    /// The lease that has displaced it and takes the device over.
    pub successor: Option<LeaseId>,
    /// The ask by which its buyer resells the rest of it.
    pub resale_ask: Option<OrderId>,
    /// Where it was bought from another buyer.
    pub resale: Option<Resale>,
    /// Whether a fault in it was proven already.
    pub faulted: bool,
    pub(crate) parties: Parties,
}

/// What a lease bought from another buyer owes to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resale {
    /// Who sold the rest of its lease.
    pub seller: AccountKey,
    /// What the provider gets per device-second, as the first lease said.
    pub provider_price: Price,
    /// What the seller holds to make up for a lower price; nothing once the lease is closed.
    pub subsidy: Credits,
    pub(crate) seller_slot: Slot,
}

/// Where the exchange finds a lease's parties and terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parties {
    pub buyer: Slot,
    pub provider: Slot,
    pub book: BookId,
    /// The terms of the ask, which a lease uses until it is closed.
    pub terms: TermsId,
}

/// A provider's statement of usage that the buyer has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Device time since the lease's start.
    pub usage: DeviceMicros,
    /// When silence counts as acceptance.
    pub accepted_at: Millis,
}

/// What became of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteState {
    /// The buyer has until this time.
    Open(Millis),
    /// The buyer said yes.
    Accepted,
    /// The buyer said nothing in time.
    Silent,
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// It displaced another lease and starts when that one ends, at `until` at the latest.
    Waiting {
        /// The lease it displaced.
        behind: LeaseId,
        /// The latest start.
        until: Millis,
    },
    /// The device is the buyer's until the deadline.
    Active,
    /// The device is the buyer's until `at`: notice was given.
    Ending {
        /// When it ends.
        at: Millis,
        /// Why.
        reason: CloseReason,
    },
    /// The device is free, the money is open until `until`.
    Due {
        /// When the lease ended.
        ended: Millis,
        /// When it closes without a receipt.
        until: Millis,
        /// Why it ended.
        reason: CloseReason,
    },
    /// Paid and refunded.
    Closed {
        /// When.
        at: Millis,
        /// Why.
        reason: CloseReason,
        /// What the provider got, the fee not counted.
        paid: Credits,
        /// What the market took.
        fee: Credits,
        /// What the buyer got back.
        refunded: Credits,
    },
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// A receipt signed by both.
    Receipt,
    /// Its time was over.
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
    /// The buyer answered no note for too long.
    BuyerSilent,
    /// The buyer resold the rest of it.
    Resold,
    /// Its provider was ready, and the buyer neither said that it works nor ended it.
    Unused,
}

impl Lease {
    /// When the device is free again: the deadline, or earlier if the lease was told to end.
    pub fn ends(&self) -> Millis {
        match self.state {
            LeaseState::Waiting { .. } | LeaseState::Active => self.deadline,
            LeaseState::Ending { at, .. } | LeaseState::Closed { at, .. } => at,
            LeaseState::Due { ended, .. } => ended,
        }
    }

    /// Whether the device is the buyer's now.
    pub fn is_running(&self) -> bool {
        matches!(self.state, LeaseState::Active | LeaseState::Ending { .. })
    }

    /// Whether it is paid and refunded.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, LeaseState::Closed { .. })
    }

    /// The most usage a note may state at `now`: what there can have been, and no more than a span
    /// of each unit beyond what the buyer accepted by word; before the work has begun, no more than
    /// another span in all.
    pub(crate) fn usage_notable(&self, now: Millis, rules: &Rules) -> DeviceMicros {
        let next = match self.work_started {
            true => {
                let step = DeviceMicros::of(self.quantity, rules.note_span);
                DeviceMicros(self.agreed.0.saturating_add(step.0))
            }
            false => DeviceMicros::of(self.quantity, rules.note_unstarted),
        };
        self.usage_possible(now).min(next)
    }

    /// What a time in which the device is held and not used counts as.
    pub fn idle_counts(&self, idle: DeviceMicros) -> DeviceMicros {
        idle.part(self.idle)
    }

    /// The most usage there can have been at `now`.
    pub fn usage_possible(&self, now: Millis) -> DeviceMicros {
        DeviceMicros::of(self.quantity, now.min(self.ends()).since(self.start))
    }
}
