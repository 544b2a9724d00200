//! Bounds the work of each batch, so that no batch can delay a validator for long. It counts the
//! work in steps.
//!
//! A step is a visit to a node of a search tree or to an order, about 10 ns on one core. Code that
//! visits orders, leases or timers counts its steps, and all replicas count the same. The steps of
//! a batch's commands together have a bound. A command begins only if its greatest possible number
//! of steps is left: so none stops halfway, and one that cannot begin gets a named refusal.
//!
//! An ordinary batch takes a few thousand steps. The bounds protect against books full of orders
//! that never match.

use crate::batch::COMMANDS_MAX;
use crate::book::{VISITS_MAX, VisitBudget};
use crate::command::Command;
use crate::refusal::Refusal;

use super::Exchange;

/// The most steps of a batch: about 30 ms, a small part of the time after which followers elect
/// another leader. It lets every order of a full batch make a search of the greatest length.
pub const BATCH_STEPS: u32 = COMMANDS_MAX as u32 * 40_960;

/// The most steps of an order: its own search, as many again for the searches of all-or-none bids
/// that it may complete, and twice a trade for each order that a search of that length can check.
const ORDER_STEPS: u32 = 2 * VISITS_MAX + 2 * TRADE_STEPS * (VISITS_MAX / VisitBudget::CHECK);

/// The steps of a command besides its searches: the account and the order that it changes, its
/// events and its entry in the digest.
const COMMAND_STEPS: u32 = 64;

/// The steps of a trade: a lease, its escrow, a timer, a print on the tape.
const TRADE_STEPS: u32 = 32;

/// The steps of a scan of spot leases or of asks with spot prices: at most 256, each checked.
pub(super) const SPOT_STEPS: u32 = 256 * VisitBudget::CHECK;

/// The most steps of the timers that fall due before a batch.
pub(super) const DUE_TIMERS_STEPS_MAX: u32 = 524_288;

/// The steps of an action that falls due, such as the expiry of an order or the end of a lease.
pub(super) const STEPS_PER_TIMER: u32 = 64;

/// A count of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepCount(u32);

impl StepCount {
    pub(super) fn spend_steps(&mut self, steps: u32) {
        self.0 = self.0.saturating_add(steps);
    }

    /// Adds the steps of a command besides its searches.
    pub(super) fn spend_command(&mut self) {
        self.spend_steps(COMMAND_STEPS);
    }

    pub(super) fn spend_trades(&mut self, trades: usize) {
        let trades = u32::try_from(trades).unwrap_or(u32::MAX);
        self.spend_steps(trades.saturating_mul(TRADE_STEPS));
    }

    /// Adds the steps of a finished search.
    pub(super) fn spend_visits(&mut self, visits: VisitBudget) {
        self.spend_steps(visits.steps_made());
    }

    pub(super) fn steps_taken(self) -> u32 {
        self.0
    }
}

/// The steps of the last batch. They follow from the batch and the state before it, so a comparison
/// of two exchanges ignores them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSteps(pub u32);

impl PartialEq for LastSteps {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastSteps {}

impl Exchange {
    /// Returns the steps of the last batch and of the timers before it, which are equal on all
    /// replicas.
    pub fn last_batch_steps(&self) -> u32 {
        self.last_steps.0
    }

    /// Checks that a batch that has taken `taken` steps has enough left for a command.
    pub(super) fn check_steps(&self, taken: StepCount, command: &Command) -> Result<(), Refusal> {
        let left = BATCH_STEPS.saturating_sub(taken.steps_taken());
        match steps_at_most(command) <= left {
            true => Ok(()),
            false => Err(Refusal::StepsSpent { limit: BATCH_STEPS }),
        }
    }
}

/// Returns the most steps that a command can take.
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

/// The most providers over which a gang's assignment runs.
const MATCHED_MAX: u32 = 2 * (Command::GANG_MAX * Command::GANG_MAX) as u32;

/// Returns the steps of matching `legs` with `providers`: adding a row takes at most as many passes
/// over the providers as there are rows, and a pass is quick.
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
