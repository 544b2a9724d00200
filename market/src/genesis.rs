//! The first state of a market: its operators, rules, first accounts and first validators. An
//! exchange starts from it. Its hash is the market's id.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, MarketId, canonical_bytes};
use crate::rules::{RuleFault, Rules};
use crate::text::Name;
use crate::units::Credits;

/// The most operators of a market.
pub const OPERATORS_MAX: usize = 16;

/// The first state of a market. Markets with different geneses have different ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// A name, so that two markets with the same keys can differ.
    pub chain: Name,
    /// The operators: they decide deposits and withdrawals, freeze accounts, name validators and
    /// change rules.
    pub operators: Vec<AccountKey>,
    /// The operators that must give the same command before the exchange carries it out.
    pub operators_needed: u32,
    /// Accounts that exist from the start, each with a name and a deposit. The sum of the deposits
    /// must fit in 64 bits.
    pub accounts: Vec<(AccountKey, Name, Credits)>,
    /// The first validators; the exchange itself does not use them.
    pub validators: Vec<Founder>,
    /// The market's rules.
    pub rules: Rules,
}

/// A validator with which a market begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founder {
    /// The validator's id in the replicated log. It must be neither 0 nor that of another one.
    pub raft_id: u64,
    /// The validator's account.
    pub account: AccountKey,
    /// The validator's network address, which ends in its peer id.
    pub address: String,
}

/// Why a genesis is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenesisFault {
    /// A rule has a value out of its range.
    #[error(transparent)]
    Rule(#[from] RuleFault),
    /// The genesis lists an account twice.
    #[error("account {0} is named twice")]
    Account(AccountKey),
    /// The sum of the deposits does not fit in 64 bits.
    #[error("the sum of the accounts' deposits is too large")]
    Deposits,
    /// There are no operators or too many, one appears twice, or `operators_needed` is 0 or more
    /// than there are.
    #[error(
        "{count} operators of whom {needed} are needed: name 1 to {OPERATORS_MAX}, none twice, and \
         need one of them at least"
    )]
    Operators {
        /// The operators in the genesis.
        count: usize,
        /// The operators that must agree.
        needed: u32,
    },
    /// A validator's id is 0, or its id or key is that of another validator.
    #[error("validator {0} needs an id above 0 and an id and key that no other validator has")]
    Validator(u64),
}

impl Genesis {
    /// Creates a genesis with the default rules, one operator and no accounts.
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

    /// Checks the genesis.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), GenesisFault> {
        self.rules.check_ranges()?;
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

    /// Computes the market's id: BLAKE3 of the canonical genesis.
    pub fn market_id(&self) -> MarketId {
        let mut hasher = blake3::Hasher::new_derive_key("souk market genesis v1");
        hasher.update(&canonical_bytes(self));
        MarketId(*hasher.finalize().as_bytes())
    }
}
