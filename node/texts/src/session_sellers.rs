//! The sellers of the sessions that make one text: sessions that are compared must have no provider
//! in common.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use souk_node::market::AccountKey;
use tokio::sync::Mutex;

/// The sellers of all sessions; a session must lock this while it chooses its own.
pub type SharedSellers = Arc<Mutex<SessionSellers>>;

/// The sellers of sessions, by the sessions' numbers.
#[derive(Default)]
pub struct SessionSellers {
    by_session: BTreeMap<u32, (Vec<AccountKey>, String)>,
    /// Providers that failed; they may come back.
    lost: BTreeSet<AccountKey>,
    /// Providers that gave wrong results.
    outvoted: BTreeSet<AccountKey>,
    /// Number of choices so far.
    choices: u64,
}

impl SessionSellers {
    /// Returns the providers from which a session must not buy: those of other sessions, those that
    /// failed, and those that gave wrong results.
    pub fn excluded_providers(&self, number: u32) -> Vec<AccountKey> {
        let others = self.by_session.iter().filter(|(of, _)| **of != number);
        let others = others.flat_map(|(_, (accounts, _))| accounts);
        let gone = self.lost.iter().chain(&self.outvoted);
        others.chain(gone).copied().collect()
    }

    /// Records providers that failed.
    pub fn record_lost_providers(&mut self, accounts: impl IntoIterator<Item = AccountKey>) {
        self.lost.extend(accounts);
    }

    /// Forgets which providers failed, because they may be back.
    pub fn clear_lost_providers(&mut self) {
        self.lost.clear();
    }

    /// Records the providers of a session, and their names.
    pub fn set_session(&mut self, number: u32, accounts: Vec<AccountKey>, names: String) {
        self.by_session.insert(number, (accounts, names));
        self.choices += 1;
    }

    /// Returns the number of choices so far.
    pub fn choices(&self) -> u64 {
        self.choices
    }

    /// Returns the names of a session's providers.
    pub fn session_names(&self, number: u32) -> &str {
        self.by_session.get(&number).map_or("", |(_, names)| names)
    }

    /// Returns the accounts of a session's providers.
    pub fn session_accounts(&self, number: u32) -> Vec<AccountKey> {
        let session = self.by_session.get(&number);
        session.map_or_else(Vec::new, |(accounts, _)| accounts.clone())
    }

    /// Excludes the providers of a session that gave wrong results.
    pub fn outvote_session(&mut self, number: u32) {
        let accounts = self.by_session.get(&number);
        self.outvoted
            .extend(accounts.iter().flat_map(|(accounts, _)| accounts));
    }

    /// Forgets the providers of a session that is over, so that the next one can buy from any of
    /// them.
    pub fn forget_session(&mut self, number: u32) {
        self.by_session.remove(&number);
        self.clear_lost_providers();
    }
}
