//! What a market begins with, and the rules it keeps to. Its hash is the market's id.

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
    pub issuer: AccountKey,
    /// Accounts that exist from the start, each with a name and a deposit.
    pub accounts: Vec<(AccountKey, Name, Credits)>,
    /// The rules.
    pub rules: Rules,
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

    /// Whether no divisor in them is zero.
    pub(crate) fn is_sound(&self) -> bool {
        let sound = |rules: &ClassRules| {
            let interval = rules.auction.is_none_or(|interval| interval.0 > 0);
            rules.tick.0 > 0 && rules.lot.0 > 0 && interval
        };
        self.tick.0 > 0 && self.slash.0 <= 1_000 && self.classes.iter().all(sound)
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
            lease_max: Millis(7 * 24 * 3_600_000),
            settle_grace: Millis(120_000),
            note_deadline: Millis(60_000),
            note_span: Millis(300_000),
            silent_notes_max: 3,
            stake_hold: Millis(3_600_000),
            slash: Permille(1_000),
            closed_leases_kept: 100_000,
        }
    }
}

impl Genesis {
    /// A market with the default rules and one issuer, without accounts.
    pub fn new(chain: Name, issuer: AccountKey) -> Self {
        Self {
            chain,
            issuer,
            accounts: Vec::new(),
            rules: Rules::default(),
        }
    }

    /// The market's id: BLAKE3 of the canonical genesis.
    pub fn market_id(&self) -> MarketId {
        let mut hasher = blake3::Hasher::new_derive_key("souk market genesis v1");
        hasher.update(&canonical(self));
        MarketId(*hasher.finalize().as_bytes())
    }
}
