//! What a market begins with, and the rules it keeps to. Its hash is the market's id.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::ids::{AccountKey, MarketId, canonical};
use crate::text::Name;
use crate::units::{Credits, Millis, Permille, Price, Units};

/// The first state of a market. Two markets with unlike geneses have unlike ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// A name, so that two markets with the same keys still differ.
    pub chain: Name,
    /// The only account that may deposit.
    pub operator: AccountKey,
    /// Accounts that exist from the start, each with a name and a deposit.
    pub accounts: Vec<(AccountKey, Name, Credits)>,
    /// The validators that it begins with; the exchange itself asks nothing of them.
    pub validators: Vec<Founder>,
    /// The rules.
    pub rules: Rules,
}

/// A validator that a market begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founder {
    /// Its id in the replicated log, from 1.
    pub raft_id: u64,
    /// Its key.
    pub account: AccountKey,
    /// Its address, ending in its peer id.
    pub address: String,
}

/// The longest time in a rule: a year. Sums of times then never overflow.
const TIME_MAX: u64 = 366 * 24 * 3_600_000;

/// Why no market can begin so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenesisFault {
    /// A rule's value.
    #[error("the rule {rule} is {value}, and must be {least} to {most} (times in milliseconds)")]
    Rule {
        /// Its name; times are in milliseconds.
        rule: &'static str,
        /// What it is.
        value: u64,
        /// The least it may be.
        least: u64,
        /// The most.
        most: u64,
    },
    /// An account begins twice.
    #[error("account {0} is named twice")]
    Account(AccountKey),
    /// More credits than can be counted.
    #[error("the accounts' deposits are more than can be counted")]
    Deposits,
    /// A validator's id is 0 or that of another, or its key is another's.
    #[error("validator {0} has no id or key of its own")]
    Validator(u64),
}

/// The numbers a market is run by. All replicas have the same, for they are in the genesis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// The market's share of each settlement, in hundredths of a per cent.
    pub fee_basis_points: u16,
    /// Prices are multiples of this, per device-second.
    pub tick: Price,
    /// Classes with a tick, a lot or a way of matching of their own.
    pub classes: Vec<ClassRules>,
    /// Accounts there may be: each stays in memory for good.
    pub accounts_max: u32,
    /// Classes there may be.
    pub classes_max: u32,
    /// Open orders an account may have at once.
    pub open_orders_max: u32,
    /// Requests for credits in or out that an account may have undecided at once.
    pub requests_max: u32,
    /// The longest lease, extensions included.
    pub lease_max: Millis,
    /// How long after a lease's end a receipt or a note may still come.
    pub settle_grace: Millis,
    /// How long a buyer has to dispute a usage note before it counts as accepted.
    pub note_deadline: Millis,
    /// How much time of each unit one note may add to what was accepted before.
    pub note_span: Millis,
    /// After so many notes in a row that the buyer did not answer, the lease ends.
    pub silent_notes_max: u8,
    /// How long a buyer has to begin or to end a lease once its provider said that it is ready.
    pub reserve_wait: Millis,
    /// What part of the price of the time it was held a lease costs that was neither.
    pub reserve: Permille,
    /// How long after its last lease a provider's stake stays.
    pub stake_hold: Millis,
    /// What part of the stake a proven fault costs.
    pub slash: Permille,
    /// Closed leases that stay readable; the oldest are forgotten first.
    pub closed_leases_kept: u32,
}

/// How one class is traded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRules {
    /// Which.
    pub class: Class,
    /// Prices are multiples of this.
    pub tick: Price,
    /// Quantities are multiples of this.
    pub lot: Units,
    /// With an interval, orders meet only in a uniform-price auction whenever the log time passes
    /// a multiple of it, so that the order of arrival within an interval is worth nothing.
    pub auction: Option<Millis>,
}

impl Rules {
    /// The rules of one class: its own, or the common tick, lots of one and continuous matching.
    pub fn of_class(&self, class: Class) -> ClassRules {
        let own = self
            .classes
            .iter()
            .find(|rules| rules.class == class)
            .copied();
        let common = ClassRules {
            class,
            tick: self.tick,
            lot: Units(1),
            auction: None,
        };
        let rules = own.unwrap_or(common);
        debug_assert!(rules.tick.0 > 0 && rules.lot.0 > 0, "the rules are sound");
        rules
    }

