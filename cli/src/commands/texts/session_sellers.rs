//! Who sells to which of the sessions that make one text: those that are compared have no provider
//! in common.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use souk_node::market::AccountKey;
use tokio::sync::Mutex;

/// The sellers of all sessions, locked by whoever chooses some.
pub type SharedSellers = Arc<Mutex<SessionSellers>>;

/// The sellers of sessions, by the sessions' numbers.
#[derive(Default)]
pub struct SessionSellers {
    by_session: BTreeMap<u32, (Vec<AccountKey>, String)>,
    /// Those that were lost: they may come back.
    lost: BTreeSet<AccountKey>,
    /// Those that were found to be wrong.
    outvoted: BTreeSet<AccountKey>,
    /// How many times some were chosen.
    choices: u64,
}

impl SessionSellers {
    /// Whom a session may not buy from: those of the others, and those lost or found to be wrong.
    pub fn excluded(&self, number: u32) -> Vec<AccountKey> {
        let others = self.by_session.iter().filter(|(of, _)| **of != number);
        let others = others.flat_map(|(_, (accounts, _))| accounts);
        let gone = self.lost.iter().chain(&self.outvoted);
        others.chain(gone).copied().collect()
    }

    /// These were lost.
    pub fn lose(&mut self, accounts: impl IntoIterator<Item = AccountKey>) {
        self.lost.extend(accounts);
    }

    /// Those that were lost may be back.
    pub fn find(&mut self) {
        self.lost.clear();
    }

    /// A session has bought of these, which are called so.
    pub fn set(&mut self, number: u32, accounts: Vec<AccountKey>, names: String) {
        self.by_session.insert(number, (accounts, names));
        self.choices += 1;
    }

    /// How many times some were chosen.
    pub fn choices(&self) -> u64 {
        self.choices
    }

    /// What those of a session are called.
    pub fn names(&self, number: u32) -> &str {
        self.by_session.get(&number).map_or("", |(_, names)| names)
    }

    /// Nothing is bought any more of those of this session, which was found to be wrong.
    pub fn outvote(&mut self, number: u32) {
        let accounts = self.by_session.get(&number);
        self.outvoted
            .extend(accounts.iter().flat_map(|(accounts, _)| accounts));
    }

    /// A session is over. What is bought next is bought of anybody.
    pub fn forget(&mut self, number: u32) {
        self.by_session.remove(&number);
        self.find();
    }
}
