//! What a market begins with. Its hash is the market's id.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, MarketId, canonical};
use crate::rules::{RuleFault, Rules};
use crate::text::Name;
use crate::units::Credits;

/// Operators there may be.
pub const OPERATORS_MAX: usize = 16;

/// The first state of a market. Two markets with unlike geneses have unlike ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// A name, so that two markets with the same keys still differ.
    pub chain: Name,
    /// Who operates it: decides deposits and withdrawals, freezes accounts, names validators,
    /// changes rules.
    pub operators: Vec<AccountKey>,
    /// How many of them must give the same command before it is done.
    pub operators_needed: u32,
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

/// Why no market can begin so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenesisFault {
    /// A rule's value.
    #[error(transparent)]
    Rule(#[from] RuleFault),
    /// An account begins twice.
    #[error("account {0} is named twice")]
    Account(AccountKey),
    /// More credits than can be counted.
    #[error("the accounts' deposits are more than can be counted")]
    Deposits,
    /// There are no operators, too many, one is named twice, or more are needed than there are.
    #[error(
        "{count} operators of whom {needed} are needed: name 1 to {OPERATORS_MAX}, none twice, and \
         need one of them at least"
    )]
    Operators {
        /// How many are named.
        count: usize,
        /// How many are needed.
        needed: u32,
    },
    /// A validator's id is 0 or that of another, or its key is another's.
    #[error("validator {0} has no id or key of its own")]
    Validator(u64),
}

impl Genesis {
    /// A market with the default rules and one operator, without accounts.
    pub fn new(chain: Name, operator: AccountKey) -> Self {
        Self {
            chain,
            operators: vec![operator],
            operators_needed: 1,
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
        self.check_operators()?;
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

    fn check_operators(&self) -> Result<(), GenesisFault> {
        let (count, needed) = (self.operators.len(), self.operators_needed);
        let unlike: BTreeSet<&AccountKey> = self.operators.iter().collect();
        let is_sound = count <= OPERATORS_MAX && unlike.len() == count;
        match is_sound && (1..=count).contains(&(needed as usize)) {
            true => Ok(()),
            false => Err(GenesisFault::Operators { count, needed }),
        }
    }

    /// The market's id: BLAKE3 of the canonical genesis.
    pub fn market_id(&self) -> MarketId {
        let mut hasher = blake3::Hasher::new_derive_key("souk market genesis v1");
        hasher.update(&canonical(self));
        MarketId(*hasher.finalize().as_bytes())
    }
}
