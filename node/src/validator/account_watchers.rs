//! Tracks which streams of peers watch which accounts. After each step of the log, the validator
//! wakes only the watchers of the accounts that the step changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_market::{AccountKey, Event};
use tokio::sync::watch;

/// The watchers of a validator, by account. Clones share the same table.
#[derive(Clone, Debug, Default)]
pub struct AccountWatchers(Arc<Mutex<HashMap<AccountKey, watch::Sender<()>>>>);

/// A watcher of one account. Dropping it removes it from the table.
#[derive(Debug)]
pub(super) struct AccountWatcher {
    account: AccountKey,
    watchers: AccountWatchers,
    changes: watch::Receiver<()>,
}

impl AccountWatchers {
    /// Begins to watch an account.
    pub(super) fn watch_account(&self, account: AccountKey) -> AccountWatcher {
        let mut table = self.lock_table();
        let changes = table.entry(account).or_default().subscribe();
        AccountWatcher {
            account,
            watchers: self.clone(),
            changes,
        }
    }

    /// Wakes the watchers of the accounts that these events involve. Changes that a watcher has not
    /// read yet become one.
    pub(super) fn notify_watchers(&self, events: &[Event]) {
        let table = self.lock_table();
        if table.is_empty() {
            return;
        }
        for account in events.iter().flat_map(Event::involved_accounts) {
            if let Some(changes) = table.get(&account) {
                changes.send_replace(());
            }
        }
    }

    /// Returns whether a stream watches this account.
    pub(super) fn is_watched(&self, account: &AccountKey) -> bool {
        self.lock_table().contains_key(account)
    }

    /// Returns the number of accounts that are watched.
    pub(super) fn account_count(&self) -> usize {
        self.lock_table().len()
    }

    fn lock_table(&self) -> MutexGuard<'_, HashMap<AccountKey, watch::Sender<()>>> {
        // No code under this lock panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccountWatcher {
    /// Waits until the account has changed since the last call.
    pub(super) async fn wait_for_change(&mut self) {
        let changed = self.changes.changed().await;
        changed.expect("the table keeps the sender while a watcher is there");
    }
}

impl Drop for AccountWatcher {
    fn drop(&mut self) {
        let mut table = self.watchers.lock_table();
        // This watcher is still counted.
        let is_last = |changes: &watch::Sender<()>| changes.receiver_count() == 1;
        if table.get(&self.account).is_some_and(is_last) {
            table.remove(&self.account);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use souk_market::{Credits, MoveReason};

    use super::*;

    const ATLAS: AccountKey = AccountKey([1; 32]);
    const BERTA: AccountKey = AccountKey([2; 32]);

    fn moved(account: AccountKey) -> Event {
        Event::Moved {
            account,
            reason: MoveReason::Credited,
            amount: Credits(1),
        }
    }

    #[test]
    fn a_step_wakes_the_watchers_of_the_accounts_that_it_affected() {
        let watchers = AccountWatchers::default();
        let mut both = [ATLAS, ATLAS].map(|account| watchers.watch_account(account));
        let mut other = watchers.watch_account(BERTA);
        watchers.notify_watchers(&[moved(ATLAS), moved(ATLAS)]);
        for watcher in &mut both {
            assert!(watcher.wait_for_change().now_or_never().is_some());
            let again = watcher.wait_for_change().now_or_never();
            assert!(again.is_none(), "two changes at once are one");
        }
        assert!(other.wait_for_change().now_or_never().is_none());
    }

    #[test]
    fn an_account_that_nobody_watches_any_more_leaves_the_table() {
        let watchers = AccountWatchers::default();
        let (first, mut second) = (watchers.watch_account(ATLAS), watchers.watch_account(ATLAS));
        drop(first);
        watchers.notify_watchers(&[moved(ATLAS)]);
        assert!(second.wait_for_change().now_or_never().is_some());
        drop(second);
        assert!(watchers.lock_table().is_empty());
        watchers.notify_watchers(&[moved(ATLAS)]);
    }
}
