//! Computes the payments of each closed lease by a second, simple implementation of the market's
//! rules of payment. It derives them from commands and trades alone, and the checker compares them
//! with the payments of the real exchange.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use souk_market::{
    Acceptance, AccountKey, CloseReason, Command, Credits, DeviceMicros, Event, Genesis, LeaseId,
    Millis, OrderEnd, OrderId, Price, ReceiptBody, Refusal, Rule, Rules, Setting, Trade, Units,
};

/// Counts of the log's commands and events by people.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Dealings {
    /// Leases begun.
    pub leases: u64,
    /// Leases closed by a receipt with both signatures.
    pub receipts_settled: u64,
    /// Gangs of bids that traded completely.
    pub gangs_placed: u64,
    /// Leases extended.
    pub extended: u64,
    /// Orders changed.
    pub amended: u64,
    /// Leases whose rest was resold.
    pub resold: u64,
    /// Stakes deposited.
    pub staked: u64,
    /// Stakes withdrawn, fully or partly.
    pub unstaked: u64,
    /// Orders that expired.
    pub orders_expired: u64,
    /// Leases whose buyer reported the start of the work.
    pub work_started: u64,
    /// Leases that their buyer refused.
    pub disputes: u64,
    /// Notes that buyers accepted explicitly.
    pub notes_accepted: u64,
    /// Leases whose buyer answered no note.
    pub buyers_silent: u64,
    /// Leases that no buyer began although the provider was ready.
    pub unused: u64,
    /// Leases that the provider gave up.
    pub given_up: u64,
    /// Leases reclaimed or displaced.
    pub reclaimed: u64,
    /// Leases that ended only because their time was over.
    pub run_out: u64,
    /// Credits that operators deposited to an account, counted once for each deposit.
    pub deposits: u64,
    /// Deposits among them to a new account of a full market, which evicts an account without
    /// credits.
    pub accounts_evicted: u64,
    /// Requests to deposit or withdraw that operators confirmed.
    pub requests_confirmed: u64,
    /// Requests that failed.
    pub requests_refused: u64,
    /// Transfers between accounts.
    pub transfers: u64,
    /// Withdrawals of the market's earnings by operators.
    pub collected: u64,
    /// Operators' commands that waited for another operator.
    pub approvals: u64,
    /// Accounts frozen.
    pub frozen: u64,
    /// Accounts thawed.
    pub thawed: u64,
    /// Changes of the rules that took effect.
    pub rules_changed: u64,
    /// New versions of the rules that took effect.
    pub versions_raised: u64,
    /// Changes of the rules that were withdrawn before.
    pub rules_kept: u64,
    /// Orders evicted to make room for others.
    pub orders_evicted: u64,
}

/// The debt of one lease.
#[derive(Clone, Debug)]
struct LeaseDebt {
    price: Price,
    escrow: Credits,
    begins: Millis,
    ends: Millis,
    units: Units,
    accepted: DeviceMicros,
    /// Usage that the buyer accepted explicitly.
    agreed: DeviceMicros,
    /// When the lease ended, if that was before its closing.
    ended: Option<Millis>,
    /// Whether the provider claims the time for which it held the device.
    claimed: bool,
    /// Usage that the provider states and the buyer refused.
    refused: DeviceMicros,
    note: Option<(DeviceMicros, Millis)>,
    /// For a lease bought from another buyer: the provider's price per device-second, and the
    /// amount that the reseller left to cover the difference, in whole micro-credits and so at most
    /// one too few.
    resold_at: Option<(Price, Credits)>,
    /// The market's share at the time of the trade.
    fee_basis_points: u64,
}

