//! Credits come in and go out as the operator says: what a credit is worth outside is not the
//! market's business. An account asks under a reference that both sides know it by; the operator
//! confirms or refuses. Each request is decided once. What operators alone may do: `governing`.
//!
//! A withdrawal goes out in two phases: the operators lock it, one of them pays, and then they
//! confirm it. Until it is locked its account may take it back; from then on only they end it.

use std::ops::Bound;

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::{AccountKey, RequestId};
use crate::refusal::{Quantity, Refusal};
use crate::request::{Direction, MoneyRequest, PayoutLock};
use crate::text::Name;
use crate::units::{Count, Credits};

use super::{Context, Exchange};

/// Why a request was refused that made room for another.
const CROWDED: &str = "there are too many requests: ask again";

impl Exchange {
    /// An account asks for credits, or for some of its own to go out: those are held meanwhile.
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
            self.ledger.need(context.slot, amount)?;
            self.check_withdrawal_cap(context.slot, amount)?;
            self.ledger.hold(context.slot, amount);
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
        let before = self.requests.insert(id, request);
        assert!(before.is_none(), "an id is given once");
        if let Some(oldest) = room {
            self.drop_request(oldest, CROWDED, context.events);
        }
        Ok(Acceptance::Requested { request: id })
    }

    /// Which request makes room for one more, if one must: the oldest that holds little.
    fn check_request_room(&self) -> Result<Option<RequestId>, Refusal> {
        let limit = self.rules.requests_open_max;
        if self.requests.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            return Ok(None);
        }
        let oldest = self.light_requests.first().copied();
        oldest.map(Some).ok_or(Refusal::RequestsFull { limit })
    }

    /// A request comes to nothing; what was held for it returns.
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
        let slot = self.ledger.known(request.account);
        let mut released = Credits::ZERO;
        if request.direction == Direction::Withdrawal {
            self.ledger.release(slot, request.amount);
            self.uncount_withdrawal(slot, request.amount, request.made);
            released = request.amount;
        }
        let reason = Name::try_from(reason).expect("a reason is short");
        self.decided(&request, false, &reason, events);
        released
    }

    /// The operators begin to pay a withdrawal out. One that is locked stays so, with its payer.
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
        self.light_requests.remove(&id);
        context.events.push(Event::Locked(request.clone()));
        Ok(Acceptance::Locked(lock))
    }

    /// Whether a request is a withdrawal that nobody has locked.
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

    /// Whether a request may be confirmed: a withdrawal that its account can't take back.
    pub(super) fn check_confirm(&self, id: RequestId) -> Result<(), Refusal> {
        let request = self.open_request(id)?;
        let is_held = request.direction == Direction::Deposit || request.lock.is_some();
        match is_held {
            true => Ok(()),
            false => Err(Refusal::RequestUnlocked { request: id }),
        }
    }

    /// The operator says that credits came in, or went out.
    pub(super) fn on_confirm(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
    ) -> Result<Acceptance, Refusal> {
        self.check_confirm(id)?;
        let request = self.open_request(id)?.clone();
        let slot = self.ledger.known(request.account);
        match request.direction {
            Direction::Deposit => {
                self.check_deposit_cap(Some(slot), request.amount)?;
                self.ledger.deposit(slot, request.amount)?;
                self.count_deposit(slot, request.amount);
            }
            Direction::Withdrawal => {
                self.ledger.release(slot, request.amount);
                let gone = self.ledger.withdraw(slot, request.amount);
                gone.expect("what was held is there");
            }
        }
        self.decided(&request, true, &Name::default(), context.events);
        let available = self.ledger.get(slot).available;
        Ok(Acceptance::Confirmed { available })
    }

    /// The operator, or whoever asked, says that nothing comes of it.
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

    /// Credits from one account to another.
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
        let receiver = self.ledger.slot(to);
        let receiver = receiver.ok_or(Refusal::AccountUnknown { account: to })?;
        self.ledger.need(context.slot, amount)?;
        self.ledger.transfer(context.slot, receiver, amount);
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

    fn decided(
        &mut self,
        request: &MoneyRequest,
        confirmed: bool,
        reason: &Name,
        events: &mut Vec<Event>,
    ) {
        let slot = self.ledger.known(request.account);
        let account = self.ledger.get_mut(slot);
        assert!(account.open_requests > 0, "an open request is counted");
        account.open_requests.count_down();
        self.light_requests.remove(&request.id);
        let gone = self.requests.remove(&request.id);
        assert!(gone.is_some(), "a request is decided once");
        events.push(Event::Decided {
            request: request.clone(),
            confirmed,
            reason: reason.clone(),
        });
    }
}

/// What anyone may ask.
impl Exchange {
    /// Requests that wait for the operator and came after this one, the oldest first.
    pub fn requests_after(&self, after: RequestId) -> impl Iterator<Item = &MoneyRequest> {
        let later = (Bound::Excluded(after), Bound::Unbounded);
        self.requests.range(later).map(|(_, request)| request)
    }

    /// What an account has asked for and is not decided, the oldest first.
    pub fn requests_of(&self, account: AccountKey) -> impl Iterator<Item = &MoneyRequest> {
        let own = move |request: &&MoneyRequest| request.account == account;
        self.requests.values().filter(own)
    }
}

/// Whether a request holds less than a deposit, and so may make room for others.
pub(super) fn is_light(request: &MoneyRequest, deposit: Credits) -> bool {
    let holds = request.direction == Direction::Withdrawal && request.amount >= deposit;
    !holds && request.lock.is_none()
}
