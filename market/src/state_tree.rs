//! The state root: one BLAKE3 hash over all accounts, leases, orders and money requests, over the
//! rules and counters, and over what lies beside the exchange (the list of validators).
//! Validators sign it, so that anyone can prove a balance to somebody who has only the genesis.
//!
//! Each kind of rows has a tree of fan-out 16 ([`trie`]). Commands only note the rows that they
//! touch; [`StateTree::update`] then hashes these and the nodes above them. So the cost of a root
//! grows with the number of rows touched since the last one, not with the size of the state. The
//! trees of the last roots stay for proofs; they share all nodes that did not change.

mod proof;
mod touched_rows;
mod trie;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, Digest};
pub(crate) use proof::AccountLeaf;
pub use proof::{AccountProof, AccountProofFault, StateBalances};
pub(crate) use touched_rows::TouchedRows;
use trie::Trie;
pub(crate) use trie::id_path;

/// The last roots for which a proof can be made: at four roots a second, 16 seconds.
const VERSIONS_MAX: usize = 64;

/// Precedes the roots of all parts.
const ROOT_DOMAIN: &[u8; 16] = b"souk state root1";

/// The roots of all parts of the state besides the accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRoots {
    /// The root of the leases' tree.
    pub leases: Digest,
    /// The root of the orders' tree.
    pub orders: Digest,
    /// The root of the money requests' tree.
    pub requests: Digest,
    /// The hash of the rules, operators, totals and counters.
    pub rest: Digest,
    /// The hash of what lies beside the exchange: the list of validators.
    pub beside: Digest,
}

impl PartRoots {
    /// Returns the state root with the accounts' root added.
    #[must_use]
    pub fn state_root(&self, accounts: Digest) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(ROOT_DOMAIN);
        let parts = [
            accounts,
            self.leases,
            self.orders,
            self.requests,
            self.rest,
            self.beside,
        ];
        for part in parts {
            hasher.update(&part.0);
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

/// A state whose root was computed, as far as proofs need it.
#[derive(Clone, Debug)]
struct Version {
    root: Digest,
    accounts: Trie<AccountLeaf>,
    parts: PartRoots,
}

/// The trees over the rows of the state. They are derived from the state, so snapshots do not
/// contain them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateTree {
    pub(crate) accounts: Trie<AccountLeaf>,
    pub(crate) leases: Trie<()>,
    pub(crate) orders: Trie<()>,
    pub(crate) requests: Trie<()>,
    versions: VecDeque<Version>,
}

impl PartialEq for StateTree {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for StateTree {}

impl StateTree {
    /// Returns the root, once all touched rows are in the trees, and keeps the accounts' tree for
    /// proofs.
    pub(crate) fn update(&mut self, rest: Digest, beside: Digest) -> Digest {
        let parts = PartRoots {
            leases: self.leases.root(),
            orders: self.orders.root(),
            requests: self.requests.root(),
            rest,
            beside,
        };
        let root = parts.state_root(self.accounts.root());
        if self.versions.back().is_none_or(|last| last.root != root) {
            if self.versions.len() == VERSIONS_MAX {
                self.versions.pop_front();
            }
            self.versions.push_back(Version {
                root,
                accounts: self.accounts.clone(),
                parts,
            });
        }
        root
    }

    /// Proves what a state with this root says about an account; none if it is not among the last.
    pub(crate) fn prove_account(&self, key: AccountKey, root: Digest) -> Option<AccountProof> {
        let mut versions = self.versions.iter().rev();
        let version = versions.find(|version| version.root == root)?;
        Some(AccountProof::new(key, &version.accounts, version.parts))
    }
}
