//! Credits come in and go out as the operator says: what a credit is worth outside is not the
//! market's business. An account asks under a reference that both sides know it by; the operator
//! confirms or refuses. Each request is decided once. What operators alone may do: `governing`.

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::{AccountKey, RequestId};
use crate::refusal::{Quantity, Refusal};
use crate::request::{Direction, MoneyRequest};
use crate::text::Name;
use crate::units::Credits;

use super::{Context, Exchange};

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
        if direction == Direction::Withdrawal {
            self.ledger.need(context.slot, amount)?;
            self.check_withdrawal_cap(context.slot, amount)?;
            self.ledger.hold(context.slot, amount);
            self.count_withdrawal(context.slot, amount);
        }
        self.requests_made += 1;
        let request = MoneyRequest {
            id: RequestId(self.requests_made),
            account: context.key,
            direction,
            amount,
            reference: reference.clone(),
            made: self.now,
        };
        self.ledger.get_mut(context.slot).open_requests += 1;
        let id = request.id;
        context.events.push(Event::Requested(request.clone()));
        let before = self.requests.insert(id, request);
        assert!(before.is_none(), "an id is given once");
        Ok(Acceptance::Requested { request: id })
    }

    /// The operator says that credits came in, or went out.
    pub(super) fn on_confirm(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
    ) -> Result<Acceptance, Refusal> {
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
        self.decided(context, &request, true, &Name::default());
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
        let request = self.open_request(id)?.clone();
        let slot = self.ledger.known(request.account);
        let mut released = Credits(0);
        if request.direction == Direction::Withdrawal {
            self.ledger.release(slot, request.amount);
            self.uncount_withdrawal(slot, request.amount, request.made);
            released = request.amount;
        }
        self.decided(context, &request, false, reason);
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
        context: &mut Context<'_>,
        request: &MoneyRequest,
        confirmed: bool,
        reason: &Name,
    ) {
        let slot = self.ledger.known(request.account);
        let account = self.ledger.get_mut(slot);
        assert!(account.open_requests > 0, "an open request is counted");
        account.open_requests -= 1;
        let gone = self.requests.remove(&request.id);
        assert!(gone.is_some(), "a request is decided once");
        context.events.push(Event::Decided {
            request: request.clone(),
            confirmed,
            reason: reason.clone(),
        });
    }
}

/// What anyone may ask.
impl Exchange {
    /// Requests that wait for the operator, the oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &MoneyRequest> {
        self.requests.values()
    }

    /// What an account has asked for and is not decided, the oldest first.
    pub fn requests_of(&self, account: AccountKey) -> impl Iterator<Item = &MoneyRequest> {
        let own = move |request: &&MoneyRequest| request.account == account;
        self.requests.values().filter(own)
    }
}
