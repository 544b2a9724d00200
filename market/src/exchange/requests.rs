//! Deposits and withdrawals, which the operators decide: the market does not know what a credit is
//! worth outside. An account makes a request under a reference that both sides know; the operators
//! confirm or refuse it. They decide each request once. Module `governing` checks that a command
//! comes from enough operators before it calls this one.
//!
//! A withdrawal has two phases: the operators lock it, one of them pays, and then they confirm it.
//! Until the lock its account can take it back; afterwards only the operators can end it.

use std::ops::Bound;

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::{AccountKey, RequestId};
use crate::refusal::{Quantity, Refusal};
use crate::request::{Direction, MoneyRequest, PayoutLock};
use crate::text::Name;
use crate::units::{Count, Credits};

use super::{Context, Exchange};

/// The reason for refusing a request that made room for another.
const CROWDED: &str = "there are too many requests: ask again";

impl Exchange {
    /// Records an account's request for a deposit or a withdrawal, and holds the credits of a
    /// withdrawal.
    pub(super) fn on_request(
        &mut self,
        context: &mut Context<'_>,
        direction: Direction,
        amount: Credits,
        reference: &Name,
    ) -> Result<Acceptance, Refusal> {
        if amount.0 == 0 {
            let what = Quantity::Amount;
            return Err(Refusal::AmountZero { what });
        }
        let open = self.ledger.get(context.slot).open_requests;
        let limit = self.rules.requests_max;
        if open >= limit {
            return Err(Refusal::RequestsMany { open, limit });
        }
        let room = self.check_request_room()?;
        if direction == Direction::Withdrawal {
            self.ledger.check_available(context.slot, amount)?;
            self.check_withdrawal_cap(context.slot, amount)?;
            self.ledger.hold_in_escrow(context.slot, amount);
            self.count_withdrawal(context.slot, amount);
        }
        self.requests_made.count_up();
        let request = MoneyRequest {
            id: RequestId(self.requests_made),
            account: context.key,
            direction,
            amount,
            reference: reference.clone(),
            made: self.now,
            lock: None,
        };
        let account = self.ledger.get_mut(context.slot);
        account.open_requests.count_up();
        let id = request.id;
        context.events.push(Event::Requested(request.clone()));
        if is_light(&request, self.rules.ask_deposit) {
            self.light_requests.insert(id);
        }
        self.touched_requests.note(id.0);
        let before = self.requests.insert(id, request);
        assert!(before.is_none(), "an id is given once");
        if let Some(oldest) = room {
            self.drop_request(oldest, CROWDED, context.events);
        }
        Ok(Acceptance::Requested { request: id })
    }

