//! Stores the addresses that peers announced to this validator, so that others can look them up.
//! When it is full, a new announcement replaces the oldest of an account that nobody watches here.
//!
//! Anyone can create keys, so fake peers can take all other places. But a provider watches its own
//! account at one validator, and an account that is watched keeps its place. Fake peers can hold
//! only as many watches as a validator serves streams: far fewer than there are places.

use std::collections::{BTreeMap, HashMap};

use libp2p::Multiaddr;
use souk_folder::contact::{self, Contact};
use souk_market::AccountKey;

/// Peers that are remembered: more than a market of ten thousand providers has. Strangers that
/// announce eight addresses of the greatest length each make them take 128 MiB.
const PEERS_MAX: usize = 32_768;

/// The addresses that peers announced, by account.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    last_announcements: HashMap<AccountKey, (u64, Vec<Multiaddr>)>,
    /// The peers in the order of their announcements.
    order: BTreeMap<u64, AccountKey>,
    next: u64,
}

impl Announcements {
    /// Stores a peer's addresses. `is_watched` tells which accounts keep their places.
    pub(super) fn insert_addresses(
        &mut self,
        account: AccountKey,
        addresses: Vec<Multiaddr>,
        is_watched: impl Fn(&AccountKey) -> bool,
    ) {
        let number = self.next;
        self.next += 1;
        let said = (number, contact::limit_addresses(addresses));
        if let Some((before, _)) = self.last_announcements.insert(account, said) {
            self.order.remove(&before);
        }
        self.order.insert(number, account);
        if self.last_announcements.len() > PEERS_MAX {
            self.remove_oldest(is_watched);
        }
    }

    /// Removes the oldest announcement of an account that is not watched, or the oldest of all. The
    /// search is short: a validator serves far fewer watches than there are places.
    fn remove_oldest(&mut self, is_watched: impl Fn(&AccountKey) -> bool) {
        let mut in_order = self.order.iter();
        let free = in_order.find(|(_, account)| !is_watched(account));
        let oldest = free.or_else(|| self.order.first_key_value());
        if let Some((number, account)) = oldest.map(|(number, account)| (*number, *account)) {
            self.order.remove(&number);
            self.last_announcements.remove(&account);
        }
    }

    /// Returns the contact that a peer announced.
    pub(super) fn contact(&self, account: &AccountKey) -> Option<Contact> {
        let (_, addresses) = self.last_announcements.get(account)?;
        Some(Contact {
            account: account.0,
            addresses: addresses.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(number: usize) -> AccountKey {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(number as u64).to_le_bytes());
        AccountKey(key)
    }

    fn address() -> Vec<Multiaddr> {
        vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()]
    }

    #[test]
    fn many_keys_do_not_crowd_out_who_says_it_again() {
        let (mut announced, honest) = (Announcements::default(), account(usize::MAX));
        for number in 0..3 * PEERS_MAX {
            if number % 1_000 == 0 {
                announced.insert_addresses(honest, address(), |_| false);
            }
            announced.insert_addresses(account(number), address(), |_| false);
        }
        assert_eq!(announced.last_announcements.len(), PEERS_MAX);
        assert_eq!(announced.order.len(), PEERS_MAX);
        let contact = announced.contact(&honest).unwrap();
        assert_eq!(contact.addresses, address());
        assert_eq!(announced.contact(&account(0)), None, "it was long ago");
        announced.insert_addresses(account(0), address(), |_| false);
        assert!(announced.contact(&account(0)).is_some(), "it may come back");
    }

    #[test]
    fn many_keys_do_not_crowd_out_an_account_that_is_watched() {
        let (mut announced, honest) = (Announcements::default(), account(usize::MAX));
        announced.insert_addresses(honest, address(), |_| false);
        for number in 0..2 * PEERS_MAX {
            announced.insert_addresses(account(number), address(), |other| *other == honest);
        }
        assert!(announced.contact(&honest).is_some());
        assert_eq!(announced.last_announcements.len(), PEERS_MAX);
        announced.insert_addresses(account(3 * PEERS_MAX), address(), |_| true);
        assert_eq!(
            announced.contact(&honest),
            None,
            "all are watched: the oldest goes"
        );
        assert_eq!(announced.order.len(), PEERS_MAX);
    }
}
