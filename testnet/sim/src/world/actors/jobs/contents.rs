//! Simulates contents, the data that buyers and providers exchange, and records who has them and
//! who can read them. A content is an id, a length and a value. Honest devices round differently,
//! so two of them give different ids to the same value.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_roles::access::{Grants, Readers, Scope, ShownContents};

/// Bytes of each content.
pub const CONTENT_BYTES: u64 = 1_000;

/// All contents, and the accounts that hold or can read them.
#[derive(Default)]
pub struct Contents {
    values: BTreeMap<ContentId, u64>,
    stored: BTreeMap<AccountKey, BTreeSet<ContentId>>,
    /// The access that each account grants, in memory only, and the contents shown to it.
    grants: BTreeMap<AccountKey, Grants>,
    served: BTreeMap<AccountKey, ShownContents>,
}

impl Contents {
    /// Creates a content with a value; `noise` is the rounding of its maker.
    pub fn create_content(&mut self, value: u64, noise: u64) -> ContentId {
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.extend(noise.to_le_bytes());
        let id = ContentId::for_content(&bytes);
        self.values.insert(id, value);
        id
    }

    /// Returns the value of a content.
    pub fn value(&self, id: ContentId) -> Option<u64> {
        self.values.get(&id).copied()
    }

    /// Adds a content to an account's store.
    pub fn store_content(&mut self, who: AccountKey, id: ContentId) {
        self.stored.entry(who).or_default().insert(id);
    }

    /// Returns whether an account has a content.
    pub fn has_content(&self, who: AccountKey, id: ContentId) -> bool {
        self.stored.get(&who).is_some_and(|held| held.contains(&id))
    }

    /// Makes an account serve contents of a job.
    pub fn begin_serving(&mut self, who: AccountKey, scope: Scope) {
        self.grants.entry(who).or_default().begin_lease(scope);
    }

    /// Makes an account grant contents of a job to these readers.
    pub fn grant_contents(
        &mut self,
        who: AccountKey,
        scope: Scope,
        to: &Readers,
        ids: &[ContentId],
    ) {
        let grants = self.grants.entry(who).or_default();
        grants.grant_contents(scope, to, ids.iter().copied());
        let shown = self.served.entry(who).or_default();
        for id in ids {
            shown.record_shown(scope.buyer, *id);
        }
    }

    /// Ends an account's grants for a lease of a job.
    pub fn end_grants(&mut self, who: AccountKey, scope: Scope) {
        self.grants.entry(who).or_default().end_lease(scope);
    }

    /// Returns whether an account grants a content of a job to another.
    pub fn has_granted(
        &self,
        who: AccountKey,
        scope: &Scope,
        to: AccountKey,
        id: &ContentId,
    ) -> bool {
        let grants = self.grants.get(&who);
        grants.is_some_and(|grants| grants.may_have(scope, to, id))
    }

    /// Returns whether an account has a content and uses it for a buyer.
    pub fn can_use(&self, who: AccountKey, buyer: AccountKey, id: ContentId) -> bool {
        let shown = self.served.get(&who);
        self.has_content(who, id) && shown.is_some_and(|shown| shown.has_shown(buyer, &id))
    }

    /// Ends all grants of an account, because its process ended.
    pub fn serve_nothing(&mut self, who: AccountKey) {
        self.grants.remove(&who);
    }

    /// Removes an account's contents that were only in memory.
    pub fn forget_contents(&mut self, who: AccountKey, kept: &BTreeSet<ContentId>) {
        self.serve_nothing(who);
        if let Some(held) = self.stored.get_mut(&who) {
            held.retain(|id| kept.contains(id));
        }
    }
}

/// Returns the value that a device computes for one output of a graph from the values of inputs.
pub fn output_value(graph: ContentId, inputs: &BTreeMap<String, u64>, output: &str) -> u64 {
    let mut bytes = graph.as_bytes().to_vec();
    for (name, value) in inputs {
        bytes.extend(name.as_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(output.as_bytes());
    hash_to_number(&bytes)
}

/// Derives a number from bytes.
pub fn hash_to_number(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let mut word = [0; 8];
    word.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(word)
}
