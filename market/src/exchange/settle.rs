//! Closes a lease: pays the provider from the escrow, by a receipt or by the usage that the buyer
//! accepted, and returns the rest to the buyer. Each lease is paid and refunded once, in one
//! command.

use crate::command::Acceptance;
use crate::event::Event;
use crate::ids::{AccountKey, LeaseId, Slot};
use crate::lease::{CloseReason, Lease, LeaseState, Parties};
use crate::receipt::{Receipt, ReceiptBody};
use crate::refusal::Refusal;
use crate::reputation::Speed;
use crate::units::{Count, Credits, DeviceMicros, Millis};

use super::{Context, Exchange, Timer};

impl Exchange {
    pub(super) fn on_settle(
        &mut self,
        context: &mut Context<'_>,
        receipt: &Receipt,
    ) -> Result<Acceptance, Refusal> {
        let body = &receipt.body;
        if body.market != self.market {
            return Err(Refusal::ReceiptMarket {
                market: self.market,
                receipt: body.market,
            });
        }
        let lease = self.open_lease(body.lease)?;
        check_against(lease, body)?;
        let parties = lease.parties;
        let (buyer, provider) = (lease.buyer, lease.provider);
        self.update_reputation(parties.provider, buyer, classify_speed(body), body.amount);
        self.update_reputation(parties.buyer, provider, Speed::AsStated, body.amount);
        let payment = Payment {
            amount: body.amount,
            usage: body.billable_usage(),
            forfeit: Credits::ZERO,
        };
        assert!(
            payment.usage.0 > 0 || payment.amount.0 == 0,
            "nothing used is nothing paid"
        );
        Ok(self.close_lease(body.lease, CloseReason::Receipt, payment, context.events))
    }

    /// A receipt moves the reputation of an account by what it has settled with the other one.
    fn update_reputation(&mut self, of: Slot, with: AccountKey, speed: Speed, paid: Credits) {
        let step = self.rules.reputation_step;
        let account = self.ledger.get_mut(of);
        let steps = account.dealings.record_settlement(with, speed, paid, step);
        account.reputation.on_settled(speed, steps);
    }

    /// Closes a lease without a receipt: what was accepted is paid, and where its provider claims
    /// it the time in which its device was held. The rest goes back.
    pub(super) fn close_on_accepted(
        &mut self,
        id: LeaseId,
        reason: CloseReason,
        events: &mut Vec<Event>,
    ) -> Acceptance {
        let payment = unsigned_payment(&self.leases[&id], reason, self.now);
        self.close_lease(id, reason, payment, events)
    }

    pub(super) fn close_lease(
        &mut self,
        id: LeaseId,
        reason: CloseReason,
        payment: Payment,
        events: &mut Vec<Event>,
    ) -> Acceptance {
        self.set_note(id, None);
        match self.leases[&id].state {
            LeaseState::Waiting { behind, .. } => self.leave_queue(behind),
            LeaseState::Active | LeaseState::Ending { .. } => self.stop_lease(id, events),
            LeaseState::Due { until, .. } => {
                self.timers.remove(&(until, Timer::LeaseCloses(id)));
            }
            LeaseState::Closed { .. } => unreachable!("a lease is closed once"),
        }
        let now = self.now;
        let lease = self.leases.get_mut(id).expect("the lease is known");
        let escrow = std::mem::take(&mut lease.escrow);
        let cost = payment.amount.plus(payment.forfeit);
        assert!(cost <= escrow, "never more is paid than was held");
        lease.cost = cost;
        let (buyer, provider, parties) = (lease.buyer, lease.provider, lease.parties);
        let refunded = escrow.minus(cost);
        let (paid, fee) = self.pay_out(id, payment);
        let (payer, payee) = (parties.buyer, parties.provider);
        let forfeit = self
            .ledger
            .pay_provider(payer, payee, payment.forfeit, WHOLE);
        assert_eq!(forfeit, payment.forfeit, "nobody but the market has it");
        let fee = fee.plus(forfeit);
        assert!(!self.leases[&id].is_closed(), "a lease is closed once");
        self.ledger.release_escrow(parties.buyer, refunded);
        self.lease_mut(id).state = LeaseState::Closed {
            at: now,
            reason,
            paid,
            fee,
            refunded,
        };
        self.leases.on_closed(id);
        self.count_closed(parties.provider, paid, payment.usage);
        let seller = self.leases[&id].resale.map(|resale| resale.seller_slot);
        for party in [Some(parties.buyer), seller].into_iter().flatten() {
            let account = self.ledger.get_mut(party);
            assert!(account.leases_bought > 0, "a lease is closed once");
            account.leases_bought.count_down();
        }
        self.books.ask_terms.remove_user(parties.terms);
        self.books.on_lease_closed(parties.book);
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
        Acceptance::Closed {
            paid,
            fee,
            refunded,
        }
    }