    /// Returns the request that must make room for a new one, if any: the oldest that holds little.
    fn check_request_room(&self) -> Result<Option<RequestId>, Refusal> {
        let limit = self.rules.requests_open_max;
        if self.requests.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            return Ok(None);
        }
        let oldest = self.light_requests.first().copied();
        oldest.map(Some).ok_or(Refusal::RequestsFull { limit })
    }

    /// Ends a request without moving credits out or in. Returns the credits that it held.
    pub(super) fn drop_request(
        &mut self,
        id: RequestId,
        reason: &str,
        events: &mut Vec<Event>,
    ) -> Credits {
        let request = self
            .requests
            .get(&id)
            .expect("only open requests go")
            .clone();
        let slot = self.ledger.expect_slot(request.account);
        let mut released = Credits::ZERO;
        if request.direction == Direction::Withdrawal {
            self.ledger.release_escrow(slot, request.amount);
            self.uncount_withdrawal(slot, request.amount, request.made);
            released = request.amount;
        }
        let reason = Name::try_from(reason).expect("a reason is short");
        self.on_decided(&request, false, &reason, events);
        released
    }

    /// Locks a withdrawal that an operator begins to pay out. A locked withdrawal keeps its payer.
    pub(super) fn on_lock(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
    ) -> Result<Acceptance, Refusal> {
        self.check_lock(id)?;
        let lock = PayoutLock {
            payer: context.key,
            at: self.now,
        };
        let request = self.requests.get_mut(&id).expect("it was just looked at");
        request.lock = Some(lock);
        self.touched_requests.note(id.0);
        self.light_requests.remove(&id);
        context.events.push(Event::Locked(request.clone()));
        Ok(Acceptance::Locked(lock))
    }

    /// Checks that a request is a withdrawal that is not locked.
    pub(super) fn check_lock(&self, id: RequestId) -> Result<(), Refusal> {
        let request = self.open_request(id)?;
        match (request.direction, request.lock) {
            (Direction::Deposit, _) => Err(Refusal::LockNeedless { request: id }),
            (Direction::Withdrawal, Some(PayoutLock { at, .. })) => {
                Err(Refusal::RequestLocked { request: id, at })
            }
            (Direction::Withdrawal, None) => Ok(()),
        }
    }

    /// Checks that the operators can confirm a request: a withdrawal must be locked.
    pub(super) fn check_confirm(&self, id: RequestId) -> Result<(), Refusal> {
        let request = self.open_request(id)?;
        let is_held = request.direction == Direction::Deposit || request.lock.is_some();
        match is_held {
            true => Ok(()),
            false => Err(Refusal::RequestUnlocked { request: id }),
        }
    }

    /// Confirms that credits came in or went out.
    pub(super) fn on_confirm(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
    ) -> Result<Acceptance, Refusal> {
        self.check_confirm(id)?;
        let request = self.open_request(id)?.clone();
        let slot = self.ledger.expect_slot(request.account);
        match request.direction {
            Direction::Deposit => {
                self.check_deposit_cap(Some(slot), request.amount)?;
                self.ledger.deposit(slot, request.amount)?;
                self.count_deposit(slot, request.amount);
            }
            Direction::Withdrawal => {
                self.ledger.release_escrow(slot, request.amount);
                let gone = self.ledger.withdraw(slot, request.amount);
                gone.expect("what was held is there");
            }
        }
        self.on_decided(&request, true, &Name::default(), context.events);
        let available = self.ledger.get(slot).available;
        Ok(Acceptance::Confirmed { available })
    }

    /// Refuses a request for the operators, or withdraws it for the account that made it.
    pub(super) fn on_refuse(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
        reason: &Name,
    ) -> Result<Acceptance, Refusal> {
        self.open_request(id)?;
        let released = self.drop_request(id, reason.as_str(), context.events);
        Ok(Acceptance::Refused { released })
    }

    /// Transfers credits from one account to another.
    pub(super) fn on_transfer(
        &mut self,
        context: &mut Context<'_>,
        to: AccountKey,
        amount: Credits,
        reference: &Name,
    ) -> Result<Acceptance, Refusal> {
        if amount.0 == 0 {
            let what = Quantity::Amount;
            return Err(Refusal::AmountZero { what });
        }
        let receiver = self.ledger.find_slot(to);
        let receiver = receiver.ok_or(Refusal::AccountUnknown { account: to })?;
        self.ledger.check_available(context.slot, amount)?;
        self.ledger.transfer_credits(context.slot, receiver, amount);
        context.events.push(Event::Transferred {
            from: context.key,
            to,
            amount,
            reference: reference.clone(),
        });
        let available = self.ledger.get(context.slot).available;
        Ok(Acceptance::Transferred { available })
    }

    pub(super) fn open_request(&self, request: RequestId) -> Result<&MoneyRequest, Refusal> {
        let open = self.requests.get(&request);
        open.ok_or(Refusal::RequestUnknown { request })
    }

    fn on_decided(
        &mut self,
        request: &MoneyRequest,
        confirmed: bool,
        reason: &Name,
        events: &mut Vec<Event>,
    ) {
        let slot = self.ledger.expect_slot(request.account);
        let account = self.ledger.get_mut(slot);
        assert!(account.open_requests > 0, "an open request is counted");
        account.open_requests.count_down();
        self.light_requests.remove(&request.id);
        self.touched_requests.note(request.id.0);
        let gone = self.requests.remove(&request.id);
        assert!(gone.is_some(), "a request is decided once");
        events.push(Event::Decided {
            request: request.clone(),
            confirmed,
            reason: reason.clone(),
        });
    }
}

/// Queries that anyone may make.
impl Exchange {
    /// Iterates over the undecided requests after the given one, the oldest first.
    pub fn requests_after(&self, after: RequestId) -> impl Iterator<Item = &MoneyRequest> {
        let later = (Bound::Excluded(after), Bound::Unbounded);
        self.requests.range(later).map(|(_, request)| request)
    }

    /// Iterates over an account's undecided requests, the oldest first.
    pub fn requests_of(&self, account: AccountKey) -> impl Iterator<Item = &MoneyRequest> {
        let own = move |request: &&MoneyRequest| request.account == account;
        self.requests.values().filter(own)
    }
}

/// Returns whether a request holds less than a deposit, so that it may make room for others.
pub(super) fn is_light(request: &MoneyRequest, deposit: Credits) -> bool {
    let holds = request.direction == Direction::Withdrawal && request.amount >= deposit;
    !holds && request.lock.is_none()
}
