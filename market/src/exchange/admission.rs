//! Admits or refuses a whole batch: checks what all of its commands depend on, such as its market,
//! nonce and expiry.
//!
//! A batch that is not admitted changes nothing, not even the nonces of its account. So a validator
//! can refuse such a batch by its own state and keep it out of the log. Otherwise anybody could
//! fill the log at no cost, because keys are free. A command that is refused alone has spent its
//! batch's nonce, so it must be in the log: else anybody who saw the batch could bring it again.

use crate::batch::{Batch, VerifiedBatch};
use crate::command::Command;
use crate::event::Event;
use crate::ids::{AccountKey, Slot};
use crate::refusal::Refusal;
use crate::text::Name;

use super::Exchange;

/// The sender of a batch that can be admitted.
enum Sender<'a> {
    /// An account that the market has.
    Known(Slot),
    /// A new account, which the first command registers under this name.
    New(&'a Name),
}

impl Exchange {
    /// Returns the refusal of all commands of a batch, if the state already shows it. It can find
    /// none for a batch that [`Self::apply`] will refuse, for example because it expires too late.
    pub fn foresee_refusal(&self, verified: &VerifiedBatch) -> Option<Refusal> {
        let batch = verified.batch();
        let checked = self.check_place(batch);
        checked.and_then(|()| self.check_sender(batch)).err()
    }

    /// Checks that the batch is for this market, not expired, and has an unused nonce. Uses up the
    /// nonce.
    pub(super) fn admit_batch(
        &mut self,
        batch: &Batch,
        events: &mut Vec<Event>,
    ) -> Result<Slot, Refusal> {
        let Batch {
            account,
            nonce,
            expires,
            ..
        } = *batch;
        self.check_place(batch)?;
        let latest = self.now.saturating_add(self.rules.batch_life_max);
        if expires > latest {
            return Err(Refusal::BatchFar { expires, latest });
        }
        let slot = match self.check_sender(batch)? {
            Sender::Known(slot) => slot,
            Sender::New(name) => self.register_account(account, name, events)?,
        };
        let now = self.now;
        let own = self.ledger.get_mut(slot);
        own.nonces.spend_nonce(nonce);
        own.used = now;
        own.quiet_at = own.quiet_at.max(expires);
        assert_eq!(self.ledger.get(slot).key, account, "the batch's account");
        Ok(slot)
    }

    /// Checks that the batch is for this market and not expired.
    fn check_place(&self, batch: &Batch) -> Result<(), Refusal> {
        if batch.market != self.market {
            return Err(Refusal::MarketOther {
                market: self.market,
                batch: batch.market,
            });
        }
        if batch.expires <= self.now {
            return Err(Refusal::BatchExpired {
                expires: batch.expires,
                now: self.now,
            });
        }
        Ok(())
    }

    /// Checks that the account is known and has not used the nonce, or that the batch registers it.
    fn check_sender<'a>(&self, batch: &'a Batch) -> Result<Sender<'a>, Refusal> {
        let account = batch.account;
        match (self.ledger.find_slot(account), &batch.commands[0]) {
            (Some(slot), _) => {
                self.ledger.get(slot).nonces.check_nonce(batch.nonce)?;
                Ok(Sender::Known(slot))
            }
            (None, Command::Register { name }) => Ok(Sender::New(name)),
            (None, _) => Err(Refusal::AccountUnknown { account }),
        }
    }

    fn register_account(
        &mut self,
        account: AccountKey,
        name: &Name,
        events: &mut Vec<Event>,
    ) -> Result<Slot, Refusal> {
        let slot = self.open_account(account, name, events)?;
        self.ledger.get_mut(slot).fresh = true;
        Ok(slot)
    }
}