impl LeaseDebt {
    /// Returns the payment without a receipt for a lease that ended at `until` at the latest: the
    /// amount, the device time, and the buyer's loss to the market for refused work.
    fn unsigned_payment(
        &self,
        reason: CloseReason,
        until: Millis,
    ) -> Option<(Credits, DeviceMicros, Credits)> {
        let until = self.ended.unwrap_or(until);
        let held = DeviceMicros::from_units(self.units, until.saturating_since(self.begins));
        let idle = match self.claimed {
            true => held.0.saturating_sub(self.agreed.0).div_ceil(10),
            false => 0,
        };
        let owed = self.accepted.max(DeviceMicros(self.agreed.0 + idle));
        let usage = match reason {
            CloseReason::Disputed | CloseReason::BuyerEnded => self.accepted,
            _ => owed,
        };
        let due = |usage| Some(ReceiptBody::amount_due(self.price, usage)?.min(self.escrow));
        let (amount, lost) = (due(usage)?, due(owed.max(self.refused))?);
        Some((amount, usage, Credits(lost.0 - amount.0)))
    }
}

/// The claims of a batch's receipts: amount and usage.
type ReceiptClaims = BTreeMap<LeaseId, (Credits, DeviceMicros)>;

/// The expected payments of all leases.
pub struct Payments {
    fee_basis_points: u64,
    rules: Rules,
    now: Millis,
    leases: BTreeMap<LeaseId, LeaseDebt>,
    /// Leases that their buyer began, and leases whose provider is ready, with the time when the
    /// reserve is due. A batch can begin a lease that it buys itself.
    started: BTreeSet<LeaseId>,
    reserves: BTreeMap<LeaseId, Millis>,
    /// Current and former accounts. The market never has more at once than at its beginning.
    accounts: BTreeSet<AccountKey>,
    /// The market's share after each change of the rules.
    fees: BTreeMap<u64, u64>,
    /// Asks that sell the rest of a lease.
    resales: BTreeMap<OrderId, LeaseId>,
    /// Counts of people's dealings.
    pub dealings: Dealings,
}

impl Payments {
    /// Creates the payments of a market with this genesis.
    pub fn new(genesis: &Genesis) -> Self {
        Self {
            fee_basis_points: u64::from(genesis.rules.fee_basis_points),
            rules: genesis.rules.clone(),
            now: Millis(0),
            accounts: genesis.accounts.iter().map(|(key, ..)| *key).collect(),
            leases: BTreeMap::new(),
            started: BTreeSet::new(),
            reserves: BTreeMap::new(),
            fees: BTreeMap::new(),
            resales: BTreeMap::new(),
            dealings: Dealings::default(),
        }
    }

    /// Applies a batch, or none if only time passed, and the exchange's results. Returns the wrong
    /// payments.
    pub fn apply_batch(
        &mut self,
        now: Millis,
        done: &[(&Command, &Result<Acceptance, Refusal>)],
        events: &[Event],
    ) -> Option<String> {
        self.now = now;
        self.accept_silently(now);
        events.iter().for_each(|event| self.on_ended(event));
        let mut settled = BTreeMap::new();
        for (command, result) in done {
            let Ok(acceptance) = result else { continue };
            if let Command::NoteUsage { lease, usage } = command
                && !self.started.contains(lease)
                && self.leases.get(lease).is_none_or(|owed| {
                    *usage > DeviceMicros::from_units(owed.units, self.rules.note_unstarted)
                })
            {
                return Some(format!("lease {lease} is noted, and nobody began it"));
            }
            self.on_done(command, acceptance, &mut settled);
        }
        let wrong = events.iter().filter_map(|event| {
            let wrong = self.on_event(event, &settled);
            if let Event::Traded(trade) = event {
                self.on_ended_at_once(trade.lease, events);
            }
            wrong
        });
        wrong.min()
    }

    fn accept_silently(&mut self, now: Millis) {
        for owed in self.leases.values_mut() {
            if let Some((usage, at)) = owed.note
                && at <= now
            {
                (owed.accepted, owed.note) = (usage, None);
            }
        }
    }

    /// Records the end of a lease; its grace period determines the time.
    fn on_ended(&mut self, event: &Event) {
        if let Event::LeaseEnded {
            lease,
            until,
            reason,
            ..
        } = event
            && let Some(owed) = self.leases.get_mut(lease)
        {
            owed.claimed |= *reason == CloseReason::Unused;
            owed.ended = Some(until.saturating_since(self.rules.settle_grace));
        }
    }

