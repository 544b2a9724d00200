//! A hash tree of fan-out 16 over rows, each at a path of 32 bytes. Its root depends only on the
//! rows, not on the order in which they were added.
//!
//! A subtree with one row is a leaf; a larger one is a branch with a child for each value of the
//! path's next four bits that occurs. The hash of a leaf covers its path and the digest of its
//! content; the hash of a branch covers a bitmap of its children and their hashes. The three inputs
//! of a hash (leaf, branch, roots of the parts) have different lengths, so that none can pass as
//! another.
//!
//! A copy of the tree shares all nodes with the original; a change copies only the nodes on its
//! path.

use std::sync::Arc;

use crate::ids::Digest;

/// The bytes of a path.
pub(super) const PATH_BYTES: usize = 32;

/// The most branches above a leaf.
pub(super) const DEPTH_MAX: usize = 2 * PATH_BYTES;

/// Returns the hash of a leaf from its path and the digest of its content.
pub(crate) fn hash_leaf(path: &[u8; PATH_BYTES], content: Digest) -> Digest {
    let mut both = [0; 2 * PATH_BYTES];
    both[..PATH_BYTES].copy_from_slice(path);
    both[PATH_BYTES..].copy_from_slice(&content.0);
    Digest(*blake3::hash(&both).as_bytes())
}

/// Returns the hash of a branch: `present` has a bit for each of its children, whose hashes follow
/// in order.
pub(super) fn hash_branch(present: u16, children: impl Iterator<Item = Digest>) -> Digest {
    let mut bytes = [0; 2 + 16 * PATH_BYTES];
    bytes[..2].copy_from_slice(&present.to_le_bytes());
    let (chunks, _) = bytes[2..].as_chunks_mut::<PATH_BYTES>();
    let count = chunks
        .iter_mut()
        .zip(children)
        .map(|(chunk, hash)| *chunk = hash.0)
        .count();
    assert_eq!(count, present.count_ones() as usize, "one hash a child");
    Digest(*blake3::hash(&bytes[..2 + count * PATH_BYTES]).as_bytes())
}

/// Returns the path of a numbered row: its lowest bits come first, because numbers are given one
/// after another and so differ there.
pub(crate) fn id_path(number: u64) -> [u8; PATH_BYTES] {
    let mut path = [0; PATH_BYTES];
    path[..8].copy_from_slice(&number.to_le_bytes().map(|byte| byte.rotate_left(4)));
    path
}

/// Returns four bits of a path.
pub(super) fn nibble(path: &[u8; PATH_BYTES], depth: usize) -> u32 {
    let byte = path[depth / 2];
    let high = depth.is_multiple_of(2);
    u32::from(if high { byte >> 4 } else { byte & 0xf })
}

/// Returns where in the list of children the one at a nibble is, or would be.
pub(super) fn child_index(present: u16, nibble: u32) -> usize {
    let below = (1_u16 << nibble) - 1;
    (present & below).count_ones() as usize
}

#[derive(Clone, Debug)]
pub(super) struct TrieLeaf<V> {
    pub(super) path: [u8; PATH_BYTES],
    hash: Digest,
    pub(super) value: V,
}

#[derive(Clone, Debug)]
struct Branch<V> {
    present: u16,
    children: Vec<TrieNode<V>>,
    /// None after a change, until the next root.
    hash: Option<Digest>,
}

#[derive(Clone, Debug)]
enum TrieNode<V> {
    Leaf(Arc<TrieLeaf<V>>),
    Branch(Arc<Branch<V>>),
}

impl<V: Clone> TrieNode<V> {
    /// Returns the hash, which must be known since the last root.
    fn known_hash(&self) -> Digest {
        match self {
            Self::Leaf(leaf) => leaf.hash,
            Self::Branch(branch) => branch.hash.expect("it was hashed with the root"),
        }
    }

    fn update_hash(&mut self) -> Digest {
        let branch = match self {
            Self::Leaf(leaf) => return leaf.hash,
            Self::Branch(branch) => branch,
        };
        if let Some(hash) = branch.hash {
            return hash;
        }
        let branch = Arc::make_mut(branch);
        let children = branch.children.iter_mut().map(Self::update_hash);
        let hash = hash_branch(branch.present, children);
        branch.hash = Some(hash);
        hash
    }

