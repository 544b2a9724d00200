//! Lists the providers from which a session must not buy: those of the other sessions of the text,
//! because compared sessions must have no provider in common, and those that failed or gave wrong
//! results.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;

/// The sellers of sessions, by the sessions' numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SessionSellers {
    by_session: BTreeMap<u32, Vec<AccountKey>>,
    /// Providers that failed; they may come back.
    lost: BTreeSet<AccountKey>,
    /// Providers that gave wrong results.
    outvoted: BTreeSet<AccountKey>,
}

impl SessionSellers {
    /// Returns the providers from which a session must not buy: those of other sessions, those that
    /// failed, those that gave wrong results, and `more`.
    pub fn excluded_providers(&self, number: u32, more: Vec<AccountKey>) -> Vec<AccountKey> {
        let others = self.by_session.iter().filter(|(of, _)| **of != number);
        let others = others.flat_map(|(_, accounts)| accounts);
        let gone = self.lost.iter().chain(&self.outvoted);
        let excluded: BTreeSet<AccountKey> = others.chain(gone).copied().chain(more).collect();
        excluded.into_iter().collect()
    }

    /// Records providers that failed.
    pub fn record_lost_providers(&mut self, accounts: impl IntoIterator<Item = AccountKey>) {
        self.lost.extend(accounts);
    }

    /// Forgets which providers failed, because they may be back.
    pub fn clear_lost_providers(&mut self) {
        self.lost.clear();
    }

    /// Records the providers of a session.
    pub fn set_session(&mut self, number: u32, accounts: Vec<AccountKey>) {
        self.by_session.insert(number, accounts);
    }

    /// Returns the accounts of a session's providers.
    pub fn session_accounts(&self, number: u32) -> &[AccountKey] {
        self.by_session.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Excludes providers that gave wrong results.
    pub fn record_outvoted_providers(&mut self, accounts: impl IntoIterator<Item = AccountKey>) {
        self.outvoted.extend(accounts);
    }

    #[cfg(test)]
    pub fn outvoted_providers(&self) -> &BTreeSet<AccountKey> {
        &self.outvoted
    }

    /// Forgets the providers of a session that is over, so that the next one can buy from any of
    /// them.
    pub fn forget_session(&mut self, number: u32) {
        self.by_session.remove(&number);
        self.clear_lost_providers();
    }
}