    /// Handles a lease that begins by itself and ends at once, because the log's clock can leap
    /// over all of it.
    fn on_ended_at_once(&mut self, traded: LeaseId, events: &[Event]) {
        for event in events {
            if let Event::LeaseEnded { lease, .. } = event
                && *lease == traded
            {
                self.on_ended(event);
            }
        }
    }

    /// Records a provider's claim by a command, beyond the usage that its buyer accepts.
    fn on_claimed(&mut self, command: &Command, acceptance: &Acceptance) {
        let is_closed = matches!(acceptance, Acceptance::Closed { .. });
        let leases = &mut self.leases;
        match command {
            Command::StateReady { lease } => {
                if let Some(owed) = leases.get_mut(lease) {
                    owed.claimed |= owed.ended.is_some();
                }
            }
            Command::NoteUsage { lease, usage } => {
                if let Some(owed) = leases.get_mut(lease) {
                    owed.claimed |= owed.ended.is_some();
                    if is_closed {
                        owed.refused = *usage;
                    }
                }
            }
            Command::Dispute { lease } => {
                if let Some(owed) = leases.get_mut(lease)
                    && let Some((usage, _)) = owed.note.filter(|_| is_closed)
                {
                    (owed.claimed, owed.refused) = (true, usage);
                }
            }
            _ => {}
        }
    }

    fn on_done(&mut self, command: &Command, acceptance: &Acceptance, settled: &mut ReceiptClaims) {
        self.on_claimed(command, acceptance);
        let dealings = &mut self.dealings;
        match (command, acceptance) {
            (Command::StateReady { lease }, Acceptance::Ready { until }) => {
                self.reserves.insert(*lease, *until);
            }
            (Command::StartWork { lease }, _) => {
                dealings.work_started += u64::from(self.started.insert(*lease));
            }
            (Command::NoteUsage { lease, usage }, Acceptance::Noted { accepted_at }) => {
                if let Some(owed) = self.leases.get_mut(lease) {
                    owed.note = Some((*usage, *accepted_at));
                }
            }
            (Command::AcceptNote { lease, usage }, _) => {
                dealings.notes_accepted += 1;
                if let Some(owed) = self.leases.get_mut(lease) {
                    (owed.accepted, owed.agreed, owed.note) = (*usage, *usage, None);
                }
            }
            (Command::Extend { lease, .. }, Acceptance::Extended { escrow, .. }) => {
                dealings.extended += 1;
                if let Some(owed) = self.leases.get_mut(lease) {
                    owed.escrow = owed.escrow.max(*escrow);
                }
            }
            (Command::Resell { lease, .. }, Acceptance::Placed { order, .. }) => {
                self.resales.insert(*order, *lease);
            }
            (Command::Amend { order, .. }, Acceptance::Amended { order: new, .. }) => {
                dealings.amended += 1;
                if let Some(lease) = self.resales.get(order).copied() {
                    self.resales.insert(*new, lease);
                }
            }
            (Command::Settle(receipt), _) => {
                let body = &receipt.body;
                settled.insert(body.lease, (body.amount, body.billable_usage()));
            }
            (Command::ChangeRules { settings, .. }, Acceptance::Due { change, .. }) => {
                let fees = settings.iter().filter_map(|setting| match setting {
                    Setting::Number {
                        rule: Rule::FeeBasisPoints,
                        value,
                    } => Some(*value),
                    _ => None,
                });
                // If several changes are pending, the last one applies.
                self.fees.extend(fees.map(|fee| (*change, fee)));
            }
            (_, Acceptance::Awaited { .. }) => dealings.approvals += 1,
            (Command::Deposit { account, .. }, _) => {
                dealings.deposits += 1;
                dealings.accounts_evicted += u64::from(self.accounts.insert(*account));
            }
            (Command::Transfer { .. }, _) => dealings.transfers += 1,
            (Command::Collect { .. }, _) => dealings.collected += 1,
            (Command::PlaceGang(_), _) => dealings.gangs_placed += 1,
            (Command::Stake { .. }, _) => dealings.staked += 1,
            (Command::Unstake { .. }, _) => dealings.unstaked += 1,
            _ => {}
        }
    }

