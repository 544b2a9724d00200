//! Steps: how much one batch may have the exchange look at.
//!
//! A step is a node of a search tree or an order passed by; some 10 ns on one core. Whatever looks
//! at orders, leases or timers counts what it looked at, and every replica counts alike. What a
//! batch's commands take together is bounded, and a command is begun only where what it may take at
//! most is left: so none stops in the middle, and one that is not begun is refused by name.
//!
//! An ordinary batch takes some thousands of steps. The bounds are for books that somebody filled
//! with orders that never suit.

use crate::batch::COMMANDS_MAX;
use crate::book::{VISITS_MAX, Visits};
use crate::command::Command;
use crate::refusal::Refusal;

use super::Exchange;

/// The most steps of a batch: 30 ms or so, a small part of the time after which followers look for
/// another leader. As many orders as a batch holds may each search for as long as one may.
pub const BATCH_STEPS: u32 = COMMANDS_MAX as u32 * 40_960;

/// The most steps of an order: its own search, the searches of the all-or-none bids that it may
/// complete, and a trade for each order that it met.
const ORDER_STEPS: u32 = 2 * VISITS_MAX + 2 * TRADE_STEPS * (VISITS_MAX / Visits::CHECK);

/// What a command takes beside its searches: its own row, its events and its place in the digest.
const COMMAND_STEPS: u32 = 64;

/// A trade: a lease, its escrow, a timer, a line of the tape.
const TRADE_STEPS: u32 = 32;

/// A look at spot leases or at asks with spot prices: 256 of them at most, each checked.
pub(super) const SPOT_STEPS: u32 = 256 * Visits::CHECK;

/// The most steps of the timers that fall due before a batch, and of an auction.
pub(super) const TIMER_STEPS: u32 = 524_288;

/// What falls due takes at least as much: an order that expires, a lease that ends.
pub(super) const TIMER_STEP: u32 = 64;

/// Steps taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps(u32);

impl Steps {
    pub(super) fn spend(&mut self, steps: u32) {
        self.0 = self.0.saturating_add(steps);
    }

    /// What every command takes.
    pub(super) fn spend_command(&mut self) {
        self.spend(COMMAND_STEPS);
    }

    pub(super) fn spend_trades(&mut self, trades: usize) {
        let trades = u32::try_from(trades).unwrap_or(u32::MAX);
        self.spend(trades.saturating_mul(TRADE_STEPS));
    }

    /// The steps of a search that has ended.
    pub(super) fn spend_visits(&mut self, visits: Visits) {
        self.spend(visits.made());
    }

    pub(super) fn taken(self) -> u32 {
        self.0
    }
}

/// The steps of the last batch. They follow from the batch and the state before it, and so are no
/// part of the state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSteps(pub u32);

impl PartialEq for LastSteps {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastSteps {}

impl Exchange {
    /// The steps that the last batch took, and time before it: each replica's are the same.
    pub fn steps(&self) -> u32 {
        self.last_steps.0
    }

    /// Whether a batch that has taken so many steps has enough left for a command.
    pub(super) fn check_steps(&self, taken: Steps, command: &Command) -> Result<(), Refusal> {
        let left = BATCH_STEPS.saturating_sub(taken.taken());
        match steps_at_most(command) <= left {
            true => Ok(()),
            false => Err(Refusal::StepsSpent { limit: BATCH_STEPS }),
        }
    }
}

/// What a command may take at most.
fn steps_at_most(command: &Command) -> u32 {
    let legs = |count: usize| u32::try_from(count.min(Command::GANG_MAX)).unwrap_or(u32::MAX);
    let most = match command {
        Command::PlaceAsk(_) | Command::PlaceBid(_) | Command::Amend { .. } => ORDER_STEPS,
        Command::Resell { .. } => ORDER_STEPS,
        Command::PlaceGang(gang) => {
            let leg = VISITS_MAX.saturating_add(2 * SPOT_STEPS + TRADE_STEPS);
            let legs = legs(gang.len());
            legs.saturating_mul(leg)
                .saturating_add(assignment_steps(legs, MATCHED_MAX).saturating_mul(2))
        }
        _ => 0,
    };
    most.saturating_add(COMMAND_STEPS)
}

/// The most providers that a gang's assignment is made over.
const MATCHED_MAX: u32 = 2 * (Command::GANG_MAX * Command::GANG_MAX) as u32;

/// What matching so many legs with so many providers takes: a row is added by at most as many
/// passes over the providers as there are rows, and a pass is quick.
pub(super) fn assignment_steps(legs: u32, providers: u32) -> u32 {
    let passes = legs.saturating_mul(legs.saturating_add(1)) / 2;
    passes.saturating_mul(providers) / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Bid, Limit, Term, TimeInForce};
    use crate::predicate::Wants;
    use crate::{Class, Credits, JobId, Millis, Price, Units};

    fn leg() -> Bid {
        Bid {
            class: Class::default(),
            wants: Wants::default(),
            limit: Limit::Price(Price(1)),
            budget: Credits(1),
            quantity: Units(1),
            all_or_none: false,
            duration: Millis(1),
            start_delay_max: Millis(0),
            term: Term::Firm,
            tif: TimeInForce::Gtc,
            job: JobId::default(),
        }
    }

    #[test]
    fn largest_command_fits_twice_into_what_a_batch_may_take() {
        let gang = Command::PlaceGang(vec![leg(); Command::GANG_MAX]);
        let bid = Command::PlaceBid(Box::new(leg()));
        for command in [gang, bid] {
            assert!(steps_at_most(&command) * 3 / 2 <= BATCH_STEPS);
        }
    }
}
