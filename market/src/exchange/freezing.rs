//! Freezes accounts at the operators' command, and enforces the daily caps on deposits and
//! withdrawals.
//!
//! A frozen account can begin nothing, and its orders leave the books. Existing business continues:
//! its leases run to their end, the market pays them, and the account can end them. It can give the
//! commands that [`may_do_frozen`] lists; the exchange refuses all others, including future ones.

use crate::accounts::Movements;
use crate::command::{Acceptance, Command};
use crate::event::{Event, OrderEnd};
use crate::ids::{AccountKey, OrderId, RequestId, Slot};
use crate::refusal::Refusal;
use crate::request::Direction;
use crate::text::Name;
use crate::units::{Credits, Millis};

use super::{Context, Exchange};

/// A day of log time.
const DAY: Millis = Millis(24 * 3_600_000);

impl Exchange {
    pub(super) fn on_freeze(
        &mut self,
        context: &mut Context<'_>,
        account: AccountKey,
        reason: &Name,
    ) -> Result<Acceptance, Refusal> {
        let slot = self.ledger.find_slot(account);
        let slot = slot.ok_or(Refusal::AccountUnknown { account })?;
        let orders = self.books.all_orders().filter(|order| order.slot() == slot);
        let mut orders: Vec<OrderId> = orders.map(|order| order.id).collect();
        orders.sort_unstable();
        for order in orders {
            self.drop_order(order, OrderEnd::Frozen, context.events);
        }
        let frozen = self.ledger.get_mut(slot);
        frozen.frozen = Some(reason.clone());
        assert_eq!(frozen.open_orders, 0, "nothing of it rests");
        context.events.push(Event::Frozen {
            account,
            reason: reason.clone(),
        });
        Ok(Acceptance::Frozen)
    }

    pub(super) fn on_thaw(
        &mut self,
        context: &mut Context<'_>,
        account: AccountKey,
    ) -> Result<Acceptance, Refusal> {
        let slot = self.ledger.find_slot(account);
        let slot = slot.ok_or(Refusal::AccountUnknown { account })?;
        if self.ledger.get_mut(slot).frozen.take().is_some() {
            context.events.push(Event::Thawed { account });
        }
        Ok(Acceptance::Thawed)
    }

    /// Checks that an account, if it is frozen, can give this command.
    pub(super) fn check_frozen(&self, slot: Slot, command: &Command) -> Result<(), Refusal> {
        let account = self.ledger.get(slot);
        let Some(reason) = &account.frozen else {
            return Ok(());
        };
        let is_own = |request: &RequestId| {
            let known = self.requests.get(request);
            known.is_none_or(|request| request.account == account.key)
        };
        match may_do_frozen(command, is_own) {
            true => Ok(()),
            false => Err(Refusal::AccountFrozen {
                account: account.key,
                reason: reason.clone(),
            }),
        }
    }

    /// Returns the credits that have come in and gone out on the current day.
    fn moved_today(&self, slot: Slot) -> Movements {
        let (moved, day) = (self.ledger.get(slot).moved, self.now.0 / DAY.0);
        match moved.day == day {
            true => moved,
            false => Movements {
                day,
                ..Movements::default()
            },
        }
    }

    /// Checks the daily cap for a deposit into an account, or into a new one.
    pub(super) fn check_deposit_cap(
        &self,
        slot: Option<Slot>,
        amount: Credits,
    ) -> Result<(), Refusal> {
        let moved = slot.map(|slot| self.moved_today(slot).deposits);
        let moved = moved.unwrap_or(Credits::ZERO);
        self.check_cap(self.rules.deposit_cap_day, moved, amount)
    }

    pub(super) fn check_withdrawal_cap(&self, slot: Slot, amount: Credits) -> Result<(), Refusal> {
        let moved = self.moved_today(slot).withdrawals;
        self.check_cap(self.rules.withdrawal_cap_day, moved, amount)
    }

    fn check_cap(&self, cap: Credits, moved: Credits, amount: Credits) -> Result<(), Refusal> {
        let is_within = moved.checked_add(amount).is_some_and(|sum| sum <= cap);
        match cap.0 == 0 || is_within {
            true => Ok(()),
            false => Err(Refusal::CapReached {
                cap,
                moved,
                next: self.now.floor_to(DAY).saturating_add(DAY),
            }),
        }
    }

    pub(super) fn count_deposit(&mut self, slot: Slot, amount: Credits) {
        let mut moved = self.moved_today(slot);
        moved.deposits = moved.deposits.plus(amount);
        self.ledger.get_mut(slot).moved = moved;
    }

    /// Counts a withdrawal on the day of the request; a withdrawal refused on that day does not
    /// count.
    pub(super) fn count_withdrawal(&mut self, slot: Slot, amount: Credits) {
        let mut moved = self.moved_today(slot);
        let sum = moved.withdrawals.0.saturating_add(amount.0);
        moved.withdrawals = Credits(sum);
        self.ledger.get_mut(slot).moved = moved;
    }

    /// Removes a refused withdrawal from the count if its account requested it today.
    pub(super) fn uncount_withdrawal(&mut self, slot: Slot, amount: Credits, made: Millis) {
        if made.0 / DAY.0 == self.now.0 / DAY.0 {
            let mut moved = self.moved_today(slot);
            moved.withdrawals = Credits(moved.withdrawals.0.saturating_sub(amount.0));
            self.ledger.get_mut(slot).moved = moved;
        }
    }
}

/// Returns whether a frozen account can give this command. It can see its leases to their end and
/// be paid, ask for deposits, and take its own requests back. Its credits stay where they are,
/// including its stake. A frozen operator can only thaw, so that an operator that froze itself
/// cannot lock the market.
fn may_do_frozen(command: &Command, is_own: impl Fn(&RequestId) -> bool) -> bool {
    match command {
        Command::Cancel { .. }
        | Command::StartWork { .. }
        | Command::StateReady { .. }
        | Command::NoteUsage { .. }
        | Command::AcceptNote { .. }
        | Command::Dispute { .. }
        | Command::Settle(_)
        | Command::EndLease { .. }
        | Command::GiveUp { .. }
        | Command::Reclaim { .. }
        | Command::ProveFault(_)
        | Command::Register { .. }
        | Command::Thaw { .. } => true,
        Command::Request { direction, .. } => match direction {
            Direction::Deposit => true,
            Direction::Withdrawal => false,
        },
        Command::Refuse { request, .. } => is_own(request),
        Command::Transfer { .. }
        | Command::PlaceAsk(_)
        | Command::PlaceBid(_)
        | Command::PlaceGang(_)
        | Command::Amend { .. }
        | Command::Extend { .. }
        | Command::Resell { .. }
        | Command::Stake { .. }
        | Command::Unstake { .. }
        | Command::Accuse(_)
        | Command::Deposit { .. }
        | Command::Lock { .. }
        | Command::Confirm { .. }
        | Command::Collect { .. }
        | Command::Freeze { .. }
        | Command::ChangeRules { .. }
        | Command::KeepRules { .. }
        | Command::Upgrade(_) => false,
    }
}
