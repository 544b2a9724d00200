//! Stores the leases of the exchange, numbered in the order of opening, and finds one by its number
//! in two array reads.
//!
//! The table consists of small pages, and frees a page when its last lease is forgotten. So leases
//! never move, and memory depends on the leases that remain, not on all that there ever were. Two
//! indices find the leases of an account, so that a question about one account costs nothing for
//! those of all others.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Index;

use serde::{Deserialize, Serialize};

use crate::ids::{LeaseId, Slot};
use crate::lease::{Lease, Parties};
use crate::state_tree::TouchedRows;

/// Leases of a page: enough that a page's own cost is small, few enough that a single lease that
/// stays for years holds little memory.
const PAGE: u64 = 16;

/// Consecutive leases; removed ones leave empty entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeasePage {
    live: u32,
    leases: Vec<Option<Lease>>,
}

/// All leases that the exchange still knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseTable {
    /// The number of the first page.
    first: u64,
    pages: VecDeque<LeasePage>,
    /// The id of the last lease.
    last: u64,
    #[serde(skip)]
    by_account: AccountLeases,
    /// The leases that commands touched since the last state root.
    #[serde(skip)]
    pub(crate) touched: TouchedRows,
}

/// The leases of each account. Snapshots do not hold them: they follow from the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AccountLeases {
    /// The open leases of an account, as buyer or provider.
    open: BTreeSet<(Slot, LeaseId)>,
    /// The leases that an account bought: the open ones, and the closed ones that are still known.
    bought: BTreeSet<(Slot, LeaseId)>,
}

impl AccountLeases {
    fn insert_lease(&mut self, lease: &Lease) {
        let parties = &lease.parties;
        self.bought.insert((parties.buyer, lease.id));
        if !lease.is_closed() {
            self.open.insert((parties.buyer, lease.id));
            self.open.insert((parties.provider, lease.id));
        }
    }

    fn close_lease(&mut self, lease: LeaseId, parties: &Parties) {
        self.open.remove(&(parties.buyer, lease));
        self.open.remove(&(parties.provider, lease));
    }

    fn remove_lease(&mut self, lease: &Lease) {
        self.close_lease(lease.id, &lease.parties);
        self.bought.remove(&(lease.parties.buyer, lease.id));
    }
}

/// Returns the leases of one account in one of the sets, by id.
fn leases_of_slot(
    set: &BTreeSet<(Slot, LeaseId)>,
    slot: Slot,
) -> impl DoubleEndedIterator<Item = LeaseId> + '_ {
    let all = (slot, LeaseId(0))..=(slot, LeaseId(u64::MAX));
    set.range(all).map(|(_, id)| *id)
}

fn split_id(id: LeaseId) -> Option<(u64, usize)> {
    let number = id.0.checked_sub(1)?;
    Some((number / PAGE, (number % PAGE) as usize))
}

impl LeaseTable {
    fn locate_lease(&self, id: LeaseId) -> Option<(usize, usize)> {
        let (page, within) = split_id(id)?;
        let page = usize::try_from(page.checked_sub(self.first)?).ok()?;
        Some((page, within))
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<&Lease> {
        let (page, within) = self.locate_lease(id)?;
        let lease = self.pages.get(page)?.leases.get(within)?.as_ref()?;
        debug_assert_eq!(lease.id, id, "a lease is where its number says");
        Some(lease)
    }

    pub(crate) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        let (page, within) = self.locate_lease(id)?;
        self.touched.note(id.0);
        self.pages.get_mut(page)?.leases.get_mut(within)?.as_mut()
    }

    /// Adds the next lease. Its id must be that of the lease before it plus 1.
    pub(crate) fn push(&mut self, lease: Lease) {
        assert_eq!(
            lease.id.0,
            self.last + 1,
            "leases are numbered as they come"
        );
        self.last += 1;
        let (number, within) = split_id(lease.id).expect("numbers count from 1");
        if self.pages.is_empty() {
            self.first = number;
        }
        if number - self.first == self.pages.len() as u64 {
            let leases = Vec::with_capacity(PAGE as usize);
            self.pages.push_back(LeasePage { live: 0, leases });
        }
        self.by_account.insert_lease(&lease);
        self.touched.note(lease.id.0);
        let page = self.pages.back_mut().expect("it was just made sure of");
        assert_eq!(page.leases.len(), within, "pages have no gaps");
        page.leases.push(Some(lease));
        page.live += 1;
        assert!(u64::from(page.live) <= PAGE, "a page holds so many");
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let (at, within) = self.locate_lease(id)?;
        self.touched.note(id.0);
        let page = self.pages.get_mut(at)?;
        let lease = page.leases.get_mut(within)?.take()?;
        assert_eq!(lease.id, id, "a lease is where its number says");
        assert!(page.live > 0, "a page with a lease has one");
        page.live -= 1;
        if page.live == 0 && page.leases.len() as u64 == PAGE {
            page.leases = Vec::new();
        }
        while let Some(page) = self.pages.front()
            && page.leases.is_empty()
        {
            self.pages.pop_front();
            self.first += 1;
        }
        self.by_account.remove_lease(&lease);
        Some(lease)
    }

    /// Handles a lease that was closed: it is no longer among the open leases of its parties.
    pub(crate) fn on_closed(&mut self, id: LeaseId) {
        let lease = self.get(id).expect("the lease is known");
        assert!(lease.is_closed(), "its state says so");
        let parties = lease.parties;
        self.by_account.close_lease(id, &parties);
    }

    /// Iterates, by id, over the open leases in which an account is buyer or provider.
    pub(crate) fn open_leases(&self, slot: Slot) -> impl DoubleEndedIterator<Item = &Lease> {
        leases_of_slot(&self.by_account.open, slot).map(|id| &self[&id])
    }

    /// Iterates, by id, over the known leases that a slot's account bought. A forgotten account
    /// leaves closed leases to the slot's next account.
    pub(crate) fn bought_leases(&self, slot: Slot) -> impl DoubleEndedIterator<Item = &Lease> {
        leases_of_slot(&self.by_account.bought, slot).map(|id| &self[&id])
    }

    /// Rebuilds the indices, which a snapshot does not hold.
    pub(crate) fn rebuild_indices(&mut self) {
        let mut found = AccountLeases::default();
        self.values().for_each(|lease| found.insert_lease(lease));
        self.by_account = found;
    }

    /// Asserts that the indices are those of the leases.
    pub(crate) fn audit_indices(&self) {
        let mut found = AccountLeases::default();
        self.values().for_each(|lease| found.insert_lease(lease));
        assert_eq!(found, self.by_account, "the leases of each account");
    }

    /// Returns the number of known leases.
    pub(crate) fn len(&self) -> u64 {
        self.pages.iter().map(|page| u64::from(page.live)).sum()
    }

    /// Iterates over all leases by id.
    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &Lease> {
        self.pages
            .iter()
            .flat_map(|page| page.leases.iter().flatten())
    }
}

impl Index<&LeaseId> for LeaseTable {
    type Output = Lease;

    fn index(&self, id: &LeaseId) -> &Lease {
        self.get(*id).expect("the lease is known")
    }
}