    fn insert(&mut self, depth: usize, leaf: Arc<TrieLeaf<V>>) {
        match self {
            Self::Leaf(known) if known.path == leaf.path => *known = leaf,
            Self::Leaf(known) => {
                let mut branch = Branch {
                    present: 1 << nibble(&known.path, depth),
                    children: vec![Self::Leaf(known.clone())],
                    hash: None,
                };
                branch.insert(depth, leaf);
                *self = Self::Branch(Arc::new(branch));
            }
            Self::Branch(branch) => Arc::make_mut(branch).insert(depth, leaf),
        }
    }
}

impl<V: Clone> Branch<V> {
    fn insert(&mut self, depth: usize, leaf: Arc<TrieLeaf<V>>) {
        assert!(depth < DEPTH_MAX, "different paths part somewhere");
        self.hash = None;
        let nibble = nibble(&leaf.path, depth);
        let at = child_index(self.present, nibble);
        if self.present & (1 << nibble) != 0 {
            self.children[at].insert(depth + 1, leaf);
        } else {
            self.present |= 1 << nibble;
            self.children.insert(at, TrieNode::Leaf(leaf));
        }
    }

    /// Removes the leaf of a path, which must be there.
    fn remove(&mut self, depth: usize, path: &[u8; PATH_BYTES]) {
        self.hash = None;
        let nibble = nibble(path, depth);
        let at = child_index(self.present, nibble);
        match &mut self.children[at] {
            TrieNode::Leaf(_) => {
                self.children.remove(at);
                self.present &= !(1 << nibble);
            }
            TrieNode::Branch(branch) => {
                let branch = Arc::make_mut(branch);
                branch.remove(depth + 1, path);
                if let Some(leaf) = branch.only_leaf() {
                    self.children[at] = TrieNode::Leaf(leaf);
                }
            }
        }
    }

    /// Returns the leaf of a subtree that has no other row.
    fn only_leaf(&self) -> Option<Arc<TrieLeaf<V>>> {
        match &self.children[..] {
            [TrieNode::Leaf(leaf)] => Some(leaf.clone()),
            _ => None,
        }
    }
}

/// A branch on the way to a path: its bitmap, and the hashes of its children.
pub(super) struct PassedBranch {
    pub(super) present: u16,
    pub(super) children: Vec<Digest>,
}

/// A tree of fan-out 16 over rows (see the module documentation).
#[derive(Clone, Debug)]
pub(crate) struct Trie<V> {
    top: Option<TrieNode<V>>,
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self { top: None }
    }
}

impl<V: Clone> Trie<V> {
    /// Adds a row, or replaces the one with this path. `content` is the digest of what it says.
    pub(crate) fn insert(&mut self, path: [u8; PATH_BYTES], content: Digest, value: V) {
        let hash = hash_leaf(&path, content);
        let leaf = Arc::new(TrieLeaf { path, hash, value });
        match &mut self.top {
            Some(top) => top.insert(0, leaf),
            None => self.top = Some(TrieNode::Leaf(leaf)),
        }
    }

    /// Removes the row of a path, if there is one.
    pub(crate) fn remove(&mut self, path: &[u8; PATH_BYTES]) {
        let found = self.find(path).1;
        if found.is_none_or(|leaf| leaf.path != *path) {
            return;
        }
        match &mut self.top {
            Some(TrieNode::Branch(branch)) => {
                let branch = Arc::make_mut(branch);
                branch.remove(0, path);
                if let Some(leaf) = branch.only_leaf() {
                    self.top = Some(TrieNode::Leaf(leaf));
                }
            }
            _ => self.top = None,
        }
    }

    /// Returns the root; that of a tree without rows is zero. It hashes what changed since the last
    /// call.
    pub(crate) fn root(&mut self) -> Digest {
        self.top
            .as_mut()
            .map_or(Digest::default(), TrieNode::update_hash)
    }

