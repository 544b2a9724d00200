//! Computes the state root of the exchange, one hash over its state, which the validators sign. It
//! hashes only the rows that commands touched since the last root, and the rules and counters; it
//! leaves out everything that follows from the rows (indices, timers, marks), and the tapes of past
//! trades.

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use crate::books::{Order, OrderKind};
use crate::class::Class;
use crate::ids::{AccountKey, Digest, LeaseId, OrderId, RequestId, Slot};
use crate::order::Side;
use crate::state_tree::{
    AccountLeaf, AccountProof, StateBalances, StateTree, TouchedRows, id_path,
};

use super::Exchange;

impl Exchange {
    /// Returns the state root, which depends on the state alone. `beside` is the hash of state that
    /// lies beside the exchange. The cost grows with what was touched since the last call; the
    /// first call after a start or restore hashes everything.
    pub fn state_root(&mut self, beside: Digest) -> Digest {
        self.update_accounts();
        self.update_leases();
        self.update_orders();
        self.update_requests();
        let rest = self.hash_rest();
        self.state_tree.update(rest, beside)
    }

    /// Returns how many accounts, leases, orders and money requests the next state root hashes
    /// again; none if it hashes all of them.
    pub fn count_touched_rows(&self) -> Option<usize> {
        let touched = [
            &self.ledger.touched_slots,
            &self.leases.touched,
            &self.books.touched,
            &self.touched_requests,
        ];
        let counts = touched.into_iter().map(TouchedRows::count_distinct);
        let rows: usize = counts.sum::<Option<usize>>()?;
        rows.checked_add(self.ledger.forgotten_keys.len())
    }

    /// Returns the state root, hashed from scratch.
    pub fn rebuilt_state_root(&self, beside: Digest) -> Digest {
        let mut copy = self.clone();
        copy.forget_state_tree();
        copy.state_root(beside)
    }

    /// Proves what a state says about an account, if its root is one of the last that this exchange
    /// computed.
    pub fn prove_account(&self, key: AccountKey, root: Digest) -> Option<AccountProof> {
        self.state_tree.prove_account(key, root)
    }

    fn forget_state_tree(&mut self) {
        self.state_tree = StateTree::default();
        self.ledger.touched_slots = Default::default();
        self.ledger.forgotten_keys.clear();
        self.leases.touched = Default::default();
        self.books.touched = Default::default();
        self.touched_requests = Default::default();
    }

    fn update_accounts(&mut self) {
        let gone = std::mem::take(&mut self.ledger.forgotten_keys);
        let count = self.ledger.accounts().len() as u64;
        let slots = match self.ledger.touched_slots.take() {
            Some(slots) => {
                gone.iter()
                    .for_each(|key| self.state_tree.accounts.remove(&key.0));
                slots
            }
            None => {
                self.state_tree.accounts = Default::default();
                (0..count).collect()
            }
        };
        for slot in slots {
            let slot = Slot(u32::try_from(slot).expect("a slot's number"));
            let account = self.ledger.get(slot);
            let balances = StateBalances {
                available: account.available,
                escrow: account.escrow,
                stake: account.stake,
            };
            let leaf = AccountLeaf {
                balances,
                account: hash_content(&(slot, account)),
            };
            let path = account.key.0;
            self.state_tree
                .accounts
                .insert(path, leaf.content_digest(), leaf);
        }
    }

    fn update_leases(&mut self) {
        let touched = self.leases.touched.take();
        let tree = &mut self.state_tree.leases;
        let ids = touched.unwrap_or_else(|| {
            *tree = Default::default();
            self.leases.values().map(|lease| lease.id.0).collect()
        });
        for id in ids {
            let Some(lease) = self.leases.get(LeaseId(id)) else {
                tree.remove(&id_path(id));
                continue;
            };
            // A lease outlives its ask, whose terms decide who may displace it.
            let is_open = !lease.is_closed();
            let terms = is_open.then(|| &**self.books.ask_terms.get(lease.parties.terms));
            tree.insert(id_path(id), hash_content(&(lease, terms)), ());
        }
    }

