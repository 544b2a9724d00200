//! Closing a lease: paid once, refunded once, in one command.

use crate::command::Accepted;
use crate::event::Event;
use crate::ids::LeaseId;
use crate::lease::{CloseReason, Lease, LeaseState};
use crate::receipt::{Receipt, ReceiptBody};
use crate::refusal::Refusal;
use crate::units::{Credits, DeviceMicros};

use super::{Exchange, Scene, Timer};

impl Exchange {
    pub(super) fn on_settle(
        &mut self,
        scene: &mut Scene<'_>,
        receipt: &Receipt,
    ) -> Result<Accepted, Refusal> {
        let body = &receipt.body;
        if body.market != self.market {
            return Err(Refusal::ReceiptMarket {
                market: self.market,
                receipt: body.market,
            });
        }
        let lease = self.open_lease(body.lease)?;
        check_against(lease, body)?;
        let provider = self.ledger.known(lease.provider);
        let buyer = self.ledger.known(lease.buyer);
        self.ledger
            .get_mut(provider)
            .reputation
            .on_settled(is_slow(body));
        self.ledger.get_mut(buyer).reputation.on_settled(false);
        Ok(self.close(body.lease, CloseReason::Receipt, body.amount, scene.events))
    }

    /// Closes a lease without a receipt: what was accepted is paid, the rest goes back.
    pub(super) fn close_on_accepted(
        &mut self,
        id: LeaseId,
        reason: CloseReason,
        idle: bool,
        events: &mut Vec<Event>,
    ) -> Accepted {
        let lease = &self.leases[&id];
        let (price, accepted, escrow) = (lease.price, lease.accepted, lease.escrow);
        let due = ReceiptBody::due(price, accepted).map_or(escrow, |due| due.min(escrow));
        if idle {
            let provider = self.ledger.known(lease.provider);
            self.ledger.get_mut(provider).reputation.on_idle();
        }
        self.close(id, reason, due, events)
    }

    fn close(
        &mut self,
        id: LeaseId,
        reason: CloseReason,
        amount: Credits,
        events: &mut Vec<Event>,
    ) -> Accepted {
        self.set_note(id, None);
        match self.leases[&id].state {
            LeaseState::Active | LeaseState::Ending { .. } => self.stop(id),
            LeaseState::Due { until, .. } => {
                self.timers.remove(&(until, Timer::LeaseCloses(id)));
            }
            LeaseState::Closed { .. } => unreachable!("a lease is closed once"),
        }
        let lease = self.leases.get_mut(&id).expect("the lease is known");
        let (buyer, provider) = (lease.buyer, lease.provider);
        let refunded = lease.escrow.minus(amount);
        lease.escrow = Credits::ZERO;
        let payer = self.ledger.known(buyer);
        let payee = self.ledger.known(provider);
        let fee = self
            .ledger
            .pay(payer, payee, amount, self.rules.fee_basis_points);
        self.ledger.release(payer, refunded);
        let paid = amount.minus(fee);
        self.lease_mut(id).state = LeaseState::Closed {
            at: self.now,
            reason,
            paid,
            fee,
            refunded,
        };
        self.keep_closed(id);
        events.push(Event::LeaseClosed {
            lease: id,
            buyer,
            provider,
            reason,
            paid,
            fee,
            refunded,
        });
        Accepted::Closed {
            paid,
            fee,
            refunded,
        }
    }

    /// Remembers a closed lease, and forgets the oldest where there are too many.
    fn keep_closed(&mut self, id: LeaseId) {
        self.closed.insert((self.now, id));
        let kept = usize::try_from(self.rules.closed_leases_kept).unwrap_or(usize::MAX);
        while self.closed.len() > kept {
            if let Some((_, oldest)) = self.closed.pop_first() {
                self.leases.remove(&oldest);
            }
        }
    }
}

/// Whether a receipt that is valid by itself is for this lease and within it.
fn check_against(lease: &Lease, body: &ReceiptBody) -> Result<(), Refusal> {
    let id = lease.id;
    if (body.buyer, body.provider) != (lease.buyer, lease.provider) {
        let (buyer, provider) = (lease.buyer, lease.provider);
        return Err(Refusal::ReceiptParties {
            lease: id,
            buyer,
            provider,
        });
    }
    if body.job != lease.job || body.class != lease.class || body.model != lease.model {
        return Err(Refusal::ReceiptTerms { lease: id });
    }
    if body.price != lease.price {
        let (lease_price, receipt_price) = (lease.price, body.price);
        return Err(Refusal::ReceiptPrice {
            lease_price,
            receipt_price,
        });
    }
    let possible = DeviceMicros::of(lease.quantity, lease.deadline.since(lease.start));
    if body.usage > possible {
        return Err(Refusal::UsageOver {
            claimed: body.usage,
            possible,
        });
    }
    if body.amount > lease.escrow {
        return Err(Refusal::ReceiptOver {
            claimed: body.amount,
            escrow: lease.escrow,
        });
    }
    Ok(())
}

/// Whether less than 80 % of the advertised speed was delivered; unmeasured is not slow.
fn is_slow(body: &ReceiptBody) -> bool {
    let delivered = u128::from(body.delivered_mega_ops) * 10;
    delivered != 0 && delivered < u128::from(body.declared_mega_ops) * 8
}
