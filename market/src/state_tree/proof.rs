//! Defines [`AccountProof`], which proves from a state root that an account has certain balances,
//! or that there is no such account.

use serde::{Deserialize, Serialize};

use super::PartRoots;
use super::trie::{DEPTH_MAX, Trie, TrieLeaf, child_index, hash_branch, hash_leaf, nibble};
use crate::ids::{AccountKey, Digest};
use crate::units::Credits;

/// The most branches in a proof.
const BRANCHES_MAX: usize = DEPTH_MAX;

/// The balances of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBalances {
    /// Credits that the account can spend.
    pub available: Credits,
    /// Credits that its orders, leases and withdrawal requests hold.
    pub escrow: Credits,
    /// Credits at stake.
    pub stake: Credits,
}

/// The content of an account's leaf in the tree. It has only a digest of the account's other
/// fields, so that a proof shows the balances and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountLeaf {
    /// The balances, which a proof shows.
    pub balances: StateBalances,
    /// The digest of the whole account and its slot.
    pub account: Digest,
}

impl AccountLeaf {
    pub(crate) fn content_digest(&self) -> Digest {
        let StateBalances {
            available,
            escrow,
            stake,
        } = self.balances;
        let mut hasher = blake3::Hasher::new();
        for part in [available, escrow, stake] {
            hasher.update(&part.0.to_le_bytes());
        }
        hasher.update(&self.account.0);
        Digest(*hasher.finalize().as_bytes())
    }
}

/// A branch on the way to the account: its bitmap, and the hashes of its children except the one on
/// the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProofBranch {
    present: u16,
    others: Vec<Digest>,
}

/// The end of the way to the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ProofEnd {
    /// The account's leaf.
    Found(AccountLeaf),
    /// Nothing.
    Empty,
    /// The leaf of another account, which is the only one with this beginning of the key.
    Other { key: AccountKey, content: Digest },
}

/// A proof of what a state says about an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountProof {
    /// The key whose place the proof shows.
    pub key: AccountKey,
    end: ProofEnd,
    branches: Vec<ProofBranch>,
    parts: PartRoots,
}

/// Why a proof shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountProofFault {
    /// It has more branches than a key has digits.
    #[error("it has {0} branches; at most {BRANCHES_MAX} are possible")]
    Long(usize),
    /// A branch has too many or too few hashes, or denies the child on the way.
    #[error("branch {0} of its path is not one")]
    Branch(usize),
    /// The other leaf would not be on the way to the account.
    #[error("the account that it shows instead is not on the way")]
    Other,
}

impl AccountProof {
    pub(super) fn new(key: AccountKey, accounts: &Trie<AccountLeaf>, parts: PartRoots) -> Self {
        let (passed, leaf) = accounts.prove(&key.0);
        let branches = (0..).zip(passed).map(|(depth, mut branch)| {
            let nibble = nibble(&key.0, depth);
            if branch.present & (1 << nibble) != 0 {
                branch.children.remove(child_index(branch.present, nibble));
            }
            ProofBranch {
                present: branch.present,
                others: branch.children,
            }
        });
        let end = match leaf {
            None => ProofEnd::Empty,
            Some(TrieLeaf { path, value, .. }) if *path == key.0 => ProofEnd::Found(*value),
            Some(TrieLeaf { path, value, .. }) => ProofEnd::Other {
                key: AccountKey(*path),
                content: value.content_digest(),
            },
        };
        Self {
            key,
            end,
            branches: branches.collect(),
            parts,
        }
    }

    /// Returns the balances; none if the proof is that there is no such account. You must compare
    /// [`AccountProof::state_root`] with a root that you trust first.
    #[must_use]
    pub fn balances(&self) -> Option<StateBalances> {
        match &self.end {
            ProofEnd::Found(leaf) => Some(leaf.balances),
            ProofEnd::Empty | ProofEnd::Other { .. } => None,
        }
    }

