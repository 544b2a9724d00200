//! Checks the promises of a crowd's market: credits must add up, each lease must close exactly
//! once, and no device can be sold twice at the same time. Also sums for how long each device was
//! sold and at which prices, for the report.

use std::collections::BTreeMap;

use souk_market::{CloseReason, Event, LeaseId, Price, Trade};

use super::Crowd;
use super::seller::{Misconduct, Seller};

/// The most that a receipt can bill beyond the work: a sixteenth and this many microseconds,
/// because the buyer measures for itself and messages take time; and a tenth of the time for which
/// the device was held and idle.
const UNSEEN_PART: u64 = 16;
const UNSEEN_US: u64 = 1_000_000;
const IDLE_PART: u64 = 10;

/// The leases of a crowd's market, with the sums for the report.
pub struct Ledger {
    /// The lease that each provider's device is sold to.
    sold: Vec<Option<LeaseId>>,
    open: BTreeMap<LeaseId, OpenLease>,
    /// How long each provider's device was sold, in microseconds.
    pub sold_us: Vec<u64>,
    /// The leases of each provider.
    pub lease_counts: Vec<u64>,
    /// The device time sold at each price, by model.
    pub prices: Vec<BTreeMap<Price, u64>>,
    models: Vec<usize>,
    pub leases: u64,
    /// The receipts by which a buyer paid for more than was worked.
    pub wrong: u64,
    breach: Option<String>,
}

struct OpenLease {
    seller: usize,
    price: Price,
    since: u64,
    worked_us: u64,
    sold_us: u64,
}

impl Ledger {
    /// Creates the ledger of a market without leases.
    pub fn new(sellers: &[Seller]) -> Self {
        let models: Vec<usize> = sellers.iter().map(|seller| seller.model).collect();
        let kinds = models.iter().max().map_or(0, |model| model + 1);
        Self {
            sold: vec![None; sellers.len()],
            open: BTreeMap::new(),
            sold_us: vec![0; sellers.len()],
            lease_counts: vec![0; sellers.len()],
            prices: vec![BTreeMap::new(); kinds],
            models,
            leases: 0,
            wrong: 0,
            breach: None,
        }
    }

    /// Returns whether a provider's device is sold.
    pub fn is_sold(&self, seller: usize) -> bool {
        self.sold[seller].is_some()
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns the first broken promise.
    pub fn breach(&self) -> Option<&String> {
        self.breach.as_ref()
    }

    pub fn record_breach(&mut self, what: String) {
        self.breach.get_or_insert(what);
    }

    /// Records the work of a lease.
    pub fn begin_run(&mut self, lease: LeaseId, worked_us: u64) {
        if let Some(open) = self.open.get_mut(&lease) {
            open.worked_us += worked_us;
        }
    }

    fn on_traded(&mut self, trade: &Trade, seller: usize, now: u64) {
        self.leases += 1;
        self.lease_counts[seller] += 1;
        if let Some(other) = self.sold[seller].replace(trade.lease) {
            let what = format!("device {seller} is sold to {other} and {}", trade.lease);
            self.record_breach(what);
        }
        let open = OpenLease {
            seller,
            price: trade.price,
            since: now,
            worked_us: 0,
            sold_us: 0,
        };
        self.open.insert(trade.lease, open);
    }

    fn on_ended(&mut self, lease: LeaseId, now: u64, end: u64) {
        let Some(open) = self.open.get_mut(&lease) else {
            return;
        };
        if self.sold[open.seller] == Some(lease) {
            self.sold[open.seller] = None;
            open.sold_us = now - open.since;
            self.sold_us[open.seller] += now.min(end).saturating_sub(open.since);
            let prices = &mut self.prices[self.models[open.seller]];
            *prices.entry(open.price).or_default() += open.sold_us;
        }
    }
}

impl Crowd {
    /// Checks an event of the exchange.
    pub fn on_market_event(&mut self, event: &Event) {
        match event {
            Event::Traded(trade) => {
                let seller = self.actors[&trade.provider];
                self.ledger.on_traded(trade, seller, self.now);
            }
            Event::LeaseEnded { lease, .. } => {
                self.ledger.on_ended(*lease, self.now, self.config.end_us())
            }
            Event::LeaseClosed {
                lease,
                reason,
                paid,
                fee,
                ..
            } => {
                self.ledger.on_ended(*lease, self.now, self.config.end_us());
                let Some(open) = self.ledger.open.remove(lease) else {
                    return self.ledger.record_breach(format!("{lease} closed twice"));
                };
                *self.counts.closed.entry(name_of(*reason)).or_default() += 1;
                let idle = open.sold_us.saturating_sub(open.worked_us) / IDLE_PART;
                let due = open.worked_us + open.worked_us / UNSEEN_PART + UNSEEN_US + idle;
                let due = u128::from(open.price.0) * u128::from(due) / 1_000_000 + 1;
                let is_honest = self.sellers[open.seller].misconduct == Misconduct::None;
                if u128::from(paid.0 + fee.0) > due {
                    let of = match (reason, is_honest) {
                        (CloseReason::Receipt, _) => &mut self.ledger.wrong,
                        (_, true) => &mut self.counts.noted_beyond_work,
                        (_, false) => &mut self.counts.liars_paid_by_notes,
                    };
                    *of += 1;
                }
            }
            _ => {}
        }
        if !self.validators.exchange().totals().is_balanced() {
            self.ledger
                .record_breach("credits do not add up".to_owned());
        }
    }
}

fn name_of(reason: CloseReason) -> String {
    let debug = format!("{reason:?}");
    let mut name = String::new();
    for letter in debug.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
