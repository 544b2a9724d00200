//! Which accounts are watched, and by whom.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::AccountKey;

use crate::clock::Micros;

/// The pause before another validator is asked after one went away.
pub const RECONNECT_PAUSE: Micros = Micros::from_millis(200);

/// One validator's watch over one account. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WatchId(pub u64);

/// See the module.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Watching {
    next: u64,
    watches: BTreeMap<WatchId, AccountKey>,
}

impl Watching {
    /// A new watch over an account, and whose turn it is.
    pub fn begin_watch(&mut self, account: AccountKey) -> (WatchId, usize) {
        let watch = WatchId(self.next);
        self.next += 1;
        self.watches.insert(watch, account);
        let turn = usize::try_from(watch.0).unwrap_or(0);
        (watch, turn)
    }

    /// The account of a watch that goes on.
    #[must_use]
    pub fn account(&self, watch: WatchId) -> Option<AccountKey> {
        self.watches.get(&watch).copied()
    }

    /// A watch ended by itself.
    pub fn forget_watch(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
    }

    /// Ends the watch over an account.
    pub fn end_watch(&mut self, account: AccountKey) -> Option<WatchId> {
        let mut watches = self.watches.iter();
        let (watch, _) = watches.find(|(_, other)| **other == account)?;
        let watch = *watch;
        self.watches.remove(&watch);
        Some(watch)
    }
}