    /// Computes the root of the states for which the proof holds.
    ///
    /// # Errors
    /// If it is a proof for no state.
    pub fn state_root(&self) -> Result<Digest, AccountProofFault> {
        if self.branches.len() > BRANCHES_MAX {
            return Err(AccountProofFault::Long(self.branches.len()));
        }
        let mut hash = match &self.end {
            ProofEnd::Found(leaf) => Some(hash_leaf(&self.key.0, leaf.content_digest())),
            ProofEnd::Empty => None,
            ProofEnd::Other { key, content } => {
                let mut depths = 0..self.branches.len();
                let is_on_way = depths.all(|at| nibble(&key.0, at) == nibble(&self.key.0, at));
                if *key == self.key || !is_on_way {
                    return Err(AccountProofFault::Other);
                }
                Some(hash_leaf(&key.0, *content))
            }
        };
        for (depth, branch) in self.branches.iter().enumerate().rev() {
            hash = Some(self.hash_branch(depth, branch, hash)?);
        }
        Ok(self.parts.state_root(hash.unwrap_or_default()))
    }

    /// Returns the hash of a branch, with the hash of the child on the way, if that is there.
    fn hash_branch(
        &self,
        depth: usize,
        branch: &ProofBranch,
        child: Option<Digest>,
    ) -> Result<Digest, AccountProofFault> {
        let nibble = nibble(&self.key.0, depth);
        let is_there = branch.present & (1 << nibble) != 0;
        let count = branch.others.len().saturating_add(usize::from(is_there));
        let wanted = branch.present.count_ones() as usize;
        if is_there != child.is_some() || count != wanted || wanted == 0 {
            return Err(AccountProofFault::Branch(depth));
        }
        let (before, after) = branch.others.split_at(child_index(branch.present, nibble));
        let children = before
            .iter()
            .copied()
            .chain(child)
            .chain(after.iter().copied());
        Ok(hash_branch(branch.present, children))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> AccountKey {
        AccountKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    fn leaf(number: u64) -> AccountLeaf {
        AccountLeaf {
            balances: StateBalances {
                available: Credits(number),
                escrow: Credits(u64::MAX - number),
                stake: Credits(1 << 63),
            },
            account: Digest([number as u8; 32]),
        }
    }

    fn tree(count: u64) -> (Trie<AccountLeaf>, PartRoots, Digest) {
        let mut trie = Trie::default();
        for number in 0..count {
            let leaf = leaf(number);
            trie.insert(key(number).0, leaf.content_digest(), leaf);
        }
        let parts = PartRoots {
            rest: Digest([9; 32]),
            ..PartRoots::default()
        };
        let root = parts.state_root(trie.root());
        (trie, parts, root)
    }

    #[test]
    fn every_account_is_proven_there_and_every_other_one_absent() {
        for count in [0, 1, 2, 3, 40, 300] {
            let (trie, parts, root) = tree(count);
            for number in 0..count + 50 {
                let proof = AccountProof::new(key(number), &trie, parts);
                assert_eq!(proof.state_root(), Ok(root), "{number} of {count}");
                let wanted = (number < count).then(|| leaf(number).balances);
                assert_eq!(proof.balances(), wanted);
            }
        }
    }

    #[test]
    fn a_change_anywhere_leads_to_another_root_or_to_none() {
        let (trie, parts, root) = tree(60);
        for number in [7, 1_000] {
            let proof = AccountProof::new(key(number), &trie, parts);
            let bytes = postcard::to_allocvec(&proof).unwrap();
            for place in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[place] ^= 1 << bit;
                    let read = postcard::take_from_bytes::<AccountProof>(&changed);
                    if let Ok((changed, [])) = read {
                        // The key is not in the root of a proof of absence beyond its way.
                        let is_same = changed.key == proof.key || changed.balances().is_some();
                        assert!(!is_same || changed.state_root() != Ok(root), "byte {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_account_that_is_there_cannot_be_shown_absent() {
        let (trie, parts, root) = tree(300);
        let proof = AccountProof::new(key(7), &trie, parts);
        let neighbour = AccountProof::new(key(8), &trie, parts);
        let ProofEnd::Found(found) = &proof.end else {
            panic!("{proof:?}");
        };
        let other = ProofEnd::Other {
            key: key(8),
            content: found.content_digest(),
        };
        for end in [ProofEnd::Empty, other, neighbour.end.clone()] {
            let denial = AccountProof {
                end,
                ..proof.clone()
            };
            assert_ne!(denial.state_root(), Ok(root));
        }
        let mut shorter = proof.clone();
        shorter.branches.pop();
        let mut longer = proof.clone();
        longer
            .branches
            .resize(BRANCHES_MAX + 1, proof.branches[0].clone());
        for changed in [shorter, longer] {
            assert_ne!(changed.state_root(), Ok(root));
        }
    }
}