    /// Pays the provider, and after a resale the reseller. Returns what the provider got and what
    /// the market took.
    fn pay_out(&mut self, id: LeaseId, payment: Payment) -> (Credits, Credits) {
        let lease = self.leases.get_mut(id).expect("the lease is known");
        let share = lease.fee_basis_points;
        let Parties {
            buyer, provider, ..
        } = lease.parties;
        let Payment { amount, usage, .. } = payment;
        let Some(resale) = &mut lease.resale else {
            let fee = self.ledger.pay_provider(buyer, provider, amount, share);
            return (amount.minus(fee), fee);
        };
        let (seller, subsidy) = (resale.seller_slot, std::mem::take(&mut resale.subsidy));
        let owed = ReceiptBody::amount_due(resale.provider_price, usage).unwrap_or(amount);
        let by_buyer = owed.min(amount);
        let by_seller = owed.minus(by_buyer).min(subsidy);
        let gain = amount.minus(by_buyer);
        let mut fee = self.ledger.pay_provider(buyer, provider, by_buyer, share);
        fee = fee.plus(self.ledger.pay_provider(seller, provider, by_seller, share));
        assert!(
            by_buyer <= amount && by_seller <= subsidy,
            "each pays of what it holds"
        );
        let paid = by_buyer.plus(by_seller).minus(fee);
        let fee = fee.plus(self.ledger.pay_provider(buyer, seller, gain, share));
        self.ledger.release_escrow(seller, subsidy.minus(by_seller));
        (paid, fee)
    }

    fn count_closed(&mut self, provider: Slot, paid: Credits, usage: DeviceMicros) {
        let now = self.now;
        let account = self.ledger.get_mut(provider);
        assert!(account.open_leases > 0, "a lease is closed once");
        assert!(now >= account.last_closed, "leases are closed in order");
        account.open_leases.count_down();
        account.last_closed = now;
        account.earned = account.earned.plus_at_most(paid);
        account.sold = DeviceMicros(account.sold.0.saturating_add(usage.0));
    }
}

/// The payment for a closed lease, and the device time that it covers.
#[derive(Clone, Copy)]
pub(super) struct Payment {
    /// The credits that the buyer pays for device time.
    pub amount: Credits,
    /// That device time, as it counts at the full price.
    pub usage: DeviceMicros,
    /// The credits that the buyer pays to the market for work that it refused.
    pub forfeit: Credits,
}

/// All of an amount, as a market's share.
const WHOLE: u16 = 10_000;

/// Returns the payment for a lease that closes without a receipt. A buyer that refuses the work
/// pays what the provider states, or the price of a device that is held, so that it gains nothing
/// by refusing. The market keeps all of it beyond what the buyer accepted, so that a provider gains
/// nothing by wrong work. The same holds if the buyer ends the lease itself: it pays for the time
/// in which it held the device, and a provider that stalled until then earns nothing.
fn unsigned_payment(lease: &Lease, reason: CloseReason, now: Millis) -> Payment {
    let held = lease.usage_possible(now);
    let idle = match lease.claimed {
        true => lease.idle_counts(DeviceMicros(held.0.saturating_sub(lease.agreed.0))),
        false => DeviceMicros(0),
    };
    // Beyond what the buyer accepted by word, silence pays notes or the idle price: not both.
    let owed = DeviceMicros(lease.agreed.0.saturating_add(idle.0)).max(lease.accepted);
    let owed = match lease.claimed {
        true => owed.max(lease.floor_usage(now)),
        false => owed,
    };
    let usage = match reason {
        CloseReason::Disputed | CloseReason::BuyerEnded => lease.accepted,
        _ => owed,
    };
    let due = |usage| {
        let due = ReceiptBody::amount_due(lease.price, usage);
        due.map_or(lease.escrow, |due| due.min(lease.escrow))
    };
    let amount = due(usage);
    let forfeit = due(owed.max(lease.refused)).minus(amount);
    Payment {
        amount,
        usage,
        forfeit,
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
    let is_same = body.job == lease.job && body.class == lease.class && body.model == lease.model;
    if !is_same || body.idle_part != lease.idle {
        return Err(Refusal::ReceiptTerms { lease: id });
    }
    if body.price != lease.price {
        let (lease_price, receipt_price) = (lease.price, body.price);
        return Err(Refusal::ReceiptPrice {
            lease_price,
            receipt_price,
        });
    }
    let possible =
        DeviceMicros::from_units(lease.quantity, lease.deadline.saturating_since(lease.start));
    let claimed = DeviceMicros(body.usage.0.saturating_add(body.idle.0));
    if claimed > possible {
        return Err(Refusal::UsageOver { claimed, possible });
    }
    if body.amount > lease.escrow {
        return Err(Refusal::ReceiptOver {
            claimed: body.amount,
            escrow: lease.escrow,
        });
    }
    check_tokens(lease, body, possible)
}

/// Whether a receipt counts tokens on the lease's terms, and bills what the counts give. Tokens can
/// cost more time than the lease has: then it bills all of that.
fn check_tokens(lease: &Lease, body: &ReceiptBody, possible: DeviceMicros) -> Result<(), Refusal> {
    let is_right = match (lease.tokens, &body.metered) {
        (None, None) => true,
        (Some(terms), Some(metered)) => {
            metered.terms == terms
                && metered.held <= possible
                && body.usage == metered.usage().min(possible)
        }
        _ => false,
    };
    match is_right {
        true => Ok(()),
        false => Err(Refusal::ReceiptTokens { lease: lease.id }),
    }
}

/// Whether less than 80 % of the advertised speed was delivered; unmeasured is not slow.
fn classify_speed(body: &ReceiptBody) -> Speed {
    let delivered = u128::from(body.delivered_mega_ops) * 10;
    let is_slow = delivered != 0 && delivered < u128::from(body.declared_mega_ops) * 8;
    match is_slow {
        true => Speed::Slow,
        false => Speed::AsStated,
    }
}
