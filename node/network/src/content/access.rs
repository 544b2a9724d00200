//! Decides to which peers a node serves a content, and for which buyers it uses one. The rules are
//! [`souk_roles::access`]; this module shares their state between all streams and channels.
//!
//! The node stores which account has provided which content, so that a buyer need not send its
//! weights again after a restart. It does not store the grants, because a provider that restarts
//! must restore them from its journal.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_roles::access::{Grants, ShownContents};

pub use souk_roles::access::{Readers, Scope};

/// The name of the file in a provider's folder.
pub const SHOWN_FILE: &str = "shown.json";

/// The contents of the file, oldest entry first.
#[derive(Serialize, Deserialize)]
struct ShownFile {
    format: u32,
    shown: Vec<ShownRecord>,
}

/// A content, and an account for which it was fetched or made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShownRecord {
    account: AccountKey,
    content: ContentId,
}

/// The grants and provided contents of a node.
#[derive(Debug)]
pub struct Access {
    /// The account of the node.
    account: AccountKey,
    file: Option<PathBuf>,
    inner: Mutex<AccessTables>,
}

#[derive(Debug, Default)]
struct AccessTables {
    grants: Grants,
    shown: ShownContents,
    unsaved: bool,
}

impl Access {
    /// Opens the access of a node of this account, with the entries of `file` if it exists.
    pub(crate) fn load_or_default(account: AccountKey, file: Option<PathBuf>) -> Access {
        let mut inner = AccessTables::default();
        if let Some(path) = &file {
            match config::read::<ShownFile>(path) {
                Ok(kept) => {
                    for ShownRecord { account, content } in kept.shown {
                        inner.shown.record_shown(account, content);
                    }
                }
                Err(ConfigError::Missing { .. }) => {}
                Err(error) => tracing::warn!(%error, "could not read the access records"),
            }
        }
        let inner = Mutex::new(inner);
        Access {
            account,
            file,
            inner,
        }
    }

    /// Begins a lease of a job. You must call this before you grant contents of the job.
    pub fn begin_lease(&self, scope: Scope) {
        self.lock_inner().grants.begin_lease(scope);
    }

    /// Grants contents of a job to readers. The contents count as provided by the job's buyer.
    pub fn grant_contents(&self, scope: Scope, readers: &Readers, contents: &[ContentId]) {
        let mut inner = self.lock_inner();
        inner
            .grants
            .grant_contents(scope, readers, contents.iter().copied());
        for id in contents {
            self.show_in(&mut inner, scope.buyer, *id);
        }
    }

    /// Ends a lease of a job.
    pub fn end_lease(&self, scope: Scope) {
        self.lock_inner().grants.end_lease(scope);
    }

    /// Returns whether a peer may fetch a content under a job.
    pub(super) fn may_have(&self, scope: &Scope, who: AccountKey, id: &ContentId) -> bool {
        self.lock_inner().grants.may_have(scope, who, id)
    }

    /// Returns whether the node can use a stored content for a buyer; for itself it can use every
    /// one.
    pub(super) fn may_use(&self, buyer: AccountKey, id: &ContentId) -> bool {
        buyer == self.account || self.lock_inner().shown.has_shown(buyer, id)
    }

    /// Records that a content arrived for a buyer.
    pub(super) fn record_arrival(&self, buyer: AccountKey, id: ContentId) {
        self.show_in(&mut self.lock_inner(), buyer, id);
    }

    fn show_in(&self, inner: &mut AccessTables, buyer: AccountKey, id: ContentId) {
        if buyer != self.account {
            inner.unsaved |= inner.shown.record_shown(buyer, id);
        }
    }

    /// Writes the file if something changed. You should call it where the thread can wait for a
    /// disk.
    pub fn save(&self) {
        let Some(path) = &self.file else { return };
        let shown = {
            let mut inner = self.lock_inner();
            if !std::mem::take(&mut inner.unsaved) {
                return;
            }
            let record = |(account, content): &(AccountKey, ContentId)| ShownRecord {
                account: *account,
                content: *content,
            };
            inner.shown.iter().map(record).collect()
        };
        let file = ShownFile {
            format: FORMAT,
            shown,
        };
        if let Err(error) = config::write(path, &file) {
            tracing::warn!(%error, "could not write the access records");
        }
    }

    fn lock_inner(&self) -> MutexGuard<'_, AccessTables> {
        // A panic cannot leave a change half done, except for a broken invariant, which would panic
        // again.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.save();
    }
}

#[cfg(test)]
mod tests {
    use souk_market::JobId;

    use super::*;

    const NODE: AccountKey = AccountKey([9; 32]);
    const BUYER: AccountKey = AccountKey([1; 32]);
    const OTHER: AccountKey = AccountKey([2; 32]);

    fn open(folder: &tempfile::TempDir) -> Access {
        Access::load_or_default(NODE, Some(folder.path().join(SHOWN_FILE)))
    }

    #[test]
    fn what_a_buyer_has_shown_is_used_for_it_alone_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (weights, made) = (
            ContentId::for_content(b"weights"),
            ContentId::for_content(b"made"),
        );
        let access = open(&folder);
        let scope = Scope {
            buyer: BUYER,
            job: JobId([3; 32]),
        };
        access.record_arrival(BUYER, weights);
        access.begin_lease(scope);
        access.grant_contents(scope, &Readers::new([BUYER].into()), &[made]);
        drop(access);
        let access = open(&folder);
        for id in [weights, made] {
            assert!(access.may_use(BUYER, &id));
            assert!(!access.may_use(OTHER, &id));
            assert!(access.may_use(NODE, &id), "its own");
            assert!(!access.may_have(&scope, BUYER, &id), "told anew");
        }
    }

    #[test]
    fn a_damaged_file_remembers_nobody() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(SHOWN_FILE), "garbage").unwrap();
        assert!(!open(&folder).may_use(BUYER, &ContentId::for_content(b"weights")));
    }
}