    fn update_orders(&mut self) {
        let ids = self.books.touched.take().unwrap_or_else(|| {
            self.state_tree.orders = Default::default();
            self.books.all_orders().map(|order| order.id.0).collect()
        });
        for id in ids {
            match self.books.get(OrderId(id)) {
                Some(order) => {
                    let content = self.hash_order(&order);
                    self.state_tree.orders.insert(id_path(id), content, ());
                }
                None => self.state_tree.orders.remove(&id_path(id)),
            }
        }
    }

    fn hash_order(&self, order: &Order) -> Digest {
        let detail = &order.detail;
        let class = self.books.book(detail.book).class;
        let of_order = (
            order.id,
            order.price,
            order.remaining,
            detail.slot,
            class,
            detail.expires,
        );
        match (detail.kind, order.side()) {
            (
                OrderKind::Ask {
                    device,
                    provider,
                    resale,
                    deposit,
                },
                Side::Ask,
            ) => {
                let terms = &**self.books.ask_terms.get(detail.terms);
                hash_content(&(of_order, (0_u8, device, provider, resale, deposit), terms))
            }
            (OrderKind::Bid { budget }, Side::Bid) => {
                let terms = &**self.books.bid_terms.get(detail.terms);
                let job = self.books.bid_job(order.id);
                hash_content(&(of_order, (1_u8, budget, job), terms))
            }
            _ => unreachable!("the kind decides the side"),
        }
    }

    fn update_requests(&mut self) {
        let tree = &mut self.state_tree.requests;
        let ids = self.touched_requests.take().unwrap_or_else(|| {
            *tree = Default::default();
            self.requests.keys().map(|id| id.0).collect()
        });
        for id in ids {
            let request = RequestId(id);
            let is_light = self.light_requests.contains(&request);
            match self.requests.get(&request) {
                Some(request) => tree.insert(id_path(id), hash_content(&(request, is_light)), ()),
                None => tree.remove(&id_path(id)),
            }
        }
    }

    fn hash_rest(&self) -> Digest {
        let rules = (
            self.market,
            &self.operators,
            self.operators_needed,
            &self.rules,
            self.version,
            self.upgrade,
            &self.approvals,
            &self.changes,
        );
        let counters = (
            self.now,
            self.ledger.totals(),
            self.ledger.opened(),
            self.orders_made,
            self.trades_made,
            self.requests_made,
            self.approvals_made,
            self.changes_made,
        );
        let idle = (&self.idle, self.idle_sought_at);
        let classes: Vec<Class> = self.books.by_class().map(|book| book.class).collect();
        let chain = self.chain.current_digest();
        let disputes = (&self.disputes, self.disputes_made);
        hash_content(&(rules, counters, idle, classes, chain, disputes))
    }
}

/// Returns the hash of a value's encoding.
fn hash_content(value: &impl Serialize) -> Digest {
    let hashed = postcard::serialize_with_flavor(value, HashFlavor::default());
    hashed.expect("plain data in memory always encodes")
}

/// The bytes that the flavor gathers before it hashes them, because single numbers are short.
const GATHERED_BYTES: usize = 1_024;

/// Hashes Postcard's bytes.
struct HashFlavor {
    hasher: blake3::Hasher,
    gathered: [u8; GATHERED_BYTES],
    count: usize,
}

impl Default for HashFlavor {
    fn default() -> Self {
        Self {
            hasher: blake3::Hasher::new(),
            gathered: [0; GATHERED_BYTES],
            count: 0,
        }
    }
}

impl Flavor for HashFlavor {
    type Output = Digest;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let end = self.count.saturating_add(bytes.len());
        if end > GATHERED_BYTES {
            self.hasher.update(&self.gathered[..self.count]);
            self.count = 0;
            self.hasher.update(bytes);
            return Ok(());
        }
        self.gathered[self.count..end].copy_from_slice(bytes);
        self.count = end;
        Ok(())
    }

    fn finalize(mut self) -> postcard::Result<Digest> {
        self.hasher.update(&self.gathered[..self.count]);
        Ok(Digest(*self.hasher.finalize().as_bytes()))
    }
}
