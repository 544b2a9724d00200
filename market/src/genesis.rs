//! What a market begins with, and the rules it keeps to. Its hash is the market's id.

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, MarketId, canonical};
use crate::text::Name;
use crate::units::{Credits, Millis, Price};

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
    /// Open orders an account may have at once.
    pub open_orders_max: u32,
    /// The longest lease, extensions included.
    pub lease_max: Millis,
    /// How long after a lease's end a receipt or a note may still come.
    pub settle_grace: Millis,
    /// How long a buyer has to dispute a usage note before it counts as accepted.
    pub note_deadline: Millis,
    /// After so many notes in a row that the buyer did not answer, the lease ends.
    pub silent_notes_max: u8,
    /// Closed leases that stay readable; the oldest are forgotten first.
    pub closed_leases_kept: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            fee_basis_points: 0,
            tick: Price(1),
            open_orders_max: 4_096,
            lease_max: Millis(7 * 24 * 3_600_000),
            settle_grace: Millis(120_000),
            note_deadline: Millis(60_000),
            silent_notes_max: 3,
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