    /// Whether a market can be run by them.
    ///
    /// # Errors
    /// The first one that makes no sense.
    pub fn check(&self) -> Result<(), GenesisFault> {
        let ranges = [
            ("fee_basis_points", self.fee_basis_points.into(), 0, 10_000),
            ("tick", self.tick.0, 1, u64::MAX),
            ("accounts_max", self.accounts_max.into(), 1, u64::MAX),
            ("classes_max", self.classes_max.into(), 1, u64::MAX),
            ("open_orders_max", self.open_orders_max.into(), 1, u64::MAX),
            ("requests_max", self.requests_max.into(), 1, u64::MAX),
            ("lease_max", self.lease_max.0, 1, TIME_MAX),
            ("settle_grace", self.settle_grace.0, 1, TIME_MAX),
            ("note_deadline", self.note_deadline.0, 1, TIME_MAX),
            ("note_span", self.note_span.0, 1, TIME_MAX),
            (
                "silent_notes_max",
                self.silent_notes_max.into(),
                1,
                u64::MAX,
            ),
            ("reserve_wait", self.reserve_wait.0, 1, TIME_MAX),
            ("reserve", self.reserve.0.into(), 0, 1_000),
            ("stake_hold", self.stake_hold.0, 0, TIME_MAX),
            ("slash", self.slash.0.into(), 0, 1_000),
        ];
        for (rule, value, least, most) in ranges {
            within(rule, value, least, most)?;
        }
        for own in &self.classes {
            within("classes.tick", own.tick.0, 1, u64::MAX)?;
            within("classes.lot", own.lot.0.into(), 1, u64::MAX)?;
            if let Some(interval) = own.auction {
                within("classes.auction", interval.0, 1, TIME_MAX)?;
            }
        }
        Ok(())
    }
}

fn within(rule: &'static str, value: u64, least: u64, most: u64) -> Result<(), GenesisFault> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(GenesisFault::Rule {
            rule,
            value,
            least,
            most,
        }),
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            fee_basis_points: 0,
            tick: Price(1),
            classes: Vec::new(),
            accounts_max: 1_000_000,
            classes_max: 4_096,
            open_orders_max: 4_096,
            requests_max: 8,
            lease_max: Millis(7 * 24 * 3_600_000),
            settle_grace: Millis(120_000),
            note_deadline: Millis(60_000),
            note_span: Millis(300_000),
            silent_notes_max: 3,
            reserve_wait: Millis(60_000),
            reserve: Permille(100),
            stake_hold: Millis(3_600_000),
            slash: Permille(1_000),
            closed_leases_kept: 100_000,
        }
    }
}

impl Genesis {
    /// A market with the default rules and one operator, without accounts.
    pub fn new(chain: Name, operator: AccountKey) -> Self {
        Self {
            chain,
            operator,
            accounts: Vec::new(),
            validators: Vec::new(),
            rules: Rules::default(),
        }
    }

    /// Whether a market can begin so.
    ///
    /// # Errors
    /// The first thing that makes none of it.
    pub fn check(&self) -> Result<(), GenesisFault> {
        self.rules.check()?;
        let mut keys = BTreeSet::new();
        let mut sum = 0_u64;
        for (key, _, deposit) in &self.accounts {
            sum = sum.checked_add(deposit.0).ok_or(GenesisFault::Deposits)?;
            if !keys.insert(*key) {
                return Err(GenesisFault::Account(*key));
            }
        }
        let (mut ids, mut keys) = (BTreeSet::from([0]), BTreeSet::new());
        for founder in &self.validators {
            if !ids.insert(founder.raft_id) || !keys.insert(founder.account) {
                return Err(GenesisFault::Validator(founder.raft_id));
            }
        }
        Ok(())
    }

    /// The market's id: BLAKE3 of the canonical genesis.
    pub fn market_id(&self) -> MarketId {
        let mut hasher = blake3::Hasher::new_derive_key("souk market genesis v1");
        hasher.update(&canonical(self));
        MarketId(*hasher.finalize().as_bytes())
    }
}