    /// Returns the branches on the way to a path and the leaf at its end, which can have another
    /// path. The root must have been computed since the last change.
    pub(super) fn prove(
        &self,
        path: &[u8; PATH_BYTES],
    ) -> (Vec<PassedBranch>, Option<&TrieLeaf<V>>) {
        let (branches, leaf) = self.find(path);
        let passed = branches.into_iter().map(|branch| PassedBranch {
            present: branch.present,
            children: branch.children.iter().map(TrieNode::known_hash).collect(),
        });
        (passed.collect(), leaf)
    }

    fn find(&self, path: &[u8; PATH_BYTES]) -> (Vec<&Branch<V>>, Option<&TrieLeaf<V>>) {
        let (mut branches, mut node) = (Vec::new(), self.top.as_ref());
        loop {
            match node {
                None => return (branches, None),
                Some(TrieNode::Leaf(leaf)) => return (branches, Some(leaf)),
                Some(TrieNode::Branch(branch)) => {
                    let nibble = nibble(path, branches.len());
                    let is_there = branch.present & (1 << nibble) != 0;
                    let at = child_index(branch.present, nibble);
                    node = is_there.then(|| &branch.children[at]);
                    branches.push(&**branch);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Rows = BTreeMap<[u8; PATH_BYTES], Digest>;

    /// The definition, word for word.
    fn naive_root(rows: &Rows, depth: usize) -> Digest {
        let mut each = rows.iter();
        match (each.next(), each.next()) {
            (None, _) => Digest::default(),
            (Some((path, content)), None) => hash_leaf(path, *content),
            _ => {
                let part = |at| {
                    let inside = rows.iter().filter(|(path, _)| nibble(path, depth) == at);
                    inside.map(|(path, content)| (*path, *content)).collect()
                };
                let parts: Vec<Rows> = (0..16).map(part).collect();
                let present = (0..16).filter(|at| !parts[*at].is_empty());
                let present = present.fold(0, |bits, at| bits | 1 << at);
                let filled = parts.iter().filter(|part| !part.is_empty());
                hash_branch(present, filled.map(|part| naive_root(part, depth + 1)))
            }
        }
    }

    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    /// Paths that share long beginnings, and some that do not.
    fn path(seed: &mut u64) -> [u8; PATH_BYTES] {
        let mut path = [0x5a; PATH_BYTES];
        let at = [0, 0, 0, 1, 7, 31][(next(seed) % 6) as usize];
        path[at] = next(seed) as u8;
        path
    }

    #[test]
    fn the_root_after_each_change_is_that_of_the_rows_alone() {
        for seed in 0..16 {
            let (mut dice, mut trie, mut rows) = (seed, Trie::default(), Rows::new());
            for step in 0..100 {
                let path = path(&mut dice);
                if next(&mut dice).is_multiple_of(3) {
                    trie.remove(&path);
                    rows.remove(&path);
                } else {
                    let content = Digest([next(&mut dice) as u8; 32]);
                    trie.insert(path, content, ());
                    rows.insert(path, content);
                }
                if next(&mut dice).is_multiple_of(2) {
                    assert_eq!(trie.root(), naive_root(&rows, 0), "{seed} {step}");
                }
            }
            for path in rows.keys() {
                trie.remove(path);
            }
            assert_eq!(trie.root(), Digest::default());
        }
    }

    #[test]
    fn a_copy_keeps_its_root_when_the_original_changes() {
        let mut trie = Trie::default();
        (0..500).for_each(|number| trie.insert(id_path(number), Digest([1; 32]), ()));
        let root = trie.root();
        let mut copy = trie.clone();
        (0..500)
            .step_by(7)
            .for_each(|number| trie.remove(&id_path(number)));
        trie.insert(id_path(1), Digest([2; 32]), ());
        assert_ne!(trie.root(), root);
        assert_eq!(copy.root(), root);
    }

    #[test]
    fn numbers_in_a_row_part_at_the_first_bits_of_their_paths() {
        let first = |number| nibble(&id_path(number), 0);
        assert_eq!([0, 1, 15, 16].map(first), [0, 1, 15, 0]);
        assert_eq!(nibble(&id_path(0x31), 1), 3);
        assert_eq!(nibble(&id_path(0x100), 2), 1);
        let mut trie = Trie::default();
        (0..4_096).for_each(|number| trie.insert(id_path(number), Digest([1; 32]), ()));
        assert_eq!(trie.find(&id_path(77)).0.len(), 3);
    }
}