    /// Records operators' actions.
    fn on_governed(&mut self, event: &Event) {
        let dealings = &mut self.dealings;
        let count = match event {
            Event::RulesChanged { change } => {
                self.fee_basis_points = self.fees.remove(change).unwrap_or(self.fee_basis_points);
                &mut dealings.rules_changed
            }
            Event::Upgraded { .. } => &mut dealings.versions_raised,
            Event::Decided {
                confirmed: true, ..
            } => &mut dealings.requests_confirmed,
            Event::Decided { .. } => &mut dealings.requests_refused,
            Event::RulesKept { .. } => &mut dealings.rules_kept,
            Event::Frozen { .. } => &mut dealings.frozen,
            Event::Thawed { .. } => &mut dealings.thawed,
            _ => return,
        };
        *count += 1;
    }

    fn on_event(&mut self, event: &Event, settled: &ReceiptClaims) -> Option<String> {
        self.on_governed(event);
        match event {
            Event::Traded(trade) => {
                let resold_at = self.on_resold(trade);
                let owed = LeaseDebt {
                    price: trade.price,
                    escrow: trade.escrow,
                    begins: trade.start,
                    ends: trade.deadline,
                    units: trade.quantity,
                    accepted: DeviceMicros(0),
                    agreed: DeviceMicros(0),
                    ended: None,
                    claimed: false,
                    refused: DeviceMicros(0),
                    note: None,
                    resold_at,
                    fee_basis_points: self.fee_basis_points,
                };
                self.dealings.leases += 1;
                self.leases.insert(trade.lease, owed);
                None
            }
            Event::LeaseStarted {
                lease, deadline, ..
            } => {
                if let Some(owed) = self.leases.get_mut(lease) {
                    // The provider gets its device earlier than planned, for the same time.
                    let earlier = owed.ends.saturating_since(*deadline);
                    owed.begins = Millis(owed.begins.0 - earlier.0);
                    owed.ends = *deadline;
                }
                None
            }
            Event::OrderClosed { reason, .. } => {
                self.dealings.orders_expired += u64::from(*reason == OrderEnd::Expired);
                self.dealings.orders_evicted += u64::from(*reason == OrderEnd::Evicted);
                None
            }
            Event::LeaseClosed {
                lease,
                reason,
                paid,
                fee,
                refunded,
                ..
            } => {
                self.count_close(*reason);
                let told = (*paid, *fee, *refunded);
                let debt = self.leases.get(lease).cloned();
                let due = self.close_lease(*lease, *reason, settled);
                (due != Some(told)).then(|| {
                    format!("lease {lease} by {reason:?}: {told:?}, due {due:?} of {debt:?}")
                })
            }
            _ => None,
        }
    }

    /// Records a trade that resells a lease: a reseller below its own price leaves the difference.
    /// Returns the provider's continuing price per device-second and the amount left for it, or
    /// none for other trades.
    fn on_resold(&mut self, trade: &Trade) -> Option<(Price, Credits)> {
        let lease = self.resales.get(&trade.ask)?;
        let owed = self.leases.get_mut(lease)?;
        let price = owed.price;
        let loss = u128::from(price.0.saturating_sub(trade.price.0));
        let lost =
            DeviceMicros::from_units(trade.quantity, trade.deadline.saturating_since(trade.start));
        let left = loss * u128::from(lost.0) / 1_000_000;
        let left = u64::try_from(left).unwrap_or(u64::MAX).min(owed.escrow.0);
        owed.escrow = Credits(owed.escrow.0 - left);
        Some((price, Credits(left)))
    }

