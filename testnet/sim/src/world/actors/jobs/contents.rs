//! Contents: an id, a length and a value. Two honest devices make unlike ids of one value.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_roles::access::{Grants, Readers, Scope, ShownContents};

/// Bytes of each content.
pub const CONTENT_BYTES: u64 = 1_000;

/// See the module.
#[derive(Default)]
pub struct Contents {
    values: BTreeMap<ContentId, u64>,
    held: BTreeMap<AccountKey, BTreeSet<ContentId>>,
    /// What each serves, which it has in memory only, and what it was shown.
    grants: BTreeMap<AccountKey, Grants>,
    shown: BTreeMap<AccountKey, ShownContents>,
}

impl Contents {
    /// A content of a value, made by somebody whose rounding is `noise`.
    pub fn make(&mut self, value: u64, noise: u64) -> ContentId {
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.extend(noise.to_le_bytes());
        let id = ContentId::of(&bytes);
        self.values.insert(id, value);
        id
    }

    /// What a content says.
    pub fn value(&self, id: ContentId) -> Option<u64> {
        self.values.get(&id).copied()
    }

    /// Somebody has it from now on.
    pub fn hold(&mut self, who: AccountKey, id: ContentId) {
        self.held.entry(who).or_default().insert(id);
    }

    /// Whether somebody has it.
    pub fn has(&self, who: AccountKey, id: ContentId) -> bool {
        self.held.get(&who).is_some_and(|held| held.contains(&id))
    }

    /// Somebody serves contents of a job from now on.
    pub fn begin(&mut self, who: AccountKey, scope: Scope) {
        self.grants.entry(who).or_default().begin(scope);
    }

    /// Somebody gives contents of a job to these.
    pub fn grant(&mut self, who: AccountKey, scope: Scope, to: &Readers, ids: &[ContentId]) {
        let grants = self.grants.entry(who).or_default();
        grants.grant(scope, to, ids.iter().copied());
        let shown = self.shown.entry(who).or_default();
        for id in ids {
            shown.show(scope.buyer, *id);
        }
    }

    /// A lease of a job is over.
    pub fn end(&mut self, who: AccountKey, scope: Scope) {
        self.grants.entry(who).or_default().end(scope);
    }

    /// Whether somebody gives a content of a job to who asks.
    pub fn gives(&self, who: AccountKey, scope: &Scope, to: AccountKey, id: &ContentId) -> bool {
        let grants = self.grants.get(&who);
        grants.is_some_and(|grants| grants.may_have(scope, to, id))
    }

    /// Whether somebody has a content and uses it for a buyer.
    pub fn uses(&self, who: AccountKey, buyer: AccountKey, id: ContentId) -> bool {
        let shown = self.shown.get(&who);
        self.has(who, id) && shown.is_some_and(|shown| shown.has(buyer, &id))
    }

    /// Somebody's process ended: it serves nothing.
    pub fn serve_nothing(&mut self, who: AccountKey) {
        self.grants.remove(&who);
    }

    /// What somebody had only in memory is gone.
    pub fn forget(&mut self, who: AccountKey, kept: &BTreeSet<ContentId>) {
        self.serve_nothing(who);
        if let Some(held) = self.held.get_mut(&who) {
            held.retain(|id| kept.contains(id));
        }
    }
}

/// What a device gives for a graph and inputs, by their values, under an output's name.
pub fn computed(graph: ContentId, inputs: &BTreeMap<String, u64>, output: &str) -> u64 {
    let mut bytes = graph.as_bytes().to_vec();
    for (name, value) in inputs {
        bytes.extend(name.as_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(output.as_bytes());
    number(&bytes)
}

/// A number that bytes stand for.
pub fn number(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    let mut word = [0; 8];
    word.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(word)
}
