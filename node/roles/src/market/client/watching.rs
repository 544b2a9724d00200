//! The table of a client's open watches: which account each one follows, and which validator to ask
//! next. A watch is a stream on which one validator reports each change of an account. If it
//! breaks, the client begins a new watch with another validator.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::AccountKey;

use crate::clock::Micros;

/// The pause before the client asks another validator after a watch broke.
pub const RECONNECT_PAUSE: Micros = Micros::from_millis(200);

/// The id of one validator's watch over one account. The client never uses an id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WatchId(pub u64);

/// The open watches of a client.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Watching {
    next: u64,
    watches: BTreeMap<WatchId, AccountKey>,
}

impl Watching {
    /// Begins a watch over an account. Returns its id, and how many validators after the client's
    /// first it goes to.
    pub fn begin_watch(&mut self, account: AccountKey) -> (WatchId, usize) {
        let watch = WatchId(self.next);
        self.next += 1;
        self.watches.insert(watch, account);
        let turn = usize::try_from(watch.0).unwrap_or(0);
        (watch, turn)
    }

    /// Returns the account of an open watch.
    #[must_use]
    pub fn account(&self, watch: WatchId) -> Option<AccountKey> {
        self.watches.get(&watch).copied()
    }

    /// Forgets a watch that ended by itself.
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