    /// Returns the payment, fee and refund of a closed lease, or none if it has no debt.
    fn close_lease(
        &mut self,
        lease: LeaseId,
        reason: CloseReason,
        settled: &ReceiptClaims,
    ) -> Option<(Credits, Credits, Credits)> {
        let mut owed = self.leases.remove(&lease)?;
        self.started.remove(&lease);
        let reserved = self.reserves.remove(&lease);
        let (amount, usage, forfeit) = match reason {
            CloseReason::Receipt => {
                let (amount, usage) = *settled.get(&lease)?;
                (amount, usage, Credits(0))
            }
            CloseReason::Unused => {
                owed.claimed = true;
                owed.unsigned_payment(reason, reserved?)?
            }
            _ => owed.unsigned_payment(reason, self.now)?,
        };
        let cost = amount.0 + forfeit.0;
        let refunded = Credits(owed.escrow.0.checked_sub(cost)?);
        let share = |credits: u64| credits * owed.fee_basis_points / 10_000;
        let Some((price, left)) = owed.resold_at else {
            let fee = share(amount.0);
            let paid = Credits(amount.0 - fee);
            return Some((paid, Credits(fee + forfeit.0), refunded));
        };
        // The provider keeps receiving its own price. The reseller gains or loses the difference.
        let by_price = ReceiptBody::amount_due(price, usage)?.0;
        let by_buyer = by_price.min(amount.0);
        let by_seller = (by_price - by_buyer).min(left.0);
        let of_provider = share(by_buyer) + share(by_seller);
        let fee = of_provider + share(amount.0 - by_buyer) + forfeit.0;
        let paid = by_buyer + by_seller - of_provider;
        Some((Credits(paid), Credits(fee), refunded))
    }

    fn count_close(&mut self, reason: CloseReason) {
        let dealings = &mut self.dealings;
        let count = match reason {
            CloseReason::Receipt => &mut dealings.receipts_settled,
            CloseReason::Resold => &mut dealings.resold,
            CloseReason::Disputed => &mut dealings.disputes,
            CloseReason::BuyerSilent => &mut dealings.buyers_silent,
            CloseReason::Unused => &mut dealings.unused,
            CloseReason::GaveUp => &mut dealings.given_up,
            CloseReason::Reclaimed | CloseReason::Displaced => &mut dealings.reclaimed,
            CloseReason::Deadline | CloseReason::BuyerEnded => &mut dealings.run_out,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{DeviceId, JobId, Name, TradeId};

    use super::*;

    #[test]
    fn a_lease_that_begins_and_ends_while_the_clock_leaps_has_ended() {
        let (buyer, provider) = (AccountKey([1; 32]), AccountKey([2; 32]));
        let genesis = Genesis::new(Name::default(), buyer);
        let grace = genesis.rules.settle_grace;
        let mut payments = Payments::new(&genesis);
        let (lease, start, deadline) = (LeaseId(1), Millis(5_000), Millis(7_000));
        let traded = Event::Traded(Trade {
            id: TradeId(1),
            lease,
            bid: OrderId(1),
            ask: OrderId(2),
            buyer,
            provider,
            device: DeviceId(1),
            job: JobId([0; 32]),
            price: Price(1_000),
            quantity: Units(1),
            escrow: Credits(2_000),
            start,
            deadline,
            tokens: None,
        });
        let ended = Event::LeaseEnded {
            lease,
            buyer,
            provider,
            until: deadline.saturating_add(grace),
            reason: CloseReason::Deadline,
        };
        assert_eq!(
            payments.apply_batch(Millis(9_000), &[], &[traded, ended]),
            None
        );
        let ready = Command::StateReady { lease };
        let (paid, fee, refunded) = (Credits(200), Credits(0), Credits(1_800));
        let closed = Acceptance::Closed {
            paid,
            fee,
            refunded,
        };
        let told = Event::LeaseClosed {
            lease,
            buyer,
            provider,
            reason: CloseReason::Deadline,
            paid,
            fee,
            refunded,
        };
        let claimed = payments.apply_batch(Millis(9_001), &[(&ready, &Ok(closed))], &[told]);
        assert_eq!(claimed, None, "a tenth of the time for which it was held");
    }
}
